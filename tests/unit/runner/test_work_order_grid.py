from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.runner.case_files import survey
from tallystick.runner.descriptions import Description, fingerprint_of
from tallystick.runner.identity import compare, identity_digest, identity_document
from tallystick.runner.protocols import Target
from tallystick.runner.work_order import TargetSpec, WorkOrder
from tallystick.runner.work_order_grid import GRID_VARIANTS_MAX
from tests.unit.runner.given import CASES, HEAD, StillTarget, written

TARGET = '[target]\nkind = "chat"\nurl = "http://x/"\nseed = 1\n'
GRID = """
[grid]
model = ["small", "large"]

[grid.prompt]
short = { system = "Be brief." }
shown = { system = "Show your steps.", max_tokens = 900 }
"""


def grid(folder: Path, text: str, *, target: str = TARGET) -> dict[str, dict[str, Any]]:
    order = written(folder, HEAD + target + CASES + text)
    found: dict[str, dict[str, Any]] = {}
    for name, side in order.variants.items():
        assert isinstance(side, TargetSpec)
        found[name] = {"kind": side.kind, **side.options}
    return found


def test_each_combination_is_a_variant_that_is_named_by_its_values(tmp_path: Path) -> None:
    base = {"kind": "chat", "url": "http://x/", "seed": 1}
    assert grid(tmp_path, GRID) == {
        "small+short": {**base, "model": "small", "system": "Be brief."},
        "small+shown": {**base, "model": "small", "system": "Show your steps.", "max_tokens": 900},
        "large+short": {**base, "model": "large", "system": "Be brief."},
        "large+shown": {**base, "model": "large", "system": "Show your steps.", "max_tokens": 900},
    }


def test_values_lie_over_what_the_target_has_and_lists_and_tables_may_have_names(tmp_path: Path) -> None:
    text = '[grid]\nseed = [1, 2.5, true]\nstop = { none = [], line = ["x"] }\n'
    found = grid(tmp_path, text)
    assert [*found] == ["1+none", "1+line", "2.5+none", "2.5+line", "true+none", "true+line"]
    assert (found["2.5+line"]["seed"], found["2.5+line"]["stop"]) == (2.5, ["x"])


def test_it_is_of_any_kind_and_can_be_written_in_python(tmp_path: Path) -> None:
    text = '[grid.bot]\nold = { arguments = { model = "a" } }\nnew = { arguments = { model = "b" } }\n'
    target = '[target]\nkind = "python"\nfunction = "bots:bot"\n'
    assert [*grid(tmp_path, text, target=target)] == ["old", "new"]
    order = WorkOrder(
        "g",
        cases=[{"id": "a", "input": 1}],
        target={"kind": "http", "url": "http://x/"},
        grid={"answer": ["$.a", "$.b"]},
    )
    assert order.variants == {
        "$.a": TargetSpec("http", {"url": "http://x/", "answer": "$.a"}),
        "$.b": TargetSpec("http", {"url": "http://x/", "answer": "$.b"}),
    }


def test_budgets_and_gates_know_its_variants_and_the_stored_document_has_them_written_out(tmp_path: Path) -> None:
    budgets = '[[budgets]]\nunit = "dispatches"\nlimit = 5\nvariant = "small+short"\n'
    order = written(tmp_path, HEAD + TARGET + CASES + GRID + budgets)
    assert order.budgets[0].scope_value == "small+short"
    document: Any = order.to_document()
    assert "grid" not in document
    assert WorkOrder.from_document(document, folder=tmp_path).variants == order.variants


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[grid]\n", "grid: a grid has at least one axis"),
        ("[grid]\nmodel = []\n", "grid.model: an axis is a list of values"),
        ("[grid]\nmodel = {}\n", "grid.model: an axis is a list of values"),
        ('[grid]\nmodel = "a"\n', "grid.model: an axis is a list of values"),
        ('[grid]\nmodel = ["a", "a"]\n', 'grid.model: two values have the name "a"'),
        ('[grid]\nmodel = ["1", 1]\n', 'grid.model: two values have the name "1"'),
        ('[grid]\nmodel = [["a"]]\n', 'grid.model[0]: ["a"] has no name of its own'),
        ('[grid]\nmodel = [""]\n', 'grid: "" cannot name a variant'),
        ('[grid]\na = ["x", "x+y"]\nb = ["y+z", "z"]\n', 'grid: two variants have the name "x+y+z"'),
        (
            '[grid.p]\na = { system = "x" }\nb = { system = "x" }\n',
            'grid: the variants "a" and "b" are the same target',
        ),
        (
            '[grid]\nmodel = ["a"]\n[grid.p]\nx = { model = "b" }\n',
            'grid.p: it sets "model", and so does the axis "model"',
        ),
        ('[grid]\nkind = ["http"]\n', "grid.kind: every variant of a grid is of the target's kind"),
        ('[grid.p]\na = { kind = "http" }\n', "grid.p: every variant of a grid is of the target's kind"),
        ("[grid]\nday = [2026-01-01]\n", "grid.day[0]: a date or time without quotes"),
        ("[grid]\na = [1, 2, 3]\nb = " + str([*range(100)]) + "\n", "grid: 3 × 100 are 300 variants"),
    ],
)
def test_fault_in_a_grid_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(WorkOrderInvalid) as caught:
        grid(tmp_path, text)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_grid_stands_beside_one_target_only(tmp_path: Path) -> None:
    variants = '[variants.a.target]\nkind = "http"\nurl = "http://x/"\n'
    with pytest.raises(WorkOrderInvalid, match=r"grid: a grid makes the variants itself"):
        grid(tmp_path, '[grid]\nmodel = ["a"]\n', target=variants)
    with pytest.raises(WorkOrderInvalid, match=r"a grid needs the target as a table"):
        WorkOrder("g", cases=[{"id": "a", "input": 1}], target=StillTarget(), grid={"model": ["a"]})


def test_the_largest_grid_is_read(tmp_path: Path) -> None:
    values = str([*range(GRID_VARIANTS_MAX)])
    assert len(grid(tmp_path, f"[grid]\nseed = {values}\n")) == GRID_VARIANTS_MAX


def described(folder: Path, text: str) -> Description:
    order = written(folder, HEAD + TARGET + CASES + text)
    targets: dict[str, Target] = {
        name: StillTarget(side.options, kind=side.kind)
        for name, side in order.variants.items()
        if isinstance(side, TargetSpec)
    }
    digest = survey(written(folder, HEAD + TARGET + '[cases]\nitems = [{ id = "a", input = 1 }]\n').cases).value()
    identity = identity_document(order, targets, digest)
    return Description(order, targets, (), 1, digest, identity, identity_digest(identity))


def test_changed_prompt_changes_its_own_variants_and_leaves_every_other_as_it_was(tmp_path: Path) -> None:
    """What was observed of the others can be used again by a fork."""
    then, now = described(tmp_path, GRID), described(tmp_path, GRID.replace("Be brief.", "Be very brief."))
    assert then.digest != now.digest
    names = [*then.targets]
    changed = [name for name in names if fingerprint_of(then, name) != fingerprint_of(now, name)]
    assert changed == ["small+short", "large+short"]
    lines = [str(found) for found in compare(then.identity, now.identity)]
    assert lines == [
        f'variants."{name}".target.system: "Be brief." -> "Be very brief."' for name in ("small+short", "large+short")
    ]
    wider = described(tmp_path, GRID.replace('"large"]', '"large", "huge"]'))
    assert [name for name in names if fingerprint_of(then, name) != fingerprint_of(wider, name)] == []
    assert len(wider.targets) == 6
