from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tallystick.adapters import registry
from tallystick.adapters.errors import KindUnknown
from tallystick.adapters.http_target import HttpTarget
from tallystick.adapters.registry import JUDGES, TARGETS, judge_from_work_order, known_kinds, target_from_work_order
from tallystick.ledger.errors import TargetNotFound
from tallystick.runner.protocols import Judge

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("group", [TARGETS, JUDGES])
def test_built_in_kinds_are_those_of_the_package(group: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    built_in = {kind: f"tallystick.adapters.{where}" for kind, where in registry._BUILT_IN[group].items()}
    assert built_in == project["entry-points"][group]


@pytest.mark.parametrize("kind", ["exact", "contains", "not_contains", "regex", "numeric"])
def test_judges_are_made_by_kind(kind: str) -> None:
    judge = judge_from_work_order(kind, {}, folder=Path(), place="judges[0]")
    assert isinstance(judge, Judge)
    assert (judge.kind, judge.name) == (kind, kind)
    assert judge_from_work_order(kind, {"name": "mine"}, folder=Path(), place="judges[0]").name == "mine"


@pytest.mark.parametrize("kind", ["htpp", "nothing like it"])
def test_kind_that_nobody_has_is_refused_with_the_known_ones(kind: str) -> None:
    with pytest.raises(KindUnknown) as caught:
        target_from_work_order(kind, {}, folder=Path(), place="target")
    assert str(caught.value).startswith(f'target.kind: no target is of kind "{kind}". ')
    assert "http" in str(caught.value)
    with pytest.raises(KindUnknown, match='no judge is of kind "exat"'):
        judge_from_work_order("exat", {}, folder=Path(), place="judges[0]")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(name: str, value: str) -> None:
        point = importlib.metadata.EntryPoint(name, value, TARGETS)
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == TARGETS else [])
        registry._entry_points.cache_clear()

    yield install
    registry._entry_points.cache_clear()


def test_installed_adapter_is_found_by_its_entry_point(installed: Any) -> None:
    installed("own", "tallystick.adapters.http_target:from_work_order")
    assert "own" in known_kinds(TARGETS)
    made = target_from_work_order("own", {"url": "http://x/"}, folder=Path("f"), place="target")
    assert made.kind == "http"


def test_installed_adapter_cannot_take_the_place_of_a_built_in_one(installed: Any) -> None:
    installed("http", "builtins:dict")
    assert isinstance(target_from_work_order("http", {"url": "http://x/"}, folder=Path(), place="target"), HttpTarget)


def test_built_in_kinds_are_found_without_a_look_at_every_package(
    installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("own", "tallystick.adapters.http_target:from_work_order")
    looks: list[str] = []

    def look(group: str) -> dict[str, Any]:
        looks.append(group)
        return {}

    monkeypatch.setattr(registry, "entry_points_of", look)
    target_from_work_order("http", {"url": "http://x/"}, folder=Path(), place="target")
    judge_from_work_order("exact", {}, folder=Path(), place="judges[0]")
    assert looks == []
    with pytest.raises(KindUnknown):
        target_from_work_order("own", {}, folder=Path(), place="target")
    assert looks == [TARGETS]


def test_installed_adapter_that_cannot_be_imported_is_told_in_one_line(installed: Any) -> None:
    installed("own", "no_such_module_here:factory")
    with pytest.raises(TargetNotFound, match=r'the adapter of kind "own" \(of no package\) cannot be imported'):
        target_from_work_order("own", {}, folder=Path(), place="target")
