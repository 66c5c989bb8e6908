"""Evaluations after the run: judges applied to a set of observations that is fixed when the evaluation is created.

The set is what had been selected up to an event of the run, and what is selected stays so: the set is a function of a
history that does not change. Its judgments are written down as waiting rows in bounded batches, and a death in between
is made up for by whoever goes on.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from .canonical import digest_of_value, parse_json
from .custody import next_number, require_judgeable
from .errors import EvaluationNotFound, RunNotFound, UsageError
from .ledger import Reader
from .planning import JudgePlan
from .records import EVALUATION_SCOPE, BudgetPlan
from .schema import budgets, evaluation_judges, evaluations
from .statements import hot_insert
from .transaction import Transaction
from .verdicts import NoVerdictReason

__all__ = [
    "EVALUATION_SCOPE",
    "INLINE",
    "EvaluationPlan",
    "EvaluationRow",
    "create_evaluation",
    "evaluation_budgets_of",
    "evaluations_of",
    "find_evaluation",
    "has_selected_since",
    "let_budgeted_wait",
    "let_retried_wait",
    "newest_of_digest",
    "take_settings",
    "write_rest",
    "write_set",
]

INLINE: Final = 1
"""The number of a run's own evaluation."""

_EVENTS_PER_BATCH: Final = 20_000
_SLOTS_PER_BATCH: Final = 5_000
_ADD_EVALUATION = hot_insert(
    evaluations, "run_key", "evaluation_no", "evaluation_id", "name", "document", "document_digest", "settings",
    "set_at_event", "created_us",
)  # fmt: skip
_ADD_JUDGE = hot_insert(
    evaluation_judges, "run_key", "evaluation_no", "judge_no", "name", "kind", "identity", "identity_digest",
    "samples", "requirement",
)  # fmt: skip
_ADD_BUDGET = hot_insert(
    budgets, "run_key", "budget_no", "scope", "scope_value", "unit", "kind", "limit_amount", "bound_amount"
)
# What selects a slot: an answer in time, or one that a query or an operator brought to the newest attempt.
_SELECTING: Final = (
    "(e.kind = 'attempt.observed'"
    " OR (e.kind = 'dispatch.settled' AND json_extract(e.body, '$.slot_state') = 'selected'"
    " AND json_extract(e.body, '$.decision') = 'landed' AND EXISTS (SELECT 1 FROM calls c"
    " WHERE c.call_id = json_extract(e.body, '$.call') AND c.owner = 'attempt')))"
)
_SAMPLES: Final = (
    "samples(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM samples WHERE number < (SELECT"
    " max(samples) FROM evaluation_judges WHERE run_key = ?1 AND evaluation_no = ?2))"
)
_ADD_WAITING: Final = (
    f"WITH RECURSIVE {_SAMPLES}"
    " INSERT INTO judgments (run_key, evaluation_no, judge_no, slot_no, attempt_no, sample_no, state)"
    " SELECT e.run_key, ?2, j.judge_no, s.slot_no, s.selected_attempt, n.number, 'pending' FROM events e"
    " JOIN slots s ON s.run_key = e.run_key AND s.slot_no = json_extract(e.body, '$.slot')"
    " AND s.selected_attempt = json_extract(e.body, '$.attempt')"
    " CROSS JOIN evaluation_judges j ON j.run_key = e.run_key AND j.evaluation_no = ?2"
    " CROSS JOIN samples n ON n.number <= j.samples"
    f" WHERE e.run_key = ?1 AND e.event_no > ?3 AND e.event_no <= ?4 AND {_SELECTING} ON CONFLICT DO NOTHING"
)
# What a fork has reused is selected by the slots that one event names.
_NEXT_REUSED: Final = (
    "SELECT min(event_no) FROM events WHERE run_key = ? AND event_no > ? AND event_no <= ? AND kind = 'slots.reused'"
)
_ADD_REUSED: Final = (
    f"WITH RECURSIVE {_SAMPLES}"
    " INSERT INTO judgments (run_key, evaluation_no, judge_no, slot_no, attempt_no, sample_no, state)"
    " SELECT e.run_key, ?2, j.judge_no, s.slot_no, s.selected_attempt, n.number, 'pending' FROM events e"
    " CROSS JOIN json_each(e.body, '$.slots') g"
    " JOIN slots s ON s.run_key = e.run_key AND s.slot_no >= json_extract(g.value, '$[0]')"
    " AND s.slot_no <= json_extract(g.value, '$[1]')"
    " AND (s.slot_no - json_extract(g.value, '$[0]')) % json_extract(g.value, '$[2]') = 0"
    " CROSS JOIN evaluation_judges j ON j.run_key = e.run_key AND j.evaluation_no = ?2"
    " CROSS JOIN samples n ON n.number <= j.samples"
    " WHERE e.run_key = ?1 AND e.event_no = ?3 AND s.state = 'selected' ON CONFLICT DO NOTHING"
)
_ADD_REST: Final = (
    f"WITH RECURSIVE {_SAMPLES}"
    " INSERT INTO judgments (run_key, evaluation_no, judge_no, slot_no, attempt_no, sample_no, state)"
    " SELECT s.run_key, ?2, j.judge_no, s.slot_no, s.selected_attempt, n.number, 'pending' FROM slots s"
    " CROSS JOIN evaluation_judges j ON j.run_key = s.run_key AND j.evaluation_no = ?2"
    " CROSS JOIN samples n ON n.number <= j.samples"
    " WHERE s.run_key = ?1 AND s.slot_no > ?3 AND s.slot_no <= ?4 AND s.state = 'selected' ON CONFLICT DO NOTHING"
)
_EVALUATION: Final = (
    "SELECT e.run_key, r.run_id, e.evaluation_no, e.evaluation_id, e.name, e.document, e.document_digest, e.settings,"
    " e.set_at_event, e.set_read_to, e.created_us, e.ended_us FROM evaluations e JOIN runs r ON r.run_key = e.run_key"
)


@attrs.frozen
class EvaluationPlan:
    """What an evaluation is: canonical JSON texts, its judges in their order, and budgets of its own.

    ``digest`` is of what its verdicts depend on, ``settings`` how it is executed, ``at_event`` up to which event of
    the run its set reaches, None: up to now.
    """

    name: str
    document: str
    digest: str
    settings: str
    judges: tuple[JudgePlan, ...]
    budgets: tuple[BudgetPlan, ...] = ()
    at_event: int | None = None


@attrs.frozen
class EvaluationRow:
    """An evaluation; ``set_at_event`` is None for the run's own, whose set is the plan."""

    run_key: int
    run_id: str
    evaluation_no: int
    evaluation_id: str
    name: str
    document: str
    document_digest: str
    settings: str
    set_at_event: int | None
    set_read_to: int
    created_us: int
    ended_us: int | None


def create_evaluation(tx: Transaction, run_id: str, plan: EvaluationPlan, *, only_one: bool = False) -> EvaluationRow:
    """Write an evaluation down with its judges and budgets; its set is fixed from here on.

    With ``only_one``, an unfinished one of the same digest is returned instead: of two that ask at once, one makes it.
    Raises RunNotFound, UsageError for an event that the run does not have, and ContentsLeftOut.
    """
    found = tx.row("SELECT run_key FROM runs WHERE run_id = ? AND state NOT IN ('planning', 'importing')", (run_id,))
    if found is None:
        raise RunNotFound(f"there is no run {run_id}", "list them with `tallystick runs`", run_id)
    run_key: int = found[0]
    if only_one and (other := _unfinished(tx, run_key, plan.digest)) is not None:
        return other
    require_judgeable(tx, run_key)
    newest = tx.row("SELECT max(event_no) FROM events WHERE run_key = ?", (run_key,))[0]
    at_event = newest if plan.at_event is None else plan.at_event
    if not 1 <= at_event <= newest:
        raise UsageError(f"run {run_id} has no event {at_event}", f"name one from 1 to {newest}")
    number = max(INLINE + 1, next_number(tx, run_key, "evaluations"))
    evaluation_id = tx.ids.next()
    tx.execute(
        _ADD_EVALUATION,
        (run_key, number, evaluation_id, plan.name, plan.document, plan.digest, plan.settings, at_event, tx.now_us),
    )
    _add_judges(tx, run_key, number, plan)
    _add_budgets(tx, run_key, evaluation_id, plan)
    tx.event(run_key, "evaluation.created", {
        "evaluation": number, "id": evaluation_id, "name": plan.name, "digest": plan.digest, "set_at": at_event,
        "judges": [judge.name for judge in plan.judges],
    })  # fmt: skip
    return EvaluationRow(*tx.row(f"{_EVALUATION} WHERE e.evaluation_id = ?", (evaluation_id,)))


def write_set(tx: Transaction, evaluation: EvaluationRow) -> bool:
    """Write down the waiting judgments of a further part of the set; says whether it is whole. Idempotent."""
    until = evaluation.set_at_event
    assert until is not None, "the set of the run's own evaluation is the plan"
    read_to = tx.row("SELECT set_read_to FROM evaluations WHERE evaluation_id = ?", (evaluation.evaluation_id,))[0]
    if read_to >= until:
        return True
    upto = min(read_to + _EVENTS_PER_BATCH, until)
    reused_at = tx.row(_NEXT_REUSED, (evaluation.run_key, read_to, upto))[0]
    if reused_at is not None:  # it names some thousand: the last of this part
        upto = reused_at
        tx.execute(_ADD_REUSED, (evaluation.run_key, evaluation.evaluation_no, reused_at))
    tx.execute(_ADD_WAITING, (evaluation.run_key, evaluation.evaluation_no, read_to, upto))
    tx.change("UPDATE evaluations SET set_read_to = ? WHERE evaluation_id = ? AND set_read_to = ?",
              (upto, evaluation.evaluation_id, read_to))  # fmt: skip
    return bool(upto >= until)


def write_rest(tx: Transaction, run_key: int, *, after_slot: int) -> int | None:
    """Write down what waits of the run's own evaluation in the next slots; the last of them, None at the end.

    What a judge said at once has its row already. Idempotent.
    """
    last = tx.row("SELECT max(slot_no) FROM (SELECT slot_no FROM slots WHERE run_key = ? AND slot_no > ?"
                  " ORDER BY slot_no LIMIT ?)", (run_key, after_slot, _SLOTS_PER_BATCH))[0]  # fmt: skip
    if last is None:
        return None
    tx.execute(_ADD_REST, (run_key, INLINE, after_slot, last))
    return int(last)


def find_evaluation(reader: Reader, run_key: int, text: str) -> EvaluationRow:
    """The run's evaluation with that number, id, unambiguous beginning of an id, or name (the newest of that name).

    Raises EvaluationNotFound.
    """
    rows = [row for row in evaluations_of(reader, run_key) if _is_meant(row, text)]
    exact = [row for row in rows if text in (row.evaluation_id, str(row.evaluation_no))]
    by_id = [row for row in rows if row.evaluation_id.startswith(text)]
    if exact or len(by_id) == 1 or (rows and not by_id):
        return (exact or by_id or rows)[-1]
    what = f"several evaluations begin with {text}" if by_id else f"the run has no evaluation {text}"
    raise EvaluationNotFound(what, "name one by its number; `tallystick report RUN --json` lists them", text)


def _is_meant(row: EvaluationRow, text: str) -> bool:
    return bool(text) and (text in (str(row.evaluation_no), row.name) or row.evaluation_id.startswith(text))


def evaluations_of(reader: Reader, run_key: int) -> list[EvaluationRow]:
    """The run's evaluations in their order, its own first where it has one."""
    rows = reader.rows(f"{_EVALUATION} WHERE e.run_key = ? ORDER BY e.evaluation_no", (run_key,))
    return [EvaluationRow(*row) for row in rows]


def newest_of_digest(reader: Reader, run_key: int, digest: str) -> EvaluationRow | None:
    """The newest evaluation after the run whose verdicts depend on the same."""
    row = reader.row(
        f"{_EVALUATION} WHERE e.run_key = ? AND e.document_digest = ? AND e.evaluation_no > {INLINE}"
        " ORDER BY e.evaluation_no DESC LIMIT 1",
        (run_key, digest),
    )
    return None if row is None else EvaluationRow(*row)


def has_selected_since(reader: Reader, run_key: int, event_no: int) -> bool:
    """Whether an observation was selected after that event."""
    return bool(
        reader.row(
            "SELECT EXISTS (SELECT 1 FROM events e WHERE e.run_key = ? AND e.event_no > ?"
            f" AND (e.kind = 'slots.reused' OR {_SELECTING}))",
            (run_key, event_no),
        )[0]
    )


def evaluation_budgets_of(reader: Reader, evaluation: EvaluationRow) -> list[BudgetPlan]:
    """The budgets that are for this evaluation alone."""
    rows = reader.rows(
        "SELECT budget_no, scope, scope_value, unit, kind, limit_amount, bound_amount FROM budgets"
        " WHERE run_key = ? AND scope = ? AND scope_value = ? ORDER BY budget_no",
        (evaluation.run_key, EVALUATION_SCOPE, evaluation.evaluation_id),
    )
    return [BudgetPlan(*row) for row in rows]


def take_settings(tx: Transaction, evaluation: EvaluationRow, settings: str) -> None:
    """Go by other limits and another throughput from now on, and say so in the run's history."""
    tx.change("UPDATE evaluations SET settings = ? WHERE evaluation_id = ?", (settings, evaluation.evaluation_id))
    tx.event(evaluation.run_key, "evaluation.settings_changed", {
        "evaluation": evaluation.evaluation_no, "settings": parse_json(settings),
    })  # fmt: skip


def let_retried_wait(tx: Transaction, evaluation: EvaluationRow, *, reason: str) -> int:
    """Let judgments that gave no verdict for that reason wait again; returns how many."""
    return _let_wait(tx, evaluation, "", (), reason)


def let_budgeted_wait(tx: Transaction, evaluation: EvaluationRow, judge_no: int) -> int:
    """The same for one judge's judgments that a budget had no room for."""
    return _let_wait(tx, evaluation, " AND judge_no = ?", (judge_no,), NoVerdictReason.OUT_OF_BUDGET)


def _let_wait(tx: Transaction, evaluation: EvaluationRow, which: str, values: tuple[int, ...], reason: str) -> int:
    count = tx.change(
        "UPDATE judgments SET state = 'pending', reason = NULL, explanation = NULL, solitary_deaths = 0, judged_us ="
        f" NULL WHERE run_key = ? AND evaluation_no = ? AND state = 'no_verdict' AND reason = ?{which}",
        (evaluation.run_key, evaluation.evaluation_no, reason, *values),
    )
    if count:
        tx.change("UPDATE evaluations SET ended_us = NULL WHERE evaluation_id = ?", (evaluation.evaluation_id,))
        tx.event(evaluation.run_key, "judgments.retried", {
            "evaluation": evaluation.evaluation_no, "count": count, "reason": reason,
            "judge": values[0] if values else None,
        })  # fmt: skip
    return count


def _unfinished(tx: Transaction, run_key: int, digest: str) -> EvaluationRow | None:
    row: Any = tx.row(
        f"{_EVALUATION} WHERE e.run_key = ? AND e.document_digest = ? AND e.evaluation_no > {INLINE}"
        " AND e.ended_us IS NULL ORDER BY e.evaluation_no DESC LIMIT 1",
        (run_key, digest),
    )
    return None if row is None else EvaluationRow(*row)


def _add_judges(tx: Transaction, run_key: int, number: int, plan: EvaluationPlan) -> None:
    for judge_no, judge in enumerate(plan.judges, start=1):
        digest = digest_of_value(parse_json(judge.identity))
        tx.execute(
            _ADD_JUDGE,
            (run_key, number, judge_no, judge.name, judge.kind, judge.identity, digest, judge.samples,
             judge.requirement),
        )  # fmt: skip


def _add_budgets(tx: Transaction, run_key: int, evaluation_id: str, plan: EvaluationPlan) -> None:
    for budget_no, budget in enumerate(plan.budgets, start=next_number(tx, run_key, "budgets")):
        tx.execute(
            _ADD_BUDGET,
            (run_key, budget_no, EVALUATION_SCOPE, evaluation_id, budget.unit, budget.kind, budget.limit_amount,
             budget.bound_amount),
        )  # fmt: skip
