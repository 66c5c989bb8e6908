"""Moving runs away: nobody may go on with them, their snapshot is published, and then it alone may.

Several are moved together: what refuses one of them has changed none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from .custody_changes import begin_move, end_move
from .errors import RunBusy, SnapshotInvalid, SnapshotNewer, TransitionRefused, UsageError
from .ledger import Ledger
from .location import make_side_folder
from .publishing import followed, refuse_taken
from .snapshot_export import Exported, export_runs, refuse_too_many
from .snapshot_format import Manifest
from .snapshot_verify import read_manifest
from .states import CustodyState

__all__ = ["move_runs"]


def move_runs(ledger: Ledger, run_ids: Sequence[str], path: Path, *, force: bool = False) -> Exported:
    """Write a snapshot that may go on with the runs, and give up custody of them.

    After a kill in between, the same call goes on: the runs are *moving* until then, and nobody's to continue. After a
    kill at its very end, it finds that all is done. Raises RunBusy, also while another process moves runs of this
    ledger or where one was taken back meanwhile, CustodyElsewhere, and what `export_runs` raises.
    """
    with _alone(ledger, run_ids):
        return _moved(ledger, run_ids, path, force=force)


@contextlib.contextmanager
def _alone(ledger: Ledger, run_ids: Sequence[str]) -> Iterator[None]:
    # Whoever finds a run that is being moved finishes that, which is right after a death only: two that live would
    # each publish a file.
    folder = os.open(make_side_folder(ledger.path), os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            raise RunBusy(
                "another process is moving runs of this ledger away", "wait for its end, and look what it has moved",
                min(run_ids, default=""), "another process",
            ) from problem  # fmt: skip
        yield
    finally:
        os.close(folder)


def _moved(ledger: Ledger, run_ids: Sequence[str], path: Path, *, force: bool) -> Exported:
    wanted = sorted(set(run_ids))
    there = _of_this_move(path, wanted)
    if there is not None and _is_done(ledger, there):
        return Exported(path, there.digest, path.stat().st_size, there)
    force = force or there is not None
    refuse_taken(path, force=force, ledger=ledger.path)
    refuse_too_many(wanted)
    begin_move(ledger, wanted)
    made = export_runs(ledger, wanted, path, custody="move", force=force)
    try:
        end_move(ledger, wanted)
    except TransitionRefused as problem:
        with contextlib.suppress(OSError):  # nobody was told of it, and custody says that nobody goes on by it
            followed(path).unlink()
        raise RunBusy(
            "a run was taken back while its snapshot was written: nothing is moved, and the file is removed",
            "move it again, if it is still to go", wanted[0],
        ) from problem  # fmt: skip
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
