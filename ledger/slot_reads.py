"""Read models of slots, attempts and calls: what waits, what is unknown, the page of one case, the scores."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import attrs

from .artifacts import ANSWER, bytes_of, text_of
from .asked_waits import asked_to_wait_until, judges_asked_to_wait_until
from .canonical import canonical_text, escaped_text, unescaped_text
from .case_reads import DispatchPage, JudgmentPage, dispatches_of, judgments_of
from .ledger import Reader
from .records import PendingSlot
from .states import NextStep, SlotState
from .turns import SessionRow, sessions_of

__all__ = [
    "AttemptPage",
    "CallToRepeat",
    "CasePage",
    "Score",
    "Unknown",
    "call_to_repeat",
    "case_ids",
    "case_page",
    "goes_on_at_us",
    "next_not_before",
    "pending_slots",
    "scores_of",
    "slot_stands",
    "suspect_slots",
    "unknown_outcomes",
]

_DEATHS_MAX: Final = 1_000_000
_PENDING = (
    "SELECT s.slot_no, s.variant_no, s.repetition, c.case_id, c.input, c.expected, c.metadata, s.attempts, s.next_step,"
    " s.not_before_us FROM slots s JOIN cases c ON c.run_key = s.run_key AND c.case_no = s.case_no"
)


def pending_slots(
    reader: Reader, run_key: int, *, after: tuple[int, int], now_us: int, limit: int, without: Collection[int] = ()
) -> list[PendingSlot]:
    """The next slots that may be claimed now, in the order ``(not_before_us, slot_no)``, beyond ``after``.

    Those of the variants ``without`` are passed over.
    """
    return _slots(
        reader.rows(
            f"{_PENDING} WHERE s.run_key = ? AND s.state = 'pending' AND s.suspect = 0"
            f" AND (s.not_before_us, s.slot_no) > (?, ?) AND s.not_before_us <= ?{_not_of('s.', without)}"
            " ORDER BY s.not_before_us, s.slot_no LIMIT ?",
            (run_key, *after, now_us, limit),
        )
    )


def suspect_slots(reader: Reader, run_key: int, *, limit: int, blamed: bool = False) -> list[PendingSlot]:
    """Slots that were in flight when a coordinator died; ``blamed`` are those that were once alone, the least first."""
    return _slots(
        reader.rows(
            f"{_PENDING} WHERE s.run_key = ? AND s.suspect = 1 AND s.state = 'pending'"
            " AND s.solitary_deaths BETWEEN ? AND ?"
            " ORDER BY s.solitary_deaths, s.slot_no LIMIT ?",
            (run_key, *((1, _DEATHS_MAX) if blamed else (0, 0)), limit),
        )
    )


def slot_stands(reader: Reader, run_key: int, slot_no: int) -> tuple[SlotState, int, NextStep]:
    """How a slot stands now: its state, the number of its attempts and its next step."""
    state, attempts, step = reader.row(
        "SELECT state, attempts, next_step FROM slots WHERE run_key = ? AND slot_no = ?", (run_key, slot_no)
    )
    return SlotState(state), attempts, NextStep(step)


def next_not_before(
    reader: Reader,
    run_key: int,
    *,
    without: Collection[int] = (),
    besides: Collection[int] = (),
    suspects: bool = True,
) -> int | None:
    """The earliest instant at which a waiting slot may be claimed; 0 is now, None: nothing waits.

    Those of the variants ``without`` are passed over, the slots ``besides``, and suspects where they are not asked for.
    """
    which = _not_of("", without) if suspects else f"{_not_of('', without)} AND suspect = 0"
    values: tuple[int | str, ...] = (run_key,)
    if besides:
        which += " AND slot_no NOT IN (SELECT value FROM json_each(?))"
        values += (canonical_text(sorted(besides)),)
    row = reader.row(f"SELECT min(not_before_us) FROM slots WHERE run_key = ? AND state = 'pending'{which}", values)
    found: int | None = row[0]
    return found


def _not_of(table: str, variants: Collection[int]) -> str:
    return f" AND {table}variant_no NOT IN ({', '.join(str(int(number)) for number in variants)})" if variants else ""


def goes_on_at_us(reader: Reader, run_key: int, *, now_us: int) -> int | None:
    """The earliest instant at which a session finds something to claim; 0 is now, None: nothing waits.

    Other than `next_not_before`, it counts what `asked_to_wait_until` keeps back from a slot that does not wait itself,
    and where no slot waits, what keeps all judgments back that the run still has to give.
    """
    held = asked_to_wait_until(reader, run_key, now_us=now_us)
    free = next_not_before(reader, run_key, without=held)
    waits = [] if free is None else [free]
    for variant_no, until in held.items():
        row = reader.row(
            "SELECT not_before_us FROM slots WHERE run_key = ? AND state = 'pending' AND variant_no = ?"
            " ORDER BY not_before_us LIMIT 1",
            (run_key, variant_no),
        )
        waits += [] if row is None else [max(until, row[0])]
    return min(waits) if waits else _judges_at_us(reader, run_key, now_us=now_us)


def _judges_at_us(reader: Reader, run_key: int, *, now_us: int) -> int | None:
    """When the first of the judges that still have to judge may be asked; None where one of them may be already."""
    held = judges_asked_to_wait_until(reader, run_key, 1, now_us=now_us)
    if not held:
        return None
    rows = reader.rows(
        "SELECT DISTINCT judge_no FROM judgments INDEXED BY judgments_open WHERE run_key = ? AND evaluation_no = 1"
        " AND state IN ('pending', 'judging')",
        (run_key,),
    )
    waiting = {judge_no for (judge_no,) in rows}
    return min(held[judge_no] for judge_no in waiting) if waiting and waiting <= held.keys() else None


@attrs.frozen
class CallToRepeat:
    """The newest call of a slot that is to be resent or asked for."""

    call_id: str
    attempt_no: int
    dispatch_no: int
    dispatches: int
    payload: bytes | None
    head: str
    payload_digest: str
    key_until_us: int | None


def call_to_repeat(reader: Reader, run_key: int, slot_no: int, attempt_no: int) -> CallToRepeat | None:
    """The first call of that attempt that has no outcome, with its stored bytes."""
    row = reader.row(
        "SELECT c.call_id, c.attempt_no, max(d.dispatch_no), count(*), coalesce(c.payload, c.payload_artifact), c.head,"
        " c.payload_digest, c.key_until_us FROM calls c JOIN dispatches d ON d.call_id = c.call_id"
        " WHERE c.run_key = ? AND c.slot_no = ? AND c.attempt_no = ? AND c.owner = 'attempt' GROUP BY c.call_id"
        " HAVING sum(d.state = 'unknown') > 0 AND sum(d.state = 'answered') = 0 ORDER BY c.position LIMIT 1",
        (run_key, slot_no, attempt_no),
    )
    return None if row is None else CallToRepeat(*_more(row[:4], bytes_of(reader, row[4]), *row[5:]))


@attrs.frozen
class Unknown:
    """One unknown outcome with its evidence; ``is_newest`` says whether settling it can move its slot.

    ``turn`` is set in a conversation: which turn it asked. Then an answer commits the turn, where it has none.
    ``judge`` names the judge whose call it is; then settling it selects nothing. In a fork, ``sent_as`` is the request
    id under which it was sent in another run, ``taken_from`` the attempt there.
    """

    call_id: str
    dispatch_no: int
    slot_no: int
    attempt_no: int
    case_id: str
    variant: str
    repetition: int
    slot_state: str
    is_newest: bool
    if_unknown: str
    intended_us: int
    ended_us: int | None
    bytes_sent: int | None
    reason: str
    message: str
    payload: bytes | None
    payload_digest: str
    head: str
    raw: bytes | None
    next_step: str
    held: dict[str, int]
    judge: str | None = None
    turn: int | None = None
    sent_as: str | None = None
    taken_from: str | None = None


_TURN_OF_CALL: Final = (
    "(SELECT t.turn FROM turns t WHERE t.run_key = c.run_key AND t.slot_no = c.slot_no"
    " AND t.attempt_no = c.attempt_no AND t.call_id = c.call_id)"
)
_TURN_ASKED: Final = (
    "(SELECT n.turn FROM sessions n WHERE n.run_key = c.run_key AND n.slot_no = c.slot_no"
    " AND n.attempt_no = c.attempt_no)"
)


def unknown_outcomes(
    reader: Reader,
    run_key: int,
    *,
    call_id: str | None = None,
    case_id: str | None = None,
    variant: str | None = None,
    reason: str | None = None,
    limit: int = -1,
) -> list[Unknown]:
    """Every unknown outcome of the run that fits the filters, the oldest first; ``call_id`` may be a prefix."""
    values: list[str] = []
    filters = ""
    if case_id is not None:
        filters += " AND c2.case_id IN (?, ?)"
        values += _stored_ids(case_id)
    for column, value in (("v.name", variant), ("d.reason", reason)):
        if value is not None:
            filters += f" AND {column} = ?"
            values.append(value)
    if call_id is not None:
        filters += " AND c.call_id >= ? AND c.call_id < ?"
        values += [call_id, call_id + "~"]
    rows = reader.rows(
        "SELECT c.call_id, d.dispatch_no, c.slot_no, c.attempt_no, c2.case_id, v.name, s.repetition, s.state,"
        f" s.attempts = c.attempt_no AND NOT EXISTS {_TURN_OF_CALL}, c.if_unknown, d.intended_us, d.ended_us,"
        " d.bytes_sent, coalesce(d.reason, ''),"
        " coalesce(d.message, ''), coalesce(c.payload, c.payload_artifact), c.payload_digest, c.head,"
        f" coalesce(d.raw, d.raw_artifact), s.next_step, e.name, coalesce({_TURN_OF_CALL}, {_TURN_ASKED}),"
        " c.reused_from, (SELECT a.reused_from FROM attempts a WHERE a.run_key = c.run_key AND a.slot_no = c.slot_no"
        " AND a.attempt_no = c.attempt_no)"
        " FROM dispatches d JOIN calls c ON c.call_id = d.call_id"
        " JOIN slots s ON s.run_key = c.run_key AND s.slot_no = c.slot_no"
        " JOIN cases c2 ON c2.run_key = s.run_key AND c2.case_no = s.case_no"
        " JOIN variants v ON v.run_key = s.run_key AND v.variant_no = s.variant_no"
        " LEFT JOIN evaluation_judges e ON e.run_key = c.run_key AND e.evaluation_no = c.evaluation_no"
        " AND e.judge_no = c.judge_no"
        f" WHERE d.run_key = ? AND d.state IN ('intended', 'unknown') AND d.state = 'unknown'{filters}"
        " ORDER BY d.call_id, d.dispatch_no LIMIT ?",
        (run_key, *values, limit),
    )
    return [_unknown(reader, row) for row in rows]


def _unknown(reader: Reader, row: Any) -> Unknown:
    payload, *between, raw, next_step, judge, turn, sent_as, taken_from = row[15:]
    held = _held(reader, row[0], row[1])
    further = (bytes_of(reader, payload), *between, bytes_of(reader, raw), next_step, held, judge, turn)
    return Unknown(*_more(row[:8], bool(row[8]), *row[9:15], *further, sent_as, taken_from))


def _held(reader: Reader, call_id: str, dispatch_no: int) -> dict[str, int]:
    held: dict[str, int] = {}
    for unit, amount in reader.rows(
        "SELECT b.unit, r.held FROM reservations r"
        " JOIN budgets b ON b.run_key = r.run_key AND b.budget_no = r.budget_no"
        " WHERE r.call_id = ? AND r.dispatch_no = ? AND r.state = 'held' ORDER BY b.budget_no",
        (call_id, dispatch_no),
    ):
        held[unit] = max(held.get(unit, 0), amount)  # one dispatch counts in several scopes and is held once
    return held


@attrs.frozen
class Score:
    """One judge's figures for one variant, of the ``planned`` population.

    ``rated`` of the ``judged`` say whether it passed, ``scored`` have a score, ``score_sum`` together.
    """

    judge: str
    variant: str
    planned: int
    judged: int
    passed: int
    rated: int
    scored: int
    score_sum: float | None
    no_verdict: dict[str, int]


def scores_of(reader: Reader, run_key: int, evaluation_no: int = 1) -> list[Score]:
    """What each judge said of each variant's selected observations, with the whole population beside it."""
    planned = dict(
        reader.rows("SELECT variant_no, count(*) FROM slots WHERE run_key = ? GROUP BY variant_no", (run_key,))
    )
    judges = reader.rows(
        "SELECT judge_no, name FROM evaluation_judges WHERE run_key = ? AND evaluation_no = ? ORDER BY judge_no",
        (run_key, evaluation_no),
    )
    variants = reader.rows("SELECT variant_no, name FROM variants WHERE run_key = ? ORDER BY variant_no", (run_key,))
    found = {(judge, variant): row for judge, variant, *row in reader.rows(_SCORES, (run_key, evaluation_no))}
    reasons: dict[tuple[int, int], dict[str, int]] = {}
    for judge, variant, reason, count in reader.rows(_REASONS, (run_key, evaluation_no)):
        reasons.setdefault((judge, variant), {})[reason] = count
    nothing = (0, 0, 0, 0, None)
    return [
        Score(*_more((name, variant, planned.get(variant_no, 0)), *found.get((judge_no, variant_no), nothing),
                     reasons.get((judge_no, variant_no), {})))
        for judge_no, name in judges
        for variant_no, variant in variants
    ]  # fmt: skip


_SELECTED_JUDGMENTS = (
    " FROM judgments j JOIN slots s ON s.run_key = j.run_key AND s.slot_no = j.slot_no"
    " AND s.selected_attempt = j.attempt_no WHERE j.run_key = ? AND j.evaluation_no = ?"
)
_SCORES = (
    "SELECT j.judge_no, s.variant_no, count(*), coalesce(sum(j.passed), 0), count(j.passed), count(j.score),"
    " sum(CAST(j.score AS REAL))"
    f"{_SELECTED_JUDGMENTS} AND j.state = 'judged' GROUP BY j.judge_no, s.variant_no"
)
_REASONS = (
    "SELECT j.judge_no, s.variant_no, j.reason, count(*)"
    f"{_SELECTED_JUDGMENTS} AND j.state = 'no_verdict' GROUP BY j.judge_no, s.variant_no, j.reason"
)


@attrs.frozen
class AttemptPage:
    """One attempt with its dispatches, its observation and the settlements of its unknowns.

    ``session`` is set in a conversation.
    """

    attempt_no: int
    state: str
    worker_id: str | None
    began_us: int
    ended_us: int | None
    reason: str | None
    message: str | None
    answer: str | None
    source: str | None
    evidence: str | None
    flags: str | None
    contaminated: int
    reused_from: str | None
    dispatches: tuple[DispatchPage, ...]
    settlements: tuple[tuple[str, str, str, int], ...]
    session: SessionRow | None = None


@attrs.frozen
class CasePage:
    """One slot of a case with its whole history."""

    slot_no: int
    case_id: str
    variant: str
    repetition: int
    state: str
    reason: str | None
    selected_attempt: int | None
    next_step: str
    not_before_us: int
    input: str
    expected: str | None
    metadata: str
    attempts: tuple[AttemptPage, ...]
    judgments: tuple[JudgmentPage, ...]


def _stored_ids(case_id: str) -> tuple[str, str]:
    """The id as the ledger keeps it, whether it was given as it is or as it is kept and shown."""
    return escaped_text(case_id), escaped_text(unescaped_text(case_id))


def case_ids(reader: Reader, run_key: int, *, limit: int) -> list[str]:
    """The ids of the run's first cases, as the ledger keeps and shows them."""
    query = "SELECT case_id FROM cases WHERE run_key = ? ORDER BY case_no LIMIT ?"
    return [str(case_id) for (case_id,) in reader.rows(query, (run_key, limit))]


def case_page(reader: Reader, run_key: int, case_id: str) -> list[CasePage]:
    """Every slot of the case, by repetition and variant; empty when the run has no such case.

    ``case_id`` is the id itself, or as the ledger keeps and shows it (`escaped_text`).
    """
    slots = reader.rows(
        "SELECT s.slot_no, c.case_id, v.name, s.repetition, s.state, s.reason, s.selected_attempt, s.next_step,"
        " s.not_before_us, c.input, c.expected, c.metadata FROM cases c"
        " JOIN slots s ON s.run_key = c.run_key AND s.case_no = c.case_no"
        " JOIN variants v ON v.run_key = s.run_key AND v.variant_no = s.variant_no"
        " WHERE c.run_key = ? AND c.case_id IN (?, ?) ORDER BY s.repetition, s.variant_no",
        (run_key, *_stored_ids(case_id)),
    )
    return [
        CasePage(*_more(row, _attempts(reader, run_key, row[0]), judgments_of(reader, run_key, row[0])))
        for row in slots
    ]


def _attempts(reader: Reader, run_key: int, slot_no: int) -> tuple[AttemptPage, ...]:
    rows = reader.rows(
        f"SELECT a.attempt_no, a.state, a.worker_id, a.began_us, a.ended_us, a.reason, a.message, {ANSWER}, o.source,"
        " o.evidence, o.flags, a.contaminated, a.reused_from FROM attempts a LEFT JOIN observations o"
        " ON o.run_key = a.run_key AND o.slot_no = a.slot_no"
        " AND o.attempt_no = a.attempt_no WHERE a.run_key = ? AND a.slot_no = ? ORDER BY a.attempt_no",
        (run_key, slot_no),
    )
    sessions = sessions_of(reader, run_key, slot_no)
    return tuple(_attempt(reader, run_key, slot_no, row, sessions.get(row[0])) for row in rows)


def _attempt(reader: Reader, run_key: int, slot_no: int, row: Any, session: SessionRow | None) -> AttemptPage:
    settled = _settlements(reader, run_key, slot_no, row[0])
    further = (dispatches_of(reader, run_key, slot_no, row[0]), settled, session)
    return AttemptPage(*_more(row[:7], text_of(reader, row[7]), *row[8:], *further))


def _settlements(reader: Reader, run_key: int, slot_no: int, attempt_no: int) -> tuple[tuple[str, str, str, int], ...]:
    rows = reader.rows(
        "SELECT t.decision, t.made_by, t.reason, t.made_us FROM settlements t JOIN calls c ON c.call_id = t.call_id"
        " WHERE c.run_key = ? AND c.slot_no = ? AND c.attempt_no = ? AND c.owner = 'attempt' ORDER BY t.made_us",
        (run_key, slot_no, attempt_no),
    )
    return tuple((row[0], row[1], row[2], row[3]) for row in rows)


def _slots(rows: list[tuple[Any, ...]]) -> list[PendingSlot]:
    return [PendingSlot(*_more(row[:8], NextStep(row[8]), row[9])) for row in rows]


def _more(row: tuple[Any, ...], *further: Any) -> tuple[Any, ...]:
    """A row with what SQL could not say of it, to be spread over a row class's fields."""
    return (*row, *further)
