"""Which run a command that looks at one means."""

from __future__ import annotations

from ..ledger.errors import RunNotFound
from ..ledger.ledger import Ledger
from ..ledger.run_reads import RunRow, find_run, list_runs

__all__ = ["named_or_newest"]


def named_or_newest(ledger: Ledger, run: str | None) -> RunRow:
    """The run that is named, else the newest, whatever its state; raises RunNotFound and RunAmbiguous."""
    with ledger.reading() as reader:
        if run is not None:
            return find_run(reader, run)
        found = next(iter(list_runs(reader, limit=1)), None)
    if found is None:
        raise RunNotFound(f"the ledger {ledger.path} has no run", "start one with `tallystick run ORDER`")
    return found
