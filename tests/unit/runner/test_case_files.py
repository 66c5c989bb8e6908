"""Cases come one by one, each with its own digest, and every fault names its line before anything is created."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.ledger.canonical import canonical_text, digest_of_value, escaped_text
from tallystick.ledger.errors import CaseFileInvalid
from tallystick.ledger.stored_digests import digest_of_case, digest_of_cases
from tallystick.runner import case_files
from tallystick.runner.case_checks import ID_CHARACTERS_MAX
from tallystick.runner.case_files import (
    CaseFile,
    CasesDigest,
    CasesInLedger,
    case_digest,
    load_cases,
    survey,
)
from tallystick.runner.protocols import MISSING, Case, Missing
from tallystick.runner.work_order_cases import cases

TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


def written(folder: Path, *lines: str | bytes, name: str = "q.jsonl") -> CaseFile:
    path = folder / name
    path.write_bytes(b"\n".join(line.encode() if isinstance(line, str) else line for line in lines))
    return load_cases(name, folder=folder)


def fault_of(source: Any) -> CaseFileInvalid:
    with pytest.raises(CaseFileInvalid) as caught:
        survey(source)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return caught.value


def test_a_case_has_what_its_line_says(tmp_path: Path) -> None:
    source = written(tmp_path, '{"id": "a", "input": {"text": "hi"}, "expected": ["x"], "metadata": {"k": 1}}')
    assert list(source) == [Case("a", {"text": "hi"}, ["x"], {"k": 1})]


def test_null_is_an_expected_value_and_a_missing_one_is_missing(tmp_path: Path) -> None:
    has_null, has_none = written(tmp_path, '{"id": "a", "input": null, "expected": null}', '{"id": "b", "input": 0}')
    assert has_null.input is None
    assert has_null.expected is None
    assert has_none.expected is MISSING
    assert has_none.metadata == {}


@pytest.mark.parametrize("text", ["false", "0", '""', "[]", "{}", "null", "0.0", "-0.0", '"0"'])
def test_values_that_python_holds_for_nothing_are_kept_apart(tmp_path: Path, text: str) -> None:
    (case,) = written(tmp_path, f'{{"id": "a", "input": {text}, "expected": {text}}}')
    assert canonical_text(case.input) == text
    assert canonical_text(case.expected) == text  # type: ignore[arg-type]  # it is not MISSING, or this fails


@pytest.mark.parametrize("text", ["{# x }", "{{user}}", "{% raw", "%s", "${HOME}", "$(id)", "`id`", "\\N{DASH}"])
def test_template_syntax_in_a_case_is_text(tmp_path: Path, text: str) -> None:
    (case,) = written(tmp_path, f'{{"id": {canonical_text(text)}, "input": {canonical_text(text)}}}')
    assert (case.id, case.input) == (text, text)


def test_a_lone_surrogate_stays_in_id_and_value_and_digest(tmp_path: Path) -> None:
    line = r'{"id": "\ud800", "input": "x\udfff", "expected": "\ud83d\ude00"}'
    (case,) = written(tmp_path, line)
    assert (case.id, case.input, case.expected) == ("\ud800", "x\udfff", "😀")
    assert case_digest(case) == digest_of_value({"id": "\ud800", "input": "x\udfff", "expected": "😀", "metadata": {}})


def test_an_integer_keeps_all_of_its_digits(tmp_path: Path) -> None:
    (case,) = written(tmp_path, f'{{"id": "a", "input": {10**3000 + 1}}}')
    assert case.input == 10**3000 + 1


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n \t\r\n"])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\n\n", b"\n  \r\n"])
def test_line_ends_and_blank_lines_do_not_count(tmp_path: Path, newline: bytes, end: bytes) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(newline.join([b'{"id": "a", "input": 1}', b' {"id": "b", "input": 2} ']) + end)
    assert [case.id for case in cases(path)] == ["a", "b"]


def test_a_line_separator_inside_a_text_ends_no_line(tmp_path: Path) -> None:
    assert [case.input for case in written(tmp_path, '{"id": "a", "input": "x\u2028y\u0085z"}')] == ["x\u2028y\u0085z"]


def test_a_number_is_an_id_as_text(tmp_path: Path) -> None:
    assert [case.id for case in written(tmp_path, '{"id": 1, "input": 1}', '{"id": -20, "input": 1}')] == ["1", "-20"]


GOOD = '{"id": "good", "input": 1}'


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"id": "", "input": 1}', "the id is empty"),
        ('{"id": " \\u00a0", "input": 1}', "the id is empty"),
        ('{"id": null, "input": 1}', "an id is text or a whole number, not null"),
        ('{"id": true, "input": 1}', "an id is text or a whole number, not true or false"),
        ('{"id": 1.0, "input": 1}', "an id is text or a whole number, not the number 1.0"),
        ('{"id": ["a"], "input": 1}', "an id is text or a whole number, not a list"),
        ('{"id": "' + "x" * (ID_CHARACTERS_MAX + 1) + '", "input": 1}', "the id is longer than"),
        ('{"id": 1' + "0" * ID_CHARACTERS_MAX + ', "input": 1}', "the id is longer than"),
        ('{"input": 1}', '"id" is missing'),
        ('{"id": "a"}', '"input" is missing'),
        ('{"id": "a", "input": 1, "expect": 2}', 'there is no key "expect". Did you mean "expected"?'),
        ('{"id": "a", "input": 1, "metadata": []}', '"metadata" is an object, not a list'),
        ('{"id": "a", "input": 1, "metadata": null}', '"metadata" is an object, not null'),
        ('{"id": "a", "id": "b", "input": 1}', "the object key 'id' stands twice"),
        ('{"id": "a", "input": NaN}', "NaN is not JSON"),
        ('{"id": "a", "input": [-Infinity]}', "-Infinity is not JSON"),
        ('{"id": "a", "input": 1e999}', "1e999 is beyond the range of a float"),
        ('{"id": "a", "input": ' + "9" * 5000 + "}", "not JSON (Exceeds the limit (4300 digits)"),
        ('{"id": "a", "input": ' + "[" * 600 + "]" * 600 + "}", "nested too deeply"),
        ('{"id": "a", "input": ' + "[" * 100_000, "nested too deeply"),
        ('{"id": "a", "input": 1', "column 23: not JSON (expecting ',' delimiter)"),
        ('{"id": "a", "input": 1}{}', "column 24: not JSON (extra data)"),
        ('{"id": "a\tb", "input": 1}', "not JSON (invalid control character)"),
        ("[1, 2]", "a case is an object, not a list"),
        ('"a"', "a case is an object, not text"),
        ("null", "a case is an object, not null"),
        (b'{"id": "a", "input": "\xff"}', "not UTF-8 (byte 23 of the line)"),
        (b'{"id": "a", "input": "\xed\xa0\x80"}', "not UTF-8"),
        ("\ufeff" + GOOD, "not JSON"),
    ],
)
def test_a_bad_line_is_told_by_its_number_and_with_a_remedy(tmp_path: Path, line: str | bytes, told: str) -> None:
    fault = fault_of(written(tmp_path, GOOD, "", line, '{"id": "later", "input": 1}'))
    assert fault.line == 3
    assert fault.path == "q.jsonl"
    assert str(fault).startswith("q.jsonl:3: ")
    assert told in str(fault)


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ('"a"', '"a"', 'q.jsonl:4: the id "a" stands in line 2 already'),
        ("7", "7", 'q.jsonl:4: the id "7" stands in line 2 already'),
        ("1", '"1"', 'q.jsonl:4: the id "1" and the id 1 in line 2 would be one case'),
        ('"1"', "1", 'q.jsonl:4: the id 1 and the id "1" in line 2 would be one case'),
    ],
)
def test_an_id_that_stands_twice_is_told_with_both_lines(tmp_path: Path, first: str, second: str, told: str) -> None:
    source = written(tmp_path, "", f'{{"id": {first}, "input": 1}}', GOOD, f'{{"id": {second}, "input": 2}}')
    assert str(fault_of(source)).startswith(told)


def test_ids_that_differ_in_case_or_in_spaces_are_two(tmp_path: Path) -> None:
    source = cases([{"id": text, "input": 1} for text in ("a", "A", "a ", "é", "e\u0301")])
    assert survey(source).count == 5


@pytest.mark.parametrize("content", [b"", b"\n \r\n\n"])
def test_a_file_without_cases_is_refused(tmp_path: Path, content: bytes) -> None:
    assert str(fault_of(written(tmp_path, content))).startswith("q.jsonl: there are no cases in it")


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"])
def test_a_byte_order_mark_is_refused_with_the_remedy(tmp_path: Path, mark: bytes) -> None:
    told = "q.jsonl:1: begins with a byte order mark. Save it as UTF-8 without BOM"
    assert str(fault_of(written(tmp_path, mark + GOOD.encode()))) == told


def test_a_file_that_is_not_there_is_named_as_it_was_written(tmp_path: Path) -> None:
    fault = fault_of(load_cases("no/q.jsonl", folder=tmp_path))
    assert str(fault).startswith("no/q.jsonl: there is no such case file")
    assert str(tmp_path) not in str(fault)


def test_a_folder_is_no_case_file(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").mkdir()
    assert "this is a folder" in str(fault_of(load_cases("d.jsonl", folder=tmp_path)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    source = written(tmp_path, GOOD)
    source.path.chmod(0)
    assert "q.jsonl: the case file cannot be read" in str(fault_of(source))


def test_a_name_that_the_system_refuses_is_a_fault_of_one_line(tmp_path: Path) -> None:
    assert "cannot be read" in str(fault_of(load_cases("x" * 5000 + ".jsonl", folder=tmp_path)))


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(case_files, "LINE_BYTES_MAX", 10_000)
    source = written(tmp_path, GOOD, "x" * 20_000_000)
    tracemalloc.start()
    try:
        assert "q.jsonl:2: longer than 10000 bytes" in str(fault_of(source))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_line_may_be_as_long_as_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_files, "LINE_BYTES_MAX", len(GOOD) + 1)
    assert survey(written(tmp_path, GOOD, "")).count == 1


@pytest.mark.parametrize("name", ["q.xls", "q.txt", "q", "jsonl"])
def test_a_form_that_cannot_be_told_is_refused_when_the_file_is_named(name: str) -> None:
    with pytest.raises(CaseFileInvalid, match="the form of a case file cannot be told"):
        load_cases(name)


@pytest.mark.parametrize(("name", "form"), [("q.ndjson", None), ("Q.JSONL", None), ("q.txt", "jsonl")])
def test_a_form_is_told_by_the_suffix_or_said(tmp_path: Path, name: str, form: str | None) -> None:
    (tmp_path / name).write_text(GOOD)
    assert survey(load_cases(name, folder=tmp_path, format=form)).count == 1


def test_cases_come_while_the_file_is_read(tmp_path: Path) -> None:
    source = iter(written(tmp_path, GOOD, "not JSON"))
    assert next(source).id == "good"
    with pytest.raises(CaseFileInvalid, match=r"q\.jsonl:2"):
        next(source)


def test_only_the_ids_of_a_file_are_held_in_memory(tmp_path: Path) -> None:
    # 20 MB of cases; a loader that keeps them needs at least as much.
    source = written(tmp_path, *(f'{{"id": "c{number}", "input": "{"x" * 10_000}"}}' for number in range(2_000)))
    tracemalloc.start()
    try:
        assert survey(source).count == 2_000
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_cases_can_be_given_as_dicts_and_as_cases() -> None:
    given_rows: list[Any] = [{"id": 1, "input": {"a": [1]}, "expected": None}, Case("b", "x", metadata={"k": 1})]
    assert list(cases(given_rows)) == [Case("1", {"a": [1]}, None), Case("b", "x", MISSING, {"k": 1})]


def test_cases_from_a_generator_can_be_gone_through_again() -> None:
    def made() -> Iterator[Case]:
        yield Case("a", 1)
        yield Case("b", 2)

    source = cases(made())
    assert [case.id for case in source] == [case.id for case in source] == ["a", "b"]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"id": "a", "input": float("nan")}, 'case 2: case "a" cannot be kept'),
        ({"id": "a", "input": {1: 2}}, 'case 2: case "a" cannot be kept'),
        ({"id": "a", "input": b"x"}, 'case 2: case "a" cannot be kept'),
        ({"id": "good", "input": 1}, 'case 2: the id "good" stands in case 1 already'),
        (Case("", 1), "case 2: the id is empty"),
        (Case(None, 1), "case 2: an id is text or a whole number, not null"),  # type: ignore[arg-type]
        (Case("a", 1, metadata=None), 'case 2: "metadata" is an object, not null'),  # type: ignore[arg-type]
        ("a", "case 2: a case is an object, not text"),
        ({"id": "a", "input": 1, 5: 1}, "case 2: there is no key"),
    ],
)
def test_a_bad_case_from_python_is_told_by_its_number(row: Any, told: str) -> None:
    assert told in str(fault_of(cases([Case("good", 1), row])))


def test_no_cases_from_python_are_refused() -> None:
    assert "there are no cases" in str(fault_of(cases([])))


def test_cases_that_a_ledger_has_cannot_be_read_from_the_work_order() -> None:
    assert "were given from Python" in str(fault_of(CasesInLedger()))


def test_a_digest_is_of_what_the_case_is() -> None:
    case = Case("a", {"x": 1}, None, {"k": 2})
    assert case_digest(case) == digest_of_value({"id": "a", "input": {"x": 1}, "expected": None, "metadata": {"k": 2}})


@given(
    st.lists(st.tuples(TEXT, VALUES, VALUES | st.just(MISSING), st.dictionaries(TEXT, VALUES, max_size=2)), max_size=2)
)
def test_the_digests_of_cases_are_those_of_the_texts_that_the_ledger_keeps(rows: list[tuple[Any, ...]]) -> None:
    found, all_of_them = [], CasesDigest()
    for case in (Case(*row) for row in rows):
        expected = None if isinstance(case.expected, Missing) else canonical_text(case.expected)
        texts = canonical_text(case.input), expected, canonical_text(case.metadata)
        found.append(digest_of_case(escaped_text(case.id), *texts))
        assert found[-1] == case_digest(case)
        all_of_them.add(found[-1])
    assert digest_of_cases(found) == all_of_them.value()


def test_a_digest_changes_with_each_part_of_a_case() -> None:
    base = Case("a", 1, 2, {"k": 3})
    others = [Case("b", 1, 2, {"k": 3}), Case("a", 1.0, 2, {"k": 3}), Case("a", 1, True, {"k": 3}),
              Case("a", 1, MISSING, {"k": 3}), Case("a", 1, None, {"k": 3}), Case("a", 1, 2, {})]  # fmt: skip
    assert len({case_digest(case) for case in [base, *others]}) == 7


def test_the_digest_of_all_changes_with_any_case_and_with_their_number() -> None:
    rows = [Case("a", 1), Case("b", 2)]
    values = {survey(cases(some)).value() for some in (rows, rows[:1], [Case("a", 1), Case("b", 3)], rows[::-1])}
    assert len(values) == 4
    assert survey(cases(rows)).value() == survey(cases(list(rows))).value()


def test_the_digest_of_a_case_comes_with_it() -> None:
    rows = [Case("a", 1), Case("b", 2, expected="x")]
    assert list(cases(rows).digested()) == [(case, case_digest(case)) for case in rows]


def test_a_file_that_changes_between_two_passes_shows_in_the_digest(tmp_path: Path) -> None:
    source = written(tmp_path, GOOD)
    before = survey(source).value()
    written(tmp_path, GOOD, '{"id": "new", "input": 1}')
    assert survey(source).value() != before


@given(
    st.lists(
        st.tuples(TEXT.filter(str.strip), VALUES, VALUES), min_size=1, unique_by=lambda row: canonical_text(row[0])
    )
)
def test_what_is_written_as_canonical_json_is_read_back(tmp_path_factory: Any, rows: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("cases")
    lines = [canonical_text({"id": name, "input": value, "expected": wanted}) for name, value, wanted in rows]
    found = list(written(folder, *lines))
    assert [canonical_text({"id": c.id, "input": c.input, "expected": c.expected}) for c in found] == lines  # type: ignore[dict-item]
