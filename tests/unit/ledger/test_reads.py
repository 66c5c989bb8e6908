"""Reading: finding runs, counting populations, and the same answer each time."""

from __future__ import annotations

import pytest

from tallystick.ledger import attempts, judgments, run_ends, run_reads, run_totals, slot_reads
from tallystick.ledger.errors import RunAmbiguous, RunNotFound, RunNotResumable, TransitionRefused, UsageError
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import DispatchFacts, JudgmentRow, Waiting
from tallystick.ledger.states import DispatchState, NextStep, SlotState
from tests.unit.ledger.factories import (
    DAY_US,
    HandClock,
    answered,
    begin,
    budget,
    hold,
    lost,
    new_run,
    observe,
    one,
    opened_run,
    slot_state,
)

FAILED = DispatchFacts(DispatchState.FAILED, "http.500")


def fail(ledger: Ledger, run_key: int, slot_no: int) -> None:
    key = begin(ledger, run_key, slot_no).key
    ledger.write(lambda tx: attempts.fail(tx, key, FAILED, waiting=None))


def answer(ledger: Ledger, run_key: int, slot_no: int, told: DispatchFacts | None = None) -> None:
    key = begin(ledger, run_key, slot_no).key
    ledger.write(lambda tx: observe(tx, key, told))


def test_a_run_is_found_by_its_id_a_prefix_that_means_one_or_its_name(ledger: Ledger, clock: HandClock) -> None:
    first = new_run(ledger, name="nightly")
    clock.us += DAY_US
    second = new_run(ledger, name="nightly")
    with ledger.reading() as reader:
        assert run_reads.find_run(reader, first.run_id).run_key == first.run_key
        assert run_reads.find_run(reader, second.run_id[:12]).run_key == second.run_key
        assert run_reads.find_run(reader, "nightly").run_key == second.run_key
        with pytest.raises(RunAmbiguous):
            run_reads.find_run(reader, first.run_id[:2])
        for absent in ("zzzz", "Nightly"):
            with pytest.raises(RunNotFound, match=absent):
                run_reads.find_run(reader, absent)
        assert [run.run_id for run in run_reads.list_runs(reader)] == [second.run_id, first.run_id]
        assert [run.run_id for run in run_reads.list_runs(reader, limit=1)] == [second.run_id]


def test_the_newest_unfinished_run_is_the_one_that_may_go_on(ledger: Ledger) -> None:
    first, second = new_run(ledger, name="a"), new_run(ledger, name="b")
    ledger.write(lambda tx: run_ends.abandon_run(tx, second.run_key, reason="r", made_by="me"))
    with ledger.reading() as reader:
        newest = run_reads.newest_unfinished(reader)
    assert newest is not None
    assert newest.run_id == first.run_id


def test_the_states_of_all_slots_add_up_to_the_population(ledger: Ledger) -> None:
    run_key = new_run(ledger, 6).run_key
    answer(ledger, run_key, 1)
    fail(ledger, run_key, 2)
    key = begin(ledger, run_key, 3).key
    ledger.write(lambda tx: attempts.lose(tx, key, lost(), waiting=None))
    begin(ledger, run_key, 4)
    with ledger.reading() as reader:
        counts = run_reads.slot_counts(reader, run_key)
        reasons = run_reads.slot_reasons(reader, run_key)
    assert {state: count for state, count in counts.items() if count} == {
        SlotState.SELECTED: 1, SlotState.FAILED: 1, SlotState.UNKNOWN: 1, SlotState.IN_FLIGHT: 1, SlotState.PENDING: 2,
    }  # fmt: skip
    assert reasons == [("failed", "http.500", 1), ("unknown", "timeout", 1)]


def test_what_waits_comes_in_order_and_not_before_its_instant(ledger: Ledger, clock: HandClock) -> None:
    run_key = new_run(ledger, 4).run_key
    key = begin(ledger, run_key, 2).key
    later = Waiting(NextStep.NEW, clock.us + 5)
    ledger.write(lambda tx: attempts.fail(tx, key, FAILED, waiting=later))

    def waiting(now_us: int, after: tuple[int, int] = (0, 0), limit: int = 9) -> list[int]:
        with ledger.reading() as reader:
            return [
                slot.slot_no
                for slot in slot_reads.pending_slots(reader, run_key, after=after, now_us=now_us, limit=limit)
            ]

    assert waiting(clock.us) == [1, 3, 4]
    assert waiting(clock.us + 5) == [1, 3, 4, 2]
    assert waiting(clock.us, after=(0, 1)) == [3, 4]
    assert waiting(clock.us, limit=2) == [1, 3]
    with ledger.reading() as reader:
        assert slot_reads.next_not_before(reader, run_key) == 0


def test_the_same_question_has_the_same_answer_each_time(ledger: Ledger) -> None:
    run_key = new_run(ledger, 3, budgets=(budget(),), judges=("exact",)).run_key
    key = begin(ledger, run_key, 1, holds=(hold(),)).key
    ledger.write(lambda tx: observe(tx, key, answered(tokens_in=1, tokens_out=2, raw=b"x")))
    ledger.write(lambda tx: judgments.add_judgments(tx, run_key, 1, [JudgmentRow(1, 1, 1, passed=True)]))

    def everything() -> list[object]:
        with ledger.reading() as reader:
            return [
                run_totals.totals_of(reader, run_key), run_reads.budgets_of(reader, run_key),
                slot_reads.case_page(reader, run_key, "c1"), slot_reads.scores_of(reader, run_key),
            ]  # fmt: skip

    assert everything() == everything()


def test_a_score_shows_its_denominator_and_the_population(ledger: Ledger) -> None:
    run_key = new_run(ledger, 4, judges=("exact",)).run_key
    rows = [
        JudgmentRow(1, 1, 1, passed=True, score="1"),
        JudgmentRow(1, 2, 1, passed=False, score="0"),
        JudgmentRow(1, 3, 1, reason="judge.failed"),
    ]
    for slot_no in (1, 2, 3):
        answer(ledger, run_key, slot_no)
    ledger.write(lambda tx: judgments.add_judgments(tx, run_key, 1, rows))
    with ledger.reading() as reader:
        [score] = slot_reads.scores_of(reader, run_key)
    assert (score.planned, score.judged, score.passed, score.score_sum) == (4, 2, 1, 1.0)
    assert score.no_verdict == {"judge.failed": 1}


def test_an_observation_is_judged_once_by_a_judge(ledger: Ledger) -> None:
    run_key = new_run(ledger, judges=("exact",)).run_key
    answer(ledger, run_key, 1)
    row = JudgmentRow(1, 1, 1, passed=True)
    ledger.write(lambda tx: judgments.add_judgments(tx, run_key, 1, [row]))
    with pytest.raises(TransitionRefused, match="still to be given"):
        ledger.write(lambda tx: judgments.add_judgments(tx, run_key, 1, [row]))


# The ends of runs.


def test_a_run_is_finished_only_when_nothing_waits_or_is_in_flight(ledger: Ledger) -> None:
    coordinator = opened_run(ledger, 2)
    run_key = coordinator.run_key
    answer(ledger, run_key, 1)
    key = begin(ledger, run_key, 2).key
    assert not ledger.write(lambda tx: run_ends.finish_run(tx, run_key))
    ledger.write(lambda tx: attempts.lose(tx, key, lost(), waiting=None))
    assert ledger.write(lambda tx: run_ends.finish_run(tx, run_key))
    assert ledger.write(lambda tx: run_ends.finish_run(tx, run_key))
    assert one(ledger, "SELECT count(*) FROM events WHERE kind = 'run.finished'") == (1,)


def test_what_is_in_flight_cannot_be_given_up(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    begin(ledger, run_key, 1)
    with pytest.raises(RunNotResumable, match="in flight"):
        ledger.write(lambda tx: run_ends.abandon_run(tx, run_key, reason="r", made_by="me"))
    assert slot_state(ledger, run_key, 2) == "pending"


def test_an_unknown_slot_is_never_just_tried_again(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    key = begin(ledger, run_key, 1).key
    ledger.write(lambda tx: attempts.lose(tx, key, lost(), waiting=None))
    for state in ("unknown", "selected", "in_flight", "pending", "nonsense"):
        with pytest.raises(UsageError, match="cannot be retried"):
            ledger.write(lambda tx, state=state: run_ends.retry(tx, run_key, state=state, reason=None))  # type: ignore[misc]
    assert slot_state(ledger, run_key) == "unknown"


def test_only_what_failed_for_that_reason_is_retried_and_its_run_is_open_again(ledger: Ledger) -> None:
    run_key = new_run(ledger, 2).run_key
    fail(ledger, run_key, 1)
    fail(ledger, run_key, 2)
    ledger.write(lambda tx: run_ends.finish_run(tx, run_key))
    assert ledger.write(lambda tx: run_ends.retry(tx, run_key, state="failed", reason="other")) == 0
    assert one(ledger, "SELECT state FROM runs") == ("finished",)
    assert ledger.write(lambda tx: run_ends.retry(tx, run_key, state="failed", reason="http.500")) == 2
    assert one(ledger, "SELECT state, ended_us FROM runs") == ("open", None)
    assert begin(ledger, run_key, 1).key.attempt_no == 2


def test_a_slot_that_waits_to_resend_or_to_ask_is_not_called_unavailable(ledger: Ledger) -> None:
    run_key = new_run(ledger, 3).run_key
    key = begin(ledger, run_key, 1).key
    ledger.write(lambda tx: attempts.lose(tx, key, lost(), waiting=Waiting(NextStep.RESEND)))
    assert ledger.write(lambda tx: run_ends.mark_unavailable(tx, run_key, reason="budget")) == 2
    assert slot_state(ledger, run_key, 1) == "pending"
    assert ledger.write(lambda tx: run_ends.leave_undecided(tx, run_key, reason="budget")) == 1
    assert one(ledger, "SELECT state, next_step FROM slots WHERE slot_no = 1") == ("unknown", "resend")
