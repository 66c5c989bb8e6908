"""Finding the adapter of a ``kind``: by entry point, so that installed ones and our own are found the same way."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ..ledger.canonical import printable
from ..ledger.errors import TargetNotFound, WorkOrderInvalid
from ..runner.protocols import Judge, Target
from .errors import KindUnknown
from .tables import nearest

__all__ = ["JUDGES", "TARGETS", "judge_from_work_order", "known_kinds", "target_from_work_order"]

TARGETS: Final = "tallystick.targets"
JUDGES: Final = "tallystick.judges"

# A checkout that is not installed has no metadata; a test compares this with pyproject.toml.
_BUILT_IN: Final[Mapping[str, Mapping[str, str]]] = {
    TARGETS: {
        "atlas": "atlas_target:from_work_order",
        "chat": "chat_target:from_work_order",
        "http": "http_target:from_work_order",
        "line": "line_target:from_work_order",
        "process": "process_target:from_work_order",
        "python": "python_target:from_work_order",
        "recorded": "recorded_target:from_work_order",
    },
    JUDGES: {
        "contains": "rule_judges:contains_from_work_order",
        "exact": "rule_judges:exact_from_work_order",
        "json_schema": "json_judges:json_schema_from_work_order",
        "jsonpath": "json_judges:jsonpath_from_work_order",
        "llm": "llm_judge:from_work_order",
        "not_contains": "rule_judges:not_contains_from_work_order",
        "numeric": "rule_judges:numeric_from_work_order",
        "process": "process_judge:from_work_order",
        "python": "python_judge:from_work_order",
        "regex": "rule_judges:regex_from_work_order",
        "similarity": "similarity_judge:similarity_from_work_order",
    },
}


def target_from_work_order(kind: str, table: Mapping[str, Any], *, folder: Path, place: str) -> Target:
    """The target of a table without its ``kind``; raises KindUnknown and what the adapter's factory raises."""
    target: Target = _factory(TARGETS, kind, place)(table, folder=folder, place=place)
    return target


def judge_from_work_order(kind: str, table: Mapping[str, Any], *, folder: Path, place: str) -> Judge:
    """The judge of a table without its ``kind``; raises KindUnknown and what the adapter's factory raises."""
    judge: Judge = _factory(JUDGES, kind, place)(table, folder=folder, place=place)
    return judge


def known_kinds(group: str) -> list[str]:
    """The kinds that a work order can name, sorted."""
    return sorted({*_BUILT_IN[group], *_entry_points(group)})


def _factory(group: str, kind: str, place: str) -> Callable[..., Any]:
    found = _entry_points(group).get(kind)
    if found is None and kind not in _BUILT_IN[group]:
        what = "target" if group == TARGETS else "judge"
        raise KindUnknown(
            f'{place}.kind: no {what} is of kind "{kind}"', nearest(kind, known_kinds(group)), place=place
        )
    try:
        factory: Callable[..., Any] = _built_in(group, kind) if found is None else found.load()
    except Exception as cause:
        told = printable(f"{type(cause).__name__}: {cause}").splitlines()[0]
        raise TargetNotFound(f'{place}.kind: the adapter of kind "{kind}" cannot be imported ({told})') from cause
    if not callable(factory):
        raise WorkOrderInvalid(f'{place}.kind: the adapter of kind "{kind}" is no function', place=place)
    return factory


def _built_in(group: str, kind: str) -> Callable[..., Any]:
    module, _, name = _BUILT_IN[group][kind].partition(":")
    factory: Callable[..., Any] = getattr(importlib.import_module(f".{module}", __package__), name)
    return factory


@functools.cache
def _entry_points(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    # What we bring ourselves cannot be replaced by a package that is installed.
    found = {point.name: point for point in importlib.metadata.entry_points(group=group)}
    return {name: point for name, point in found.items() if name not in _BUILT_IN[group]}
