"""What a report is asked for: at which event, of which slice, grouped by what, by which evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ..ledger.canonical import canonical_text, parse_json
from ..ledger.errors import UsageError

__all__ = ["ReportOptions", "SliceTerm", "slice_term"]


@attrs.frozen
class SliceTerm:
    """Cases whose metadata has ``text`` under ``key``: the value itself, or one of the values of a list."""

    key: str
    text: str
    _canonical: str = attrs.field(init=False, eq=False, repr=False)

    @_canonical.default
    def _canonical_of_text(self) -> str:
        try:
            return canonical_text(parse_json(self.text))
        except ValueError:
            return ""  # no JSON, so only a text can be meant

    def fits(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a case with this metadata belongs to the slice."""
        if self.key not in metadata:
            return False
        found = metadata[self.key]
        return self._is(found) or (isinstance(found, list) and any(self._is(one) for one in found))

    def _is(self, value: Any) -> bool:
        return value == self.text if isinstance(value, str) else canonical_text(value) == self._canonical


def slice_term(text: str, option: str = "--slice") -> SliceTerm:
    """``KEY=VALUE`` as a term; raises UsageError. VALUE is a text, or a number, true, false or null as in JSON."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        noun = "no slice" if option == "--slice" else f"no {option}"
        raise UsageError(f"{text!r} is {noun}", f"write KEY=VALUE, such as {option} language=de")
    return SliceTerm(key, value)


@attrs.frozen
class ReportOptions:
    """``at`` is an event's number, None the newest; of several ``terms`` all must fit; ``by`` is a metadata key.

    ``evaluation`` is a number, id or name; None is the run's own, or the newest where it has none.
    """

    at: int | None = None
    terms: tuple[SliceTerm, ...] = ()
    by: str | None = None
    evaluation: str | None = None
