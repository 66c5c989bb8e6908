"""Where a device or a case at it needs a decision: a quarantine, also by another ledger, and a case that kills."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .benches import RESOURCE, Bench, asks, check_device
from .harness import Coordinator, Site, until
from .invariants import check_invariants, rows

CALLS_OF_CASE = (
    "SELECT c.call_id FROM calls c JOIN slots s ON s.run_key = c.run_key AND s.slot_no = c.slot_no"
    " JOIN cases k ON k.run_key = s.run_key AND k.case_no = s.case_no WHERE k.case_id = ?"
)
SLOTS = (
    "SELECT k.case_id, s.state, s.reason FROM slots s JOIN runs r ON r.run_key = s.run_key"
    " JOIN cases k ON k.run_key = s.run_key AND k.case_no = s.case_no WHERE r.name = ? ORDER BY s.slot_no"
)


@pytest.fixture
def bench(site: Site) -> Iterator[Bench]:
    made = Bench(site)
    try:
        yield made
    finally:
        made.close()


def dies_at(bench: Bench, case: str, coordinator: Coordinator, deaths: int) -> bool:
    """Kill it while the device works on that case for it, once more than so often; False when it ends before that."""

    def asked() -> bool:
        asked_for = {line["request_id"] for line in bench.device.lines(role="submit")}
        return (
            bool(asked_for)
            and len(asked_for & {row[0] for row in rows(bench.site.ledger, CALLS_OF_CASE, case)}) > deaths
        )

    until(lambda: asked() or coordinator.process.poll() is not None, f"{case} is at the device or it has ended")
    if coordinator.process.poll() is not None:
        return False
    other = bench.run(f"other-{deaths}", [asks(f"o{deaths}")], target={"drain_seconds": 0.2})
    bench.until_waiting(f"other-{deaths}")
    coordinator.dies()
    assert other.ended() == 0, other.err
    return True


def test_c04_case_that_kills_its_runner_at_a_device_that_others_want_is_parked(site: Site, bench: Bench) -> None:
    """Each time it is another run, and not its own, that is first to find out about the death."""
    cases = [asks("x"), asks("deadly", wait="never"), asks("y")]
    coordinator, deaths = bench.run("first", cases), 0
    while dies_at(bench, "deadly", coordinator, deaths):
        deaths += 1
        assert deaths < 9, "it does not come to an end"
        coordinator = bench.resume("first")

    assert coordinator.ended() == 3, coordinator.err
    assert deaths == 4, "one that it was suspected for, and three of its own"
    assert rows(site.ledger, SLOTS, "first") == [
        ("x", "selected", None), ("deadly", "parked", "kills_the_runner"), ("y", "selected", None)
    ]  # fmt: skip
    assert site.status("first")["next"] == "decide"
    assert bench.resume("first").ended() == 3, "it stays parked until somebody says otherwise"
    check_device(bench)
    check_invariants(site.ledger, None)


def test_a_device_that_another_ledger_has_put_in_quarantine_needs_a_decision_and_no_resume(
    site: Site, bench: Bench
) -> None:
    elsewhere = bench.another_ledger()
    assert bench.run("theirs", [asks("t")], site=elsewhere).ended() == 0
    quarantine = ("device", "quarantine", RESOURCE, "--reason", "it smokes")
    assert elsewhere.start(*quarantine, environment=bench.locks).ended() == 0

    first = bench.run("first", [asks("a"), asks("b")])
    assert first.ended() == 3, first.err
    assert "it smokes" in first.out
    assert f"tallystick device show {RESOURCE}" in first.out
    again = bench.resume("first")
    assert again.ended() == 3, "it meets the same device again"
    told = bench.told("status", "first", "--json", statuses=[0])
    assert (told["next"], told["devices"][0]["state"]) == ("decide", "quarantined")
    assert told["command"].startswith(f"tallystick device show {RESOURCE}")
    assert [one["next"] for one in bench.told("runs", "--json", statuses=[0])["runs"]] == ["decide"]
    told = bench.told("resume", "first", "--json", statuses=[3])
    assert told["next"] == "decide"
    assert [one["device"] for one in told["session"]["passed_over"]] == [RESOURCE]
    assert len(bench.device.lines(role="submit")) == 1, "nothing more is sent to it"

    assert elsewhere.start("device", "clear", RESOURCE, "--reason", "new fuse", environment=bench.locks).ended() == 0
    assert bench.resume("first").ended() == 0
    assert {state for _, state, _ in rows(site.ledger, SLOTS, "first")} == {"selected"}
    check_device(bench)
    check_invariants(site.ledger, None)


def test_a_quarantine_while_a_run_waits_ends_its_session_with_a_decision(site: Site, bench: Bench) -> None:
    """The device goes into quarantine, in another ledger, under the holder for which it waits."""
    elsewhere = bench.another_ledger()
    theirs = bench.run("theirs", [asks("t", wait="gate"), asks("u")], site=elsewhere)
    bench.device.wait_until_waiting("gate")
    first = bench.run("first", [asks("a")])
    bench.until_waiting("first")
    quarantine = ("device", "quarantine", RESOURCE, "--reason", "it smokes")
    assert elsewhere.start(*quarantine, environment=bench.locks).ended() == 0
    assert first.ended() == 3, first.out + first.err
    bench.device.go("gate")
    assert theirs.ended() == 3, theirs.out + theirs.err
    assert len(bench.device.lines(role="submit")) == 1
    check_device(bench)
    for one in bench.sites:
        check_invariants(one.ledger, None)


def test_a_device_that_its_own_run_puts_in_quarantine_ends_the_other_runs_with_a_decision(
    site: Site, bench: Bench
) -> None:
    """It does not stop when it is told to: nobody, of whichever ledger, sends anything more before somebody looks."""
    cases = [asks("a", wait="never", stubborn=True), asks("b")]
    first = bench.run("first", cases, target={"drain_seconds": 0.2, "call_seconds": 0.5}, deadline_seconds=3.0)
    bench.device.wait_until_waiting("never")
    bench.device.tell("plan", role="reset", behave={"hang": True}, times=9)
    assert first.ended() == 3, first.out + first.err
    submitted = len(bench.device.lines(role="submit"))
    second = bench.run("second", [asks("c")])
    assert second.ended() == 3, second.out + second.err
    third = bench.run("third", [asks("d")], site=bench.another_ledger())
    assert third.ended() == 3, third.out + third.err
    assert len(bench.device.lines(role="submit")) == submitted
    for one in bench.sites:
        check_invariants(one.ledger, None)
