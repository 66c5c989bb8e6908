"""Who holds what only one process may work on (a run, an evaluation), and whether that process is proven dead."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from .errors import RunBusy
from .ledger import Ledger
from .processes import ProcessIdentity
from .transaction import Transaction

__all__ = ["Holder", "dead_leases", "holder_of", "let_go_of_run"]


@attrs.frozen
class Holder:
    """The holder of a lease that has no expiry: it is replaced when, and only when, its process is proven dead.

    ``since_us`` is an instant, in microseconds since the epoch.
    """

    lease_id: str
    worker_id: str
    identity: ProcessIdentity
    dead: bool
    since_us: int


def holder_of(ledger: Ledger, resource: str) -> Holder | None:
    """Who holds the resource (``run:<id>``, ``evaluation:<id>``), None when nobody does."""
    with ledger.reading() as reader:
        row = reader.row(
            "SELECT l.lease_id, l.worker_id, w.pid, w.start_ticks, w.boot_id, w.host, l.since_us, w.ended_us"
            " FROM leases l JOIN workers w ON w.worker_id = l.worker_id WHERE l.resource = ? AND l.state = 'held'",
            (resource,),
        )
    if row is None:
        return None
    lease_id, worker_id, pid, ticks, boot, host, since, ended = row
    identity = ProcessIdentity(pid, ticks, boot, host)
    return Holder(lease_id, worker_id, identity, ended is not None or ledger.is_dead(worker_id, identity), since)


def dead_leases(ledger: Ledger, run_key: int, *, then: str) -> tuple[str, ...]:
    """The leases of a run, of its evaluations and of its devices whose holders are proven dead, for `let_go_of_run`.

    Raises RunBusy where a process that is not proven dead holds one or waits for one; ``then`` is what to do after it.
    """
    with ledger.reading() as reader:
        (run_id,) = reader.row("SELECT run_id FROM runs WHERE run_key = ?", (run_key,))
        found = reader.rows(
            "SELECT l.lease_id, l.worker_id, w.pid, w.start_ticks, w.boot_id, w.host, w.ended_us FROM leases l"
            " LEFT JOIN workers w ON w.worker_id = l.worker_id WHERE l.run_key = ? AND l.state IN ('held', 'waiting')",
            (run_key,),
        )
    for _, worker_id, *identity, ended_us in found:
        if ended_us is None and not (worker_id and ledger.is_dead(worker_id, ProcessIdentity(*identity))):
            raise _busy(run_id, f"process {identity[0]} (worker {worker_id})", then)
    return tuple(row[0] for row in found)


def let_go_of_run(tx: Transaction, run_key: int, dead: Sequence[str], *, then: str) -> None:
    """Lose the leases of the dead, after which nobody holds anything of the run.

    Raises RunBusy where somebody does: a lease was taken since `dead_leases` looked.
    """
    for lease_id in dead:
        tx.change("UPDATE leases SET state = 'lost', ended_us = ?, reason = 'its process died'"
                  " WHERE lease_id = ? AND state IN ('held', 'waiting')", (tx.now_us, lease_id))  # fmt: skip
        tx.change("UPDATE workers SET ended_us = ?, end_reason = 'died' WHERE ended_us IS NULL AND worker_id ="
                  " (SELECT worker_id FROM leases WHERE lease_id = ?)", (tx.now_us, lease_id))  # fmt: skip
    if tx.row("SELECT 1 FROM leases WHERE run_key = ? AND state IN ('held', 'waiting')", (run_key,)) is not None:
        (run_id,) = tx.row("SELECT run_id FROM runs WHERE run_key = ?", (run_key,))
        raise _busy(run_id, "another process", then)


def _busy(run_id: str, who: str, then: str) -> RunBusy:
    return RunBusy(f"run {run_id} is in use by {who}", f"wait for it, or stop it, then {then}", run_id, who)
