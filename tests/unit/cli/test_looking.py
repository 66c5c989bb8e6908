"""Commands that look and change nothing."""

from __future__ import annotations

import sqlite3

import pytest

import tallystick as ts
from tallystick.ledger.ledger import Ledger
from tallystick.runner import reports
from tests.unit.cli.project import Project

READING = [("runs",), ("status",), ("status", "asked"), ("report", "asked"), ("show", "asked", "c1"),
           ("reconcile", "asked"), ("resume", "asked", "--check"), ("run", "order.toml", "--dry-run"),
           ("ledger", "check"), ("cancel", "asked")]  # fmt: skip


def _dump(project: Project) -> list[str]:
    connection = sqlite3.connect(project.ledger_path)
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


def _side(project: Project) -> dict[str, int]:
    """What lies beside the ledger; the time of a folder tells even of what was made and removed again."""
    side = project.folder / "ledger.db.d"
    return {str(path): path.stat().st_mtime_ns for path in (side, *side.rglob("*"))}


def test_looking_changes_no_row_and_says_the_same_twice(project: Project) -> None:
    project.killed_in_flight()
    rows, side = _dump(project), _side(project)
    for command in [(*one, *more) for one in READING for more in ((), ("--json",))]:
        first = project.give(*command)
        assert first.status == 0, (command, first.err)
        assert project.give(*command) == first
        assert _dump(project) == rows, command
        assert _side(project) == side, command
    assert project.calls == 1


def test_every_screen_names_the_ledger_and_no_inner_part_and_has_no_escape_sequence(project: Project) -> None:
    project.killed_in_flight()
    for command in READING:
        out = project.give(*command).out
        assert str(project.ledger_path) in out, command
        assert not [word for word in ("\x1b", "slot", "fence", "scribe") if word in out.lower()], command


@pytest.mark.parametrize("command", [("report",), ("show", "c1"), ("reconcile",)])
def test_without_a_run_the_newest_is_looked_at(project: Project, command: tuple[str, ...]) -> None:
    project.order(name="older")
    project.give("run", "order.toml", "--limit", 1)
    project.order(name="newer")
    project.give("run", "order.toml")
    assert project.give(*command, "--json").document["name"] == "newer"
    assert project.give("status", "--json").document["name"] == "older"


@pytest.mark.parametrize("command", [("report",), ("show", "c1"), ("reconcile",)])
def test_without_a_run_an_empty_ledger_says_how_to_start_one(project: Project, command: tuple[str, ...]) -> None:
    Ledger.open(project.ledger_path, create=True).close()
    found = project.give(*command)
    assert (found.status, "tallystick run ORDER" in found.err) == (2, True)


def test_show_takes_no_third_name(project: Project) -> None:
    project.give("run", "order.toml")
    assert project.give("show", "asked", "c1", "c2").status == 2


def test_status_tells_a_dead_process_from_a_live_one(project: Project) -> None:
    project.killed_in_flight()
    found = project.give("status", "--json").document
    (budget,), executing = found["budgets"], found["executing"]
    assert (budget["held"], budget["held_by_unknown"], found["unknown"]["count"]) == (1, 0, 0)
    assert executing["alive"] is False
    assert f"process {executing['pid']} died" in project.give("status").out
    project.give("resume")
    assert project.give("status", "asked", "--json").document["executing"] is None


def test_status_of_a_large_run_does_not_wait_for_counting(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.give("run", "order.toml")
    assert project.give("status", "--json").document["totals"]["dispatches"] == 3
    monkeypatch.setattr(reports, "STATUS_COUNTED_MAX", 2)
    found = project.give("status", "--json").document
    assert (found["totals"], found["scores"]) == (None, None)
    assert "tallystick report" in project.give("status").out
    assert project.give("report", "asked", "--json").document["totals"]["dispatches"] == 3


def test_population_is_whole_in_every_state(project: Project) -> None:
    for prepare in (
        project.killed_in_flight,
        lambda: project.give("resume", "--limit", 1),
        lambda: project.give("resume"),
    ):
        prepare()
        people = project.give("status", "asked", "--json").document["population"]
        assert people.pop("planned") == sum(people.values()) == 3


def test_report_parts_what_was_spent_by_what_it_gave(project: Project) -> None:
    fail = project.touch("fail")
    project.give("run", "order.toml", "--limit", 1)
    fail.unlink()
    project.give("resume")
    project.give("resume", "asked", "--retry", "failed")
    found = project.give("report", "asked", "--json").document
    (budget,) = found["budgets"]
    assert (budget["settled"], budget["counted"], budget["wasted"]) == (4, 3, 1)
    assert found["totals"]["wasted_dispatches"] == 1


def test_report_lists_each_case_without_an_observation(project: Project) -> None:
    project.with_an_unknown()
    found = project.give("report", "asked", "--json").document
    (one,) = found["trouble"]
    assert (one["case"], one["state"], one["reason"]) == ("c1", "unknown", "coordinator.died")
    assert found["budgets"][0]["held_by_unknown"] == found["unknown"]["count"] == 1
    assert found["totals"]["wasted_dispatches"] == 0
    assert [(one["judged"], one["planned"]) for one in found["scores"]] == [(2, 3)]
    assert "2 of 3" in project.give("report", "asked").out


def test_format_json_is_json(project: Project) -> None:
    project.give("run", "order.toml")
    assert project.give("report", "asked", "--format", "json") == project.give("report", "asked", "--json")


def test_show_has_the_whole_history_of_a_case(project: Project) -> None:
    project.with_an_unknown()
    found = project.give("show", "asked", "c1", "--json").document
    (slot,) = found["planned"]
    (attempt,) = slot["attempts"]
    assert (found["input"], slot["state"], attempt["state"]) == (1, "unknown", "unknown")
    assert [one["state"] for one in attempt["dispatches"]] == ["unknown"]
    assert attempt["has_answer"] is False
    answered = project.give("show", "asked", "c2", "--json").document["planned"][0]
    assert (answered["attempts"][0]["answer"], answered["judgments"][0]["passed"]) == (2, True)
    shown = project.give("show", "asked", "c2").out
    assert "answer: 2" in shown
    assert "judge exact: passed" in shown


def test_data_is_shown_harmless_in_every_screen(project: Project) -> None:
    evil = "[red]\x1b[2J\u202e\nrow"
    project.write("cases.jsonl", {"id": evil, "input": evil, "expected": "x"})
    project.write("target.py", f"def answer(case):\n    raise ValueError({evil!r})\n")
    assert project.give("run", "order.toml").status == 3
    for command in (("report", "asked"), ("show", "asked", evil), ("status",)):
        out = project.give(*command).out
        assert "\x1b" not in out
        assert "\u202e" not in out
    assert "[red]\\x1b[2J\\u202e\\nrow" in project.give("report", "asked").out
    assert project.give("report", "asked", "--json").document["trouble"][0]["case"] == evil


def test_lone_surrogates_pass_through_json_and_screens(project: Project) -> None:
    project.write("cases.jsonl", '{"id": "a", "input": "\\udfff", "expected": "\\udfff"}\n')
    assert project.give("run", "order.toml").status == 0
    found = project.give("show", "asked", "a", "--json").document
    assert found["input"] == found["planned"][0]["attempts"][0]["answer"] == "\udfff"
    assert "\ufffd" in project.give("show", "asked", "a").out


def test_resume_check_tells_what_would_be_found(project: Project) -> None:
    project.killed_in_flight()
    found = project.give("resume", "--check", "--json").document
    assert found["in_flight"] == [
        {"case": "c1", "variant": "default", "repetition": 1, "attempt": 1, "becomes": "unknown"}
    ]
    assert "would take up 2" in project.give("resume", "--check").out
    done = project.give("resume", "--json").document
    assert done["session"]["recovery"]["unknown"] == 1
    assert done["session"]["dispatches"] == 2


def test_resume_check_tells_what_the_target_declares(project: Project) -> None:
    project.order(target='if_unknown = "repeat"')
    project.killed_in_flight()
    assert project.give("resume", "--check", "--json").document["in_flight"][0]["becomes"] == "again"
    assert "would take up 3" in project.give("resume", "--check").out
    assert project.give("resume", "--json").document["session"]["recovery"]["again"] == 1


def test_resume_check_counts_what_would_wait_again(project: Project) -> None:
    project.order(budgets="dispatches = 1")
    project.give("run", "order.toml")
    options = ("--amend", "dispatches=9", "--reason", "more", "--check", "--json")
    found = project.give("resume", "asked", *options).document
    assert (found["waits_again"], found["amendments"]) == (2, ["dispatches = 9"])
    assert project.give("status", "asked", "--json").document["budgets"][0]["limit"] == 1


def test_resume_check_refuses_what_resume_refuses(project: Project) -> None:
    project.killed_in_flight()
    project.write("target.py", "def answer(case):\n    return 1\n")
    assert project.give("resume", "--check").err.startswith("tallystick: run.identity_changed")


def test_cancel_says_when_nobody_executes_and_abandon_gives_up(project: Project) -> None:
    project.give("run", "order.toml", "--limit", 1)
    assert "nobody is executing" in project.give("cancel", "asked").out
    assert "--reason" in project.give("cancel", "asked", "--abandon").err
    done = project.give("cancel", "asked", "--abandon", "--reason", "enough", "--json").document
    assert (done["given_up"], done["asked"], done["next"]) == (2, None, "nothing")
    refused = project.give("resume", "asked")
    assert (refused.status, refused.err.count("\n")) == (4, 1)
    assert project.give("resume", "asked", "--retry", "cancelled").status == 0


def test_abandon_is_refused_while_something_of_a_dead_process_is_in_flight(project: Project) -> None:
    project.killed_in_flight()
    done = project.give("cancel", "asked", "--abandon", "--reason", "x")
    assert (done.status, done.err.count("\n")) == (4, 1)
    assert "in flight" in done.err


def test_check_of_a_damaged_ledger_ends_with_5_and_names_the_damage(project: Project) -> None:
    project.give("run", "order.toml")
    assert project.give("ledger", "check").status == 0
    connection = sqlite3.connect(project.ledger_path)
    connection.execute(
        "DROP TRIGGER " + connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchone()[0]
    )
    connection.commit()
    connection.close()
    done = project.give("ledger", "check", "--json")
    assert (done.status, done.document["sound"]) == (5, False)
    assert done.document["findings"][0]["severity"] == "error"
    assert "the ledger is damaged" in project.give("ledger", "check").out


def test_check_names_commands_that_mean_the_ledger_that_was_looked_at(project: Project) -> None:
    project.give("run", "order.toml")
    (project.ledger_path.with_name(f"{project.ledger_path.name}.d") / "artifacts" / "ab").mkdir(parents=True)
    lost = project.ledger_path.with_name(f"{project.ledger_path.name}.d") / "artifacts" / "ab" / ("c" * 62)
    lost.write_bytes(b"nobody's")
    told = project.give("ledger", "check", "--ledger", str(project.ledger_path)).out
    assert f"`tallystick ledger compact --ledger {project.ledger_path}`" in told


def test_upgrade_of_a_ledger_that_is_current_leaves_it(project: Project) -> None:
    project.give("run", "order.toml")
    done = project.give("ledger", "upgrade", "--json").document
    assert done["changed"] is False


def test_a_run_from_python_is_sent_back_to_its_program(project: Project) -> None:
    @ts.target
    def answer(case: ts.Case) -> object:
        if case.id == "c3":
            raise ts.Failed("no")
        return case.input

    order = ts.WorkOrder("asked", cases=ts.cases("cases.jsonl"), target=answer, budgets={"dispatches": 10})
    ts.run(order, ledger=project.ledger_path, limit=1)
    assert project.give("status", "--json").document["command"] == ""
    assert "run the Python program again that began it" in project.give("status").out
    assert "Run the program again that began the run" in project.give("resume").err
    ts.run(order, ledger=project.ledger_path)
    assert project.give("status", "--json").document["command"].startswith("tallystick report ")
