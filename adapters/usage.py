"""Reported usage, read with care: a count is a non-negative integer or unknown, and never guessed to be zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import Final

from ..ledger.canonical import JsonValue
from ..runner.protocols import MISSING, USAGE_MAX, Missing, Usage

__all__ = ["count_of", "nanousd_of", "shown", "usage_of_counts"]

_NANO: Final = 1_000_000_000
_SHOWN_MAX: Final = 2**63


def usage_of_counts(found: Mapping[str, JsonValue | Missing], *, raw: JsonValue | Missing) -> Usage:
    """``tokens_in``, ``tokens_out`` and ``cost_usd`` or ``cost_nanousd``; the unfit becomes unknown with a problem."""
    problems: list[str] = []

    def read(name: str, reader: Callable[[JsonValue], int]) -> int | None:
        value = found.get(name, MISSING)
        if isinstance(value, Missing) or value is None:
            return None
        try:
            return reader(value)
        except ValueError as fault:
            problems.append(f"{name} is {shown(value)}: {fault}")
            return None

    tokens_in, tokens_out = read("tokens_in", count_of), read("tokens_out", count_of)
    cost = read("cost_nanousd", count_of) if "cost_nanousd" in found else read("cost_usd", nanousd_of)
    return Usage(tokens_in=tokens_in, tokens_out=tokens_out, cost_nanousd=cost, raw=raw, problems=tuple(problems))


def count_of(value: JsonValue) -> int:
    """A count of tokens; a float counts where it is whole. Raises ValueError, for ``true`` and ``"12"`` too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError("not a whole number")
        value = int(value)
    return _bounded(value)


def nanousd_of(value: JsonValue) -> int:
    """US dollars (a number or a decimal text) as nano-USD, rounded up: a cost is never understated."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("not an amount")
    try:
        amount = Decimal(value) if isinstance(value, int) else Decimal(str(value))
    except InvalidOperation:
        raise ValueError("not an amount") from None
    if not amount.is_finite() or amount.adjusted() > 12:
        raise ValueError("not an amount that can be counted")
    return _bounded(int((amount * _NANO).to_integral_value(ROUND_CEILING)))


def _bounded(value: int) -> int:
    if value < 0:
        raise ValueError("negative")
    if value > USAGE_MAX:
        raise ValueError("beyond what can be counted")
    return value


def shown(value: object) -> str:
    """A value as a problem names it: short."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _SHOWN_MAX:
        return "an integer of more than 64 bits"  # Python refuses to write out the longest ones
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
