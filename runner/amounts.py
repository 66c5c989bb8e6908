"""Amounts as people write them, and as the integers that are counted: nano-USD and milliseconds.

Money is never a float: 0.1 has no exact binary form, and ten times 0.1 must fit into 1.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from typing import Final

from .errors import AmountInvalid

__all__ = ["AMOUNT_MAX", "count", "milliseconds", "nanousd", "seconds_number", "usd_text"]

AMOUNT_MAX: Final = 2**63 - 1  # what a column of the ledger can hold
_NANO: Final = 10**9
_USD: Final = re.compile(r"\d{1,10}(\.\d{1,9})?", re.ASCII)


def nanousd(value: object) -> int:
    """``"2.50"`` (or a Decimal) as 2_500_000_000 nano-USD.

    Raises AmountInvalid for every other type, for a sign, an exponent, a unit, and for more than nine decimals.
    """
    if isinstance(value, Decimal):
        value = format(value, "f")
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise AmountInvalid(f"{value!r} is a number, and money is never a float", f'Write it in quotes: "{value}"')
    if not isinstance(value, str) or not _USD.fullmatch(value):
        shown = f"{value!r:.40}"
        raise AmountInvalid(f"{shown} is no amount of US dollars", 'Write digits such as "2.50", at most 9 decimals')
    whole, _, fraction = value.partition(".")
    return _bounded(int(whole) * _NANO + int(fraction.ljust(9, "0")))


@lru_cache(maxsize=1024)
def usd_text(amount: int) -> str:
    """The nano-USD as `nanousd` reads them, with at least two decimals."""
    whole, fraction = divmod(amount, _NANO)
    digits = f"{fraction:09d}".rstrip("0").ljust(2, "0")
    return f"{whole}.{digits}"


def milliseconds(value: object) -> int:
    """A number of seconds as whole milliseconds; raises AmountInvalid for what is negative or finer than that."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AmountInvalid(f"{value!r:.40} is no number of seconds", "Write a number")
    exact = Decimal(repr(value)) * 1000
    if not exact.is_finite() or exact < 0 or exact != exact.to_integral_value():
        raise AmountInvalid(f"{value!r:.40} seconds are no whole number of milliseconds", "Write 0.001 or a multiple")
    return _bounded(int(exact))


def seconds_number(amount: int) -> int | float:
    """The milliseconds as the number of seconds that `milliseconds` reads."""
    return amount // 1000 if amount % 1000 == 0 else amount / 1000


def count(value: object) -> int:
    """A whole number, 0 or more; raises AmountInvalid for everything else, ``true`` and ``1.0`` included."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise AmountInvalid(f"{value!r:.40} is no count", "Write a whole number, 0 or more")
    return _bounded(value)


def _bounded(amount: int) -> int:
    if amount > AMOUNT_MAX:
        raise AmountInvalid(f"{amount:.4g} is more than can be counted", "Write less")
    return amount
