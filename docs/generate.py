"""Write the parts of the reference that the code already knows; `render` gives the same text to the tests."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Final, cast

import attrs

import tallystick
from tallystick.ledger.errors import TallystickError

REFERENCE: Final = Path(__file__).resolve().parent / "reference"

_ERRORS_HEAD: Final = """\
# Errors

Written by `python docs/generate.py` from the classes; a test holds both together.

Every error that tallystick raises on purpose is a `TallystickError`. Its `code` is permanent: match on it in scripts
and alerts, never on the text. Its text is one line that says what happened, to what, and what to do now (`what` and
`remedy`). An error also is the builtin error that fits, so `except LookupError` finds a run that is not there. The exit
status is what the command line returns when the error ends a command.
"""


def render() -> dict[str, str]:
    """The generated pages by file name."""
    return {"errors.md": _errors_page()}


def error_modules() -> list[ModuleType]:
    """Every ``errors`` module of the installed package, the ledger's first."""
    names = [module.name for module in pkgutil.walk_packages(tallystick.__path__, "tallystick.")]
    chosen = sorted(name for name in names if name.endswith(".errors"))
    chosen.sort(key=lambda name: name != "tallystick.ledger.errors")
    return [importlib.import_module(name) for name in chosen]


def errors_of(module: ModuleType) -> list[type[TallystickError]]:
    """The error classes that a module defines, in the order of its source."""
    found = [
        member
        for member in vars(module).values()
        if inspect.isclass(member) and issubclass(member, TallystickError) and member.__module__ == module.__name__
    ]
    return sorted(found, key=lambda member: inspect.getsourcelines(member)[1])


def fields_of(member: type[TallystickError]) -> list[str]:
    """The names of an error's fields, in the order in which it takes them."""
    return [field.name for field in attrs.fields(cast("type[attrs.AttrsInstance]", member))]


def _errors_page() -> str:
    return _ERRORS_HEAD + "".join(_section(module) for module in error_modules())


def _section(module: ModuleType) -> str:
    lines = [
        "",
        f"## `{module.__name__}`",
        "",
        "| code | class | exit status | meaning | fields besides `what` and `remedy` |",
        "|---|---|---|---|---|",
        *(_row(member) for member in errors_of(module)),
    ]
    return "\n".join(lines) + "\n"


def _row(member: type[TallystickError]) -> str:
    bases = ", ".join(f"`{base.__name__}`" for base in member.__bases__)
    meaning = inspect.cleandoc(member.__doc__ or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")
    fields = ", ".join(f"`{name}`" for name in fields_of(member) if name not in {"what", "remedy"})
    return f"| `{member.code}` | `{member.__name__}` ({bases}) | {member.exit_status} | {meaning} | {fields} |"


def main() -> None:
    REFERENCE.mkdir(exist_ok=True)
    for name, text in render().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
        print(f"wrote docs/reference/{name}")


if __name__ == "__main__":
    main()
