"""Rules of the house that hold for every module: sizes, exports, errors, crash points, states, no sleeping."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import tallystick

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("adapters", "ledger", "migrations", "runner", "tallystick")
EVERYTHING = (*PRODUCT, "bench", "docs", "examples", "tests")
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70

# Runs only inside Alembic, or runs a command when it is imported.
NOT_FOR_IMPORT = {"tallystick.__main__", "tallystick.migrations.env"}

SLEEPS = {"time.sleep", "asyncio.sleep", "anyio.sleep"}

# Where a test or a fixture may sleep, and why nothing else would do.
MAY_SLEEP: dict[str, str] = {
    "tests/fixtures/http_server.py": "a server that drips its answer is what a test asks it to be; nobody waits for it",
}


def _sources(folders: tuple[str, ...]) -> list[Path]:
    """Every module once: the links in ``tallystick/`` are not followed."""
    return sorted(path for folder in folders for path in _walk(ROOT / folder))


def _walk(folder: Path) -> Iterator[Path]:
    for child in folder.iterdir():
        if child.is_symlink():
            continue
        if child.is_dir():
            yield from _walk(child)
        elif child.suffix == ".py":
            yield child


def _place(path: Path, line: int | None = None) -> str:
    name = str(path.relative_to(ROOT))
    return name if line is None else f"{name}:{line}"


def _module_names() -> list[str]:
    walked = pkgutil.walk_packages(tallystick.__path__, "tallystick.")
    return ["tallystick", *sorted(module.name for module in walked if module.name not in NOT_FOR_IMPORT)]


def test_no_module_is_longer_than_the_limit() -> None:
    # A migration is one frozen list of tables.
    long = [
        f"{_place(path)} has {lines} lines"
        for path in _sources(EVERYTHING)
        if path.parent.name != "versions"
        and (lines := len(path.read_text(encoding="utf-8").splitlines())) > MODULE_LINES_MAX
    ]
    assert long == []


def test_no_function_is_longer_than_the_limit() -> None:
    long = [
        f"{_place(path, node.lineno)} {node.name} has {lines} lines"
        for path in _sources(EVERYTHING)
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert long == []


@pytest.mark.parametrize("name", _module_names())
def test_all_names_things_that_exist_once_and_in_order(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert [item for item in exported if not hasattr(module, item)] == []
    assert len(set(exported)) == len(exported)


def test_every_module_with_public_names_says_which() -> None:
    silent = [
        _place(path)
        for path in _sources(("adapters", "ledger", "runner", "tallystick"))
        if not _is_script(path) and (names := _module_level(path)) and "__all__" not in names
    ]
    assert silent == []


def _is_script(path: Path) -> bool:
    return path.name == "__main__.py" or 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")


def _module_level(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_") or name == "__all__"}


@pytest.mark.parametrize("name", _module_names())
def test_examples_in_docstrings_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed == 0


def test_tests_wait_on_what_they_wait_for_and_never_sleep() -> None:
    sleeping = {_place(path): lines for path in _sources(("tests",)) if (lines := _sleeps(path))}
    assert {place: lines for place, lines in sleeping.items() if place not in MAY_SLEEP} == {}
    assert MAY_SLEEP.keys() <= sleeping.keys(), "a reason stands for a file that does not sleep"


def _sleeps(path: Path) -> list[int]:
    """Lines that sleep, or bring in a bare ``sleep``; sleeping for a literal 0 only yields the turn."""
    lines: list[int] = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "sleep" for alias in node.names):
            lines.append(node.lineno)
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in SLEEPS:
            continue
        if not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0):
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time\ntime.sleep(1)", [2]),
        ("async def wait():\n    await asyncio.sleep(0.1)", [2]),
        ("from time import sleep", [1]),
        ("async def turn():\n    await asyncio.sleep(0)", []),
    ],
)
def test_sleeping_is_seen(tmp_path: Path, source: str, found: list[int]) -> None:
    path = tmp_path / "module.py"
    path.write_text(source, encoding="utf-8")
    assert _sleeps(path) == found
