"""Verdicts read from a reply: anchored, structured, and never guessed.

`JsonVerdicts` takes a reply that is one JSON object and nothing else; `LabelVerdicts` one that is a label, or ends in
a line ``Verdict: LABEL``. A word inside another word is no label, a verdict inside a quotation is no verdict, a score
that is not on the scale is not clamped. What can be read in two ways is ambiguous, what contradicts itself conflicting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

import attrs

from ..ledger.verdicts import NoVerdictReason
from ..runner.protocols import NoVerdict, Verdict
from .outcomes import one_line

__all__ = ["JsonVerdicts", "LabelVerdicts", "VerdictParser", "bare_label"]

_FENCED: Final = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL | re.IGNORECASE)
_LINE: Final = re.compile(r"(?:final[ \t]+)?verdict[ \t]*[:=][ \t]*(.*)", re.IGNORECASE)
_EXPLAINED: Final = ("explanation", "reasoning", "reason")
_REPLY_MAX: Final = 256 * 1024


class VerdictParser(Protocol):
    """What reads replies. ``name`` has a version, which rises whenever the same reply is read otherwise."""

    @property
    def name(self) -> str: ...

    def read(self, reply: str) -> Verdict | NoVerdict:
        """The verdict in the reply; pure."""


@attrs.frozen
class JsonVerdicts:
    """``{"passed": true}``, or ``{"score": 0.5}`` where there is a scale, with an ``explanation`` if there is one.

    With ``pass_at``, a score from there up passes. ``may_abstain`` lets ``{"no_verdict": REASON}`` stand, as programs
    say it; a model is not asked for it.
    """

    scale: tuple[float, float] | None = None
    pass_at: float | None = None
    may_abstain: bool = False
    name: str = "json_verdict/1"

    def read(self, reply: str) -> Verdict | NoVerdict:
        found = _object_in(reply)
        if isinstance(found, NoVerdict):
            return found
        explanation = next((found[key] for key in _EXPLAINED if key in found), "")
        if not isinstance(explanation, str):
            return _malformed("the explanation is no text")
        if self.may_abstain and "no_verdict" in found:
            return _abstained(found, explanation)
        passed, score = found.get("passed"), found.get("score")
        if "passed" in found and not isinstance(passed, bool):
            return _malformed(f'"passed" is {_shown(passed)}, not true or false')
        if "score" in found and (isinstance(score, bool) or not isinstance(score, int | float)):
            return _malformed(f'"score" is {_shown(score)}, not a number')
        if self.scale is None:
            return self._passed(passed, score, explanation)
        return self._scored(self.scale, passed, score, explanation)

    def _passed(self, passed: bool | None, score: float | None, explanation: str) -> Verdict | NoVerdict:
        if passed is None:
            return _malformed('there is no "passed"')
        if score is not None and bool(score) != passed:
            return _conflicting(f'"passed" is {_shown(passed)} and "score" is {_shown(score)}')
        return Verdict(passed=passed, explanation=explanation)

    def _scored(
        self, scale: tuple[float, float], passed: bool | None, score: float | None, explanation: str
    ) -> Verdict | NoVerdict:
        low, high = scale
        if score is None:
            return _malformed('there is no "score"')
        if not low <= score <= high:
            return _malformed(f"the score {_shown(score)} is not on the scale {low:g} to {high:g}")
        meant = None if self.pass_at is None else score >= self.pass_at
        contradicts = passed is not None and (
            passed != meant if meant is not None else score == (low if passed else high)
        )
        if contradicts:
            return _conflicting(f'"passed" is {_shown(passed)} and "score" is {_shown(score)}')
        return Verdict(passed=passed if meant is None else meant, score=score, explanation=explanation)


@attrs.frozen
class LabelVerdicts:
    """One of some words, each a verdict: true, false, or a score on the scale.

    Neither case counts nor what a model puts around a word: quotes, brackets, emphasis, a full stop.
    """

    labels: Mapping[str, bool | float]
    pass_at: float | None = None
    name: str = "label_verdict/2"

    def read(self, reply: str) -> Verdict | NoVerdict:
        if len(reply) > _REPLY_MAX:
            return _malformed("the reply is too long")
        if (whole := self._label(reply)) is not None:
            return self._verdict(whole, "")
        lines = [line.strip() for line in reply.splitlines() if line.strip()]
        said = [(at, match[1]) for at, line in enumerate(lines) if (match := _LINE.fullmatch(line)) is not None]
        named = {self._label(text) for _, text in said}
        if len(named) > 1:
            return _ambiguous(f"{len(said)} lines give different verdicts")
        if said and said[-1][0] == len(lines) - 1 and (label := named.pop()) is not None:
            return self._verdict(label, "\n".join(lines[: said[0][0]]))
        words = {label for label in self.labels if _has_word(reply, label)}
        if len(words) > 1:
            return _ambiguous(f"it names {', '.join(sorted(words))} and ends in no verdict")
        return _malformed(f"it is none of {', '.join(self.labels)}, and does not end in a line Verdict: LABEL")

    def _label(self, text: str) -> str | None:
        bare = bare_label(text)
        return next((label for label in self.labels if bare_label(label) == bare), None)

    def _verdict(self, label: str, explanation: str) -> Verdict:
        meant = self.labels[label]
        if isinstance(meant, bool):
            return Verdict(passed=meant, explanation=explanation)
        passed = None if self.pass_at is None else meant >= self.pass_at
        return Verdict(passed=passed, score=float(meant), explanation=explanation)


def bare_label(text: str) -> str:
    """The word in a reply that is one label, as labels are told apart by it; ``""`` where there is none."""
    return text.strip().rstrip(".").strip("\"'*`[]").rstrip(".").strip().casefold()


def _object_in(reply: str) -> dict[str, Any] | NoVerdict:
    """The one JSON object that the reply is; a code fence around all of it is left out."""
    text = reply.strip()
    if len(text) > _REPLY_MAX:
        return _malformed("the reply is too long")
    if (fenced := _FENCED.fullmatch(text)) is not None:
        text = fenced[1].strip()
    if not text:
        return _malformed("the reply is empty")
    try:
        found, end = _DECODER.raw_decode(text)
    except _Twice as fault:
        return _ambiguous(f'"{one_line(str(fault), length_max=40)}" stands twice in it')
    except (ValueError, RecursionError) as fault:
        return _malformed(f"it is not one JSON object ({one_line(str(fault), length_max=80)})")
    rest = text[end:].strip()
    if rest:
        return _ambiguous("it holds several JSON values") if rest[0] in "{[" else _malformed("text stands behind it")
    return found if isinstance(found, dict) else _malformed(f"it is {_shown(found)}, not a JSON object")


class _Twice(Exception):
    """A key stands twice in one object."""


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Twice(key)
        found[key] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _bounded_int(text: str) -> int:
    if len(text) > 30:
        raise ValueError("a number is too long")
    return int(text)


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_without_doubles, parse_constant=_no_constant, parse_int=_bounded_int
)


def _abstained(found: Mapping[str, Any], explanation: str) -> NoVerdict:
    reason = found["no_verdict"]
    if "passed" in found or "score" in found:
        return _conflicting("it gives a verdict and says that there is none")
    if not isinstance(reason, str) or not reason:
        return _malformed("the reason for no verdict is no text")
    return NoVerdict(one_line(reason, length_max=80), explanation)


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def _shown(value: object) -> str:
    try:
        return one_line(json.dumps(value), length_max=60)
    except (TypeError, ValueError):
        return f"a {type(value).__name__}"


def _malformed(why: str) -> NoVerdict:
    return NoVerdict(NoVerdictReason.MALFORMED_VERDICT, why)


def _ambiguous(why: str) -> NoVerdict:
    return NoVerdict(NoVerdictReason.AMBIGUOUS_VERDICT, why)


def _conflicting(why: str) -> NoVerdict:
    return NoVerdict(NoVerdictReason.CONFLICTING_VERDICT, why)
