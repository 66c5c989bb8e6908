"""The execution table, its defaults, and which of them were said."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.runner.work_order_execution import ExecutionOptions, ExecutionSpec, execution_table, read_execution
from tallystick.runner.work_order_files import Place
from tallystick.runner.work_order_models import BackoffTable, ExecutionTable


def read(raw: Any) -> ExecutionSpec:
    return read_execution(raw, place=Place("o", ("execution",)))


def test_an_empty_table_has_the_defaults_and_says_so() -> None:
    spec = read({})
    assert spec == ExecutionSpec()
    assert spec.defaulted == {field.name for field in attrs.fields(ExecutionSpec)} - {"defaulted"}


def test_what_was_said_is_not_defaulted_even_where_it_is_the_default() -> None:
    spec = read({"concurrency": 8, "backoff": {"max_seconds": 60}})
    assert spec == ExecutionSpec()
    assert ExecutionSpec().defaulted == frozenset()
    assert read({}).defaulted - spec.defaulted == {"concurrency", "backoff_max_seconds"}


def test_a_table_comes_back_as_it_was() -> None:
    spec = read(
        {
            "concurrency": 2,
            "deadline_seconds": 1.5,
            "attempts_max": 4,
            "dispatches_max": 5,
            "retry": ["http", "exit.1"],
            "solitary_deaths_max": 6,
            "backoff": {"first_seconds": 0.5, "max_seconds": 7},
            "rate_per_second": 0.1,
            "grace_seconds": 0,
        }
    )
    assert spec.defaulted == frozenset()
    assert read(execution_table(spec)) == spec


def test_a_whole_number_of_seconds_is_the_same_as_a_float() -> None:
    assert repr(read({"deadline_seconds": 30}).deadline_seconds) == "30.0"


def test_python_gives_reasons_in_a_tuple() -> None:
    assert read({"retry": ("http",)}).retry == ("http",)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ({"concurrency": 0}, "o: execution.concurrency: 0 is too small. Write 1 or more"),
        ({"concurrency": 10**6}, "o: execution.concurrency: 1000000 is too large. Write 100000 or less"),
        ({"attempts_max": 0}, "o: execution.attempts_max: 0 is too small"),
        ({"dispatches_max": None}, "o: execution.dispatches_max: null is no whole number"),
        ({"deadline_seconds": True}, "o: execution.deadline_seconds: true is no number"),
        ({"deadline_seconds": "30"}, 'o: execution.deadline_seconds: "30" is no number'),
        ({"grace_seconds": -1}, "o: execution.grace_seconds: -1 is too small. Write 0 or more"),
        ({"rate_per_second": 0}, "o: execution.rate_per_second: 0 is too small. Write more than 0"),
        ({"retry": [""]}, 'o: execution.retry[0]: "" is empty'),
        ({"backoff": 3}, "o: execution.backoff: 3 is no table"),
        ({"backoff": {"max": 3}}, "o: execution.backoff.max: there is no such key"),
        ({"backoff": {"max_seconds": 0.5}}, "o: execution.backoff: first_seconds is above max_seconds"),
        (3, "o: execution: a table of keys is wanted here"),
    ],
)
def test_a_wrong_table_is_told(raw: Any, told: str) -> None:
    with pytest.raises(WorkOrderInvalid) as caught:
        read(raw)
    assert str(caught.value).startswith(told)


def test_the_keys_and_defaults_are_the_same_in_all_four_places() -> None:
    waits = {f"backoff_{name}": field.default for name, field in BackoffTable.model_fields.items()}
    tables = {name: field.default for name, field in ExecutionTable.model_fields.items() if name != "backoff"} | waits
    spec = attrs.asdict(ExecutionSpec(), filter=attrs.filters.exclude("defaulted"))
    assert spec == {**tables, "retry": ()}
    assert ExecutionOptions.__annotations__.keys() == ExecutionTable.model_fields.keys()
