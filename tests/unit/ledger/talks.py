"""Conversations for the tests of the ledger: sessions, and turns that are asked and answered."""

from __future__ import annotations

import itertools
from typing import Any

from tallystick.ledger import attempt_calls, attempts, turns
from tallystick.ledger.canonical import digest_of_bytes
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import Artifact, DispatchFacts, DispatchKey
from tallystick.ledger.states import SlotState
from tallystick.ledger.turns import Opening, TurnAnswer
from tests.unit.ledger.factories import answered, every, intent

_numbers = itertools.count(1)


def open_session(ledger: Ledger, run_key: int, slot_no: int = 1, **options: Any) -> DispatchKey:
    """An attempt with a session; the options are those of `Opening`."""
    opening = Opening(f"session-{next(_numbers):06d}", "fp", **options)
    return ledger.write(lambda tx: turns.open_session(tx, run_key, slot_no, opening))


def ask(ledger: Ledger, attempt: DispatchKey, turn: int, *, is_replay: bool = False, **options: Any) -> DispatchKey:
    """The intent of a turn; the options are those of `intent`."""
    wanted = intent(attempt.run_key, attempt.slot_no, **options)
    message = f'"message {turn}"'
    return ledger.write(
        lambda tx: (
            turns.intend_turn(tx, wanted, attempt.attempt_no, turn=turn, message=message, is_replay=is_replay).key
        )
    )


def answer_of(turn: int, *, text: str = "", is_replay: bool = False, checkpoint: Artifact | None = None) -> TurnAnswer:
    answer = f'"{text or f"answer {turn}"}"'
    return TurnAnswer(
        turn, f'"message {turn}"', answer, digest_of_bytes(answer.encode()), checkpoint=checkpoint, is_replay=is_replay
    )


def commit(ledger: Ledger, key: DispatchKey, turn: int, **options: Any) -> None:
    """Commit the answer of a turn; the options are those of `answer_of`."""
    ledger.write(lambda tx: turns.commit_turn(tx, key, answered(), answer_of(turn, **options)))


def say(ledger: Ledger, attempt: DispatchKey, turn: int, *, is_replay: bool = False, **options: Any) -> DispatchKey:
    """A turn that is asked and answered."""
    key = ask(ledger, attempt, turn, is_replay=is_replay, **options)
    commit(ledger, key, turn, is_replay=is_replay)
    return key


def break_off(ledger: Ledger, attempt: DispatchKey, reason: str = "stopped") -> SlotState:
    return ledger.write(lambda tx: attempt_calls.break_off(tx, attempt, reason=reason))


def lose(ledger: Ledger, key: DispatchKey, facts: DispatchFacts, **options: Any) -> None:
    ledger.write(lambda tx: attempts.lose(tx, key, facts, **options))


def turns_of(ledger: Ledger, attempt: DispatchKey) -> list[tuple[int, str, str, int | None]]:
    """``(turn, answer, source, carried_from)`` of an attempt's committed turns."""
    return every(
        ledger,
        "SELECT turn, answer, source, carried_from FROM turns WHERE run_key = ? AND slot_no = ? AND attempt_no = ?"
        " ORDER BY turn",
        attempt.run_key, attempt.slot_no, attempt.attempt_no,
    )  # fmt: skip
