"""Which prices a run goes by, and tokens by class, as reports show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ledger.canonical import parse_json, stored_json
from ..ledger.ledger import Reader
from ..ledger.run_reads import RunRow
from ..ledger.run_settings import price_changes
from .protocols import USAGE_MAX
from .report_models import PricesLine
from .token_classes import TokenClass

__all__ = ["by_class", "price_lines", "prices_now", "told_classes"]


def by_class(found: Mapping[str, int]) -> dict[str, int]:
    """The classes that any token is in, in their order."""
    return {one.value: found[one] for one in TokenClass if found.get(one)}


def told_classes(text: str) -> dict[str, int]:
    """Counts by class from their JSON text; what another program wrote and is no count is passed over."""
    told = stored_json(text)
    counts = told.items() if isinstance(told, dict) else ()
    return {name: count for name, count in counts if type(count) is int and 0 <= count <= USAGE_MAX}


def price_lines(reader: Reader, run: RunRow, *, event: int | None = None) -> list[PricesLine]:
    """The prices of the run's beginning and those that came after, each once, up to an event."""
    told = [*_of_beginning(run), *(one for change in price_changes(reader, run.run_key, event=event) for one in change)]
    found = [_line(one) for one in told]
    return [line for number, line in enumerate(found) if line not in found[:number]]


def prices_now(reader: Reader, run: RunRow) -> list[PricesLine]:
    """The prices that were recorded last."""
    changes = price_changes(reader, run.run_key)
    return [_line(one) for one in (changes[-1] if changes else _of_beginning(run))]


def _of_beginning(run: RunRow) -> list[Any]:
    document = parse_json(run.identity)
    limits = document.get("limits") if isinstance(document, Mapping) else None
    found = limits.get("prices") if isinstance(limits, Mapping) else None
    return list(found) if isinstance(found, list) else []


def _line(told: Any) -> PricesLine:
    """Text of other programs, too, and of snapshots that were redacted."""
    known = told if isinstance(told, Mapping) else {}
    return PricesLine(**{name: str(known.get(name, "")) for name in PricesLine.model_fields})
