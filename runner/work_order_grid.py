"""A grid of variants: the target's table, once for each combination of the values of several axes.

An axis that is a list is a key of the target, and each of its values is put there. In an axis that is a table each
entry has a name: a table of keys is laid over the target's, any other value is put at the key that the axis is named
after. The names, joined by `+` in the order of the axes, name the variants, so that a variant keeps its name, and what
was observed of it, whatever becomes of the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from ..ledger.canonical import canonical_text
from .work_order_files import Place, refuse_foreign
from .work_order_models import a_name, shown_value

__all__ = ["GRID_VARIANTS_MAX", "grid_tables"]

GRID_VARIANTS_MAX: Final = 256
_JOINT: Final = "+"


@attrs.frozen
class _Entry:
    """One value of an axis: its name, and the keys of the target that it sets."""

    name: str
    keys: Mapping[str, Any]


def grid_tables(target: object, grid: object, *, root: Place) -> dict[str, dict[str, Any]]:
    """The target's table of each variant, by its name; raises WorkOrderInvalid."""
    place = root.at("grid")
    if not isinstance(target, Mapping):
        place.refuse("a grid needs the target as a table", "Give [target], with what its variants have in common")
    if not isinstance(grid, Mapping) or not grid:
        place.refuse("a grid has at least one axis", 'Write one, as in model = ["small", "large"]')
    refuse_foreign(target, place=root.at("target"))
    refuse_foreign(grid, place=place)
    axes = {str(axis): list(_entries(axis, told, place.at(axis))) for axis, told in grid.items()}
    _refuse_overlaps(axes, place)
    _refuse_too_many(axes, place)
    found: dict[str, dict[str, Any]] = {}
    for entries in itertools.product(*axes.values()):
        name = _name_of(entries, found, place)
        found[name] = {**target, **{key: value for entry in entries for key, value in entry.keys.items()}}
    _refuse_twins(found, place)
    return found


def _entries(axis: str, told: object, place: Place) -> Iterator[_Entry]:
    """The axis's entries; no two of one name."""
    if not isinstance(told, list | tuple | Mapping) or not told:
        place.refuse("an axis is a list of values, or a table of values with names", "Write at least one value")
    named = (
        told.items()
        if isinstance(told, Mapping)
        else [(_label(value, place.at(at)), value) for at, value in enumerate(told)]
    )
    seen: set[str] = set()
    for name, value in named:
        if name in seen:
            place.refuse(f"two values have the name {shown_value(name)}", "Keep one, or give them names in a table")
        seen.add(name)
        keys = value if isinstance(told, Mapping) and isinstance(value, Mapping) else {axis: value}
        if "kind" in keys:
            place.refuse("every variant of a grid is of the target's kind", "Write [variants.NAME.target] for others")
        yield _Entry(name, keys)


def _label(value: object, place: Place) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, bool | int | float):
        place.refuse(f"{shown_value(value)} has no name of its own", "Give it one in a table: { a = …, b = … }")
    return canonical_text(value)


def _refuse_overlaps(axes: Mapping[str, Sequence[_Entry]], place: Place) -> None:
    for (one, entries), (other, others) in itertools.combinations(axes.items(), 2):
        keys = {key for entry in entries for key in entry.keys} & {key for entry in others for key in entry.keys}
        if keys:
            place.at(other).refuse(f'it sets "{min(keys)}", and so does the axis "{one}"', "Let one axis set it")


def _refuse_too_many(axes: Mapping[str, Sequence[_Entry]], place: Place) -> None:
    count = 1
    for entries in axes.values():
        count *= len(entries)
    if count > GRID_VARIANTS_MAX:
        told = " × ".join(str(len(entries)) for entries in axes.values())
        place.refuse(f"{told} are {count} variants, and a work order has at most {GRID_VARIANTS_MAX}", "Write fewer")


def _name_of(entries: Sequence[_Entry], taken: Mapping[str, object], place: Place) -> str:
    name = _JOINT.join(entry.name for entry in entries)
    try:
        a_name(name)
    except ValueError as cause:
        remedy = f"Give its values shorter names in a table: {cause}"
        place.refuse(f"{shown_value(name)} cannot name a variant", remedy, cause=cause)
    if name in taken:
        place.refuse(f"two variants have the name {shown_value(name)}", "Give their values other names in a table")
    return name


def _refuse_twins(tables: Mapping[str, Mapping[str, Any]], place: Place) -> None:
    """Two variants of one table would be paid for twice and compared with themselves."""
    seen: dict[str, str] = {}
    for name, table in tables.items():
        first = seen.setdefault(canonical_text(table), name)
        if first != name:
            place.refuse(
                f"the variants {shown_value(first)} and {shown_value(name)} are the same target",
                "Leave one out, or use repetitions",
            )
