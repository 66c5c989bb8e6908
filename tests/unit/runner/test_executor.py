"""The executor against targets that do every wrong thing that a target can do, on a real ledger."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio.lowlevel
import attrs
import pytest

from tallystick._wiring import ADAPTERS
from tallystick.ledger import run_ends
from tallystick.ledger.canonical import JsonValue
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.run_reads import find_run, slot_counts
from tallystick.ledger.states import DispatchState, IfUnknown, SlotState
from tallystick.runner import flights
from tallystick.runner.descriptions import describe
from tallystick.runner.protocols import (
    Dispatching,
    NoVerdict,
    Observed,
    Outcome,
    QueryAnswer,
    QueryState,
    Usage,
    Verdict,
)
from tallystick.runner.results import NextMove, RunOutcome
from tallystick.runner.resume_check import resume_check
from tallystick.runner.sessions import find_or_create, run_session
from tallystick.runner.stopping import StopSwitch
from tests.unit.runner.scripted import (
    ANSWERED,
    FAILED,
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


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        yield opened


def test_an_answer_is_committed_under_the_id_that_the_target_was_given(ledger: Ledger) -> None:
    target = Scripted(always(ANSWERED))
    outcome = execute(ledger, target, cases=5, repetitions=2)
    assert outcome.counts[SlotState.SELECTED] == outcome.planned == 10
    assert outcome.next is NextMove.NOTHING
    with ledger.reading() as reader:
        stored = {row[0] for row in reader.rows("SELECT call_id FROM calls")}
    assert {dispatching.request_id for dispatching in target.asked} == stored
    assert len(stored) == 10


def test_a_refused_dispatch_is_followed_by_the_next_of_the_same_call(ledger: Ledger) -> None:
    target = Scripted(in_turn(REFUSED, REFUSED, ANSWERED))
    outcome = execute(ledger, target, budgets={"dispatches": 10})
    assert outcome.counts[SlotState.SELECTED] == 1
    assert [one.dispatch for one in target.asked] == [1, 2, 3]
    assert len({one.request_id for one in target.asked}) == 1
    assert held_and_settled(ledger) == [(0, 1, 0)]  # what never left costs nothing


def test_a_target_that_refuses_for_ever_leaves_its_case_unavailable_and_the_others_go_on(ledger: Ledger) -> None:
    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        return REFUSED if dispatching.slot.case.id == "c0" else ANSWERED

    target = Scripted(reply)
    outcome = execute(ledger, target, cases=3, attempts_max=2, dispatches_max=2)
    assert outcome.counts[SlotState.UNAVAILABLE] == 1
    assert outcome.counts[SlotState.SELECTED] == 2
    assert outcome.next is NextMove.DECIDE
    assert len([one for one in target.asked if one.slot.case.id == "c0"]) == 4  # two attempts of two dispatches


def test_a_retry_after_beyond_the_deadline_gives_the_case_back_with_a_durable_not_before(ledger: Ledger) -> None:
    later = Outcome(DispatchState.REFUSED, "http.status", "503", bytes_sent=5, retry_after_seconds=3600)
    outcome = execute(ledger, Scripted(always(later)), deadline_seconds=5)
    assert outcome.counts[SlotState.PENDING] == 1
    assert outcome.next is NextMove.RESUME
    assert int(outcome.exit_status) == 75
    assert outcome.not_before_us is not None
    assert outcome.not_before_us > ledger.clock.now_us() + 3_000_000_000
    found = page(ledger, outcome)
    assert [attempt.state for attempt in found.attempts] == ["given_back"]


def test_a_target_that_asks_for_a_year_keeps_the_others_for_a_day_and_says_until_when(ledger: Ledger) -> None:
    later = Outcome(DispatchState.REFUSED, "http.status", "429", bytes_sent=5, retry_after_seconds=365 * 86_400)
    target = Scripted(always(later))
    outcome = execute(ledger, target, cases=3, deadline_seconds=5, concurrency=1, attempts_max=1)
    assert (outcome.counts[SlotState.UNAVAILABLE], outcome.counts[SlotState.PENDING]) == (1, 2)
    assert len(target.asked) == 1
    assert outcome.not_before_us is not None  # the cases that wait for nothing themselves are kept back all the same
    assert 86_000_000_000 < outcome.not_before_us - ledger.clock.now_us() <= 86_400_000_000


def test_a_failure_is_tried_again_only_when_its_reason_is_named(ledger: Ledger) -> None:
    once = execute(ledger, Scripted(always(FAILED)))
    assert once.counts[SlotState.FAILED] == 1
    assert len(page(ledger, once).attempts) == 1


def test_a_named_failure_gets_new_attempts_under_new_request_ids_up_to_the_limit(ledger: Ledger) -> None:
    target = Scripted(always(FAILED))
    outcome = execute(ledger, target, retry=["http.status"], attempts_max=3)
    assert outcome.counts[SlotState.FAILED] == 1
    assert [one.attempt for one in target.asked] == [1, 2, 3]
    assert len({one.request_id for one in target.asked}) == 3


def test_one_status_can_be_named_and_the_others_stay_failed(ledger: Ledger) -> None:
    target = Scripted(in_turn(FAILED, attrs.evolve(FAILED, reason="http.status.404")))
    outcome = execute(ledger, target, retry=["http.status.500"], attempts_max=9)
    assert outcome.counts[SlotState.FAILED] == 1
    assert [one.attempt for one in target.asked] == [1, 2]


@pytest.mark.parametrize(("reason", "count"), [("http.status", 1), ("http.status.500", 1), ("http.stat", 0)])
def test_what_resume_would_retry_by_a_reason_is_what_it_retries(ledger: Ledger, reason: str, count: int) -> None:
    run_id = execute(ledger, Scripted(always(FAILED))).run_id
    with ledger.reading() as reader:
        run = find_run(reader, run_id)
    assert resume_check(ledger, run, retried=(("failed", reason),)).waits_again == count
    assert ledger.write(lambda tx: run_ends.retry(tx, run.run_key, state="failed", reason=reason)) == count


def test_an_unknown_outcome_is_kept_and_its_hold_stays(ledger: Ledger) -> None:
    target = Scripted(always(UNKNOWN))
    outcome = execute(ledger, target, budgets={"dispatches": 5, "usd": {"limit": "1", "bound_per_dispatch": "0.10"}})
    assert outcome.counts[SlotState.UNKNOWN] == 1
    assert outcome.next is NextMove.DECIDE
    assert len(target.asked) == 1
    assert held_and_settled(ledger) == [(1, 0, 0), (100_000_000, 0, 0)]


def test_repeat_asks_under_a_new_id_and_the_unknown_keeps_its_hold(ledger: Ledger) -> None:
    target = Scripted(in_turn(UNKNOWN, ANSWERED), IfUnknown.REPEAT)
    outcome = execute(ledger, target, budgets={"dispatches": 5})
    assert outcome.counts[SlotState.SELECTED] == 1
    assert len({one.request_id for one in target.asked}) == 2
    assert held_and_settled(ledger) == [(1, 1, 0)]
    assert [attempt.state for attempt in page(ledger, outcome).attempts] == ["unknown", "observed"]


def test_repeat_ends_unknown_when_its_attempts_are_used_up(ledger: Ledger) -> None:
    target = Scripted(always(UNKNOWN), IfUnknown.REPEAT)
    outcome = execute(ledger, target, attempts_max=2)
    assert outcome.counts[SlotState.UNKNOWN] == 1
    assert len(target.asked) == 2


def test_resend_sends_the_stored_bytes_under_the_same_id(ledger: Ledger) -> None:
    target = Scripted(in_turn(UNKNOWN, ANSWERED), IfUnknown.RESEND)
    outcome = execute(ledger, target, budgets={"dispatches": 5})
    assert outcome.counts[SlotState.SELECTED] == 1
    assert len({one.request_id for one in target.asked}) == 1
    assert [one.dispatch for one in target.asked] == [1, 2]
    assert target.sent[0] == target.sent[1]
    assert held_and_settled(ledger) == [(1, 1, 0)]  # the first send stays unknown


def test_resend_ends_unknown_once_the_key_has_expired(ledger: Ledger) -> None:
    target = Scripted(always(UNKNOWN), IfUnknown.RESEND, key_valid_seconds=0.0)
    outcome = execute(ledger, target)
    assert outcome.counts[SlotState.UNKNOWN] == 1
    assert len(target.asked) == 1


def test_query_fetches_an_outcome_that_landed_without_sending_again(ledger: Ledger) -> None:
    target = Scripted(always(UNKNOWN), IfUnknown.QUERY)
    target.query_answer = QueryAnswer(QueryState.LANDED, Outcome(DispatchState.ANSWERED, answer={"a": 1}))
    outcome = execute(ledger, target)
    assert outcome.counts[SlotState.SELECTED] == 1
    assert target.queries == [target.asked[0].request_id]
    found = page(ledger, outcome)
    assert (found.attempts[0].answer, found.attempts[0].source) == ('{"a":1}', "query")


def test_query_sends_again_under_a_new_id_only_after_the_old_one_is_tombstoned(ledger: Ledger) -> None:
    target = Scripted(in_turn(UNKNOWN, ANSWERED), IfUnknown.QUERY)
    target.query_answer = QueryAnswer(QueryState.NEVER)
    outcome = execute(ledger, target, budgets={"dispatches": 5})
    assert outcome.counts[SlotState.SELECTED] == 1
    assert len({one.request_id for one in target.asked}) == 2
    assert held_and_settled(ledger) == [(0, 1, 0)]  # proven not to have happened: the hold is given back


def test_query_without_proof_is_asked_a_bounded_number_of_times_and_then_left_to_an_operator(ledger: Ledger) -> None:
    target = Scripted(always(UNKNOWN), IfUnknown.QUERY)
    outcome = execute(ledger, target, dispatches_max=3)
    assert outcome.counts[SlotState.UNKNOWN] == 1
    assert len(target.asked) == 1
    assert len(target.queries) == 3


def test_a_case_from_which_no_request_can_be_made_fails_alone_and_is_named(ledger: Ledger) -> None:
    target = Scripted(always(ANSWERED), unprepared=frozenset({"c1"}))
    outcome = execute(ledger, target, cases=3)
    assert outcome.counts[SlotState.SELECTED] == 2
    found = page(ledger, outcome, "c1")
    assert found.state == "failed"
    assert "c1" in found.attempts[0].message
    assert len(target.asked) == 2


def test_an_adapter_that_raises_is_an_unknown_outcome_once_something_may_have_left(ledger: Ledger) -> None:
    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        dispatching.progress.bytes_sent = 7
        raise RuntimeError("a bug of the adapter")

    outcome = execute(ledger, Scripted(reply), cases=1)
    assert outcome.counts[SlotState.UNKNOWN] == 1
    assert page(ledger, outcome).attempts[0].reason == "target.raised"


def test_an_answer_that_is_not_json_is_a_failure_and_not_the_end_of_the_run(ledger: Ledger) -> None:
    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        value: Any = {1: 2} if dispatching.slot.case.id == "c0" else 1
        return Outcome(DispatchState.ANSWERED, answer=value, bytes_sent=1)

    outcome = execute(ledger, Scripted(reply), cases=2)
    assert outcome.counts[SlotState.FAILED] == 1
    assert outcome.counts[SlotState.SELECTED] == 1


def test_evidence_of_an_adapter_that_is_not_json_is_left_out_of_the_answer(ledger: Ledger) -> None:
    odd: Any = {"sound": [1], "odd": object()}
    outcome = execute(
        ledger, Scripted(always(Outcome(DispatchState.ANSWERED, answer=1, evidence=odd, bytes_sent=1))), cases=1
    )
    assert outcome.counts[SlotState.SELECTED] == 1
    with ledger.reading() as reader:
        found = reader.rows("SELECT evidence, flags FROM observations")
    assert found == [('{"sound":[1]}', '["evidence_left_out"]')]


def test_a_target_that_swallows_its_cancellation_holds_up_nobody(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flights, "CANCEL_SLACK_SECONDS", 0.05)
    monkeypatch.setattr(flights, "ABANDON_SLACK_SECONDS", 0.3)
    free = asyncio.Event()

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        if dispatching.slot.case.id != "c0":
            return ANSWERED
        dispatching.progress.bytes_sent = None
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue
        return ANSWERED

    async def both() -> RunOutcome:
        session = find_or_create(
            ledger, describe(order_of(Scripted(reply), cases=6, concurrency=1, deadline_seconds=0.05), ADAPTERS)
        )
        outcome = await run_session(ledger, session)
        free.set()
        return outcome

    outcome = asyncio.run(both())
    assert outcome.counts[SlotState.UNKNOWN] == 1
    assert outcome.counts[SlotState.SELECTED] == 5


def test_a_late_answer_stays_with_its_own_attempt_and_both_are_paid_for(ledger: Ledger) -> None:
    late = Outcome(DispatchState.ANSWERED, answer="late", bytes_sent=1, usage=Usage(tokens_in=3, tokens_out=4))

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        if dispatching.attempt == 1:
            threading.Timer(0.1, dispatching.late, [late]).start()
            return UNKNOWN
        return ANSWERED

    target = Scripted(reply, IfUnknown.REPEAT, may_answer_late=True)
    outcome = execute(ledger, target, budgets={"dispatches": 5}, grace_seconds=5)
    found = page(ledger, outcome)
    assert [attempt.state for attempt in found.attempts] == ["late", "observed"]
    assert [attempt.answer for attempt in found.attempts] == ['"late"', '"x"']
    assert found.selected_attempt == 2
    assert held_and_settled(ledger) == [(0, 2, 0)]


def test_a_judge_that_raises_gives_no_verdict_and_is_asked_for_every_observation(ledger: Ledger) -> None:
    @attrs.frozen
    class Broken:
        name: str = "broken"
        kind: str = "broken"
        scale: tuple[float, float] | None = None

        def identity(self) -> Mapping[str, JsonValue]:
            return {}

        def judge(self, observed: Observed) -> Verdict | NoVerdict:
            raise RuntimeError("no")

    outcome = execute(ledger, Scripted(always(ANSWERED)), cases=2, judges=[Broken()])
    assert outcome.next is NextMove.DECIDE
    with ledger.reading() as reader:
        assert reader.rows("SELECT state, reason FROM judgments") == [("no_verdict", "judge_error")] * 2


class Untold(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@attrs.frozen
class Saying:
    """A judge that says what it was made with, in a thread or on the loop."""

    said: Any
    is_instant: bool = False
    name: str = "saying"
    kind: str = "saying"
    scale: tuple[float, float] | None = None

    def identity(self) -> Mapping[str, JsonValue]:
        return {}

    def judge(self, observed: Observed) -> Any:
        if isinstance(self.said, BaseException):
            raise self.said
        if isinstance(self.said, threading.Event):
            self.said.wait()
        return self.said


@pytest.mark.parametrize("is_instant", [False, True])
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (SystemExit(0), "judge_error"),
        (KeyboardInterrupt(), "judge_error"),
        (Untold(), "judge_error"),
        (Verdict(passed=True, explanation=5), "malformed_verdict"),  # type: ignore[arg-type]
        (NoVerdict("no", explanation=b"x"), "malformed_verdict"),  # type: ignore[arg-type]
        (NoVerdict(None), "malformed_verdict"),  # type: ignore[arg-type]
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_judge_does_gives_no_verdict_and_never_ends_the_session(
    ledger: Ledger, said: object, reason: str, *, is_instant: bool
) -> None:
    outcome = execute(ledger, Scripted(always(ANSWERED)), cases=2, judges=[Saying(said, is_instant)])
    assert outcome.next is NextMove.DECIDE
    with ledger.reading() as reader:
        assert reader.rows("SELECT state, reason FROM judgments") == [("no_verdict", reason)] * 2


def test_a_judge_that_never_returns_gives_no_verdict_at_the_deadline(ledger: Ledger) -> None:
    never = threading.Event()
    outcome = execute(ledger, Scripted(always(ANSWERED)), cases=2, judges=[Saying(never)], deadline_seconds=0.05)
    never.set()
    assert outcome.next is NextMove.DECIDE
    with ledger.reading() as reader:
        assert reader.rows("SELECT state, reason FROM judgments") == [("no_verdict", "timeout")] * 2


def test_asked_to_stop_it_lets_what_is_in_flight_finish_and_dispatches_nothing_more(ledger: Ledger) -> None:
    stop = StopSwitch()

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        if len(target.asked) == 3:
            stop.ask("SIGINT")
        await anyio.lowlevel.checkpoint()
        return ANSWERED

    target = Scripted(reply)
    outcome = execute(ledger, target, cases=20, stop=stop, concurrency=2)
    assert outcome.stopped == "SIGINT"
    assert int(outcome.exit_status) == 130
    assert outcome.counts[SlotState.SELECTED] == len(target.asked) < 20
    assert outcome.counts[SlotState.IN_FLIGHT] == 0


def test_what_outlasts_the_grace_time_becomes_unknown(ledger: Ledger) -> None:
    stop = StopSwitch()

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        dispatching.progress.bytes_sent = 9
        stop.ask("SIGTERM")
        await asyncio.Event().wait()
        return ANSWERED

    outcome = execute(ledger, Scripted(reply), cases=2, stop=stop, concurrency=1, grace_seconds=0.05)
    assert outcome.counts[SlotState.UNKNOWN] == 1
    assert outcome.counts[SlotState.PENDING] == 1


def test_a_stop_wakes_a_back_off(ledger: Ledger) -> None:
    stop = StopSwitch()

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        asyncio.get_running_loop().call_later(0.05, stop.ask, "SIGINT")
        return REFUSED

    outcome = execute(
        ledger, Scripted(reply), stop=stop, backoff={"first_seconds": 3600, "max_seconds": 3600}, deadline_seconds=9999
    )
    assert outcome.counts[SlotState.PENDING] == 1
    assert outcome.stopped == "SIGINT"


def test_a_run_that_another_terminal_asks_to_stop_stops(ledger: Ledger) -> None:
    from tallystick.ledger.run_ends import ask_to_stop

    stop = StopSwitch()

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        await ledger.write_async(lambda tx: ask_to_stop(tx, 1, reason="cancel"))
        await stop.sleep(60)
        return ANSWERED

    target = Scripted(reply)
    outcome = execute(ledger, target, cases=5, concurrency=1, stop=stop, grace_seconds=30)
    assert outcome.stopped == "cancel"
    assert len(target.asked) == 1


def test_the_same_work_order_again_goes_on_and_a_finished_one_makes_no_call(ledger: Ledger) -> None:
    target = Scripted(always(ANSWERED))
    order = order_of(target, cases=6)
    session = find_or_create(ledger, describe(order, ADAPTERS))
    first = asyncio.run(run_session(ledger, session, slots_max=2))
    assert first.counts[SlotState.PENDING] == 4
    assert int(first.exit_status) == 75
    second = execute(ledger, target, cases=6)
    assert second.run_id == first.run_id
    assert second.reused == 2
    third = execute(ledger, target, cases=6)
    assert third.run_id == first.run_id
    assert third.dispatches == 0
    assert len(target.asked) == 6


def test_counts_cover_the_whole_population_after_every_kind_of_end(ledger: Ledger) -> None:
    outcomes = {"c0": ANSWERED, "c1": FAILED, "c2": UNKNOWN, "c3": REFUSED}

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        return outcomes[dispatching.slot.case.id]

    outcome = execute(ledger, Scripted(reply), cases=4, attempts_max=1, dispatches_max=1)
    with ledger.reading() as reader:
        counts = slot_counts(reader, 1)
    assert sum(counts.values()) == outcome.planned == 4
    assert {state: count for state, count in counts.items() if count} == {
        SlotState.SELECTED: 1,
        SlotState.FAILED: 1,
        SlotState.UNKNOWN: 1,
        SlotState.UNAVAILABLE: 1,
    }


def test_a_target_that_asks_to_be_left_alone_holds_up_no_other_variant(ledger: Ledger) -> None:
    later = Outcome(DispatchState.REFUSED, "http.status", "429", bytes_sent=5, retry_after_seconds=3600)
    sides = {"busy": Scripted(always(later)), "free": Scripted(always(ANSWERED))}
    outcome = execute(ledger, sides, cases=20, concurrency=4, deadline_seconds=5)
    assert len(sides["free"].asked) == 20
    assert len(sides["busy"].asked) <= 4  # what was under way when the first was told to wait
    assert outcome.counts[SlotState.PENDING] == 20
    assert outcome.next is NextMove.RESUME


def test_what_a_target_asked_for_holds_for_the_next_session_too(ledger: Ledger) -> None:
    later = Outcome(DispatchState.REFUSED, "http.status", "429", bytes_sent=5, retry_after_seconds=3600)
    target = Scripted(always(later))
    execute(ledger, target, cases=20, concurrency=1, deadline_seconds=5)
    asked = len(target.asked)
    outcome = execute(ledger, target, cases=20, concurrency=1, deadline_seconds=5)
    assert len(target.asked) == asked
    assert int(outcome.exit_status) == 75
