"""Who is in the way of a set of devices, in words for a display."""

from __future__ import annotations

from ..ledger.host_claims import ClaimedElsewhere, HostObstacle
from ..ledger.lease_line import process_and_run
from ..ledger.lease_records import Blocked, Obstacle
from ..ledger.ledger import Ledger
from ..ledger.states import LeaseState

__all__ = ["waits_for"]


def waits_for(ledger: Ledger, found: Blocked | ClaimedElsewhere) -> str:
    """``atlas:SN-0042, held by process 4711 (run 01h…)``, of the first device that somebody is in the way of."""
    if isinstance(found, ClaimedElsewhere):
        one = found.obstacles[0]
        return f"{one.resource}, {_elsewhere(one)}"
    first = found.obstacles[0]
    return f"{first.resource}, {_here(ledger, first)}"


def _here(ledger: Ledger, one: Obstacle) -> str:
    pid, run_id = process_and_run(ledger, one)
    who = "another process" if pid is None else f"process {pid}"
    who += "" if run_id is None else f" (run {run_id})"
    match one.state:
        case LeaseState.QUARANTINED:
            return "in quarantine"
        case LeaseState.WAITING:
            return f"for which {who} stands in line before"
        case _:
            return f"held by {who}"


def _elsewhere(one: HostObstacle) -> str:
    has = "for which a runner stands in line before" if one.is_waiting else "held by"
    if one.entry is None:
        return f"{has} a process of another user"
    who = f"process {one.entry.process.pid} for the ledger {one.entry.ledger_path}"
    return f"{has}: {who}" if one.is_waiting else f"{has} {who}"
