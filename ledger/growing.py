"""Runs whose plan grows: each key of a script is a case with one slot, planned when the script comes to it.

Such a run has one variant and one repetition, so that a case and its slot have the same number. What was planned stays
planned: a key is added once, in the transaction that claims it or before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

import attrs

from .artifacts import ANSWER, text_of
from .canonical import escaped_text
from .ledger import Reader
from .planning import CasePlan
from .records import DispatchKey
from .schema import cases, slots
from .statements import hot_insert
from .states import NextStep, SlotState
from .transaction import Transaction

__all__ = [
    "KnownKey",
    "add_keys",
    "answers_of",
    "known_keys",
    "let_key_wait",
    "meaning_of",
    "newest_dispatch",
    "newest_of_name",
]

T = TypeVar("T")

_AT_ONCE: Final = 500
_ADD_CASE = hot_insert(cases, "run_key", "case_no", "case_id", "digest", "input", "expected", "metadata")
_ADD_SLOT = hot_insert(slots, "run_key", "slot_no", "state", "case_no", "variant_no", "repetition")


@attrs.frozen
class KnownKey:
    """A key that is planned: its slot, the digest of what it stands for, and how it stands."""

    slot_no: int
    digest: str
    state: SlotState
    attempts: int
    next_step: NextStep


def add_keys(tx: Transaction, run_key: int, rows: Sequence[CasePlan]) -> int:
    """Plan further keys and return the number of the first one's slot; a finished run is open again."""
    planned: int = tx.row("SELECT planned FROM runs WHERE run_key = ?", (run_key,))[0]
    first = planned + 1
    tx.cursor.executemany(_ADD_CASE, [
        (run_key, number, row.case_id, row.digest, row.input, row.expected, row.metadata)
        for number, row in enumerate(rows, first)
    ])  # fmt: skip
    tx.cursor.executemany(_ADD_SLOT, [
        (run_key, number, "pending", number, 1, 1) for number in range(first, first + len(rows))
    ])  # fmt: skip
    tx.change("UPDATE runs SET planned = ? WHERE run_key = ?", (planned + len(rows), run_key))
    _open_again(tx, run_key)
    tx.event(run_key, "run.grown", {"added": len(rows), "planned": planned + len(rows)})
    return first


def let_key_wait(tx: Transaction, run_key: int, slot_no: int) -> None:
    """Let a key that has failed or was unavailable be called again; raises TransitionRefused for another state."""
    tx.move("slot", "pending",
            "UPDATE slots SET state = 'pending', reason = NULL, not_before_us = 0, suspect = 0 WHERE run_key = ?"
            " AND slot_no = ? AND state IN ('failed', 'unavailable', 'parked')",
            (run_key, slot_no))  # fmt: skip
    _open_again(tx, run_key)
    tx.event(run_key, "slot.retried", {"slot": slot_no})


def _open_again(tx: Transaction, run_key: int) -> None:
    tx.change("UPDATE runs SET state = 'open', ended_us = NULL WHERE run_key = ? AND state = 'finished'", (run_key,))


def known_keys(reader: Reader, run_key: int, keys: Iterable[str]) -> dict[str, KnownKey]:
    """Those of the keys that are planned."""
    found: dict[str, KnownKey] = {}
    for some in _batches({escaped_text(key): key for key in keys}):
        marks = ", ".join("?" * len(some))
        for case_id, slot_no, digest, state, attempts, step in reader.rows(
            "SELECT c.case_id, s.slot_no, c.digest, s.state, s.attempts, s.next_step FROM cases c JOIN slots s"
            f" ON s.run_key = c.run_key AND s.slot_no = c.case_no WHERE c.run_key = ? AND c.case_id IN ({marks})",
            (run_key, *some),
        ):
            found[some[case_id]] = KnownKey(slot_no, digest, SlotState(state), attempts, NextStep(step))
    return found


def answers_of(reader: Reader, run_key: int, slot_nos: Iterable[int]) -> dict[int, str]:
    """The answers (canonical JSON texts) that the slots have selected."""
    found: dict[int, str] = {}
    for some in _batches({str(number): number for number in slot_nos}):
        marks = ", ".join("?" * len(some))
        for slot_no, answer in reader.rows(
            f"SELECT o.slot_no, {ANSWER} FROM slots s JOIN observations o ON o.run_key = s.run_key"
            " AND o.slot_no = s.slot_no AND o.attempt_no = s.selected_attempt"
            f" WHERE s.run_key = ? AND s.slot_no IN ({marks})",
            (run_key, *some.values()),
        ):
            text = text_of(reader, answer)
            assert text is not None
            found[slot_no] = text
    return found


def newest_of_name(reader: Reader, name: str) -> str | None:
    """The id of the newest run of exactly that name, of whatever kind and state."""
    row = reader.row(
        "SELECT run_id FROM runs WHERE name = ? AND state NOT IN ('planning', 'importing', 'cancelled')"
        " ORDER BY run_key DESC LIMIT 1",
        (name,),
    )
    return None if row is None else str(row[0])


def meaning_of(reader: Reader, run_key: int, slot_no: int) -> str:
    """What a key stands for, as it was planned."""
    text: str = reader.row("SELECT input FROM cases WHERE run_key = ? AND case_no = ?", (run_key, slot_no))[0]
    return text


def newest_dispatch(tx: Transaction, run_key: int, known: KnownKey) -> DispatchKey:
    """The newest send of a key's newest attempt."""
    call_id, dispatch_no = tx.row(
        "SELECT c.call_id, max(d.dispatch_no) FROM calls c JOIN dispatches d ON d.call_id = c.call_id"
        " WHERE c.run_key = ? AND c.slot_no = ? AND c.attempt_no = ? AND c.owner = 'attempt' GROUP BY c.call_id",
        (run_key, known.slot_no, known.attempts),
    )
    return DispatchKey(run_key, known.slot_no, known.attempts, call_id, dispatch_no)


def _batches(names: dict[str, T]) -> Iterator[dict[str, T]]:
    items = list(names.items())
    for first in range(0, len(items), _AT_ONCE):
        yield dict(items[first : first + _AT_ONCE])
