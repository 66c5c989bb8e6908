"""Moving runs away: nobody may go on with them, their snapshot is published, and then it alone may."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .custody_changes import begin_move, end_move
from .errors import SnapshotInvalid, SnapshotNewer, UsageError
from .ledger import Ledger
from .publishing import refuse_taken
from .snapshot_export import Exported, export_runs
from .snapshot_verify import read_manifest

__all__ = ["move_runs"]


def move_runs(ledger: Ledger, run_ids: Sequence[str], path: Path, *, force: bool = False) -> Exported:
    """Write a snapshot that may go on with the runs, and give up custody of them.

    After a kill in between, the same call goes on: the runs are *moving* until then, and nobody's to continue. Raises
    RunBusy, CustodyElsewhere, and what `export_runs` raises.
    """
    wanted = sorted(set(run_ids))
    force = force or _is_ours(path, wanted)
    refuse_taken(path, force=force)
    for run_id in wanted:
        begin_move(ledger, run_id)
    made = export_runs(ledger, wanted, path, custody="move", force=force)
    end_move(ledger, wanted)
    return made


def _is_ours(path: Path, run_ids: Sequence[str]) -> bool:
    """Whether an earlier call has published just this move there, and was killed before it could say so."""
    try:
        manifest = read_manifest(path)
    except (SnapshotInvalid, SnapshotNewer, UsageError):
        return False
    return [(one.run, one.custody) for one in manifest.runs] == [(run_id, "move") for run_id in run_ids]
