"""The figures of a report, collected slot by slot in one pass; what is kept grows with the cases alone."""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Final

import attrs

from ..ledger.report_rows import DispatchRow, GivenJudgment, SlotRow
from ..ledger.states import DispatchState, SlotState
from ..ledger.verdicts import reason_without_observation
from .agreement import Agreement, agreement_of
from .price_lines import told_classes
from .report_document import ScoreInterval
from .report_models import Population
from .report_slots import flags_of, seconds_in, useful_dispatches
from .statistics_rates import effective_size, wilson
from .statistics_samples import mean_interval

__all__ = ["UNDECIDED", "Figures", "JudgePart", "JudgeTally", "Spent", "VariantFigures", "population_of_counts"]

UNDECIDED: Final = frozenset((DispatchState.INTENDED, DispatchState.UNKNOWN))
_UNSENT: Final = frozenset((DispatchState.REFUSED, DispatchState.INTENDED))


@attrs.frozen
class JudgePart:
    """A judge of the evaluation: how many verdicts it owes an observation, and whether its verdicts count.

    ``is_brought`` says that they do by a qualification that a snapshot brought.
    """

    judge_no: int
    name: str
    samples: int = 1
    counts: bool = True
    is_brought: bool = False


@attrs.define
class JudgeTally:
    """What one judge said of one variant's observations; clusters are by case."""

    planned: int = 0
    passed: int = 0
    no_verdict: Counter[str] = attrs.field(factory=Counter)
    without_observation: Counter[str] = attrs.field(factory=Counter)
    waiting: int = 0
    outside: int = 0
    reused: int = 0
    judged: int = 0
    rates: dict[int, list[int]] = attrs.field(factory=dict)
    scores: dict[int, list[float]] = attrs.field(factory=dict)

    def add(self, row: SlotRow, given: Sequence[GivenJudgment], owed: int, *, is_inside: bool) -> None:
        """Count what was said of one planned observation, of which ``owed`` verdicts were to be had."""
        self.planned += owed
        if not row.selected_at:
            self.without_observation[reason_without_observation(SlotState(row.state))] += owed
        elif not is_inside:
            self.outside += owed
        else:
            self.waiting += owed - len(given)
            for one in given:
                self._add_one(row.case_no, one)

    def _add_one(self, case_no: int, one: GivenJudgment) -> None:
        self.reused += one.reused
        if one.reason is not None:
            self.no_verdict[one.reason] += 1
            return
        self.judged += 1
        if one.passed is not None:
            cluster = self.rates.setdefault(case_no, [0, 0])
            cluster[0] += one.passed
            cluster[1] += 1
            self.passed += one.passed
        if one.score is not None:
            self.scores.setdefault(case_no, []).append(float(one.score))

    def line(self, judge: JudgePart, variant: str) -> ScoreInterval:
        """The figures with their intervals."""
        clusters = [(float(passed), judged) for passed, judged in self.rates.values()]
        rated, scored = sum(one[1] for one in clusters), sum(map(len, self.scores.values()))
        rate = self.passed / rated if rated else None
        span = None
        if rate is not None:
            worth = effective_size(clusters)
            span = wilson(rate * worth, worth)
        mean = sum(map(sum, self.scores.values())) / scored if scored else None
        # One case shows no spread, and a bootstrap of it would be a point.
        around = mean_interval(list(self.scores.values())) if len(self.scores) > 1 else None
        return ScoreInterval(
            judge=judge.name, variant=variant, planned=self.planned, judged=self.judged, passed=self.passed,
            mean=mean, no_verdict=dict(sorted(self.no_verdict.items())), cases=len(self.rates.keys() | self.scores),
            rated=rated, rate=rate, rate_low=span and span.low, rate_high=span and span.high, scored=scored,
            mean_low=around and around.low, mean_high=around and around.high, waiting=self.waiting,
            outside=self.outside, without_observation=dict(sorted(self.without_observation.items())),
            reused=self.reused, counts=judge.counts, qualified_elsewhere=judge.is_brought,
        )  # fmt: skip


@attrs.define
class Spent:
    """What was sent; None is unknown. ``unpriced`` may have cost something and did not say what.

    ``unmetered`` may have used tokens and did not say all of them; ``classes`` are those that were told apart.
    """

    attempts: int = 0
    calls: int = 0
    by_state: Counter[str] = attrs.field(factory=Counter)
    wasted: int = 0
    replays: int = 0
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_nanousd: int | None = None
    unpriced: int = 0
    unmetered: int = 0
    classes: Counter[str] = attrs.field(factory=Counter)

    def add(self, row: SlotRow, useful: Sequence[DispatchRow]) -> None:
        """Count the attempts and sends of one planned observation, ``useful`` as `useful_dispatches` says."""
        for attempt in row.attempts:
            self.attempts += attempt.reused_from is None
        for one in row.dispatches:
            self.add_dispatch(
                one.state, one.dispatch_no, one.tokens_in, one.tokens_out, one.cost_nanousd, one.classes,
            )  # fmt: skip
            self.wasted += one.state not in UNDECIDED and not one.never_made
            self.replays += one.replay
        self.wasted -= len(useful)

    def add_dispatch(self, state: str, number: int, tokens_in: int | None, tokens_out: int | None,
                     cost: int | None, classes: str | None) -> None:  # fmt: skip
        """Count one send; ``classes`` is JSON text."""
        self.by_state[state] += 1
        self.calls += number == 1
        if tokens_in is not None:
            self.tokens_in = (self.tokens_in or 0) + tokens_in
        if tokens_out is not None:
            self.tokens_out = (self.tokens_out or 0) + tokens_out
        if cost is not None:
            self.cost_nanousd = (self.cost_nanousd or 0) + cost
        if state not in _UNSENT:
            self.unpriced += cost is None
            self.unmetered += tokens_in is None or tokens_out is None
        if classes is not None:
            self.classes.update(told_classes(classes))


@attrs.define
class VariantFigures:
    """One variant: where its slots stand, how long its observations took, what each judge said."""

    states: Counter[str] = attrs.field(factory=Counter)
    flags: Counter[str] = attrs.field(factory=Counter)
    seconds: array[float] = attrs.field(factory=lambda: array("d"))
    silent: int = 0
    judges: dict[int, JudgeTally] = attrs.field(factory=dict)


@attrs.define
class Figures:
    """Everything that is counted; `add` takes one planned observation. ``set_at`` limits the evaluation's set."""

    judges: Sequence[JudgePart]
    variant_nos: Sequence[int]
    set_at: int | None = None
    reasons: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    examples: dict[tuple[str, str], str] = attrs.field(factory=dict)
    spent: Spent = attrs.field(factory=Spent)
    variants: dict[int, VariantFigures] = attrs.field(factory=dict)
    pairs: dict[tuple[int, int], Counter[tuple[str, str]]] = attrs.field(factory=dict)
    contaminated: int = 0

    def __attrs_post_init__(self) -> None:
        for number in self.variant_nos:
            tallies = {judge.judge_no: JudgeTally() for judge in self.judges}
            self.variants[number] = VariantFigures(judges=tallies)

    def add(self, row: SlotRow) -> None:
        """Count one planned observation."""
        figures = self.variants[row.variant_no]
        figures.states[row.state] += 1
        useful = useful_dispatches(row)
        self.spent.add(row, useful)
        if row.selected_at:
            if (newest := row.newest) is not None and newest.observation is not None:
                self.contaminated += newest.contaminated
                if flags := flags_of(newest.observation.flags):
                    figures.flags.update(flags)
            seconds = seconds_in(useful)
            if seconds is not None:
                figures.seconds.append(seconds)
            elif not row.is_reused:
                figures.silent += 1
        elif row.state not in (SlotState.PENDING, SlotState.IN_FLIGHT):
            why = (row.state, row.reason or "")
            self.reasons[why] += 1
            if why not in self.examples and (newest := row.newest) is not None and newest.message:
                self.examples[why] = newest.message
        if len(row.judgments) > 1:
            self._agree(row)
        is_inside = self.set_at is None or row.selected_at <= self.set_at
        for judge in self.judges:
            given = [one for one in row.judgments if one.judge_no == judge.judge_no]
            figures.judges[judge.judge_no].add(row, given, judge.samples, is_inside=is_inside)

    def _agree(self, row: SlotRow) -> None:
        """Count the verdicts of each two judges on the same observation and sample."""
        said = [one for one in row.judgments if one.passed is not None]
        for first, second in itertools.combinations(said, 2):
            if first.sample_no == second.sample_no and first.judge_no != second.judge_no:
                table = self.pairs.setdefault((first.judge_no, second.judge_no), Counter())
                table["pass" if first.passed else "fail", "pass" if second.passed else "fail"] += 1

    def agreements(self) -> list[Agreement]:
        """How far every two judges agree that both said passed or not of something."""
        names = {judge.judge_no: judge.name for judge in self.judges}
        return [agreement_of(names[one], names[two], table) for (one, two), table in sorted(self.pairs.items())]

    def population(self) -> Population:
        """The whole population."""
        return population_of_counts(sum((one.states for one in self.variants.values()), Counter[str]()))

    def scores(self, names: dict[int, str]) -> list[ScoreInterval]:
        """A line for each judge and variant, in their order."""
        return [
            self.variants[number].judges[judge.judge_no].line(judge, names[number])
            for judge in self.judges
            for number in self.variant_nos
        ]


def population_of_counts(counts: Counter[str]) -> Population:
    """The counts by state with their sum."""
    return Population(planned=sum(counts.values()), **{state.value: counts[state] for state in SlotState})
