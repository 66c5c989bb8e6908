"""``reconcile``: listing, choosing, previewing, settling, and what resume makes of it."""

from __future__ import annotations

import getpass
import io
import json
import sys
from typing import Any

import click
import pytest

from tallystick.cli.screen import PlainScreen
from tallystick.cli.unknown_screen import shown_bytes
from tallystick.runner.case_pages import BytesPart
from tests.unit.cli.project import Project

WHY = ("--reason", "seen in its log", "--yes")


def _reconciled(project: Project, *options: object) -> Any:
    done = project.give("reconcile", "asked", *options, *WHY, "--json")
    assert done.status == 0, done.err
    return done.document


def _two_unknown(project: Project) -> list[str]:
    project.killed_in_flight()
    die = project.touch("die")
    project.finished("resume")
    die.unlink()
    project.give("resume")
    return [one["call"] for one in project.give("reconcile", "asked", "--json").document["unknown"]]


def test_each_unknown_is_listed_with_its_evidence(project: Project) -> None:
    project.order(budgets='dispatches = 10\nusd = { limit = "1", bound_per_dispatch = "0.25" }')
    call = project.with_an_unknown()
    found = project.give("reconcile", "asked", "--json").document
    (one,) = found["unknown"]
    assert (one["call"], one["case"], one["attempt"], one["dispatch"]) == (call, "c1", 1, 1)
    assert (one["if_unknown"], one["is_newest"], one["reason"]) == ("keep", True, "coordinator.died")
    assert one["held"] == {"dispatches": 1, "usd": "0.25"}
    assert json.loads(one["request"]["text"])["case"]["id"] == "c1"
    assert (found["next"], found["exit_status"], found["count"]) == ("decide", 3, 1)
    shown = project.give("reconcile", "asked").out
    for words in (call, "c1, default, repetition 1, attempt 1", "1 dispatch, $0.25", "stays unknown until you settle"):
        assert words in shown


def test_a_decision_needs_the_run(project: Project) -> None:
    project.with_an_unknown()
    done = project.give("reconcile", "--not-landed", *WHY)
    assert (done.status, "name RUN" in done.err) == (2, True)
    assert project.give("reconcile", "asked", "--json").document["count"] == 1


def test_a_dead_process_is_said_to_have_left_what_may_be_unknown(project: Project) -> None:
    project.killed_in_flight()
    shown = project.give("reconcile", "asked").out
    assert "0 unknown outcomes" in shown
    assert "1 was in flight when the process died; to see which are unknown: `tallystick resume" in shown
    project.give("resume")
    assert "in flight when" not in project.give("reconcile", "asked").out


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (r'{"q":"na\u00efve \ud83d\ude42"}', '{"q":"naïve 🙂"}'),
        (r'{"q":"\u202e\u0007"}', r'{"q":"\u202e\u0007"}'),
        (r'{"q":"\u00ef', r'{"q":"\u00ef'),
        (r"C:\users", r"C:\users"),
    ],
)
def test_a_request_is_shown_in_its_characters_where_they_are_harmless(sent: str, shown: str) -> None:
    stream = io.StringIO()
    PlainScreen(stream).line(shown_bytes(BytesPart(size=len(sent), text=sent)))
    assert stream.getvalue() == shown + "\n"


def test_an_answer_that_landed_is_selected_and_judged_by_resume(project: Project) -> None:
    call = project.with_an_unknown()
    project.write("answer.json", "1")
    found = _reconciled(project, "--landed", "answer.json")
    assert found["settled"] == [{"call": call, "dispatch": 1, "case": "c1", "state": "selected"}]
    assert (found["next"], found["made_by"]) == ("resume", f"operator:{getpass.getuser()}")
    done = project.give("resume", "asked", "--json")
    assert done.status == 0
    assert [(one["passed"], one["judged"]) for one in done.document["scores"]] == [(3, 3)]
    assert project.calls == 3
    shown = project.give("show", "asked", "c1").out
    assert f"settled as landed by operator:{getpass.getuser()}" in shown
    assert "seen in its log" in shown


def test_what_did_not_land_waits_again_and_is_asked_anew(project: Project) -> None:
    project.with_an_unknown()
    assert _reconciled(project, "--not-landed")["settled"][0]["state"] == "pending"
    budget = project.give("status", "asked", "--json").document["budgets"][0]
    assert (budget["held"], budget["settled"]) == (0, 2)
    assert project.give("resume", "asked").status == 0
    assert project.calls == 4


def test_what_is_given_up_fails_and_counts_as_spent(project: Project) -> None:
    project.with_an_unknown()
    assert _reconciled(project, "--give-up")["settled"][0]["state"] == "failed"
    found = project.give("status", "asked", "--json").document
    assert (found["budgets"][0]["held"], found["budgets"][0]["settled"]) == (0, 3)
    assert (found["population"]["failed"], found["unknown"]["count"]) == (1, 0)


def test_usage_that_is_told_is_what_the_budget_counts(project: Project) -> None:
    project.order(
        budgets='tokens = { limit = 100, bound_per_dispatch = 20 }\nusd = { limit = "1", bound_per_dispatch = "0.25" }'
    )
    call = project.with_an_unknown()
    usage = {"tokens_in": 3, "tokens_out": 4, "cost_usd": "0.05"}
    project.write("answers.jsonl", {"call": call, "answer": 1, "usage": usage})
    before = project.give("status", "asked", "--json").document["budgets"]
    _reconciled(project, "--landed", "answers.jsonl")
    after = project.give("status", "asked", "--json").document["budgets"]
    assert after[0]["settled"] - before[0]["settled"] == 7
    assert float(after[1]["settled"]) - float(before[1]["settled"]) == pytest.approx(0.05)


def test_several_answers_come_by_lines_and_what_no_line_names_stays_unknown(project: Project) -> None:
    first, second = _two_unknown(project)
    project.write("answers.jsonl", {"call": second, "answer": 2}, "\n")
    assert [one["call"] for one in _reconciled(project, "--landed", "answers.jsonl")["settled"]] == [second]
    left = project.give("reconcile", "asked", "--json").document["unknown"]
    assert [one["call"] for one in left] == [first]


FILTERS = [
    (("--case", "c1"), 1), (("--case", "none"), 0), (("--variant", "default"), 2), (("--variant", "x"), 0),
    (("--reason-is", "coordinator.died"), 2), (("--reason-is", "deadline"), 0), ((), 2),
    (("--case", "c1", "--reason-is", "deadline"), 0),
]  # fmt: skip


def test_filters_choose_what_is_listed_and_what_is_settled(project: Project) -> None:
    _two_unknown(project)
    for choose, count in FILTERS:
        assert project.give("reconcile", "asked", *choose, "--json").document["count"] == count, choose
        if not count:
            done = project.give("reconcile", "asked", *choose, "--not-landed", *WHY)
            assert done.status == 2
            assert done.err.startswith("tallystick: usage.nothing_to_settle: ")
    assert [one["case"] for one in _reconciled(project, "--case", "c2", "--not-landed")["settled"]] == ["c2"]
    assert project.give("reconcile", "asked", "--json").document["count"] == 1


def test_a_call_is_chosen_by_the_beginning_of_its_id(project: Project) -> None:
    calls = _two_unknown(project)
    assert project.give("reconcile", "asked", "--call", calls[0], "--json").document["count"] == 1
    assert project.give("reconcile", "asked", "--call", calls[0][:3], "--json").document["count"] == 2


def test_without_a_terminal_nothing_is_settled_unless_it_is_said_twice(project: Project) -> None:
    project.with_an_unknown()
    done = project.finished("reconcile", "asked", "--give-up", "--reason", "x")
    assert done.status == 2
    preview, error = done.err.splitlines()[:2], done.err.splitlines()[-1]
    assert preview[0] == "1 outcome would be settled as given up: 1 planned observation fails"
    assert "what is held (1 dispatch) counts as spent" in preview[1]
    assert "--yes" in error
    assert project.give("reconcile", "asked", "--json").document["count"] == 1


@pytest.mark.parametrize("agrees", [True, False])
def test_on_a_terminal_it_asks(project: Project, monkeypatch: pytest.MonkeyPatch, *, agrees: bool) -> None:
    project.with_an_unknown()
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", lambda *arguments, **options: agrees)
    done = project.give("reconcile", "asked", "--give-up", "--reason", "x")
    assert done.status == 0
    assert project.give("reconcile", "asked", "--json").document["count"] == (0 if agrees else 1)


def test_a_decision_needs_its_reason(project: Project) -> None:
    project.with_an_unknown()
    project.write("answer.json", "1")
    for decision in (("--give-up",), ("--not-landed",), ("--landed", "answer.json")):
        done = project.give("reconcile", "asked", *decision, "--yes")
        assert (done.status, "--reason" in done.err) == (2, True)
    assert project.give("reconcile", "asked", "--json").document["count"] == 1


WRONG_ANSWERS = [
    ("not json\nat all\n", "line 1: this is not JSON"),
    ('{"call": "CALL", "answer": 1}\n{"call": "CALL", "answer": 2}\n', "line 2: call CALL is there a second time"),
    ('{"call": "CALL", "answer": 1}\n{"call": "other", "answer": 2}\n', "line 2: other is not among"),
    ('{"call": "CALL"}\n{}\n', "line 1: this does not say which call"),
    ('{"call": "CALL", "answer": 1, "usage": {"tokens": 1}}', "usage is not known"),
    ('{"call": "CALL", "answer": 1, "usage": {"tokens_in": -1}}', "tokens_in is no count"),
    ('{"call": "CALL", "answer": 1, "usage": {"tokens_in": true}}', "tokens_in is no count"),
    ('{"call": "CALL", "answer": 1, "usage": {"cost_usd": 0.1}}', "money is never a float"),
]


def test_wrong_answers_are_told_by_line_and_nothing_is_settled(project: Project) -> None:
    call = project.with_an_unknown()
    for lines, words in WRONG_ANSWERS:
        project.write("answers.jsonl", lines.replace("CALL", call))
        done = project.give("reconcile", "asked", "--landed", "answers.jsonl", *WHY)
        assert (done.status, done.out) == (2, "")
        assert words.replace("CALL", call) in done.err
    assert project.give("reconcile", "asked", "--json").document["count"] == 1


def test_file_of_answers_that_is_not_there(project: Project) -> None:
    project.with_an_unknown()
    done = project.give("reconcile", "asked", "--landed", "none.json", *WHY)
    assert (done.status, "none.json" in done.err) == (2, True)


@pytest.mark.parametrize("answer", [None, False, 0, "", [], {"call": "x", "answer": 1}])
def test_every_json_value_is_an_answer(project: Project, answer: object) -> None:
    project.with_an_unknown()
    project.write("answer.json", json.dumps(answer))
    _reconciled(project, "--landed", "answer.json")
    attempt = project.give("show", "asked", "c1", "--json").document["planned"][0]["attempts"][0]
    assert (attempt["has_answer"], attempt["answer"], attempt["source"]) == (True, answer, "operator")


def test_an_answer_to_an_older_attempt_is_kept_as_evidence_and_selects_nothing(project: Project) -> None:
    project.order(target='if_unknown = "repeat"')
    project.killed_in_flight()
    assert project.give("resume").status == 0
    (one,) = project.give("reconcile", "asked", "--json").document["unknown"]
    assert (one["is_newest"], one["state"]) == (False, "selected")
    assert "the case has gone on since" in project.give("reconcile", "asked").out
    project.write("answer.json", "99")
    assert _reconciled(project, "--landed", "answer.json")["settled"][0]["state"] == "selected"
    slot = project.give("show", "asked", "c1", "--json").document["planned"][0]
    assert (slot["selected_attempt"], [one["answer"] for one in slot["attempts"]]) == (2, [99, 1])


def test_nothing_unknown_is_an_empty_list(project: Project) -> None:
    project.give("run", "order.toml")
    done = project.give("reconcile", "asked", "--json")
    assert (done.status, done.document["count"], done.document["unknown"]) == (0, 0, [])
