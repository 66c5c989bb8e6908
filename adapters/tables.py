"""An adapter's table of a work order, checked: no unknown key, no conversion between types, one line a fault."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ..ledger.canonical import printable
from ..ledger.errors import WorkOrderInvalid

__all__ = ["Table", "nearest", "read_table"]

T = TypeVar("T", bound="Table")


class Table(BaseModel):
    """What the tables of all adapters share."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def read_table(model: type[T], table: Mapping[str, Any], *, place: str) -> T:
    """The table as a model; raises WorkOrderInvalid for its first fault, unknown keys before all others."""
    try:
        return model.model_validate(dict(table))
    except ValidationError as cause:
        faults = sorted(cause.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
        fault = faults[0]
    where = ".".join((place, *_standing(fault["loc"], table, is_missing=fault["type"] == "missing")))
    what, remedy = _told(fault, model)
    raise WorkOrderInvalid(f"{where}: {what}", remedy, place=where)


def nearest(word: str, known: Iterable[str]) -> str:
    """A remedy for a word that is not known: the nearest known one, or all of them."""
    words = sorted(known)
    found = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f'Did you mean "{found[0]}"?' if found else f"Known here: {', '.join(words)}."


def _standing(location: Sequence[int | str], table: Any, *, is_missing: bool) -> Iterator[str]:
    # For a union, pydantic puts the name of each member into the location; only keys that stand in the table are named.
    for key in location:
        is_there = (isinstance(table, Mapping) and key in table) or (isinstance(table, list) and isinstance(key, int))
        if is_there:
            table = table[key]
            yield str(key)
        elif is_missing and key == location[-1]:
            yield str(key)


def _told(fault: Mapping[str, Any], model: type[BaseModel]) -> tuple[str, str]:
    kind = fault["type"]
    if kind == "extra_forbidden":
        return "there is no such key", nearest(str(fault["loc"][-1]), _keys_at(fault["loc"][:-1], model))
    if kind == "missing":
        return "this key is missing", _addition(fault["loc"], model)
    if kind == "value_error":
        return str(fault["ctx"]["error"]), ""
    if kind in {"literal_error", "enum"}:
        return f"{_shown(fault['input'])} is not known here", f"Write one of {fault['ctx']['expected']}"
    what = f"{_shown(fault['input'])} cannot stand here: it {fault['msg'].removeprefix('Input ')}"
    return what, _REMEDIES.get(kind, "")


def _addition(location: Sequence[int | str], model: type[BaseModel]) -> str:
    """What the key that is missing means, where its table is known."""
    field = _model_at(location[:-1], model).model_fields.get(str(location[-1]))
    meaning = "" if field is None or field.description is None else field.description
    return f"Add it: {meaning}".replace("`", '"') if meaning else "Add it"


# pydantic's type of a fault: what helps.
_REMEDIES: Final[Mapping[str, str]] = {
    "int_type": "Write a whole number, without quotes",
    "float_type": "Write a number, without quotes",
    "bool_type": "Write true or false, without quotes",
    "string_type": "Write text in quotes",
    "list_type": "Write a list in square brackets",
    "dict_type": "Write a table of keys",
}


def _keys_at(location: Sequence[int | str], model: type[BaseModel]) -> list[str]:
    return list(_fields(_model_at(location, model)))


def _model_at(location: Sequence[int | str], model: type[BaseModel]) -> type[BaseModel]:
    for key in location:
        field = _fields(model).get(str(key))
        inner = next(_models_in(field), None) if field is not None else None
        if inner is not None:
            model = inner
    return model


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _models_in(inner)


def _shown(value: object) -> str:
    text = printable(repr(value))
    return text if len(text) <= 60 else text[:57] + "..."
