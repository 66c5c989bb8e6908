"""Workers that are let go of, callers that are cancelled, and sessions that end with something still to judge."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

import tallystick as ts
from tallystick._wiring import ADAPTERS
from tallystick.ledger import artifacts, budgets
from tallystick.ledger.canonical import JsonValue
from tallystick.ledger.checks import require_sound
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import Artifact
from tallystick.ledger.slot_reads import case_page
from tallystick.ledger.states import DispatchState, IfUnknown, SlotState
from tallystick.runner import executor, flights
from tallystick.runner.descriptions import describe
from tallystick.runner.pacing import Pace
from tallystick.runner.protocols import Dispatching, Observed, Outcome, Verdict
from tallystick.runner.results import NextMove, RunOutcome
from tallystick.runner.sessions import find_or_create, run_session
from tallystick.runner.stopping import StopSwitch
from tests.unit.runner.scripted import (
    ANSWERED,
    REFUSED,
    Scripted,
    always,
    execute,
    held_and_settled,
    in_turn,
    order_of,
)

FOR_EVER = {"first_seconds": 3600, "max_seconds": 3600}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        yield opened


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "CANCEL_SLACK_SECONDS", 0.05)
    monkeypatch.setattr(flights, "ABANDON_SLACK_SECONDS", 0.2)
    monkeypatch.setattr(executor, "_BREAK_OFF_SECONDS", 0.05)


async def _swallow_cancellations(free: asyncio.Event) -> None:
    while not free.is_set():
        try:
            await free.wait()
        except asyncio.CancelledError:
            continue


def _session(ledger: Ledger, target: Any, **options: Any) -> Any:
    return find_or_create(ledger, describe(order_of(target, **options), ADAPTERS))


@asynccontextmanager
async def _cancelled_once(began: asyncio.Event, session: Callable[[], Any]) -> AsyncIterator[None]:
    """Start the session, cancel it when ``began`` is set, and go on when it has ended."""
    task = asyncio.ensure_future(session())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    yield


def _page(ledger: Ledger) -> Any:
    with ledger.reading() as reader:
        return case_page(reader, 1, "c0")[0]


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_was_let_go_takes_up_nothing_more_when_it_comes_back(ledger: Ledger) -> None:
    free = asyncio.Event()
    taken_by: dict[str, asyncio.Task[Any]] = {}

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        case_id = dispatching.slot.case.id
        task = asyncio.current_task()
        assert task is not None
        taken_by[case_id] = task
        if case_id == "c0":
            dispatching.progress.bytes_sent = None
            await _swallow_cancellations(free)
        if case_id == "c1":
            free.set()
            await asyncio.wait({taken_by["c0"]})
        return ANSWERED

    outcome = execute(ledger, Scripted(reply), cases=6, concurrency=1, deadline_seconds=0.3)
    assert [case_id for case_id, task in taken_by.items() if task is taken_by["c0"]] == ["c0"]
    assert outcome.counts[SlotState.SELECTED] == 5


@pytest.mark.usefixtures("impatient")
def test_what_may_follow_a_dispatch_that_was_let_go_follows_in_the_same_session(ledger: Ledger) -> None:
    free = asyncio.Event()

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        if dispatching.attempt == 1:
            dispatching.progress.bytes_sent = None
            await _swallow_cancellations(free)
        free.set()
        return ANSWERED

    outcome = execute(ledger, Scripted(reply, IfUnknown.REPEAT), concurrency=1, deadline_seconds=0.1)
    assert outcome.counts[SlotState.SELECTED] == 1


def test_a_caller_that_is_cancelled_during_a_back_off_leaves_nothing_in_flight(ledger: Ledger) -> None:
    began = asyncio.Event()

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        asyncio.get_running_loop().call_later(0.05, began.set)
        return REFUSED

    session = _session(ledger, Scripted(reply), backoff=FOR_EVER, deadline_seconds=9999)

    async def both() -> None:
        async with _cancelled_once(began, lambda: run_session(ledger, session)):
            assert _page(ledger).state == "pending"

    asyncio.run(both())
    assert [attempt.state for attempt in _page(ledger).attempts] == ["given_back"]


def test_a_caller_that_is_cancelled_before_anything_left_leaves_nothing_unknown(ledger: Ledger) -> None:
    began = asyncio.Event()

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        began.set()
        await asyncio.Event().wait()
        return ANSWERED

    session = _session(ledger, Scripted(reply), budgets={"dispatches": 5})

    async def both() -> None:
        async with _cancelled_once(began, lambda: run_session(ledger, session)):
            assert _page(ledger).state == "pending"

    asyncio.run(both())
    assert [attempt.state for attempt in _page(ledger).attempts] == ["given_back"]
    assert held_and_settled(ledger) == [(0, 0, 0)]


def test_a_large_answer_is_kept_though_its_caller_is_cancelled_while_it_goes_to_its_file(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, go_on = artifacts.prepare, threading.Event()
    session = _session(ledger, Scripted(always(Outcome(DispatchState.ANSWERED, answer="x" * 100_000, bytes_sent=1))))

    async def cancelled_while_storing() -> None:
        loop, storing = asyncio.get_running_loop(), asyncio.Event()

        def slow(*arguments: Any, **options: Any) -> Artifact:
            loop.call_soon_threadsafe(storing.set)
            go_on.wait(30)
            return prepare(*arguments, **options)

        monkeypatch.setattr(artifacts, "prepare", slow)
        task = asyncio.ensure_future(run_session(ledger, session))
        reached = asyncio.ensure_future(storing.wait())
        await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        task.cancel()
        loop.call_later(0.05, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled_while_storing())
    assert _page(ledger).state == "selected"


@attrs.define
class Pensive:
    """A judge that thinks for ever until ``free`` is set."""

    began: Callable[[], None]
    free: bool = False
    name: str = "pensive"
    kind: str = "pensive"
    scale: tuple[float, float] | None = None
    is_async: bool = True

    def identity(self) -> Mapping[str, JsonValue]:
        return {}

    async def judge(self, observed: Observed) -> Verdict:
        if not self.free:
            self.began()
            await asyncio.Event().wait()
        return Verdict(passed=True)


def _judged(ledger: Ledger) -> int:
    with ledger.reading() as reader:
        return int(reader.row("SELECT count(*) FROM judgments")[0])


def test_a_run_whose_last_observation_was_not_judged_when_its_caller_was_cancelled_is_not_finished(
    ledger: Ledger,
) -> None:
    began = asyncio.Event()
    judge = Pensive(began.set)
    session = _session(ledger, Scripted(always(ANSWERED)), judges=[judge])

    async def both() -> RunOutcome:
        async with _cancelled_once(began, lambda: run_session(ledger, session)):
            assert _judged(ledger) == 0
        judge.free = True
        return await run_session(ledger, _session(ledger, Scripted(always(ANSWERED)), judges=[judge]))

    outcome = asyncio.run(both())
    assert (_judged(ledger), outcome.state, outcome.dispatches) == (1, "finished", 0)


@pytest.mark.usefixtures("impatient")
def test_a_judge_that_hangs_does_not_keep_a_session_that_was_asked_to_stop(ledger: Ledger) -> None:
    stop = StopSwitch()
    judge = Pensive(lambda: stop.ask("SIGINT"))
    target = Scripted(always(ANSWERED))
    stopped = execute(ledger, target, judges=[judge], stop=stop, grace_seconds=0.05)
    assert (stopped.next, _judged(ledger)) == (NextMove.RESUME, 0)
    judge.free = True
    outcome = execute(ledger, target, judges=[judge])
    assert (_judged(ledger), outcome.state, len(target.asked)) == (1, "finished", 1)


def test_every_dispatch_waits_for_its_turn_and_not_only_the_first_of_an_attempt(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    turn = Pace.turn

    async def counted(self: Pace, variant_no: int) -> bool:
        turns.append(variant_no)
        return await turn(self, variant_no)

    monkeypatch.setattr(Pace, "turn", counted)
    target = Scripted(in_turn(REFUSED, REFUSED, ANSWERED))
    execute(ledger, target)
    assert len(turns) == len(target.asked) == 3


def test_a_budget_that_is_raised_after_its_variant_was_closed_lets_the_session_end_and_the_next_go_on(
    ledger: Ledger,
) -> None:
    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        if dispatching.slot.case.id == "c2":
            await ledger.write_async(
                lambda tx: budgets.amend(tx, 1, 1, limit=10, reason="found some", made_by="operator")
            )
        return ANSWERED

    sides = {"a": Scripted(always(ANSWERED)), "b": Scripted(reply)}
    limits = [{"unit": "dispatches", "limit": 1, "variant": "a"}]
    first = execute(ledger, sides, cases=3, budgets=limits, concurrency=1)
    assert (first.next, first.counts[SlotState.PENDING]) == (NextMove.RESUME, 2)
    with ledger.reading() as reader:
        run_id = reader.row("SELECT run_id FROM runs")[0]
    session = _session(ledger, sides, cases=3, budgets=limits, concurrency=1)
    assert session.run.run_id == run_id
    second = asyncio.run(run_session(ledger, session))
    assert second.counts[SlotState.SELECTED] == 6


def test_an_unknown_that_was_cancelled_stays_unknown(ledger: Ledger) -> None:
    began = asyncio.Event()

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        dispatching.progress.bytes_sent = 3
        began.set()
        await asyncio.Event().wait()
        return ANSWERED

    session = _session(ledger, Scripted(reply))

    async def both() -> None:
        async with _cancelled_once(began, lambda: run_session(ledger, session)):
            assert _page(ledger).state == "unknown"

    asyncio.run(both())
    assert _page(ledger).attempts[0].dispatches[0].state == DispatchState.UNKNOWN


# C17: whatever ends a call, and however often, its reservation is released or held as unknown, and never lost.

MANY = 100


async def _left(target: Scripted, dispatching: Dispatching) -> Outcome:
    raise GeneratorExit("left")


async def _sent_and_left(target: Scripted, dispatching: Dispatching) -> Outcome:
    dispatching.progress.bytes_sent = 7
    raise GeneratorExit("left")


@ts.target
async def _left_on_the_loop(case: ts.Case) -> None:
    raise GeneratorExit("left")


@ts.target
def _left_in_a_thread(case: ts.Case) -> None:
    raise GeneratorExit("left")


@ts.target
async def _left_guarded(case: ts.Case, http: ts.Http) -> None:
    raise GeneratorExit("left")


@pytest.mark.parametrize(
    ("make", "becomes", "account"),
    [
        (lambda: Scripted(_left), SlotState.FAILED, (0, 0, 0)),
        (lambda: Scripted(_sent_and_left), SlotState.UNKNOWN, (MANY, 0, 0)),
        (lambda: _left_on_the_loop, SlotState.FAILED, (0, MANY, 0)),
        (lambda: _left_in_a_thread, SlotState.FAILED, (0, MANY, 0)),
        (lambda: _left_guarded, SlotState.FAILED, (0, 0, 0)),
    ],
    ids=["adapter", "adapter-sent", "async", "sync", "guarded"],
)
def test_c17_a_target_that_raises_generator_exit_ends_its_own_call_alone(
    ledger: Ledger, make: Callable[[], Any], becomes: SlotState, account: tuple[int, int, int]
) -> None:
    outcome = execute(ledger, make(), cases=MANY, budgets={"dispatches": MANY}, concurrency=8)
    assert outcome.counts[becomes] == MANY
    assert held_and_settled(ledger) == [account]
    require_sound(ledger)


@pytest.mark.parametrize("bytes_sent", [0, 7])
def test_c17_no_number_of_cancellations_leaks_a_reservation_or_passes_the_limit(
    ledger: Ledger, bytes_sent: int
) -> None:
    began: list[asyncio.Event] = []

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        dispatching.progress.bytes_sent = bytes_sent
        if len(began) == MANY and began[-1].is_set():
            return ANSWERED
        began[-1].set()
        await asyncio.Event().wait()
        raise AssertionError("it was not cancelled")

    session = _session(ledger, Scripted(reply, IfUnknown.REPEAT), budgets={"dispatches": MANY + 1})

    async def again_and_again() -> RunOutcome:
        for number in range(1, MANY + 1):
            began.append(asyncio.Event())
            async with _cancelled_once(began[-1], lambda: run_session(ledger, session)):
                assert held_and_settled(ledger) == [(number if bytes_sent else 0, 0, 0)]
        return await run_session(ledger, session)

    assert asyncio.run(again_and_again()).counts[SlotState.SELECTED] == 1
    assert held_and_settled(ledger) == [(MANY if bytes_sent else 0, 1, 0)]
    require_sound(ledger)
