"""How a run is executed from now on: limits and throughput, which may change under it, every change recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .budgets import let_wait_again
from .canonical import JsonValue, stored_json
from .custody import require_held
from .ledger import Reader
from .transaction import Transaction

__all__ = ["change_prices", "change_settings", "price_changes"]


def change_settings(
    tx: Transaction, run_key: int, settings: str, differences: Sequence[str], *, has_other_prices: bool = False
) -> None:
    """Keep the new settings (canonical JSON text); ``differences`` are lines for people."""
    require_held(tx, run_key)
    tx.change("UPDATE runs SET settings = ? WHERE run_key = ?", (settings, run_key))
    tx.event(run_key, "run.settings_changed", {"differences": list(differences)})
    if has_other_prices:
        let_wait_again(tx, run_key)


def change_prices(tx: Transaction, run_key: int, prices: Sequence[JsonValue], difference: str) -> None:
    """Record which prices the run goes by from now on."""
    require_held(tx, run_key)
    tx.event(run_key, "run.settings_changed", {"differences": [difference], "prices": list(prices)})
    let_wait_again(tx, run_key)  # other prices may fit, or tell a bound that was missing


def price_changes(reader: Reader, run_key: int, *, event: int | None = None) -> list[list[Any]]:
    """The prices that a run went by after those of its beginning, in their order, up to an event."""
    rows = reader.rows(
        "SELECT body FROM events WHERE run_key = ? AND kind = 'run.settings_changed' AND (?2 IS NULL OR event_no <= ?2)"
        " ORDER BY event_no",
        (run_key, event),
    )
    found = [stored_json(text).get("prices") for (text,) in rows]
    return [prices for prices in found if isinstance(prices, list)]
