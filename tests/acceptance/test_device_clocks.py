"""C13, C14: leases of processes whose wall clock is stepped, whose event loop is blocked, and that wake too late."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from .benches import RESOURCE, Bench, asks, boot_ns, check_device, freeze, thaw
from .harness import FIXTURES, Coordinator, Site, until
from .invariants import check_invariants, rows
from .orders import work_order

HOUR: Final = 3600
LEASE_SECONDS: Final = 2.0


@pytest.fixture
def bench(site: Site) -> Iterator[Bench]:
    made = Bench(site)
    try:
        yield made
    finally:
        made.close()


class Host:
    """Processes whose wall clock a test steps, all of them at once, while boot time runs on."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.offset = bench.site.folder / "offset"
        self.step(0)

    def step(self, seconds: int) -> None:
        written = self.offset.with_suffix(".new")
        written.write_text(str(seconds), encoding="ascii")
        written.replace(self.offset)

    def start(self, *arguments: object) -> Coordinator:
        launcher = (sys.executable, str(FIXTURES / "stepped_clock.py"), str(self.offset))
        return self.bench.site.start(*arguments, launcher=launcher, environment=self.bench.locks)

    def run(self, name: str, *cases: dict[str, Any]) -> Coordinator:
        order = self.bench.site.folder / f"{name}.json"
        order.write_text(json.dumps(self.bench.order(name, cases, lease_seconds=LEASE_SECONDS)), encoding="utf-8")
        return self.start("run", order, "--debug")

    def expires_in(self) -> float:
        """The seconds that `device show` gives the holder's lease."""
        shown = self.start("device", "show", RESOURCE, "--json")
        assert shown.ended() == 0, shown.err
        found: float = json.loads(shown.out)["holder"]["expires_in_seconds"]
        return found


def held(site: Site, column: str) -> int:
    found = rows(site.ledger, f"SELECT {column} FROM leases WHERE resource = ? AND state = 'held'", RESOURCE)
    return int(found[0][0]) if found else 0


def until_renewed_past_its_first_end(site: Site) -> None:
    first = held(site, "expires_boot_ns")
    until(lambda: boot_ns() > first and held(site, "expires_boot_ns") > first, "the lease has been renewed beyond it")


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["forward", "back"])
def test_c13_a_stepped_clock_steals_no_live_lease(site: Site, bench: Bench, step: int) -> None:
    host = Host(bench)
    first = host.run("first", asks("a", wait="gate"), asks("b"))
    bench.device.wait_until_waiting("gate")
    second = host.run("second", asks("c"))
    bench.until_waiting("second")

    host.step(step)

    until_renewed_past_its_first_end(site)
    assert held(site, "fence") == 1, "nobody else has it"
    assert "the wall clock was stepped" in first.err, "the jump is logged"
    assert 0 <= host.expires_in() <= LEASE_SECONDS
    bench.device.go("gate")
    assert (first.ended(), second.ended()) == (0, 0), first.err + second.err
    assert {line["fence"] for line in bench.device.lines(role="submit")} == {1, 2, 3}
    assert rows(site.ledger, "SELECT count(*) FROM dispatches WHERE duration_us < 0") == [(0,)]
    assert rows(site.ledger, "SELECT count(*) FROM slots WHERE state <> 'selected'") == [(0,)]


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["forward", "back"])
def test_c13_a_stepped_clock_keeps_no_dead_lease_alive(site: Site, bench: Bench, step: int) -> None:
    host = Host(bench)
    first = host.run("first", asks("a", wait="gate"))
    bench.device.wait_until_waiting("gate")
    second = host.run("second", asks("c"))
    bench.until_waiting("second")
    freeze(first, outside=site.ledger)
    ends = held(site, "expires_boot_ns")

    host.step(step)

    assert second.ended() == 0, second.err
    assert boot_ns() > ends
    assert rows(site.ledger, "SELECT state, reason FROM leases WHERE fence = 1 AND resource = ?", RESOURCE) == [
        ("lost", "it ran out")
    ]
    bench.device.go("gate")
    thaw(first)
    assert first.ended() == 0, first.err
    assert rows(site.ledger, "SELECT count(*) FROM slots WHERE state <> 'selected'") == [(0,)]


BLOCKING_USER: Final = """
async def say(case, history):
    if history:
        return None
    with open(case.input["fifo"]) as gate:  # keeps the whole event loop from going on
        gate.read()
    return {"answer": "said"}
"""


def test_e05_an_event_loop_that_is_blocked_for_longer_than_the_lease_does_not_lose_its_device(
    site: Site, bench: Bench
) -> None:
    (site.folder / "blocking.py").write_text(BLOCKING_USER)
    os.mkfifo(site.folder / "gate")
    case = {"id": "a", "input": {"fifo": str(site.folder / "gate")}}
    order = {
        **bench.order("first", [case], lease_seconds=LEASE_SECONDS),
        "conversation": {"user": "say", "file": "blocking.py", "turns_max": 3}, "judges": [],
    }  # fmt: skip
    path = site.folder / "first.json"
    path.write_text(json.dumps(order), encoding="utf-8")
    first = site.start("run", path, environment=bench.locks)
    with (site.folder / "gate").open("w", encoding="ascii"):  # returns once the user function reads
        second = bench.run("second", [asks("c")])
        bench.until_waiting("second")
        until_renewed_past_its_first_end(site)
        assert held(site, "fence") == 1
    assert (first.ended(), second.ended()) == (0, 0), first.err + second.err
    assert [line["fence"] for line in bench.device.lines(role="submit")] == [1, 2]
    check_device(bench)
    check_invariants(site.ledger, None)


def test_c14_what_a_woken_holder_still_sends_is_refused_by_the_device_and_counted(site: Site, bench: Bench) -> None:
    first = bench.run("first", [asks("a", wait="gate")], lease_seconds=LEASE_SECONDS)
    bench.device.wait_until_waiting("gate")
    freeze(first, outside=site.ledger)
    second = bench.run("second", [asks("b")])
    assert second.ended() == 0, second.err
    # A command that had left the frozen process before, and was held up on its way.
    stale = bench.device.post("submit", serial="SN-1", fence=1, request_id="held-up", payload={"answer": "x"})
    assert (stale["status"], stale["error"]) == (409, "fence.stale")
    assert bench.device.get("state")["stale"]["count"] == 1
    bench.device.go("gate")
    thaw(first)
    assert first.ended() == 0, first.err
    assert "held-up" not in {line["request_id"] for line in bench.device.lines("ended")}, "nothing was done for it"
    assert rows(site.ledger, "SELECT count(*) FROM attempts WHERE contaminated") == [(0,)]
    check_device(bench, stale_max=1)
    check_invariants(site.ledger, None)


def test_c14_a_trial_that_a_woken_holder_touched_is_flagged_where_the_device_compares_no_fences(
    site: Site, tmp_path: Path
) -> None:
    log = tmp_path / "instrument.jsonl"
    instrument = site.speaking(FIXTURES / "line_instrument.py", "--log", log)
    target = {
        "kind": "line", "address": f"127.0.0.1:{instrument.line()}", "serial": "SN-7", "reconnect": True,
        "drain_seconds": 5.0,
    }  # fmt: skip
    locks = {"TALLYSTICK_DEVICE_LOCKS": str(tmp_path / "locks")}

    def run(name: str, asked: str) -> Coordinator:
        order = work_order(target, [{"id": name, "input": asked, "expected": "x"}])
        path = site.folder / f"{name}.json"
        path.write_text(json.dumps({**order, "name": name, "device": {"lease_seconds": 1.0}}), encoding="utf-8")
        return site.start("run", path, environment=locks)

    first = run("first", 'ASK {"answer": "x", "behave": {"hold": "old"}}')
    assert instrument.line() == "waiting old"
    freeze(first, outside=site.ledger)
    release = ("device", "release", "line:SN-7", "--force", "--reason", "host 3 hangs")
    assert site.start(*release, environment=locks).ended() == 0
    second = run("second", 'ASK {"answer": "x", "behave": {"hold": "new"}}')
    assert instrument.line() == "waiting new"
    instrument.say("go old")
    thaw(first)
    first.ended()
    instrument.say("go new")
    assert second.ended() == 0, second.out + second.err

    (shown,) = site.told("report", "second", "--format", "json", environment=locks)["slots"]
    assert shown["contaminated"] is True
    assert "contaminated: an earlier holder" in shown_on_its_page(site, "second")
    found = rows(
        site.ledger,
        "SELECT r.name, a.attempt_no, a.state, a.contaminated FROM attempts a JOIN runs r USING (run_key)"
        " ORDER BY r.run_key, a.attempt_no",
    )
    assert found[0][0] == "first"
    assert found[0][2] != "observed", "the woken holder's own row is refused"
    assert found[-1] == ("second", 1, "observed", 1), "the trial that it touched is flagged"
    check_invariants(site.ledger, None)


def shown_on_its_page(site: Site, run: str) -> str:
    page = site.start("show", run, run)  # the case is named like its run
    assert page.ended() == 0, page.err
    return page.out
