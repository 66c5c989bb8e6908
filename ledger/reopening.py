"""A run that has ended is open again where something of it waits, and so is the evaluation that it makes itself."""

from __future__ import annotations

from typing import Final

from .transaction import Transaction

__all__ = ["reopen_run"]

_FINISHED: Final = "UPDATE runs SET state = 'open', ended_us = NULL WHERE run_key = ? AND state = 'finished'"
_ENDED: Final = (
    "UPDATE runs SET state = 'open', ended_us = NULL WHERE run_key = ? AND state IN ('finished', 'cancelled')"
)


def reopen_run(tx: Transaction, run_key: int, *, is_taken_back: bool = False) -> None:
    """Open a finished run; ``is_taken_back`` opens one that was given up, too. Nothing happens to an open one."""
    if tx.change(_ENDED if is_taken_back else _FINISHED, (run_key,)):
        tx.change("UPDATE evaluations SET ended_us = NULL WHERE run_key = ? AND evaluation_no = 1", (run_key,))
