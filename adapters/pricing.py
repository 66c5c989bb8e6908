"""What a target's dispatches cost, and can cost at most, by its model and its prices."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final

import attrs

from ..runner.protocols import Outcome
from .outcomes import one_line
from .prices import PriceTable

__all__ = ["bounds_by_unit", "current_prices", "no_price", "priced_outcome"]

current_prices: Final[ContextVar[PriceTable | None]] = ContextVar("tallystick_prices", default=None)
"""By which the requests of a guarded target's own are priced, while it is called."""


def priced_outcome(outcome: Outcome, prices: PriceTable | None, model: str | None) -> Outcome:
    """The outcome with the cost of what it used, or with the reason why that is unknown."""
    if prices is None or outcome.usage is None:
        return outcome
    return attrs.evolve(outcome, usage=prices.priced(outcome.usage, model))


def no_price(model: str) -> str:
    """That the model is not in the prices, and what helps."""
    name = one_line(model)
    return f'the model "{name}" has no price (write [models."{name}"] in its price file)'


def bounds_by_unit(
    prices: PriceTable | None, model: str | None, *, tokens_in: int | None, tokens_out: int | None
) -> Mapping[str, int]:
    """The most that one dispatch of so many tokens can use, by the unit of a budget, as far as that is known."""
    sides = {"tokens_in": tokens_in, "tokens_out": tokens_out}
    found = {unit: count for unit, count in sides.items() if count is not None}
    if tokens_in is None or tokens_out is None:
        return found
    found["tokens"] = tokens_in + tokens_out
    if prices is not None and model is not None:
        bound = prices.bound(model, tokens_in_max=tokens_in, tokens_out_max=tokens_out)
        found |= {} if bound.nanousd is None else {"nanousd": bound.nanousd}
    return found
