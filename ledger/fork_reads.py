"""A run as a fork comes of it: how each planned observation stood at an event, and what is taken over. Only reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import attrs

from .forks import Kept, KeptUnknown, OpenSend
from .history import RunHistory, history_at, note_what_came_later
from .ledger import Ledger, Reader
from .planning import CasePlan
from .run_reads import RunRow, variants_of
from .states import CallOwner, DispatchState, NextStep, SlotState
from .views import Views

__all__ = ["IN_FLIGHT", "Ancestor", "cases_of_run", "read_ancestor"]

IN_FLIGHT: Final = "fork.in_flight"
"""Why an outcome is unknown in a fork that was under way when the fork was made."""
_IN_FLIGHT_SAID: Final = "it was under way when the run was forked"
_CASES_AT_ONCE: Final = 2_000


@attrs.define
class Ancestor:
    """The run at the event. ``cases`` are the numbers of its cases by digest, ``variants`` of its variants by name."""

    run: RunRow
    history: RunHistory
    cases: dict[str, int]
    variants: dict[str, int]
    now_us: int
    _open: dict[tuple[int, int], list[tuple[str, int]]] = attrs.field(factory=lambda: defaultdict(list))

    def __attrs_post_init__(self) -> None:
        for key, one in self.history.open_dispatches.items():
            if one.owner == CallOwner.ATTEMPT:
                self._open[one.slot_no, one.attempt_no].append(key)

    @property
    def repetitions(self) -> int:
        return self.history.planned // max(1, len(self.cases) * len(self.variants))

    @property
    def is_whole(self) -> bool:
        """Whether its plan is cases × variants × repetitions; that of a guard in a script grows otherwise."""
        return self.repetitions * len(self.cases) * len(self.variants) == self.history.planned

    def slot_no(self, case_no: int, variant_no: int, repetition: int) -> int:
        """The planned observation of these; 0 where there is none. Numbered as `planning` does it."""
        if not case_no or not variant_no or repetition > self.repetitions:
            return 0
        return ((repetition - 1) * len(self.cases) + case_no - 1) * len(self.variants) + variant_no

    def state_of(self, slot_no: int) -> SlotState:
        """How it stood: unknown also where it was in flight, or waited to be resent or asked for."""
        state = self.history.state_of(slot_no)
        waits = state is SlotState.IN_FLIGHT or (
            state is SlotState.PENDING and self.history.step_of(slot_no) != NextStep.NEW
        )
        return SlotState.UNKNOWN if waits and self._open.get(self._newest(slot_no)) else state

    def kept(self, slot_no: int, from_slot: int) -> Kept:
        """Its newest attempt, for a planned observation of a fork."""
        return Kept(slot_no, from_slot, self.history.attempts[from_slot], self.history.reasons.get(from_slot))

    def kept_unknown(self, reader: Reader, slot_no: int, from_slot: int) -> KeptUnknown:
        """Its newest attempt, of which something is unknown, with everything that its open calls had sent."""
        newest = self._newest(from_slot)
        attempt = self.history.open_attempts[newest]
        sends = tuple(self._send(key) for key in self._open[newest])
        others = tuple(
            (call_id, number)
            for call_id in dict.fromkeys(send.call_id for send in sends)
            for (number,) in reader.rows(
                "SELECT dispatch_no FROM dispatches WHERE call_id = ? ORDER BY dispatch_no", (call_id,)
            )
            if (call_id, number) not in self.history.open_dispatches
            and (call_id, number) not in self.history.later_dispatches
        )
        if attempt.reason is None:
            return KeptUnknown(self.kept(slot_no, from_slot), self.now_us, IN_FLIGHT, _IN_FLIGHT_SAID, sends, others)
        return KeptUnknown(
            self.kept(slot_no, from_slot), attempt.ended_us, attempt.reason, attempt.message or "", sends, others
        )

    def _newest(self, slot_no: int) -> tuple[int, int]:
        return slot_no, self.history.attempts[slot_no]

    def _send(self, key: tuple[str, int]) -> OpenSend:
        one = self.history.open_dispatches[key]
        if one.state == DispatchState.INTENDED:
            return OpenSend(*key, self.now_us, IN_FLIGHT, _IN_FLIGHT_SAID)
        return OpenSend(
            *key, one.ended_us, one.reason or "", one.message or "", one.bytes_sent, one.duration_us, one.status
        )


def read_ancestor(views: Views, run: RunRow, *, now_us: int) -> Ancestor:
    """The run as it stands at its newest event, to which everything that follows is pinned."""
    history = history_at(views.reader, run.run_key, turn=views.turn)
    views.on_renewal.append(lambda newer: note_what_came_later(newer, history))
    reader = views.turn()
    note_what_came_later(reader, history)
    cases = dict(reader.each("SELECT digest, case_no FROM cases WHERE run_key = ?", (run.run_key,)))
    variants = {one.name: one.variant_no for one in variants_of(reader, run.run_key)}
    return Ancestor(run, history, cases, variants, now_us)


def cases_of_run(ledger: Ledger, run_key: int) -> Iterator[CasePlan]:
    """The run's cases once more, as they are planned; each part by a view of its own."""
    last = 0
    while True:
        with ledger.reading() as reader:
            rows = reader.rows(
                "SELECT case_no, case_id, digest, input, expected, metadata FROM cases WHERE run_key = ?"
                " AND case_no > ? ORDER BY case_no LIMIT ?",
                (run_key, last, _CASES_AT_ONCE),
            )
        if not rows:
            return
        last = rows[-1][0]
        for _, case_id, digest, text, expected, metadata in rows:
            yield CasePlan(case_id, digest, text, expected, metadata)
