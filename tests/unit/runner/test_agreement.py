"""Agreement, against published values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.adapters.rule_judges import contains, regex
from tallystick.ledger.ledger import Ledger
from tallystick.runner.agreement import agreement_of, agreements_of_judges, kappa_of
from tests.unit.runner.scripted_judge import PASSED, ScriptedJudge, a_run, judge, judge_in_turn, said


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "l.db", create=True) as opened:
        yield opened


def square(*rows: tuple[int, ...]) -> dict[tuple[str, str], int]:
    return {(str(at), str(to)): number for at, row in enumerate(rows) for to, number in enumerate(row)}


def test_kappa_of_a_worked_example() -> None:
    """Twenty and fifteen of fifty agree, half of all by chance: 0.4."""
    found = kappa_of(square((20, 5), (10, 15)))
    assert found is not None
    assert found.value == pytest.approx(0.4)


def test_kappa_and_its_interval_are_those_that_were_published() -> None:
    """Agresti, "Categorical Data Analysis", on 91 couples: 0.129 with a standard error of 0.0686."""
    found = kappa_of(square((7, 7, 2, 3), (2, 8, 3, 7), (1, 5, 4, 9), (2, 8, 9, 14)))
    assert found is not None
    assert found.value == pytest.approx(0.1293, abs=5e-5)
    error = (found.interval.high - found.interval.low) / 2 / 1.959964
    assert error == pytest.approx(0.0686, abs=5e-5)


@pytest.mark.parametrize(
    ("table", "value"),
    [
        ({}, None),
        ({("pass", "pass"): 0}, None),
        ({("pass", "pass"): 9}, None),
        ({("pass", "pass"): 5, ("fail", "fail"): 5}, 1.0),
        ({("pass", "fail"): 5, ("fail", "pass"): 5}, -1.0),
        ({("pass", "pass"): 5, ("pass", "fail"): 5}, 0.0),
    ],
)
def test_kappa_at_its_ends(table: dict[tuple[str, str], int], value: float | None) -> None:
    found = kappa_of(table)
    assert (None if found is None else found.value) == (None if value is None else pytest.approx(value))


def test_nothing_to_compare_is_no_agreement_and_no_disagreement() -> None:
    found = agreement_of("a", "b", {})
    assert (found.count, found.rate, found.interval, found.kappa) == (0, None, None, None)


def test_judges_are_compared_where_both_gave_a_verdict(ledger: Ledger) -> None:
    run = a_run(ledger, cases=4)
    replies = judge_in_turn(PASSED, said(passed=False), PASSED, said())
    judge(ledger, run, ScriptedJudge(replies), contains("x"), regex("y"), concurrency=1)
    with ledger.reading() as reader:
        found = agreements_of_judges(reader, 1, 2)
    assert [(one.first, one.second, one.agreed, one.count) for one in found] == [
        ("scripted", "contains", 2, 3), ("scripted", "regex", 1, 3), ("contains", "regex", 0, 4),
    ]  # fmt: skip
