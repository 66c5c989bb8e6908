"""Every planned observation of a run as it stood at an event, one by one, in the order of their numbers.

A part of the slots at a time, so that memory does not grow with the run; answers and evidence, which may be large, one
row after another. What may have changed since the event comes from the run's history, everything else from rows that
are never changed. The classes of rows are named tuples, most of them made past their own constructors: a report of a
large run makes millions, and a frozen class of attrs takes ten times as long to make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from .artifacts import ANSWER, text_of
from .history import STATE_TEXTS, RunHistory
from .ledger import Reader
from .report_sums import CLASSES, NEVER_MADE
from .states import JudgmentState

__all__ = [
    "AttemptRow",
    "CaseRow",
    "DispatchRow",
    "GivenJudgment",
    "ObservationRow",
    "SettlementRow",
    "SlotRow",
    "slot_rows",
]

_SLOTS_AT_ONCE: Final = 2_000
_SLOTS: Final = (
    "SELECT s.slot_no, s.variant_no, s.repetition, s.case_no, c.case_id, c.digest, c.metadata FROM slots s"
    " JOIN cases c ON c.run_key = s.run_key AND c.case_no = s.case_no WHERE s.run_key = ?"
    " AND s.slot_no > ? AND s.slot_no <= ? ORDER BY s.slot_no"
)
_TRIED: Final = (
    "a.slot_no, a.attempt_no, a.state, a.began_us, a.ended_us, a.reason, a.message, a.reused_from, o.call_id,"
    " o.dispatch_no,"
)
_OBSERVED: Final = (
    " FROM attempts a LEFT JOIN observations o ON o.run_key = a.run_key"
    " AND o.slot_no = a.slot_no AND o.attempt_no = a.attempt_no WHERE a.run_key = ?"
    " AND a.slot_no > ? AND a.slot_no <= ? ORDER BY a.slot_no, a.attempt_no"
)
_ATTEMPTS: Final = f"SELECT {_TRIED} {ANSWER}, o.evidence, o.flags, o.source{_OBSERVED}"
# Figures need to know that there is an answer, and not which: reading them all takes most of the time of a large run.
_ATTEMPTS_ALONE: Final = (
    f"SELECT {_TRIED} iif(o.answer_digest IS NULL, NULL, 'null'), '{{}}', o.flags, o.source{_OBSERVED}"
)
_DISPATCHES: Final = (
    "SELECT c.slot_no, c.attempt_no, c.call_id, d.dispatch_no, d.state, d.intended_us, d.ended_us, d.duration_us,"
    " d.bytes_sent, d.status, d.reason, d.message, d.settled_by, d.tokens_in, d.tokens_out, d.cost_nanousd, d.replay,"
    f" {CLASSES}, {NEVER_MADE}"
    " FROM calls c JOIN dispatches d ON d.call_id = c.call_id WHERE c.run_key = ? AND c.owner = 'attempt'"
    " AND c.reused_from IS NULL"  # what was sent for another run
    " AND c.slot_no > ? AND c.slot_no <= ? ORDER BY c.slot_no, c.attempt_no, c.position, d.dispatch_no"
)
_CARRIED: Final = (
    "SELECT t.slot_no, t.attempt_no, o.call_id, o.dispatch_no FROM turns t JOIN turns o ON o.run_key = t.run_key"
    " AND o.slot_no = t.slot_no AND o.attempt_no = t.carried_from AND o.session_no = t.session_no AND o.turn = t.turn"
    " WHERE t.run_key = ? AND t.slot_no > ? AND t.slot_no <= ? AND t.source = 'carried'"
)
_JUDGED: Final = JudgmentState.JUDGED.value
_GIVEN: Final = (JudgmentState.JUDGED, JudgmentState.NO_VERDICT)
# By each judge, as the key of judgments begins: without it every part would go through all of them.
_JUDGMENTS: Final = (
    "SELECT j.slot_no, j.judge_no, j.attempt_no, j.sample_no, j.state, j.passed, j.score, j.reason, j.explanation,"
    " j.reused_from FROM evaluation_judges e CROSS JOIN judgments j ON j.run_key = e.run_key"
    " AND j.evaluation_no = e.evaluation_no AND j.judge_no = e.judge_no WHERE e.run_key = ?1 AND e.evaluation_no = ?4"
    " AND j.slot_no > ?2 AND j.slot_no <= ?3 ORDER BY j.slot_no, j.judge_no, j.attempt_no, j.sample_no"
)


_NONE: Final[frozenset[tuple[str, int]]] = frozenset()
_new: Final[Callable[..., Any]] = tuple.__new__


class ObservationRow(NamedTuple):
    """What an attempt observed; ``answer`` is its canonical JSON text."""

    call_id: str | None
    dispatch_no: int | None
    answer: str
    evidence: str
    flags: str
    source: str


class AttemptRow(NamedTuple):
    """One attempt as it stood. ``reused_from`` names the attempt of another run that this is in a fork."""

    attempt_no: int
    state: str
    began_us: int
    ended_us: int | None
    reason: str | None
    message: str | None
    contaminated: bool
    observation: ObservationRow | None
    reused_from: str | None = None


class DispatchRow(NamedTuple):
    """One send as it stood; of an unknown one only what was known when it was lost.

    ``classes`` is JSON text of its tokens by class, None where they were not told apart; ``never_made`` tells what
    `NEVER_MADE` does.
    """

    attempt_no: int
    call_id: str
    dispatch_no: int
    state: str
    intended_us: int
    ended_us: int | None
    duration_us: int | None
    bytes_sent: int | None
    status: int | None
    reason: str | None
    message: str | None
    settled_by: str | None
    tokens_in: int | None
    tokens_out: int | None
    cost_nanousd: int | None
    replay: int
    classes: str | None = None
    never_made: int | None = None


class GivenJudgment(NamedTuple):
    """A verdict (``passed``, ``score`` as decimal text, or both), or the ``reason`` why there is none."""

    judge_no: int
    sample_no: int
    passed: bool | None
    score: str | None
    reason: str | None
    explanation: str | None
    reused: bool


class SlotRow(NamedTuple):
    """One planned observation; ``judgments`` are those of its selected attempt. ``attempts`` are in their order.

    ``carried`` names the sends of earlier attempts whose answers the newest one has taken over, as turns.
    """

    slot_no: int
    variant_no: int
    repetition: int
    case_no: int
    case_id: str
    case_digest: str
    metadata: str
    state: str
    reason: str | None
    selected_at: int
    attempts: tuple[AttemptRow, ...]
    dispatches: tuple[DispatchRow, ...]
    judgments: tuple[GivenJudgment, ...]
    carried: frozenset[tuple[str, int]] = frozenset()

    @property
    def is_reused(self) -> bool:
        """Whether its observation is one of another run, which a fork took over."""
        newest = self.newest
        return bool(self.selected_at) and newest is not None and newest.reused_from is not None

    @property
    def newest(self) -> AttemptRow | None:
        """The newest attempt, the selected one where there is one."""
        return self.attempts[-1] if self.attempts else None


class CaseRow(NamedTuple):
    """What was asked and what is expected, as canonical JSON texts."""

    input: str
    expected: str | None


class SettlementRow(NamedTuple):
    """Who decided on an unknown outcome."""

    attempt_no: int
    decision: str
    made_by: str
    reason: str
    made_us: int


def _by_slot(rows: Iterator[Any]) -> Callable[[int], Sequence[Any]]:
    """A function that takes the rows of an ordered query slot by slot; what was passed over is gone."""
    ahead: Any = next(rows, None)

    def take(slot_no: int) -> list[Any]:
        nonlocal ahead
        found: list[Any] = []
        while ahead is not None and ahead[0] <= slot_no:
            if ahead[0] == slot_no:
                found.append(ahead)
            ahead = next(rows, None)
        return found

    return take


def _at_once(rows: Iterable[Any]) -> Callable[[int], Sequence[Any]]:
    """A function that gives the rows of a query slot by slot, which are read at once."""
    found: dict[int, list[Any]] = {}
    for row in rows:
        if row[0] in found:
            found[row[0]].append(row)
        else:
            found[row[0]] = [row]
    return lambda slot_no: found.get(slot_no, ())


def slot_rows(
    turn: Callable[[], Reader], history: RunHistory, *, evaluation_no: int, with_texts: bool = True
) -> Iterator[SlotRow]:
    """Every planned observation of the run, as it stood at the event of ``history``.

    ``turn`` gives the view to read the next part with (`views`). Without texts an observation says that there is an
    answer, and not which.
    """
    for first in range(0, history.planned, _SLOTS_AT_ONCE):
        yield from _part(
            turn(), history, (first, min(first + _SLOTS_AT_ONCE, history.planned)), evaluation_no, with_texts=with_texts
        )


def _part(
    reader: Reader, history: RunHistory, part: tuple[int, int], evaluation_no: int, *, with_texts: bool
) -> Iterator[SlotRow]:
    which = (history.run_key, *part)
    attempts = _by_slot(reader.each(_ATTEMPTS, which)) if with_texts else _at_once(reader.rows(_ATTEMPTS_ALONE, which))
    dispatches = _at_once(reader.rows(_DISPATCHES, which))
    judgments = _at_once(reader.rows(_JUDGMENTS, (*which, evaluation_no)))
    carried = _at_once(reader.rows(_CARRIED, which))
    later, open_ones = history.later_dispatches, history.open_dispatches
    reasons, codes, tries, selections = history.reasons, history.codes, history.attempts, history.selected_at
    for slot_no, *planned in reader.rows(_SLOTS, which):
        newest, selected_at = tries[slot_no], selections[slot_no]
        sent = [
            _new(DispatchRow, row[1:]) if (row[2], row[3]) not in open_ones else _open_dispatch(history, row)
            for row in dispatches(slot_no)
            if not later or (row[2], row[3]) not in later
        ]
        given = judgments(slot_no) if selected_at else ()
        said = [_judgment(history, evaluation_no, row) for row in given if row[2] == newest]
        taken = carried(slot_no)
        variant_no, repetition, case_no, case_id, digest, metadata = planned
        yield _new(SlotRow, (
            slot_no, variant_no, repetition, case_no, case_id, digest, metadata, STATE_TEXTS[codes[slot_no]],
            reasons.get(slot_no), selected_at,
            tuple([_attempt(reader, history, row) for row in attempts(slot_no) if row[1] <= newest]), tuple(sent),
            tuple([one for one in said if one is not None]),
            frozenset([(row[2], row[3]) for row in taken if row[1] == newest]) if taken else _NONE,
        ))  # fmt: skip


def _attempt(reader: Reader, history: RunHistory, row: Any) -> Any:
    slot_no, attempt_no, state, began, ended, reason, message, reused, call_id, dispatch_no, answer, *further = row
    key = (slot_no, attempt_no)
    contaminated = key in history.contaminated
    if key in history.open_attempts:
        now = history.open_attempts[key]
        return AttemptRow(
            attempt_no, now.state, began, now.ended_us, now.reason, now.message, contaminated, None, reused
        )
    observation = None
    if answer is not None:
        text = answer if type(answer) is str else text_of(reader, answer)
        observation = _new(ObservationRow, (call_id, dispatch_no, text, *further))
    return _new(AttemptRow, (attempt_no, state, began, ended, reason, message, contaminated, observation, reused))


def _open_dispatch(history: RunHistory, row: Any) -> DispatchRow:
    _, attempt_no, call_id, dispatch_no, _, intended, *_, replay, _, _ = row
    now = history.open_dispatches[call_id, dispatch_no]
    return DispatchRow(
        attempt_no, call_id, dispatch_no, now.state, intended, now.ended_us, now.duration_us, now.bytes_sent,
        now.status, now.reason, now.message, None, None, None, None, replay,
    )  # fmt: skip


def _judgment(history: RunHistory, evaluation_no: int, row: Any) -> Any:
    """The judgment as it was given, None where it had not been."""
    slot_no, judge_no, attempt_no, sample_no, state, passed, score, reason, explanation, reused_from = row
    later = history.later_judgments
    if state == _JUDGED and (not later or (evaluation_no, judge_no, slot_no, attempt_no, sample_no) not in later):
        verdict = None if passed is None else bool(passed)
        reused = reused_from is not None
        return _new(GivenJudgment, (judge_no, sample_no, verdict, score, reason, explanation, reused))
    key = (evaluation_no, judge_no, slot_no, attempt_no, sample_no)
    is_later = state not in _GIVEN or key in later
    if is_later and key not in history.judged_before:
        return None
    passed, score, reason = history.judged_before[key] if is_later else (None, None, reason)
    # Its explanation is gone once it is tried again, so it is not shown at all; `tallystick show` has it.
    return GivenJudgment(judge_no, sample_no, passed, score, reason, None, False)
