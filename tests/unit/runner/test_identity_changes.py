from __future__ import annotations

from typing import Any

import pytest

from tallystick.ledger.errors import IdentityChanged
from tallystick.runner.identity import compare, identity_document
from tallystick.runner.identity_changes import changes_of, refuse_changes
from tallystick.runner.protocols import Target

from .given import StillTarget, a_work_order


def document(
    variants: dict[str, dict[str, Any]], *, cases: tuple[str, int] = ("sha256:1", 3), name: str = "bot"
) -> Any:
    targets: dict[str, Target] = {side: StillTarget(said) for side, said in variants.items()}
    order = a_work_order(name=name, variants=dict(targets))
    return identity_document(order, targets, cases[0], cases_count=cases[1])


ONE = {"default": {"model": "m", "url": "u"}}
GRID = {f"{model}-{heat}": {"model": model, "heat": heat, "url": "u"} for model in "ab" for heat in (0, 1)}


def told(then: Any, now: Any) -> tuple[str, ...]:
    return changes_of(compare(then, now))


def test_a_grid_that_was_added_is_two_things_however_many_keys_differ() -> None:
    assert len(compare(document(ONE), document(GRID))) > 15
    assert told(document(ONE), document(GRID)) == (
        "variant default is not there any more",
        "4 variants (a-0, a-1, b-0 and 1 more) are new",
    )


def test_the_same_change_in_several_variants_is_one() -> None:
    now = {name: {**said, "url": "v"} for name, said in GRID.items()}
    assert told(document(GRID), document(now)) == ('target.url of 4 variants (a-0, a-1, b-0 and 1 more): "u" -> "v"',)
    now["a-0"] = {**now["a-0"], "url": "w"}
    assert told(document(GRID), document(now)) == (
        'variants.a-0.target.url: "u" -> "w"', 'target.url of 3 variants (a-1, b-0, b-1): "u" -> "v"',
    )  # fmt: skip


def test_cases_are_told_by_their_number_and_else_as_others() -> None:
    assert told(document(ONE), document(ONE, cases=("sha256:2", 12))) == ("cases: 3 -> 12",)
    assert told(document(ONE), document(ONE, cases=("sha256:2", 3))) == ("cases: others, or in another order",)


def test_what_is_changed_otherwise_stands_for_itself() -> None:
    changed = {"default": {"model": "n", "url": "u"}}
    assert told(document(ONE), document(changed, name="cat")) == (
        'name: "bot" -> "cat"', 'variants.default.target.model: "m" -> "n"',
    )  # fmt: skip
    assert told(document(ONE), document(ONE)) == ()


def test_the_refusal_names_the_first_changes_and_keeps_every_difference() -> None:
    now = document({"x": {f"k{number}": 1 for number in range(5)}}, cases=("sha256:2", 9), name="cat")
    with pytest.raises(IdentityChanged) as caught:
        refuse_changes("01j", compare(document(ONE), now), remedy="change it back")
    assert str(caught.value) == (
        'run 01j is not what it was: cases: 3 -> 9; name: "bot" -> "cat"; variant default is not there any more;'
        " and 1 more. Change it back"
    )
    assert len(caught.value.differences) > 8
