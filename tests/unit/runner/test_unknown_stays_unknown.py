"""What an earlier dispatch left unknown stays so whatever follows it, and nobody is asked anew behind its back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick._wiring import ADAPTERS
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import DispatchState, IfUnknown, SlotState
from tallystick.runner.descriptions import describe
from tallystick.runner.protocols import Dispatching, Outcome, QueryAnswer, QueryState
from tallystick.runner.results import NextMove
from tallystick.runner.sessions import find_or_create, run_session
from tests.unit.runner.scripted import (
    ANSWERED,
    REFUSED,
    UNKNOWN,
    Scripted,
    always,
    execute,
    held_and_settled,
    in_turn,
    order_of,
    page,
)

BOUND = {"usd": {"limit": "1", "bound_per_dispatch": "0.10"}, "dispatches": 9}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        yield opened


def test_a_resend_that_is_refused_is_never_followed_by_a_new_request(ledger: Ledger) -> None:
    target = Scripted(in_turn(UNKNOWN, REFUSED, REFUSED, ANSWERED), IfUnknown.RESEND)
    outcome = execute(ledger, target, dispatches_max=3, attempts_max=3)
    assert len({one.request_id for one in target.asked}) == 1
    assert outcome.counts[SlotState.UNKNOWN] == 1
    found = page(ledger, outcome)
    assert (found.reason, [attempt.state for attempt in found.attempts]) == ("resends.used_up", ["unknown"])


def test_a_resend_that_has_to_wait_is_sent_again_under_the_same_id(ledger: Ledger) -> None:
    later = Outcome(DispatchState.REFUSED, "http.status", "503", bytes_sent=5, retry_after_seconds=3600)
    target = Scripted(in_turn(UNKNOWN, later), IfUnknown.RESEND)
    outcome = execute(ledger, target, deadline_seconds=5)
    found = page(ledger, outcome)
    assert (found.state, found.next_step, outcome.not_before_us is not None) == ("pending", "resend", True)
    assert [attempt.state for attempt in found.attempts] == ["unknown"]


def test_an_answer_that_comes_late_before_its_resend_stops_no_run(ledger: Ledger) -> None:
    """The slot waits for its resend in the coordinator's hand while the answer to its first send arrives."""
    late = []

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        if dispatching.slot.case.id == "c1" and dispatching.attempt == dispatching.dispatch == 1:
            late.append(dispatching.late)
            return UNKNOWN
        if dispatching.dispatch == 1 and dispatching.attempt == 1:
            return UNKNOWN
        if late:
            late.pop()(ANSWERED)
            while True:
                with ledger.reading() as reader:
                    if reader.row("SELECT count(*) FROM dispatches WHERE state = 'late'")[0]:
                        return ANSWERED
                await asyncio.sleep(0)
        return ANSWERED

    target = Scripted(reply, IfUnknown.RESEND)
    outcome = execute(ledger, target, cases=2, concurrency=1, backoff={"first_seconds": 1e-6, "max_seconds": 1e-6})
    assert outcome.counts[SlotState.SELECTED] == 1
    found = page(ledger, outcome, "c1")
    assert (found.state, found.reason) == ("failed", "late")
    assert [attempt.state for attempt in found.attempts] == ["late"]


def test_a_target_that_never_does_what_it_is_asked_is_asked_a_bounded_number_of_times(ledger: Ledger) -> None:
    target = Scripted(always(UNKNOWN), IfUnknown.QUERY, query_answer=QueryAnswer(QueryState.NEVER))
    outcome = execute(ledger, target, attempts_max=3, budgets=BOUND)
    assert len(target.asked) == len({one.request_id for one in target.asked}) == 3
    found = page(ledger, outcome)
    assert (found.state, found.reason) == ("unavailable", "query.never")
    assert held_and_settled(ledger) == [(0, 0, 0), (0, 0, 0)]


def test_a_failure_before_anything_was_sent_costs_nothing(ledger: Ledger) -> None:
    unsent = Outcome(DispatchState.FAILED, "request.invalid", "no such header", bytes_sent=0, wire_sends=0)
    outcome = execute(ledger, Scripted(always(unsent)), budgets=BOUND)
    assert outcome.counts[SlotState.FAILED] == 1
    assert held_and_settled(ledger) == [(0, 0, 0), (0, 0, 0)]


def test_a_run_that_is_cancelled_leaves_nothing_in_flight_behind(ledger: Ledger) -> None:
    started = asyncio.Event()

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        dispatching.progress.bytes_sent = 10
        started.set()
        await asyncio.Event().wait()
        return ANSWERED

    target = Scripted(reply)

    async def session() -> None:
        made = find_or_create(ledger, describe(order_of(target, cases=9, concurrency=2), ADAPTERS))
        task = asyncio.get_running_loop().create_task(run_session(ledger, made))
        await started.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert not [other for other in asyncio.all_tasks() if other.get_name() == "tallystick-worker"]

    asyncio.run(session())
    with ledger.reading() as reader:
        states = dict(reader.rows("SELECT state, count(*) FROM slots GROUP BY state"))
        assert reader.row("SELECT state FROM leases")[0] == "released"
    assert states == {"unknown": 2, "pending": 7}
    assert len(target.asked) == 2


@pytest.mark.parametrize("policy", [IfUnknown.RESEND, IfUnknown.QUERY])
def test_a_full_budget_leaves_what_waits_for_a_resend_or_a_query_unknown_and_a_raised_one_goes_on_with_it(
    ledger: Ledger, policy: IfUnknown
) -> None:
    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        return UNKNOWN if len(target.asked) == 1 else ANSWERED

    proof = QueryAnswer(QueryState.LANDED, ANSWERED)
    target = Scripted(reply, policy, query_answer=proof)
    backoff = {"first_seconds": 0.5, "max_seconds": 0.5}  # the first waits while the second meets the full budget
    first = execute(ledger, target, cases=2, concurrency=1, budgets={"dispatches": 1}, backoff=backoff)
    if policy is IfUnknown.RESEND:
        assert (first.counts[SlotState.UNKNOWN], first.counts[SlotState.UNAVAILABLE]) == (1, 1)
    assert (first.next, int(first.exit_status)) == (NextMove.FUND, 6)
    last = execute(ledger, target, cases=2, concurrency=1, budgets={"dispatches": 9}, backoff=backoff)
    assert last.counts[SlotState.SELECTED] == 2
    assert [attempt.state for attempt in page(ledger, last).attempts] == ["observed"]
    requests = {one.request_id for one in target.asked if one.slot.case.id == "c0"}
    assert len(requests) == 1
