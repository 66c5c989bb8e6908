"""Which cases of a file are asked: by metadata, by split, by sample, in this order.

Both draws are made from the case's id alone (a split's, where it is asked for, from one value of its metadata), by a
digest with a seed: neither the order of the file nor what else stands in it decides about a case in a split, and a
larger sample contains a smaller one of the same seed. Splits and samples draw apart, so that a sample out of a split is
none of its own corner.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Final

import attrs

from ..ledger.canonical import JsonValue, canonical_text, printable
from ..ledger.errors import CaseFileInvalid
from .case_files import CaseSource
from .protocols import Case, Missing
from .report_options import SliceTerm
from .words import nearest

__all__ = ["CaseCounts", "CaseSelection", "ChosenCases", "Condition", "Split"]

_BITS: Final = 256
_SEEN_MAX: Final = 8
_KEYS_MAX: Final = 200
_KEPT_MAX: Final = 10_000
_KEPT_BYTES_MAX: Final = 16 * 2**20


@attrs.frozen
class Condition:
    """Cases whose metadata has one of the values under ``key``; each is compared as a report's slice is."""

    key: str
    values: tuple[JsonValue, ...]
    _terms: tuple[SliceTerm, ...] = attrs.field(init=False, eq=False, repr=False)

    @_terms.default
    def _terms_of_values(self) -> tuple[SliceTerm, ...]:
        texts = (value if isinstance(value, str) else canonical_text(value) for value in self.values)
        return tuple(SliceTerm(self.key, text) for text in texts)

    def fits(self, case: Case) -> bool:
        return any(term.fits(case.metadata) for term in self._terms)

    def __str__(self) -> str:
        return f"{self.key} = {' or '.join(term.text for term in self._terms)}"


@attrs.frozen
class Split:
    """The part ``name`` of all parts: they lie side by side in the order of their names, each as wide as its weight.

    With ``by``, a key of the metadata, cases of one value there are in one part.
    """

    name: str
    parts: Mapping[str, int | float]
    seed: int = 0
    by: str | None = None
    _bounds: tuple[int, int] = attrs.field(init=False, eq=False, repr=False)

    @_bounds.default
    def _bounds_of_parts(self) -> tuple[int, int]:
        # By their decimal text: 0.1 is a tenth, which no float is.
        weights = {name: Fraction(str(weight)) for name, weight in sorted(self.parts.items())}
        total, before = sum(weights.values()), sum(weight for name, weight in weights.items() if name < self.name)
        low, high = (int(edge / total * 2**_BITS) for edge in (before, before + weights[self.name]))
        return low, high

    def has(self, case: Case) -> bool:
        """Whether the case is in this part; raises KeyError and TypeError where ``by`` finds no value to go by."""
        low, high = self._bounds
        drawn = ("split", case.id) if self.by is None else ("split by", _group(case.metadata[self.by]))
        return low <= _rank(drawn[0], self.seed, drawn[1]) < high

    def __str__(self) -> str:
        weights = ", ".join(f"{name} {weight}" for name, weight in sorted(self.parts.items()))
        by = "" if self.by is None else f" by {self.by}"
        return f"split {self.name} of {weights}{by}" + (f" with seed {self.seed}" if self.seed else "")


@attrs.frozen
class CaseSelection:
    """What is asked for; a selection that asks for nothing takes every case."""

    where: tuple[Condition, ...] = ()
    split: Split | None = None
    sample: int | None = None
    seed: int = 0

    def __str__(self) -> str:
        parts = [f"where {' and '.join(map(str, self.where))}"] if self.where else []
        parts += [] if self.split is None else [str(self.split)]
        parts += [] if self.sample is None else [f"a sample of {self.sample:,} by seed {self.seed}"]
        return ", ".join(parts)


@attrs.define
class CaseCounts:
    """How many cases there were in all, and how many the selection took; filled while they pass by."""

    population: int = 0
    chosen: int = 0


@attrs.frozen
class ChosenCases:
    """The cases of a source that a selection takes, in the source's order. Faults of the others are told as well.

    ``counts`` is filled anew each time that they are gone through.
    """

    source: CaseSource
    selection: CaseSelection
    counts: CaseCounts = attrs.field(factory=CaseCounts, eq=False, repr=False)

    def __iter__(self) -> Iterator[Case]:
        return (case for case, _ in self.digested())

    def digested(self) -> Iterator[tuple[Case, str]]:
        """Each case with its digest; raises CaseFileInvalid where too few are there.

        Every case decides who is in a sample. A small one is kept until all are seen; for one that is too large to keep
        the source is gone through once more.
        """
        counts, size = self.counts, self.selection.sample
        counts.population = counts.chosen = 0
        found = self._left(counts) if size is None else self._sampled(counts, size)
        for case, digest in found:
            counts.chosen += 1
            yield case, digest

    def _sampled(self, counts: CaseCounts, size: int) -> Iterator[tuple[Case, str]]:
        drawn, seed = _Drawn(size), self.selection.seed
        for place, (case, digest) in enumerate(self._left(counts)):
            drawn.offer(_rank("sample", seed, case.id), place, case, digest)
        if drawn.count < size:
            of = str(attrs.evolve(self.selection, sample=None))
            what = f"a sample of {size:,} is asked for, and there are {drawn.count:,} cases"
            remedy = f"Write sample = {drawn.count} or less, or leave it out"
            raise self._fault(what + (f" ({of})" if of else ""), remedy)
        if drawn.is_kept:
            yield from drawn.in_order()
        else:
            ranked = ((_rank("sample", seed, case.id), case, digest) for case, digest in self._left(CaseCounts()))
            yield from ((case, digest) for rank, case, digest in ranked if rank <= drawn.cutoff)

    def _left(self, counts: CaseCounts) -> Iterator[tuple[Case, str]]:
        """What ``where`` and ``split`` leave."""
        where, split = self.selection.where, self.selection.split
        seen, matched, is_empty = _Seen(), 0, True
        for case, digest in self.source.digested():
            counts.population += 1
            if not matched:
                seen.add(case, where)
            if all(condition.fits(case) for condition in where):
                matched += 1
                if split is None or self._is_in(split, case):
                    is_empty = False
                    yield case, digest
        if not matched:
            raise self._nothing(counts.population, seen)
        if is_empty:
            raise self._fault(f"no case is in {split}: there are {matched:,} to be split", "Make that part larger")

    def _is_in(self, split: Split, case: Case) -> bool:
        try:
            return split.has(case)
        except KeyError:
            what = f'case "{printable(case.id)}" has no "{split.by}" in its metadata, which its part is chosen by'
            keys = itertools.islice(case.metadata, _KEYS_MAX)
            remedy = nearest(split.by or "", keys) if case.metadata else "Give each case one, or split without `by`"
            raise self._fault(what, remedy) from None
        except TypeError:
            what = f'"{split.by}" of case "{printable(case.id)}" is a list, an object or null, and names no group'
            raise self._fault(what, "Write text, a number, true or false there") from None

    def _nothing(self, population: int, seen: _Seen) -> CaseFileInvalid:
        for condition in self.selection.where:
            if condition.key not in seen.values:
                what = f'no case has "{printable(condition.key)}" in its metadata'
                return self._fault(what, nearest(condition.key, seen.keys) if seen.keys else "Their metadata is empty")
        told = "; ".join(f"{key} is {', '.join(found)}" for key, found in seen.values.items())
        wanted = " and ".join(map(str, self.selection.where))
        what = f"none of {population:,} cases has {printable(wanted)}"
        return self._fault(what, f"Ask for values that are there: {printable(told)}")

    def _fault(self, what: str, remedy: str) -> CaseFileInvalid:
        name = str(getattr(self.source, "written", "cases"))
        return CaseFileInvalid(f"{name}: {what}", remedy, path=name)


@attrs.define
class _Drawn:
    """The lowest ranks so far, as many as a sample has, and their cases as long as these are few and small."""

    size: int
    is_kept: bool = attrs.field(init=False)
    _ranks: list[tuple[int, int]] = attrs.field(factory=list)  # negative: the heap's first is the highest; with places
    _cases: dict[int, tuple[Case, str, int]] = attrs.field(factory=dict)
    _bytes: int = 0

    @is_kept.default
    def _is_small(self) -> bool:
        return self.size <= _KEPT_MAX

    def offer(self, rank: int, place: int, case: Case, digest: str) -> None:
        """Take the case in where its rank is among the lowest."""
        if len(self._ranks) < self.size:
            heapq.heappush(self._ranks, (-rank, place))
        elif -rank > self._ranks[0][0]:
            self._drop(heapq.heapreplace(self._ranks, (-rank, place))[1])
        else:
            return
        if self.is_kept:
            self._keep(place, case, digest)

    def _keep(self, place: int, case: Case, digest: str) -> None:
        expected = None if isinstance(case.expected, Missing) else case.expected
        length = len(canonical_text([case.input, expected, dict(case.metadata)]))
        self._cases[place] = (case, digest, length)
        self._bytes += length
        if self._bytes > _KEPT_BYTES_MAX:
            self.is_kept = False
            self._cases.clear()

    def _drop(self, place: int) -> None:
        if self.is_kept:
            self._bytes -= self._cases.pop(place)[2]

    @property
    def count(self) -> int:
        return len(self._ranks)

    @property
    def cutoff(self) -> int:
        """The highest rank within the sample."""
        return -self._ranks[0][0]

    def in_order(self) -> Iterator[tuple[Case, str]]:
        """The cases as they came."""
        return ((case, digest) for _, (case, digest, _) in sorted(self._cases.items()))


@attrs.define
class _Seen:
    """What stands in the metadata, as long as nothing has fitted: for the words of a fault."""

    keys: set[str] = attrs.field(factory=set)
    values: dict[str, dict[str, None]] = attrs.field(factory=dict)

    def add(self, case: Case, where: tuple[Condition, ...]) -> None:
        self.keys.update(itertools.islice(case.metadata, max(0, _KEYS_MAX - len(self.keys))))
        for condition in where:
            if condition.key in case.metadata:
                found = self.values.setdefault(condition.key, {})
                if len(found) < _SEEN_MAX:
                    value = case.metadata[condition.key]
                    found[(value if isinstance(value, str) else canonical_text(value))[:40]] = None


def _group(value: JsonValue) -> str:
    """What cases have in common that stay together; 1 and "1" are one, as for a condition."""
    if not isinstance(value, str | int | float):
        raise TypeError(value)
    return value if isinstance(value, str) else canonical_text(value)


def _rank(draw: str, seed: int, drawn: str) -> int:
    text = f"tallystick {draw} 1\n{seed}\n{drawn}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest(), "big")
