"""One side of a comparison: what is meant by its text, and what was measured of each case and repetition."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

import attrs

from ..ledger import run_reads
from ..ledger.errors import RunNotFound, UsageError
from ..ledger.ledger import Reader
from ..ledger.report_rows import GivenJudgment, SlotRow
from ..ledger.report_sums import JudgeRow, judge_rows
from ..ledger.run_reads import RunRow
from ..ledger.views import Views
from .compare_document import SidePart
from .report_figures import population_of_counts
from .report_options import ReportOptions, SliceTerm
from .report_reading import ReportSource, report_source
from .report_slots import seconds_of

__all__ = ["Cell", "Side", "read_side", "side_text", "sides_of_one_run"]

_SIDE: Final = re.compile(r"(?P<run>.+?)(?:#(?P<evaluation>[^#@]+))?(?:@(?P<event>\d+))?", re.DOTALL)


@attrs.frozen
class Cell:
    """What one side has of one case and repetition; a figure that it does not have is not there."""

    case_digest: str
    passed: dict[str, bool]
    scores: dict[str, float]
    seconds: float | None


@attrs.frozen
class Side:
    """One side, read. ``cells`` are by case id and repetition, of every planned observation of the slice."""

    part: SidePart
    source: ReportSource
    judges: dict[str, JudgeRow]
    cells: dict[tuple[str, int], Cell]
    metadata: dict[str, dict[str, Any]]


@attrs.frozen
class SideText:
    """``RUN[:VARIANT][#EVALUATION][@EVENT]``, taken apart."""

    text: str
    run: RunRow
    variant: str | None
    evaluation: str | None
    event: int | None


def side_text(reader: Reader, text: str) -> SideText:
    """What the text means; a run's name may have a colon of its own. Raises RunNotFound and RunAmbiguous."""
    match = _SIDE.fullmatch(text)
    if match is None:
        raise UsageError("a side of a comparison has no name", "write RUN, RUN:VARIANT or RUN#EVALUATION")
    event = None if match["event"] is None else int(match["event"])
    name, variant = match["run"], None
    try:
        run = run_reads.find_run(reader, name)
    except RunNotFound:
        head, colon, variant = name.rpartition(":")
        if not colon:
            raise
        run = run_reads.find_run(reader, head)
    return SideText(text, run, variant, match["evaluation"], event)


def sides_of_one_run(reader: Reader, text: str) -> tuple[SideText, SideText]:
    """The first variant of a run that has two, and the second."""
    side = side_text(reader, text)
    names = [one.name for one in run_reads.variants_of(reader, side.run.run_key)]
    if side.variant is not None or len(names) != 2:
        raise UsageError(
            f"run {side.run.run_id} has {len(names)} variants ({', '.join(names)}), and one side is named",
            "name both sides, as in `tallystick compare RUN:OLD RUN:NEW`",
        )
    return attrs.evolve(side, variant=names[0]), attrs.evolve(side, variant=names[1])


def read_side(views: Views, side: SideText, terms: tuple[SliceTerm, ...]) -> Side:
    """Everything that is compared of that side.

    Raises UsageError for a variant or event that is not there, and EvaluationNotFound.
    """
    options = ReportOptions(at=side.event, terms=terms, evaluation=side.evaluation)
    source = report_source(views, side.run, options)
    number, name = _variant(side, source.variants)
    judges = {row.name: row for row in _judges(views, source)}
    cells: dict[tuple[str, int], Cell] = {}
    metadata: dict[str, dict[str, Any]] = {}
    states: Counter[str] = Counter()
    for row, known in source.rows(with_texts=False):
        if row.variant_no == number:
            states[row.state] += 1
            metadata[row.case_id] = known
            cells[row.case_id, row.repetition] = _cell(row, source.judge_names)
    part = SidePart(
        text=side.text, run=side.run.run_id, name=side.run.name, variant=name, event=source.history.event_no,
        evaluation=None if source.evaluation is None else source.evaluation.evaluation_no,
        population=population_of_counts(states),
    )  # fmt: skip
    return Side(part, source, judges, cells, metadata)


def _judges(views: Views, source: ReportSource) -> list[JudgeRow]:
    if source.evaluation is None:
        return []
    return judge_rows(views.reader, source.run.run_key, source.evaluation.evaluation_no, source.history.qualified)


def _variant(side: SideText, variants: dict[int, str]) -> tuple[int, str]:
    chosen = [(number, name) for number, name in variants.items() if side.variant in (None, name)]
    if len(chosen) != 1:
        what = f"has no variant {side.variant}" if side.variant else f"has {len(chosen)} variants"
        raise UsageError(
            f"run {side.run.run_id} {what}",
            f"name one of {', '.join(variants.values())}, as in `tallystick compare RUN:VARIANT RUN:VARIANT`",
        )
    return chosen[0]


def _cell(row: SlotRow, names: dict[int, str]) -> Cell:
    passed, scores = dict[str, bool](), dict[str, float]()
    for number, name in names.items():
        given = [one for one in row.judgments if one.judge_no == number]
        share = _share(given)
        if share is not None and share != 0.5:  # half of the samples each way say nothing
            passed[name] = share > 0.5
        said = [float(one.score) for one in given if one.score is not None]
        if said:
            scores[name] = sum(said) / len(said)
    return Cell(row.case_digest, passed, scores, seconds_of(row) if row.selected_at else None)


def _share(given: list[GivenJudgment]) -> float | None:
    known = [one.passed for one in given if one.passed is not None]
    return sum(known) / len(known) if known else None
