"""Deaths that are charged to a case, and the case that is parked for them (docs/decisions/0006).

A death is charged where it is classified first: by whoever opens the run anew, or by another run that takes a device
over from the dead. That one does not know how many deaths a case of this run may have, so it only charges; the next
that opens the run parks.
"""

from __future__ import annotations

from .records import DispatchKey
from .transaction import Transaction

__all__ = ["charge", "in_flight", "park", "park_charged"]


def in_flight(tx: Transaction, run_key: int) -> int:
    """How many slots of the run are in flight: more than one, and none of them is to blame alone."""
    count: int = tx.row(
        "SELECT count(*) FROM slots INDEXED BY slots_in_flight WHERE run_key = ? AND state = 'in_flight'", (run_key,)
    )[0]
    return count


def charge(tx: Transaction, key: DispatchKey, *, in_flight: int) -> int:
    """Charge a death to a running attempt's case if it was tried alone, and return its deaths; 0 if it was not."""
    solitary = tx.row(
        "SELECT solitary FROM attempts WHERE run_key = ? AND slot_no = ? AND attempt_no = ?",
        (key.run_key, key.slot_no, key.attempt_no),
    )[0]
    if not solitary or in_flight != 1:
        return 0
    deaths: int = tx.rows(
        "UPDATE slots SET solitary_deaths = solitary_deaths + 1 WHERE run_key = ? AND slot_no = ?"
        " RETURNING solitary_deaths",
        (key.run_key, key.slot_no),
    )[0][0]
    return deaths


def park(tx: Transaction, run_key: int, slot_no: int, *, deaths: int) -> None:
    """Try a slot that waits no more until somebody says otherwise."""
    tx.move("slot", "parked",
            "UPDATE slots SET state = 'parked', suspect = 0, reason = 'kills_the_runner'"
            " WHERE run_key = ? AND slot_no = ? AND state = 'pending'",
            (run_key, slot_no))  # fmt: skip
    tx.event(run_key, "slot.parked", {"slot": slot_no, "solitary_deaths": deaths})


def park_charged(tx: Transaction, run_key: int, *, deaths_max: int) -> int:
    """Park the suspects that have had so many deaths charged to them, and return how many; ``deaths_max`` 0: none."""
    if deaths_max < 1:
        return 0
    found = tx.rows(
        "SELECT slot_no, solitary_deaths FROM slots INDEXED BY slots_suspect"
        " WHERE run_key = ? AND suspect = 1 AND state = 'pending' AND solitary_deaths >= ?",
        (run_key, deaths_max),
    )
    for slot_no, deaths in found:
        park(tx, run_key, slot_no, deaths=deaths)
    return len(found)
