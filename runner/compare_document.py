"""The document of a comparison: ``docs/comparison.schema.json`` is made from it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from .report_document import SlicePart
from .report_models import Part, Population

__all__ = ["Comparison", "ComparisonLine", "ComparisonVerdict", "SidePart"]


class ComparisonVerdict(StrEnum):
    """What a comparison says; ``tied`` is no proof that both are equal, the interval shows what may be hidden."""

    BETTER = "better"  # the candidate is, and more surely than chance allows
    WORSE = "worse"  # the candidate is, and more surely than chance allows
    TIED = "tied"  # no difference was found
    INCONCLUSIVE = "inconclusive"  # too little is measured on both sides, or not the same


class SidePart(Part):
    """One side: a variant of a run as it stood at an event, with the verdicts of one evaluation."""

    text: str
    run: str
    name: str
    variant: str
    event: int
    evaluation: int | None
    population: Population


class ComparisonLine(Part):
    """One figure of both sides, over pairs of the same case and repetition.

    ``pairs`` have it on both sides, ``baseline_only`` and ``candidate_only`` on one, ``neither`` on none; ``changed``
    are pairs whose case is not the same on both sides and that are left out. ``coverage`` is ``pairs`` of all of them.
    ``difference`` is the candidate's figure less the baseline's, of seconds their ``ratio``, both with ``low`` and
    ``high`` at 95 %. ``gained`` and ``lost`` are pairs in which the candidate alone, or the baseline alone, passes (of
    scores and seconds: does better). ``comparable`` is false where too few have it on both sides, or the judge is not
    the same or not qualified. ``p_adjusted`` is ``p`` for as many lines as are looked at together.
    """

    metric: Literal["passed", "score", "seconds"]
    judge: str | None
    group_key: str | None
    group: Any
    pairs: int
    baseline_only: int
    candidate_only: int
    neither: int
    changed: int
    coverage: float
    comparable: bool
    baseline: float | None
    candidate: float | None
    difference: float | None
    ratio: float | None
    low: float | None
    high: float | None
    gained: int
    lost: int
    equal: int
    p: float | None
    p_adjusted: float | None
    verdict: ComparisonVerdict
    why: str


class Comparison(Part):
    """What ``compare`` says: a line for each figure, then a line for each group's."""

    format: Literal["tallystick.comparison/1"] = "tallystick.comparison/1"
    ledger: str
    baseline: SidePart
    candidate: SidePart
    slice: SlicePart | None
    min_coverage: float
    alpha: float
    lines: list[ComparisonLine]
    groups: list[ComparisonLine]
    groups_omitted: int
