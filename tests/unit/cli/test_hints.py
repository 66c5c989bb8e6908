"""Commands that errors, screens and documents name: each is to be pasted as it stands."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator

import click

from tallystick.cli.commands import cli
from tests.unit.cli.project import ROOT, Done, Project, commands_in

FOLDERS = ("ledger", "runner", "adapters", "tallystick", "migrations")
COMMAND = re.compile(r"`tallystick ([^`]*)`")
JUDGED_BY_CODE = """
version = 1
name = "again"

[[judges]]
kind = "python"
file = "judge.py"
function = "grounded"
name = "grounded"
"""
FILLED = "1"  # where something is filled in; fits texts, paths and numbers alike


def named_commands() -> Iterator[tuple[str, str]]:
    """``(place, command)`` of every text in the code that is no docstring, each field of an f-string filled in."""
    paths = {path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    for path in sorted(paths):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bare = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        inner = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if node in bare or node in inner:
                continue
            for command in COMMAND.findall(_text(node)):
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", command


def _text(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else FILLED for part in parts)
        case _:
            return ""


def fault_of(command: str) -> str:
    """Why the command would be refused as it stands; empty where it would not."""
    words = [FILLED if word.isupper() and not word.startswith("-") else word for word in shlex.split(command)]
    words = [re.sub("^[A-Z]+=[A-Z]+$", "dispatches=1", word) for word in words]
    context = click.Context(cli)
    found: click.Command = cli
    while isinstance(found, click.Group):
        name, found_now, words = found.resolve_command(context, words)
        assert found_now is not None
        found, context = found_now, click.Context(found_now, parent=context, info_name=name)
    try:
        given = found.make_context(found.name, words, parent=context.parent).params
    except click.UsageError as problem:
        return problem.format_message()
    if given.get("amend") and not given.get("reason"):
        return "--amend needs --reason"
    return ""


def test_a_command_that_a_text_names_has_all_that_it_needs() -> None:
    named = sorted(set(named_commands()))
    assert len(named) > 50
    assert [(place, command, fault) for place, command in named if (fault := fault_of(command))] == []


def test_a_command_without_what_it_needs_is_found() -> None:
    assert "Missing argument" in fault_of("show")
    assert "No such option" in fault_of("resume RUN --again")
    assert fault_of("resume RUN --amend UNIT=LIMIT") == "--amend needs --reason"
    assert fault_of("device clear DEVICE --reason TEXT") == fault_of("resume") == ""


def pasteable(done: Done) -> list[str]:
    """The commands that a screen or an error has told, with texts and decisions of ours for what it leaves open."""
    found = [command.replace("TEXT", "seen").replace("UNIT=LIMIT", "dispatches=9") for command in commands_in(done.out)]
    found += [command.replace("TEXT", "seen") for command in commands_in(done.err)]
    return [f"{one} --yes" if " reconcile " in one and "--reason" in one else one for one in found]


def test_each_command_that_is_told_does_something_when_it_is_pasted(project: Project) -> None:
    order = project.order(name="two words").rename(project.folder / "an order.toml")
    project.touch("fail")
    failed = project.give("run", order)
    assert [project.paste(one).status for one in pasteable(failed)] == [3]
    (project.folder / "fail").unlink()
    check = project.give("resume", "two words", "--check", "--retry", "failed")
    assert [project.paste(one).status for one in pasteable(check)] == [0]
    die = project.touch("die")
    assert project.finished("run", str(order), "--new").status == -9
    die.unlink()
    assert [project.paste(one).status for one in pasteable(project.give("status"))] == [3]
    settle = [one for one in pasteable(project.give("reconcile", "two words")) if "--give-up" in one]
    assert [project.paste(one).status for one in settle] == [0]
    for wrong in (("show", "two words", "nothing"), ("resume", "nothing"), ("adopt", "two words", "--reason", "x")):
        for command in pasteable(project.give(*wrong)):
            assert project.paste(command).status in (0, 3), command


def test_an_order_with_a_blank_in_its_name_stands_quoted_in_the_command_that_judges_again(project: Project) -> None:
    project.give("run", "order.toml")
    project.write("judge.py", "def grounded(answer):\n    raise ValueError(answer)\n")
    order = project.write("judge it.toml", JUDGED_BY_CODE)
    judged = project.give("judge", "asked", order)
    (command,) = commands_in(judged.out)
    assert "--retry judge_error" in command
    assert project.paste(command).status == judged.status == 3


def test_judging_of_an_earlier_event_is_gone_on_with_at_that_event(project: Project) -> None:
    project.give("run", "order.toml", "--limit", 1)
    project.write("judge.py", "def grounded(answer):\n    raise ValueError(answer)\n")
    order = project.write("judge.toml", JUDGED_BY_CODE)
    event = str(project.give("judge", "asked", order, "--json").document["set_at_event"])
    project.give("resume", "asked")
    newest = project.give("judge", "asked", order, "--json").document["evaluation"]
    earlier = project.give("judge", "asked", order, "--at", event, "--json").document
    assert f"--at {event} --retry judge_error" in earlier["command"]
    again = project.paste(earlier["command"], "--json").document
    assert (again["evaluation"], again["calls"]) == (earlier["evaluation"], 0)
    assert again["evaluation"] != newest


def test_a_refused_change_of_judges_tells_how_to_judge_what_is_observed_by_the_new_ones(project: Project) -> None:
    """Also where no work order is given, and the code of a judge is what was changed."""
    project.write("judge.py", "def grounded(answer):\n    return True\n")
    by_code = JUDGED_BY_CODE.partition("\n\n")[2]
    order = project.order()
    order.write_text(order.read_text().replace('[[judges]]\nkind = "exact"\n', by_code))
    project.give("run", order, "--limit", 1)
    project.write("judge.py", "def grounded(answer):\n    return False\n")
    project.write("judges.toml", JUDGED_BY_CODE)
    for refused in (project.give("run", order), project.give("resume"), project.give("resume", "--check")):
        judge, fork = commands_in(refused.err)
        assert (refused.status, refused.err.count("\n")) == (4, 1)
        assert project.paste(judge, "--json").document["judges"][0]["judged"] == 1
        assert project.paste(fork, "--dry-run").status == 0
    assert project.calls == 1
