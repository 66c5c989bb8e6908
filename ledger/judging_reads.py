"""What judging reads: judgments that wait, with their observations; verdicts that can be used again; how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs

from .artifacts import ANSWER, text_of
from .judgments import name_of
from .ledger import Reader
from .states import JudgmentState
from .transaction import Transaction

__all__ = [
    "JudgeRow",
    "JudgeTally",
    "KeptReply",
    "KeptVerdict",
    "OpenJudgment",
    "cached_verdict",
    "first_unjudged",
    "is_out_of_budget",
    "judge_rows",
    "judge_tallies",
    "judge_tries_spent",
    "kept_reply",
    "open_judgments",
    "suspect_judgments",
    "verdict_pairs",
    "verdicts_by_case",
    "waiting_count",
]

_COLUMNS: Final = (
    "j.judge_no, j.slot_no, j.attempt_no, j.sample_no, j.tries, s.variant_no, s.repetition, c.case_id, c.input,"
    f" c.expected, c.metadata, {ANSWER}, o.answer_digest, o.evidence, o.flags"
)
_JOINED: Final = (
    " JOIN slots s ON s.run_key = j.run_key AND s.slot_no = j.slot_no"
    " JOIN cases c ON c.run_key = s.run_key AND c.case_no = s.case_no"
    " JOIN observations o ON o.run_key = j.run_key AND o.slot_no = j.slot_no AND o.attempt_no = j.attempt_no"
)


@attrs.frozen
class OpenJudgment:
    """A judgment that waits, with its observation; texts are canonical JSON."""

    judge_no: int
    slot_no: int
    attempt_no: int
    sample_no: int
    tries: int
    variant_no: int
    repetition: int
    case_id: str
    input: str
    expected: str | None
    metadata: str
    answer: str
    answer_digest: str
    evidence: str
    flags: str


@attrs.frozen
class JudgeRow:
    """A judge as its evaluation keeps it; ``qualified`` is None where nothing is required of it."""

    judge_no: int
    name: str
    kind: str
    identity: str
    identity_digest: str
    samples: int
    requirement: str | None
    qualification_id: str | None
    qualified: bool | None


@attrs.frozen
class KeptVerdict:
    """A verdict that was given before; ``name`` is `judgments.name_of` the judgment that it is of."""

    name: str
    passed: bool | None
    score: str | None
    explanation: str
    raw: str | None
    parser: str | None


@attrs.frozen
class KeptReply:
    """What a judge left of one judgment: the reply that it was read from, or why there was none."""

    name: str
    raw: str | None
    reason: str | None
    explanation: str


@attrs.define
class JudgeTally:
    """How far one judge of an evaluation has come; ``no_verdict`` by reason, ``reused`` are among the judged.

    ``rated`` of the judged say whether it passed, ``scored`` have a score, ``score_sum`` together. ``examples`` has one
    explanation of each reason.
    """

    judge_no: int
    judge: str
    waiting: int = 0
    judged: int = 0
    reused: int = 0
    passed: int = 0
    rated: int = 0
    scored: int = 0
    score_sum: float = 0.0
    no_verdict: dict[str, int] = attrs.field(factory=dict)
    examples: dict[str, str] = attrs.field(factory=dict)

    @property
    def planned(self) -> int:
        """The judge's part of the set."""
        return self.waiting + self.judged + sum(self.no_verdict.values())

    def add(
        self, state: str, reason: str | None, count: int, reused: int, passed: int, rated: int, scored: int,
        score_sum: float, example: str | None,
    ) -> None:  # fmt: skip
        """Count what the ledger has of one state and reason."""
        match JudgmentState(state):
            case JudgmentState.JUDGED:
                self.judged, self.reused, self.passed = self.judged + count, reused, passed
                self.rated, self.scored, self.score_sum = rated, scored, score_sum
            case JudgmentState.NO_VERDICT:
                self.no_verdict[str(reason)], self.examples[str(reason)] = count, example or ""
            case JudgmentState.PENDING | JudgmentState.JUDGING:
                self.waiting += count


def open_judgments(
    reader: Reader, run_key: int, evaluation_no: int, judge_no: int, *, after: tuple[int, int], limit: int
) -> list[OpenJudgment]:
    """The judge's waiting judgments beyond ``after`` (slot, sample), in that order; suspects are not among them."""
    return _opened(
        reader,
        f"SELECT {_COLUMNS} FROM judgments j INDEXED BY judgments_open{_JOINED}"
        " WHERE j.run_key = ? AND j.evaluation_no = ? AND j.judge_no = ?"
        " AND (j.slot_no, j.sample_no) > (?, ?) AND j.state = 'pending' AND j.state IN ('pending', 'judging')"
        " AND j.suspect = 0 ORDER BY j.slot_no, j.sample_no LIMIT ?",
        (run_key, evaluation_no, judge_no, *after, limit),
    )


def suspect_judgments(reader: Reader, run_key: int, evaluation_no: int, *, limit: int) -> list[OpenJudgment]:
    """Judgments that were under way when a process died, those that were charged with a death last."""
    return _opened(
        reader,
        f"SELECT {_COLUMNS} FROM judgments j INDEXED BY judgments_open{_JOINED}"
        " WHERE j.run_key = ? AND j.evaluation_no = ? AND j.state = 'pending'"
        " AND j.state IN ('pending', 'judging') AND j.suspect = 1"
        " ORDER BY j.solitary_deaths, j.judge_no, j.slot_no, j.sample_no LIMIT ?",
        (run_key, evaluation_no, limit),
    )


def verdict_pairs(
    reader: Reader, run_key: int, evaluation_no: int, first: int, second: int
) -> dict[tuple[str, str], int]:
    """How often each pair of verdicts occurs where both judges gave one: ``pass``, ``fail``, or the score's text.

    What passed or not and what has a score alone cannot agree or differ, and are no pair.
    """
    rows = reader.rows(
        f"SELECT {_VERDICT.format('a')}, {_VERDICT.format('b')}, count(*) FROM judgments a JOIN judgments b"
        " ON b.run_key = a.run_key AND b.evaluation_no = a.evaluation_no AND b.judge_no = ? AND b.slot_no = a.slot_no"
        " AND b.attempt_no = a.attempt_no AND b.sample_no = a.sample_no AND b.state = 'judged'"
        " WHERE a.run_key = ? AND a.evaluation_no = ? AND a.judge_no = ? AND a.state = 'judged'"
        " AND (a.passed IS NULL) = (b.passed IS NULL) GROUP BY 1, 2"
        " ORDER BY 1, 2",
        (second, run_key, evaluation_no, first),
    )
    return {(one, other): count for one, other, count in rows}


_VERDICT: Final = "CASE {0}.passed WHEN 1 THEN 'pass' WHEN 0 THEN 'fail' ELSE {0}.score END"


def verdicts_by_case(
    reader: Reader, run_key: int, evaluation_no: int, judge_no: int
) -> Iterator[tuple[str, int | None, str | None, str | None]]:
    """``(case_id, passed, score, reason)`` of every judgment of a judge that is given, by slot and sample."""
    return reader.each(
        "SELECT c.case_id, j.passed, j.score, j.reason FROM judgments j"
        " JOIN slots s ON s.run_key = j.run_key AND s.slot_no = j.slot_no"
        " JOIN cases c ON c.run_key = s.run_key AND c.case_no = s.case_no"
        " WHERE j.run_key = ? AND j.evaluation_no = ? AND j.judge_no = ? AND j.state IN ('judged', 'no_verdict')"
        " ORDER BY j.slot_no, j.sample_no",
        (run_key, evaluation_no, judge_no),
    )


def is_out_of_budget(reader: Reader, run_key: int) -> bool:
    """Whether a budget had no room for a judge's call of the run's own evaluation."""
    return bool(
        reader.row(
            "SELECT EXISTS (SELECT 1 FROM budgets WHERE run_key = ?1) AND EXISTS (SELECT 1 FROM judgments"
            " WHERE run_key = ?1 AND evaluation_no = 1 AND state = 'no_verdict' AND reason = 'out_of_budget')",
            (run_key,),
        )[0]
    )


def first_unjudged(reader: Reader, run_key: int) -> int | None:
    """The first slot of which the run's own evaluation has not every judgment; None: all that is selected is judged."""
    row = reader.row(
        "SELECT s.slot_no FROM slots s WHERE s.run_key = ?1 AND s.state = 'selected' AND EXISTS (SELECT 1 FROM"
        " evaluation_judges e WHERE e.run_key = ?1 AND e.evaluation_no = 1"
        # By each judge, as the key of judgments begins: without it every slot would look through all of them.
        " AND (SELECT count(*) FROM judgments j WHERE j.run_key = ?1 AND j.evaluation_no = 1"
        " AND j.judge_no = e.judge_no AND j.slot_no = s.slot_no AND j.attempt_no = s.selected_attempt"
        " AND j.state IN ('judged', 'no_verdict')) < e.samples) ORDER BY s.slot_no LIMIT 1",
        (run_key,),
    )
    return None if row is None else int(row[0])


def waiting_count(reader: Reader, run_key: int, evaluation_no: int) -> int:
    """How many judgments of an evaluation wait."""
    count: int = reader.row(
        "SELECT count(*) FROM judgments INDEXED BY judgments_open WHERE run_key = ? AND evaluation_no = ?"
        " AND state IN ('pending', 'judging')",
        (run_key, evaluation_no),
    )[0]
    return count


def _opened(reader: Reader, sql: str, parameters: tuple[Any, ...]) -> list[OpenJudgment]:
    found = []
    for row in reader.rows(sql, parameters):
        answer = text_of(reader, row[11])
        assert answer is not None
        found.append(OpenJudgment(*_parts(*row[:11], answer, *row[12:])))
    return found


def judge_rows(reader: Reader, run_key: int, evaluation_no: int) -> list[JudgeRow]:
    """The judges of an evaluation in their order."""
    rows = reader.rows(
        "SELECT judge_no, name, kind, identity, identity_digest, samples, requirement, qualification_id, qualified"
        " FROM evaluation_judges WHERE run_key = ? AND evaluation_no = ? ORDER BY judge_no",
        (run_key, evaluation_no),
    )
    return [JudgeRow(*_parts(*row[:8], None if row[8] is None else bool(row[8]))) for row in rows]


def cached_verdict(reader: Reader, cache_key: str) -> KeptVerdict | None:
    """The first verdict that was given here under that key, None: there is none.

    What an imported run brought with it is never used: nobody here can vouch for how it was made.
    """
    row = reader.row(
        "SELECT e.evaluation_id, j.judge_no, j.slot_no, j.attempt_no, j.sample_no, j.passed, j.score, j.explanation,"
        " j.raw, j.parser FROM judgments j INDEXED BY judgments_by_cache_key"
        " JOIN evaluations e ON e.run_key = j.run_key AND e.evaluation_no = j.evaluation_no"
        " WHERE j.cache_key = ? AND j.cache_key IS NOT NULL AND j.state = 'judged' AND j.reused_from IS NULL"
        " AND NOT EXISTS (SELECT 1 FROM imports i WHERE i.run_key = j.run_key)"
        " ORDER BY j.judged_us, e.evaluation_id, j.slot_no LIMIT 1",
        (cache_key,),
    )
    return None if row is None else _kept(row)


def kept_reply(
    reader: Reader, run_key: int, evaluation_no: int, judge: str, slot_no: int, attempt_no: int, sample_no: int
) -> KeptReply | None:
    """What that judge of an evaluation left; None where it gave no judgment."""
    row = reader.row(
        "SELECT e.evaluation_id, j.judge_no, j.slot_no, j.attempt_no, j.sample_no, j.raw, j.reason,"
        " coalesce(j.explanation, '') FROM judgments j"
        " JOIN evaluations e ON e.run_key = j.run_key AND e.evaluation_no = j.evaluation_no"
        " JOIN evaluation_judges g ON g.run_key = j.run_key AND g.evaluation_no = j.evaluation_no"
        " AND g.judge_no = j.judge_no WHERE j.run_key = ? AND j.evaluation_no = ? AND g.name = ? AND j.slot_no = ?"
        " AND j.attempt_no = ? AND j.sample_no = ? AND j.state IN ('judged', 'no_verdict')",
        (run_key, evaluation_no, judge, slot_no, attempt_no, sample_no),
    )
    return None if row is None else KeptReply(name_of(*row[:5]), row[5], row[6], row[7])


def judge_tallies(reader: Reader, run_key: int, evaluation_no: int) -> list[JudgeTally]:
    """The judgments of an evaluation, counted by judge; those of its whole set."""
    found = {row.judge_no: JudgeTally(row.judge_no, row.name) for row in judge_rows(reader, run_key, evaluation_no)}
    for judge_no, state, reason, *counts in reader.each(_TALLIES, (run_key, evaluation_no)):
        found[judge_no].add(state, reason, *counts)
    return list(found.values())


_TALLIES: Final = (
    "SELECT judge_no, state, reason, count(*), count(reused_from), coalesce(sum(passed), 0), count(passed),"
    " count(score), coalesce(sum(CAST(score AS REAL)), 0.0), CASE state WHEN 'no_verdict' THEN min(explanation) END"
    " FROM judgments WHERE run_key = ? AND evaluation_no = ?"
    " GROUP BY judge_no, state, reason ORDER BY judge_no, state, reason"
)


def judge_tries_spent(tx: Transaction, place: tuple[int, int, int, int, int, int], *, answered: bool = False) -> int:
    """How many calls of a judgment ended without a verdict by the judge's own doing; a death or a stop costs none.

    ``place`` is run, evaluation, judge, slot, attempt and sample. ``answered`` counts the replies that were none.
    """
    found, lost = tx.row(_TRIES, place)
    return int(found if answered else lost)


_TRIES: Final = (
    "SELECT count(DISTINCT c.call_id) FILTER (WHERE d.state = 'answered'),"
    " count(DISTINCT c.call_id) FILTER (WHERE d.state IN ('failed', 'unknown', 'abandoned')"
    " AND coalesce(d.reason, '') NOT IN ('coordinator.died', 'stopped', 'cancelled'))"
    " FROM calls c INDEXED BY calls_of_judgment JOIN dispatches d ON d.call_id = c.call_id"
    " WHERE c.run_key = ? AND c.evaluation_no = ? AND c.judge_no = ? AND c.slot_no = ? AND c.attempt_no = ?"
    " AND c.sample_no = ? AND c.owner = 'judgment'"
)


def _parts(*parts: Any) -> tuple[Any, ...]:
    """A row with what SQL could not say of it, to be spread over a row class's fields."""
    return parts


def _kept(row: Any) -> KeptVerdict:
    passed = None if row[5] is None else bool(row[5])
    return KeptVerdict(name_of(*row[:5]), passed, row[6], row[7] or "", row[8], row[9])
