"""What targets share whose answers say what they used: a model, its prices, and the most that a request can use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from ..runner.protocols import Outcome, Prepared
from .bodies import BodyTable
from .price_files import prices_of
from .prices import PriceTable
from .pricing import bounds_by_unit, no_price, priced_outcome

__all__ = ["PRICING_KEYS", "PricedTable", "PricedTarget"]

PRICING_KEYS: Final = ("model", "prices", "tokens_in_max", "tokens_out_max")
"""Keys on which no answer depends."""


class PricedTable(BodyTable):
    """The keys of a target whose dispatches can be priced."""

    model: str | None = Field(None, description="The model that answers, by its name in the prices.")
    prices: str | dict[str, Any] | None = Field(
        None, description="What tokens cost: a price file or a table; those of the work order if absent."
    )
    tokens_in_max: int | None = Field(None, ge=1, description="The most tokens that go in with a request, for budgets.")
    tokens_out_max: int | None = Field(None, ge=1, description="The most that come out, for budgets.")


class PricedTarget:
    """Prices what it used, and tells what a request can use at most, as it was declared."""

    def __init__(self, table: PricedTable, *, folder: Path, place: str) -> None:
        self._declared = table
        self.prices: PriceTable | None = None
        if table.prices is not None:
            self.prices = prices_of(table.prices, folder=folder, place=f"{place}.prices")

    def use_prices(self, prices: PriceTable) -> None:
        """Take the prices of the work order, where the target's own table has none."""
        self.prices = self.prices or prices

    def priced(self, outcome: Outcome) -> Outcome:
        """The outcome with the cost of what it used."""
        return priced_outcome(outcome, self.prices, self._declared.model)

    @property
    def bounded_units(self) -> frozenset[str]:
        """The units of budgets of which a request is known to use no more than so much."""
        return frozenset(self._bounds())

    def bounds_of(self, prepared: Prepared) -> Mapping[str, int]:  # noqa: ARG002 - what is declared is of all requests
        """The most that one dispatch can use, by unit of a budget."""
        return self._bounds()

    def why_untold(self, unit: str) -> str:
        """What it lacks to tell the unit."""
        told = self._declared
        sides = {"tokens_in": told.tokens_in_max, "tokens_out": told.tokens_out_max}
        lacks = [f"{side}_max" for side in ((unit,) if unit in sides else sides) if sides[side] is None]
        if unit == "nanousd":
            lacks += ["model"] if told.model is None else []
            lacks += ["prices"] if self.prices is None else []
            if not lacks:
                return no_price(told.model or "")
        return f"it has no {' and no '.join(lacks)}"

    def _bounds(self) -> Mapping[str, int]:
        told = self._declared
        return bounds_by_unit(self.prices, told.model, tokens_in=told.tokens_in_max, tokens_out=told.tokens_out_max)
