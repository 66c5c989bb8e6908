"""Who holds what only one process may work on (a run, an evaluation), and whether that process is proven dead."""

from __future__ import annotations

import attrs

from .ledger import Ledger
from .processes import ProcessIdentity

__all__ = ["Holder", "holder_of"]


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
