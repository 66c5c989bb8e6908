"""``judge`` and ``qualify`` from the command line."""

from __future__ import annotations

import json
import sys

import pytest

from tests.unit.cli.project import Project

EXACT = 'version = 1\nname = "strict"\n[[judges]]\nkind = "exact"\n'
ODD = """
version = 1
name = "odd"
[[judges]]
kind = "python"
name = "odd"
file = "judges.py"
function = "odd"
[[judges]]
kind = "exact"
"""


@pytest.fixture
def judged(project: Project) -> Project:
    """A project with a finished run and judge work orders."""
    assert project.give("run", "order.toml").status == 0
    (project.folder / "strict.toml").write_text(EXACT)
    (project.folder / "odd.toml").write_text(ODD)
    (project.folder / "judges.py").write_text("def odd(answer, context):\n    return True\n")
    return project


def test_judge_says_what_was_judged_and_calls_no_target(judged: Project) -> None:
    done = judged.give("judge", "asked", "strict.toml")
    assert done.status == 0
    assert judged.calls == 3
    assert "evaluation 2 (strict) of run" in done.out
    assert "complete: every observation of the set is judged" in done.out
    assert "no call by this command" in done.out
    assert done.err == ""


def test_judge_in_json_tells_the_whole_set(judged: Project) -> None:
    found = judged.give("judge", "asked", "odd.toml", "--json").document
    assert (found["format"], found["next"], found["exit_status"]) == ("tallystick.evaluation/1", "decide", 3)
    odd, exact = found["judges"]
    assert odd["planned"] == odd["waiting"] + odd["judged"] + sum(odd["no_verdict"].values()) == 3
    assert (odd["no_verdict"], odd["passed"], exact["passed"]) == ({"missing_context": 3}, 0, 3)
    assert found["agreements"] == [{
        "judges": ["odd", "exact"], "count": 0, "agreed": 0, "rate": None, "kappa": None, "kappa_low": None,
        "kappa_high": None,
    }]  # fmt: skip


def test_a_judge_that_only_scores_has_no_rate_and_agrees_with_none_that_passes(judged: Project) -> None:
    (judged.folder / "judges.py").write_text("def half(answer):\n    return 0.5\n")
    half = '[[judges]]\nkind = "python"\nname = "half"\nfile = "judges.py"\nfunction = "half"\nscale = [0, 1]\n'
    (judged.folder / "scores.toml").write_text(EXACT + half)
    done = judged.give("judge", "asked", "scores.toml")
    assert "exact and half" not in done.out
    (line,) = (line for line in done.out.splitlines() if line.strip().startswith("half"))
    assert line.split() == ["half", "0.5", "3", "of", "3"]
    found = judged.give("judge", "asked", "scores.toml", "--json").document
    assert [(one["passed"], one["rated"]) for one in found["judges"]] == [(3, 3), (0, 0)]
    assert found["agreements"][0]["count"] == 0


def test_a_runs_own_judge_that_only_scores_has_no_rate_and_a_mean_of_its_scores(project: Project) -> None:
    path = project.order()
    (project.folder / "judges.py").write_text("def some(answer):\n    return 0.5 if answer == 1 else True\n")
    some = '[[judges]]\nkind = "python"\nname = "some"\nfile = "judges.py"\nfunction = "some"\nscale = [0, 1]\n'
    path.write_text(path.read_text().replace('[[judges]]\nkind = "exact"\n', some))
    project.give("run", "order.toml")
    (score,) = project.give("status", "asked", "--json").document["scores"]
    assert (score["judged"], score["passed"], score["rated"], score["mean"]) == (3, 2, 2, 0.5)
    (line,) = (line for line in project.give("status", "asked").out.splitlines() if line.strip().startswith("some"))
    assert line.split()[2:8] == ["2", "of", "2", "100.0%", "0.5", "3"]


def test_why_there_is_no_verdict_is_told_by_an_example_of_each_reason(judged: Project) -> None:
    (judged.folder / "unfit.toml").write_text(EXACT.replace("exact", "similarity"))
    done = judged.give("judge", "asked", "unfit.toml")
    assert "similarity, answer_unfit: the answer is 1" in done.out


def test_what_has_no_verdict_is_named_with_what_helps(judged: Project) -> None:
    done = judged.give("judge", "asked", "odd.toml")
    assert done.status == 3
    assert "3 missing_context" in done.out
    assert "finished, 3 judgments without a verdict; `tallystick judge" in done.out
    assert "odd.toml --retry missing_context --ledger" in done.out
    again = judged.give("judge", "asked", "odd.toml", "--retry", "missing_context")
    assert again.status == 3
    nothing = judged.give("judge", "asked", "odd.toml", "--retry", "timeout")
    assert "nothing to retry: no judgment has the reason timeout" in nothing.err


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("judge", "asked", "nowhere.toml"), 2, "nowhere.toml"),
        (("judge", "nobody", "strict.toml"), 2, "usage.run_not_found: there is no run nobody"),
        (("judge", "asked", "order.toml"), 2, "a judge work order asks no target"),
        (("judge", "asked", "strict.toml", "--at", "100000"), 2, "has no event 100000"),
        (("judge", "asked", "strict.toml", "--retry", "bad"), 2, "there is no reason bad"),
        (("judge", "asked", "strict.toml", "--retry", "timeout"), 2, "there is nothing to retry"),
        (("judge", "asked", "strict.toml", "--reparse", "9"), 2, "the run has no evaluation 9"),
        (("qualify", "strict.toml", "nowhere.jsonl"), 2, "usage.case_file: nowhere.jsonl"),
        (("qualify", "nowhere.toml", "nowhere.jsonl"), 2, "nowhere.toml"),
    ],
    ids=str,
)
def test_bad_input_is_told_in_one_line_and_changes_nothing(
    judged: Project, arguments: tuple[str, ...], status: int, told: str
) -> None:
    with judged.opened() as ledger, ledger.reading() as reader:
        before = reader.row("SELECT count(*) FROM events")
    done = judged.give(*arguments)
    assert (done.status, done.err.count("\n")) == (status, 1)
    assert told in done.err
    with judged.opened() as ledger, ledger.reading() as reader:
        assert reader.row("SELECT count(*) FROM events") == before


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('version = 1\nname = "x"\n', "judges: this key is missing"),
        ('version = 1\nname = "x"\njudges = []\n', "judges: there is no judge"),
        (
            'version = 1\nname = "x"\n[[judges]]\nkind = "exactly"\n',
            'no judge is of kind "exactly". Did you mean "exact"',
        ),
        ('version = 1\nname = "x"\n[[judges]]\nkind = "exact"\nsamples = 0\n', "judges[0].samples"),
        ('version = 1\nname = "x"\n[[judges]]\nkind = "exact"\nrequire = {}\n', "nothing is required here"),
        ('version = 1\nname = "x"\n[[judges]]\nkind = "exact"\nrequire = {accurcy = 1}\n', 'Did you mean "accuracy"'),
        (EXACT + '[[judges]]\nkind = "exact"\n', "a second judge is named 'exact'"),
        (EXACT + "[budgets]\ndispatches = { limit = 1, per = 'role' }\n", "a budget here is for the whole evaluation"),
        (EXACT + "[execution]\nconcurrency = 0\n", "execution.concurrency"),
    ],
)
def test_a_judge_work_order_with_a_fault_is_refused_in_one_line(judged: Project, text: str, told: str) -> None:
    (judged.folder / "bad.toml").write_text(text)
    done = judged.give("judge", "asked", "bad.toml")
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert told in done.err


PROGRAM = """\
version = 1
name = "talks"

[[judges]]
kind = "process"
name = "talker"
samples = 2
argv = [PYTHON, "-c", "print(REPLY)"]
"""


def test_the_page_of_a_case_tells_evaluations_and_samples_apart_with_what_was_sent_and_replied(
    project: Project,
) -> None:
    project.order(budgets="dispatches = 100")
    assert project.give("run", "order.toml").status == 0
    for name, reply in (("well", "c:\\well"), ("passes", '{"passed": true}')):
        text = PROGRAM.replace("PYTHON", json.dumps(sys.executable)).replace("REPLY", json.dumps(repr(reply))[1:-1])
        (project.folder / f"{name}.toml").write_text(text)
        project.give("judge", "asked", f"{name}.toml")
    project.give("judge", "asked", "passes.toml", "--new")
    out = project.give("show", "asked", "c1").out
    first, second = (f"evaluation 2 · judge talker · sample {sample} of 2: malformed_verdict" for sample in (1, 2))
    assert out.index("judge exact: passed") < out.index(first) < out.index(second)
    assert out.count(r'reply: "c:\\well"') == 2, "as JSON writes it"
    assert "evaluation 3 · judge talker · sample 2 of 2: passed\n    call " in out
    assert "evaluation 4 · judge talker · sample 2 of 2: passed · used again\n" in out

    judgments = project.give("show", "asked", "c1", "--json").document["planned"][0]["judgments"]
    told = [(one["evaluation"], one["sample"], len(one["dispatches"]), one["reply"]) for one in judgments]
    assert told[:4] == [(1, 1, 0, None), (2, 1, 1, "c:\\well"), (2, 2, 1, "c:\\well"), (3, 1, 1, '{"passed": true}')]
    assert told[5][:3] == (4, 1, 0)
    assert judgments[5]["reused_from"].split("/")[1:] == ["1", "1", "1", "1"]


def test_an_unqualified_judge_is_said_to_be_so_and_qualify_makes_it_count(judged: Project) -> None:
    (judged.folder / "strict.toml").write_text(EXACT + "require = { accuracy = 0.9, labels = 2 }\n")
    done = judged.give("judge", "asked", "strict.toml")
    assert done.status == 3
    assert "the verdicts of exact do not count, it is unqualified: it has no qualification" in done.out

    rows = [{"id": "a", "input": 1, "answer": 1, "expected": 1, "label": "pass"},
            {"id": "b", "input": 1, "answer": 2, "expected": 1, "label": False}]  # fmt: skip
    (judged.folder / "labelled.jsonl").write_text("\n".join(map(json.dumps, rows)))
    qualified = judged.give("qualify", "strict.toml", "labelled.jsonl")
    assert qualified.status == 0
    assert "accuracy 0.9, labels 2: met" in qualified.out
    assert judged.give("judge", "asked", "strict.toml").status == 0
    found = judged.give("qualify", "strict.toml", "labelled.jsonl", "--json").document
    assert (found["format"], found["judges"][0]["accuracy"]) == ("tallystick.qualification/1", 1.0)


def test_figures_that_a_snapshot_brought_are_said_to_be_and_give_way_to_ones_own(judged: Project) -> None:
    strict = judged.folder / "strict.toml"
    strict.write_text(EXACT + "require = { accuracy = 0.9 }\n")
    row = {"id": "a", "input": 1, "answer": 1, "expected": 1}
    good, bad = (judged.write(f"{label}.jsonl", {**row, "label": label}) for label in ("pass", "fail"))
    assert judged.give("qualify", strict, good).status == 0
    own = judged.give("judge", "asked", strict)
    assert (own.status, "came with a snapshot" in own.out) == (0, False)
    file = judged.folder / "asked.zip"
    judged.give("export", "asked", "-o", file)

    judged.ledger_path = judged.folder / "another.db"
    order = judged.folder / "order.toml"
    order.write_text(order.read_text() + "[gates]\nmin_score = 0.1\ndecide_by = 'value'\n")
    judged.give("run", order, "--new")
    run = judged.give("runs", "--json").document["runs"][0]["run"]

    def told() -> tuple[bool, bool, list[str], str]:
        done = judged.give("judge", run, strict)
        report = judged.give("report", run, "--evaluation", "2", "--json").document
        why = judged.give("gate", run, "--evaluation", "2", "--json").document["lines"][-1]["why"]
        points = [point["what"] for point in report["open_points"]]
        return done.status == 0, "came with a snapshot: qualify it here" in done.out, points, why.partition("; ")[2]

    assert told()[:3] == (False, False, ["unqualified"])
    judged.give("import", file)
    assert told() == (True, True, ["qualified_elsewhere"], "the judge's qualification came with a snapshot")
    assert judged.give("qualify", strict, bad).status == 3
    assert told()[:3] == (False, False, ["unqualified"]), "what was measured here counts, though it is no better"
    assert judged.give("qualify", strict, good).status == 0
    assert told() == (True, False, [], "")


def test_hostile_text_of_a_judge_reaches_no_terminal(judged: Project) -> None:
    (judged.folder / "odd.toml").write_text(ODD.replace('name = "odd"\nfile', 'name = "odd [31m"\nfile'))
    (judged.folder / "judges.py").write_text("def odd(answer):\n    raise ValueError('\\x1b[31mred')\n")
    done = judged.give("judge", "asked", "odd.toml")
    assert done.status == 3
    assert "\x1b" not in done.out + done.err
