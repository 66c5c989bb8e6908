"""A report is a function of the run's events: the same bytes at the same event, whenever it is asked (I7)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from tallystick.ledger import coordinators, planning
from tallystick.ledger.errors import TransitionRefused
from tallystick.ledger.judgments import add_judgments
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import JudgmentRow
from tallystick.renderers.files import ReportForm
from tests.unit.ledger.factories import budget, case_rows, run_plan
from tests.unit.ledger.test_history import newest_event
from tests.unit.ledger.test_model import SLOTS, LedgerMachine
from tests.unit.renderers.made_runs import WORK_ORDER, answer, every_row, judge, rendered, troubled_run


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
