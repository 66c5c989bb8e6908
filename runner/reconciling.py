"""Settling unknown outcomes by an operator's decision."""

from __future__ import annotations

from collections.abc import Iterable

from ..ledger.crashpoints import crashpoint
from ..ledger.ledger import Ledger
from ..ledger.settlements import Settlement, settle_unknown
from ..ledger.states import SlotState

__all__ = ["settle_all"]


def settle_all(ledger: Ledger, settlements: Iterable[Settlement]) -> list[SlotState]:
    """Settle each in a transaction of its own and return what became of its slot.

    A kill in between leaves the settled ones settled and the others unknown. Raises TransitionRefused at the first that
    is not unknown any more.
    """
    states = []
    for settlement in settlements:
        crashpoint("reconcile.before")
        states.append(ledger.write(lambda tx, settlement=settlement: settle_unknown(tx, settlement)))  # type: ignore[misc]
        crashpoint("reconcile.committed")
    return states
