"""A report, read: everything of a run up to an event, and nothing of what came after. Makes no call, changes nothing.

`open_report` goes through the run once for its figures; `Report.slots` goes through it again, slot by slot, for the
formats that list every planned observation. So memory grows with the cases, not with the answers.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import attrs

from ..ledger import run_reads
from ..ledger.canonical import canonical_text
from ..ledger.evaluations import INLINE, EvaluationRow, evaluations_of, find_evaluation
from ..ledger.history import RunHistory, history_at, note_what_came_later
from ..ledger.ledger import Ledger, Reader
from ..ledger.report_rows import SlotRow, slot_rows
from ..ledger.report_sums import judge_rows
from ..ledger.run_reads import RunRow
from ..ledger.states import SlotState
from ..ledger.views import Views
from .evaluation_reports import agreement_line
from .instants import instant
from .reason_lines import reason_line
from .report_document import (
    EvaluationLine,
    GroupLine,
    RunReport,
    SlicePart,
    TermPart,
    TroubleLine,
    VariantPopulation,
)
from .report_figures import Figures, JudgePart, population_of_counts
from .report_models import FlagLine
from .report_options import ReportOptions
from .report_points import open_points
from .report_slots import ListedSlot, metadata_of
from .report_standing import judge_totals, standing_at, totals_part
from .report_times import Times, duration_line, mark_lines, session_lines

__all__ = ["TROUBLE_MAX", "Report", "ReportSource", "open_report", "report_of", "report_source"]

TROUBLE_MAX: Final = 10_000
GROUPS_MAX: Final = 1_000
METADATA_KEYS_MAX: Final = 100
_TROUBLED: Final = frozenset((SlotState.FAILED, SlotState.PARKED, SlotState.UNAVAILABLE, SlotState.UNKNOWN))


@attrs.frozen
class Report:
    """A report while its ledger is being read. ``summary`` is everything but the planned observations themselves."""

    summary: RunReport
    source: ReportSource

    def slots(self) -> Iterator[ListedSlot]:
        """Every planned observation of the slice, in the order of the plan."""
        for row, metadata in self.source.rows():
            yield self.source.line(row, metadata)


@attrs.frozen
class ReportSource:
    """Where a report is read from."""

    views: Views
    run: RunRow
    history: RunHistory
    options: ReportOptions
    evaluation: EvaluationRow | None
    judges: tuple[JudgePart, ...]
    variants: dict[int, str]
    judge_names: dict[int, str]

    @property
    def reader(self) -> Reader:
        """The present view, for what is read at once."""
        return self.views.reader

    def rows(self, *, with_texts: bool = True) -> Iterator[tuple[SlotRow, dict[str, Any]]]:
        """The planned observations of the slice with their case's metadata; without texts as `slot_rows` says."""
        number = 0 if self.evaluation is None else self.evaluation.evaluation_no
        terms = self.options.terms
        case_no, metadata = 0, dict[str, Any]()
        for row in slot_rows(self.views.turn, self.history, evaluation_no=number, with_texts=with_texts):
            if row.case_no != case_no:
                case_no, metadata = row.case_no, metadata_of(row.metadata)
            if not terms or all(term.fits(metadata) for term in terms):
                yield row, metadata

    def line(self, row: SlotRow, metadata: dict[str, Any]) -> ListedSlot:
        """One of them as the formats read it."""
        return ListedSlot(row, self.variants[row.variant_no], self.judge_names, metadata)


@contextlib.contextmanager
def open_report(
    ledger: Ledger, run_id: str, options: ReportOptions | None = None, *, ledger_option: str = ""
) -> Iterator[Report]:
    """The report of a run as it stood at an event; the ledger is being read as long as it is open.

    Raises RunNotFound, RunAmbiguous, EvaluationNotFound, and UsageError for an event that the run does not have.
    """
    with Views.of(ledger) as views:
        source = report_source(views, run_reads.find_run(views.reader, run_id), options or ReportOptions())
        yield Report(_summary(source, str(ledger.path), ledger_option), source)


def report_of(
    ledger: Ledger, run_id: str, options: ReportOptions | None = None, *, ledger_option: str = ""
) -> RunReport:
    """The report without the planned observations themselves; raises as `open_report` does."""
    with open_report(ledger, run_id, options, ledger_option=ledger_option) as report:
        return report.summary


def report_source(views: Views, run: RunRow, options: ReportOptions) -> ReportSource:
    """The run at the event, with what is read of it; raises as `open_report` does."""
    history = history_at(views.reader, run.run_key, options.at, turn=views.turn)
    views.on_renewal.append(lambda newer: note_what_came_later(newer, history))
    reader = views.turn()
    note_what_came_later(reader, history)  # what the views that it was read with did not know
    evaluation = _evaluation(reader, history, options.evaluation)
    judges = () if evaluation is None else _judges(reader, history, evaluation)
    variants = {one.variant_no: one.name for one in run_reads.variants_of(reader, run.run_key)}
    names = {judge.judge_no: judge.name for judge in judges}
    return ReportSource(views, run, history, options, evaluation, judges, variants, names)


def _evaluation(reader: Reader, history: RunHistory, asked: str | None) -> EvaluationRow | None:
    if asked is not None:
        return find_evaluation(reader, history.run_key, asked)
    there = _evaluations_at(reader, history)
    if there and there[0].evaluation_no == INLINE and judge_rows(reader, history.run_key, INLINE, history.qualified):
        return there[0]
    return there[-1] if there else None


def _evaluations_at(reader: Reader, history: RunHistory) -> list[EvaluationRow]:
    known = history.evaluation_ids
    return [row for row in evaluations_of(reader, history.run_key) if row.evaluation_no in (INLINE, *known)]


def _judges(reader: Reader, history: RunHistory, evaluation: EvaluationRow) -> tuple[JudgePart, ...]:
    return tuple(
        JudgePart(row.judge_no, row.name, row.samples, row.qualified is not False, row.is_brought)
        for row in judge_rows(reader, evaluation.run_key, evaluation.evaluation_no, history.qualified)
    )


@attrs.define
class _Collected:
    """What one pass over the planned observations gives."""

    figures: Figures
    times: Times
    trouble: list[TroubleLine]
    groups: dict[str | None, tuple[Any, Figures]]
    metadata_keys: set[str] = attrs.field(factory=set)


def _collect(source: ReportSource) -> _Collected:
    found = _Collected(_figures(source), Times(), [], {})
    case_no = 0
    for row, metadata in source.rows(with_texts=False):
        found.figures.add(row)
        if row.case_no != case_no:
            case_no = row.case_no
            found.metadata_keys.update(metadata)
        found.times.add(row, source.variants[row.variant_no])
        if row.state in _TROUBLED and len(found.trouble) < TROUBLE_MAX:
            found.trouble.append(_trouble(row, source.variants[row.variant_no]))
        if source.options.by is not None:
            _group(source, found.groups, metadata).add(row)
    found.trouble.sort(key=lambda line: line.state)  # stable: within a state in the order of the plan
    return found


def _figures(source: ReportSource) -> Figures:
    set_at = None if source.evaluation is None else source.evaluation.set_at_event
    return Figures(source.judges, tuple(source.variants), set_at)


def _group(source: ReportSource, groups: dict[str | None, tuple[Any, Figures]], metadata: dict[str, Any]) -> Figures:
    key = str(source.options.by)
    has_key = key in metadata
    value = metadata.get(key)
    name = canonical_text(value) if has_key else None
    if name not in groups and len(groups) >= GROUPS_MAX:
        name, value = None, None  # the rest together
    return groups.setdefault(name, (value, _figures(source)))[1]


def _trouble(row: SlotRow, variant: str) -> TroubleLine:
    newest = row.newest
    return TroubleLine(
        case=row.case_id, variant=variant, repetition=row.repetition, state=row.state, reason=row.reason or "",
        attempts=len(row.attempts), message="" if newest is None else newest.message or "",
    )  # fmt: skip


def _summary(source: ReportSource, ledger: str, ledger_option: str) -> RunReport:
    found = _collect(source)
    run, history, figures = source.run, source.history, found.figures
    standing = standing_at(source.reader, run, history, ledger=ledger, ledger_option=ledger_option)
    people, scores = figures.population(), figures.scores(source.variants)
    counts = Counter(people.model_dump(exclude={"planned"}))
    in_trouble = sum(counts[state.value] for state in _TROUBLED)
    return RunReport(
        **standing,
        event=history.event_no, event_at=instant(history.at_us), slice=_slice(source, people.planned),
        population=people,
        reasons=[
            reason_line(state, reason, count, figures.examples.get((state, reason), ""))
            for (state, reason), count in sorted(figures.reasons.items())
        ],
        evaluation=None if source.evaluation is None else _evaluation_line(source.reader, history, source.evaluation),
        evaluations=[_evaluation_line(source.reader, history, row) for row in _evaluations_at(source.reader, history)],
        by_variant=[
            VariantPopulation(variant=source.variants[number], population=population_of_counts(one.states))
            for number, one in figures.variants.items()
        ],
        scores=scores, agreements=[agreement_line(one) for one in figures.agreements()],
        flags=[
            FlagLine(variant=source.variants[number], flag=flag, count=count)
            for number, one in figures.variants.items()
            for flag, count in sorted(one.flags.items())
        ],
        totals=totals_part(figures.spent), judge_totals=judge_totals(source.reader, history),
        durations=[
            duration_line(source.variants[number], one.seconds, one.silent)
            for number, one in figures.variants.items()
        ],
        groups=_group_lines(source, found.groups), metadata_keys=sorted(found.metadata_keys)[:METADATA_KEYS_MAX],
        sessions=session_lines(history.sessions), marks=mark_lines(history.marks), timeline=found.times.line(history),
        open_points=open_points(
            run.run_id, counts, figures.reasons, scores, contaminated=figures.contaminated, ledger_option=ledger_option,
            is_from_python=not standing["command"] and standing["next"] == "resume",
        ),
        trouble=found.trouble, trouble_omitted=in_trouble - len(found.trouble),
    )  # fmt: skip


def _slice(source: ReportSource, planned: int) -> SlicePart | None:
    terms = source.options.terms
    if not terms:
        return None
    without = 0
    for row in slot_rows(source.views.turn, source.history, evaluation_no=0, with_texts=False):
        metadata = metadata_of(row.metadata)
        without += any(term.key not in metadata for term in terms)
    return SlicePart(
        terms=[TermPart(key=term.key, value=term.text) for term in terms], planned=planned,
        of=source.history.planned, without_key=without,
    )  # fmt: skip


def _evaluation_line(reader: Reader, history: RunHistory, row: EvaluationRow) -> EvaluationLine:
    names = [judge.name for judge in judge_rows(reader, row.run_key, row.evaluation_no, history.qualified)]
    return EvaluationLine(
        number=row.evaluation_no, id=row.evaluation_id, name=row.name, judges=names, set_at_event=row.set_at_event
    )


def _group_lines(source: ReportSource, groups: dict[str | None, tuple[Any, Figures]]) -> list[GroupLine]:
    lines: list[GroupLine] = []
    for name, (value, figures) in sorted(groups.items(), key=lambda item: (item[0] is None, item[0] or "")):
        scores = figures.scores(source.variants)
        lines += [
            GroupLine(
                key=str(source.options.by), value=value, has_key=name is not None, variant=variant,
                population=population_of_counts(figures.variants[number].states),
                scores=[score for score in scores if score.variant == variant],
            )
            for number, variant in source.variants.items()
        ]  # fmt: skip
    return lines
