"""Judges that compare: exact, contains, not_contains, regex, numeric.

Each is made in Python (``exact()``) or from a work order's table, and gives pass or fail. What cannot be compared
gets no verdict, with a reason: ``missing_expected``, ``answer_unfit``, ``expected_unfit``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation, localcontext
from pathlib import Path
from typing import Any, Final

import attrs
from pydantic import Field

from ..ledger.canonical import JsonValue
from ..ledger.errors import WorkOrderInvalid
from ..ledger.verdicts import NoVerdictReason
from ..runner.protocols import Missing, NoVerdict, Observed, Verdict
from .bounded_regex import Pattern, PatternTooSlow, compiled, is_found
from .outcomes import one_line
from .tables import Table, read_table
from .templates import text_of

__all__ = [
    "ContainsTable",
    "ExactTable",
    "NotContainsTable",
    "NumericTable",
    "RegexTable",
    "RuleJudge",
    "contains",
    "contains_from_work_order",
    "exact",
    "exact_from_work_order",
    "judge_factory",
    "not_contains",
    "not_contains_from_work_order",
    "numeric",
    "numeric_from_work_order",
    "regex",
    "regex_from_work_order",
    "same_json",
    "shown",
]

_RULES_VERSION: Final = 1  # part of every identity: rises when a rule judges the same answer otherwise
_SLOW: Final = frozenset({"regex", "json_schema", "jsonpath", "similarity"})
_EXPONENT_MAX: Final = 400
_DIGITS_MAX: Final = 1000

Rule = Callable[[JsonValue, JsonValue], Verdict | NoVerdict]


@attrs.frozen
class RuleJudge:
    """A rule with its options. ``value`` takes the place of what the cases expect."""

    kind: str
    name: str
    _rule: Rule = attrs.field(eq=False, repr=False)
    _options: Mapping[str, JsonValue]
    _value: JsonValue = None
    scale: tuple[float, float] | None = None

    @property
    def is_instant(self) -> bool:
        """Whether it may judge on the event loop: a thread for each comparison cost more than all else of a slot."""
        return self.kind not in _SLOW

    @property
    def needs(self) -> tuple[str, ...]:
        """What must be there for a verdict."""
        return ("expected",) if self._value is None else ()

    @property
    def gives_pass(self) -> bool:
        """Whether it says more than a score."""
        return self.scale is None or self._options.get("at_least") is not None

    @property
    def is_bounded(self) -> bool:
        """Whether its time is bounded, so that nothing has to be recorded before it is asked."""
        return True

    def identity(self) -> Mapping[str, JsonValue]:
        return {"kind": self.kind, "version": _RULES_VERSION, "options": self._options, "value": self._value}

    def judge(self, observed: Observed) -> Verdict | NoVerdict:
        expected = observed.case.expected if self._value is None else self._value
        if isinstance(expected, Missing):
            return NoVerdict(
                NoVerdictReason.MISSING_EXPECTED,
                f'case "{one_line(observed.case.id)}" says nothing of what is expected',
            )
        return self._rule(observed.answer, expected)


def exact(
    *, name: str = "exact", ignore_case: bool = False, trim: bool = False, strict_numbers: bool = False
) -> RuleJudge:
    """The answer equals what is expected, as JSON: ``1`` is ``1.0`` but for ``strict_numbers``, and never ``true``."""

    def folded(text: str) -> str:
        text = text.strip() if trim else text
        return text.casefold() if ignore_case else text

    def rule(answer: JsonValue, expected: JsonValue) -> Verdict:
        if same_json(answer, expected, folded=folded, strict_numbers=strict_numbers):
            return Verdict(passed=True)
        return Verdict(passed=False, explanation=f"expected {shown(expected)}, got {shown(answer)}")

    options = {"ignore_case": ignore_case, "trim": trim, "strict_numbers": strict_numbers}
    return RuleJudge("exact", name, rule, options)


def contains(
    value: str | Sequence[str] | None = None, *, name: str = "contains", ignore_case: bool = False, any_of: bool = False
) -> RuleJudge:
    """The answer, a text, contains every text that is expected; one of them is enough with ``any_of``."""

    def rule(answer: JsonValue, expected: JsonValue) -> Verdict | NoVerdict:
        found = _find(answer, expected, ignore_case=ignore_case)
        if isinstance(found, NoVerdict):
            return found
        missing = [text for text, is_there in found.items() if not is_there]
        passed = len(missing) < len(found) if any_of else not missing
        return Verdict(passed=passed, explanation="" if passed else f"not there: {shown(missing)}")

    return RuleJudge("contains", name, rule, {"ignore_case": ignore_case, "any_of": any_of}, _wanted(value))


def not_contains(
    value: str | Sequence[str] | None = None, *, name: str = "not_contains", ignore_case: bool = False
) -> RuleJudge:
    """The answer, a text, contains none of the texts."""

    def rule(answer: JsonValue, expected: JsonValue) -> Verdict | NoVerdict:
        found = _find(answer, expected, ignore_case=ignore_case)
        if isinstance(found, NoVerdict):
            return found
        present = [text for text, is_there in found.items() if is_there]
        return Verdict(passed=not present, explanation=f"it contains {shown(present)}" if present else "")

    return RuleJudge("not_contains", name, rule, {"ignore_case": ignore_case}, _wanted(value))


def regex(
    pattern: str | None = None, *, name: str = "regex", ignore_case: bool = False, full: bool = False
) -> RuleJudge:
    """The pattern is found in the answer, a text; with ``full``, it is the whole answer.

    Raises ValueError for a pattern that is none. Without ``pattern``, each case's ``expected`` is the pattern.
    """
    if pattern is not None:
        _compiled(pattern, ignore_case=ignore_case)

    def rule(answer: JsonValue, expected: JsonValue) -> Verdict | NoVerdict:
        if not isinstance(answer, str):
            return _not_text(answer)
        try:
            wanted = _compiled(expected if isinstance(expected, str) else "", ignore_case=ignore_case)
        except ValueError as fault:
            return NoVerdict(NoVerdictReason.EXPECTED_UNFIT, str(fault))
        try:
            passed = is_found(wanted, answer, full=full)
        except PatternTooSlow as slow:
            return NoVerdict(NoVerdictReason.TIMEOUT, f"{shown(wanted.pattern)}: {slow}")
        why = "is not the whole answer" if full else "is not found"
        return Verdict(passed=passed, explanation="" if passed else f"{shown(wanted.pattern)} {why}")

    return RuleJudge("regex", name, rule, {"ignore_case": ignore_case, "full": full}, pattern)


def numeric(*, name: str = "numeric", tolerance: float = 0.0, relative: float = 0.0) -> RuleJudge:
    """The answer is the expected number, give or take ``tolerance``, or ``relative`` times the expected number.

    A text counts as the number that it is in whole. An answer that is no number fails.
    """
    if not (0 <= tolerance < float("inf") and 0 <= relative < float("inf")):
        raise ValueError("a tolerance is 0 or more")

    def rule(answer: JsonValue, expected: JsonValue) -> Verdict | NoVerdict:
        wanted, given = _number(expected), _number(answer)
        if wanted is None:
            return NoVerdict(NoVerdictReason.EXPECTED_UNFIT, f"{shown(expected)} is no number")
        if given is None:
            return Verdict(passed=False, explanation=f"{shown(answer)} is no number")
        with localcontext(prec=_DIGITS_MAX):
            room = max(Decimal(str(tolerance)), Decimal(str(relative)) * abs(wanted))
            passed = abs(given - wanted) <= room
        return Verdict(passed=passed, explanation="" if passed else f"expected {shown(expected)}, got {shown(answer)}")

    return RuleJudge("numeric", name, rule, {"tolerance": tolerance, "relative": relative})


_IGNORE_CASE: Final = "Whether upper and lower case are the same."
_VALUE: Final = "A text or a list of texts, instead of what the cases expect."


class ExactTable(Table):
    """The table of a judge of kind ``exact``."""

    name: str = Field("exact", description="What it is called in reports.")
    ignore_case: bool = Field(False, description=_IGNORE_CASE)
    trim: bool = Field(False, description="Whether space at the ends of texts is left out.")
    strict_numbers: bool = Field(False, description="Whether `1` and `1.0` differ.")


class ContainsTable(Table):
    """The table of a judge of kind ``contains``."""

    name: str = Field("contains", description="What it is called in reports.")
    value: str | list[str] | None = Field(None, description=_VALUE)
    ignore_case: bool = Field(False, description=_IGNORE_CASE)
    any_of: bool = Field(False, description="Whether one of the texts is enough.")


class NotContainsTable(Table):
    """The table of a judge of kind ``not_contains``."""

    name: str = Field("not_contains", description="What it is called in reports.")
    value: str | list[str] | None = Field(None, description=_VALUE)
    ignore_case: bool = Field(False, description=_IGNORE_CASE)


class RegexTable(Table):
    """The table of a judge of kind ``regex``."""

    name: str = Field("regex", description="What it is called in reports.")
    pattern: str | None = Field(None, description="A Python regular expression, instead of what the cases expect.")
    ignore_case: bool = Field(False, description=_IGNORE_CASE)
    full: bool = Field(False, description="Whether the pattern has to be the whole answer.")


class NumericTable(Table):
    """The table of a judge of kind ``numeric``."""

    name: str = Field("numeric", description="What it is called in reports.")
    tolerance: float = Field(0.0, ge=0, description="How far the answer may be off.")
    relative: float = Field(0.0, ge=0, description="The same as a part of the expected number.")


def judge_factory(
    table: type[Table], make: Callable[..., RuleJudge], *, renamed: Mapping[str, str] | None = None
) -> Callable[..., RuleJudge]:
    """What makes a judge of a work order's table; ``renamed`` names fields whose option has another name."""

    def from_work_order(raw: Mapping[str, Any], *, folder: Path, place: str) -> RuleJudge:  # noqa: ARG001
        found = read_table(table, raw, place=place).model_dump()
        options = {(renamed or {}).get(name, name): value for name, value in found.items()}
        try:
            return make(**options)
        except ValueError as fault:
            if isinstance(fault, WorkOrderInvalid):
                raise
            raise WorkOrderInvalid(f"{place}: {fault}", "Correct it", place=place) from fault

    return from_work_order


exact_from_work_order = judge_factory(ExactTable, exact)
contains_from_work_order = judge_factory(ContainsTable, contains)
not_contains_from_work_order = judge_factory(NotContainsTable, not_contains)
regex_from_work_order = judge_factory(RegexTable, regex)
numeric_from_work_order = judge_factory(NumericTable, numeric)


def same_json(
    one: JsonValue, other: JsonValue, *, folded: Callable[[str], str] = str, strict_numbers: bool = False
) -> bool:
    """Whether two JSON values are equal, ``true`` and ``1`` being different."""
    match one, other:
        case (bool() | None, _) | (_, bool() | None):
            return one is other
        case (int() | float(), int() | float()):
            return one == other and not (strict_numbers and type(one) is not type(other))
        case (str(), str()):
            return folded(one) == folded(other)
        case (Mapping(), Mapping()):
            return one.keys() == other.keys() and all(
                same_json(value, other[key], folded=folded, strict_numbers=strict_numbers) for key, value in one.items()
            )
        case (list() | tuple(), list() | tuple()):
            return len(one) == len(other) and all(
                same_json(*pair, folded=folded, strict_numbers=strict_numbers) for pair in zip(one, other, strict=True)
            )
    return False


def _find(answer: JsonValue, expected: JsonValue, *, ignore_case: bool) -> dict[str, bool] | NoVerdict:
    if not isinstance(answer, str):
        return _not_text(answer)
    texts = [expected] if isinstance(expected, str) else expected
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) and text for text in texts):
        return NoVerdict(NoVerdictReason.EXPECTED_UNFIT, f"{shown(expected)} is neither a text nor a list of texts")
    where = answer.casefold() if ignore_case else answer
    return {text: (text.casefold() if ignore_case else text) in where for text in texts if isinstance(text, str)}


def _wanted(value: str | Sequence[str] | None) -> JsonValue:
    return value if value is None or isinstance(value, str) else list(value)


def _compiled(pattern: str, *, ignore_case: bool) -> Pattern:
    if not pattern:
        raise ValueError("a pattern is wanted")
    try:
        return compiled(pattern, ignore_case=ignore_case)
    except ValueError as fault:
        raise ValueError(f"{shown(pattern)} is {fault}") from None


def _number(value: JsonValue) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = "" if isinstance(value, int) else str(value).strip()
    if len(text) > _DIGITS_MAX:  # cut short, it would be another number
        return None
    try:
        number = Decimal(value) if isinstance(value, int) else Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number.adjusted()) <= _EXPONENT_MAX else None


def _not_text(answer: JsonValue) -> NoVerdict:
    return NoVerdict(NoVerdictReason.ANSWER_UNFIT, f"the answer is {shown(answer)}")


def shown(value: JsonValue) -> str:
    """A value for people, in one bounded line."""
    try:
        return one_line(value if isinstance(value, str) and value else text_of(value) or '""', length_max=120)
    except (TypeError, ValueError, RecursionError):
        return "a value too large to show"
