"""What each form of a report says, and that no text of a stranger becomes anything else than a text in it."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from docs import generate_schemas
from tallystick.ledger.errors import EvaluationNotFound, UsageError
from tallystick.ledger.ledger import Ledger
from tallystick.renderers import html_report, page_data
from tallystick.renderers.files import ReportForm, form_of, write_whole
from tallystick.renderers.markup import element, join
from tallystick.renderers.safe_text import csv_cell, markdown_text, plain, xml_text
from tallystick.runner.report_document import ReportDocument
from tallystick.runner.report_options import slice_term
from tests.unit.renderers.made_runs import (
    HOSTILE,
    Asked,
    answer,
    document,
    judge,
    made_run,
    rendered,
    troubled_run,
)

FORMULAS = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
SCHEMA = json.loads((Path(generate_schemas.DOCS) / "report.schema.json").read_text(encoding="utf-8"))


UNSAFE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_schemas_are_up_to_date() -> None:
    for name, text in generate_schemas.render().items():
        assert (generate_schemas.DOCS / name).read_text(encoding="utf-8") == text, "run `make docs`"


@pytest.mark.parametrize("hostile", ["", HOSTILE])
def test_json_is_as_its_published_schema_says(ledger: Ledger, hostile: str) -> None:
    run = troubled_run(ledger, hostile=hostile)
    found = document(ledger, run.run_id, by="language", terms=(slice_term("tags=a"),))
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(found, SCHEMA)
    assert set(found) == set(ReportDocument.model_fields)


def test_a_wrong_document_does_not_fit_the_schema(ledger: Ledger) -> None:
    found = document(ledger, troubled_run(ledger).run_id)
    changes: list[dict[str, Any]] = [{"event": "3"}, {"population": {}}, {"unknown_key": 1}]
    for change in changes:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**found, **change}, SCHEMA)
    found["slots"][0]["surprise"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, SCHEMA)


def test_json_of_an_empty_slice_is_a_document(ledger: Ledger) -> None:
    found = document(ledger, troubled_run(ledger).run_id, terms=(slice_term("language=xx"),))
    assert found["slots"] == []
    assert found["population"]["planned"] == 0
    assert found["slice"] == {"terms": [{"key": "language", "value": "xx"}], "planned": 0, "of": 10, "without_key": 0}
    jsonschema.validate(found, SCHEMA)


def test_each_planned_observation_is_in_every_list_once(ledger: Ledger) -> None:
    run = troubled_run(ledger)
    slots = document(ledger, run.run_id)["slots"]
    rows = rows_of(rendered(ledger, run.run_id, "csv"))
    cases = ET.fromstring(rendered(ledger, run.run_id, "junit")).iter("testcase")
    planned = [(slot["variant"], slot["case"]) for slot in slots]
    assert len(set(planned)) == len(planned) == 10
    assert [(row["variant"], row["case"]) for row in rows] == planned
    assert sorted((one.get("classname"), one.get("name")) for one in cases) == sorted(planned)


def test_csv_has_what_is_known_of_each(ledger: Ledger) -> None:
    run = troubled_run(ledger)
    first, second, third, failed, unknown, silent, unavailable, pending, *_ = rows_of(
        rendered(ledger, run.run_id, "csv")
    )
    assert (first["judge.exact.passed"], first["judge.exact.score"], first["seconds"]) == ("true", "0.5", "0.25")
    assert (first["tokens_in"], first["tokens_out"], first["cost_usd"]) == ("3", "", "0.0015")
    assert (first["metadata.language"], first["metadata.tags"]) == ("de", '["a","1"]')
    assert (second["judge.exact.passed"], second["judge.exact.no_verdict"]) == ("false", "")
    assert (third["answer"], third["judge.exact.passed"], third["judge.exact.no_verdict"]) == (
        "-5", "", "malformed_verdict",
    )  # fmt: skip
    assert [one["state"] for one in (failed, unknown, unavailable, pending)] == [
        "failed", "unknown", "unavailable", "pending",
    ]  # fmt: skip
    assert (silent["answer"], silent["state"], silent["seconds"]) == ("", "selected", "")
    assert unknown["message"] == "no whole answer came"


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "  =1", "＝1+1", "－1", "＠x", "=cmd|' /C calc'!A0"],
)
def test_no_cell_of_a_spreadsheet_is_a_formula(ledger: Ledger, text: str) -> None:
    assert not str(csv_cell(text)).lstrip().startswith(FORMULAS)
    run = made_run(ledger, [Asked(text or "x", {text: text}, text)])
    answer(ledger, run.run_key, 1, text)
    judge(ledger, run.run_key, 1, False, explanation=text)
    (row,) = csv.reader(io.StringIO(rendered(ledger, run.run_id, "csv").split("\r\n", 1)[1]))
    assert [cell for cell in row if cell.lstrip().startswith(FORMULAS)] == []
    assert sum("1" in cell or "x" in cell or "calc" in cell for cell in row) >= 3


def test_numbers_in_a_spreadsheet_stay_numbers() -> None:
    assert [csv_cell(value) for value in (-5, 1.5, True, None, "text", [1, "=a"])] == [
        -5, 1.5, "true", "", "text", '[1,"=a"]',
    ]  # fmt: skip


def test_junit_tells_what_was_not_measured_from_what_failed(ledger: Ledger) -> None:
    run = troubled_run(ledger)
    root = ET.fromstring(rendered(ledger, run.run_id, "junit"))
    assert {name: root.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "10", "failures": "1", "errors": "8", "skipped": "0",
    }  # fmt: skip
    kinds = [(one.get("name"), child.tag, child.get("type")) for one in root.iter("testcase") for child in one]
    assert ("c1", "failure", "exact") in kinds
    assert ("c2", "error", "exact.malformed_verdict") in kinds
    assert ("c2", "error", "failed") in kinds
    assert ("c3", "error", "unknown") in kinds
    assert ("c3", "error", "exact.waiting") in kinds  # observed, and not judged yet
    assert ("c4", "error", "unavailable") in kinds
    assert ("c5", "error", "pending") in kinds
    passed = [one.get("classname") for one in root.iter("testcase") if not list(one)]
    assert passed == ["old"]


def test_junit_of_a_run_without_judges_passes_what_was_observed(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked("a"), Asked("b")], judges=())
    answer(ledger, run.run_key, 1)
    root = ET.fromstring(rendered(ledger, run.run_id, "junit"))
    assert (root.get("tests"), root.get("errors"), root.get("failures")) == ("2", "1", "0")


@pytest.mark.parametrize("form", [ReportForm.JUNIT, ReportForm.CSV, ReportForm.MARKDOWN, ReportForm.JSON])
def test_hostile_text_stays_text(ledger: Ledger, form: ReportForm) -> None:
    run = troubled_run(ledger, hostile=HOSTILE)
    text = rendered(ledger, run.run_id, form, by="tags")
    if form is not ReportForm.JSON:
        assert (
            re.findall(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]", text)
            == []
        )
        text.encode("utf-8")
    if form is ReportForm.JUNIT:
        names = [one.get("name") for one in ET.fromstring(text).iter("testcase")]
        assert all("<script>" in str(name) for name in names)
    if form is ReportForm.MARKDOWN:
        assert "<script" not in text
        assert "](http" not in text
        assert "@you" not in text
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if re.match(r"\| c\d", line)}
        assert len(columns) == 1


def test_markdown_has_the_population_first_and_every_section(ledger: Ledger) -> None:
    text = rendered(ledger, troubled_run(ledger).run_id, "md", by="language")
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    assert titles == ["made", "Scores", "By language", "What needs a look", "Durations", "No observation"]
    assert text.index("10 planned = 4 selected + 1 failed + 1 unknown + 1 unavailable + 3 pending") < text.index("##")
    assert "| exact | old | 1 of 1 | 100.0% | 20.7% – 100.0% | 0.5 |" in text


def test_texts_of_formats() -> None:
    assert plain("a\x1bb\ud800") == "a\\x1bb\ufffd"
    assert plain({"b": 1, "a": [None]}) == '{"a":[null],"b":1}'
    assert xml_text("]]>\x0b<&") == "]]&gt;\\x0b&lt;&amp;"
    assert markdown_text("a\nb | `c` <i>") == "a b \\| \\`c\\` &lt;i&gt;"
    assert len(markdown_text("x" * 1000)) == 300


@pytest.mark.parametrize(("name", "form"), [("a.json", "json"), ("b.MD", "md"), ("c.csv", "csv"), ("d.xml", "junit")])
def test_the_name_of_a_file_says_its_form(name: str, form: str) -> None:
    assert form_of(Path(name)) == form


def test_a_file_without_a_form_is_refused() -> None:
    with pytest.raises(UsageError, match="--format"):
        form_of(Path("report"))


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    def pieces() -> Any:
        yield "a"
        raise KeyError("broken off")

    with pytest.raises(KeyError):
        write_whole(tmp_path / "r.csv", pieces())
    assert list(tmp_path.iterdir()) == []
    write_whole(tmp_path / "r.csv", ["é\n", "b\r\n"])
    assert (tmp_path / "r.csv").read_bytes() == "é\nb\r\n".encode()
    with pytest.raises(UsageError, match="cannot be written"):
        write_whole(tmp_path / "no" / "r.csv", ["a"])


def test_an_event_or_evaluation_that_is_not_there_is_refused(ledger: Ledger) -> None:
    run = troubled_run(ledger)
    with pytest.raises(UsageError, match="no event 999"):
        document(ledger, run.run_id, at=999)
    with pytest.raises(EvaluationNotFound):
        document(ledger, run.run_id, evaluation="7")


@pytest.mark.parametrize("text", ["", "language", "=x"])
def test_a_slice_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="KEY=VALUE"):
        slice_term(text)


def test_the_page_needs_nothing_from_elsewhere_and_holds_hostile_text_as_text(ledger: Ledger) -> None:
    text = rendered(ledger, troubled_run(ledger, hostile=f"{HOSTILE}</script><!--").run_id, "html", by="language")
    assert re.findall(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", text) == []
    assert "@import" not in text
    assert text.count("<script") == text.count("</script>") == 2
    assert "alert(1)" in text
    assert re.findall(r"<script>alert|onerror=|<!--", text) == []
    assert UNSAFE.findall(text) == []
    data = json.loads(text.split('id="data">', 1)[1].split("</script>", 1)[0])
    assert (len(data["rows"]), len(data["more"]), len(data["cases"])) == (10, 10, 5)


def test_without_matplotlib_the_page_has_no_charts_and_says_how_to_get_them(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = troubled_run(ledger)
    assert rendered(ledger, run.run_id, "html").count('class="chart"') >= 3
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    bare = rendered(ledger, run.run_id, "html")
    assert 'class="chart"' not in bare
    assert "tallystick[html]" in bare


def test_a_page_beyond_its_bounds_says_what_is_left_out(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    run = troubled_run(ledger)
    for module in (page_data, html_report):
        monkeypatch.setattr(module, "ROWS_MAX", 6)
        monkeypatch.setattr(module, "DETAILS_MAX", 4)
    text = rendered(ledger, run.run_id, "html")
    data = json.loads(text.split('id="data">', 1)[1].split("</script>", 1)[0])
    assert (len(data["rows"]), len(data["more"]), data["head"]["planned"]) == (6, 4, 10)
    assert "The list ends after 6 of 10" in text
    assert "Only the first 4 unfold" in text


def test_a_long_text_is_cut_in_the_page_and_says_so(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked("a", input="x" * 20_000)])
    answer(ledger, run.run_key, 1, ["y" * 9_000])
    text = rendered(ledger, run.run_id, "html")
    assert "x" * 4_001 not in text
    assert "y" * 4_001 not in text
    assert text.count("has all)") == 2


def test_attributes_and_children_of_markup_are_escaped() -> None:
    made = element("a", "<b>", join(["&", element("i", "x")]), href='"><script>', class_="c", hidden=True, title=None)
    assert made == '<a href="&quot;&gt;&lt;script&gt;" class="c" hidden>&lt;b&gt;&amp;<i>x</i></a>'
