"""Regular expressions whose time is bounded: a pattern that backtracks for ever gives up, and holds up nobody.

The standard library's ``re`` holds the interpreter for as long as it searches: 40 characters were enough for hours,
with every other task waiting. The package ``regex`` reads the same patterns, lets others run, and can be given a time.
"""

from __future__ import annotations

import functools
from typing import Final

import regex

__all__ = ["SEARCH_SECONDS", "Pattern", "PatternTooSlow", "compiled", "is_found"]

SEARCH_SECONDS: Final = 0.25
_PATTERN_MAX: Final = 10_000

Pattern = regex.Pattern[str]


class PatternTooSlow(Exception):
    """A search took longer than `SEARCH_SECONDS`."""


@functools.lru_cache(maxsize=1024)
def compiled(pattern: str, *, ignore_case: bool = False) -> Pattern:
    """The pattern, compiled; raises ValueError for one that is none."""
    if len(pattern) > _PATTERN_MAX:
        raise ValueError(f"a pattern has at most {_PATTERN_MAX} characters")
    try:
        return regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
    except (regex.error, RecursionError, OverflowError) as fault:
        raise ValueError(f"no regular expression ({fault})") from None


def is_found(pattern: Pattern, text: str, *, full: bool = False) -> bool:
    """Whether the pattern is found in the text, or is all of it; raises PatternTooSlow."""
    search = pattern.fullmatch if full else pattern.search
    try:
        return search(text, timeout=SEARCH_SECONDS, concurrent=True) is not None
    except TimeoutError:
        raise PatternTooSlow(f"the search was given up after {SEARCH_SECONDS:g} s") from None
