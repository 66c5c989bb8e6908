"""Sums of a report that go across slots: what judges sent, and what budgets were spent on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from .history import RunHistory
from .ledger import Reader
from .states import DispatchState

__all__ = [
    "NEVER_MADE",
    "JudgeDispatch",
    "JudgeRow",
    "counted_at",
    "held_by_unknown_at",
    "judge_dispatches",
    "judge_rows",
]


@attrs.frozen
class JudgeRow:
    """A judge of an evaluation; ``qualified`` is None where nothing is required of it.

    ``is_brought`` says that a snapshot brought the qualification that it is qualified by.
    """

    judge_no: int
    name: str
    kind: str
    identity_digest: str
    samples: int
    qualified: bool | None
    is_brought: bool = False


@attrs.frozen
class JudgeDispatch:
    """One send of a judge's call, as it stood; ``has_verdict`` says that it gave one."""

    dispatch_no: int
    state: str
    has_verdict: bool
    tokens_in: int | None
    tokens_out: int | None
    cost_nanousd: int | None
    classes: str | None = None
    never_made: bool = False


def judge_rows(
    reader: Reader, run_key: int, evaluation_no: int, noted: Mapping[tuple[int, int], tuple[bool, bool]]
) -> list[JudgeRow]:
    """The judges of an evaluation, in their order; ``noted`` is `RunHistory.qualified`.

    One of which something is required is not qualified before the history says so.
    """
    found = []
    for number, name, kind, digest, samples, is_asked in reader.rows(
        "SELECT judge_no, name, kind, identity_digest, samples, requirement IS NOT NULL FROM evaluation_judges"
        " WHERE run_key = ? AND evaluation_no = ? ORDER BY judge_no",
        (run_key, evaluation_no),
    ):
        met, is_brought = noted.get((evaluation_no, number), (False, False))
        found.append(JudgeRow(number, name, kind, digest, samples, met if is_asked else None, met and is_brought))
    return found


CLASSES: Final = "iif(json_valid(d.usage), d.usage -> '$.classes', NULL)"
"""A dispatch's tokens by class as JSON text; another program may have written what is no JSON."""
NEVER_MADE: Final = "d.state = 'refused' AND (d.bytes_sent = 0 OR d.settled_by <> 'wire')"
"""Whether nothing was sent, or somebody has proven or declared that it was not done: such a send wasted nothing."""
_BY_JUDGES: Final = (
    "SELECT c.call_id, d.dispatch_no, d.state, d.tokens_in, d.tokens_out, d.cost_nanousd,"
    f" {CLASSES}, {NEVER_MADE}, j.evaluation_no, j.judge_no, j.slot_no, j.attempt_no, j.sample_no FROM calls c"
    " JOIN dispatches d ON d.call_id = c.call_id"
    " LEFT JOIN judgments j ON j.run_key = c.run_key AND j.evaluation_no = c.evaluation_no AND j.judge_no = c.judge_no"
    " AND j.slot_no = c.slot_no AND j.attempt_no = c.attempt_no AND j.sample_no = c.sample_no"
    " AND j.call_id = c.call_id AND j.state = 'judged' AND d.state = 'answered'"
    " WHERE c.run_key = ? AND c.owner = 'judgment' ORDER BY c.call_id, d.dispatch_no"
)


def judge_dispatches(reader: Reader, history: RunHistory) -> Iterator[JudgeDispatch]:
    """Every send of the run's judges, of all evaluations."""
    for call_id, dispatch_no, state, tokens_in, tokens_out, cost, classes, unmade, *judgment in reader.each(
        _BY_JUDGES, (history.run_key,)
    ):
        key = (call_id, dispatch_no)
        open_one = history.open_dispatches.get(key)
        if open_one is not None:
            yield JudgeDispatch(dispatch_no, open_one.state, False, None, None, None)
        elif key not in history.later_dispatches:
            is_given = judgment[0] is not None and tuple(judgment) not in history.later_judgments
            yield JudgeDispatch(dispatch_no, state, is_given, tokens_in, tokens_out, cost, classes, bool(unmade))


_OF_SELECTED: Final = (
    "SELECT s.slot_no, r.budget_no, sum(r.settled) FROM slots s JOIN calls c ON c.run_key = s.run_key"
    " AND c.slot_no = s.slot_no AND c.attempt_no = s.selected_attempt AND c.owner = 'attempt'"
    " JOIN dispatches d ON d.call_id = c.call_id AND d.state = 'answered'"
    " JOIN reservations r ON r.call_id = d.call_id AND r.dispatch_no = d.dispatch_no"
    " WHERE s.run_key = ? AND s.state = 'selected' AND r.state = 'settled' GROUP BY s.slot_no, r.budget_no"
)
_CARRIED: Final = (
    "SELECT t.slot_no, r.budget_no, sum(r.settled) FROM turns t JOIN slots s ON s.run_key = t.run_key"
    " AND s.slot_no = t.slot_no AND s.selected_attempt = t.attempt_no JOIN turns o ON o.run_key = t.run_key"
    " AND o.slot_no = t.slot_no AND o.attempt_no = t.carried_from AND o.session_no = t.session_no AND o.turn = t.turn"
    " JOIN reservations r ON r.call_id = o.call_id AND r.dispatch_no = o.dispatch_no"
    " WHERE t.run_key = ? AND t.source = 'carried' AND r.state = 'settled' GROUP BY t.slot_no, r.budget_no"
)
_OF_VERDICTS: Final = (
    "SELECT j.evaluation_no, j.judge_no, j.slot_no, j.attempt_no, j.sample_no, r.budget_no, r.settled FROM judgments j"
    " JOIN dispatches d ON d.call_id = j.call_id AND d.state = 'answered'"
    " JOIN reservations r ON r.call_id = d.call_id AND r.dispatch_no = d.dispatch_no"
    " WHERE j.run_key = ? AND j.state = 'judged' AND r.state = 'settled'"
)


def counted_at(reader: Reader, history: RunHistory) -> dict[int, int]:
    """What the sends of selected observations and of verdicts used, by budget number; what else is settled was wasted.

    A verdict that was reused has no call of its own.
    """
    found: dict[int, int] = {}
    for *judgment, budget_no, amount in reader.each(_OF_VERDICTS, (history.run_key,)):
        if tuple(judgment) not in history.later_judgments:
            found[budget_no] = found.get(budget_no, 0) + amount
    for query in (_OF_SELECTED, _CARRIED):
        for slot_no, budget_no, amount in reader.each(query, (history.run_key,)):
            if history.selected_at[slot_no]:
                found[budget_no] = found.get(budget_no, 0) + amount
    return found


def held_by_unknown_at(history: RunHistory) -> dict[int, int]:
    """What unknown outcomes held, by budget number."""
    found: dict[int, int] = {}
    for one in history.open_dispatches.values():
        if one.state == DispatchState.UNKNOWN:
            for number, amount in one.held.items():
                found[int(number)] = found.get(int(number), 0) + amount
    return found
