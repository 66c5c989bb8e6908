"""Which prices a run goes by, and tokens by class, as reports show them."""

from __future__ import annotations

from collections.abc import Mapping

from ..ledger.canonical import parse_json
from ..ledger.ledger import Reader
from ..ledger.run_reads import RunRow
from ..ledger.run_settings import price_changes
from .report_models import PricesLine
from .token_classes import TokenClass

__all__ = ["by_class", "price_lines", "prices_now"]


def by_class(found: Mapping[str, int]) -> dict[str, int]:
    """The classes that any token is in, in their order."""
    return {one.value: found[one] for one in TokenClass if found.get(one)}


def price_lines(reader: Reader, run: RunRow, *, event: int | None = None) -> list[PricesLine]:
    """The prices of the run's beginning and those that came after, each once, up to an event."""
    told = [*_of_beginning(run), *(one for change in price_changes(reader, run.run_key, event=event) for one in change)]
    found = [PricesLine(**one) for one in told]
    return [line for number, line in enumerate(found) if line not in found[:number]]


def prices_now(reader: Reader, run: RunRow) -> list[PricesLine]:
    """The prices that were recorded last."""
    changes = price_changes(reader, run.run_key)
    return [PricesLine(**one) for one in (changes[-1] if changes else _of_beginning(run))]


def _of_beginning(run: RunRow) -> list[dict[str, str]]:
    document = parse_json(run.identity)
    limits = document.get("limits") if isinstance(document, Mapping) else None
    found = limits.get("prices", []) if isinstance(limits, Mapping) else []
    return [dict(one) for one in found]  # type: ignore[arg-type,union-attr]
