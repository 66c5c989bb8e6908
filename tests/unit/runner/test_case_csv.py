"""A table of cases as spreadsheets and data frames write it: every odd shape is read as meant, or named by its line."""

from __future__ import annotations

import csv
import io
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.ledger.errors import CaseFileInvalid
from tallystick.runner import case_csv
from tallystick.runner.case_files import survey
from tallystick.runner.protocols import MISSING, Case
from tallystick.runner.work_order_cases import cases

CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12)


def read(folder: Path, content: str | bytes, *, name: str = "q.csv", **options: Any) -> list[Case]:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(cases(path, **options))


def told(folder: Path, content: str | bytes, **options: Any) -> str:
    with pytest.raises(CaseFileInvalid) as caught:
        read(folder, content, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return str(caught.value).replace(f"{folder}/", "")


def test_a_header_says_what_the_columns_are_and_the_rest_is_metadata(tmp_path: Path) -> None:
    found = read(tmp_path, "id,lang,input,expected,level\n1,de,Hallo,x,2\n2,en,Hi,,\n")
    assert found == [Case("1", "Hallo", "x", {"lang": "de", "level": "2"}), Case("2", "Hi", MISSING, {"lang": "en"})]


def test_columns_are_mapped_and_several_make_an_object(tmp_path: Path) -> None:
    columns = {"id": "nr", "input": ["q", "hint"], "expected": ["a", "b"], "metadata": ["lang"]}
    found = read(tmp_path, "nr,q,hint,a,b,lang,other\n1,x,,y,,de,z\n2,x,h,,,,\n", columns=columns)
    assert found == [
        Case("1", {"q": "x", "hint": ""}, {"a": "y", "b": ""}, {"lang": "de"}),
        Case("2", {"q": "x", "hint": "h"}, MISSING, {}),
    ]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_quotes_hold_delimiters_quotes_and_line_ends(tmp_path: Path, newline: str) -> None:
    content = newline.join(["id,input", '"a, b","say ""x""', 'and\ny"', "", 'c," d "']) + newline
    found = read(tmp_path, content)
    assert [(case.id, case.input) for case in found] == [("a, b", f'say "x"{newline}and\ny'), ("c", " d ")]


@pytest.mark.parametrize(("name", "sign", "options"), [("q.tsv", "\t", {}), ("q.csv", ";", {"delimiter": ";"})])
def test_other_delimiters_are_told_by_suffix_or_said(
    tmp_path: Path, name: str, sign: str, options: dict[str, Any]
) -> None:
    assert read(tmp_path, f"id{sign}input\n1{sign}a,b\n", name=name, **options) == [Case("1", "a,b")]


def test_the_mark_that_spreadsheets_put_before_utf_8_is_no_part_of_the_header(tmp_path: Path) -> None:
    assert read(tmp_path, b"\xef\xbb\xbfid,input\n1,\xc3\xa9\n") == [Case("1", "é")]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("id,input\n1,a\n\n2\n", "q.csv:4: 1 field, and the header has 2 columns. Leave an empty field"),
        ('id,input\n1,"a\nb"\n2,x,y\n', "q.csv:4: 3 fields, and the header has 2 columns. Quote a field"),
        ("id,input,input\n1,a,b\n", 'q.csv:1: the column "input" stands twice'),
        (",id,input\n0,1,a\n", "q.csv:1: column 1 has no name"),
        ("id,input,\n1,a,\n", "q.csv:1: column 3 has no name"),
        ("id,inputs\n1,a\n", 'q.csv:1: there is no column "input". Did you mean "inputs"?'),
        ("id;input\n1;a\n", 'q.csv:1: the header is one column, and ";" stands in it'),
        ("id\tinput\n1\ta\n", 'q.csv:1: the header is one column, and "\\t" stands in it'),
        ('id,input\n1,a\n2,"open\n3,b\n', "q.csv:3: a quote in the row that begins here is never closed"),
        ('id,input\n1,"a"b\n', "q.csv:2: text follows a closing quote"),
        ("id,input\r1,a\r2,b\r", "q.csv:1: a carriage return stands outside of quotes"),
        (b"id,input\n1,a\n2,\xe9\n", "q.csv:3: not UTF-8 (byte 3 of the line)"),
        ("id,input\n1,a\n".encode("utf-16"), "q.csv:1: is UTF-16. Save it as CSV UTF-8"),
        ("id,input\n1,a\n1,b\n", 'q.csv:3: the id "1" stands in line 2 already'),
        ("id,input\n,b\n", "q.csv:2: the id is empty"),
        ("", "q.csv: there are no cases in it"),
        ("id,input\n\n", "q.csv: there are no cases in it"),
    ],
)
def test_a_bad_table_is_told_by_its_line(tmp_path: Path, content: str | bytes, fault: str) -> None:
    assert told(tmp_path, content).startswith(fault)


def test_a_field_may_be_larger_than_the_usual_limit_and_that_limit_stays(tmp_path: Path) -> None:
    csv.field_size_limit(131_072)
    (case,) = read(tmp_path, f"id,input\n1,{'x' * 400_000}\n")
    assert len(str(case.input)) == 400_000
    assert csv.field_size_limit() == 131_072


def test_a_row_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(case_csv, "ROW_BYTES_MAX", 10_000)
    (tmp_path / "q.csv").write_text('id,input\n1,"' + "x\n" * 2_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(CaseFileInvalid, match=r"q\.csv:2: the row that begins here is longer than 10000 bytes"):
            survey(cases(tmp_path / "q.csv"))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "options", "fault"),
    [
        ("q.jsonl", {"columns": {"id": "x"}}, "JSON lines have no columns"),
        ("q.jsonl", {"delimiter": ";"}, "nothing but CSV has a delimiter"),
    ],
)
def test_what_a_form_has_not_is_refused(name: str, options: dict[str, Any], fault: str) -> None:
    with pytest.raises(CaseFileInvalid, match=fault):
        cases(name, **options)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=8))
def test_what_is_written_by_the_standard_writer_is_read_back(
    tmp_path_factory: Any, rows: list[tuple[str, str]]
) -> None:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([("id", "input", "m"), *((n, *row) for n, row in enumerate(rows))])
    found = read(tmp_path_factory.mktemp("csv"), file.getvalue())
    assert [(case.input, case.metadata.get("m", "")) for case in found] == rows
