"""The slots that wait, a bounded number at a time, in the order of the plan.

There is one coordinator a run, so what is read here can only be claimed by it; the claim itself is still guarded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

from ..ledger.ledger import Ledger
from ..ledger.records import PendingSlot
from ..ledger.slot_reads import next_not_before, pending_slots, suspect_slots

__all__ = ["Feed"]

_FETCH: Final = 256
_START: Final = (-1, -1)


class Feed:
    """Hands out waiting slots once each while they are in hand; belongs to the coordinator's loop.

    ``closed_variants`` are passed over: their budget has no room. So are, for as long as a caller says so, those that
    are ``held`` back: their target asked to be left alone.
    """

    def __init__(self, ledger: Ledger, run_key: int) -> None:
        self._ledger = ledger
        self._run_key = run_key
        self._buffer: deque[PendingSlot] = deque()
        self._after = _START
        self._in_hand: set[int] = set()
        self.closed_variants: set[int] = set()
        self._held: Collection[int] = ()
        self._dry_without: frozenset[int] | None = None

    def next(self, *, held: Collection[int] = ()) -> PendingSlot | None:
        """The next slot of no ``held`` variant that may be claimed now, None when there is none at the moment."""
        if held and self._dry_without == frozenset(held):
            return None  # read through already; it may be a long way
        self._held = held
        slot = self._next()
        self._dry_without = frozenset(held) if slot is None and held else None
        return slot

    def _next(self) -> PendingSlot | None:
        slot = self._take()
        if slot is None and self._fetch_from(self._after):
            slot = self._take()
        if slot is None and self._after != _START and self._fetch_from(_START):
            slot = self._take()
        return slot

    def put_back(self, slot: PendingSlot) -> None:
        """A slot that was handed out and not claimed."""
        self._in_hand.discard(slot.slot_no)
        self._after, self._dry_without = _START, None

    def not_yet(self, slot: PendingSlot) -> None:
        """A slot that was handed out and whose variant is passed over for a moment; it keeps its place."""
        self._in_hand.discard(slot.slot_no)
        self._buffer.appendleft(slot)

    def done(self, slot_no: int, *, waits_again: bool) -> None:
        """A slot whose attempt has ended."""
        self._in_hand.discard(slot_no)
        if waits_again:
            # It stands behind the place that was read up to; the next look begins at the front.
            self._after, self._dry_without = _START, None

    def suspects(self, *, blamed: bool) -> list[PendingSlot]:
        """Slots that were in flight when a coordinator died, each to be tried alone; ``blamed``: once more."""
        with self._ledger.reading() as reader:
            found = suspect_slots(reader, self._run_key, limit=_FETCH, blamed=blamed)
        return [slot for slot in found if slot.variant_no not in self.closed_variants]

    def waits_until_us(self, *, held: Collection[int] = (), besides: Collection[int] = ()) -> int | None:
        """The earliest instant for a slot that is no suspect, of no ``held`` variant and not among those ``besides``.

        None: none of them waits.
        """
        without = self.closed_variants.union(held)
        with self._ledger.reading() as reader:
            return next_not_before(reader, self._run_key, without=without, besides=besides, suspects=False)

    def _take(self) -> PendingSlot | None:
        while self._buffer:
            slot = self._buffer.popleft()
            if slot.slot_no not in self._in_hand and slot.variant_no not in self._passed_over():
                self._in_hand.add(slot.slot_no)
                return slot
        return None

    def _fetch_from(self, after: tuple[int, int]) -> bool:
        now_us = self._ledger.clock.now_us()
        with self._ledger.reading() as reader:
            while True:
                rows = pending_slots(
                    reader, self._run_key, after=after, now_us=now_us, limit=_FETCH, without=self._passed_over()
                )
                if not rows:
                    return False
                after = (rows[-1].not_before_us, rows[-1].slot_no)
                fresh = [row for row in rows if row.slot_no not in self._in_hand]
                if fresh:
                    self._after = after
                    self._buffer.extend(fresh)
                    return True

    def _passed_over(self) -> set[int]:
        return self.closed_variants.union(self._held)
