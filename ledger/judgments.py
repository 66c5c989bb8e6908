"""Judgments: one row a judge and observation, a verdict or why there is none."""

from __future__ import annotations

from collections.abc import Sequence

from .canonical import digest_of_value
from .ledger import Reader
from .records import JudgmentRow
from .schema import judgments
from .statements import hot_insert
from .transaction import Transaction

__all__ = ["add_judgments", "judges_of"]

_ADD = hot_insert(
    judgments, "run_key", "evaluation_no", "judge_no", "slot_no", "attempt_no", "state", "passed", "score", "reason",
    "explanation", "evidence_digest", "worker_id", "judged_us",
)  # fmt: skip


def judges_of(reader: Reader, run_key: int, evaluation_no: int = 1) -> dict[str, str]:
    """The judges of an evaluation in their order: name, and identity as canonical JSON text."""
    return dict(
        reader.rows(
            "SELECT name, identity FROM evaluation_judges WHERE run_key = ? AND evaluation_no = ? ORDER BY judge_no",
            (run_key, evaluation_no),
        )
    )


def add_judgments(tx: Transaction, run_key: int, evaluation_no: int, rows: Sequence[JudgmentRow]) -> None:
    """Commit what judges said of observations; the same judgment twice is refused by the database."""
    for row in rows:
        has_verdict = row.passed is not None or row.score is not None
        tx.execute(
            _ADD,
            (run_key, evaluation_no, row.judge_no, row.slot_no, row.attempt_no,
             "judged" if has_verdict else "no_verdict", None if row.passed is None else int(row.passed), row.score,
             row.reason, row.explanation,
             digest_of_value(dict(row.evidence)) if row.evidence else None, tx.worker_id, tx.now_us),
        )  # fmt: skip
    tx.event(run_key, "observation.judged", {
        "evaluation": evaluation_no,
        "rows": [[row.judge_no, row.slot_no, row.attempt_no, row.passed, row.score, row.reason] for row in rows],
    })  # fmt: skip
