"""Which calls of an attempt have no outcome yet: what a death, a lost lease or a settlement has to decide about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import attrs

from .records import Waiting
from .states import DispatchState, IfUnknown, NextStep

__all__ = ["AttemptCalls", "OpenCall", "calls_of", "follow_up", "next_of"]

_CALLS = (
    "SELECT c.call_id, d.dispatch_no, d.state, c.if_unknown, c.key_until_us,"
    " coalesce(c.payload, c.payload_artifact) IS NOT NULL FROM calls c JOIN dispatches d ON d.call_id = c.call_id"
    " WHERE c.run_key = ? AND c.slot_no = ? AND c.attempt_no = ? AND c.owner = 'attempt'"
    " ORDER BY c.position, d.dispatch_no"
)
_OPEN = (DispatchState.INTENDED, DispatchState.UNKNOWN)


class _Rows(Protocol):
    def rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[Any]: ...


@attrs.frozen
class OpenCall:
    """A call that was sent, or may have been, and has no answer; ``intended`` are its dispatches that are under way."""

    call_id: str
    if_unknown: IfUnknown
    key_until_us: int | None
    is_stored: bool
    intended: tuple[int, ...]

    def follow_up(self, now_us: int) -> Waiting | None:
        """What may follow by itself; None: an operator decides."""
        return follow_up(self.if_unknown, now_us=now_us, key_until_us=self.key_until_us, stored=self.is_stored)


@attrs.frozen
class AttemptCalls:
    """The calls of one attempt, as far as they matter when it breaks off.

    ``open`` has the calls without an outcome, by position. ``newest_call`` is empty where there is none;
    ``newest_state`` is the state of its newest dispatch. ``has_unknown`` says that some dispatch of the attempt is
    unknown, also one of a call that was answered when it was sent again.
    """

    open: tuple[OpenCall, ...]
    newest_call: str
    newest_state: str | None
    has_unknown: bool

    @property
    def is_under_way(self) -> bool:
        """Whether something is intended of which no outcome is committed."""
        return any(call.intended for call in self.open)


def calls_of(source: _Rows, run_key: int, slot_no: int, attempt_no: int) -> AttemptCalls:
    """The calls of an attempt, by one query whose cost grows with the attempt."""
    by_call: dict[str, list[Any]] = {}
    for row in source.rows(_CALLS, (run_key, slot_no, attempt_no)):
        by_call.setdefault(row[0], []).append(row)
    rows = [row for group in by_call.values() for row in group]
    newest = next(reversed(by_call.values()))[-1] if by_call else None
    return AttemptCalls(
        tuple(_open_call(group) for group in by_call.values() if _is_open(group)),
        "" if newest is None else newest[0],
        None if newest is None else newest[2],
        any(row[2] == DispatchState.UNKNOWN for row in rows),
    )


def _is_open(group: list[Any]) -> bool:
    states = {row[2] for row in group}
    return not states.isdisjoint(_OPEN) and DispatchState.ANSWERED not in states


def _open_call(group: list[Any]) -> OpenCall:
    call_id, _, _, if_unknown, key_until_us, stored = group[-1]
    intended = tuple(row[1] for row in group if row[2] == DispatchState.INTENDED)
    return OpenCall(call_id, IfUnknown(if_unknown), key_until_us, bool(stored), intended)


def next_of(calls: Iterable[OpenCall], *, now_us: int) -> Waiting | None:
    """What may follow for an attempt with these open calls: nothing where one of them has to be decided on.

    What has to be sent again or asked for goes before a new attempt; one call after the other.
    """
    waits = [call.follow_up(now_us) for call in calls]
    found = [wait for wait in waits if wait is not None]
    if len(found) < len(waits) or not found:
        return None
    return next((wait for wait in found if wait.step is not NextStep.NEW), found[0])


def follow_up(if_unknown: IfUnknown, *, now_us: int, key_until_us: int | None, stored: bool = True) -> Waiting | None:
    """What may follow an unknown outcome by itself; None: nothing, an operator decides."""
    match if_unknown:
        case IfUnknown.KEEP:
            return None
        case IfUnknown.RESEND:
            valid = stored and (key_until_us is None or now_us < key_until_us)
            return Waiting(NextStep.RESEND) if valid else None
        case IfUnknown.QUERY:
            return Waiting(NextStep.QUERY)
        case IfUnknown.REPEAT | IfUnknown.RESTART:
            return Waiting(NextStep.NEW)
    raise ValueError(if_unknown)
