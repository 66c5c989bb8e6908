"""Slots that were settled by somebody else between the look at them and the claim; that stops no run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..ledger.errors import TransitionRefused
from ..ledger.ledger import Ledger
from ..ledger.records import PendingSlot
from ..ledger.slot_reads import slot_stands
from ..ledger.states import SlotState

__all__ = ["SettledMeanwhile", "unless_settled"]


class SettledMeanwhile(Exception):
    """The slot is not what was handed out: a late answer or an operator has settled its newest attempt."""


@contextlib.contextmanager
def unless_settled(ledger: Ledger, run_key: int, slot: PendingSlot) -> Iterator[None]:
    """Raise SettledMeanwhile where a refusal of what is done inside comes from a settlement.

    Where the slot stands as it was handed out, or somebody else has claimed it, the refusal goes on.
    """
    try:
        yield
    except TransitionRefused as refused:
        if refused.machine == "session":
            raise SettledMeanwhile from None  # a turn was settled: the conversation goes on from another place
        with ledger.reading() as reader:
            state, tries, step = slot_stands(reader, run_key, slot.slot_no)
        is_settled = state is not SlotState.IN_FLIGHT and (state, step) != (SlotState.PENDING, slot.next_step)
        if tries != slot.attempts or not is_settled:
            raise
        raise SettledMeanwhile from None
