"""Moving runs away: nobody may go on with them, their snapshot is published, and then it alone may.

Several are moved together: what refuses one of them has changed none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .custody_changes import begin_move, end_move
from .errors import SnapshotInvalid, SnapshotNewer, UsageError
from .ledger import Ledger
from .publishing import refuse_taken
from .snapshot_export import Exported, export_runs, refuse_too_many
from .snapshot_format import Manifest
from .snapshot_verify import read_manifest
from .states import CustodyState

__all__ = ["move_runs"]


def move_runs(ledger: Ledger, run_ids: Sequence[str], path: Path, *, force: bool = False) -> Exported:
    """Write a snapshot that may go on with the runs, and give up custody of them.

    After a kill in between, the same call goes on: the runs are *moving* until then, and nobody's to continue. After a
    kill at its very end, it finds that all is done. Raises RunBusy, CustodyElsewhere, and what `export_runs` raises.
    """
    wanted = sorted(set(run_ids))
    there = _of_this_move(path, wanted)
    if there is not None and _is_done(ledger, there):
        return Exported(path, there.digest, path.stat().st_size, there)
    force = force or there is not None
    refuse_taken(path, force=force, ledger=ledger.path)
    refuse_too_many(wanted)
    begin_move(ledger, wanted)
    made = export_runs(ledger, wanted, path, custody="move", force=force)
    end_move(ledger, wanted)
    return made


def _of_this_move(path: Path, run_ids: Sequence[str]) -> Manifest | None:
    """What an earlier call has published there of just these runs, before it was killed or could say so."""
    try:
        manifest = read_manifest(path)
    except (SnapshotInvalid, SnapshotNewer, UsageError):
        return None
    told = [(one.run, one.custody) for one in manifest.runs]
    return manifest if told == [(run_id, "move") for run_id in run_ids] else None


def _is_done(ledger: Ledger, there: Manifest) -> bool:
    """Whether that snapshot is the one that may go on with the runs: they were moved away by it."""
    with ledger.reading() as reader:
        found = [
            reader.row("SELECT custody, custody_epoch FROM runs WHERE run_id = ?", (one.run,)) for one in there.runs
        ]
    return found == [(CustodyState.MOVED, one.epoch) for one in there.runs]
