"""Write the reference of targets and judges from their tables; `render` gives the same text to the tests."""

from __future__ import annotations

import json
import types
import typing
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tallystick.adapters.atlas_messages import schema
from tallystick.adapters.atlas_target import AtlasTable
from tallystick.adapters.bodies import ErrorTable, FlagTable, UsageTable
from tallystick.adapters.chat_table import ChatTable
from tallystick.adapters.event_stream import EventsTable
from tallystick.adapters.http_table import HttpTable, QueryRuleTable, QueryTable
from tallystick.adapters.json_judges import JsonPathTable, JsonSchemaTable
from tallystick.adapters.line_target import LineTable
from tallystick.adapters.llm_judge import LlmJudgeTable, TokenPricesTable
from tallystick.adapters.prices import ModelPrices, PricesTable
from tallystick.adapters.process_judge import ProcessJudgeTable
from tallystick.adapters.process_target import ProcessTable
from tallystick.adapters.python_judge import PythonJudgeTable
from tallystick.adapters.python_target import PythonTable
from tallystick.adapters.reasons import REASONS
from tallystick.adapters.recorded_target import RecordedTable
from tallystick.adapters.rule_judges import ContainsTable, ExactTable, NotContainsTable, NumericTable, RegexTable
from tallystick.adapters.secrets import SecretTable
from tallystick.adapters.similarity_judge import SimilarityTable

REFERENCE: Final = Path(__file__).resolve().parent / "reference"
PAGE: Final = "targets-and-judges.md"
ATLAS_SCHEMA: Final = REFERENCE.parent / "atlas-protocol.schema.json"

_BEGIN: Final = "<!-- Written by `python docs/generate_adapters.py` from the models. -->\n"
_END: Final = "<!-- End of what is written by `python docs/generate_adapters.py`. -->\n"
_TARGETS: Final[dict[str, type[BaseModel]]] = {
    '`kind = "python"`': PythonTable,
    '`kind = "http"`': HttpTable,
    '`kind = "chat"`': ChatTable,
    '`kind = "process"`': ProcessTable,
    '`kind = "recorded"`': RecordedTable,
    '`kind = "atlas"`': AtlasTable,
    '`kind = "line"`': LineTable,
}
_INNER: Final[dict[str, type[BaseModel]]] = {
    "a secret": SecretTable,
    "`usage`": UsageTable,
    "`error`": ErrorTable,
    "`flags.NAME`": FlagTable,
    "`events`": EventsTable,
    "`query`": QueryTable,
    "`query.landed`, `query.pending`, `query.never`": QueryRuleTable,
}
_JUDGES: Final[dict[str, type[BaseModel]]] = {
    '`kind = "exact"`': ExactTable,
    '`kind = "contains"`': ContainsTable,
    '`kind = "not_contains"`': NotContainsTable,
    '`kind = "regex"`': RegexTable,
    '`kind = "numeric"`': NumericTable,
    '`kind = "json_schema"`': JsonSchemaTable,
    '`kind = "jsonpath"`': JsonPathTable,
    '`kind = "similarity"`': SimilarityTable,
    '`kind = "python"`': PythonJudgeTable,
    '`kind = "process"`': ProcessJudgeTable,
    '`kind = "llm"`': LlmJudgeTable,
    "`prices` of a judge": TokenPricesTable,
}
_PRICES: Final[dict[str, type[BaseModel]]] = {
    "a price file": PricesTable,
    "`models.NAME`": ModelPrices,
}
_WORDS: Final[dict[Any, str]] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "`true` or `false`",
    Any: "any value",
}


def render() -> str:
    """The page as it is written, with the tables and reasons put in anew."""
    written = (REFERENCE / PAGE).read_text(encoding="utf-8")
    head, begin, rest = written.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    return head + begin + _made() + "\n" + end + tail


def atlas_schema() -> str:
    """The messages of the Atlas protocol as a JSON schema."""
    return json.dumps(schema(), indent=2, sort_keys=True) + "\n"


def _made() -> str:
    parts = ["\n## Targets\n", *(_table(title, model) for title, model in _TARGETS.items())]
    parts += ["\n## Tables inside a target's\n", *(_table(title, model) for title, model in _INNER.items())]
    parts += ["\n## Judges\n", *(_table(title, model) for title, model in _JUDGES.items())]
    parts += ["\n## Prices\n", *(_table(title, model) for title, model in _PRICES.items())]
    parts += ["\n## Reasons\n\n| reason | what happened |\n|---|---|\n"]
    parts += [f"| `{reason}` | {meaning} |\n" for reason, meaning in REASONS.items()]
    return "".join(parts)


def _table(title: str, model: type[BaseModel]) -> str:
    lines = ["", f"### {title}", "", "| key | type | default | meaning |", "|---|---|---|---|"]
    lines += [_row(field.alias or name, field) for name, field in model.model_fields.items()]
    return "\n".join(lines) + "\n"


def _row(name: str, field: FieldInfo) -> str:
    if field.is_required():
        default = "**required**"
    else:
        default = "—" if field.default in (None, [], {}) else f"`{json.dumps(field.default)}`"
    return f"| `{name}` | {_words(field.annotation)} | {default} | {field.description} |"


def _words(annotation: Any) -> str:
    if annotation in _WORDS:
        return _WORDS[annotation]
    if typing.get_origin(annotation) is typing.Annotated:
        return _words(annotation.__origin__)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return ", ".join(f"`{json.dumps(member.value)}`" for member in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    inner = [_words(part) for part in typing.get_args(annotation) if part not in (type(None), ...)]
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{json.dumps(value)}`" for value in typing.get_args(annotation))
    if origin in (types.UnionType, typing.Union):
        return " or ".join(dict.fromkeys(inner))
    if origin is dict:
        return f"table of {inner[1]}"
    return f"list of {' and '.join(dict.fromkeys(inner))}"


def main() -> None:
    (REFERENCE / PAGE).write_text(render(), encoding="utf-8")
    ATLAS_SCHEMA.write_text(atlas_schema(), encoding="utf-8")


if __name__ == "__main__":
    main()
