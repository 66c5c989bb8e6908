"""Conversations held turn after turn: what the executor says, commits, carries over, restores and asks again."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

import tallystick as ts
from tallystick._wiring import ADAPTERS
from tallystick.ledger.canonical import JsonValue
from tallystick.ledger.checks import require_sound
from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.run_ends import retry
from tallystick.ledger.states import DispatchState, IfUnknown, SlotState
from tallystick.runner.descriptions import describe
from tallystick.runner.device_protocols import CHECKPOINT_REFUSED, SESSION_LOST, Resuming
from tallystick.runner.protocols import Exchange, Outcome, QueryAnswer, QueryState, Turn
from tallystick.runner.sessions import find_or_create, run_session
from tallystick.runner.stopping import StopSwitch
from tests.unit.runner.scripted import page
from tests.unit.runner.talker import Talker, talks
from tests.unit.runner.talking import FAILED, STATEFUL, UNKNOWN, always, asked, once, replays, run, states


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        yield opened
        require_sound(opened)


# Scripts.


def test_the_history_is_rebuilt_from_committed_turns(ledger: Ledger) -> None:
    target = Talker()
    outcome = run(ledger, talks(target, "a", "b", "c"))
    assert outcome.counts[SlotState.SELECTED] == 1
    assert target.told == [[], ["a"], ["a", "b"]]
    (attempt,) = page(ledger, outcome).attempts
    assert attempt.answer == '"c"'
    assert len({session for session, _, _ in target.asked}) == 1


def test_all_answers_can_be_what_is_observed(ledger: Ledger) -> None:
    outcome = run(ledger, talks(Talker(), "a", "b", conversation={"turns": "$.turns", "answer": "all"}))
    (attempt,) = page(ledger, outcome).attempts
    assert attempt.answer == '["a","b"]'
    assert [turn["message"] for turn in json.loads(attempt.evidence)["turns"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"turns": []}, "turns.missing"),
        ({"turns": "a"}, "turns.missing"),
        ({}, "turns.missing"),
        ({"turns": ["x"] * 4}, "turns.too_many"),
    ],
)
def test_a_case_without_a_script_that_can_be_said_fails_alone(
    ledger: Ledger, given: dict[str, JsonValue], reason: str
) -> None:
    rows = [{"id": "c0", "input": given}, {"id": "c1", "input": {"turns": ["a"]}}]
    target = Talker()
    order = talks(target, rows=rows, conversation={"turns": "$.turns", "turns_max": 3})
    outcome = run(ledger, order)
    assert (outcome.counts[SlotState.SELECTED], outcome.counts[SlotState.FAILED]) == (1, 1)
    assert page(ledger, outcome).reason == reason
    assert asked(target) == [(1, "a")]


def test_a_path_at_which_no_case_has_a_script_is_refused_before_anything_is_asked(ledger: Ledger) -> None:
    rows = [{"id": f"c{number}", "input": {"turns": ["a"]}} for number in range(2)]
    target = Talker()
    with pytest.raises(WorkOrderInvalid, match=r"no case has a list of messages at \$\.turnz"):
        run(ledger, talks(target, rows=rows, conversation={"turns": "$.turnz"}))
    assert asked(target) == []
    with ledger.reading() as reader:
        assert reader.row("SELECT count(*) FROM runs")[0] == 0


@pytest.mark.parametrize("message", [None, False, 0, "", [], {"say": "{{input}}"}, "\ud800", 2**70])
def test_a_message_may_be_any_json_value(ledger: Ledger, message: JsonValue) -> None:
    target = Talker()
    run(ledger, talks(target, message, "end"))
    assert asked(target) == [(1, message), (2, "end")]


def test_a_failed_turn_is_retried_alone_where_the_work_order_says_so(ledger: Ledger) -> None:
    target = Talker(rule=once(2, FAILED))
    outcome = run(ledger, talks(target, "a", "b", retry=["http"]))
    assert asked(target) == [(1, "a"), (2, "b"), (2, "b")]
    assert [state for state, _ in states(ledger, outcome)] == ["failed", "observed"]
    assert replays(ledger) == 0


def test_what_resume_restart_says_is_asked_from_the_beginning(ledger: Ledger) -> None:
    target = Talker(rule=once(2, FAILED))
    conversation = {"turns": "$.turns", "resume": "restart"}
    run(ledger, talks(target, "a", "b", retry=["*"], conversation=conversation))
    assert asked(target) == [(1, "a"), (2, "b"), (1, "a"), (2, "b")]
    assert replays(ledger) == 1


def test_attempts_are_bounded_whatever_a_turn_does(ledger: Ledger) -> None:
    target = Talker(rule=always(2, FAILED))
    outcome = run(ledger, talks(target, "a", "b", retry=["*"], attempts_max=3))
    assert outcome.counts[SlotState.FAILED] == 1
    assert asked(target) == [(1, "a"), (2, "b"), (2, "b"), (2, "b")]


def test_an_operator_lets_a_failed_conversation_go_on_from_its_turns(ledger: Ledger) -> None:
    target = Talker(rule=once(2, FAILED))
    order = talks(target, "a", "b")
    outcome = run(ledger, order)
    assert outcome.counts[SlotState.FAILED] == 1
    ledger.write(lambda tx: retry(tx, 1, state="failed", reason=None))
    assert run(ledger, order).counts[SlotState.SELECTED] == 1
    assert asked(target) == [(1, "a"), (2, "b"), (2, "b")]


def test_the_deadline_of_a_conversation_is_over_between_two_turns(ledger: Ledger) -> None:
    over = threading.Event()

    async def rule(target: Talker, turn: Turn) -> Outcome | None:
        await asyncio.to_thread(over.wait, 0.2)
        return None

    conversation = {"turns": "$.turns", "deadline_seconds": 0.1}
    outcome = run(ledger, talks(Talker(rule=rule), "a", "b", conversation=conversation))
    assert states(ledger, outcome) == [("failed", "conversation.deadline")]


# Targets that keep state.


@pytest.mark.parametrize("resuming", STATEFUL)
def test_a_session_is_begun_before_its_first_turn_and_ended_after_its_last(ledger: Ledger, resuming: Resuming) -> None:
    target = Talker(resuming)
    outcome = run(ledger, talks(target, "a", "b", cases=2))
    assert outcome.counts[SlotState.SELECTED] == 2
    assert [(turn, checkpoint) for _, turn, checkpoint in target.begun] == [(1, None)] * 2
    assert target.ended == [session for session, _, _ in target.begun]
    assert page(ledger, outcome).attempts[0].answer == '"a+b"'


@pytest.mark.parametrize(
    ("resuming", "sent", "replayed"),
    [
        (Resuming.CHECKPOINT, [(1, "a"), (2, "b"), (3, "c"), (3, "c")], 0),
        (Resuming.RESTART, [(1, "a"), (2, "b"), (3, "c"), (1, "a"), (2, "b"), (3, "c")], 2),
    ],
)
def test_a_repeated_turn_gets_a_session_of_its_own(
    ledger: Ledger, resuming: Resuming, sent: list[tuple[int, str]], replayed: int
) -> None:
    target = Talker(resuming, rule=once(3, UNKNOWN))
    outcome = run(ledger, talks(target, "a", "b", "c"))
    assert asked(target) == sent
    assert replays(ledger) == replayed
    assert page(ledger, outcome).attempts[1].answer == '"a+b+c"'
    (first, _, _), (second, number, checkpoint) = target.begun
    assert first != second
    assert (number, checkpoint) == ((3, b"a+b") if resuming is Resuming.CHECKPOINT else (1, None))


def test_turns_beyond_the_newest_checkpoint_are_asked_again(ledger: Ledger) -> None:
    async def rule(target: Talker, turn: Turn) -> Outcome | None:
        if len(target.asked) == 4:
            return UNKNOWN
        if turn.number == 2:
            found = target.answered(turn, [turn.message])
            return Outcome(found.state, answer=found.answer, bytes_sent=1)  # without its checkpoint
        return None

    target = Talker(Resuming.CHECKPOINT, rule=rule)
    outcome = run(ledger, talks(target, "a", "b", "c", "d"))
    # The third turn has a checkpoint; without it, the first one's would have been the newest.
    assert asked(target)[4:] == [(4, "d")]
    assert page(ledger, outcome).attempts[-1].answer == '"a+b+c+d"'

    def no_later(found: Outcome) -> Outcome:
        return attrs.evolve(found, checkpoint=None)

    async def first_only(target: Talker, turn: Turn) -> Outcome | None:
        if len(target.asked) == 3:
            return UNKNOWN
        return None if turn.number == 1 else no_later(target.answered(turn, [turn.message]))

    again = Talker(Resuming.CHECKPOINT, rule=first_only)
    outcome = run(ledger, talks(again, "a", "b", "c", name="second"))
    assert asked(again) == [(1, "a"), (2, "b"), (3, "c"), (2, "b"), (3, "c")]
    assert page(ledger, outcome).attempts[-1].answer == '"a+b+c"'


def test_only_from_checkpoints_means_that_nothing_answered_is_asked_again(ledger: Ledger) -> None:
    target = Talker(Resuming.RESTART, rule=once(2, UNKNOWN))
    conversation = {"turns": "$.turns", "resume": "checkpoint"}
    outcome = run(ledger, talks(target, "a", "b", conversation=conversation))
    assert states(ledger, outcome)[-1] == ("failed", "checkpoint.missing")
    assert asked(target) == [(1, "a"), (2, "b")]


def test_a_target_that_declares_restart_begins_anew_even_from_a_checkpoint(ledger: Ledger) -> None:
    target = Talker(Resuming.CHECKPOINT, rule=once(2, UNKNOWN), if_unknown=IfUnknown.RESTART)
    run(ledger, talks(target, "a", "b"))
    assert asked(target) == [(1, "a"), (2, "b"), (1, "a"), (2, "b")]
    assert replays(ledger) == 1


@pytest.mark.parametrize("resuming", STATEFUL)
def test_a_session_that_is_lost_goes_on_in_a_new_attempt_within_the_limits(ledger: Ledger, resuming: Resuming) -> None:
    target = Talker(resuming, rule=once(2, Outcome(DispatchState.REFUSED, SESSION_LOST, "gone")))
    outcome = run(ledger, talks(target, "a", "b"))
    assert page(ledger, outcome).attempts[-1].answer == '"a+b"'
    assert replays(ledger) == (resuming is Resuming.RESTART)


@pytest.mark.parametrize("state", [DispatchState.REFUSED, DispatchState.FAILED])
def test_a_session_that_is_lost_each_time_is_not_begun_for_ever(ledger: Ledger, state: DispatchState) -> None:
    target = Talker(Resuming.RESTART, rule=always(2, Outcome(state, SESSION_LOST, "gone", bytes_sent=0)))
    outcome = run(ledger, talks(target, "a", "b", attempts_max=3))
    assert len(target.begun) == 3
    assert outcome.counts[SlotState.PENDING] == outcome.counts[SlotState.SELECTED] == 0


def test_a_refused_checkpoint_lets_the_conversation_begin_anew(ledger: Ledger) -> None:
    refusals = [Outcome(DispatchState.ANSWERED, answer=None), Outcome(DispatchState.FAILED, CHECKPOINT_REFUSED, "no")]
    target = Talker(Resuming.CHECKPOINT, rule=once(2, UNKNOWN), begins=refusals)
    outcome = run(ledger, talks(target, "a", "b"))
    assert [checkpoint for _, _, checkpoint in target.begun] == [None, b"a", None]
    assert [reason for _, reason in states(ledger, outcome)] == ["wire.reset", CHECKPOINT_REFUSED, ""]
    assert page(ledger, outcome).attempts[-1].answer == '"a+b"'


def test_a_session_that_cannot_be_begun_waits_within_the_limits(ledger: Ledger) -> None:
    busy = Outcome(DispatchState.REFUSED, "device.busy", "later")
    target = Talker(Resuming.RESTART, begins=[busy, busy])
    assert run(ledger, talks(target, "a", attempts_max=3)).counts[SlotState.SELECTED] == 1
    never = Talker(Resuming.RESTART, begins=[busy] * 9)
    outcome = run(ledger, talks(never, "a", attempts_max=3, name="never"))
    assert outcome.counts[SlotState.UNAVAILABLE] == 1
    assert len(never.begun) == 3
    assert never.asked == []


def test_an_adapter_that_raises_while_it_begins_a_session_fails_its_case_alone(ledger: Ledger) -> None:
    @attrs.define(eq=False)
    class Broken(Talker):
        async def begin_session(self, turn: Turn, checkpoint: bytes | None) -> Outcome:
            raise ValueError("no such port")

        async def end_session(self, session: str) -> None:
            raise AssertionError("it was never begun")

    outcome = run(ledger, talks(Broken(Resuming.RESTART), "a", cases=2))
    assert outcome.counts[SlotState.FAILED] == 2
    assert states(ledger, outcome) == [("failed", "target.raised")]


def test_a_session_whose_end_raises_changes_nothing(ledger: Ledger) -> None:
    @attrs.define(eq=False)
    class Rude(Talker):
        async def end_session(self, session: str) -> None:
            raise OSError("already gone")

    assert run(ledger, talks(Rude(Resuming.RESTART), "a", "b")).counts[SlotState.SELECTED] == 1


# What follows an unknown turn while its session is ours.


@pytest.mark.parametrize("resuming", STATEFUL)
def test_a_resent_turn_goes_on_in_the_same_session(ledger: Ledger, resuming: Resuming) -> None:
    target = Talker(resuming, rule=once(2, UNKNOWN), if_unknown=IfUnknown.RESEND)
    outcome = run(ledger, talks(target, "a", "b", "c"))
    assert asked(target) == [(1, "a"), (2, "b"), (2, "b"), (3, "c")]
    assert len(target.begun) == 1
    (attempt,) = page(ledger, outcome).attempts
    assert attempt.answer == '"a+b+c"'


def test_resends_within_a_session_are_bounded(ledger: Ledger) -> None:
    target = Talker(Resuming.RESTART, rule=always(2, UNKNOWN), if_unknown=IfUnknown.RESEND)
    outcome = run(ledger, talks(target, "a", "b", dispatches_max=4))
    assert outcome.counts[SlotState.UNKNOWN] == 1
    assert asked(target) == [(1, "a")] + [(2, "b")] * 4
    assert target.ended == [target.begun[0][0]]


def test_a_fetched_turn_goes_on_in_the_same_session(ledger: Ledger) -> None:
    fetched = QueryAnswer(QueryState.LANDED, Outcome(DispatchState.ANSWERED, answer="fetched"))
    target = Talker(Resuming.RESTART, rule=once(2, UNKNOWN), if_unknown=IfUnknown.QUERY, query_answer=fetched)
    outcome = run(ledger, talks(target, "a", "b", "c"))
    (attempt,) = page(ledger, outcome).attempts
    told = json.loads(attempt.evidence)["turns"]
    assert [(turn["answer"], turn.get("source")) for turn in told] == [("a", None), ("fetched", "query"), ("a+c", None)]
    assert len(target.begun) == 1


def test_a_turn_that_never_landed_is_asked_again_in_the_same_session_within_the_limits(ledger: Ledger) -> None:
    never = QueryAnswer(QueryState.NEVER, None, "tombstoned")
    target = Talker(Resuming.RESTART, rule=once(2, UNKNOWN), if_unknown=IfUnknown.QUERY, query_answer=never)
    outcome = run(ledger, talks(target, "a", "b"))
    assert [state for state, _ in states(ledger, outcome)] == ["observed"]
    assert asked(target) == [(1, "a"), (2, "b"), (2, "b")]

    for_ever = Talker(Resuming.RESTART, rule=always(2, UNKNOWN), if_unknown=IfUnknown.QUERY, query_answer=never)
    outcome = run(ledger, talks(for_ever, "a", "b", attempts_max=3, name="for ever"))
    assert outcome.counts[SlotState.SELECTED] == 0
    assert len(for_ever.asked) < 12


def test_a_query_that_proves_nothing_leaves_the_turn_to_an_operator(ledger: Ledger) -> None:
    target = Talker(Resuming.CHECKPOINT, rule=once(2, UNKNOWN), if_unknown=IfUnknown.QUERY)
    outcome = run(ledger, talks(target, "a", "b", dispatches_max=3))
    assert page(ledger, outcome).reason == "query.no_proof"
    assert target.queries == 3
    assert asked(target) == [(1, "a"), (2, "b")]


def test_keep_leaves_the_turn_unknown_and_its_session_ended(ledger: Ledger) -> None:
    target = Talker(Resuming.CHECKPOINT, rule=once(2, UNKNOWN), if_unknown=IfUnknown.KEEP)
    outcome = run(ledger, talks(target, "a", "b"))
    assert outcome.counts[SlotState.UNKNOWN] == 1
    assert target.ended == [target.begun[0][0]]


# Stopping.


def test_asked_to_stop_no_further_turn_is_said_and_the_next_session_goes_on(ledger: Ledger) -> None:
    stop = StopSwitch()

    async def rule(target: Talker, turn: Turn) -> Outcome | None:
        if turn.number == 2:
            stop.ask("SIGINT")
        return None

    target = Talker(rule=rule)
    order = talks(target, "a", "b", "c")
    outcome = run(ledger, order, stop=stop)
    assert states(ledger, outcome) == [("interrupted", "stopped")]
    assert run(ledger, order).counts[SlotState.SELECTED] == 1
    assert asked(target) == [(1, "a"), (2, "b"), (3, "c")]


def test_a_program_that_is_cancelled_between_two_turns_leaves_no_attempt_running(ledger: Ledger) -> None:
    async def main() -> None:
        thinking = asyncio.Event()

        @ts.user(version="1")
        async def user(case: ts.Case, history: list[Exchange]) -> JsonValue:
            if history:
                thinking.set()
                await asyncio.Event().wait()
            return "a"

        order = talks(Talker(), conversation={"user": user}, rows=[{"id": "c0", "input": 1}])
        session = find_or_create(ledger, describe(order, ADAPTERS))
        running = asyncio.create_task(run_session(ledger, session))
        await thinking.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    with ledger.reading() as reader:
        assert reader.rows("SELECT state, reason FROM attempts") == [("interrupted", "stopped")]
        assert reader.rows("SELECT state FROM slots") == [("pending",)]
