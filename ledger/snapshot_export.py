"""Exporting runs: one file that holds everything they refer to, whatever goes on in the ledger meanwhile.

All rows are read at one instant. The same runs give the same bytes: no time, no place and no name of the machine stands
in the file. Memory is bounded by a chunk and by the names of the artifacts.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs

from . import driver
from .crashpoints import crashpoint
from .errors import ReadingEnded, RunNotFound, UsageError
from .ledger import Ledger, Reader
from .publishing import beside, published
from .snapshot_format import CustodyMode, Manifest
from .snapshot_redaction import Redaction, Rule, read_rules
from .snapshot_slots import chosen_slots
from .snapshot_writer import ChosenRun, SnapshotWriter
from .whole_copy import copy_whole

__all__ = ["RUNS_MAX", "Exported", "export_runs", "refuse_too_many"]

RUNS_MAX: Final = 1_000
_RUN: Final = (
    "SELECT r.run_key, r.run_id, r.planned, r.custody_epoch, e.event_no, lower(hex(e.hash)) FROM runs r"
    " JOIN events e ON e.run_key = r.run_key WHERE r.run_id = ? AND r.state NOT IN ('planning', 'importing')"
    " ORDER BY e.event_no DESC LIMIT 1"
)


@attrs.frozen
class Exported:
    """A snapshot that lies durably at its path; ``digest`` is the one over everything, ``size`` that of the file."""

    path: Path
    digest: str
    size: int
    manifest: Manifest


def export_runs(
    ledger: Ledger,
    run_ids: Sequence[str],
    path: Path,
    *,
    custody: CustodyMode = "copy",
    slots: Sequence[str] = (),
    redact: Sequence[str] = (),
    force: bool = False,
) -> Exported:
    """Write a snapshot of the runs to that path; ``slots`` and ``redact`` say what is left out.

    Raises RunNotFound, UsageError where the path is taken, LedgerDamaged where an artifact is not what was kept, and
    LedgerFailed where the disk fails; then nothing new lies at the path.
    """
    refuse_too_many(run_ids)
    what = _What(tuple(sorted(set(run_ids))), custody, tuple(slots), read_rules(redact))
    written, renamed = (lambda: crashpoint("export.written")), (lambda: crashpoint("export.renamed"))
    with published(path, force=force, ledger=ledger.path, written=written, renamed=renamed) as file:
        try:
            with ledger.reading() as reader:
                writer = _write_rows(file, reader, what)
        except ReadingEnded:
            # Much is being written meanwhile: a copy of the file is in nobody's way.
            with _copied(ledger, path) as reader:
                writer = _write_rows(file, reader, what)
        manifest, size = writer.finish(ledger.artifacts)
    return Exported(path, manifest.digest, size, manifest)


def refuse_too_many(run_ids: Sequence[str]) -> None:
    """Raise UsageError for more runs than a snapshot holds, or for none."""
    if not 0 < len(set(run_ids)) <= RUNS_MAX:
        raise UsageError(f"a snapshot holds 1 to {RUNS_MAX} runs, not {len(set(run_ids))}", "name other runs")


@attrs.frozen
class _What:
    run_ids: tuple[str, ...]
    custody: CustodyMode
    slots: tuple[str, ...]
    rules: tuple[Rule, ...]


def _write_rows(file: io.BufferedRandom, reader: Reader, what: _What) -> SnapshotWriter:
    file.seek(0)
    file.truncate()
    chosen = [_choose(reader, run_id) for run_id in what.run_ids]
    wanted = what.slots or what.rules
    redactions = {run.run_key: _redaction(reader, run.run_key, what) for run in chosen} if wanted else {}
    writer = SnapshotWriter(file, chosen, what.custody, redactions)
    writer.write_rows(reader)
    return writer


def _choose(reader: Reader, run_id: str) -> ChosenRun:
    row = reader.row(_RUN, (run_id,))
    if row is None:
        raise RunNotFound(f"there is no run {run_id}", "list them with `tallystick runs`", run_id)
    return ChosenRun(*row)


def _redaction(reader: Reader, run_key: int, what: _What) -> Redaction:
    if not what.slots:
        return Redaction(reader, what.rules)
    wanted, cases = chosen_slots(reader, run_key, what.slots)
    return Redaction(reader, what.rules, slots=",".join(what.slots), chosen=wanted, cases=cases)


@contextlib.contextmanager
def _copied(ledger: Ledger, path: Path) -> Iterator[Reader]:
    """A view of a copy of the whole ledger, which is made in one go and lies beside the snapshot meanwhile."""
    with beside(path) as copy:
        copy_whole(ledger.path, copy)
        with contextlib.closing(driver.connect_frozen(copy)) as connection:
            yield Reader(connection, ledger.artifacts)
