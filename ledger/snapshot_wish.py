"""What a snapshot is asked to be, and the one place that makes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from .custody_moves import move_runs
from .errors import UsageError
from .ledger import Ledger
from .snapshot_export import Exported, export_runs

__all__ = ["SnapshotWish", "write_snapshot"]


@attrs.frozen
class SnapshotWish:
    """A copy of everything, unless said otherwise.

    ``slots`` (``KEY=VALUE``) says whose contents travel, ``redact`` what does not (see `snapshot_redaction`); with
    ``move`` the snapshot may go on with the runs, and the ledger may not. ``force`` replaces a file.
    """

    move: bool = False
    slots: tuple[str, ...] = ()
    redact: tuple[str, ...] = ()
    force: bool = False


def write_snapshot(ledger: Ledger, run_ids: Sequence[str], path: Path, wish: SnapshotWish) -> Exported:
    """Write it; raises what `export_runs` and `move_runs` raise, and UsageError for a wish that contradicts itself."""
    if wish.move and (wish.slots or wish.redact):
        raise UsageError(
            "who goes on with a run needs all of its contents: --move excludes --slots and --redact",
            "export a copy with them, or move the run whole",
        )
    if wish.move:
        return move_runs(ledger, run_ids, path, force=wish.force)
    return export_runs(ledger, run_ids, path, slots=wish.slots, redact=wish.redact, force=wish.force)
