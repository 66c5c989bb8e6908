"""The prices of a work order: given to whoever has none of its own, and which ones a run goes by.

Prices change no answer. They are recorded with the run, under its limits, so that a figure of money can be traced to
them; a run whose work order has others goes on, and the change is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import attrs

from ..ledger.canonical import JsonValue

__all__ = ["Prices", "PricesMaker", "PricesUsed", "WrittenPrices", "give_prices", "prices_used"]

WrittenPrices: TypeAlias = "str | Mapping[str, JsonValue]"
"""As a work order has them: the name of a price file, or the table itself."""


class Prices(Protocol):
    """What an adapter made of them. ``digest`` names their content, ``as_of`` is the day that they are of."""

    as_of: str | None
    digest: str
    file: str | None

    def document(self) -> dict[str, JsonValue]:
        """The table, with the name of its file: what is kept in the ledger, which must not need the file."""


class PricesMaker(Protocol):
    """Reads prices; ``place`` is what the text of an error begins with. Raises WorkOrderInvalid."""

    def __call__(self, told: WrittenPrices, *, folder: Path, place: str) -> Prices: ...


@attrs.frozen(order=True)
class PricesUsed:
    """Which prices a run goes by. ``file`` is empty where they stand in the work order."""

    as_of: str
    digest: str
    file: str

    def to_json(self) -> dict[str, JsonValue]:
        return {"as_of": self.as_of, "digest": self.digest, "file": self.file}


def give_prices(prices: Prices | None, users: Iterable[object]) -> None:
    """Let targets and judges that can price what they use (``use_prices``) take these, where they have none."""
    for user in users:
        take: Any = getattr(user, "use_prices", None)
        if prices is not None and take is not None:
            take(prices)


def prices_used(users: Iterable[object]) -> tuple[PricesUsed, ...]:
    """The prices that targets and judges go by, each once."""
    found = {prices.digest: prices for user in users if (prices := getattr(user, "prices", None)) is not None}
    return tuple(sorted(PricesUsed(one.as_of or "", one.digest, one.file or "") for one in found.values()))
