"""What a fork takes over from the run that it comes of: copied in bounded batches while the fork is hidden.

A reused observation has an attempt of its own in the fork, which no call belongs to: it cost nothing there. What was
unknown has copies of its calls, under ids of their own, so that it is settled in the fork by itself; nothing of it is
held there, because the run in which it was sent holds it. The rows of the earlier run are only read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

import attrs

from .canonical import canonical_text
from .crashpoints import crashpoint
from .discarding import Hidden, delete_batch
from .errors import LedgerDamaged
from .ledger import Ledger
from .standing import steps_of
from .transaction import Transaction

__all__ = ["Kept", "KeptUnknown", "OpenSend", "TakenOver", "discard_taken", "name_of", "take_over", "tell_of_fork"]

_PER_BATCH: Final = 5_000
_UNKNOWN_PER_BATCH: Final = 200
_DELETED_PER_BATCH: Final = 20_000

_COPY_ATTEMPT: Final = (
    "INSERT INTO attempts (run_key, slot_no, attempt_no, state, worker_id, fingerprint, contaminated, began_us,"
    " ended_us, reason, message, reused_from) SELECT ?1, ?2, 1, state, worker_id, fingerprint, contaminated, began_us,"
    " ended_us, reason, message, coalesce(reused_from, ?3 || slot_no || '/' || attempt_no) FROM attempts"
    " WHERE run_key = ?4 AND slot_no = ?5 AND attempt_no = ?6"
)
_COPY_OBSERVATION: Final = (
    "INSERT INTO observations (run_key, slot_no, attempt_no, answer, answer_artifact, answer_digest, evidence, flags,"
    " source, observed_us) SELECT ?1, ?2, 1, answer, answer_artifact, answer_digest, evidence, flags, 'reused',"
    " observed_us FROM observations WHERE run_key = ?3 AND slot_no = ?4 AND attempt_no = ?5"
)
_SELECT: Final = (
    "UPDATE slots SET state = 'selected', attempts = 1, selected_attempt = 1"
    " WHERE run_key = ? AND slot_no = ? AND state = 'pending'"
)
_FAIL: Final = (
    "UPDATE slots SET state = 'failed', attempts = 1, reason = ?"
    " WHERE run_key = ? AND slot_no = ? AND state = 'pending'"
)
_LEAVE_UNKNOWN: Final = (
    "UPDATE slots SET state = 'unknown', attempts = 1, reason = ? WHERE run_key = ? AND slot_no = ?"
    " AND state = 'pending'"
)
_COPY_OPEN_ATTEMPT: Final = (
    "INSERT INTO attempts (run_key, slot_no, attempt_no, state, worker_id, fingerprint, contaminated, began_us,"
    " ended_us, reason, message, reused_from) SELECT ?1, ?2, 1, 'unknown', worker_id, fingerprint, contaminated,"
    " began_us, ?3, ?4, ?5, coalesce(reused_from, ?6 || slot_no || '/' || attempt_no) FROM attempts"
    " WHERE run_key = ?7 AND slot_no = ?8 AND attempt_no = ?9"
)
# A turn of a conversation is as little the whole answer as a request of an agent is: its role says so, and once it has
# an answer its case begins anew.
_COPY_CALL: Final = (
    "INSERT INTO calls (call_id, run_key, owner, slot_no, attempt_no, session_no, position, role, head, payload,"
    " payload_digest, payload_size, payload_artifact, if_unknown, key_until_us, fence, reused_from, intended_us)"
    " SELECT ?1, ?2, 'attempt', ?3, 1, session_no, position, CASE WHEN EXISTS (SELECT 1 FROM sessions n"
    " WHERE n.run_key = calls.run_key AND n.slot_no = calls.slot_no AND n.attempt_no = calls.attempt_no)"
    " THEN 'inner' ELSE role END, head, payload, payload_digest, payload_size, payload_artifact, if_unknown,"
    " key_until_us, fence, coalesce(reused_from, call_id), intended_us FROM calls WHERE call_id = ?4"
)
# What was written into the row after the event, because it has been settled since, stays where it was.
_COPY_OPEN_DISPATCH: Final = (
    "INSERT INTO dispatches (call_id, dispatch_no, run_key, state, worker_id, intended_us, ended_us, duration_us,"
    " bytes_sent, status, reason, message, raw, raw_artifact, raw_cut) SELECT ?1, dispatch_no, ?2, 'unknown',"
    " worker_id, intended_us, ?3, ?4, ?5, ?6, ?7, ?8, iif(state = 'unknown', raw, NULL),"
    " iif(state = 'unknown', raw_artifact, NULL), iif(state = 'unknown', raw_cut, 0) FROM dispatches"
    " WHERE call_id = ?9 AND dispatch_no = ?10"
)
_COPY_DISPATCH: Final = (
    "INSERT INTO dispatches (call_id, dispatch_no, run_key, state, worker_id, intended_us, ended_us, duration_us,"
    " bytes_sent, wire_sends, status, reason, message, settled_by, raw, raw_artifact, raw_cut, tokens_in, tokens_out,"
    " cost_nanousd, usage) SELECT ?1, dispatch_no, ?2, state, worker_id, intended_us, ended_us, duration_us,"
    " bytes_sent, wire_sends, status, reason, message, settled_by, raw, raw_artifact, raw_cut, tokens_in, tokens_out,"
    " cost_nanousd, usage FROM dispatches WHERE call_id = ?3 AND dispatch_no = ?4"
)
_DISCARD: Final = {
    "dispatches": (
        "DELETE FROM dispatches WHERE call_id IN (SELECT d.call_id FROM calls c JOIN dispatches d"
        f" ON d.call_id = c.call_id WHERE c.run_key = ?1 AND c.owner = 'attempt' LIMIT {_DELETED_PER_BATCH})"
    ),
    "calls": (
        "DELETE FROM calls WHERE call_id IN (SELECT call_id FROM calls WHERE run_key = ?1 AND owner = 'attempt'"
        f" LIMIT {_DELETED_PER_BATCH})"
    ),
    "observations": (
        "DELETE FROM observations WHERE run_key = ?1 AND slot_no IN (SELECT slot_no FROM observations"
        f" WHERE run_key = ?1 LIMIT {_DELETED_PER_BATCH})"
    ),
    "attempts": (
        "DELETE FROM attempts WHERE run_key = ?1 AND slot_no IN (SELECT slot_no FROM attempts WHERE run_key = ?1"
        f" LIMIT {_DELETED_PER_BATCH})"
    ),
}

_Item = TypeVar("_Item")


@attrs.frozen
class Kept:
    """A planned observation of the fork, and the attempt of the earlier run whose end it takes over.

    ``reason`` is why that run's planned observation had failed at the event; None where it had not.
    """

    slot_no: int
    from_slot: int
    attempt_no: int
    reason: str | None = None


@attrs.frozen
class OpenSend:
    """One send that had no outcome at the event; ``dispatch_no`` of ``call_id``, as the earlier run names it."""

    call_id: str
    dispatch_no: int
    ended_us: int | None
    reason: str
    message: str
    bytes_sent: int | None = None
    duration_us: int | None = None
    status: int | None = None


@attrs.frozen
class KeptUnknown:
    """An attempt that had no end at the event, with what was open of it, and what else its calls had sent by then."""

    kept: Kept
    ended_us: int | None
    reason: str
    message: str
    sends: tuple[OpenSend, ...]
    others: tuple[tuple[str, int], ...] = ()


@attrs.frozen
class TakenOver:
    """What a fork takes over from the run ``run_id`` as it stood at ``event_no``; each list by rising slots."""

    run_key: int
    run_id: str
    event_no: int
    reused: Sequence[Kept] = ()
    failed: Sequence[Kept] = ()
    unknown: Sequence[KeptUnknown] = ()


def name_of(run_id: str, slot_no: int, attempt_no: int) -> str:
    """An attempt as ``reused_from`` names it: the same in every ledger that has its run."""
    return f"{run_id}/{slot_no}/{attempt_no}"


def take_over(ledger: Ledger, run_key: int, taken: TakenOver) -> None:
    """Copy it into the run, which is hidden and whose slots all wait."""
    for batch in _batches(taken.reused, _PER_BATCH):
        ledger.write(lambda tx, batch=batch: _reuse(tx, run_key, taken, batch))  # type: ignore[misc]
        crashpoint("fork.batch")
    for batch in _batches(taken.failed, _PER_BATCH):
        ledger.write(lambda tx, batch=batch: _keep_failed(tx, run_key, taken, batch))  # type: ignore[misc]
        crashpoint("fork.batch")
    for some in _batches(taken.unknown, _UNKNOWN_PER_BATCH):
        ledger.write(lambda tx, some=some: _keep_unknown(tx, run_key, taken, some))  # type: ignore[misc]
        crashpoint("fork.batch")


def _reuse(tx: Transaction, run_key: int, taken: TakenOver, batch: list[Kept]) -> None:
    _all(tx, _COPY_ATTEMPT, [_attempt(run_key, taken, one) for one in batch])
    _all(tx, _COPY_OBSERVATION,
         [(run_key, one.slot_no, taken.run_key, one.from_slot, one.attempt_no) for one in batch])  # fmt: skip
    _all(tx, _SELECT, [(run_key, one.slot_no) for one in batch])


def _keep_failed(tx: Transaction, run_key: int, taken: TakenOver, batch: list[Kept]) -> None:
    _all(tx, _COPY_ATTEMPT, [_attempt(run_key, taken, one) for one in batch])
    _all(tx, _FAIL, [(one.reason, run_key, one.slot_no) for one in batch])


def _attempt(run_key: int, taken: TakenOver, one: Kept) -> tuple[Any, ...]:
    return run_key, one.slot_no, f"{taken.run_id}/", taken.run_key, one.from_slot, one.attempt_no


def _keep_unknown(tx: Transaction, run_key: int, taken: TakenOver, batch: list[KeptUnknown]) -> None:
    for one in batch:
        _keep_one_unknown(tx, run_key, taken, one)


def _keep_one_unknown(tx: Transaction, run_key: int, taken: TakenOver, one: KeptUnknown) -> None:
    slot_no = one.kept.slot_no
    _all(tx, _COPY_OPEN_ATTEMPT, [
        (run_key, slot_no, one.ended_us, one.reason, one.message, f"{taken.run_id}/", taken.run_key,
         one.kept.from_slot, one.kept.attempt_no)
    ])  # fmt: skip
    ids = {call_id: tx.ids.next() for call_id in dict.fromkeys(send.call_id for send in one.sends)}
    _all(tx, _COPY_CALL, [(new, run_key, slot_no, old) for old, new in ids.items()])
    _all(tx, _COPY_OPEN_DISPATCH, [
        (ids[send.call_id], run_key, send.ended_us, send.duration_us, send.bytes_sent, send.status, send.reason,
         send.message, send.call_id, send.dispatch_no)
        for send in one.sends
    ])  # fmt: skip
    _all(tx, _COPY_DISPATCH, [(ids[call_id], run_key, call_id, number) for call_id, number in one.others])
    _all(tx, _LEAVE_UNKNOWN, [(one.reason, run_key, slot_no)])


def _all(tx: Transaction, sql: str, rows: list[tuple[Any, ...]]) -> None:
    if not tx.change_all(sql, rows):
        raise LedgerDamaged(
            f"a fork takes over {len(rows)} rows of an earlier run, and not all of them are there",
            "look at the ledger with `tallystick ledger check`; nothing was forked",
        )


def tell_of_fork(tx: Transaction, run_key: int, taken: TakenOver) -> None:
    """Say in the fork's history where each planned observation that was taken over stands."""
    marked = {row[0] for row in tx.rows("SELECT slot_no FROM attempts WHERE run_key = ? AND contaminated = 1",
                                        (run_key,))}  # fmt: skip
    bodies: Iterator[dict[str, Any]] = (
        {
            "run": taken.run_id, "at_event": taken.event_no, "count": len(batch),
            "slots": steps_of([one.slot_no for one in batch]),
            "contaminated": [one.slot_no for one in batch if one.slot_no in marked],
        }
        for batch in _batches(taken.reused, _PER_BATCH)
    )  # fmt: skip
    tx.events(run_key, "slots.reused", (canonical_text(body) for body in bodies))
    tx.events(run_key, "slot.kept", (canonical_text(body) for body in _kept_bodies(tx, run_key)))


def _kept_bodies(tx: Transaction, run_key: int) -> Iterator[dict[str, Any]]:
    for slot_no, state, reason, message, ended_us, contaminated in tx.rows(
        "SELECT s.slot_no, s.state, s.reason, a.message, a.ended_us, a.contaminated FROM slots s JOIN attempts a"
        " ON a.run_key = s.run_key AND a.slot_no = s.slot_no AND a.attempt_no = 1"
        " WHERE s.run_key = ? AND s.state IN ('failed', 'unknown') ORDER BY s.slot_no",
        (run_key,),
    ):
        sends = tx.rows(
            "SELECT d.call_id, d.dispatch_no, d.bytes_sent, d.duration_us, d.status, d.ended_us, d.reason FROM calls c"
            " JOIN dispatches d ON d.call_id = c.call_id WHERE c.run_key = ? AND c.slot_no = ? AND c.attempt_no = 1"
            " AND c.owner = 'attempt' AND d.state = 'unknown' ORDER BY d.call_id, d.dispatch_no",
            (run_key, slot_no),
        )
        yield {
            "slot": slot_no, "attempt": 1, "state": state, "reason": reason, "message": message, "ended_us": ended_us,
            "contaminated": bool(contaminated), "sends": [list(send) for send in sends],
        }  # fmt: skip


def discard_taken(ledger: Ledger, run_key: int, *, of: Hidden) -> None:
    """Remove what was copied into a run that was never shown, in bounded batches."""
    with ledger.reading() as reader:
        if reader.row("SELECT 1 FROM attempts WHERE run_key = ? LIMIT 1", (run_key,)) is None:
            return
    for table, sql in _DISCARD.items():
        while ledger.write(lambda tx, table=table, sql=sql: delete_batch(tx, table, sql, (run_key,), of=of)):  # type: ignore[misc]
            pass


def _batches(items: Sequence[_Item], size: int) -> Iterator[list[_Item]]:
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch
