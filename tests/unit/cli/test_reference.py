"""The pages of the reference and the command line are the same."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import click
import pytest
from pydantic import BaseModel

import tallystick.cli
from tallystick.cli import entry
from tallystick.cli.commands import cli
from tallystick.ledger.errors import TallystickError
from tallystick.runner.results import ExitStatus, NextMove
from tests.unit.cli.project import ROOT

COMMANDS = (ROOT / "docs/reference/commands.md").read_text()
STATUSES = (ROOT / "docs/reference/exit-statuses.md").read_text()
COMMON = {"--ledger", "--debug", "--json"}
MODELS = ("tallystick.runner.report_models", "tallystick.runner.evaluation_models",
          "tallystick.runner.qualification_models", "tallystick.runner.report_document",
          "tallystick.runner.compare_document", "tallystick.runner.gate_document",
          "tallystick.runner.case_pages", "tallystick.runner.preflight",
          "tallystick.runner.unknowns", "tallystick.runner.resume_check",
          "tallystick.runner.fork_document")  # fmt: skip


def _commands(group: click.Group = cli, before: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, f"{name} ")
        else:
            yield f"{before}{name}", command


FOUND = dict(_commands())


def _section(name: str) -> str:
    match = re.search(rf"^## {name}\n(.*?)(?=^## )", COMMANDS, re.MULTILINE | re.DOTALL)
    assert match, f"commands.md has no section on {name}"
    return match[1]


def _options(command: click.Command) -> set[str]:
    names = (name for one in command.params if isinstance(one, click.Option) for name in one.opts)
    return {name for name in names if name.startswith("--")}


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    sections = set(re.findall(r"^## ([a-z ]+)$", COMMANDS, re.MULTILINE))
    assert sections == set(FOUND)


@pytest.mark.parametrize("name", sorted(FOUND))
def test_every_option_is_described_and_no_other(name: str) -> None:
    described = set(re.findall(r"^\| `(--[a-z-]+)", _section(name), re.MULTILINE))
    assert described == _options(FOUND[name]) - COMMON


@pytest.mark.parametrize("name", sorted(FOUND))
def test_every_command_has_the_common_options(name: str) -> None:
    assert _options(FOUND[name]) >= COMMON


@pytest.mark.parametrize("name", sorted(FOUND))
def test_every_command_has_a_line_of_synopsis_with_all_its_options(name: str) -> None:
    block = COMMANDS[COMMANDS.index("```") :].split("```")[1]
    lines = re.sub(r"\n +", " ", block)
    line = next(line for line in lines.splitlines() if re.match(rf"tallystick {name}\b", line))
    assert set(re.findall(r"--[a-z-]+", line)) == _options(FOUND[name]) - COMMON


def _models() -> Iterator[type[BaseModel]]:
    cli_modules = (f"tallystick.cli.{module.name}" for module in pkgutil.iter_modules(tallystick.cli.__path__))
    for name in (*MODELS, *cli_modules):
        module = importlib.import_module(name)
        for member in vars(module).values():
            if isinstance(member, type) and issubclass(member, BaseModel) and member.__module__ == name:
                yield member


ALL_MODELS = {one.__name__: one for one in _models()}


@pytest.mark.parametrize("name", sorted(ALL_MODELS))
def test_every_key_of_json_is_described(name: str) -> None:
    model = ALL_MODELS[name]
    keys = COMMANDS[COMMANDS.index("## Keys of") :]
    missing = [name for name in model.model_fields if f"`{name}`" not in keys]
    assert missing == []
    form = model.model_fields.get("format")
    assert form is None or form.is_required() or f"`{form.default}`" in keys


def test_every_next_move_is_described() -> None:
    assert [move for move in NextMove if f"`{move}`" not in COMMANDS] == []


def test_exit_statuses_are_those_of_the_code() -> None:
    described = {int(number) for number in re.findall(r"^\| (\d+) \|", STATUSES, re.MULTILINE)}
    assert described == {*map(int, ExitStatus), entry.UNEXPECTED, entry.BROKEN_PIPE}


def _errors(base: type[TallystickError]) -> Iterator[type[TallystickError]]:
    for inner in base.__subclasses__():
        yield inner
        yield from _errors(inner)


def test_every_error_ends_with_a_status_of_the_page() -> None:
    importlib.import_module("tallystick.runner.errors")
    importlib.import_module("tallystick.adapters.errors")
    assert {error.exit_status for error in _errors(TallystickError)} <= {int(status) for status in ExitStatus}


def _texts() -> Iterator[tuple[str, str]]:
    for folder in ("adapters", "ledger", "runner", "tallystick"):
        for path in (ROOT / folder).rglob("*.py"):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def test_every_command_that_a_text_names_is_there() -> None:
    """A remedy that names a command which does not exist is none."""
    wrong = []
    for place, text in _texts():
        for words in re.findall(r"`tallystick ([^`{]*)", re.sub(r'"\n\s*f?"', "", text)):
            name = next((name for name in FOUND if f"{words} ".startswith(f"{name} ")), None)
            options = set(re.findall(r"--[a-z-]+", words))
            if words and not words.startswith("-") and (name is None or not options <= _options(FOUND[name])):
                wrong.append(f"{place}: tallystick {words}")
    assert wrong == []
