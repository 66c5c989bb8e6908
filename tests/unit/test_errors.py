"""Every error of every layer: its code, its place in the tree, its pickle, its line in the reference."""

from __future__ import annotations

import copy
import importlib
import inspect
import itertools
import pickle
import pkgutil
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tallystick
from docs import generate
from tallystick.ledger.errors import TallystickError

ROOT = Path(__file__).resolve().parents[2]
NOT_FOR_IMPORT = {"tallystick.__main__", "tallystick.migrations.env"}
SAMPLES: dict[object, object] = {str: "sämple 1", int: 7, float: 1.5, bool: True, tuple[str, ...]: ("a: 1 -> 2", "b")}
TREE_LINE = re.compile(r"^([│├└─ ]*)(\w+)(?: \((\w+)\))?(?: .*?(?:exit (\d+))?)?$")


def _import_everything() -> None:
    for module in pkgutil.walk_packages(tallystick.__path__, "tallystick."):
        if module.name not in NOT_FOR_IMPORT:
            importlib.import_module(module.name)


def _all_errors(base: type[TallystickError] = TallystickError) -> Iterator[type[TallystickError]]:
    yield base
    for inner in base.__subclasses__():
        if inner.__module__.startswith("tallystick."):
            yield from _all_errors(inner)


_import_everything()
ERRORS = sorted(set(_all_errors()), key=lambda error: (error.__module__, error.__name__))
ERROR_IDS = [error.__name__ for error in ERRORS]


def _sample(error: type[TallystickError]) -> TallystickError:
    hints = typing.get_type_hints(error)
    values: dict[str, Any] = {}
    for name in generate.fields_of(error):
        assert hints[name] in SAMPLES, f"{error.__name__}.{name}: give SAMPLES a value of its type"
        values[name] = SAMPLES[hints[name]]
    return error(**values)


def test_every_error_stands_in_its_layers_errors_module() -> None:
    assert [error.__name__ for error in ERRORS if not error.__module__.endswith(".errors")] == []


def test_every_error_has_a_code_of_its_own() -> None:
    assert [error.__name__ for error in ERRORS if "code" not in vars(error)] == []
    codes = [error.code for error in ERRORS]
    assert sorted({code for code in codes if codes.count(code) > 1}) == []
    assert [code for code in codes if not re.fullmatch(r"[a-z]+(\.[a-z]+(_[a-z]+)*)?", code)] == []


@pytest.mark.parametrize("error", ERRORS, ids=ERROR_IDS)
def test_error_also_is_a_builtin_error(error: type[TallystickError]) -> None:
    builtins = {base for base in error.__mro__ if base.__module__ == "builtins"}
    assert error is TallystickError or builtins - {object, BaseException, Exception}


@pytest.mark.parametrize("error", ERRORS, ids=ERROR_IDS)
def test_error_keeps_its_fields_and_its_text_through_pickle_and_copy(error: type[TallystickError]) -> None:
    original = _sample(error)
    for again in (pickle.loads(pickle.dumps(original)), copy.copy(original), copy.deepcopy(original)):
        assert type(again) is error
        for name in generate.fields_of(error):
            assert getattr(again, name) == getattr(original, name)
        assert str(again) == str(original)


@pytest.mark.parametrize("error", ERRORS, ids=ERROR_IDS)
def test_error_text_is_one_line_of_what_and_remedy(error: type[TallystickError]) -> None:
    assert str(error("run 01 is gone", "Do x.")) == "run 01 is gone. Do x."
    assert str(error("run 01 is gone", "do x")) == "run 01 is gone. Do x"
    assert str(error("run 01 is gone")) == "run 01 is gone"


def _drawn(module: ModuleType) -> dict[str, tuple[str | None, str | None, str | None]]:
    """Name -> (parent, builtin, exit status) as the tree in the docstring has them."""
    found: dict[str, tuple[str | None, str | None, str | None]] = {}
    path: list[str] = []
    root_column = 0
    for line, following in itertools.pairwise([*(module.__doc__ or "").splitlines(), ""]):
        is_root = "── " not in line and "── " in following
        match = TREE_LINE.match(line) if is_root or "── " in line else None
        if match is None:
            continue
        root_column = match.start(2) if is_root else root_column
        depth = (match.start(2) - root_column) // 4
        path[depth:] = [match[2]]
        found[match[2]] = (path[depth - 1] if depth else None, match[3], match[4])
    return found


@pytest.mark.parametrize("module", [pytest.param(module, id=module.__name__) for module in generate.error_modules()])
def test_tree_in_the_docstring_is_the_tree_of_the_classes(module: ModuleType) -> None:
    drawn = _drawn(module)
    defined = {error.__name__: error for error in generate.errors_of(module)}
    assert defined.keys() <= drawn.keys(), "an error is not drawn"
    for name, (parent, builtin, exit_status) in drawn.items():
        error = defined[name] if name in defined else getattr(module, name)
        assert parent is None or error.__bases__[0].__name__ == parent, name
        assert builtin is None or builtin in {base.__name__ for base in error.__mro__}, name
        assert exit_status is None or error.exit_status == int(exit_status), name


@pytest.mark.parametrize("error", ERRORS, ids=ERROR_IDS)
def test_error_says_what_it_means(error: type[TallystickError]) -> None:
    assert inspect.cleandoc(error.__doc__ or "").split("\n")[0]
    assert not (error.__doc__ or "").startswith("Method generated"), "attrs wrote the docstring"


@pytest.mark.parametrize("name", sorted(generate.render()))
def test_generated_reference_is_up_to_date(name: str) -> None:
    written = (generate.REFERENCE / name).read_text(encoding="utf-8")
    assert written == generate.render()[name], "run `make docs`"


def test_reference_lists_every_code() -> None:
    listed = set(re.findall(r"^\| `([\w.]+)` \|", (generate.REFERENCE / "errors.md").read_text("utf-8"), re.MULTILINE))
    assert listed == {error.code for error in ERRORS}
