"""The acceptance record says pass only where every test of a scenario ran and passed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import acceptance_record as record

ROOT = Path(__file__).resolve().parents[2]


def _seen(name: str, outcome: str = "passed") -> record.Seen:
    return record.Seen(place="tests/acceptance/test_x.py:7", name=name, outcome=outcome, seconds=0.5)


@pytest.mark.parametrize(
    ("outcomes", "result"),
    [
        ([], "not tested"),
        (["skipped"], "not tested"),
        (["passed"], "pass"),
        (["passed", "skipped"], "partly tested"),
        (["passed", "failed"], "**fail**"),
        (["skipped", "failed"], "**fail**"),
    ],
)
def test_result_of_a_scenario(outcomes: list[str], result: str) -> None:
    assert record.result_of([_seen("test_e01_x", outcome) for outcome in outcomes]) == result


def test_a_test_belongs_to_the_scenario_that_its_name_begins_with() -> None:
    names = ["test_e03_kept", "test_e03b_resent[x]", "test_soak_of_kills", "test_enough", "test_e99_unheard_of"]
    found = {
        key: [test.name for test in tests] for key, tests in record.by_scenario(map(_seen, names)).items() if tests
    }
    assert found == {
        "e03": ["test_e03_kept"],
        "e03b": ["test_e03b_resent[x]"],
        "soak": ["test_soak_of_kills"],
        "": ["test_enough", "test_e99_unheard_of"],
    }


def test_record_has_a_row_for_every_scenario_also_for_those_without_a_test() -> None:
    text = record.page([_seen("test_e01_x")])
    rows = dict(re.findall(r"^\| (\w+) \| .* \| ([\w* ]+) \| \d* \| [\d.]* \|$", text, re.MULTILINE))
    assert {name.lower() for name in rows} == set(record.SCENARIOS)
    assert rows["E01"] == "pass"
    assert rows["E02"] == "not tested"


def test_every_acceptance_test_that_is_named_after_a_scenario_names_one_of_the_table() -> None:
    names = {
        match
        for path in (ROOT / "tests" / "acceptance").rglob("test_*.py")
        for match in re.findall(r"def test_([ec]\d+[a-z]?)_", path.read_text(encoding="utf-8"))
    }
    assert names <= set(record.SCENARIOS)


def test_record_names_code_that_is_there() -> None:
    assert set(record.CODE) <= set(record.SCENARIOS)
    assert [file for files in record.CODE.values() for file in files if not (ROOT / file).is_file()] == []
