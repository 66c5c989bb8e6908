"""What a check says: one finding for each kind of thing that is not as it should be."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from .check_rules import Severity

__all__ = ["Finding", "finding_of"]

_EXAMPLES: Final = 3
_ROWS_MAX: Final = 10_000
"""So many places are counted, and no more are looked for."""


@attrs.frozen
class Finding:
    """One thing that is not as it should be; ``what`` names the first places, ``remedy`` says what to do."""

    code: str
    severity: Severity
    what: str
    remedy: str


def finding_of(
    code: str, what: str, places: Iterable[str], remedy: str, severity: Severity = Severity.ERROR
) -> Iterator[Finding]:
    """At most one finding: what it is, how often, and the first places. The rest of many places is not looked for."""
    listed = list(itertools.islice(places, _ROWS_MAX))
    if not listed:
        return
    least = "at least " if len(listed) == _ROWS_MAX else ""
    more = f" and {least}{len(listed) - _EXAMPLES} more" if len(listed) > _EXAMPLES else ""
    yield Finding(code, severity, f"{what}: {'; '.join(listed[:_EXAMPLES])}{more}", remedy)
