"""The calls that a target makes by itself while an attempt at it goes on (`role` ``inner``): an agent's requests.

The attempt begins without a call and is ended by `attempt_calls`; each request in between is a call of its own, with
intent, reservation and outcome. What a death leaves is read back here: which requests have an answer, in which order.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from . import budgets
from .artifacts import bytes_of
from .attempt_calls import open_attempt
from .attempt_rows import end_dispatch, record_event, take_up_again
from .crashpoints import crashpoint
from .ledger import Reader
from .open_calls import AttemptCalls, calls_of
from .records import DispatchFacts, DispatchKey
from .states import AttemptState, DispatchState, IfUnknown, NextStep
from .transaction import Transaction

__all__ = [
    "INNER",
    "InnerLog",
    "OpenInner",
    "RecordedCall",
    "begin_attempt",
    "end_call",
    "inner_log",
    "is_inner",
    "leave_calls",
    "recorded_bytes",
    "take_up_attempt",
]

INNER: Final = "inner"
"""The role of a call that a target's own code has asked for."""

_LOG = (
    "SELECT a.attempt_no, a.state, c.call_id, d.dispatch_no, d.state, coalesce(d.settled_by, ''), c.payload_digest,"
    " c.head, c.if_unknown, c.key_until_us, d.status, coalesce(d.reason, ''), coalesce(d.message, ''), d.raw_cut"
    " FROM attempts a LEFT JOIN calls c ON c.run_key = a.run_key AND c.slot_no = a.slot_no"
    " AND c.attempt_no = a.attempt_no AND c.owner = 'attempt' AND c.role = 'inner'"
    " AND c.reused_from IS NULL"
    " LEFT JOIN dispatches d ON d.call_id = c.call_id"
    " WHERE a.run_key = ? AND a.slot_no = ? ORDER BY a.attempt_no, c.position, d.dispatch_no"
)
_BEGINS_ANEW = (AttemptState.FAILED, AttemptState.ABANDONED, AttemptState.LATE)
_DEFINITE = (DispatchState.ANSWERED, DispatchState.FAILED)
_UNSEEN = ("recovery", "runner")


@attrs.frozen
class RecordedCall:
    """A request of an earlier attempt with what became of it, as the target saw it then.

    ``head`` is the canonical JSON text that the request was committed with; with ``payload_digest`` it is what a
    request is known by. ``is_cut``: more came back than is kept.
    """

    call_id: str
    dispatch_no: int
    state: str
    head: str
    payload_digest: str
    status: int | None
    reason: str
    message: str
    is_cut: bool

    @property
    def known_by(self) -> tuple[str, str]:
        """What tells one request from another."""
        return self.head, self.payload_digest


@attrs.frozen
class OpenInner:
    """A request of the newest attempt without an outcome; ``dispatches`` counts its sends."""

    call_id: str
    dispatch_no: int
    dispatches: int
    if_unknown: IfUnknown
    key_until_us: int | None


@attrs.frozen
class InnerLog:
    """What a new attempt replays, in order; ``open`` has the newest attempt's requests without an outcome, by what they
    are known by, and ``expected`` those which were asked for and may be sent without that being a divergence.
    """

    recorded: tuple[RecordedCall, ...] = ()
    open: dict[tuple[str, str], OpenInner] = attrs.field(factory=dict)
    expected: frozenset[tuple[str, str]] = frozenset()


def begin_attempt(
    tx: Transaction, run_key: int, slot_no: int, *, fingerprint: str, solitary: bool = False
) -> DispatchKey:
    """Begin an attempt whose target will ask by itself; the key names the attempt. Raises TransitionRefused."""
    key = open_attempt(tx, run_key, slot_no, fingerprint=fingerprint, solitary=solitary)
    tx.event(run_key, "attempt.begun", {"slot": slot_no, "attempt": key.attempt_no})
    return key


def take_up_attempt(tx: Transaction, key: DispatchKey, *, solitary: bool = False) -> None:
    """Let the newest attempt run again, so that its request without an outcome is sent once more."""
    take_up_again(tx, key, NextStep.RESEND, solitary=solitary)
    tx.event(key.run_key, "attempt.begun", {"slot": key.slot_no, "attempt": key.attempt_no})


def end_call(tx: Transaction, key: DispatchKey, facts: DispatchFacts) -> None:
    """What became of one inner dispatch; its attempt goes on. Raises TransitionRefused when that is known already."""
    end_dispatch(tx, key, facts, DispatchState.INTENDED)
    budgets.settle_ended(tx, key, facts)
    _tell(tx, key, facts)
    crashpoint("dispatch.outcome.inside")


def leave_calls(tx: Transaction, key: DispatchKey, facts: DispatchFacts) -> AttemptCalls:
    """Whatever of the attempt is under way has an unknown outcome; returns its calls as they stand then."""
    calls = calls_of(tx, key.run_key, key.slot_no, key.attempt_no)
    if not calls.is_under_way:
        return calls
    for call in calls.open:
        for dispatch_no in call.intended:
            inner = attrs.evolve(key, call_id=call.call_id, dispatch_no=dispatch_no, holds=())
            end_dispatch(tx, inner, facts, DispatchState.INTENDED)
            _tell(tx, inner, facts)
    return calls_of(tx, key.run_key, key.slot_no, key.attempt_no)


def _tell(tx: Transaction, key: DispatchKey, facts: DispatchFacts) -> None:
    record_event(tx, key, "call.ended", facts, {
        "state": facts.state, "message": facts.message, "bytes_sent": facts.bytes_sent,
        "duration_us": facts.duration_us, "status": facts.status,
    })  # fmt: skip


def is_inner(tx: Transaction, call_id: str) -> bool:
    """Whether a call is one that a target's own code has asked for."""
    row = tx.row("SELECT role FROM calls WHERE call_id = ?", (call_id,))
    return row is not None and row[0] == INNER


def inner_log(reader: Reader, run_key: int, slot_no: int) -> InnerLog:
    """What a new attempt at the slot replays; an attempt that has failed is the last of what is replayed never.

    Its cost grows with the requests of the slot, and reads none of their bytes.
    """
    recorded: list[RecordedCall] = []
    expected: set[tuple[str, str]] = set()
    unanswered: dict[tuple[str, str], OpenInner] = {}
    for rows in _by_first(reader.rows(_LOG, (run_key, slot_no))).values():
        calls = list(_by_call(rows).values())
        unanswered = {_known_by(group[-1]): _open_inner(group) for group in calls if _is_open(group)}
        if _begins_anew(rows[0][1], calls):
            recorded, expected, unanswered = [], set(), {}
            continue
        seen = [_recorded(group) for group in calls]
        definite = max((number for number, one in enumerate(seen, 1) if one.state in _DEFINITE), default=0)
        recorded += [
            one for one, group in zip(seen[:definite], calls, strict=False)
            if one.state in _DEFINITE or not (_is_to_be_sent_again(group) or group[-1][5] in _UNSEEN)
        ]  # fmt: skip
        expected.update(_known_by(group[-1]) for group in calls if _recorded(group).state not in _DEFINITE)
    return InnerLog(tuple(recorded), unanswered, frozenset(expected))


def recorded_bytes(reader: Reader, call: RecordedCall) -> bytes | None:
    """What came back for a recorded call, None where nothing did."""
    row = reader.row(
        "SELECT coalesce(raw, raw_artifact) FROM dispatches WHERE call_id = ? AND dispatch_no = ?",
        (call.call_id, call.dispatch_no),
    )
    return None if row is None else bytes_of(reader, row[0])


def _by_first(rows: list[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row)
    return found


def _by_call(rows: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        if row[2] is not None:
            found.setdefault(row[2], []).append(row)
    return found


def _known_by(row: Any) -> tuple[str, str]:
    return row[7], row[6]


def _is_open(group: list[Any]) -> bool:
    states = {row[4] for row in group}
    return DispatchState.ANSWERED not in states and not states.isdisjoint(
        (DispatchState.UNKNOWN, DispatchState.INTENDED)
    )


def _is_to_be_sent_again(group: list[Any]) -> bool:
    return _is_open(group) and group[-1][8] == IfUnknown.RESEND


def _begins_anew(state: str, calls: list[list[Any]]) -> bool:
    """Whether nothing of an attempt and of those before is replayed: it failed, or its target wants all of it again."""
    if state in _BEGINS_ANEW:
        return True
    return any(_is_open(group) and group[-1][8] == IfUnknown.RESTART for group in calls)


def _recorded(group: list[Any]) -> RecordedCall:
    row = next((row for row in reversed(group) if row[4] in _DEFINITE), group[-1])
    return RecordedCall(row[2], row[3], row[4], row[7], row[6], row[10], row[11], row[12], bool(row[13]))


def _open_inner(group: list[Any]) -> OpenInner:
    row = group[-1]
    return OpenInner(row[2], row[3], len(group), IfUnknown(row[8]), row[9])
