"""Finding the adapter of a ``kind``: by entry point, so that installed ones and our own are found the same way."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from ..ledger.canonical import printable
from ..ledger.errors import TallystickError, TargetNotFound, WorkOrderInvalid
from ..runner.judge_protocols import CallingJudge
from ..runner.protocols import Judge, Target
from .errors import KindAmbiguous, KindUnknown
from .installed import Package, entry_points_of, package_of, with_package
from .tables import nearest

__all__ = [
    "JUDGES",
    "TARGETS",
    "Listed",
    "judge_from_work_order",
    "known_kinds",
    "listed",
    "target_from_work_order",
]

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
    target: Target = _made(TARGETS, kind, table, folder=folder, place=place)
    return target


def judge_from_work_order(kind: str, table: Mapping[str, Any], *, folder: Path, place: str) -> Judge:
    """The judge of a table without its ``kind``; raises KindUnknown and what the adapter's factory raises."""
    judge: Judge = _made(JUDGES, kind, table, folder=folder, place=place)
    return judge


def known_kinds(group: str) -> list[str]:
    """The kinds that a work order can name, sorted."""
    return sorted({*_BUILT_IN[group], *_entry_points(group)})


@attrs.frozen
class Listed:
    """An adapter that is there. ``fault`` says, in one line, why a work order cannot use it; empty where it can."""

    group: str
    kind: str
    package: Package
    entry_point: str
    fault: str = ""


def listed() -> Iterator[Listed]:
    """Every adapter, ours first, each imported to see whether it can be: one that fails is no other's trouble."""
    for group in (TARGETS, JUDGES):
        for kind in sorted(_BUILT_IN[group]):
            where = f"{__package__}.{_BUILT_IN[group][kind]}"
            yield Listed(group, kind, _our_package(), where, _fault_of(functools.partial(_built_in, group, kind)))
        for kind, points in sorted(entry_points_of(group).items()):
            for point in points:
                package = package_of(point)
                if kind not in _BUILT_IN[group]:
                    fault = _clash(points) if points[1:] else _fault_of(point.load)
                elif package.name == _our_package().name:
                    continue
                else:
                    fault = "tallystick has one of this kind, which is used"
                yield Listed(group, kind, package, point.value, fault)


def _made(group: str, kind: str, table: Mapping[str, Any], *, folder: Path, place: str) -> Any:
    # What we bring ourselves cannot be replaced by what is installed, and needs no look at every package that is.
    points = () if kind in _BUILT_IN[group] else _entry_points(group).get(kind, ())
    if points[1:]:
        what = f'{place}.kind: "{kind}" is not one adapter: {_clash(points)}'
        raise KindAmbiguous(what, "Uninstall all of them but one", place=place)
    factory = _factory(group, kind, points, place)
    if not points:
        return factory(table, folder=folder, place=place)
    package = package_of(points[0])
    try:
        made = factory(table, folder=folder, place=place)
    except TallystickError:
        raise
    except (Exception, SystemExit) as cause:
        what = f'{place}: the adapter of kind "{kind}" ({package}) failed on this table ({_told(cause)})'
        raise WorkOrderInvalid(what, "Correct the table, or report it to that package", place=place) from cause
    wanted: tuple[type, ...] = (Target,) if group == TARGETS else (Judge, CallingJudge)
    if not isinstance(made, wanted):
        what = f'{place}.kind: the adapter of kind "{kind}" ({package}) made a {type(made).__name__}'
        raise WorkOrderInvalid(what, f"It has to make a {_noun(group)}; report it to that package", place=place)
    return with_package(made, package)


def _factory(
    group: str, kind: str, points: tuple[importlib.metadata.EntryPoint, ...], place: str
) -> Callable[..., Any]:
    if not points and kind not in _BUILT_IN[group]:
        what = f'{place}.kind: no {_noun(group)} is of kind "{kind}"'
        raise KindUnknown(what, nearest(kind, known_kinds(group)), place=place)
    try:
        factory: Callable[..., Any] = points[0].load() if points else _built_in(group, kind)
    except (Exception, SystemExit) as cause:
        of = f" ({package_of(points[0])})" if points else ""
        what = f'{place}.kind: the adapter of kind "{kind}"{of} cannot be imported ({_told(cause)})'
        raise TargetNotFound(what, "Install what it needs; `tallystick adapters` lists all of them") from cause
    if not callable(factory):
        raise WorkOrderInvalid(f'{place}.kind: the adapter of kind "{kind}" is no function', place=place)
    return factory


def _noun(group: str) -> str:
    return "target" if group == TARGETS else "judge"


def _clash(points: tuple[importlib.metadata.EntryPoint, ...]) -> str:
    return " and ".join(sorted(str(package_of(point)) for point in points)) + " claim it"


def _fault_of(load: Callable[[], object]) -> str:
    try:
        return "" if callable(load()) else "it is no function"
    except (Exception, SystemExit) as cause:  # noqa: BLE001 - whatever an import raises is told in the list
        return f"cannot be imported ({_told(cause)})"


def _told(cause: BaseException) -> str:
    return (printable(f"{type(cause).__name__}: {cause}").splitlines() or [""])[0][:300]


def _built_in(group: str, kind: str) -> Callable[..., Any]:
    module, _, name = _BUILT_IN[group][kind].partition(":")
    factory: Callable[..., Any] = getattr(importlib.import_module(f".{module}", __package__), name)
    return factory


def _our_package() -> Package:
    try:
        return Package("tallystick", importlib.metadata.version("tallystick"))
    except importlib.metadata.PackageNotFoundError:
        return Package("tallystick", "(not installed)")


@functools.cache
def _entry_points(group: str) -> dict[str, tuple[importlib.metadata.EntryPoint, ...]]:
    return {name: points for name, points in entry_points_of(group).items() if name not in _BUILT_IN[group]}
