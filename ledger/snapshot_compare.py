"""How a snapshot's run stands to the same run here: unknown here, the same, further, behind, or gone another way.

Two histories are compared by their hashes: where two events have the same hash, everything before is the same. What a
ledger adds to a copy by judging it is *local*: it is no step of the run, and stays when the run is moved forward.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import attrs

from .custody import LOCAL_FROM
from .errors import RunBusy, SnapshotDiverged
from .ledger import Reader
from .snapshot_format import RunEntry
from .states import CustodyState, RunState

__all__ = ["Became", "Comparison", "compare", "is_local"]


class Became(StrEnum):
    """What an import made of a run."""

    NEW = "new"  # it was not here
    FORWARD = "forward"  # it was here as it stood before
    HELD = "held"  # it was here as it stood, and its custody is new
    UNCHANGED = "unchanged"  # everything of it was here


@attrs.frozen
class Comparison:
    """``shared`` is the number of the last event that both have; custody is what it is after the import."""

    run_id: str
    became: Became
    shared: int
    ours: int
    custody: CustodyState
    epoch: int
    run_key: int | None = None
    newest_hash: bytes = b""


_OURS: Final = (
    "SELECT r.run_key, r.state, r.custody, r.custody_epoch, e.event_no, e.hash FROM runs r"
    " LEFT JOIN events e ON e.run_key = r.run_key WHERE r.run_id = ? ORDER BY e.event_no DESC LIMIT 1"
)


def compare(ours: Reader, entry: RunEntry, theirs: Reader, their_key: int) -> Comparison:
    """What importing the run would make of it.

    Raises SnapshotDiverged where it went on here and there, or there without custody, or where two copies were judged,
    and RunBusy where another process takes it in.
    """
    row = ours.row(_OURS, (entry.run,))
    moves = entry.custody == "move"
    if row is None:
        custody = CustodyState.HELD if moves else CustodyState.COPY
        return Comparison(entry.run, Became.NEW, 0, 0, custody, entry.epoch)
    run_key, state, custody, epoch, newest, digest = row
    if state == RunState.IMPORTING:
        raise RunBusy(
            f"run {entry.run} is being taken in by another process", "wait for it, then import again", entry.run
        )
    here, there = _History(ours, run_key, newest), _History(theirs, their_key, entry.event_no)
    shared = _last_shared(here, there)
    told = Comparison(entry.run, Became.UNCHANGED, shared, newest, CustodyState(custody), epoch, run_key, bytes(digest))
    is_ahead, is_behind = there.newest > shared, here.newest > shared and not here.is_local_after(shared)
    if not is_ahead:
        takes = moves and custody == CustodyState.COPY and entry.epoch >= epoch and not is_behind
        return attrs.evolve(told, became=Became.HELD, custody=CustodyState.HELD, epoch=entry.epoch) if takes else told
    is_owner = custody == CustodyState.HELD
    if is_behind or (is_owner and here.newest > shared):
        raise _diverged(entry, here, there, shared)
    if here.newest > shared and there.has_local_after(shared):
        raise _judged_twice(entry, here, there, shared)  # their evaluations would take the numbers of ours
    forward = attrs.evolve(told, became=Became.FORWARD)
    if is_owner and entry.epoch <= epoch:
        if not there.is_local_after(shared):
            raise _without_custody(entry, there, shared)
        return forward
    becomes = CustodyState.HELD if moves and entry.epoch >= epoch else CustodyState.COPY
    return attrs.evolve(forward, custody=becomes, epoch=max(epoch, entry.epoch))


def is_local(kind: str, body: dict[str, Any]) -> bool:
    """Whether an event is of an evaluation that was made on a copy, or of a budget of one."""
    family = kind.partition(".")[0]
    number = body.get("budget", 0) if family == "budget" else body.get("evaluation", 0)
    return family in _JUDGING and int(number) >= LOCAL_FROM


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_JUDGING: Final = ("evaluation", "judgment", "judgments", "observation", "budget")


@attrs.frozen
class _History:
    reader: Reader
    run_key: int
    newest: int

    def hash_at(self, event_no: int) -> bytes:
        return bytes(
            self.reader.row("SELECT hash FROM events WHERE run_key = ? AND event_no = ?", (self.run_key, event_no))[0]
        )

    def told_at(self, event_no: int) -> str:
        kind, at_us = self.reader.row(
            "SELECT kind, at_us FROM events WHERE run_key = ? AND event_no = ?", (self.run_key, event_no)
        )
        at = _EPOCH + timedelta(microseconds=at_us)
        return f"{kind} at {at.isoformat(timespec='milliseconds').removesuffix('+00:00')}Z"

    def is_local_after(self, event_no: int) -> bool:
        """Whether nothing but local evaluations follows."""
        return all(self._after(event_no))

    def has_local_after(self, event_no: int) -> bool:
        """Whether something of local evaluations follows."""
        return any(self._after(event_no))

    def _after(self, event_no: int) -> Iterator[bool]:
        found = self.reader.each(
            "SELECT kind, body FROM events WHERE run_key = ? AND event_no > ? ORDER BY event_no",
            (self.run_key, event_no),
        )
        return (is_local(kind, json.loads(body)) for kind, body in found)


def _last_shared(one: _History, other: _History) -> int:
    low, high = 0, min(one.newest, other.newest)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one.hash_at(middle) == other.hash_at(middle) else (low, middle - 1)
    return low


def _diverged(entry: RunEntry, here: _History, there: _History, shared: int) -> SnapshotDiverged:
    first = shared + 1
    return SnapshotDiverged(
        f"run {entry.run} went on here and in the snapshot: event {first} is {here.told_at(first)} here and"
        f" {there.told_at(first)} there",
        "import it into a ledger of its own to look at it; only one of both can be gone on with", entry.run, first,
    )  # fmt: skip


def _judged_twice(entry: RunEntry, here: _History, there: _History, shared: int) -> SnapshotDiverged:
    first = shared + 1
    return SnapshotDiverged(
        f"run {entry.run} was judged in this copy and in another one, whose evaluations have the same numbers: event"
        f" {first} is {here.told_at(first)} here and {there.told_at(first)} there",
        "import it into a ledger of its own to look at it", entry.run, first,
    )  # fmt: skip


def _without_custody(entry: RunEntry, there: _History, shared: int) -> SnapshotDiverged:
    first = shared + 1
    return SnapshotDiverged(
        f"run {entry.run} is this ledger's to continue, and the snapshot went on with it all the same: event {first} is"
        f" {there.told_at(first)} there",
        "import it into a ledger of its own to look at it", entry.run, first,
    )  # fmt: skip
