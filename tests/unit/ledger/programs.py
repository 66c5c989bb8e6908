"""What the child processes of the tests do. Each is run by `children.Child`; a printed line is a sign to the test."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tallystick.ledger.file_locks import holder_pid
from tallystick.ledger.ledger import Ledger
from tests.unit.ledger import factories


def tell(text: object) -> None:
    print(text, flush=True)


def hear() -> str:
    return sys.stdin.readline().strip()


def open_at_a_sign(path: str) -> None:
    """Open an absent or present ledger when told, become a worker, and tell how it went."""
    tell("ready")
    hear()
    with Ledger.open(path, create=True) as ledger:
        tell(ledger.worker_id)
        hear()


def create_ledger(path: str) -> None:
    Ledger.open(path, create=True).close()
    tell("created")


def tell_settings(path: str) -> None:
    """The settings of the writer and of a reader, as lines ``who name value``."""
    with Ledger.open(path) as ledger:
        for name in factories.SETTINGS:
            tell(f"writer {name} {ledger.write(lambda tx, name=name: tx.row(f'PRAGMA {name}')[0])}")  # type: ignore[misc]
        with ledger.reading() as reader:
            for name in factories.SETTINGS:
                tell(f"reader {name} {reader.row(f'PRAGMA {name}')[0]}")


def open_as_nobody(path: str) -> None:
    """Try to open a ledger as somebody who may not write its folder; tell the error's code and text."""
    Ledger.open(Path(path).with_name("warm.db"), create=True).close()  # everything is imported by this
    for name in ("warm.db", "warm.db-wal", "warm.db-shm"):
        Path(path).with_name(name).unlink(missing_ok=True)
    tell("ready")
    hear()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    for create in (False, True):
        try:
            with Ledger.open(path, create=create) as ledger:
                tell(f"worker {ledger.worker_id}")
        except Exception as problem:
            tell(f"{getattr(problem, 'code', type(problem).__name__)} {problem}")


def tell_lock_holder(path: str) -> None:
    tell(holder_pid(Path(path)))
