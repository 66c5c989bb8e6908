"""How judges did on labelled observations, by the digest of what their verdicts depend on; newer ones beside older.

One that a snapshot brought counts only where none was made here, and is said to be one.
"""

from __future__ import annotations

from typing import Any

import attrs

from .canonical import JsonValue, canonical_text, parse_json
from .evaluations import EvaluationRow
from .ledger import Reader
from .schema import qualifications
from .statements import hot_insert
from .transaction import Transaction

__all__ = ["Qualification", "add_qualification", "link_qualification", "newest_qualification", "qualification_of"]

_ADD = hot_insert(qualifications, "qualification_id", "judge_digest", "set_digest", "document", "made_us")
_IS_BROUGHT = (
    "NOT EXISTS (SELECT 1 FROM runs r JOIN evaluation_judges g ON g.run_key = r.run_key"
    " WHERE r.run_id = q.document ->> '$.run' AND g.evaluation_no = q.document ->> '$.evaluation'"
    " AND g.identity_digest = q.judge_digest AND NOT EXISTS (SELECT 1 FROM imports i WHERE i.run_key = r.run_key))"
)
"""The evaluation that it was made by is not here, or came with a snapshot itself."""
_ROW = (
    f"SELECT q.qualification_id, q.judge_digest, q.set_digest, q.document, q.made_us, {_IS_BROUGHT} AS is_brought"
    " FROM qualifications q"
)


@attrs.frozen
class Qualification:
    """A judge's figures on one labelled set; ``document`` is what `runner.qualifying` made of them.

    ``is_brought`` says that a snapshot brought it, and it was not made in this ledger.
    """

    qualification_id: str
    judge_digest: str
    set_digest: str
    document: dict[str, JsonValue]
    made_us: int
    is_brought: bool


def add_qualification(tx: Transaction, *, judge_digest: str, set_digest: str, document: JsonValue) -> str:
    """Keep a qualification and return its id."""
    qualification_id = tx.ids.next()
    tx.execute(_ADD, (qualification_id, judge_digest, set_digest, canonical_text(document), tx.now_us))
    return qualification_id


def newest_qualification(reader: Reader, judge_digest: str) -> Qualification | None:
    """The newest qualification of that very judge that was made here, else that a snapshot brought; None: none."""
    row = reader.row(
        f"{_ROW} WHERE q.judge_digest = ? ORDER BY is_brought, q.made_us DESC, q.qualification_id DESC LIMIT 1",
        (judge_digest,),
    )
    return _qualification(row)


def qualification_of(reader: Reader, qualification_id: str) -> Qualification | None:
    """The qualification with that id, None where there is none."""
    return _qualification(reader.row(f"{_ROW} WHERE q.qualification_id = ?", (qualification_id,)))


def _qualification(row: Any) -> Qualification | None:
    if row is None:
        return None
    document = parse_json(row[3])
    assert isinstance(document, dict)
    return Qualification(row[0], row[1], row[2], document, row[4], bool(row[5]))


def link_qualification(
    tx: Transaction,
    evaluation: EvaluationRow,
    judge_no: int,
    *,
    qualification_id: str | None,
    met: bool,
    is_brought: bool,
) -> None:
    """Say whether the judge's verdicts count in this evaluation, by which qualification, and if that was brought."""
    changed = tx.change(
        "UPDATE evaluation_judges SET qualification_id = ?, qualified = ? WHERE run_key = ? AND evaluation_no = ?"
        " AND judge_no = ? AND (qualification_id IS NOT ? OR qualified IS NOT ?)",
        (qualification_id, int(met), evaluation.run_key, evaluation.evaluation_no, judge_no, qualification_id,
         int(met)),
    )  # fmt: skip
    if changed:
        tx.event(evaluation.run_key, "evaluation.judge_qualified", {
            "evaluation": evaluation.evaluation_no, "judge": judge_no, "qualification": qualification_id, "met": met,
            "brought": is_brought,
        })  # fmt: skip
