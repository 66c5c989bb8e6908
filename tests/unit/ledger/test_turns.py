"""Conversations in the ledger: turns that are committed, carried over, settled in the middle, lost and found late."""

from __future__ import annotations

import pytest

from tallystick.ledger import attempt_calls, attempts, budgets, coordinators, run_ends, turns
from tallystick.ledger.canonical import digest_of_bytes
from tallystick.ledger.checks import require_sound
from tallystick.ledger.errors import BudgetExhausted, TransitionRefused
from tallystick.ledger.late import keep_late
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.open_calls import calls_of, next_of
from tallystick.ledger.records import Artifact, DispatchFacts, DispatchKey, Waiting
from tallystick.ledger.settlements import Decision, Settlement, settle_and_go_on, settle_unknown
from tallystick.ledger.slot_reads import call_to_repeat, unknown_outcomes
from tallystick.ledger.states import DispatchState, IfUnknown, NextStep, SlotState
from tests.unit.ledger.factories import (
    answered,
    attempt_states,
    budget,
    budget_row,
    dispatch_state,
    every,
    hold,
    lost,
    one,
    opened_run,
    slot_state,
)
from tests.unit.ledger.talks import answer_of, ask, break_off, commit, lose, open_session, say, turns_of

YES = '"yes"'


@pytest.fixture
def run(ledger: Ledger) -> coordinators.Coordinator:
    return opened_run(ledger, 1, budgets=(budget(limit=10),))


def landed(key: DispatchKey, *, made_by: str = "me", dispatch_no: int = 1, text: str = YES) -> Settlement:
    return Settlement(
        key.call_id, dispatch_no, Decision.LANDED, made_by, "the log says so", answered(), text,
        digest_of_bytes(text.encode()),
    )  # fmt: skip


def refused(ledger: Ledger, key: DispatchKey) -> None:
    facts = DispatchFacts(DispatchState.REFUSED, "http.status.429", wire_sends=1)
    ledger.write(lambda tx: attempts.refuse(tx, key, facts))


def recovered(ledger: Ledger, run_key: int, slot_no: int = 1) -> str:
    """What recovery says of the slot, as if its coordinator had died."""
    return ledger.write(lambda tx: coordinators._recover_slot(tx, run_key, slot_no, _newest(tx), 1, 3))


def _newest(tx: object) -> int:
    found: int = tx.row("SELECT max(attempt_no) FROM attempts")[0]  # type: ignore[attr-defined]
    return found


# Turns.


def test_each_turn_is_a_call_of_its_own_and_the_attempt_goes_on(ledger: Ledger, run: coordinators.Coordinator) -> None:
    attempt = open_session(ledger, run.run_key)
    for turn in (1, 2):
        say(ledger, attempt, turn, holds=(hold(),))
    assert attempt_states(ledger, run.run_key) == ["running"]
    assert slot_state(ledger, run.run_key) == "in_flight"
    assert every(ledger, "SELECT position FROM calls ORDER BY position") == [(1,), (2,)]
    assert turns_of(ledger, attempt) == [(1, '"answer 1"', "wire", None), (2, '"answer 2"', "wire", None)]
    assert budget_row(ledger, run.run_key)[:2] == (0, 2)
    require_sound(ledger)


def test_the_last_turn_is_observed_in_the_same_commit(ledger: Ledger, run: coordinators.Coordinator) -> None:
    attempt = open_session(ledger, run.run_key)
    say(ledger, attempt, 1)
    key = ask(ledger, attempt, 2)
    before = one(ledger, "SELECT max(event_no) FROM events")[0]
    ledger.write(lambda tx: turns.commit_last_turn(tx, key, answered(), answer_of(2), answer_of(2, text="both")))
    assert one(ledger, "SELECT max(event_no) FROM events")[0] == before + 1
    assert slot_state(ledger, run.run_key) == "selected"
    assert one(ledger, "SELECT answer, call_id FROM observations") == ('"both"', key.call_id)
    require_sound(ledger)


def test_no_turn_is_asked_in_an_attempt_that_does_not_run(ledger: Ledger, run: coordinators.Coordinator) -> None:
    attempt = open_session(ledger, run.run_key)
    break_off(ledger, attempt)
    with pytest.raises(TransitionRefused, match="can have no further call"):
        ask(ledger, attempt, 1)


def test_a_turn_that_does_not_fit_a_budget_leaves_nothing(ledger: Ledger, run: coordinators.Coordinator) -> None:
    attempt = open_session(ledger, run.run_key)
    say(ledger, attempt, 1, holds=(hold(),))
    ledger.write(lambda tx: budgets.amend(tx, run.run_key, 1, limit=1, reason="r", made_by="me"))
    with pytest.raises(BudgetExhausted):
        ask(ledger, attempt, 2, holds=(hold(),))
    assert one(ledger, "SELECT count(*) FROM calls")[0] == 1
    assert one(ledger, "SELECT turn FROM sessions")[0] == 1


def test_a_session_that_goes_on_carries_turns_and_says_in_which_attempt_each_was_asked(
    ledger: Ledger, run: coordinators.Coordinator
) -> None:
    first = open_session(ledger, run.run_key)
    say(ledger, first, 1)
    break_off(ledger, first)
    second = open_session(ledger, run.run_key, carried_from=1, carried=1, seen=1)
    say(ledger, second, 2)
    break_off(ledger, second)
    third = open_session(ledger, run.run_key, carried_from=2, carried=2, seen=2)
    assert turns_of(ledger, third) == [(1, '"answer 1"', "carried", 1), (2, '"answer 2"', "carried", 2)]
    with ledger.reading() as reader:
        newest = turns.newest_session(reader, run.run_key, 1)
        assert newest is not None
        assert (newest.attempt_no, newest.turn) == (3, 2)
        assert turns.replays_of(reader, run.run_key, 1) == 2
    require_sound(ledger)


def test_nothing_begins_from_a_session_whose_turn_was_settled_meanwhile(
    ledger: Ledger, run: coordinators.Coordinator
) -> None:
    first = open_session(ledger, run.run_key)
    say(ledger, first, 1)
    break_off(ledger, first)
    with pytest.raises(TransitionRefused) as refusal:
        open_session(ledger, run.run_key, carried_from=1, carried=0, seen=0)
    assert refusal.value.machine == "session"
    assert attempt_states(ledger, run.run_key) == ["interrupted"]


def test_a_checkpoint_is_kept_with_its_turn_and_carried_with_it(ledger: Ledger, run: coordinators.Coordinator) -> None:
    state = Artifact(digest_of_bytes(b"\x00\xff state"), 8, b"\x00\xff state")
    first = open_session(ledger, run.run_key)
    commit(ledger, ask(ledger, first, 1), 1, checkpoint=state)
    break_off(ledger, first)
    open_session(ledger, run.run_key, carried_from=1, carried=1, seen=1, checkpoint=state.digest)
    assert every(ledger, "SELECT checkpoint_artifact FROM turns") == [(state.digest,)] * 2
    assert one(ledger, "SELECT data FROM artifacts")[0] == b"\x00\xff state"
    require_sound(ledger)


def test_a_committed_turn_cannot_be_changed_or_taken_away(ledger: Ledger, run: coordinators.Coordinator) -> None:
    say(ledger, open_session(ledger, run.run_key), 1)
    for sql in ("UPDATE turns SET answer = 'x'", "DELETE FROM turns"):
        with pytest.raises(Exception, match="never"):
            ledger.write(lambda tx, sql=sql: tx.change(sql, ()))  # type: ignore[misc]


# Recovery looks at every call.


def test_a_death_between_two_turns_leaves_nothing_unknown_and_a_suspect(
    ledger: Ledger, run: coordinators.Coordinator
) -> None:
    say(ledger, open_session(ledger, run.run_key), 1)
    assert recovered(ledger, run.run_key) == "interrupted"
    assert one(ledger, "SELECT state, next_step, suspect FROM slots") == ("pending", "new", 1)
    require_sound(ledger)


@pytest.mark.parametrize(
    ("if_unknown", "becomes", "step"),
    [
        (IfUnknown.KEEP, "unknown", "new"),
        (IfUnknown.RESEND, "again", "resend"),
        (IfUnknown.QUERY, "again", "query"),
        (IfUnknown.REPEAT, "again", "new"),
    ],
)
def test_a_death_in_a_turn_goes_by_what_was_committed_with_its_call(
    ledger: Ledger, run: coordinators.Coordinator, if_unknown: IfUnknown, becomes: str, step: str
) -> None:
    attempt = open_session(ledger, run.run_key)
    say(ledger, attempt, 1, if_unknown=IfUnknown.KEEP)
    key = ask(ledger, attempt, 2, if_unknown=if_unknown)
    assert recovered(ledger, run.run_key) == becomes
    assert dispatch_state(ledger, key) == "unknown"
    assert one(ledger, "SELECT next_step FROM slots")[0] == step
    require_sound(ledger)


def test_a_death_after_a_turn_that_was_answered_when_it_was_resent_asks_nothing_again(
    ledger: Ledger, run: coordinators.Coordinator
) -> None:
    attempt, again = resent_and_answered(ledger, run.run_key)
    assert recovered(ledger, run.run_key) == "interrupted"
    # The first send stays unknown, and so does the attempt; the conversation goes on all the same.
    assert attempt_states(ledger, run.run_key) == ["unknown"]
    assert one(ledger, "SELECT state, next_step FROM slots") == ("pending", "new")
    with ledger.reading() as reader:
        assert call_to_repeat(reader, run.run_key, 1, attempt.attempt_no) is None
        (unknown,) = unknown_outcomes(reader, run.run_key)
    assert (unknown.turn, unknown.is_newest) == (1, False)
    assert again.dispatch_no == 2
    require_sound(ledger)


def resent_and_answered(ledger: Ledger, run_key: int) -> tuple[DispatchKey, DispatchKey]:
    """An attempt whose first turn was lost, and answered when it was sent again."""
    attempt = open_session(ledger, run_key)
    key = ask(ledger, attempt, 1, if_unknown=IfUnknown.RESEND, holds=(hold(),))
    lose(ledger, key, lost(), waiting=Waiting(NextStep.RESEND))
    again = ledger.write(lambda tx: attempts.reopen(tx, key, (hold(),))).key
    commit(ledger, again, 1)
    return attempt, again


def test_of_several_open_calls_each_is_unknown_and_the_strictest_decides(
    ledger: Ledger, run: coordinators.Coordinator
) -> None:
    attempt = open_session(ledger, run.run_key)
    ask(ledger, attempt, 1, if_unknown=IfUnknown.REPEAT)
    ask(ledger, attempt, 2, if_unknown=IfUnknown.QUERY)
    with ledger.reading() as reader:
        calls = calls_of(reader, run.run_key, 1, 1)
    assert [call.intended for call in calls.open] == [(1,), (1,)]
    assert next_of(calls.open, now_us=0) == Waiting(NextStep.QUERY), "what can be asked for is asked for first"
    ask(ledger, attempt, 3, if_unknown=IfUnknown.KEEP)
    assert recovered(ledger, run.run_key) == "unknown"
    assert every(ledger, "SELECT state, count(*) FROM dispatches GROUP BY state") == [("unknown", 3)]
    require_sound(ledger)


# A turn that is refused for good.


def test_a_turn_that_is_refused_gives_the_attempt_back_and_its_turns_stay(
    ledger: Ledger, run: coordinators.Coordinator
) -> None:
    attempt = open_session(ledger, run.run_key)
    say(ledger, attempt, 1)
    key = ask(ledger, attempt, 2)
    refused(ledger, key)
    ledger.write(lambda tx: attempts.give_back(tx, key, Waiting(), reason="http.status.429"))
    assert attempt_states(ledger, run.run_key) == ["given_back"]
    assert slot_state(ledger, run.run_key) == "pending"
    require_sound(ledger)


def test_an_earlier_turn_that_stays_unknown_keeps_no_later_one_from_being_given_back(
    ledger: Ledger, run: coordinators.Coordinator
) -> None:
    attempt, _ = resent_and_answered(ledger, run.run_key)
    key = ask(ledger, attempt, 2)
    refused(ledger, key)
    ledger.write(lambda tx: attempts.give_back(tx, key, Waiting(), reason="http.status.429"))
    assert attempt_states(ledger, run.run_key) == ["unknown"]
    assert one(ledger, "SELECT state, next_step FROM slots") == ("pending", "new"), "and nothing is resent"
    require_sound(ledger)


# Settling in the middle.


def lost_in_turn_two(ledger: Ledger, run_key: int, *, waiting: Waiting | None = None) -> DispatchKey:
    attempt = open_session(ledger, run_key)
    say(ledger, attempt, 1, holds=(hold(),))
    key = ask(ledger, attempt, 2, holds=(hold(),), if_unknown=IfUnknown.QUERY)
    lose(ledger, key, lost(), waiting=waiting)
    return key


def test_an_answer_commits_its_turn_and_the_slot_waits_to_go_on(ledger: Ledger, run: coordinators.Coordinator) -> None:
    key = lost_in_turn_two(ledger, run.run_key)
    assert ledger.write(lambda tx: settle_unknown(tx, landed(key))) is SlotState.PENDING
    assert turns_of(ledger, key)[1] == (2, YES, "operator", None)
    assert one(ledger, "SELECT message FROM turns WHERE turn = 2")[0] == '"message 2"'
    assert attempt_states(ledger, run.run_key) == ["interrupted"]
    assert one(ledger, "SELECT count(*) FROM observations")[0] == 0
    assert budget_row(ledger, run.run_key)[:2] == (0, 2)
    require_sound(ledger)


def test_an_answer_in_a_run_that_was_given_up_commits_its_turn_and_asks_nothing(
    ledger: Ledger, run: coordinators.Coordinator
) -> None:
    key = lost_in_turn_two(ledger, run.run_key)
    ledger.write(lambda tx: run_ends.abandon_run(tx, run.run_key, reason="enough", made_by="me"))
    assert ledger.write(lambda tx: settle_unknown(tx, landed(key))) is SlotState.CANCELLED
    assert len(turns_of(ledger, key)) == 2


@pytest.mark.parametrize(
    ("decision", "state", "attempt"),
    [
        (Decision.NOT_LANDED, SlotState.PENDING, "not_landed"),
        (Decision.GIVE_UP, SlotState.FAILED, "abandoned"),
        (Decision.FAILED, SlotState.FAILED, "failed"),
    ],
)
def test_other_decisions_leave_the_turn_without_an_answer(
    ledger: Ledger, run: coordinators.Coordinator, decision: Decision, state: SlotState, attempt: str
) -> None:
    key = lost_in_turn_two(ledger, run.run_key)
    decided = Settlement(key.call_id, 1, decision, "me", "why", DispatchFacts(DispatchState.FAILED, "http.status.500"))
    assert ledger.write(lambda tx: settle_unknown(tx, decided)) is state
    assert attempt_states(ledger, run.run_key) == [attempt]
    assert len(turns_of(ledger, key)) == 1
    require_sound(ledger)


def test_a_send_of_an_answered_turn_is_never_taken_for_the_one_that_is_waited_for(
    ledger: Ledger, run: coordinators.Coordinator
) -> None:
    attempt, first = resent_and_answered(ledger, run.run_key)
    second = ask(ledger, attempt, 2, holds=(hold(),))
    lose(ledger, second, lost(), waiting=None)
    assert ledger.write(lambda tx: settle_unknown(tx, landed(first, text='"old"'))) is SlotState.UNKNOWN
    assert turns_of(ledger, attempt) == [(1, '"answer 1"', "wire", None)]
    assert every(ledger, "SELECT state FROM dispatches ORDER BY call_id, dispatch_no") == [
        ("late",), ("answered",), ("unknown",)
    ]  # fmt: skip
    assert ledger.write(lambda tx: settle_unknown(tx, landed(second))) is SlotState.PENDING
    assert turns_of(ledger, attempt)[1][:2] == (2, YES)
    require_sound(ledger)


def test_not_landed_lets_go_on_though_an_earlier_turns_other_send_is_unknown(
    ledger: Ledger, run: coordinators.Coordinator
) -> None:
    attempt, first = resent_and_answered(ledger, run.run_key)
    second = ask(ledger, attempt, 2)
    lose(ledger, second, lost(), waiting=None)
    not_landed = Settlement(second.call_id, 1, Decision.NOT_LANDED, "me", "why")
    assert ledger.write(lambda tx: settle_unknown(tx, not_landed)) is SlotState.PENDING
    assert attempt_states(ledger, run.run_key) == ["unknown"], "of which one dispatch is"
    give_up = Settlement(first.call_id, 1, Decision.GIVE_UP, "me", "why")
    assert ledger.write(lambda tx: settle_unknown(tx, give_up)) is SlotState.PENDING
    require_sound(ledger)


def test_an_answer_of_an_attempt_that_is_not_the_newest_stays_its_own_evidence(
    ledger: Ledger, run: coordinators.Coordinator
) -> None:
    key = lost_in_turn_two(ledger, run.run_key, waiting=Waiting(NextStep.NEW))
    open_session(ledger, run.run_key, carried_from=1, carried=1, seen=1)
    assert ledger.write(lambda tx: settle_unknown(tx, landed(key))) is SlotState.IN_FLIGHT
    assert len(turns_of(ledger, key)) == 1
    assert attempt_states(ledger, run.run_key) == ["late", "running"]
    assert one(ledger, "SELECT raw FROM dispatches WHERE state = 'late'")[0] == YES.encode()
    assert one(ledger, "SELECT count(*) FROM observations")[0] == 0
    require_sound(ledger)


# Going on in the same attempt.


@pytest.mark.parametrize(("decision", "count"), [(Decision.LANDED, 2), (Decision.NOT_LANDED, 1)])
def test_what_a_query_proves_lets_the_same_attempt_run_again(
    ledger: Ledger, run: coordinators.Coordinator, decision: Decision, count: int
) -> None:
    key = lost_in_turn_two(ledger, run.run_key, waiting=Waiting(NextStep.QUERY))
    proof = landed(key, made_by="query") if decision is Decision.LANDED else Settlement(
        key.call_id, 1, decision, "query", "never"
    )  # fmt: skip
    ledger.write(lambda tx: settle_and_go_on(tx, proof))
    assert attempt_states(ledger, run.run_key) == ["running"]
    assert slot_state(ledger, run.run_key) == "in_flight"
    assert len(turns_of(ledger, key)) == count
    say(ledger, key, count + 1)
    require_sound(ledger)


def test_going_on_needs_a_slot_that_waits_to_ask_for_that_call(ledger: Ledger, run: coordinators.Coordinator) -> None:
    key = lost_in_turn_two(ledger, run.run_key)
    with pytest.raises(TransitionRefused):
        ledger.write(lambda tx: settle_and_go_on(tx, landed(key, made_by="query")))
    assert dispatch_state(ledger, key) == "unknown"
    assert budget_row(ledger, run.run_key)[0] == 1, "nothing of it stays"


# Late answers.


def keep(ledger: Ledger, key: DispatchKey) -> bool:
    facts = DispatchFacts(DispatchState.LATE, tokens_in=1, tokens_out=1)
    return ledger.write(lambda tx: keep_late(tx, key, facts, answer='"late"', answer_digest=digest_of_bytes(b'"late"')))


def test_a_late_answer_of_the_turn_that_is_waited_for_is_evidence_and_no_turn(
    ledger: Ledger, run: coordinators.Coordinator
) -> None:
    key = lost_in_turn_two(ledger, run.run_key)
    assert keep(ledger, key)
    assert (slot_state(ledger, run.run_key), attempt_states(ledger, run.run_key)) == ("failed", ["late"])
    assert len(turns_of(ledger, key)) == 1
    assert one(ledger, "SELECT count(*) FROM observations")[0] == 0
    require_sound(ledger)


def test_a_late_answer_of_an_earlier_turn_disturbs_no_later_one(ledger: Ledger, run: coordinators.Coordinator) -> None:
    attempt, first = resent_and_answered(ledger, run.run_key)
    second = ask(ledger, attempt, 2, if_unknown=IfUnknown.RESEND)
    lose(ledger, second, lost(), waiting=Waiting(NextStep.RESEND))
    assert keep(ledger, DispatchKey(run.run_key, 1, 1, first.call_id, 1))
    assert one(ledger, "SELECT state, next_step FROM slots") == ("pending", "resend")
    assert len(turns_of(ledger, attempt)) == 1
    with ledger.reading() as reader:
        call = call_to_repeat(reader, run.run_key, 1, 1)
    assert call is not None
    assert call.call_id == second.call_id
    require_sound(ledger)


def test_a_late_answer_that_was_all_that_was_unknown_ends_the_attempt(
    ledger: Ledger, run: coordinators.Coordinator
) -> None:
    attempt, first = resent_and_answered(ledger, run.run_key)
    break_off(ledger, attempt)
    assert attempt_states(ledger, run.run_key) == ["unknown"]
    assert keep(ledger, DispatchKey(run.run_key, 1, 1, first.call_id, 1))
    assert attempt_states(ledger, run.run_key) == ["interrupted"]
    assert slot_state(ledger, run.run_key) == "pending"
    require_sound(ledger)


# Breaking off.


def test_breaking_off_costs_no_try(ledger: Ledger, run: coordinators.Coordinator) -> None:
    attempt = open_session(ledger, run.run_key)
    say(ledger, attempt, 1)
    break_off(ledger, attempt, "checkpoint.refused")
    assert ledger.write(lambda tx: attempts.tries_spent(tx, run.run_key, 1)) == 0


def test_an_attempt_that_is_under_way_is_not_broken_off(ledger: Ledger, run: coordinators.Coordinator) -> None:
    attempt = open_session(ledger, run.run_key)
    ask(ledger, attempt, 1)
    with pytest.raises(TransitionRefused):
        ledger.write(lambda tx: attempt_calls.break_off(tx, attempt, reason="stopped"))
