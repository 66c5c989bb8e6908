"""Settling what is unknown: each decision, for the newest and for an older attempt, once."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tallystick.ledger import attempts, run_ends, slot_reads
from tallystick.ledger.canonical import digest_of_bytes
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.errors import TransitionRefused
from tallystick.ledger.late import keep_late
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import DispatchFacts, DispatchKey, Waiting
from tallystick.ledger.settlements import Decision, Settlement, settle_unknown
from tallystick.ledger.states import DispatchState, NextStep, SlotState
from tests.unit.ledger.factories import (
    answered,
    attempt_states,
    begin,
    budget,
    budget_row,
    dispatch_state,
    every,
    hold,
    lost,
    new_run,
    observe,
    one,
    slot_state,
)

LANDED_ANSWER = '"landed"'
BOUND = 30


def settlement(key: DispatchKey, decision: Decision, *, made_by: str = "operator", **facts: Any) -> Settlement:
    landed = decision is Decision.LANDED
    state = DispatchState.FAILED if decision is Decision.FAILED else DispatchState.ANSWERED
    told = DispatchFacts(state, "http.500" if decision is Decision.FAILED else "", tokens_in=3, tokens_out=4, **facts)
    answer = LANDED_ANSWER if landed else None
    return Settlement(
        key.call_id, key.dispatch_no, decision, made_by, "looked it up", told, answer,
        digest_of_bytes(answer.encode()) if answer else "",
    )  # fmt: skip


def settle(ledger: Ledger, key: DispatchKey, decision: Decision, **more: Any) -> SlotState:
    wanted = settlement(key, decision, **more)
    return ledger.write(lambda tx: settle_unknown(tx, wanted))


@pytest.fixture
def run_key(ledger: Ledger) -> int:
    return new_run(ledger, budgets=(budget(1, limit=9), budget(2, unit="tokens", limit=900))).run_key


def lose(ledger: Ledger, run_key: int, step: NextStep | None = None, slot_no: int = 1) -> DispatchKey:
    key = begin(ledger, run_key, slot_no, holds=(hold(1), hold(2, BOUND, unit="tokens"))).key
    waiting = None if step is None else Waiting(step)
    ledger.write(lambda tx: attempts.lose(tx, key, lost(), waiting=waiting))
    return key


CASES = [
    (Decision.LANDED, "selected", "observed", "answered", (0, 1), (0, 7)),
    (Decision.FAILED, "failed", "failed", "failed", (0, 1), (0, 7)),
    (Decision.NOT_LANDED, "pending", "not_landed", "refused", (0, 0), (0, 0)),
    (Decision.GIVE_UP, "failed", "abandoned", "abandoned", (0, 1), (0, BOUND)),
]


@pytest.mark.parametrize(("decision", "slot", "attempt", "dispatch", "counted", "tokens"), CASES)
def test_each_decision_settles_slot_attempt_dispatch_and_money(
    decision: Decision,
    slot: str,
    attempt: str,
    dispatch: str,
    counted: tuple[int, int],
    tokens: tuple[int, int],
    ledger: Ledger,
    run_key: int,
) -> None:
    key = lose(ledger, run_key)
    assert settle(ledger, key, decision) == slot
    assert slot_state(ledger, run_key) == slot
    assert attempt_states(ledger, run_key) == [attempt]
    assert dispatch_state(ledger, key) == dispatch
    assert budget_row(ledger, run_key, 1)[:2] == counted
    assert budget_row(ledger, run_key, 2)[:2] == tokens
    sql = "SELECT decision, made_by, reason FROM settlements"
    assert every(ledger, sql) == [(decision, "operator", "looked it up")]
    found = every(ledger, "SELECT answer, source FROM observations")
    assert found == ([(LANDED_ANSWER, "operator")] if decision is Decision.LANDED else [])


@pytest.mark.parametrize("decision", Decision)
@pytest.mark.parametrize("again", Decision)
def test_what_is_settled_cannot_be_settled_again(
    decision: Decision, again: Decision, ledger: Ledger, run_key: int
) -> None:
    key = lose(ledger, run_key)
    settle(ledger, key, decision)
    before = everything(ledger)
    with pytest.raises(TransitionRefused, match="not unknown"):
        settle(ledger, key, again)
    assert everything(ledger) == before


def everything(ledger: Ledger) -> list[Any]:
    tables = ("slots", "attempts", "dispatches", "reservations", "budgets", "settlements", "observations", "events")
    return [every(ledger, f"SELECT * FROM {table}") for table in tables]


def test_only_an_unknown_dispatch_can_be_settled(ledger: Ledger, run_key: int) -> None:
    key = begin(ledger, run_key).key
    with pytest.raises(TransitionRefused):
        settle(ledger, key, Decision.GIVE_UP)
    ledger.write(lambda tx: observe(tx, key))
    with pytest.raises(TransitionRefused):
        settle(ledger, key, Decision.LANDED)
    with pytest.raises(TransitionRefused):
        settle(ledger, DispatchKey(run_key, 1, 1, "absent", 1), Decision.GIVE_UP)


def test_a_landed_dispatch_needs_its_answer(ledger: Ledger, run_key: int) -> None:
    key = lose(ledger, run_key)
    before = everything(ledger)
    wanted = Settlement(key.call_id, 1, Decision.LANDED, "operator", "r")
    with pytest.raises(ValueError, match="needs its answer"):
        ledger.write(lambda tx: settle_unknown(tx, wanted))
    assert everything(ledger) == before


# An older attempt: evidence only.


@pytest.mark.parametrize(
    ("newer", "decision"),
    [
        (newer, decision)
        for newer in ("waits", "runs", "has answered", "has failed", "is unknown too", "was given back")
        for decision in Decision
        # The answer of an attempt that nothing has followed yet is selected: the next test.
        if (newer, decision) != ("waits", Decision.LANDED)
    ],
)
def test_settling_an_older_attempt_leaves_the_slot_to_the_newer_one(
    decision: Decision, newer: str, ledger: Ledger, run_key: int
) -> None:
    old = lose(ledger, run_key, NextStep.NEW)
    if newer != "waits":
        key = begin(ledger, run_key).key
        if newer == "has answered":
            ledger.write(lambda tx: observe(tx, key))
        elif newer == "has failed":
            failed = DispatchFacts(DispatchState.FAILED, "http.500")
            ledger.write(lambda tx: attempts.fail(tx, key, failed, waiting=None))
        elif newer == "is unknown too":
            ledger.write(lambda tx: attempts.lose(tx, key, lost(), waiting=None))
        elif newer == "was given back":
            ledger.write(lambda tx: attempts.refuse(tx, key, DispatchFacts(DispatchState.REFUSED)))
            ledger.write(lambda tx: attempts.give_back(tx, key, Waiting(), reason="busy"))
    before = one(ledger, "SELECT state, attempts, selected_attempt FROM slots WHERE slot_no = 1")
    settle(ledger, old, decision)
    assert one(ledger, "SELECT state, attempts, selected_attempt FROM slots WHERE slot_no = 1") == before
    ended = {"landed": "late", "failed": "failed", "not_landed": "not_landed", "give_up": "abandoned"}[decision]
    assert attempt_states(ledger, run_key)[0] == ended
    if decision is Decision.LANDED:
        sql = "SELECT answer, source FROM observations WHERE attempt_no = 1"
        assert one(ledger, sql) == (LANDED_ANSWER, "late")
        assert dispatch_state(ledger, old) == "late"


def test_an_answer_found_before_its_repetition_began_is_selected_and_spares_it(ledger: Ledger, run_key: int) -> None:
    key = lose(ledger, run_key, NextStep.NEW)
    assert settle(ledger, key, Decision.LANDED) is SlotState.SELECTED
    with pytest.raises(TransitionRefused):
        begin(ledger, run_key)


@pytest.mark.parametrize("step", [NextStep.RESEND, NextStep.QUERY])
def test_what_is_not_landed_is_tried_anew_and_not_resent_or_asked_for(
    step: NextStep, ledger: Ledger, run_key: int
) -> None:
    key = lose(ledger, run_key, step)
    assert settle(ledger, key, Decision.NOT_LANDED, made_by="query") is SlotState.PENDING
    assert one(ledger, "SELECT state, next_step FROM slots WHERE slot_no = 1") == ("pending", "new")
    assert begin(ledger, run_key).key.attempt_no == 2


@pytest.mark.parametrize("step", [NextStep.RESEND, NextStep.QUERY])
@pytest.mark.parametrize("decision", [Decision.GIVE_UP, Decision.FAILED])
def test_giving_up_a_call_ends_its_resends_and_queries(
    decision: Decision, step: NextStep, ledger: Ledger, run_key: int
) -> None:
    key = lose(ledger, run_key, step)
    assert settle(ledger, key, decision) is SlotState.FAILED


def test_an_answer_by_query_says_so(ledger: Ledger, run_key: int) -> None:
    key = lose(ledger, run_key, NextStep.QUERY)
    settle(ledger, key, Decision.LANDED, made_by="query")
    assert one(ledger, "SELECT source FROM observations") == ("query",)
    assert one(ledger, "SELECT settled_by FROM dispatches") == ("query",)


# Two dispatches of one attempt, both unknown.


def lose_twice(ledger: Ledger, run_key: int) -> tuple[DispatchKey, DispatchKey]:
    first = lose(ledger, run_key, NextStep.RESEND)
    again = (hold(1), hold(2, BOUND, unit="tokens"))
    second = ledger.write(lambda tx: attempts.reopen(tx, first, again)).key
    ledger.write(lambda tx: attempts.lose(tx, second, lost(), waiting=None))
    return first, second


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("decision", [Decision.NOT_LANDED, Decision.GIVE_UP, Decision.FAILED])
def test_an_attempt_stays_unknown_until_its_last_dispatch_is_settled(
    decision: Decision, order: tuple[int, int], ledger: Ledger, run_key: int
) -> None:
    keys = lose_twice(ledger, run_key)
    assert settle(ledger, keys[order[0]], decision) is SlotState.UNKNOWN
    assert attempt_states(ledger, run_key) == ["unknown"]
    assert budget_row(ledger, run_key)[0] == 1
    final = settle(ledger, keys[order[1]], decision)
    assert final is (SlotState.PENDING if decision is Decision.NOT_LANDED else SlotState.FAILED)
    assert budget_row(ledger, run_key)[0] == 0


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(("done", "attempt"), [(Decision.GIVE_UP, "abandoned"), (Decision.FAILED, "failed")])
def test_a_case_is_not_asked_anew_because_one_of_two_dispatches_did_not_land(
    done: Decision, attempt: str, order: tuple[int, int], ledger: Ledger, run_key: int
) -> None:
    keys = lose_twice(ledger, run_key)
    settle(ledger, keys[order[0]], done)
    assert settle(ledger, keys[order[1]], Decision.NOT_LANDED) is SlotState.FAILED
    assert attempt_states(ledger, run_key) == [attempt]
    assert slot_state(ledger, run_key) == "failed"


def test_what_waits_for_a_new_attempt_waits_as_long_when_the_one_before_did_not_land(
    ledger: Ledger, run_key: int
) -> None:
    key = begin(ledger, run_key).key
    ledger.write(lambda tx: attempts.lose(tx, key, lost(), waiting=Waiting(NextStep.NEW, 77)))
    assert settle(ledger, key, Decision.NOT_LANDED) is SlotState.PENDING
    assert one(ledger, "SELECT not_before_us FROM slots WHERE slot_no = 1") == (77,)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_dispatches_that_landed_the_first_settled_gives_the_answer(
    order: tuple[int, int], ledger: Ledger, run_key: int
) -> None:
    keys = lose_twice(ledger, run_key)
    assert settle(ledger, keys[order[0]], Decision.LANDED) is SlotState.SELECTED
    assert budget_row(ledger, run_key)[:2] == (1, 1)
    assert settle(ledger, keys[order[1]], Decision.LANDED) is SlotState.SELECTED
    assert attempt_states(ledger, run_key) == ["observed"]
    assert every(ledger, "SELECT dispatch_no FROM observations") == [(keys[order[0]].dispatch_no,)]
    assert dispatch_state(ledger, keys[order[1]]) == "late"
    assert budget_row(ledger, run_key)[:2] == (0, 2)


@pytest.mark.parametrize("decision", [Decision.FAILED, Decision.GIVE_UP, Decision.NOT_LANDED])
def test_a_resend_that_is_settled_does_not_keep_the_first_send_from_being_resent(
    decision: Decision, ledger: Ledger, run_key: int
) -> None:
    first = lose(ledger, run_key, NextStep.RESEND)
    second = ledger.write(lambda tx: attempts.reopen(tx, first, ())).key
    ledger.write(lambda tx: attempts.lose(tx, second, lost(), waiting=Waiting(NextStep.RESEND)))
    assert settle(ledger, second, decision) is SlotState.PENDING
    third = ledger.write(lambda tx: attempts.reopen(tx, second, ())).key
    assert (third.attempt_no, third.dispatch_no) == (1, 3)
    ledger.write(lambda tx: observe(tx, third, answered()))
    assert attempt_states(ledger, run_key) == ["observed"]


def test_an_unknown_dispatch_of_an_attempt_whose_resend_was_answered_can_be_settled(
    ledger: Ledger, run_key: int
) -> None:
    first = lose(ledger, run_key, NextStep.RESEND)
    second = ledger.write(lambda tx: attempts.reopen(tx, first, ())).key
    ledger.write(lambda tx: observe(tx, second, answered()))
    for_operator = unknowns(ledger, run_key)
    assert [(found.call_id, found.dispatch_no) for found in for_operator] == [(first.call_id, 1)]
    assert settle(ledger, first, Decision.GIVE_UP) is SlotState.SELECTED
    assert unknowns(ledger, run_key) == []
    assert attempt_states(ledger, run_key) == ["observed"]


def unknowns(ledger: Ledger, run_key: int, **filters: Any) -> list[slot_reads.Unknown]:
    with ledger.reading() as reader:
        return slot_reads.unknown_outcomes(reader, run_key, **filters)


# The run around it.


def finish(ledger: Ledger, run_key: int) -> None:
    ledger.write(lambda tx: run_ends.mark_unavailable(tx, run_key, reason="target"))
    assert ledger.write(lambda tx: run_ends.finish_run(tx, run_key))


def test_a_finished_run_is_open_again_when_something_of_it_waits(ledger: Ledger, run_key: int) -> None:
    key = lose(ledger, run_key)
    finish(ledger, run_key)
    settle(ledger, key, Decision.NOT_LANDED)
    assert one(ledger, "SELECT state, ended_us FROM runs") == ("open", None)


@pytest.mark.parametrize("decision", [Decision.LANDED, Decision.GIVE_UP])
def test_a_finished_run_stays_finished_when_nothing_waits(decision: Decision, ledger: Ledger, run_key: int) -> None:
    key = lose(ledger, run_key)
    finish(ledger, run_key)
    settle(ledger, key, decision)
    assert one(ledger, "SELECT state FROM runs") == ("finished",)


def test_in_a_run_that_was_given_up_nothing_waits_again(ledger: Ledger, run_key: int) -> None:
    key = lose(ledger, run_key)
    ledger.write(lambda tx: run_ends.abandon_run(tx, run_key, reason="r", made_by="me"))
    assert settle(ledger, key, Decision.NOT_LANDED) is SlotState.CANCELLED
    assert slot_state(ledger, run_key) == "cancelled"


def test_unknown_outcomes_show_their_evidence_and_what_they_hold(ledger: Ledger, run_key: int) -> None:
    key = lose(ledger, run_key)
    [found] = unknowns(ledger, run_key)
    assert (found.call_id, found.case_id, found.variant, found.slot_state) == (key.call_id, "c1", "default", "unknown")
    assert found.is_newest is True
    assert found.held == {"dispatches": 1, "tokens": BOUND}
    assert found.payload == b"what was asked"
    assert found.reason == "timeout"


def test_unknown_outcomes_can_be_picked_by_each_of_their_marks(ledger: Ledger, run_key: int) -> None:
    keys = [lose(ledger, run_key, slot_no=slot_no) for slot_no in (1, 2, 3)]
    assert [found.slot_no for found in unknowns(ledger, run_key)] == [1, 2, 3]
    assert [found.slot_no for found in unknowns(ledger, run_key, case_id="c2")] == [2]
    assert [found.slot_no for found in unknowns(ledger, run_key, call_id=keys[2].call_id)] == [3]
    assert len(unknowns(ledger, run_key, call_id=keys[0].call_id[:6])) == 3
    assert len(unknowns(ledger, run_key, variant="default", reason="timeout")) == 3
    assert unknowns(ledger, run_key, variant="other") == unknowns(ledger, run_key, reason="other") == []
    assert len(unknowns(ledger, run_key, limit=2)) == 2


PARTS = [
    ("tokens_in", 25, 0),  # what went in was told whole
    ("tokens_out", BOUND, 1),
    ("tokens", BOUND + 5, 1),  # more than its bound was seen
    ("nanousd", 40, 1),
    ("milliseconds", BOUND, 1),
    ("dispatches", 1, 0),
]


@pytest.mark.parametrize(("unit", "settled", "unknown_uses"), PARTS)
def test_what_was_told_before_an_answer_broke_off_is_charged_once_it_is_given_up(
    unit: str, settled: int, unknown_uses: int, ledger: Ledger
) -> None:
    bound = 1 if unit == "dispatches" else BOUND
    run_key = new_run(ledger, budgets=(budget(unit=unit, limit=100),)).run_key
    key = begin(ledger, run_key, holds=(hold(1, bound, unit=unit),)).key
    told = attrs.evolve(
        lost(), tokens_in=25, usage='{"problems":[],"seen":{"cost_nanousd":40,"tokens_out":10}}',
        tokens_out_seen=10, cost_nanousd_seen=40,
    )  # fmt: skip
    ledger.write(lambda tx: attempts.lose(tx, key, told, waiting=None))
    assert budget_row(ledger, run_key)[:2] == (bound, 0)
    settle(ledger, key, Decision.GIVE_UP)
    assert budget_row(ledger, run_key) == (0, settled, 0, unknown_uses)
    assert every(ledger, "SELECT tokens_in, tokens_out FROM dispatches") == [(25, None)]
    with pytest.raises(TransitionRefused):
        settle(ledger, key, Decision.GIVE_UP)
    assert budget_row(ledger, run_key) == (0, settled, 0, unknown_uses)
    assert not check_ledger(ledger)


@pytest.mark.parametrize("decision", [Decision.GIVE_UP, Decision.NOT_LANDED, Decision.LANDED])
def test_an_answer_that_comes_after_a_settlement_is_not_charged_again(
    decision: Decision, ledger: Ledger, run_key: int
) -> None:
    key = lose(ledger, run_key)
    settle(ledger, key, decision)
    before = everything(ledger)
    late = answered(tokens_in=500, tokens_out=400)
    digest = digest_of_bytes(b'"late"')
    kept = ledger.write(lambda tx: keep_late(tx, key, late, answer='"late"', answer_digest=digest))
    assert not kept
    assert everything(ledger) == before


def test_a_late_answer_settles_once_and_a_decision_after_it_is_refused(ledger: Ledger, run_key: int) -> None:
    key = lose(ledger, run_key)
    late = answered(tokens_in=3, tokens_out=4)
    digest = digest_of_bytes(b'"late"')
    assert ledger.write(lambda tx: keep_late(tx, key, late, answer='"late"', answer_digest=digest))
    assert budget_row(ledger, run_key, 2)[:2] == (0, 7)
    with pytest.raises(TransitionRefused, match="not unknown"):
        settle(ledger, key, Decision.GIVE_UP)
    assert budget_row(ledger, run_key, 2)[:2] == (0, 7)


@pytest.mark.parametrize("usage", ["no JSON", "5", '{"seen": 5}', '{"seen": {"tokens_out": "9", "cost_nanousd": -1}}'])
def test_usage_that_another_program_wrote_settles_at_the_bound(usage: str, ledger: Ledger, run_key: int) -> None:
    key = lose(ledger, run_key)
    ledger.write(lambda tx: tx.change("UPDATE dispatches SET usage = ?", (usage,)))
    settle(ledger, key, Decision.GIVE_UP)
    assert budget_row(ledger, run_key, 2)[:2] == (0, BOUND)
