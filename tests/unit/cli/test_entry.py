"""Every end of the process: one line, one status."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tallystick.cli import entry, running
from tallystick.ledger.errors import BudgetExhausted, LedgerFailed
from tests.unit.cli.project import ROOT, Project


@pytest.mark.parametrize(
    "arguments",
    [("bogus",), ("statsu",), ("run",), ("run", "a", "b"), ("run", "a", "--limit", "0"), ("run", "a", "--nope"),
     ("report", "r", "--format", "pdf"),
     ("reconcile", "r", "--not-landed", "--give-up")],
)  # fmt: skip
def test_wrong_usage_is_one_line_and_ends_with_2(project: Project, arguments: tuple[str, ...]) -> None:
    done = project.give(*arguments)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("tallystick: usage: ")
    assert "--help`" in done.err
    assert "?." not in done.err, "one end of a sentence is enough"


def test_unexpected_error_is_one_line_and_shows_its_traceback_only_with_debug(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> int:
        raise KeyError("a defect\nof two lines")

    monkeypatch.setattr(running, "run_order", broken)
    done = project.give("run", "order.toml")
    assert (done.status, done.err.count("\n")) == (entry.UNEXPECTED, 1)
    assert done.err.startswith("tallystick: unexpected: KeyError: ")
    assert "--debug" in done.err
    loud = project.give("run", "order.toml", "--debug")
    assert loud.status == entry.UNEXPECTED
    assert "Traceback (most recent call last)" in loud.err


@pytest.mark.parametrize("problem", [LedgerFailed("the disk is full", "make room"), BudgetExhausted("no room", "pay")])
def test_error_of_the_ledger_ends_with_its_own_status(
    project: Project, monkeypatch: pytest.MonkeyPatch, problem: LedgerFailed | BudgetExhausted
) -> None:
    def broken(*arguments: object, **options: object) -> int:
        raise problem

    monkeypatch.setattr(running, "run_order", broken)
    done = project.give("run", "order.toml", "--json")
    assert done.status == problem.exit_status
    remedy = problem.remedy.capitalize()
    assert done.err == f"tallystick: {problem.code}: {problem.what}. {remedy}\n"
    assert done.document["format"] == "tallystick.error/1"
    assert (done.document["code"], done.document["what"]) == (problem.code, problem.what)


def test_control_characters_in_an_error_are_shown_and_not_obeyed(project: Project) -> None:
    project.give("run", "order.toml")
    done = project.give("status", "\x1b[31mred\u202e\n")
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "\x1b" not in done.err
    assert "\u202e" not in done.err
    assert "\\x1b[31mred\\u202e" in done.err


def test_a_signal_outside_of_a_session_ends_with_130(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run_order", interrupted)
    done = project.give("run", "order.toml")
    assert (done.status, done.err.count("\n")) == (130, 1)


def test_a_reader_that_goes_away_ends_it_quietly(project: Project) -> None:
    read, write = os.pipe()
    os.close(read)
    project.give("run", "order.toml")
    command = [sys.executable, "-m", "tallystick", "report", "asked", "--ledger", str(project.ledger_path)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (entry.BROKEN_PIPE, "")


def test_version_is_told(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    from tallystick.cli import invoke

    assert invoke(["--version"]) == 0
    assert capfd.readouterr().out.startswith("tallystick ")


@pytest.mark.parametrize("wrong", ["dispatch.send@3", "dispatch.sent@x"])
def test_a_crash_point_that_there_is_not_is_told_with_one_that_there_is(project: Project, wrong: str) -> None:
    running_ = project.started("status", TALLYSTICK_CRASHPOINT=wrong)
    _, told = running_.communicate()
    assert (running_.returncode, told.count("\n")) == (2, 1)
    assert told.startswith(f"tallystick: usage: TALLYSTICK_CRASHPOINT={wrong} names no crash point. Write NAME or ")
    assert "such as dispatch.sent@3" in told


def test_text_that_the_terminal_cannot_show_does_not_stop_a_command(project: Project) -> None:
    project.give("run", "order.toml")
    done = project.finished("run", "order.toml", "--dry-run", PYTHONIOENCODING="ascii")
    assert done.status == 0
    assert "\\xd7" in done.out


def test_every_command_names_the_ledger_of_the_environment(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from tallystick.cli import invoke

    monkeypatch.setenv("TALLYSTICK_LEDGER", str(project.folder / "named.db"))
    assert invoke(["run", "order.toml"]) == 0
    assert (project.folder / "named.db").exists()
    assert str(project.folder / "named.db") in project.capture.readouterr().out


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_closed_keep_no_run_from_its_end(project: Project, closed: str) -> None:
    command = f'"{sys.executable}" -m tallystick run order.toml --ledger ledger.db {closed}'
    done = subprocess.run(
        ["sh", "-c", command], cwd=project.folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        stdin=subprocess.DEVNULL, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0
    assert project.calls == 3
    assert project.give("ledger", "check").status == 0
