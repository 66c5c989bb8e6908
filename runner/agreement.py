"""How far two judges, or a judge and labels, agree: in per cent, and beyond chance."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping

import attrs

from ..ledger.judging_reads import judge_rows, verdict_pairs
from ..ledger.ledger import Reader
from .statistics_rates import CONFIDENCE, Interval, quantile_of, wilson

__all__ = ["Agreement", "Kappa", "agreement_of", "agreements_of_judges", "kappa_of"]

Table = Mapping[tuple[str, str], int]


@attrs.frozen
class Kappa:
    """Agreement beyond chance: 1 is perfect, 0 what chance gives, below it worse."""

    value: float
    interval: Interval


@attrs.frozen
class Agreement:
    """Of ``count`` observations that both gave a verdict on, ``agreed`` have the same.

    ``kappa`` is None where it cannot be told: nothing was compared, or both said the same of everything.
    """

    first: str
    second: str
    count: int
    agreed: int
    interval: Interval | None
    kappa: Kappa | None

    @property
    def rate(self) -> float | None:
        """The part that has the same verdict."""
        return self.agreed / self.count if self.count else None


def agreement_of(first: str, second: str, table: Table) -> Agreement:
    """The agreement in a table of how often each pair of verdicts occurs."""
    count = sum(table.values())
    agreed = sum(number for (one, other), number in table.items() if one == other)
    return Agreement(first, second, count, agreed, wilson(agreed, count) if count else None, kappa_of(table))


def agreements_of_judges(reader: Reader, run_key: int, evaluation_no: int) -> list[Agreement]:
    """Every two judges of an evaluation, on what both gave a verdict on."""
    judges = judge_rows(reader, run_key, evaluation_no)
    return [
        agreement_of(one.name, other.name, verdict_pairs(reader, run_key, evaluation_no, one.judge_no, other.judge_no))
        for one, other in itertools.combinations(judges, 2)
    ]


def kappa_of(table: Table, *, confidence: float = CONFIDENCE) -> Kappa | None:
    """Cohen's kappa with its large-sample interval; None where chance alone would give perfect agreement.

    J. Cohen, "A coefficient of agreement for nominal scales", Educational and Psychological Measurement 20 (1960); the
    standard error after J. L. Fleiss, J. Cohen, B. S. Everitt, Psychological Bulletin 72 (1969).
    """
    total = sum(table.values())
    if not total:
        return None
    part = {pair: number / total for pair, number in table.items() if number}
    rows: defaultdict[str, float] = defaultdict(float)
    columns: defaultdict[str, float] = defaultdict(float)
    for (one, other), share in part.items():
        rows[one] += share
        columns[other] += share
    observed = math.fsum(share for (one, other), share in part.items() if one == other)
    by_chance = math.fsum(share * columns[name] for name, share in rows.items())
    if math.isclose(by_chance, 1.0):
        return None
    value = (observed - by_chance) / (1 - by_chance)
    agreeing = math.fsum(
        share * (1 - (rows[one] + columns[one]) * (1 - value)) ** 2
        for (one, other), share in part.items()
        if one == other
    )
    differing = (1 - value) ** 2 * math.fsum(
        share * (columns[one] + rows[other]) ** 2 for (one, other), share in part.items() if one != other
    )
    variance = (agreeing + differing - (value - by_chance * (1 - value)) ** 2) / ((1 - by_chance) ** 2 * total)
    half = quantile_of(confidence) * math.sqrt(max(0.0, variance))
    return Kappa(value, Interval(max(-1.0, value - half), min(1.0, value + half)))
