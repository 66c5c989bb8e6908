"""Conversations: sessions on a target, and their turns, each committed with the settlement of its call.

A turn that is committed is never asked again in its session. A later attempt of the slot *carries* the committed turns
over where the target can go on from them; else it asks them again, and each such call is a replay.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from .artifacts import text_of
from .attempt_calls import conclude, further_call, open_attempt, settle_answer
from .attempt_rows import record_event, recorded
from .crashpoints import crashpoint
from .errors import TransitionRefused
from .ledger import Reader
from .records import Artifact, Begun, DispatchFacts, DispatchKey, Intent
from .schema import sessions, turns
from .statements import hot_insert
from .transaction import Transaction

__all__ = [
    "AskedTurn",
    "Opening",
    "SessionRow",
    "TurnAnswer",
    "TurnRow",
    "add_turn",
    "asked_turn",
    "commit_last_turn",
    "commit_turn",
    "conclude_session",
    "intend_turn",
    "newest_session",
    "open_session",
    "replays_of",
    "sessions_of",
]

_SESSION_NO: Final = 1
_ADD_SESSION = hot_insert(
    sessions,
    "run_key", "slot_no", "attempt_no", "session_no", "session_id", "turn", "checkpoint_artifact", "lease_id",
    "began_us",
)  # fmt: skip
_ADD_TURN = hot_insert(
    turns,
    "run_key", "slot_no", "attempt_no", "session_no", "turn", "message", "answer", "answer_artifact", "answer_digest",
    "evidence", "flags", "source", "call_id", "dispatch_no", "replay", "checkpoint_artifact", "committed_us",
)  # fmt: skip
_CARRY: Final = (
    "INSERT INTO turns (run_key, slot_no, attempt_no, session_no, turn, message, answer, answer_artifact,"
    " answer_digest, evidence, flags, source, carried_from, checkpoint_artifact, committed_us)"
    " SELECT run_key, slot_no, ?, session_no, turn, message, answer, answer_artifact, answer_digest, evidence, flags,"
    " 'carried', coalesce(carried_from, attempt_no), checkpoint_artifact, ? FROM turns"
    " WHERE run_key = ? AND slot_no = ? AND attempt_no = ? AND session_no = ? AND turn <= ? ORDER BY turn"
)
_SESSION: Final = (
    "SELECT s.attempt_no, s.session_id, s.turn, s.message, s.checkpoint_artifact, s.began_us, a.state,"
    " coalesce(a.reason, '')"
    " FROM sessions s JOIN attempts a ON a.run_key = s.run_key AND a.slot_no = s.slot_no"
    " AND a.attempt_no = s.attempt_no WHERE s.run_key = ? AND s.slot_no = ?"
)


@attrs.frozen
class Opening:
    """How a session begins: anew, or with the first ``carried`` turns of an earlier attempt's session.

    ``seen`` is how many committed turns that session had when it was looked at; one more, and nothing is begun.
    ``checkpoint`` is the digest of what the session is restored from, where its target keeps state.
    """

    session_id: str
    fingerprint: str
    solitary: bool = False
    carried_from: int | None = None
    carried: int = 0
    seen: int = 0
    checkpoint: str | None = None
    lease_id: str | None = None


@attrs.frozen
class TurnAnswer:
    """An answered turn, ready to be committed. Texts are canonical JSON; ``answer`` may be a prepared artifact."""

    turn: int
    message: str
    answer: str | Artifact
    answer_digest: str
    evidence: str = "{}"
    flags: str = "[]"
    source: str = "wire"
    checkpoint: Artifact | None = None
    is_replay: bool = False


@attrs.frozen
class AskedTurn:
    """The turn that a session asked last; ``is_current``: by the call that is meant, and without an answer yet."""

    turn: int
    message: str
    is_current: bool
    is_replay: bool


def open_session(tx: Transaction, run_key: int, slot_no: int, opening: Opening) -> DispatchKey:
    """Begin an attempt with a session of its own; the key names the attempt.

    Raises TransitionRefused when the slot does not wait for a new attempt, or when a turn of the earlier session has
    been settled since it was looked at.
    """
    key = open_attempt(tx, run_key, slot_no, fingerprint=opening.fingerprint, solitary=opening.solitary)
    tx.execute(
        _ADD_SESSION,
        (run_key, slot_no, key.attempt_no, _SESSION_NO, opening.session_id, opening.carried, opening.checkpoint,
         opening.lease_id, tx.now_us),
    )  # fmt: skip
    if opening.carried_from is not None:
        _carry(tx, key, opening, opening.carried_from)
    tx.event(run_key, "session.begun", {
        "slot": slot_no, "attempt": key.attempt_no, "session": opening.session_id, "carried": opening.carried,
        "carried_from": opening.carried_from, "checkpoint": opening.checkpoint,
    })  # fmt: skip
    return key


def _carry(tx: Transaction, key: DispatchKey, opening: Opening, carried_from: int) -> None:
    source = (key.run_key, key.slot_no, carried_from, _SESSION_NO)
    seen = tx.row(
        "SELECT count(*) FROM turns WHERE run_key = ? AND slot_no = ? AND attempt_no = ? AND session_no = ?", source
    )[0]
    if seen != opening.seen:
        raise TransitionRefused(
            f"a turn of slot {key.slot_no} has been settled meanwhile", "look at it anew", "session", "begun"
        )
    tx.execute(_CARRY, (key.attempt_no, tx.now_us, *source, opening.carried))


def intend_turn(tx: Transaction, intent: Intent, attempt_no: int, *, turn: int, message: str, is_replay: bool) -> Begun:
    """Record the call of the session's next turn; raises what `attempt_calls.further_call` raises."""
    begun = further_call(tx, intent, attempt_no, is_replay=is_replay)
    tx.change(
        "UPDATE sessions SET turn = ?, message = ? WHERE run_key = ? AND slot_no = ? AND attempt_no = ?"
        " AND session_no = ?",
        (turn, message, intent.run_key, intent.slot_no, attempt_no, _SESSION_NO),
    )
    return begun


def commit_turn(tx: Transaction, key: DispatchKey, facts: DispatchFacts, answer: TurnAnswer) -> None:
    """A whole answer in time of a turn that is not known to be the last: settle it; the attempt goes on."""
    settle_answer(tx, key, facts)
    add_turn(tx, key, answer)
    record_event(tx, key, "turn.committed", facts, {
        "turn": answer.turn, "answer": answer.answer_digest, "replay": int(answer.is_replay),
    })  # fmt: skip
    crashpoint("dispatch.outcome.inside")


def commit_last_turn(
    tx: Transaction, key: DispatchKey, facts: DispatchFacts, answer: TurnAnswer, observed: TurnAnswer
) -> None:
    """The same for the last turn, with the observation of the whole conversation (``observed`` has its answer)."""
    settle_answer(tx, key, facts)
    add_turn(tx, key, answer)
    conclude_session(tx, key, observed)


def conclude_session(tx: Transaction, key: DispatchKey, observed: TurnAnswer) -> None:
    """Nothing is left to say: observe what the committed turns gave."""
    conclude(
        tx, key, answer=observed.answer, answer_digest=observed.answer_digest, evidence=observed.evidence,
        flags=observed.flags, source=observed.source,
    )  # fmt: skip


def add_turn(tx: Transaction, key: DispatchKey, answer: TurnAnswer) -> None:
    """The row of a committed turn; ``key`` names the call that brought the answer."""
    text, file = (answer.answer, None) if isinstance(answer.answer, str) else (None, recorded(tx, answer.answer))
    tx.execute(
        _ADD_TURN,
        (key.run_key, key.slot_no, key.attempt_no, _SESSION_NO, answer.turn, answer.message, text, file,
         answer.answer_digest, answer.evidence, answer.flags, answer.source, key.call_id, key.dispatch_no,
         int(answer.is_replay), recorded(tx, answer.checkpoint), tx.now_us),
    )  # fmt: skip


def asked_turn(tx: Transaction, key: DispatchKey) -> AskedTurn | None:
    """What the attempt's session asked last, seen from that call; None where the attempt has no session."""
    row = tx.row(
        "SELECT s.turn, coalesce(s.message, 'null'), (SELECT c.call_id FROM calls c WHERE c.run_key = s.run_key"
        " AND c.slot_no = s.slot_no AND c.attempt_no = s.attempt_no AND c.owner = 'attempt'"
        " ORDER BY c.position DESC LIMIT 1) = ?, EXISTS (SELECT 1 FROM turns t WHERE t.run_key = s.run_key"
        " AND t.slot_no = s.slot_no AND t.attempt_no = s.attempt_no AND t.turn = s.turn),"
        " (SELECT max(d.replay) FROM dispatches d WHERE d.call_id = ?) FROM sessions s"
        " WHERE s.run_key = ? AND s.slot_no = ? AND s.attempt_no = ?",
        (key.call_id, key.call_id, key.run_key, key.slot_no, key.attempt_no),
    )
    if row is None:
        return None
    turn, message, is_newest, is_committed, replay = row
    return AskedTurn(turn, message, bool(is_newest) and not is_committed, bool(replay))


@attrs.frozen
class TurnRow:
    """One committed turn; ``carried_from`` names the attempt in which a carried one was asked."""

    turn: int
    message: str
    answer: str
    answer_digest: str
    evidence: str
    flags: str
    source: str
    call_id: str | None
    dispatch_no: int | None
    carried_from: int | None
    replay: bool
    checkpoint: str | None
    committed_us: int


@attrs.frozen
class SessionRow:
    """The session of one attempt. ``turn`` was intended last, with ``message``; ``turns`` are the committed ones.

    ``state`` is the attempt's, ``reason`` why it ended, empty while it has none.
    """

    attempt_no: int
    session_id: str
    turn: int
    message: str | None
    checkpoint: str | None
    began_us: int
    state: str
    reason: str
    turns: tuple[TurnRow, ...]


def newest_session(reader: Reader, run_key: int, slot_no: int) -> SessionRow | None:
    """The newest session of a slot, None where it has had none."""
    row = reader.row(f"{_SESSION} ORDER BY s.attempt_no DESC LIMIT 1", (run_key, slot_no))
    return None if row is None else SessionRow(*_with(row, _turns(reader, run_key, slot_no, row[0])))


def sessions_of(reader: Reader, run_key: int, slot_no: int) -> dict[int, SessionRow]:
    """Every session of a slot, by attempt."""
    return {
        row[0]: SessionRow(*_with(row, _turns(reader, run_key, slot_no, row[0])))
        for row in reader.rows(f"{_SESSION} ORDER BY s.attempt_no", (run_key, slot_no))
    }


def replays_of(reader: Reader, run_key: int, slot_no: int) -> int:
    """Up to which turn some attempt of the slot has an answer: what is asked again up to there is a replay."""
    found: int = reader.row(
        "SELECT coalesce(max(turn), 0) FROM turns WHERE run_key = ? AND slot_no = ?", (run_key, slot_no)
    )[0]
    return found


def _turns(reader: Reader, run_key: int, slot_no: int, attempt_no: int) -> tuple[TurnRow, ...]:
    rows = reader.rows(
        "SELECT turn, message, coalesce(answer, CAST(answer_artifact AS BLOB)), answer_digest, evidence, flags, source,"
        " call_id, dispatch_no, carried_from, replay, checkpoint_artifact, committed_us FROM turns"
        " WHERE run_key = ? AND slot_no = ? AND attempt_no = ? ORDER BY session_no, turn",
        (run_key, slot_no, attempt_no),
    )
    return tuple(_turn(reader, row) for row in rows)


def _turn(reader: Reader, row: tuple[Any, ...]) -> TurnRow:
    return TurnRow(*_with(row[:2], text_of(reader, row[2]), *row[3:10], bool(row[10]), *row[11:]))


def _with(row: tuple[Any, ...], *further: Any) -> tuple[Any, ...]:
    return (*row, *further)
