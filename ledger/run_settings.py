"""How a run is executed from now on: limits and throughput, which may change under it, every change recorded."""

from __future__ import annotations

from collections.abc import Sequence

from .custody import require_held
from .transaction import Transaction

__all__ = ["change_settings"]


def change_settings(tx: Transaction, run_key: int, settings: str, differences: Sequence[str]) -> None:
    """Keep the new settings (canonical JSON text); ``differences`` are lines for people."""
    require_held(tx, run_key)
    tx.change("UPDATE runs SET settings = ? WHERE run_key = ?", (settings, run_key))
    tx.event(run_key, "run.settings_changed", {"differences": list(differences)})
