"""Amounts as people write them, and as the integers that are counted: nano-USD and milliseconds.

Money is never a float: 0.1 has no exact binary form, and ten times 0.1 must fit into 1.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

__all__ = ["AMOUNT_MAX", "count", "milliseconds", "nanousd", "seconds_text", "usd_text"]

AMOUNT_MAX: Final = 2**63 - 1  # what a column of the ledger can hold
_NANO: Final = 10**9
_USD: Final = re.compile(r"\d{1,10}(\.\d{1,9})?", re.ASCII)


def nanousd(value: object) -> int:
    """``"2.50"`` (or a Decimal) as 2_500_000_000 nano-USD.

    Raises ValueError for every other type, for a sign, an exponent, a unit, and for more than nine decimals.
    """
    if isinstance(value, Decimal):
        value = format(value, "f")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError('an amount of US dollars is text such as "2.50"')
    if not isinstance(value, str):
        raise ValueError(f'{value!r} is a number, and money is not counted in floats; write it in quotes: "{value}"')
    if not _USD.fullmatch(value):
        raise ValueError(f'"{value[:40]}" is not one; write digits such as "2.50", with at most 9 decimals')
    whole, _, fraction = value.partition(".")
    return _bounded(int(whole) * _NANO + int(fraction.ljust(9, "0")))


def usd_text(amount: int) -> str:
    """The nano-USD as `nanousd` reads them, with at least two decimals."""
    whole, fraction = divmod(amount, _NANO)
    digits = f"{fraction:09d}".rstrip("0").ljust(2, "0")
    return f"{whole}.{digits}"


def milliseconds(value: object) -> int:
    """A number of seconds as whole milliseconds; raises ValueError for what is negative or finer than that."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a number of seconds is wanted")
    exact = Decimal(str(value)) * 1000
    if not exact.is_finite() or exact < 0 or exact != exact.to_integral_value():
        raise ValueError(f"{value!r} seconds is not a whole number of milliseconds, 0 or more")
    return _bounded(int(exact))


def seconds_text(amount: int) -> int | float:
    """The milliseconds as the number of seconds that `milliseconds` reads."""
    return amount // 1000 if amount % 1000 == 0 else float(Decimal(amount) / 1000)


def count(value: object) -> int:
    """A whole number, 0 or more; raises ValueError for everything else, ``true`` and ``1.0`` included."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a whole number, 0 or more, is wanted")
    return _bounded(value)


def _bounded(amount: int) -> int:
    if amount > AMOUNT_MAX:
        raise ValueError(f"an amount above {AMOUNT_MAX} cannot be counted")
    return amount
