"""Devices that are lost, wedged or away in the middle of a session, and what the session makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger import device_care, leases
from tallystick.ledger.errors import DeviceLocksUnusable, LeaseLost, TargetNotFound
from tallystick.ledger.host_claims import HostClaims
from tallystick.ledger.lease_records import DeviceAsk, Granted
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import DispatchState, IfUnknown, SlotState
from tallystick.runner import device_lanes, flights
from tallystick.runner.device_protocols import LEASE_LOST, TakenOver, Tenure
from tallystick.runner.protocols import Dispatching, Outcome, QueryAnswer, QueryState
from tallystick.runner.results import NextMove
from tests.unit.ledger.factories import HandClock
from tests.unit.runner.benches import Bench, OnBench
from tests.unit.runner.scripted import ANSWERED, UNKNOWN, Reply, Scripted, always, execute, in_turn, page


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_DEVICE_LOCKS", str(tmp_path / "locks"))


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: HandClock) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True, clock=clock) as opened:
        yield opened


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "real.db", create=True) as opened:
        yield opened


def rows(ledger: Ledger, sql: str, *parameters: object) -> list[Any]:
    with ledger.reading() as reader:
        return reader.rows(sql, parameters)


def revoke(ledger: Ledger) -> None:
    ledger.write(lambda tx: device_care.revoke(tx, "bench:1", reason="I need it", made_by="ada"))


def first_hangs(before: Any) -> Reply:
    """The first request is never answered, after ``before`` was done; the others are."""

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        if len(target.asked) == 1:
            await asyncio.to_thread(before)
            await asyncio.Event().wait()
        return ANSWERED

    return reply


def test_the_renewal_tells_of_a_taker_and_what_is_in_flight_is_broken_off(real: Ledger) -> None:
    target = OnBench(reply=first_hangs(lambda: revoke(real)))
    outcome = execute(real, target, cases=2, device={"lease_seconds": 0.5})
    assert [(one.state, one.reason) for one in page(real, outcome).attempts] == [("unknown", LEASE_LOST)]
    assert (outcome.counts[SlotState.UNKNOWN], outcome.counts[SlotState.SELECTED]) == (1, 1)
    assert rows(real, "SELECT state FROM leases WHERE resource = 'bench:1' ORDER BY set_id") == [
        ("revoked",), ("released",)
    ]  # fmt: skip


def test_a_loss_costs_no_attempt(real: Ledger) -> None:
    target = OnBench(reply=first_hangs(lambda: revoke(real)), if_unknown=IfUnknown.REPEAT)
    outcome = execute(real, target, attempts_max=1, device={"lease_seconds": 0.5})
    assert outcome.counts[SlotState.SELECTED] == 1
    assert [one.state for one in page(real, outcome).attempts] == ["unknown", "observed"]


def test_a_wedged_target_looks_at_its_device_again_before_the_next_request(
    real: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flights, "CANCEL_SLACK_SECONDS", 0.0)
    monkeypatch.setattr(flights, "ABANDON_SLACK_SECONDS", 0.0)
    ended = asyncio.Event()

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        if len(target.asked) > 1:
            ended.set()
            return ANSWERED
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                continue  # as a target may that catches everything
        return ANSWERED

    target = OnBench(reply=reply)
    outcome = execute(real, target, cases=2, deadline_seconds=0.2)
    assert outcome.counts[SlotState.SELECTED] == 1
    assert len(target.tenures) == 2
    assert len(set(map(id, target.tenures))) == 1
    assert [role for _, _, role in target.benches[0].log] == ["reset", "submit", "reset", "submit"]


def somebody_else_has_it(ledger: Ledger) -> None:
    """The device is taken over from a holder that stood still, used, and given back."""
    ask = DeviceAsk("bench:1", "bench", True, 30_000)
    set_id = ledger.write(lambda tx: leases.ask(tx, [ask], run_key=None))
    granted = ledger.write(lambda tx: leases.try_grant(tx, set_id))
    assert isinstance(granted, Granted)
    claims = HostClaims(ledger)
    claims.take(granted, [ask])
    claims.release(set_id)
    ledger.write(lambda tx: leases.release(tx, set_id))


@pytest.mark.parametrize(
    ("if_unknown", "state", "reason"),
    [(IfUnknown.QUERY, SlotState.SELECTED, "landed"), (IfUnknown.KEEP, SlotState.FAILED, "late")],
)
def test_a_whole_answer_that_comes_after_somebody_else_had_the_device(
    ledger: Ledger, clock: HandClock, if_unknown: IfUnknown, state: SlotState, reason: str
) -> None:
    """Where the target can be asked, it is; else the answer is evidence of an attempt that has ended."""

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        clock.suspend(31_000_000)
        await asyncio.to_thread(somebody_else_has_it, ledger)
        return ANSWERED

    target = OnBench(reply=reply, if_unknown=if_unknown, query_answer=QueryAnswer(QueryState.LANDED, ANSWERED))
    outcome = execute(ledger, target)
    assert outcome.counts[state] == 1
    assert [one.reason for one in page(ledger, outcome).attempts] == [reason]


def away(*, at: range) -> Any:
    """A look that finds nobody at those times, counted from 0."""
    count = iter(range(1_000))

    async def look(target: OnBench, tenure: Tenure) -> TakenOver:
        if next(count) in at:
            raise TargetNotFound("nobody listens", "switch it on")
        return TakenOver({})

    return look


def lost_once(clock: HandClock) -> Reply:
    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        if len(target.asked) == 1:
            clock.suspend(31_000_000)
        return ANSWERED

    return reply


def test_a_device_that_is_away_for_a_moment_in_a_session_is_tried_again(
    ledger: Ledger, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_lanes, "_PAUSE_FIRST_SECONDS", 0.001)
    target = OnBench(reply=lost_once(clock), look=away(at=range(1, 4)))
    outcome = execute(ledger, target, cases=2)
    assert outcome.counts[SlotState.SELECTED] == 2
    assert len(target.tenures) == 5
    states = rows(ledger, "SELECT reason FROM leases WHERE resource = 'bench:1' ORDER BY set_id")
    assert [reason for (reason,) in states[1:4]] == ["cannot be reached"] * 3  # nobody else waits for it meanwhile


def test_a_device_that_stays_away_ends_the_session_and_says_which(
    ledger: Ledger, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_lanes, "_PAUSE_FIRST_SECONDS", 1e9)
    target = OnBench(reply=lost_once(clock), look=away(at=range(1, 99)))
    outcome = execute(ledger, target, cases=2)
    assert (outcome.counts[SlotState.SELECTED], outcome.counts[SlotState.PENDING]) == (1, 1)
    assert outcome.next is NextMove.RESUME
    assert [(one.resource, one.why) for one in outcome.passed_over] == [("bench:1", "nobody listens")]


def test_a_device_that_is_lost_in_every_look_is_given_up_with_the_reason(ledger: Ledger, clock: HandClock) -> None:
    async def look(target: OnBench, tenure: Tenure) -> TakenOver:
        clock.suspend(31_000_000)
        await target.reset(tenure, "bench:1")
        return TakenOver({})

    target = OnBench(look=look)
    with pytest.raises(LeaseLost):
        execute(ledger, target)
    assert target.benches[0].log == []  # what was intended under a lease that had run out was never sent
    assert 1 < len(target.tenures) < 10
    assert rows(ledger, "SELECT 1 FROM leases WHERE state IN ('held', 'waiting')") == []


def test_what_was_in_flight_at_a_death_is_tried_alone_on_its_device(ledger: Ledger) -> None:
    bench = Bench()
    outcome = execute(ledger, OnBench(reply=in_turn(UNKNOWN, UNKNOWN, ANSWERED), benches=(bench,)), cases=3)
    run_key = rows(ledger, "SELECT run_key FROM runs")[0][0]
    ledger.write(
        lambda tx: tx.change(
            "UPDATE slots SET state = 'pending', suspect = 1 WHERE run_key = ? AND state = 'unknown'", (run_key,)
        )
    )
    ledger.write(lambda tx: tx.change("UPDATE runs SET state = 'open' WHERE run_key = ?", (run_key,)))
    again = execute(ledger, OnBench(reply=always(ANSWERED), benches=(bench,)), cases=3)
    assert again.run_id == outcome.run_id
    assert again.counts[SlotState.SELECTED] == 3


def test_an_answer_that_is_no_answer_under_a_quarantine_ends_its_attempt_first(ledger: Ledger) -> None:
    gone = Outcome(DispatchState.UNKNOWN, "reply.mismatched", "it answered another", bytes_sent=1, quarantine="look")
    outcome = execute(ledger, OnBench(reply=always(gone)))
    assert [(one.state, one.reason) for one in page(ledger, outcome).attempts] == [("unknown", "reply.mismatched")]
    assert rows(ledger, "SELECT state FROM leases WHERE resource = 'bench:1'") == [("quarantined",)]


def test_a_quarantine_that_the_host_cannot_take_note_of_still_keeps_the_device_from_this_ledger(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise DeviceLocksUnusable("its disk is full", "free space there", "locks")

    monkeypatch.setattr(HostClaims, "quarantine", full)
    gone = Outcome(DispatchState.UNKNOWN, "reply.mismatched", "it answered another", bytes_sent=1, quarantine="look")
    with pytest.raises(DeviceLocksUnusable):
        execute(ledger, OnBench(reply=always(gone)))
    assert rows(ledger, "SELECT state FROM leases WHERE resource = 'bench:1'") == [("quarantined",)]
