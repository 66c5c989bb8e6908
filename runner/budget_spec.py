"""What a budget is, once it was read: who it is for, what it counts, how much, and how surely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

import attrs

from ..ledger.canonical import JsonValue
from ..ledger.states import BudgetKind
from .amounts import count, milliseconds, nanousd, seconds_number, usd_text

__all__ = [
    "ROLES",
    "TOLD_BY_REQUESTS",
    "UNITS",
    "BudgetScope",
    "BudgetSpec",
    "BudgetUnit",
    "UnitForm",
    "faults_of",
    "shown_amount",
    "unit_key",
]


class BudgetUnit(StrEnum):
    DISPATCHES = "dispatches"  # sends on the wire, or starts of a process
    TOKENS_IN = "tokens_in"  # tokens that were sent
    TOKENS_OUT = "tokens_out"  # tokens that came back
    TOKENS = "tokens"  # both together
    NANOUSD = "nanousd"  # money; a work order writes it as ``usd``
    MILLISECONDS = "milliseconds"  # time under way; a work order writes it as ``seconds``


class BudgetScope(StrEnum):
    RUN = "run"  # everything that the run dispatches
    ROLE = "role"  # what one role dispatches
    VARIANT = "variant"  # what is dispatched for one variant


ROLES: Final = ("target", "judge", "device")


@attrs.frozen
class UnitForm:
    """How a unit is written in a work order: its key, and the two ways between text and integer."""

    key: str
    parse: Callable[[object], int]
    show: Callable[[int], JsonValue]


UNITS: Final[Mapping[BudgetUnit, UnitForm]] = {
    BudgetUnit.DISPATCHES: UnitForm("dispatches", count, int),
    BudgetUnit.TOKENS_IN: UnitForm("tokens_in", count, int),
    BudgetUnit.TOKENS_OUT: UnitForm("tokens_out", count, int),
    BudgetUnit.TOKENS: UnitForm("tokens", count, int),
    BudgetUnit.NANOUSD: UnitForm("usd", nanousd, usd_text),
    BudgetUnit.MILLISECONDS: UnitForm("seconds", milliseconds, seconds_number),
}


def unit_key(unit: str) -> str:
    """The unit as a work order writes it."""
    return UNITS[BudgetUnit(unit)].key


def shown_amount(unit: str, amount: int) -> int | float | str:
    """An amount of a budget's unit as a work order writes it."""
    shown = UNITS[BudgetUnit(unit)].show(amount)
    assert isinstance(shown, int | float | str)
    return shown


TOLD_BY_REQUESTS: Final = frozenset(
    {BudgetUnit.TOKENS_IN, BudgetUnit.TOKENS_OUT, BudgetUnit.TOKENS, BudgetUnit.NANOUSD}
)
"""Of what a request itself may tell how much it can use at most."""


@attrs.frozen
class BudgetSpec:
    """A limit in the unit's base amount.

    ``scope_value`` names the role or the variant, and is empty for the run. ``bound_per_dispatch`` is what a dispatch
    may cost at most: set aside before a dispatch under a hard budget, an estimate under a soft one. It is 1 for
    dispatches, and None under a soft budget, or under a hard one whose targets tell it for each request.
    """

    scope_kind: BudgetScope
    scope_value: str
    unit: BudgetUnit
    kind: BudgetKind
    limit: int
    bound_per_dispatch: int | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """No two budgets of a run have the same."""
        return (self.scope_kind.value, self.scope_value, self.unit.value)

    def counts_target(self, variant: str) -> bool:
        """Whether it counts what is dispatched to the target of that variant."""
        match self.scope_kind:
            case BudgetScope.RUN:
                return True
            case BudgetScope.ROLE:
                return self.scope_value == "target"
            case BudgetScope.VARIANT:
                return self.scope_value == variant

    @property
    def counts_judges(self) -> bool:
        """Whether it counts what judges dispatch."""
        return self.scope_kind is BudgetScope.RUN or (
            self.scope_kind is BudgetScope.ROLE and self.scope_value == "judge"
        )


def faults_of(spec: BudgetSpec, *, may_be_told: bool = False) -> tuple[str, str] | None:
    """What is wrong with the budget and the remedy, or None.

    ``may_be_told``: targets may tell what a request uses at most, which is looked at when they are known.
    """
    form, bound = UNITS[spec.unit], spec.bound_per_dispatch
    if spec.unit is BudgetUnit.DISPATCHES and bound != 1:
        return "a dispatch counts as one, so bound_per_dispatch has no meaning here", "Take it out"
    if bound is None and spec.kind is BudgetKind.HARD and not (may_be_told and spec.unit in TOLD_BY_REQUESTS):
        return (
            f"a hard budget of {form.key} needs the most that one dispatch can use",
            'Give bound_per_dispatch, or say kind = "soft" and accept that it may be overrun',
        )
    if bound is not None and bound > spec.limit > 0 and spec.kind is BudgetKind.HARD:
        return (
            "bound_per_dispatch is above the limit, so nothing could ever be dispatched",
            "Raise limit, or lower bound_per_dispatch",
        )
    return None
