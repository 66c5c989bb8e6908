"""Copying a ledger's whole file as it is at one instant, while it may be written to."""

from __future__ import annotations

import contextlib
from pathlib import Path

from . import driver
from .errors import LedgerDamaged, LedgerFailed
from .failures import first_line, is_damage, is_full

__all__ = ["copy_whole"]


def copy_whole(ledger: Path, copy: Path) -> None:
    """Copy the ledger's file into an empty one, in one step: a view that lasts as long as the disk takes for it.

    Raises LedgerDamaged where the ledger is damaged, and LedgerFailed where a disk fails. The copy is not synced.
    """
    with contextlib.ExitStack() as stack:
        try:
            source = stack.enter_context(contextlib.closing(driver.connect(ledger, read_only=True)))
            target = stack.enter_context(contextlib.closing(driver.sqlite.connect(str(copy))))
            target.execute("PRAGMA journal_mode=OFF").fetchone()  # a kill would leave it, and a half copy is no use
            source.backup(target)
        except driver.SqliteError as problem:
            if is_damage(problem):
                raise LedgerDamaged(
                    f"the ledger {ledger} is damaged: {first_line(problem)}", "run `tallystick ledger check`",
                    str(ledger),
                ) from problem  # fmt: skip
            remedy = "free space there" if is_full(problem) else "look after both disks"
            raise LedgerFailed(
                f"the ledger {ledger} could not be copied to {copy.parent}: {first_line(problem)}",
                f"{remedy}, then start again",
            ) from problem
