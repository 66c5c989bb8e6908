"""Standing in line for a set of devices, from an event loop: ask, poll, leave.

Who is in the way is looked at outside of a transaction, because proving a death asks the locks of worker files; the
grant then compares and sets the very leases that were seen.
"""

from __future__ import annotations

from collections.abc import Collection

from .crashpoints import crashpoint
from .lease_records import Blocked, DeviceAsk, Granted, Obstacle, has_expired
from .leases import ask, release, try_grant
from .ledger import Ledger
from .processes import ProcessIdentity

__all__ = ["dead_in_the_way", "is_held", "is_wanted", "leave", "poll", "process_and_run", "stand_in_line"]


async def stand_in_line(ledger: Ledger, asks: Collection[DeviceAsk], *, run_key: int | None) -> str:
    """Ask for the set, durably, and return its id; a cancelled await leaves the line again."""
    set_id = await ledger.write_async(
        lambda tx: ask(tx, asks, run_key=run_key), undo=lambda tx, asked: release(tx, asked, reason="cancelled")
    )
    crashpoint("lease.asked")
    return set_id


async def poll(ledger: Ledger, set_id: str) -> Granted | Blocked:
    """Take the set if its turn has come; call it again within the lease time, or the place in line may be passed over.

    A cancelled await gives back what was granted. Raises LeaseLost when the set stands in line no more.
    """
    dead = dead_in_the_way(ledger, set_id)
    found = await ledger.write_async(
        lambda tx: try_grant(tx, set_id, dead=dead), undo=lambda tx, _: release(tx, set_id, reason="cancelled")
    )
    if isinstance(found, Granted):
        crashpoint("lease.granted")
    return found


async def leave(ledger: Ledger, set_id: str, *, reason: str = "done") -> bool:
    """Give the set back in good order, or leave the line."""
    left = await ledger.write_async(lambda tx: release(tx, set_id, reason=reason))
    crashpoint("lease.released")
    return left


def dead_in_the_way(ledger: Ledger, set_id: str) -> frozenset[str]:
    """The leases of other workers on this set's devices, held or waiting, whose process is proven dead."""
    with ledger.reading() as reader:
        rows = reader.rows(
            "SELECT o.lease_id, w.worker_id, w.pid, w.start_ticks, w.boot_id, w.host, w.ended_us"
            " FROM leases m JOIN leases o ON o.resource = m.resource AND o.state IN ('held', 'waiting')"
            " JOIN workers w ON w.worker_id = o.worker_id WHERE m.set_id = ? AND o.set_id <> ?",
            (set_id, set_id),
        )
    found: dict[str, bool] = {}
    for _, worker_id, pid, ticks, boot, host, ended in rows:
        if worker_id not in found:
            identity = ProcessIdentity(pid, ticks, boot, host)
            found[worker_id] = ended is not None or ledger.is_dead(worker_id, identity)
    return frozenset(row[0] for row in rows if found[row[1]])


def is_wanted(ledger: Ledger, set_id: str) -> bool:
    """Whether somebody else waits for a device of this set, and still asks: then its holder should give way."""
    with ledger.reading() as reader:
        rows = reader.rows(
            "SELECT o.boot_id, o.expires_boot_ns FROM leases m JOIN leases o ON o.resource = m.resource"
            " AND o.state = 'waiting' WHERE m.set_id = ? AND o.set_id <> ?",
            (set_id, set_id),
        )
    now_ns = ledger.clock.boot_ns()
    return any(not has_expired(boot, expires, now_ns) for boot, expires in rows)


def is_held(ledger: Ledger, set_id: str) -> bool:
    """Whether nobody has taken any of the set away, be it that its time has run out."""
    with ledger.reading() as reader:
        states = reader.rows("SELECT DISTINCT state FROM leases WHERE set_id = ?", (set_id,))
    return [row[0] for row in states] == ["held"]


def process_and_run(ledger: Ledger, one: Obstacle) -> tuple[int | None, str | None]:
    """The pid of who is in the way, and its run's id."""
    with ledger.reading() as reader:
        worker = reader.row("SELECT pid FROM workers WHERE worker_id = ?", (one.worker_id,))
        run = reader.row("SELECT run_id FROM runs WHERE run_key = ?", (one.run_key,))
    return (None if worker is None else worker[0]), (None if run is None else run[0])
