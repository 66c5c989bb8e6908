"""A report is a function of the run's events: the same bytes at the same event, whenever it is asked (I7)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tallystick.ledger import coordinators, history, planning, report_rows, run_ends, views
from tallystick.ledger.errors import TransitionRefused
from tallystick.ledger.evaluations import EvaluationRow, evaluations_of, let_retried_wait
from tallystick.ledger.judgments import add_judgments
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.readers import Reader
from tallystick.ledger.records import JudgmentRow
from tallystick.ledger.settlements import Decision, Settlement, settle_unknown
from tallystick.renderers.files import ReportForm
from tests.unit.ledger.factories import budget, case_rows, run_plan
from tests.unit.ledger.test_history import newest_event
from tests.unit.ledger.test_model import SLOTS, LedgerMachine
from tests.unit.renderers.made_runs import WORK_ORDER, answer, every_row, fail, judge, lose, rendered, troubled_run


class ReportMachine(LedgerMachine):
    """Whatever is done to a run, each report that was made of it can be made again, byte for byte."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, str] = {}
        self.judged: set[int] = set()

    @initialize(limit=st.integers(0, 40))
    def plan(self, limit: int) -> None:
        self.limit = limit
        plan = attrs.evolve(
            run_plan(budgets=(budget(unit="tokens_out", limit=limit),), judges=("exact",)), work_order=WORK_ORDER
        )
        made = planning.create_run(self.ledger, plan, case_rows(SLOTS))
        self.run_key, self.run_id = made.run_key, made.run_id
        self.coordinator = coordinators.open_run(self.ledger, made.run_id)

    @rule(passed=st.none() | st.booleans(), data=st.data())
    @precondition(lambda self: any(slot.state == "selected" for slot in self.slots.values()))
    def judge(self, passed: bool | None, data: st.DataObject) -> None:
        chosen = [number for number, slot in self.slots.items() if slot.state == "selected"]
        number = data.draw(st.sampled_from(chosen))
        attempt = self.slots[number].selected
        assert attempt is not None
        row = JudgmentRow(1, number, attempt, passed, None, None if passed is not None else "timeout", "because")
        if number in self.judged:
            with pytest.raises(TransitionRefused):
                self.write(lambda tx: add_judgments(tx, self.run_key, 1, [row]))
        else:
            self.write(lambda tx: add_judgments(tx, self.run_key, 1, [row]))
            self.judged.add(number)

    @rule()
    @precondition(lambda self: self.judged)
    def judge_again(self) -> None:
        """What gave no verdict waits again."""
        with self.ledger.reading() as reader:
            (own,) = evaluations_of(reader, self.run_key)
            silent = {
                row[0] for row in reader.rows("SELECT slot_no FROM judgments WHERE state = 'no_verdict'")
            }  # fmt: skip
        assert self.write(lambda tx: let_retried_wait(tx, own, reason="timeout")) == len(silent)
        self.judged -= silent

    @invariant()
    def look(self) -> None:
        if hasattr(self, "run_key"):
            self.seen[newest_event(self.ledger, self.run_key)] = rendered(self.ledger, self.run_id, "json")

    def teardown(self) -> None:
        for event_no, text in self.seen.items():
            assert rendered(self.ledger, self.run_id, "json", at=event_no) == text, event_no
        super().teardown()


TestReports = ReportMachine.TestCase
TestReports.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("form", ReportForm)
def test_every_form_is_the_same_twice_and_changes_no_row(ledger: Ledger, form: ReportForm) -> None:
    run = troubled_run(ledger)
    before = every_row(ledger)
    options: list[dict[str, Any]] = [{}, {"by": "language"}, {"at": 3}]
    first = [rendered(ledger, run.run_id, form, **one) for one in options]
    assert [rendered(ledger, run.run_id, form, **one) for one in options] == first
    assert len(set(first)) == 3 or form in (ReportForm.CSV, ReportForm.JUNIT)
    assert every_row(ledger) == before


@pytest.mark.parametrize("form", ReportForm)
def test_a_report_of_a_live_run_is_the_same_at_its_event(ledger: Ledger, form: ReportForm) -> None:
    run = troubled_run(ledger)
    event_no = newest_event(ledger, run.run_key)
    then = rendered(ledger, run.run_id, form)
    answer(ledger, run.run_key, 8)
    judge(ledger, run.run_key, 8, True)
    judge(ledger, run.run_key, 6, False)
    assert rendered(ledger, run.run_id, form) != then
    assert rendered(ledger, run.run_id, form, at=event_no) == then


@pytest.mark.parametrize("form", [ReportForm.JSON, ReportForm.CSV, ReportForm.HTML])
def test_a_long_report_goes_on_with_newer_views_and_shows_nothing_that_happened_since(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, form: ReportForm
) -> None:
    run = troubled_run(ledger)
    lost = lose(ledger, run.run_key, 9)
    expected = rendered(ledger, run.run_id, form)
    monkeypatch.setattr(views, "RENEWED_SECONDS", -1)
    monkeypatch.setattr(report_rows, "_SLOTS_AT_ONCE", 1)
    monkeypatch.setattr(history, "_EVENTS_AT_ONCE", 8)
    happens: list[Callable[[], object]] = [
        lambda: judge(ledger, run.run_key, 6, True),
        lambda: ledger.write(lambda tx: let_retried_wait(tx, own_evaluation(ledger), reason="malformed_verdict")),
        lambda: answer(ledger, run.run_key, 8),
        lambda: ledger.write(lambda tx: settle_unknown(tx, Settlement(lost, 1, Decision.GIVE_UP, "me", "why"))),
        lambda: fail(ledger, run.run_key, 10),
        lambda: ledger.write(lambda tx: run_ends.retry(tx, run.run_key, state="failed", reason=None)),
    ]  # fmt: skip
    steps = iter(happens)
    turn, turns = views.Views.turn, itertools.count()

    def turned(self: views.Views) -> Reader:
        if next(turns) % 3 == 1:  # some while the events are read, some while the observations are
            for step in itertools.islice(steps, 1):
                step()
        return turn(self)

    monkeypatch.setattr(views.Views, "turn", turned)
    assert rendered(ledger, run.run_id, form) == expected
    assert next(steps, None) is None  # all of it happened meanwhile
    assert rendered(ledger, run.run_id, form) != expected


def own_evaluation(ledger: Ledger) -> EvaluationRow:
    with ledger.reading() as reader:
        return evaluations_of(reader, 1)[0]


def test_a_view_is_left_for_a_newer_one_when_it_is_old(ledger: Ledger) -> None:
    clock = iter([0.0, 1.0, 5.0, 5.0, 6.0]).__next__
    told: list[Reader] = []
    with views.Views.of(ledger, seconds_max=2.0, clock=clock) as found:
        found.on_renewal.append(told.append)
        first = found.reader
        assert found.turn() is first
        second = found.turn()
        assert second is not first
        assert found.turn() is second is found.reader
        assert told == [second]


def test_a_report_from_before_a_run_was_moved_is_the_same_after_it(ledger: Ledger) -> None:
    run = troubled_run(ledger)
    ledger.write(lambda tx: coordinators.release_run(tx, run, reason="ended", active_us=1))
    before = rendered(ledger, run.run_id, "json")
    found = json.loads(before)
    assert (found["custody"], found["state"]) == ("held", "open")
    row = "UPDATE runs SET state = ?, custody = ? WHERE run_id = ?"
    ledger.write(lambda tx: tx.change(row, ("moving", "moving", run.run_id)))
    ledger.write(lambda tx: tx.event(run.run_key, "run.moving", {"state": "open", "epoch": 2, "ledger": "l"}))
    moving = rendered(ledger, run.run_id, "json")
    assert json.loads(moving)["custody"] == "moved"
    ledger.write(lambda tx: tx.change(row, ("moved", "moved", run.run_id)))
    assert rendered(ledger, run.run_id, "json") == moving
    assert rendered(ledger, run.run_id, "json", at=found["event"]) == before
