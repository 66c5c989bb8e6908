"""Judgments: one row a judge, observation and sample; a verdict, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .errors import TransitionRefused
from .records import JudgmentKey, JudgmentRow
from .transaction import Transaction

__all__ = ["add_judgments", "let_wait", "mark_judging", "name_of"]

_KEY: Final = "run_key, evaluation_no, judge_no, slot_no, attempt_no, sample_no"
# A judgment of an evaluation waits as a row; one of the run's own has none before a judge is at it.
_ADD: Final = (
    f"INSERT INTO judgments ({_KEY}, state, passed, score, reason, explanation, raw, parser, evidence_digest,"
    " cache_key, reused_from, call_id, worker_id, judged_us) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,"
    f" ?, ?, ?) ON CONFLICT ({_KEY}) DO UPDATE SET state = excluded.state, passed = excluded.passed,"
    " score = excluded.score, reason = excluded.reason, explanation = excluded.explanation, raw = excluded.raw,"
    " parser = excluded.parser, evidence_digest = excluded.evidence_digest, cache_key = excluded.cache_key,"
    " reused_from = excluded.reused_from, call_id = excluded.call_id, worker_id = excluded.worker_id,"
    " judged_us = excluded.judged_us, suspect = 0, solitary = 0 WHERE judgments.state IN ('pending', 'judging')"
)
_MARK: Final = (
    f"INSERT INTO judgments ({_KEY}, state, worker_id, solitary) VALUES (?, ?, ?, ?, ?, ?, 'judging', ?, ?)"
    f" ON CONFLICT ({_KEY}) DO UPDATE SET state = 'judging', worker_id = excluded.worker_id,"
    " solitary = excluded.solitary WHERE judgments.state = 'pending'"
)
_OF: Final = "run_key = ? AND evaluation_no = ? AND judge_no = ? AND slot_no = ? AND attempt_no = ? AND sample_no = ?"


def name_of(evaluation_id: str, judge_no: int, slot_no: int, attempt_no: int, sample_no: int) -> str:
    """A judgment as ``reused_from`` names it: the same in every ledger that has its run."""
    return f"{evaluation_id}/{judge_no}/{slot_no}/{attempt_no}/{sample_no}"


def add_judgments(tx: Transaction, run_key: int, evaluation_no: int, rows: Sequence[JudgmentRow]) -> None:
    """Commit what judges said of observations; raises TransitionRefused when one of them has been judged before."""
    tx.cursor.executemany(_ADD, [_values(tx, run_key, evaluation_no, row) for row in rows])
    if tx.cursor.rowcount != len(rows):
        raise TransitionRefused(
            f"of {len(rows)} judgments only {tx.cursor.rowcount} were still to be given",
            "somebody else has given them", "judgment", "judged",
        )  # fmt: skip
    tx.event(run_key, "observation.judged", {
        "evaluation": evaluation_no,
        "rows": [
            [row.judge_no, row.slot_no, row.attempt_no, row.passed, row.score, row.reason, row.sample_no]
            for row in rows
        ],
    })  # fmt: skip


def _values(tx: Transaction, run_key: int, evaluation_no: int, row: JudgmentRow) -> tuple[object, ...]:
    has_verdict = row.passed is not None or row.score is not None
    return (
        run_key, evaluation_no, row.judge_no, row.slot_no, row.attempt_no, row.sample_no,
        "judged" if has_verdict else "no_verdict", None if row.passed is None else int(row.passed), row.score,
        row.reason, row.explanation, row.raw, row.parser, row.evidence_digest, row.cache_key if has_verdict else None,
        row.reused_from, row.call_id, tx.worker_id, tx.now_us,
    )  # fmt: skip


def mark_judging(tx: Transaction, keys: Sequence[JudgmentKey], *, solitary: bool = False) -> None:
    """Say that code of a user is at these now, before it is: so that a death is known to have been in it.

    Raises TransitionRefused when one of them does not wait.
    """
    values = [
        (key.run_key, key.evaluation_no, key.judge_no, key.slot_no, key.attempt_no, key.sample_no, tx.worker_id,
         int(solitary))
        for key in keys
    ]  # fmt: skip
    tx.cursor.executemany(_MARK, values)
    if tx.cursor.rowcount != len(keys):
        raise TransitionRefused(
            "a judgment that was to be given does not wait any more",
            "somebody else has given it", "judgment", "judging",
        )  # fmt: skip


def let_wait(tx: Transaction, key: JudgmentKey) -> None:
    """A judgment that a judge was at waits again: nothing of it is under way."""
    tx.move("judgment", "pending",
            f"UPDATE judgments SET state = 'pending', solitary = 0 WHERE {_OF} AND state = 'judging'",
            (key.run_key, key.evaluation_no, key.judge_no, key.slot_no, key.attempt_no, key.sample_no))  # fmt: skip
