"""Write the parts of the reference that the code already knows; `render` gives the same text to the tests."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

import attrs
from pydantic import BaseModel

import tallystick
from tallystick.ledger.crashpoints import CRASHPOINTS
from tallystick.ledger.errors import TallystickError
from tallystick.ledger.states import INITIAL, MACHINES, TRANSITIONS
from tallystick.runner.work_order_models import TABLES

DOCS: Final = Path(__file__).resolve().parent
REFERENCE: Final = DOCS / "reference"
ARCHITECTURE: Final = DOCS / "architecture.md"

_MACHINES_BEGIN: Final = "<!-- Written by `make docs` from ledger/states.py. -->\n"
_MACHINES_END: Final = "<!-- End of what is written from ledger/states.py. -->\n"
_POINTS_BEGIN: Final = "<!-- Written by `make docs` from ledger/crashpoints.py. -->\n"
_POINTS_END: Final = "<!-- End of what is written from ledger/crashpoints.py. -->\n"

_KEYS_BEGIN: Final = "<!-- Written by `make docs` from the models. -->\n"
_KEYS_END: Final = "<!-- End of what is written by `make docs`. -->\n"
_TABLE_TITLES: Final = {
    "": "The work order",
    "cases": "`[cases]`",
    "cases.columns": "`[cases] columns`",
    "cases.split": "`[cases] split`",
    "variants.NAME": "`[variants.NAME]`",
    "target": "`[target]` and `[variants.NAME.target]`",
    "judges[]": "`[[judges]]`",
    "judges[].require": "`[[judges]] require`",
    "(judge work order)": "The judge work order (`tallystick judge`)",
    "budgets.UNIT": "`[budgets]`: one entry",
    "budgets[]": "`[[budgets]]`",
    "execution": "`[execution]`",
    "execution.backoff": "`[execution] backoff`",
    "device": "`[device]`",
    "fork": "`[fork]`",
    "conversation": "`[conversation]`",
    "gates": "`[gates]`",
}
_FORMS: Final = {
    "array": "list",
    "boolean": "`true` or `false`",
    "integer": "whole number",
    "number": "number",
    "object": "table",
    "string": "text",
}

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
    return {"errors.md": _errors_page(), "work-order.md": _work_order_page()}


def architecture() -> str:
    """The page as it is written, with the state machines and the crash points put in anew."""
    written = ARCHITECTURE.read_text(encoding="utf-8")
    written = _put_between(written, _MACHINES_BEGIN, _MACHINES_END, "".join(_machine(name) for name in MACHINES))
    return _put_between(written, _POINTS_BEGIN, _POINTS_END, _crash_points())


def meanings(machine: type[StrEnum]) -> dict[str, str]:
    """What the comment behind each member of a state machine says, by value."""
    lines = inspect.getsource(machine).splitlines()
    found = (re.fullmatch(r'    [A-Z_]+ = "(\w+)"  # (.+)', line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def _put_between(text: str, begin: str, end: str, made: str) -> str:
    head, first, rest = text.partition(begin)
    _, last, tail = rest.partition(end)
    return head + first + made + "\n" + last + tail


def _machine(name: str) -> str:
    moves, states = TRANSITIONS[name], meanings(MACHINES[name])
    lines = ["", f"### {name}", "", "```mermaid", "stateDiagram-v2", f"    [*] --> {INITIAL[name]}"]
    lines += [f"    {old} --> {new}" for old in states for new in states if new in moves[old]]
    lines += [f"    {state} --> [*]" for state in states if not moves[state]]
    lines += ["```", "", "| state | meaning |", "|---|---|", *(f"| `{at}` | {said} |" for at, said in states.items())]
    return "\n".join(lines) + "\n"


def _crash_points() -> str:
    rows = [f"| `{name}` | {said} |" for name, said in CRASHPOINTS.items()]
    return "\n".join(["", "| crash point | where the process stands |", "|---|---|", *rows]) + "\n"


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


def _work_order_page() -> str:
    """The page as it is written, with the tables of its keys put in anew."""
    written = (REFERENCE / "work-order.md").read_text(encoding="utf-8")
    head, begin, rest = written.partition(_KEYS_BEGIN)
    _, end, tail = rest.partition(_KEYS_END)
    return head + begin + "".join(_key_table(place, model) for place, model in TABLES.items()) + "\n" + end + tail


def _key_table(place: str, model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    lines = [
        "",
        f"### {_TABLE_TITLES[place]}",
        "",
        "| key | type | default | class | meaning |",
        "|---|---|---|---|---|",
        *(_key_row(name, schema) for name in model.model_fields),
    ]
    return "\n".join(lines) + "\n"


def _key_row(name: str, schema: dict[str, Any]) -> str:
    field = schema["properties"][name]
    default = field.get("default")
    shown = "**required**" if name in schema.get("required", ()) else "—" if default is None else f"`{_toml(default)}`"
    return f"| `{name}` | {field['form'] or _form(field)} | {shown} | {field['class']} | {field['description']} |"


def _form(field: dict[str, Any]) -> str:
    """What may be written, in the words that the reader of a work order knows."""
    options = [option for option in field.get("anyOf", [field]) if option.get("type") != "null"]
    (option,) = options
    if "const" in option or "enum" in option:
        return ", ".join(f"`{_toml(value)}`" for value in option.get("enum") or [option["const"]])
    words = _FORMS[option["type"]]
    least, above, most = (option.get(key) for key in ("minimum", "exclusiveMinimum", "maximum"))
    bounds = [
        f"from {least:g}" if least is not None else "",
        f"above {above:g}" if above is not None else "",
        f"to {most:,}" if most is not None else "",
    ]
    return " ".join([words, *(bound for bound in bounds if bound)])


def _toml(value: object) -> str:
    return json.dumps(value)


def main() -> None:
    REFERENCE.mkdir(exist_ok=True)
    for name, text in render().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
        print(f"wrote docs/reference/{name}")
    ARCHITECTURE.write_text(architecture(), encoding="utf-8")
    print(f"wrote docs/{ARCHITECTURE.name}")


if __name__ == "__main__":
    main()
