"""``report``, ``compare`` and ``gate`` on the command line and in Python."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import tallystick as ts
from tests.unit.cli.project import ROOT, Project

GATED = """
version = 1
name = "gated"

[cases]
file = "cases.jsonl"

[variants.old.target]
kind = "python"
file = "target.py"
function = "answer"

[variants.new.target]
kind = "python"
file = "target.py"
function = "newer"

[[judges]]
kind = "exact"

[gates]
{gates}
"""


def gated(project: Project, gates: str = "min_score = 0.8") -> Path:
    """A run of two variants of eight cases, of which the new one is wrong in the last two."""
    project.write("cases.jsonl", *(
        {"id": f"c{n}", "input": n, "expected": n, "metadata": {"half": "a" if n < 4 else "b"}} for n in range(8)
    ))  # fmt: skip
    project.write("target.py", "def answer(case):\n    return case.input\n\n\ndef newer(case):\n"
                               "    return -1 if case.input > 5 else case.input\n")  # fmt: skip
    return project.write("gated.toml", GATED.format(gates=gates))


def test_a_report_is_pinned_and_can_be_asked_for_again(project: Project) -> None:
    project.give("run", "order.toml", "--limit", 1)
    then = project.give("report", "asked", "--json")
    event = then.document["event"]
    project.give("resume")
    assert project.give("report", "asked", "--json").document["population"]["selected"] == 3
    assert project.give("report", "asked", "--json", "--at", event) == then
    assert f"--at {event}" in project.give("report", "asked", "--at", event).out
    wrong = project.give("report", "asked", "--at", 9999)
    assert (wrong.status, wrong.err.count("\n")) == (2, 1)


def test_a_report_goes_into_a_file_in_the_form_of_its_name(project: Project) -> None:
    project.give("run", "order.toml")
    for name, beginning in (("r.json", "{"), ("r.md", "# asked"), ("r.csv", "case,"), ("r.xml", "<?xml")):
        done = project.give("report", "asked", "-o", project.folder / name)
        assert (done.status, done.out) == (0, "")
        assert (project.folder / name).read_text().startswith(beginning)
        assert f"wrote {project.folder / name}" in done.err
    project.give("report", "asked", "--format", "terminal", "-o", project.folder / "r.txt")
    assert (project.folder / "r.txt").read_text() == project.give("report", "asked").out
    assert project.give("report", "asked", "--format", "csv", "-o", "-").out.startswith("case,")
    refused = project.give("report", "asked", "-o", project.folder / "r.doc")
    assert (refused.status, "--format" in refused.err) == (2, True)


def test_a_report_of_a_slice_says_so(project: Project) -> None:
    gated(project)
    project.give("run", "gated.toml")
    out = project.give("report", "gated", "--slice", "half=a", "--by", "half").out
    assert "half = a: 8 of 16 planned" in out
    assert "by half" in out
    assert project.give("report", "gated", "--slice", "half").status == 2


def test_a_killed_run_is_reported_with_its_log_unread(project: Project) -> None:
    project.killed_in_flight()
    assert Path(f"{project.ledger_path}-wal").stat().st_size > 0
    before = {name: data for name, data in project.bytes_of_ledger().items() if not name.endswith("-wal")}
    first = project.give("report", "asked", "--json")
    assert first.document["population"]["in_flight"] == 1
    assert project.give("report", "asked", "--json") == first
    after = {name: data for name, data in project.bytes_of_ledger().items() if not name.endswith("-wal")}
    assert after.keys() == before.keys()
    project.give("resume")
    assert project.give("report", "asked", "--json", "--at", first.document["event"]) == first
    (died, _) = project.give("report", "asked", "--json").document["sessions"]
    assert died["died"] is True


def test_two_variants_are_compared(project: Project) -> None:
    gated(project)
    assert project.give("run", "gated.toml").status == 0
    found = project.give("compare", "gated", "--json", "--by", "half").document
    line = next(one for one in found["lines"] if one["metric"] == "passed")
    assert (line["pairs"], line["lost"], line["gained"], line["verdict"]) == (8, 2, 0, "tied")
    assert [one["group"] for one in found["groups"] if one["metric"] == "passed"] == ["a", "b"]
    shown = project.give("compare", "gated").out
    assert "exact passed" in shown
    assert "tied; no difference was found" in shown
    assert project.give("compare", "gated:new", "gated:old", "--format", "md").out.startswith(
        "# gated:new and gated:old"
    )
    for command in (("gated:old",), ("nobody",), ("gated", "gated"), ("gated", "--min-coverage", "2")):
        refused = project.give("compare", *command)
        assert (refused.status, refused.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("gates", "status", "word"),
    [
        ("min_score = 0.7", 0, "PASSED"),
        ("min_score = { exact = 0.8 }", 1, "FAILED"),
        ("max_regression = 0.3", 0, "PASSED"),
        ("max_regression = 0.2", 1, "FAILED"),
        ('min_score = 0.7\ndecide_by = "interval"', 3, "INCONCLUSIVE"),
    ],
)
def test_a_gate_ends_with_its_verdict_and_says_why(project: Project, gates: str, status: int, word: str) -> None:
    gated(project, gates)
    project.give("run", "gated.toml")
    done = project.give("gate", "gated")
    assert done.status == status
    lines = [line for line in done.out.splitlines() if line.startswith(word) and "coverage" not in line]
    assert lines
    assert "· new · exact:" in lines[-1]
    document = project.give("gate", "gated", "--json").document
    assert (document["exit_status"], document["lines"][-1]["verdict"]) == (status, word.lower())


def test_changed_gates_are_those_of_the_next_look_and_change_no_run(project: Project) -> None:
    gated(project, "min_score = 0.8")
    project.give("run", "gated.toml")
    assert project.give("gate", "gated").status == 1
    gated(project, "min_score = 0.7")
    assert project.give("gate", "gated", "--order", project.folder / "gated.toml").status == 0
    assert project.give("gate", "gated").status == 1
    again = project.give("run", "gated.toml", "--json")
    assert (again.status, again.document["session"]["dispatches"]) == (0, 0)
    assert project.give("gate", "gated").status == 0


def test_a_run_without_gates_says_how_to_get_some(project: Project) -> None:
    project.give("run", "order.toml")
    done = project.give("gate", "asked")
    assert (done.status, "--order" in done.err) == (2, True)
    done = project.give("gate", "asked", "--order", "order.toml")
    assert (done.status, "[gates]" in done.err) == (2, True)


def test_unavailable_is_not_a_pass(project: Project) -> None:
    project.order(budgets="dispatches = 2")
    project.write("order.toml", (project.folder / "order.toml").read_text() + "\n[gates]\nmin_score = 0.5\n")
    project.give("run", "order.toml")
    done = project.give("gate", "asked")
    assert (done.status, "2 of 3" in done.out) == (3, True)


def test_python_reports_compares_and_decides(project: Project) -> None:
    gated(project)
    project.give("run", "gated.toml")
    with ts.open(project.ledger_path) as ledger:
        report = ledger.report("gated", slices={"half": "a"})
        assert (report.population.planned, report.scores[0].rate) == (8, 1.0)
        assert ledger.compare("gated").lines[0].pairs == 8
        assert ledger.gate("gated").verdict == "failed"
        assert ledger.gate("gated", ts.load_work_order(gated(project, "min_score = 0.1"))).verdict == "passed"
        ledger.write_report("gated", project.folder / "r.csv", at=report.event)
    assert (project.folder / "r.csv").read_text().count("\n") == 17


def test_python_gets_a_data_frame(project: Project) -> None:
    pd = pytest.importorskip("pandas")
    gated(project)
    project.give("run", "gated.toml")
    with ts.open(project.ledger_path) as ledger:
        frame = ledger.to_pandas("gated")
        empty = ledger.to_pandas("gated", slices={"half": "z"})
    assert frame.shape[0] == 16
    assert frame.groupby("variant")["judge.exact.passed"].mean().to_dict() == {"new": 0.75, "old": 1.0}
    assert str(frame["began_at"].dtype).startswith("datetime64")
    assert pd.isna(frame.loc[0, "cost_usd"])
    assert frame.loc[0, "metadata.half"] == "a"
    assert set(frame.columns) - set(empty.columns) == {"metadata.half"}
    assert empty.shape[0] == 0


def test_without_pandas_it_says_what_to_install(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.give("run", "order.toml")
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with ts.open(project.ledger_path) as ledger, pytest.raises(ts.UsageError, match=r"tallystick\[pandas\]"):
        ledger.to_pandas("asked")


def blocks(page: str) -> list[str]:
    text = (ROOT / "docs/how-to" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def defined(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "shown"}
    exec(block, names)
    return names


def test_what_the_how_tos_of_reports_show_works(project: Project) -> None:
    gated(project, "min_score = 0.5")
    project.give("run", "gated.toml")
    (compared,) = blocks("compare-two-runs.md")
    assert defined(compared)["verdicts"](project.ledger_path, "gated:old", "gated:new")["exact"] == "tied"
    (decided,) = blocks("gate-a-build.md")
    assert defined(decided)["may_ship"](project.ledger_path, "gated") is True


def test_json_of_every_command_is_one_document(project: Project) -> None:
    gated(project)
    project.give("run", "gated.toml")
    for command in (("report", "gated"), ("compare", "gated"), ("gate", "gated")):
        assert json.loads(project.give(*command, "--json").out)["format"].startswith("tallystick.")
