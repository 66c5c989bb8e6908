"""What only this machine needs to know of a run: where its work order lies. Never exported, part of no identity."""

from __future__ import annotations

from pathlib import Path

from .ledger import Reader
from .transaction import Transaction

__all__ = ["folder_of", "remember_folder"]


def remember_folder(tx: Transaction, run_id: str, folder: Path) -> None:
    """Keep the folder from which the run's relative paths begin."""
    tx.execute(
        "INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (f"folder:{run_id}", str(folder.absolute())),
    )


def folder_of(reader: Reader, run_id: str) -> Path | None:
    """The folder of the run's work order on this machine, None where it is not known."""
    row = reader.row("SELECT value FROM facts WHERE name = ?", (f"folder:{run_id}",))
    return None if row is None else Path(row[0])
