"""A check finds what breaks the promises of evaluations, each planted behind the ledger's back."""

from __future__ import annotations

import contextlib

import pytest

from tallystick.ledger.canonical import digest_of_bytes
from tallystick.ledger.check_judgments import JUDGMENT_RULES
from tallystick.ledger.check_rules import Severity
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.evaluation_holds import open_evaluation
from tallystick.ledger.evaluations import EvaluationRow, create_evaluation, write_set
from tallystick.ledger.judgment_calls import JudgeIntent, begin_judgment, end_judgment_call
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.planning import JudgePlan
from tallystick.ledger.records import DispatchFacts, JudgmentKey, JudgmentRow
from tallystick.ledger.states import DispatchState, IfUnknown
from tests.unit.ledger.factories import begin, evaluation_plan, new_run, observe, raw

FAULTS: dict[str, tuple[str, ...]] = {
    "judgment.not_told": ("UPDATE judgments SET passed = 1 - passed WHERE state = 'judged'",),
    "judgment.intended_without_judging": ("UPDATE judgments SET state = 'pending' WHERE state = 'judging'",),
    "judgment.call_of_another": (
        """UPDATE judgments SET call_id = (SELECT call_id FROM calls WHERE owner = 'attempt' AND slot_no = 1)
        WHERE state = 'judged'""",
    ),
    "judgment.samples": ("DELETE FROM judgments WHERE slot_no = 3 AND sample_no = 2",),
    "evaluation.ended_early": ("UPDATE evaluations SET ended_us = 1 WHERE evaluation_no = 2",),
}


def judge_call(ledger: Ledger, row: EvaluationRow, slot_no: int, *, is_answered: bool) -> None:
    key = JudgmentKey(row.run_key, row.evaluation_no, 1, slot_no, 1, 1)
    intent = JudgeIntent(
        key, f"judges-{slot_no}", "{}", b"ask", digest_of_bytes(b"ask"), 3, IfUnknown.KEEP, ()
    )  # fmt: skip
    sent = ledger.write(lambda tx: begin_judgment(tx, intent))
    if is_answered:
        verdict = JudgmentRow(1, slot_no, 1, passed=True, call_id=sent.call_id)
        facts = DispatchFacts(DispatchState.ANSWERED)
        ledger.write(lambda tx: end_judgment_call(tx, key, sent, facts, verdict))


def judged(ledger: Ledger) -> None:
    """An evaluation of three observations by one judge, twice each: one verdict, one call under way, the rest waits."""
    run = new_run(ledger, 3)
    for slot_no in (1, 2, 3):
        key = begin(ledger, run.run_key, slot_no).key
        ledger.write(lambda tx, key=key: observe(tx, key))  # type: ignore[misc]
    judge = JudgePlan("strict", "model", "{}", samples=2)
    plan = evaluation_plan("again", judge)
    row = ledger.write(lambda tx: create_evaluation(tx, run.run_id, plan))
    open_evaluation(ledger, row)
    while not ledger.write(lambda tx: write_set(tx, row)):
        pass
    judge_call(ledger, row, 1, is_answered=True)
    judge_call(ledger, row, 2, is_answered=False)


def test_an_evaluation_that_is_going_on_is_sound(ledger: Ledger) -> None:
    judged(ledger)
    assert check_ledger(ledger) == []


NOT_TOLD = (
    "UPDATE judgments SET reason = 'other' WHERE state = 'judged'",
    "DELETE FROM judgments WHERE state = 'judged'",
    "UPDATE judgments SET state = 'judged', passed = 1 WHERE state = 'pending' AND slot_no = 3",
)


@pytest.mark.parametrize("fault", NOT_TOLD)
def test_a_verdict_that_is_another_missing_or_too_many_is_found(fault: str, ledger: Ledger) -> None:
    judged(ledger)
    with contextlib.closing(raw(ledger.path)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        assert connection.execute(fault).rowcount != 0, "the fault must be one"
    assert "judgment.not_told" in {finding.code for finding in check_ledger(ledger)}


@pytest.mark.parametrize("code", FAULTS)
def test_each_fault_is_found(code: str, ledger: Ledger) -> None:
    judged(ledger)
    connection = raw(ledger.path)
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    for fault in FAULTS[code]:
        assert connection.execute(fault).rowcount != 0, "the fault must be one"
    connection.close()
    found = {finding.code: finding for finding in check_ledger(ledger)}
    assert found[code].severity is Severity.ERROR


def test_every_rule_has_a_fault_that_shows_that_it_finds_something() -> None:
    assert {rule.code for rule in JUDGMENT_RULES} == set(FAULTS)
