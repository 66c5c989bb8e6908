"""The document of a report: the one read model of every format. ``docs/report.schema.json`` is made from it.

Keys are stable, as in `report_models`. Everything in it is a function of the run's events up to ``event``: asked twice
at the same event, it is the same.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .evaluation_models import AgreementLine
from .report_models import Part, Population, RunStanding, ScoreLine, TotalsPart

__all__ = [
    "AttemptBar",
    "DurationLine",
    "EvaluationLine",
    "GroupLine",
    "MarkLine",
    "OpenPoint",
    "ReportDocument",
    "RunReport",
    "ScoreInterval",
    "SessionLine",
    "SlicePart",
    "SlotLine",
    "TermPart",
    "TimeBucket",
    "TimeLine",
    "TroubleLine",
    "VariantPopulation",
    "VerdictLine",
]


class ScoreInterval(ScoreLine):
    """A judge's figures for a variant, with intervals at 95 %.

    ``planned`` is ``judged``, plus ``no_verdict``, ``waiting`` (observed and not judged yet), ``outside`` (observed
    after the evaluation's set was fixed) and ``without_observation`` (by reason). The interval of ``rate`` is Wilson's,
    that of ``mean`` a seeded bootstrap over cases; both widen where the repetitions of a case agree. Null where nothing
    is judged. ``counts`` is false where the judge is not qualified as it must be: then nothing is decided by it;
    ``qualified_elsewhere`` is true where it is by a qualification that a snapshot brought.
    """

    cases: int = 0
    rate: float | None = None
    rate_low: float | None = None
    rate_high: float | None = None
    scored: int = 0
    mean_low: float | None = None
    mean_high: float | None = None
    waiting: int = 0
    outside: int = 0
    without_observation: dict[str, int] = Field(default_factory=dict)
    reused: int = 0
    counts: bool = True
    qualified_elsewhere: bool = False


class DurationLine(Part):
    """How long the selected observations of a variant took, in seconds; ``unknown`` did not say."""

    variant: str
    known: int
    unknown: int
    mean: float | None
    least: float | None
    p50: float | None
    p50_low: float | None
    p50_high: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    most: float | None
    histogram: list[tuple[float, float, int]] = Field(default_factory=list)


class VariantPopulation(Part):
    """The population of one variant."""

    variant: str
    population: Population


class EvaluationLine(Part):
    """Judges applied to a set of the run's observations; ``set_at_event`` is null where the set is the plan."""

    number: int
    id: str
    name: str
    judges: list[str]
    set_at_event: int | None


class TermPart(Part):
    """One term of a slice: cases whose metadata has this value, or a list with it, under this key."""

    key: str
    value: Any


class SlicePart(Part):
    """Which part of the plan the report is about; ``of`` is the whole plan, ``without_key`` lacks a key of a term."""

    terms: list[TermPart]
    planned: int
    of: int
    without_key: int


class GroupLine(Part):
    """One value of the metadata key that the report is grouped by; null with ``has_key`` false: it has none."""

    key: str
    value: Any
    has_key: bool
    variant: str
    population: Population
    scores: list[ScoreInterval]


class SessionLine(Part):
    """One coordinator's time with the run. ``died``: the next one found it dead, after its event at ``ended_at``."""

    number: int
    began_at: str
    ended_at: str | None
    died: bool
    reason: str | None
    fence: int
    unknown: int
    again: int
    interrupted: int
    parked: int


class MarkLine(Part):
    """Something that happened to the run as a whole."""

    event: int
    at: str
    kind: str
    text: str


class TimeBucket(Part):
    """A part of the run's time: ``in_flight`` is the most attempts at once, ``ended`` counts by their state."""

    at: str
    seconds: float
    in_flight: int
    ended: dict[str, int]


class AttemptBar(Part):
    """One attempt; ``ended_at`` is null where it had no end."""

    case: str
    variant: str
    repetition: int
    attempt: int
    state: str
    began_at: str
    ended_at: str | None


class TimeLine(Part):
    """When attempts were under way. ``attempts`` are listed where there are few, ``buckets`` always."""

    began_at: str | None
    ended_at: str | None
    buckets: list[TimeBucket]
    attempts: list[AttemptBar]


class OpenPoint(Part):
    """Something that is failed, unknown, unavailable, parked, waiting, contaminated or without a verdict.

    ``meaning`` says what that is, ``command`` what helps, empty where nothing needs to be done or can be.
    """

    what: str
    count: int
    reasons: dict[str, int]
    meaning: str
    command: str


class TroubleLine(Part):
    """A planned observation that there is none of."""

    case: str
    variant: str
    repetition: int
    state: str
    reason: str
    attempts: int
    message: str


class VerdictLine(Part):
    """What one judge said of an observation; ``reason`` is why there is no verdict."""

    judge: str
    sample: int
    passed: bool | None
    score: float | None
    reason: str | None
    explanation: str | None
    reused: bool


class SlotLine(Part):
    """One planned observation, whatever became of it.

    ``answer`` is there only with ``has_answer``; with ``answer_cut`` it is the beginning of its JSON text. ``seconds``
    is how long the selected observation took. Tokens and cost are of all its sends, null where none is known.
    ``reused_from`` names the run, slot and attempt that a fork took its newest attempt over from; what was sent for it
    there counts nowhere here.
    """

    slot: int
    case: str
    variant: str
    repetition: int
    state: str
    reason: str | None
    message: str | None
    attempts: int
    dispatches: int
    replays: int
    contaminated: bool
    source: str | None
    reused_from: str | None
    has_answer: bool
    answer: Any
    answer_cut: bool
    flags: list[str]
    seconds: float | None
    began_at: str | None
    ended_at: str | None
    tokens_in: int | None
    tokens_out: int | None
    cost_usd: str | None
    metadata: dict[str, Any]
    verdicts: list[VerdictLine]


class RunReport(RunStanding):
    """What ``report`` says of a run as it stood at ``event``.

    ``agreements`` are of every two judges that say passed or not, where both did. ``metadata_keys`` are those of the
    cases, the first hundred by name: what can be sliced and grouped by.
    ``population`` is that of the slice, where one was asked for. ``trouble`` is cut at a bound, and ``trouble_omitted``
    counts the rest. In JSON the document ends with ``slots``: a `SlotLine` for every planned observation of the slice.
    """

    format: Literal["tallystick.report/1"] = "tallystick.report/1"
    event: int
    event_at: str
    slice: SlicePart | None
    evaluation: EvaluationLine | None
    evaluations: list[EvaluationLine]
    by_variant: list[VariantPopulation]
    scores: list[ScoreInterval]
    totals: TotalsPart
    agreements: list[AgreementLine]
    durations: list[DurationLine]
    groups: list[GroupLine]
    metadata_keys: list[str]
    sessions: list[SessionLine]
    marks: list[MarkLine]
    timeline: TimeLine
    open_points: list[OpenPoint]
    trouble: list[TroubleLine]
    trouble_omitted: int


class ReportDocument(RunReport):
    """The whole report as ``--json`` writes it."""

    slots: list[SlotLine]
