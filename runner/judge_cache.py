"""Verdicts that were given before on the very same: by the same judge, of the same answer to the same input."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from ..ledger.canonical import JsonValue, digest_of_value
from ..ledger.judging_reads import KeptVerdict, cached_verdict
from ..ledger.ledger import Ledger
from .protocols import Missing, Observed

__all__ = ["VerdictCache", "cache_key"]

_VERSION = 1  # rises when a key no longer covers what it did


def cache_key(judge_digest: str, observed: Observed, *, answer_digest: str, sample_no: int, is_blind: bool) -> str:
    """The digest of everything that a verdict depends on.

    ``judge_digest`` covers the judge's code, parameters, rubric and parser. A judge that is not blind also sees whose
    answer it is. Each sample has keys of its own: a deliberate repeat is never answered from another sample.
    """
    case = observed.case
    seen: dict[str, JsonValue] = {
        "version": _VERSION,
        "judge": judge_digest,
        "input": case.input,
        "expected": [] if isinstance(case.expected, Missing) else [case.expected],
        "metadata": dict(case.metadata),
        "answer": answer_digest,
        "evidence": dict(observed.evidence),
        "flags": list(observed.flags),
        "sample": sample_no,
    }
    if not is_blind:
        seen["whose"] = [case.id, observed.variant, observed.repetition]
    return digest_of_value(seen)


class VerdictCache:
    """Looks a key up, and lets whoever needs the same verdict wait while one of them asks for it. For one loop."""

    def __init__(self, ledger: Ledger, *, is_used: bool = True) -> None:
        self._ledger = ledger
        self._is_used = is_used
        self._asking: dict[str, asyncio.Lock] = {}
        self._waiting: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def one_asks(self, key: str) -> AsyncIterator[KeptVerdict | None]:
        """The verdict under that key; where there is None, nobody else of this process asks for it meanwhile."""
        if not self._is_used:
            yield None
            return
        lock = self._asking.setdefault(key, asyncio.Lock())
        self._waiting[key] = self._waiting.get(key, 0) + 1
        try:
            async with lock:
                yield self._find(key)
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key], self._asking[key]

    def _find(self, key: str) -> KeptVerdict | None:
        with self._ledger.reading() as reader:
            return cached_verdict(reader, key)
