"""What imports leave behind: folders with unpacked files, and hidden rows of imports whose process died."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .desk import size_of
from .discarding import Hidden, delete_batch, half_imported
from .ledger import Ledger, Reader
from .location import make_side_folder, side_folder
from .processes import ProcessIdentity
from .snapshot_tables import RUN_TABLES
from .transaction import Transaction

__all__ = ["discard_half_imported", "discard_run", "import_folder", "left_folders", "remove_left_folders"]

_FOLDER: Final = "imports"
_ROWS_PER_BATCH: Final = 5_000
_WORKER: Final = "SELECT pid, start_ticks, boot_id, host, ended_us FROM workers WHERE worker_id = ?"


@contextlib.contextmanager
def import_folder(ledger: Ledger) -> Iterator[Path]:
    """An empty folder beside the ledger for what is unpacked; what dead processes left there is removed."""
    parent = make_side_folder(ledger.path) / _FOLDER
    parent.mkdir(exist_ok=True)
    remove_left_folders(ledger)
    folder = parent / f"{ledger.worker_id}-{os.urandom(4).hex()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def left_folders(ledger: Ledger, reader: Reader) -> list[Path]:
    """The folders of imports whose process is proven dead."""
    there = sorted((side_folder(ledger.path) / _FOLDER).glob("*"))
    return [folder for folder in there if _is_dead(ledger, reader, folder.name.partition("-")[0])]


def remove_left_folders(ledger: Ledger) -> tuple[int, int]:
    """Remove these; returns how many they were, and the bytes of their files."""
    with ledger.reading() as reader:
        left = left_folders(ledger, reader)
    count = freed = 0
    for folder in left:
        size = sum(size_of(path) for path in folder.rglob("*") if path.is_file())
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            count, freed = count + 1, freed + size
    return count, freed


def discard_half_imported(ledger: Ledger) -> int:
    """Remove the hidden rows of imports whose process is proven dead; returns how many runs they were."""
    with ledger.reading() as reader:
        found = reader.rows("SELECT import_id, run_key, worker_id FROM imports WHERE state = 'receiving'")
        dead = [(import_id, run_key) for import_id, run_key, worker in found if _is_dead(ledger, reader, worker)]
    for import_id, run_key in dead:
        discard_run(ledger, import_id, run_key)
    return len(dead)


def discard_run(ledger: Ledger, import_id: str, run_key: int | None) -> None:
    """Remove the rows of a run that was never shown, in bounded batches, and say so of its import."""
    of = half_imported(import_id)
    if run_key is not None:
        for table in reversed(RUN_TABLES):
            if table.name != "runs":
                _delete(ledger, table.name, [column.name for column in table.primary_key], run_key, of)
    ledger.write(lambda tx: _discard_head(tx, import_id, run_key))


def _delete(ledger: Ledger, table: str, key: list[str], run_key: int, of: Hidden) -> None:
    names = ", ".join(key)
    sql = (
        f"DELETE FROM {table} WHERE ({names}) IN (SELECT {names} FROM {table} WHERE run_key = ?"
        f" LIMIT {_ROWS_PER_BATCH})"
    )
    with ledger.reading() as reader:
        if reader.row(f"SELECT 1 FROM {table} WHERE run_key = ? LIMIT 1", (run_key,)) is None:
            return
    while ledger.write(lambda tx: delete_batch(tx, table, sql, (run_key,), of=of)):
        pass


def _discard_head(tx: Transaction, import_id: str, run_key: int | None) -> None:
    if not half_imported(import_id).is_there(tx):
        return  # another process was at it, too
    tx.move("import", "discarded",
            "UPDATE imports SET state = 'discarded', ended_us = ?, run_key = NULL"
            " WHERE import_id = ? AND state = 'receiving'", (tx.now_us, import_id))  # fmt: skip
    tx.change(
        "UPDATE workers SET ended_us = ?, end_reason = 'died' WHERE ended_us IS NULL AND worker_id <> ?"
        " AND worker_id = (SELECT worker_id FROM imports WHERE import_id = ?)", (tx.now_us, tx.worker_id, import_id),
    )  # fmt: skip
    if run_key is not None:
        tx.change("DELETE FROM runs WHERE run_key = ? AND state = 'importing'", (run_key,))


def _is_dead(ledger: Ledger, reader: Reader, worker_id: str) -> bool:
    row = reader.row(_WORKER, (worker_id,))
    if row is None:
        return False
    *identity, ended_us = row
    return ended_us is not None or ledger.is_dead(worker_id, ProcessIdentity(*identity))
