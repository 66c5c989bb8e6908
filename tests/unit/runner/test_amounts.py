"""Money is never a float, and an amount comes back as it was written."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.runner.amounts import AMOUNT_MAX, count, milliseconds, nanousd, seconds_number, usd_text
from tallystick.runner.errors import AmountInvalid


@given(st.integers(min_value=0, max_value=AMOUNT_MAX))
def test_every_amount_of_money_comes_back_from_its_text(amount: int) -> None:
    assert nanousd(usd_text(amount)) == amount


@given(st.integers(min_value=0, max_value=2**43))
def test_every_span_of_time_comes_back_from_its_number(amount: int) -> None:
    assert milliseconds(seconds_number(amount)) == amount


@pytest.mark.parametrize(
    ("written", "amount"),
    [("2.50", 2_500_000_000), ("0", 0), ("0.000000001", 1), ("5", 5 * 10**9), (Decimal("0.10"), 10**8)],
)
def test_money_is_counted_in_billionths(written: Any, amount: int) -> None:
    assert nanousd(written) == amount


def test_ten_times_a_tenth_is_one() -> None:
    assert 10 * nanousd("0.10") == nanousd("1.00")


@pytest.mark.parametrize("written", [2.5, 0.1, 5, 0, float("nan")])
def test_money_as_a_number_is_refused_with_the_remedy_to_quote_it(written: float) -> None:
    with pytest.raises(AmountInvalid, match="Write it in quotes"):
        nanousd(written)


@pytest.mark.parametrize(
    "written",
    ["", "-1", "+1", "1e3", "1_000", "$5", "2,50", ".5", "5.", " 5", "5\n", "1.0000000001", "٣", "NaN", None, True, [],
     Decimal(-1), Decimal("NaN"), "9" * 11, "9999999999"],
)  # fmt: skip
def test_text_that_is_not_an_amount_of_money_is_refused(written: Any) -> None:
    with pytest.raises(AmountInvalid):
        nanousd(written)


@pytest.mark.parametrize("written", [-1, 0.0001, float("inf"), float("nan"), True, "1", None, 2**63])
def test_what_is_not_whole_milliseconds_is_refused(written: Any) -> None:
    with pytest.raises(AmountInvalid):
        milliseconds(written)


@pytest.mark.parametrize(("written", "amount"), [(1, 1000), (0.1, 100), (1.001, 1001), (0, 0)])
def test_seconds_are_counted_in_milliseconds(written: float, amount: int) -> None:
    assert milliseconds(written) == amount


@pytest.mark.parametrize("written", [-1, 1.0, True, "1", None, 2**63])
def test_what_is_not_a_whole_number_is_no_count(written: Any) -> None:
    with pytest.raises(AmountInvalid):
        count(written)


def test_a_count_is_a_whole_number_up_to_what_a_column_holds() -> None:
    assert [count(0), count(800), count(AMOUNT_MAX)] == [0, 800, AMOUNT_MAX]
