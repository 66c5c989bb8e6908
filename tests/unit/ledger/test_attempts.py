"""The life of an attempt: what each step changes, and which steps a stale hand is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from tallystick.ledger import attempts
from tallystick.ledger.canonical import digest_of_bytes
from tallystick.ledger.errors import BudgetExhausted, TransitionRefused
from tallystick.ledger.late import keep_late as keep_late_answer
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import DispatchFacts, DispatchKey, Waiting
from tallystick.ledger.states import DispatchState, IfUnknown, NextStep
from tallystick.ledger.transaction import Transaction
from tests.unit.ledger.factories import (
    ANSWER,
    ANSWER_DIGEST,
    DAY_US,
    PAYLOAD,
    HandClock,
    answered,
    attempt_states,
    begin,
    budget,
    budget_row,
    dispatch_state,
    every,
    facts,
    hold,
    intent,
    lost,
    new_run,
    observe,
    one,
    slot_state,
)

REFUSED = facts(DispatchState.REFUSED, "connect")
FAILED = facts(DispatchState.FAILED, "http.500")
AGAIN = Waiting(NextStep.NEW)
Step = Callable[[Transaction, DispatchKey], object]


def refuse(tx: Transaction, key: DispatchKey) -> None:
    attempts.refuse(tx, key, REFUSED)


def fail(tx: Transaction, key: DispatchKey) -> None:
    attempts.fail(tx, key, FAILED, waiting=None)


def fail_and_wait(tx: Transaction, key: DispatchKey) -> None:
    attempts.fail(tx, key, FAILED, waiting=AGAIN)


def lose(tx: Transaction, key: DispatchKey) -> None:
    attempts.lose(tx, key, lost(), waiting=None)


def lose_and_repeat(tx: Transaction, key: DispatchKey) -> None:
    attempts.lose(tx, key, lost(), waiting=AGAIN)


def give_back(tx: Transaction, key: DispatchKey) -> None:
    attempts.give_back(tx, key, AGAIN, reason="rate_limited")


def keep_late(tx: Transaction, key: DispatchKey) -> bool:
    late = DispatchFacts(DispatchState.LATE, tokens_in=3, tokens_out=4)
    return keep_late_answer(tx, key, late, answer='"late"', answer_digest=digest_of_bytes(b'"late"'))


@pytest.fixture
def run_key(ledger: Ledger) -> int:
    return new_run(ledger, budgets=(budget(limit=3),)).run_key


def do(ledger: Ledger, step: Step, key: DispatchKey) -> Any:
    return ledger.write(lambda tx: step(tx, key))


def rows_of(ledger: Ledger) -> dict[str, list[Any]]:
    tables = ("slots", "attempts", "calls", "dispatches", "reservations", "budgets", "observations", "events")
    return {table: every(ledger, f"SELECT * FROM {table}") for table in tables}


# Each step.


def test_beginning_commits_claim_attempt_call_dispatch_and_reservation_at_once(ledger: Ledger, run_key: int) -> None:
    begun = begin(ledger, run_key, 2, holds=(hold(),))
    assert begun.key.attempt_no == 1
    assert slot_state(ledger, run_key, 2) == "in_flight"
    assert attempt_states(ledger, run_key, 2) == ["running"]
    assert dispatch_state(ledger, begun.key) == "intended"
    sql = "SELECT payload, payload_digest, payload_size FROM calls"
    assert one(ledger, sql) == (PAYLOAD, digest_of_bytes(PAYLOAD), len(PAYLOAD))
    assert one(ledger, "SELECT state, held FROM reservations") == ("held", 1)
    assert budget_row(ledger, run_key) == (1, 0, 0, 0)


def test_an_answer_in_time_is_settled_kept_and_selected(ledger: Ledger, run_key: int) -> None:
    begun = begin(ledger, run_key, holds=(hold(),))
    do(ledger, observe, begun.key)
    assert one(ledger, "SELECT state, selected_attempt FROM slots WHERE slot_no = 1") == ("selected", 1)
    assert attempt_states(ledger, run_key) == ["observed"]
    assert dispatch_state(ledger, begun.key) == "answered"
    assert one(ledger, "SELECT answer, answer_digest, source FROM observations") == (ANSWER, ANSWER_DIGEST, "wire")
    assert budget_row(ledger, run_key) == (0, 1, 0, 0)


def test_a_refused_dispatch_is_followed_by_the_next_of_the_same_call(ledger: Ledger, run_key: int) -> None:
    first = begin(ledger, run_key, holds=(hold(),))
    do(ledger, refuse, first.key)
    assert slot_state(ledger, run_key) == "in_flight"
    second = ledger.write(lambda tx: attempts.dispatch_again(tx, first.key, (hold(),)))
    assert (second.key.call_id, second.key.dispatch_no) == (first.key.call_id, 2)
    do(ledger, observe, second.key)
    assert every(ledger, "SELECT state FROM dispatches ORDER BY dispatch_no") == [("refused",), ("answered",)]
    assert budget_row(ledger, run_key) == (0, 2, 0, 0)


@pytest.mark.parametrize(("charged", "settled"), [(True, 1), (False, 0)])
def test_a_refused_dispatch_counts_only_where_something_was_sent(
    charged: bool, settled: int, ledger: Ledger, run_key: int
) -> None:
    key = begin(ledger, run_key, holds=(hold(),)).key
    ledger.write(lambda tx: attempts.refuse(tx, key, attrs.evolve(REFUSED, charged=charged)))
    assert budget_row(ledger, run_key) == (0, settled, 0, 0)


def test_a_failed_attempt_ends_its_slot_or_lets_it_wait_for_the_next(ledger: Ledger, run_key: int) -> None:
    do(ledger, fail, begin(ledger, run_key, 1, holds=(hold(),)).key)
    do(ledger, fail_and_wait, begin(ledger, run_key, 2, holds=(hold(),)).key)
    assert one(ledger, "SELECT state, reason FROM slots WHERE slot_no = 1") == ("failed", "http.500")
    assert slot_state(ledger, run_key, 2) == "pending"
    second = begin(ledger, run_key, 2, holds=(hold(),))
    assert second.key.attempt_no == 2
    do(ledger, observe, second.key)
    assert attempt_states(ledger, run_key, 2) == ["failed", "observed"]


def test_an_unknown_outcome_keeps_its_reservation(ledger: Ledger, run_key: int) -> None:
    do(ledger, lose, begin(ledger, run_key, 1, holds=(hold(),)).key)
    do(ledger, lose_and_repeat, begin(ledger, run_key, 2, holds=(hold(),)).key)
    assert slot_state(ledger, run_key, 1) == "unknown"
    assert slot_state(ledger, run_key, 2) == "pending"
    assert budget_row(ledger, run_key) == (2, 0, 0, 0)
    do(ledger, observe, begin(ledger, run_key, 2, holds=(hold(),)).key)
    assert attempt_states(ledger, run_key, 2) == ["unknown", "observed"]
    assert budget_row(ledger, run_key) == (2, 1, 0, 0)


def test_an_attempt_that_is_given_back_waits_until_its_instant_or_is_unavailable(ledger: Ledger, run_key: int) -> None:
    for slot_no, waiting in ((1, Waiting(NextStep.NEW, DAY_US)), (2, None)):
        key = begin(ledger, run_key, slot_no).key
        do(ledger, refuse, key)
        ledger.write(lambda tx, key=key, waiting=waiting: attempts.give_back(tx, key, waiting, reason="busy"))  # type: ignore[misc]
    sql = "SELECT state, not_before_us, reason FROM slots ORDER BY slot_no"
    assert every(ledger, sql)[:2] == [("pending", DAY_US, "busy"), ("unavailable", 0, "busy")]
    assert attempt_states(ledger, run_key) == ["given_back"]


def test_a_resend_goes_on_with_the_same_attempt_and_request_id(ledger: Ledger, run_key: int) -> None:
    first = begin(ledger, run_key, holds=(hold(),))
    ledger.write(lambda tx: attempts.lose(tx, first.key, lost(), waiting=Waiting(NextStep.RESEND)))
    again = ledger.write(lambda tx: attempts.reopen(tx, first.key, (hold(),)))
    assert (again.key.attempt_no, again.key.call_id, again.key.dispatch_no) == (1, first.key.call_id, 2)
    assert attempt_states(ledger, run_key) == ["running"]
    do(ledger, observe, again.key)
    assert slot_state(ledger, run_key) == "selected"
    assert dispatch_state(ledger, first.key) == "unknown"
    assert budget_row(ledger, run_key) == (1, 1, 0, 0)


@pytest.mark.parametrize("step", [NextStep.NEW, NextStep.QUERY])
def test_only_a_slot_that_is_to_be_resent_is_resent(step: NextStep, ledger: Ledger, run_key: int) -> None:
    key = begin(ledger, run_key).key
    ledger.write(lambda tx: attempts.lose(tx, key, lost(), waiting=Waiting(step)))
    with pytest.raises(TransitionRefused):
        ledger.write(lambda tx: attempts.reopen(tx, key, ()))


def test_a_resend_of_an_older_attempt_is_refused(ledger: Ledger, run_key: int) -> None:
    old = begin(ledger, run_key).key
    do(ledger, lose_and_repeat, old)
    new = begin(ledger, run_key).key
    ledger.write(lambda tx: attempts.lose(tx, new, lost(), waiting=Waiting(NextStep.RESEND)))
    with pytest.raises(TransitionRefused):
        ledger.write(lambda tx: attempts.reopen(tx, old, ()))


def test_a_case_from_which_no_request_can_be_made_is_a_failed_attempt_without_a_call(
    ledger: Ledger, run_key: int
) -> None:
    def work(tx: Transaction) -> None:
        attempts.fail_unprepared(tx, run_key, 1, fingerprint="fp", reason="template", message="no such field")

    ledger.write(work)
    assert one(ledger, "SELECT state, attempts, reason FROM slots WHERE slot_no = 1") == ("failed", 1, "template")
    assert attempt_states(ledger, run_key) == ["failed"]
    assert every(ledger, "SELECT * FROM calls") == []
    with pytest.raises(TransitionRefused):
        ledger.write(work)


def test_a_waiting_slot_may_wait_longer_and_keeps_its_next_step(ledger: Ledger, run_key: int) -> None:
    key = begin(ledger, run_key).key
    ledger.write(lambda tx: attempts.lose(tx, key, lost(), waiting=Waiting(NextStep.QUERY), suspect=True))
    ledger.write(lambda tx: attempts.postpone(tx, run_key, 1, not_before_us=DAY_US))
    sql = "SELECT state, next_step, not_before_us, suspect FROM slots WHERE slot_no = 1"
    assert one(ledger, sql) == ("pending", "query", DAY_US, 0)


def test_when_resends_are_used_up_an_operator_decides(ledger: Ledger, run_key: int) -> None:
    key = begin(ledger, run_key).key
    ledger.write(lambda tx: attempts.lose(tx, key, lost(), waiting=Waiting(NextStep.RESEND)))
    ledger.write(lambda tx: attempts.leave_unknown(tx, run_key, 1, reason="resends.used_up"))
    assert one(ledger, "SELECT state, reason FROM slots WHERE slot_no = 1") == ("unknown", "resends.used_up")
    for slot_no in (1, 2):
        with pytest.raises(TransitionRefused):
            ledger.write(lambda tx, slot_no=slot_no: attempts.leave_unknown(tx, run_key, slot_no, reason="x"))  # type: ignore[misc]


def test_a_death_of_ours_counts_no_try(ledger: Ledger, run_key: int) -> None:
    do(ledger, fail_and_wait, begin(ledger, run_key).key)
    key = begin(ledger, run_key).key
    died = attrs.evolve(lost(), reason="coordinator.died")
    ledger.write(lambda tx: attempts.lose(tx, key, died, waiting=AGAIN))
    do(ledger, lose_and_repeat, begin(ledger, run_key).key)
    begin(ledger, run_key)
    assert ledger.write(lambda tx: attempts.tries_spent(tx, run_key, 1)) == 2


# What a stale hand is refused.

ENDS: dict[str, Step] = {"observe": observe, "fail": fail, "lose": lose, "refuse": refuse}
ENDED: dict[str, Step] = {"observed": observe, "failed": fail, "unknown": lose, "waiting": fail_and_wait}


@pytest.mark.parametrize("ended", ENDED)
@pytest.mark.parametrize("end", ENDS)
def test_an_attempt_that_has_ended_cannot_be_ended_again(ended: str, end: str, ledger: Ledger, run_key: int) -> None:
    key = begin(ledger, run_key, holds=(hold(),)).key
    do(ledger, ENDED[ended], key)
    before = rows_of(ledger)
    with pytest.raises(TransitionRefused):
        do(ledger, ENDS[end], key)
    assert rows_of(ledger) == before


@pytest.mark.parametrize("ended", ENDED)
def test_an_attempt_that_has_ended_cannot_be_given_back(ended: str, ledger: Ledger, run_key: int) -> None:
    key = begin(ledger, run_key, holds=(hold(),)).key
    do(ledger, ENDED[ended], key)
    before = rows_of(ledger)
    with pytest.raises(TransitionRefused):
        do(ledger, give_back, key)
    assert rows_of(ledger) == before


@pytest.mark.parametrize("end", ENDS)
def test_a_stale_attempt_number_changes_nothing_of_the_newer_attempt(end: str, ledger: Ledger, run_key: int) -> None:
    old = begin(ledger, run_key, holds=(hold(),)).key
    do(ledger, lose_and_repeat, old)
    new = begin(ledger, run_key, holds=(hold(),)).key
    before = rows_of(ledger)
    with pytest.raises(TransitionRefused):
        do(ledger, ENDS[end], old)
    # Not even with the new call's dispatch in its hand.
    stale = attrs.evolve(new, attempt_no=1)
    if end != "refuse":
        with pytest.raises(TransitionRefused):
            do(ledger, ENDS[end], stale)
    assert rows_of(ledger) == before
    do(ledger, observe, new)
    assert one(ledger, "SELECT selected_attempt FROM slots WHERE slot_no = 1") == (2,)


def test_an_older_attempt_cannot_end_its_slot_even_if_it_runs(ledger: Ledger, run_key: int) -> None:
    do(ledger, lose_and_repeat, begin(ledger, run_key).key)
    new = begin(ledger, run_key).key
    revived = "UPDATE attempts SET state = 'running' WHERE run_key = ? AND attempt_no = 1"
    ledger.write(lambda tx: tx.change(revived, (run_key,)))
    before = rows_of(ledger)
    for end in (observe, fail, lose):
        with pytest.raises(TransitionRefused, match="slot"):
            do(ledger, end, attrs.evolve(new, attempt_no=1))
    assert rows_of(ledger) == before


@pytest.mark.parametrize("ended", ["in flight", *ENDED])
def test_a_dispatch_follows_only_one_that_was_refused_in_an_attempt_that_runs(
    ended: str, ledger: Ledger, run_key: int
) -> None:
    key = begin(ledger, run_key, holds=(hold(),)).key
    if ended in ENDED:
        do(ledger, ENDED[ended], key)
    before = rows_of(ledger)
    with pytest.raises(TransitionRefused):
        ledger.write(lambda tx: attempts.dispatch_again(tx, key, (hold(),)))
    assert rows_of(ledger) == before


@pytest.mark.parametrize("state", ["in_flight", "selected", "failed", "unknown", "absent"])
def test_only_a_slot_that_waits_can_be_claimed(state: str, ledger: Ledger, run_key: int) -> None:
    if state != "absent":
        key = begin(ledger, run_key, holds=(hold(),)).key
        if state != "in_flight":
            do(ledger, {"selected": observe, "failed": fail, "unknown": lose}[state], key)
    before = rows_of(ledger)
    with pytest.raises(TransitionRefused, match="not pending"):
        begin(ledger, run_key, 99 if state == "absent" else 1)
    assert rows_of(ledger) == before


@pytest.mark.parametrize("step", [NextStep.RESEND, NextStep.QUERY])
def test_a_slot_that_is_to_resend_or_ask_for_its_last_call_begins_no_new_one(
    step: NextStep, ledger: Ledger, run_key: int
) -> None:
    key = begin(ledger, run_key).key
    ledger.write(lambda tx: attempts.lose(tx, key, lost(), waiting=Waiting(step)))
    before = rows_of(ledger)
    with pytest.raises(TransitionRefused):
        begin(ledger, run_key)
    assert rows_of(ledger) == before


def test_an_attempt_whose_second_hold_does_not_fit_leaves_nothing(ledger: Ledger) -> None:
    budgets = (budget(1, limit=5), budget(2, limit=1, scope="variant", value="default"))
    run_key = new_run(ledger, budgets=budgets).run_key
    before = rows_of(ledger)
    with pytest.raises(BudgetExhausted, match="variant default dispatches"):
        begin(ledger, run_key, 1, holds=(hold(1), hold(2, 2)))
    assert rows_of(ledger) == before
    assert ledger.failure is None


def test_a_request_id_is_used_once(ledger: Ledger, run_key: int) -> None:
    begin(ledger, run_key, 1, call_id="the-same")
    before = rows_of(ledger)
    with pytest.raises(Exception, match="UNIQUE"):
        begin(ledger, run_key, 2, call_id="the-same")
    assert rows_of(ledger) == before


# Late answers (E04), in either order of arrival.


def late_and_new(ledger: Ledger, run_key: int) -> tuple[DispatchKey, DispatchKey]:
    old = begin(ledger, run_key, holds=(hold(),)).key
    do(ledger, lose_and_repeat, old)
    return old, begin(ledger, run_key, holds=(hold(),)).key


@pytest.mark.parametrize("late_first", [True, False])
def test_a_late_answer_stays_with_its_own_attempt_and_both_are_paid_for(
    late_first: bool, ledger: Ledger, run_key: int
) -> None:
    old, new = late_and_new(ledger, run_key)
    steps: list[tuple[Step, DispatchKey]] = [(keep_late, old), (observe, new)]
    for step, key in steps if late_first else reversed(steps):
        do(ledger, step, key)
    assert attempt_states(ledger, run_key) == ["late", "observed"]
    assert one(ledger, "SELECT state, selected_attempt FROM slots WHERE slot_no = 1") == ("selected", 2)
    sql = "SELECT attempt_no, call_id, answer, source FROM observations ORDER BY attempt_no"
    assert every(ledger, sql) == [(1, old.call_id, '"late"', "late"), (2, new.call_id, ANSWER, "wire")]
    assert dispatch_state(ledger, old) == "late"
    assert budget_row(ledger, run_key) == (0, 2, 0, 0)


def test_a_late_answer_does_not_stop_the_attempt_that_is_under_way(ledger: Ledger, run_key: int) -> None:
    old, new = late_and_new(ledger, run_key)
    assert do(ledger, keep_late, old)
    assert slot_state(ledger, run_key) == "in_flight"
    assert attempt_states(ledger, run_key) == ["late", "running"]
    do(ledger, fail, new)
    assert slot_state(ledger, run_key) == "failed"


def test_a_late_answer_is_kept_once(ledger: Ledger, run_key: int) -> None:
    old, _ = late_and_new(ledger, run_key)
    assert do(ledger, keep_late, old)
    before = rows_of(ledger)
    assert not do(ledger, keep_late, old)
    assert rows_of(ledger) == before


@pytest.mark.parametrize("ended", ["observed", "failed"])
def test_an_answer_that_is_not_late_is_not_kept_as_late(ended: str, ledger: Ledger, run_key: int) -> None:
    key = begin(ledger, run_key, holds=(hold(),)).key
    before = rows_of(ledger)
    assert not do(ledger, keep_late, key)
    assert rows_of(ledger) == before
    do(ledger, ENDED[ended], key)
    assert not do(ledger, keep_late, key)


@pytest.mark.parametrize("step", [NextStep.RESEND, NextStep.QUERY])
def test_after_its_late_answer_a_call_is_neither_resent_nor_asked_for(
    step: NextStep, ledger: Ledger, run_key: int
) -> None:
    key = begin(ledger, run_key, holds=(hold(),)).key
    ledger.write(lambda tx: attempts.lose(tx, key, lost(), waiting=Waiting(step)))
    do(ledger, keep_late, key)
    # Only `repeat` and `restart` declare a new request harmless; here an answer is known, and it came too late.
    assert one(ledger, "SELECT state, next_step, reason FROM slots WHERE slot_no = 1") == ("failed", "new", "late")


def test_a_late_answer_to_a_request_that_is_being_resent_stays_with_its_own_dispatch(
    ledger: Ledger, run_key: int
) -> None:
    first = begin(ledger, run_key, holds=(hold(),)).key
    ledger.write(lambda tx: attempts.lose(tx, first, lost(), waiting=Waiting(NextStep.RESEND)))
    second = ledger.write(lambda tx: attempts.reopen(tx, first, (hold(),))).key
    assert do(ledger, keep_late, first)
    assert one(ledger, "SELECT state, raw FROM dispatches WHERE dispatch_no = 1") == ("late", b'"late"')
    do(ledger, observe, second)
    assert slot_state(ledger, run_key) == "selected"


def test_one_late_answer_of_two_unknown_sends_leaves_the_attempt_unknown(ledger: Ledger, run_key: int) -> None:
    first = begin(ledger, run_key, holds=(hold(),)).key
    ledger.write(lambda tx: attempts.lose(tx, first, lost(), waiting=Waiting(NextStep.RESEND)))
    second = ledger.write(lambda tx: attempts.reopen(tx, first, (hold(),))).key
    do(ledger, lose, second)
    assert do(ledger, keep_late, first)
    assert one(ledger, "SELECT state FROM attempts") == ("unknown",)
    assert slot_state(ledger, run_key) == "unknown"


def test_a_slot_whose_only_unknown_was_answered_late_has_nothing_left_to_decide(ledger: Ledger, run_key: int) -> None:
    key = begin(ledger, run_key, holds=(hold(),)).key
    do(ledger, lose, key)
    do(ledger, keep_late, key)
    assert one(ledger, "SELECT state, reason FROM slots WHERE slot_no = 1") == ("failed", "late")


def test_the_late_answer_of_a_dispatch_that_is_being_resent_leaves_the_resend_alone(
    ledger: Ledger, run_key: int
) -> None:
    first = begin(ledger, run_key, holds=(hold(),)).key
    ledger.write(lambda tx: attempts.lose(tx, first, lost(), waiting=Waiting(NextStep.RESEND)))
    again = ledger.write(lambda tx: attempts.reopen(tx, first, (hold(),))).key
    assert do(ledger, keep_late, first)
    assert slot_state(ledger, run_key) == "in_flight"
    do(ledger, observe, again)
    assert one(ledger, "SELECT answer, dispatch_no FROM observations") == (ANSWER, 2)
    assert budget_row(ledger, run_key) == (0, 2, 0, 0)


# Repetitions (E06).


def test_the_same_question_in_two_repetitions_is_two_requests_and_two_observations(ledger: Ledger) -> None:
    run_key = new_run(ledger, 1, repetitions=2).run_key
    keys = [begin(ledger, run_key, slot_no).key for slot_no in (1, 2)]
    assert keys[0].call_id != keys[1].call_id
    for key, answer in zip(keys, ('"one"', '"two"'), strict=True):
        ledger.write(lambda tx, key=key, answer=answer: observe(tx, key, answered(), answer))  # type: ignore[misc]
    assert every(ledger, "SELECT slot_no, answer FROM observations ORDER BY slot_no") == [(1, '"one"'), (2, '"two"')]
    assert len({row[0] for row in every(ledger, "SELECT call_id FROM calls")}) == 2


def test_the_instants_of_a_step_are_those_of_the_injected_clock(ledger: Ledger, run_key: int, clock: HandClock) -> None:
    begun = begin(ledger, run_key)
    assert begun.intended_us == clock.us
    clock.us += 5_000_000
    do(ledger, observe, begun.key)
    assert one(ledger, "SELECT began_us, ended_us FROM attempts") == (clock.us - 5_000_000, clock.us)


def test_a_key_of_an_idempotent_call_is_stored_with_its_validity(ledger: Ledger, run_key: int) -> None:
    wanted = intent(run_key, if_unknown=IfUnknown.RESEND, key_until_us=DAY_US)
    ledger.write(lambda tx: attempts.begin(tx, wanted))
    assert one(ledger, "SELECT if_unknown, key_until_us FROM calls") == ("resend", DAY_US)
