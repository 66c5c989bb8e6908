"""E05: runners that compete for one device; the holder is killed, or frozen past its lease and wakes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .benches import RESOURCE, Bench, asks, boot_ns, check_device, freeze, thaw
from .harness import FIXTURES, KILLED, Coordinator, Site, until
from .invariants import check_invariants, rows
from .orders import work_order


@pytest.fixture
def bench(site: Site) -> Iterator[Bench]:
    made = Bench(site)
    try:
        yield made
    finally:
        made.close()


def leases(site: Site) -> list[tuple[str, int]]:
    found = "SELECT state, fence FROM leases WHERE resource = ? AND since_us IS NOT NULL ORDER BY since_us"
    return rows(site.ledger, found, RESOURCE)


def states(site: Site, name: str) -> list[tuple[str, str]]:
    """Each case of that run with its state."""
    return rows(
        site.ledger,
        "SELECT k.case_id, s.state FROM slots s JOIN runs r ON r.run_key = s.run_key"
        " JOIN cases k ON k.run_key = s.run_key AND k.case_no = s.case_no WHERE r.name = ? ORDER BY s.slot_no",
        name,
    )


def test_e05_a_killed_holder_is_replaced_though_its_lease_has_minutes_to_run(site: Site, bench: Bench) -> None:
    first = bench.run("first", [asks("a", wait="gate"), asks("b")])
    bench.device.wait_until_waiting("gate")
    second = bench.run("second", [asks("c"), asks("d")])
    bench.until_waiting("second")
    first.dies()
    assert second.ended() == 0, second.out + second.err
    assert states(site, "second") == [("c", "selected"), ("d", "selected")]
    assert leases(site)[0] == ("lost", 1)
    check_device(bench)

    # What was in flight is asked for when the first run goes on; the device knows that it never was done.
    bench.device.go("gate")
    assert bench.resume("first").ended() == 0
    assert states(site, "first") == [("a", "selected"), ("b", "selected")]
    check_device(bench)
    check_invariants(site.ledger, None)


def test_e05_a_frozen_holder_is_replaced_when_its_lease_has_run_out_and_is_refused_when_it_wakes(
    site: Site, bench: Bench
) -> None:
    first = bench.run("first", [asks("a", wait="gate"), asks("b")], lease_seconds=2.0)
    bench.device.wait_until_waiting("gate")
    second = bench.run("second", [asks("c")], lease_seconds=2.0)
    bench.until_waiting("second")
    freeze(first, outside=site.ledger)
    assert second.ended() == 0, second.out + second.err
    assert leases(site)[:2] == [("lost", 1), ("released", 2)]
    marked = rows(site.ledger, "SELECT body FROM events WHERE kind = 'attempt.unknown' AND body LIKE '%lease.lost%'")
    assert len(marked) == 1, "what it had in flight is marked before it wakes"

    bench.device.go("gate")
    thaw(first)
    assert first.ended() == 0, first.out + first.err
    assert states(site, "first") == [("a", "selected"), ("b", "selected")]
    assert leases(site)[2:] == [("released", 3)]
    check_device(bench)
    check_invariants(site.ledger, None)


def test_e05_a_woken_holder_that_stood_before_its_intent_sends_nothing_under_the_old_lease(
    site: Site, bench: Bench
) -> None:
    first = bench.run("first", [asks("a"), asks("b")], lease_seconds=2.0, pause_at="dispatch.intent.before@2")
    first.wait_until_there()
    second = bench.run("second", [asks("c")], lease_seconds=2.0)
    bench.until_waiting("second")
    freeze(first, outside=site.ledger)
    assert second.ended() == 0, second.out + second.err
    first.let_go()
    thaw(first)
    assert first.ended() == 0, first.out + first.err
    check_device(bench)
    assert [line["fence"] for line in bench.device.lines(role="submit")] == [1, 2, 3]
    check_invariants(site.ledger, None)


def test_e05_a_holder_that_is_frozen_between_intent_and_send_sends_nothing_when_it_wakes(
    site: Site, bench: Bench
) -> None:
    first = bench.run("first", [asks("a")], lease_seconds=2.0, pause_at="dispatch.intent.committed")
    first.wait_until_there()
    second = bench.run("second", [asks("c")], lease_seconds=2.0)
    bench.until_waiting("second")
    freeze(first, outside=site.ledger)
    assert second.ended() == 0, second.out + second.err
    first.let_go()
    thaw(first)
    assert first.ended() == 0, first.out + first.err
    assert [line["fence"] for line in bench.device.lines(role="submit")] == [2, 3]
    check_device(bench)
    check_invariants(site.ledger, None)


def test_e05_a_holder_that_is_frozen_inside_a_transaction_does_not_block_the_ledger(site: Site, bench: Bench) -> None:
    first = bench.run(
        "first", [asks("a", wait="gate"), asks("b")], lease_seconds=2.0, pause_at="dispatch.outcome.inside"
    )
    bench.device.wait_until_waiting("gate")
    second = bench.run("second", [asks("c")], lease_seconds=2.0)
    bench.until_waiting("second")
    bench.device.go("gate")
    first.wait_until_there()
    freeze(first)
    assert second.ended() == 0, second.out + second.err
    assert first.ended() == KILLED, "it stood inside the ledger's only write transaction, and was verifiably a worker"
    assert bench.resume("first").ended() == 0
    assert states(site, "first") == [("a", "selected"), ("b", "selected")]
    assert [line["about"] for line in bench.device.lines(role="query")], (
        "what was done is asked for, and not done again"
    )
    assert len(bench.device.lines(role="submit", verdict="accepted")) == 3
    check_device(bench)
    check_invariants(site.ledger, None)


def test_e05_two_ledgers_in_two_folders_exclude_each_other(site: Site, bench: Bench) -> None:
    elsewhere = bench.another_ledger()
    first = bench.run("first", [asks("a", wait="gate"), asks("b")])
    bench.device.wait_until_waiting("gate")
    second = bench.run("second", [asks("c"), asks("d")], site=elsewhere)
    bench.until_waiting("second", site=elsewhere)
    assert {line["fence"] for line in bench.device.lines(verdict="accepted")} == {1}
    bench.device.go("gate")
    assert (first.ended(), second.ended()) == (0, 0), first.err + second.err
    check_device(bench)
    for one in (site, elsewhere):
        check_invariants(one.ledger, None)


def test_e05_a_holder_that_dies_in_one_ledger_is_replaced_by_a_runner_of_another(site: Site, bench: Bench) -> None:
    elsewhere = bench.another_ledger()
    first = bench.run("first", [asks("a", wait="gate")])
    bench.device.wait_until_waiting("gate")
    second = bench.run("second", [asks("c")], site=elsewhere)
    bench.until_waiting("second", site=elsewhere)
    first.dies()
    assert second.ended() == 0, second.out + second.err
    bench.device.go("gate")
    assert bench.resume("first").ended() == 0
    assert states(site, "first") == [("a", "selected")]
    check_device(bench)


def test_e05_an_answer_that_comes_after_another_ledger_had_the_device_is_no_answer_in_time(
    site: Site, bench: Bench
) -> None:
    """Its ledger cannot know: the answer lies in the socket while a run of another ledger has the device."""
    elsewhere = bench.another_ledger()
    keep = {"if_unknown": "keep"}
    first = bench.run("first", [asks("a", wait="gate")], lease_seconds=2.0, target=keep)
    bench.device.wait_until_waiting("gate")
    freeze(first, outside=site.ledger)
    bench.device.go("gate")
    second = bench.run("second", [asks("c")], site=elsewhere, lease_seconds=2.0)
    assert second.ended() == 0, second.out + second.err
    thaw(first)
    assert first.ended() == 3, first.out + first.err
    (slot,) = site.case("a")
    assert slot.state != "selected"
    # When it wakes, both are there: the answer, and that its lease has run out. What its loop takes up first is either.
    assert [attempt.state for attempt in slot.attempts] in (["late"], ["unknown"])
    check_device(bench)


def test_e05_runners_share_a_device_attempt_by_attempt(site: Site, bench: Bench) -> None:
    """Neither waits for the other's end: each gives way after an attempt, since a tenure lasts 0 s here."""
    first = bench.run("first", [asks("a0", wait="gate"), *(asks(f"a{number}") for number in range(1, 6))])
    bench.device.wait_until_waiting("gate")
    second = bench.run("second", [asks(f"b{number}") for number in range(6)])
    bench.until_waiting("second")
    bench.device.go("gate")
    assert (first.ended(), second.ended()) == (0, 0), first.err + second.err
    assert len(leases(site)) >= 4
    check_device(bench)
    check_invariants(site.ledger, None)


def test_e05_an_interrupted_holder_lets_go_in_good_order_and_the_next_goes_on(site: Site, bench: Bench) -> None:
    first = bench.run("first", [asks("a", wait="gate"), asks("b")])
    bench.device.wait_until_waiting("gate")
    second = bench.run("second", [asks("c")])
    bench.until_waiting("second")
    first.signal(signal.SIGINT)
    bench.device.go("gate")
    assert first.ended() == 130
    assert second.ended() == 0, second.out + second.err
    assert leases(site) == [("released", 1), ("released", 2)]
    check_device(bench)


def test_e05_a_runner_that_waits_says_for_which_device_and_who_has_it(site: Site, bench: Bench) -> None:
    first = bench.run("first", [asks("a", wait="gate")])
    bench.device.wait_until_waiting("gate")
    second = bench.run("second", [asks("c")])
    bench.until_waiting("second")
    told = site.status("second")
    assert [(one["device"], one["state"], one["held_by"]["run"]) for one in told["devices"]] == [
        (RESOURCE, "waiting", site.status("first")["run"])
    ]
    until(lambda: f"waits for {RESOURCE}, held by process {first.process.pid}" in second.err, "it says so")
    bench.device.go("gate")
    assert (first.ended(), second.ended()) == (0, 0)


def held_line(site: Site, column: str) -> int:
    found = rows(site.ledger, f"SELECT max({column}) FROM leases WHERE resource = 'line:SN-7' AND state = 'held'")
    return int(found[0][0] or 0)


def test_e05_a_device_that_cannot_compare_fences_stays_with_its_frozen_holder(site: Site, tmp_path: Path) -> None:
    instrument = site.speaking(FIXTURES / "line_instrument.py", "--log", tmp_path / "instrument.jsonl")
    target = {"kind": "line", "address": f"127.0.0.1:{instrument.line()}", "serial": "SN-7"}
    locks = {"TALLYSTICK_DEVICE_LOCKS": str(tmp_path / "locks")}

    def run(name: str, asked: str) -> Coordinator:
        order = work_order(target, [{"id": name, "input": asked, "expected": "x"}])
        path = site.folder / f"{name}.json"
        path.write_text(json.dumps({**order, "name": name, "device": {"lease_seconds": 1.0}}), encoding="utf-8")
        return site.start("run", path, environment=locks)

    first = run("first", 'ASK {"answer": "x", "behave": {"hold": "gate"}}')
    assert instrument.line() == "waiting gate"
    freeze(first, outside=site.ledger)
    expires = held_line(site, "expires_boot_ns")
    second = run("second", 'ASK {"answer": "x"}')
    until(lambda: boot_ns() > expires, "the lease has run out")
    asked = "SELECT count(*) FROM leases WHERE resource = 'line:SN-7' AND state = 'waiting' AND renewed_us > ?"
    seen = rows(site.ledger, "SELECT max(renewed_us) FROM leases WHERE resource = 'line:SN-7'")[0][0]
    until(lambda: rows(site.ledger, asked, seen)[0][0], "the second has looked again since")
    assert held_line(site, "fence") == 1, "nobody can tell whether a frozen holder still acts on such a device"
    instrument.say("go gate")
    thaw(first)
    assert first.ended() == 0, first.out + first.err
    assert second.ended() == 0, second.out + second.err
    assert [line for line in lines_of(tmp_path / "instrument.jsonl") if line.startswith("ASK")] == [
        'ASK {"answer": "x", "behave": {"hold": "gate"}}', 'ASK {"answer": "x"}'
    ]  # fmt: skip


def lines_of(log: Path) -> list[str]:
    return [json.loads(line)["line"] for line in log.read_text(encoding="utf-8").splitlines()]
