"""Parquet: JSON's values as they are, dates and decimals as text, and everything else refused by its column."""

from __future__ import annotations

import datetime as dt
import decimal
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tallystick.ledger.errors import CaseFileInvalid
from tallystick.runner import case_parquet
from tallystick.runner.protocols import MISSING, Case
from tallystick.runner.work_order_cases import cases

ONE = {"id": [1], "input": ["a"]}


def write(folder: Path, columns: dict[str, Any] | Any, **options: Any) -> Path:
    path = folder / "q.parquet"
    parquet.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path, **options)
    return path


def told(path: Path, **options: Any) -> str:
    with pytest.raises(CaseFileInvalid) as caught:
        list(cases(path, **options))
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return str(caught.value).replace(f"{path.parent}/", "")


def test_values_of_json_are_what_they_are(tmp_path: Path) -> None:
    path = write(tmp_path, {
        "id": ["a", "b"], "input": [{"q": "x", "tags": ["1", None]}, {"q": None, "tags": []}], "expected": [0.5, None],
        "level": [1, None], "hard": [False, True], "lang": pa.array(["de", "en"]).dictionary_encode(),
        "scores": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
    })  # fmt: skip
    assert list(cases(path)) == [
        Case("a", {"q": "x", "tags": ["1", None]}, 0.5, {"level": 1, "hard": False, "lang": "de", "scores": {"k": 1}}),
        Case("b", {"q": None, "tags": []}, MISSING, {"hard": True, "lang": "en"}),
    ]


def test_dates_times_and_decimals_are_text_with_all_their_digits(tmp_path: Path) -> None:
    path = write(tmp_path, {
        **ONE, "day": [dt.date(2026, 2, 28)], "time": [dt.time(1, 2, 3)], "price": [decimal.Decimal("1.10")],
        "at": pa.array([1], pa.timestamp("ns")), "utc": pa.array([0], pa.timestamp("us", "UTC")),
    })  # fmt: skip
    (case,) = cases(path)
    assert case.metadata == {
        "day": "2026-02-28", "time": "01:02:03.000000", "price": "1.10", "at": "1970-01-01T00:00:00.000000001",
        "utc": "1970-01-01T00:00:00.000000Z",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ([b"x"], "binary"),
        (pa.array([1], pa.duration("s")), "duration"),
        ([[dt.date(2026, 1, 1)]], "date32"),
        ([{"x": [decimal.Decimal("1.1")]}], "decimal128"),
        (pa.array([[(1, 1)]], pa.map_(pa.int64(), pa.int64())), "map"),
    ],
)
def test_types_that_json_has_not_are_refused_by_their_column_unless_it_is_not_used(
    tmp_path: Path, column: Any, kind: str
) -> None:
    path = write(tmp_path, {**ONE, "odd": column})
    assert told(path).startswith(f'q.parquet: column "odd" has values of type {kind}')
    assert list(cases(path, columns={"metadata": []})) == [Case("1", "a")]


def test_a_struct_named_metadata_is_the_metadata(tmp_path: Path) -> None:
    path = write(tmp_path, {"id": [1, 2], "input": ["a", "b"], "metadata": [{"lang": "de"}, None], "other": [1, 2]})
    assert [case.metadata for case in cases(path)] == [{"lang": "de"}, {}]


def test_rows_are_counted_over_batches_and_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_parquet, "_BATCH_ROWS", 2)
    path = write(tmp_path, {"id": [1, 2, 3, 4, 5, 3], "input": list("abcdef")}, row_group_size=3)
    assert told(path) == 'q.parquet: row 6: the id "3" stands in row 3 already. Give every case an id of its own'


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ({"id": [None], "input": [1]}, "q.parquet: row 1: an id is text or a whole number, not null"),
        ({"id": [1], "inputs": [1]}, 'q.parquet: there is no column "input". Did you mean "inputs"?'),
        ({"id": [1], "input": [float("nan")]}, 'q.parquet: row 1: case "1" cannot be kept'),
        ({"id": [], "input": []}, "q.parquet: there are no cases in it"),
        (
            pa.Table.from_arrays([pa.array([1]), pa.array([1]), pa.array([2])], names=["id", "input", "input"]),
            'q.parquet: the column "input" stands twice',
        ),
        (
            {**ONE, "m": pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64()))},
            'q.parquet: a map in column "m" has a key twice',
        ),
    ],
)
def test_a_bad_file_is_told_in_one_line(tmp_path: Path, columns: Any, fault: str) -> None:
    assert told(write(tmp_path, columns)).startswith(fault)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"id,input\n1,2\n", b"PAR1" + bytes(100) + b"PAR1"])
def test_what_is_no_parquet_is_told_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "q.parquet"
    path.write_bytes(content)
    assert told(path).startswith("q.parquet: not Parquet (")


def test_without_the_extra_its_name_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, ONE)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert told(path).startswith("q.parquet: Parquet is read by pyarrow, which is not installed")
    assert "tallystick[parquet]" in told(path)
