"""Targets and judges are made by whoever knows the kinds; what was given is taken as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.runner.work_order import WorkOrder
from tallystick.runner.work_order_build import build_judges, build_targets
from tests.unit.runner.given import CASES, HEAD, TARGET, StillJudge, StillTarget, a_work_order, written


def told(kind: str, table: Any, *, folder: Path, place: str) -> Any:
    """A maker that hands back what it was told."""
    return (kind, dict(table), folder, Path(place.split(":", maxsplit=1)[0]).name + ":" + place.partition(":")[2])


def test_a_target_is_made_from_its_table_without_the_kind(tmp_path: Path) -> None:
    order = written(tmp_path, HEAD + CASES + TARGET + "x = 1\n")
    built: Any = build_targets(order, told)
    assert built == {"default": ("http", {"x": 1}, tmp_path, "order.toml: target")}


def test_each_variant_has_its_target_and_its_place(tmp_path: Path) -> None:
    order = written(tmp_path, HEAD + CASES + '[variants.old.target]\nkind = "a"\n[variants.new.target]\nkind = "b"\n')
    built: Any = build_targets(order, told)
    assert built == {
        "old": ("a", {}, tmp_path, "order.toml: variants.old.target"),
        "new": ("b", {}, tmp_path, "order.toml: variants.new.target"),
    }


def test_a_judge_is_made_from_its_table_with_its_name(tmp_path: Path) -> None:
    order = written(
        tmp_path, HEAD + CASES + TARGET + '[[judges]]\nkind = "exact"\n[[judges]]\nkind = "e"\nname = "f"\n'
    )
    built: Any = build_judges(order, told)
    assert built == [
        ("exact", {"name": "exact"}, tmp_path, "order.toml: judges[0]"),
        ("e", {"name": "f"}, tmp_path, "order.toml: judges[1]"),
    ]


def test_what_was_given_from_python_is_not_made() -> None:
    target, judge = StillTarget(), StillJudge()
    order = a_work_order(target=target, judges=[judge])
    assert build_targets(order, told)["default"] is target
    assert build_judges(order, told) == [judge]


def test_what_has_to_be_given_again_is_told() -> None:
    order = WorkOrder.from_document(a_work_order(judges=[StillJudge()]).to_document(), source="run 01j")
    with pytest.raises(WorkOrderInvalid, match="run 01j: target: this target was given from Python"):
        build_targets(order, told)
    with pytest.raises(WorkOrderInvalid, match=r"run 01j: judges\[0\]: the judge 'grounded' was given from Python"):
        build_judges(order, told)
