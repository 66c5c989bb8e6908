"""What the calls of a guard may use, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import attrs

from .ledger.errors import UsageError

__all__ = ["Budget", "Budgets", "GuardSummary", "budget_tables"]

Amount = str | int | Decimal


@attrs.frozen(kw_only=True)
class Budget:
    """What the calls of a guard may use together, over all runs of the script.

    ``dispatches`` is hard. ``usd`` (dollars, as text or number) and ``tokens`` are hard with the most that one call may
    use (``usd_bound``, ``tokens_bound``); without it they are soft: they stop new calls once reached, and may be
    overrun by what is under way. Only a result with usage (`Answer`) says what was used.
    """

    dispatches: int | None = None
    usd: Amount | None = None
    usd_bound: Amount | None = None
    tokens: int | None = None
    tokens_bound: int | None = None

    def tables(self) -> dict[str, Any]:
        """As a work order says it."""
        found: dict[str, Any] = {} if self.dispatches is None else {"dispatches": self.dispatches}
        for unit, limit, bound in (("usd", self.usd, self.usd_bound), ("tokens", self.tokens, self.tokens_bound)):
            if limit is not None and bound is not None:
                found[unit] = {"limit": limit, "bound_per_dispatch": bound}
            elif limit is not None:
                found[unit] = {"limit": limit, "kind": "soft"}
            elif bound is not None:
                raise UsageError(f"Budget has {unit}_bound and no {unit}", f"say {unit}=... too")
        return {unit: _plain(table) for unit, table in found.items()}


Budgets: TypeAlias = Budget | Mapping[str, object] | Sequence[object]
"""A `Budget`, or ``[budgets]`` or ``[[budgets]]`` of a work order."""


def budget_tables(budget: Budgets) -> Any:
    """As a work order says it; raises UsageError for a bound without its limit."""
    return budget.tables() if isinstance(budget, Budget) else budget


def _plain(table: Any) -> Any:
    if isinstance(table, Mapping):
        return {key: _plain(value) for key, value in table.items()}
    return str(table) if isinstance(table, Decimal) else table


@attrs.frozen
class GuardSummary:
    """What this pass through the script did, and how the guard stands; amounts in whole units (nano-USD for money).

    ``reused`` results came without a call, ``called`` were calls; of these ``failed``, ``refused`` and ``unknown``.
    ``unknown_keys`` counts the keys that an operator has to decide about.
    """

    name: str
    run_id: str
    reused: int
    called: int
    failed: int
    refused: int
    unknown: int
    unknown_keys: int
    keys: int
    spent: Mapping[str, int]
    held: Mapping[str, int]

    def __str__(self) -> str:
        amounts = "".join(
            f"; {_shown(unit, spent)} spent" + (f", {_shown(unit, self.held[unit])} held" if self.held[unit] else "")
            for unit, spent in self.spent.items()
        )
        told = [f"{count} {word}" for word, count in (("failed", self.failed), ("unknown", self.unknown)) if count]
        more = f" ({', '.join(told)})" if told else ""
        return f"{self.name}: {self.keys} keys, {self.reused} reused, {self.called} called{more}{amounts}"


def _shown(unit: str, amount: int) -> str:
    return f"${Decimal(amount) / 10**9:.4f}" if unit == "nanousd" else f"{amount} {unit}"
