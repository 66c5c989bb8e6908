"""What is wrong is told in one line with its place and its remedy, before any call, and nothing is changed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tallystick.ledger import location
from tests.unit.cli.project import Done, Project


def _refused(project: Project, done: Done, status: int, code: str, *words: str) -> None:
    assert (done.status, done.out) == (status, "")
    assert done.err.startswith(f"tallystick: {code}: ")
    assert done.err.count("\n") == 1
    for word in words:
        assert word in done.err
    assert project.calls == 0


def _nothing_begun(project: Project) -> None:
    assert not project.ledger_path.exists()
    assert not (project.folder / "ledger.db.d").exists()


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[execution]", "[execution]\nconcurency = 2", ("order.toml", "concurency", "concurrency")),
        ('file = "cases.jsonl"', 'file = "none.jsonl"', ("none.jsonl", "[cases] file")),
        ("version = 1", "version = 1\nversion = 1", ("order.toml:3",)),
        ("version = 1", "version = 99", ("order.toml", "99")),
        ('kind = "exact"', 'kind = "exactly"', ("order.toml", "exactly", "exact")),
    ],
)
def test_wrong_work_order(project: Project, old: str, new: str, words: tuple[str, ...], *, dry_run: bool) -> None:
    order = project.order()
    order.write_text(order.read_text().replace(old, new, 1))
    done = project.give("run", "order.toml", *(["--dry-run"] if dry_run else []))
    assert done.status == 2
    _refused(project, done, 2, done.err.split(": ")[1], *words)
    _nothing_begun(project)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (('{"id": "a", "input": 1}\n', '{"id": "a", "input": 2}\n'), ("cases.jsonl:2", "a")),
        (('{"id": "", "input": 1}\n',), ("cases.jsonl:1", "id")),
        (('{"id": 1, "input": 1}\n', '{"id": "1", "input": 2}\n'), ("cases.jsonl", "1")),
        (('{"id": "a", "input": 1}\n', '{"id": "b", "inp\n'), ("cases.jsonl:2",)),
        (('{"id": "a", "input": 1}\n', '{"id": "b", "input": NaN}\n'), ("cases.jsonl:2",)),
        ((), ("cases.jsonl",)),
    ],
)
def test_wrong_case_file(project: Project, lines: tuple[str, ...], words: tuple[str, ...]) -> None:
    project.write("cases.jsonl", *lines)
    _refused(project, project.give("run", "order.toml"), 2, "usage.case_file", *words)
    _nothing_begun(project)


def test_a_byte_order_mark_is_told_or_read_over_and_never_part_of_a_case(project: Project) -> None:
    (project.folder / "cases.jsonl").write_bytes(b'\xef\xbb\xbf{"id": "a", "input": 1, "expected": 1}\n')
    done = project.give("run", "order.toml")
    if done.status == 0:
        assert '"case": "a"' in project.give("show", "asked", "a", "--json").out
    else:
        _refused(project, done, 2, "usage.case_file", "cases.jsonl")


def test_work_order_that_is_not_there(project: Project) -> None:
    _refused(project, project.give("run", "none.toml"), 2, "usage.work_order", "none.toml")
    _nothing_begun(project)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('file = "target.py"', 'file = "none.py"', ("none.py",)),
        ('function = "answer"', 'function = "anser"', ("anser", "answer")),
        ('kind = "python"', 'kind = "pyton"', ("pyton", "python")),
    ],
)
def test_target_that_is_not_there(project: Project, old: str, new: str, words: tuple[str, ...]) -> None:
    order = project.order()
    order.write_text(order.read_text().replace(old, new, 1))
    done = project.give("run", "order.toml")
    assert done.status == 2
    _refused(project, done, 2, done.err.split(": ")[1], *words)
    _nothing_begun(project)


HTTP = """
version = 1
name = "asked"
[cases]
items = [{ id = "a", input = 1 }]
[target]
kind = "http"
url = "http://127.0.0.1:9/"
json = { q = "{{input}}" }
answer = "$.a"
headers = { Authorization = { env = "THE_KEY_OF_NOBODY" } }
"""


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--json",)])
def test_environment_variable_that_is_not_set_is_told_before_a_run_is_written_down(
    project: Project, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THE_KEY_OF_NOBODY", raising=False)
    project.write("order.toml", HTTP)
    done = project.give("run", "order.toml", *options)
    assert done.status == 2
    assert done.err.startswith("tallystick: usage.secret_missing: ")
    assert "THE_KEY_OF_NOBODY" in done.err
    _nothing_begun(project)


def _text(path: Path) -> None:
    path.write_text("no ledger at all\n" * 20)


def _foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (a)")
    connection.commit()
    connection.close()


def _newer(path: Path, project: Project) -> None:
    project.give("run", "order.toml")
    (project.folder / "calls").unlink()
    header = bytearray(path.read_bytes())
    header[60:64] = (999).to_bytes(4, "big")
    path.write_bytes(header)


COMMANDS = [("run", "order.toml"), ("run", "order.toml", "--dry-run"), ("resume",), ("status",), ("report", "asked"),
            ("runs",), ("reconcile", "asked"), ("cancel", "asked"), ("ledger", "check")]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_ledger_that_is_not_a_ledger(project: Project, command: tuple[str, ...]) -> None:
    for make in (
        lambda: project.ledger_path.write_text("no ledger at all\n" * 20),
        lambda: _foreign(project.ledger_path),
    ):
        project.ledger_path.unlink(missing_ok=True)
        make()
        before = project.ledger_path.read_bytes()
        _refused(project, project.give(*command), 4, "ledger.not_a_ledger", str(project.ledger_path), "--ledger")
        assert project.ledger_path.read_bytes() == before
        assert not (project.folder / "ledger.db.d").exists()


def test_ledger_that_is_newer(project: Project) -> None:
    _newer(project.ledger_path, project)
    before = project.bytes_of_ledger()
    for command in COMMANDS:
        _refused(project, project.give(*command), 4, "ledger.newer", "999", "newer version")
    assert project.bytes_of_ledger() == before


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_ledger_on_a_network_file_system(
    project: Project, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "filesystem_of", lambda path: "nfs4")
    _refused(project, project.give(*command), 4, "ledger.on_network", "nfs4", "local disk")
    _nothing_begun(project)


@pytest.mark.parametrize("command", COMMANDS[2:], ids=" ".join)
def test_ledger_that_is_not_there_or_empty_is_created_by_run_alone(project: Project, command: tuple[str, ...]) -> None:
    _refused(project, project.give(*command), 4, "ledger.missing", str(project.ledger_path))
    _nothing_begun(project)
    project.ledger_path.touch()
    _refused(project, project.give(*command), 4, "ledger.missing", "empty")
    assert project.ledger_path.stat().st_size == 0


def test_empty_file_left_by_a_killed_start_is_completed_by_run(project: Project) -> None:
    project.ledger_path.touch()
    assert project.give("run", "order.toml").status == 0


def test_ledger_in_a_folder_that_is_not_there(project: Project) -> None:
    project.ledger_path = project.folder / "none" / "ledger.db"
    _refused(project, project.give("run", "order.toml"), 4, "ledger.read_only", "does not exist")
    assert not (project.folder / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("status", "nobody"), "there is no run nobody"),
        (("show", "asked", "none"), "has no case none. It has c1, c2, c3"),
        (("show", "asked", "c1x"), 'has no case c1x. Did you mean "c1"?'),
        (
            ("show", "asked", "c1", "--variant", "none"),
            "no such variant or repetition of case c1. It has default, and rep",
        ),
        (("show", "asked", "c1", "--repetition", "2"), "no such variant or repetition"),
    ],
)
def test_what_is_not_in_the_ledger(project: Project, arguments: tuple[str, ...], words: str) -> None:
    project.give("run", "order.toml")
    done = project.give(*arguments)
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert words in done.err
