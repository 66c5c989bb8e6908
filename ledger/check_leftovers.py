"""What processes that died have left behind, and what else is in the way: no damage, each with what clears it."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final

import attrs

from .artifacts import files_in
from .check_rules import Severity
from .desk import size_of
from .findings import Finding, finding_of
from .import_care import left_folders
from .lease_records import has_expired
from .ledger import Ledger
from .processes import ProcessIdentity
from .readers import LOG_BYTES_MAX, Reader

__all__ = ["leftovers"]

_RUN: Final = "run:"
_LEASES: Final = (
    "SELECT l.resource, l.state, l.worker_id, l.boot_id, l.expires_boot_ns, w.host, l.set_id FROM leases l"
    " JOIN workers w ON w.worker_id = l.worker_id WHERE l.state IN ('held', 'waiting')"
)
_IN_FILES: Final = "SELECT digest FROM artifacts WHERE data IS NULL"


@attrs.frozen
class _Workers:
    """Who is proven dead, and who of these has not been recorded as ended."""

    dead: frozenset[str]
    unrecorded: frozenset[str]


def leftovers(ledger: Ledger, reader: Reader) -> Iterator[Finding]:
    """Everything that was left behind."""
    workers = _workers(ledger, reader)
    leases = reader.rows(_LEASES)
    yield from _leases(ledger, leases, workers.dead)
    yield from _runs(reader, workers.dead)
    busy = {row[2] for row in leases}
    busy |= {row[0] for row in reader.rows("SELECT made_by FROM runs WHERE state IN ('planning', 'importing')")}
    unpacked = [folder.name for folder in left_folders(ledger, reader)]
    busy |= {name.partition("-")[0] for name in unpacked}
    yield from _warning(
        "worker.dead", "processes died without a word, and held nothing",
        (f"worker {worker_id}" for worker_id in sorted(workers.unrecorded - busy)),
        f"nothing waits for them; their files in {ledger.path.name}.d/workers may be deleted while nothing runs",
    )  # fmt: skip
    yield from _warning(
        "device.quarantined", "devices are in quarantine",
        (row[0] for row in reader.each("SELECT DISTINCT resource FROM leases WHERE state = 'quarantined'")),
        "look at each, then let it be used again with `tallystick device clear DEVICE --reason TEXT`",
    )  # fmt: skip
    yield from _warning(
        "import.unpacked", f"folders in {ledger.path.name}.d/imports hold what imports had unpacked that were killed",
        iter(unpacked), "`tallystick ledger compact` removes them, and so does the next `tallystick import FILE`",
    )  # fmt: skip
    wanted = {digest.removeprefix("sha256:") for (digest,) in reader.each(_IN_FILES)}
    yield from _warning(
        "artifact.orphan", "files belong to no artifact: a process died before it recorded them, or is about to",
        (path.name for path in files_in(reader.artifacts) if path.name not in wanted),
        "`tallystick ledger compact` removes them",
    )  # fmt: skip
    yield from _log(ledger)


def _warning(code: str, what: str, places: Iterator[str], remedy: str) -> Iterator[Finding]:
    return finding_of(code, what, places, remedy, Severity.WARNING)


def _workers(ledger: Ledger, reader: Reader) -> _Workers:
    dead, unrecorded = set[str](), set[str]()
    for worker_id, pid, ticks, boot, host, ended in reader.each(
        "SELECT worker_id, pid, start_ticks, boot_id, host, ended_us FROM workers"
    ):
        if ended is not None:
            dead.add(worker_id)
        elif ledger.is_dead(worker_id, ProcessIdentity(pid, ticks, boot, host)):
            dead.add(worker_id)
            unrecorded.add(worker_id)
    return _Workers(frozenset(dead), frozenset(unrecorded))


def _leases(ledger: Ledger, leases: list[Any], dead: AbstractSet[str]) -> Iterator[Finding]:
    yield from _warning(
        "lease.dead_holder", "leases are held by processes that have died",
        (row[0] for row in leases if row[1] == "held" and row[2] in dead),
        "go on with `tallystick resume RUN` or, for an evaluation, `tallystick judge RUN ORDER`, which take them over;"
        " a device goes to the next run that asks for it",
    )  # fmt: skip
    yield from _warning(
        "lease.dead_waiter", "processes that have died stand in line for devices",
        (row[0] for row in leases if row[1] == "waiting" and row[2] in dead),
        "nothing: who stands behind them passes them",
    )  # fmt: skip
    now_ns = ledger.clock.boot_ns()
    yield from _warning(
        "lease.expired", "leases have run out, and their holders may be alive and stand still",
        (
            resource
            for resource, state, worker_id, boot, expires, host, set_id in leases
            if state == "held" and set_id is not None and worker_id not in dead
            and has_expired(boot, expires, now_ns, host=host)
        ),
        "wake the holder or end it; `tallystick device show DEVICE` says who it is,"
        " `tallystick device release DEVICE --force --reason TEXT` takes it away",
    )  # fmt: skip


def _runs(reader: Reader, dead: AbstractSet[str]) -> Iterator[Finding]:
    half = reader.rows(
        "SELECT r.run_id, coalesce(i.worker_id, r.made_by) FROM runs r LEFT JOIN imports i ON i.run_key = r.run_key"
        " WHERE r.state IN ('planning', 'importing')"
    )
    yield from _warning(
        "run.half_planned", "runs were being written by processes that have died",
        (f"run {run_id}" for run_id, worker_id in half if worker_id in dead),
        "`tallystick ledger compact` removes them; or the next `tallystick run ORDER` removes plans, the next"
        " `tallystick import FILE` what an import left",
    )  # fmt: skip
    yield from _warning(
        "run.left_in_flight", "runs that nobody executes have planned observations in flight",
        (
            f"run {run_id}"
            for (run_id,) in reader.each(
                "SELECT r.run_id FROM runs r WHERE r.custody = 'held' AND r.state NOT IN ('planning', 'importing')"
                " AND EXISTS (SELECT 1 FROM slots s WHERE s.run_key = r.run_key AND s.state = 'in_flight')"
                f" AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.resource = '{_RUN}' || r.run_id AND l.state = 'held')"
            )
        ),
        "go on with `tallystick resume RUN`, which finds out what became of each",
    )  # fmt: skip


def _log(ledger: Ledger) -> Iterator[Finding]:
    size = size_of(ledger.path.with_name(ledger.path.name + "-wal"))
    yield from _warning(
        "log.large", "the write-ahead log is large, because something keeps an old view of the ledger open",
        iter([f"{size / 2**20:.0f} MiB"] if size > LOG_BYTES_MAX else []),
        "end the program that reads the ledger (another SQLite shell, a notebook); the next writes empty the log",
    )  # fmt: skip
