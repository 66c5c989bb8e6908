"""Prices: integers of nano-USD, rounded up; what has no price has no cost, and never one of zero."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from tallystick.adapters.price_files import prices_of
from tallystick.adapters.prices import PriceTable, read_prices
from tallystick.adapters.usage_shapes import broken_off, normalise
from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.runner.protocols import USAGE_MAX, Usage
from tallystick.runner.token_classes import TokenClass

DAY = dt.date(2026, 11, 20)
SMALL = {"input": "0.15", "output": "0.60", "cache_read": "0.075"}


def prices(**models: Any) -> PriceTable:
    return read_prices({"as_of": "2026-11-01", "models": models}, place="prices.toml")


def used(tokens_in: int = 0, tokens_out: int = 0, **others: int) -> Usage:
    classes = {TokenClass.INPUT: tokens_in, TokenClass.OUTPUT: tokens_out}
    classes |= {TokenClass(name): count for name, count in others.items()}
    return Usage(
        sum(count for one, count in classes.items() if not one.is_out),
        sum(count for one, count in classes.items() if one.is_out),
        classes=classes,
    )


def test_each_class_has_its_price_and_the_sum_is_in_nanousd() -> None:
    table = prices(small=SMALL)
    assert table.cost("small", used(1_000_000), on=DAY) == 150_000_000
    assert table.cost("small", used(tokens_out=1_000_000), on=DAY) == 600_000_000
    assert table.cost("small", used(600, 10, cache_read=400), on=DAY) == 600 * 150 + 400 * 75 + 10 * 600


def test_a_cost_is_rounded_up_once_for_the_whole_dispatch() -> None:
    table = prices(tiny={"input": "0.0001", "output": "0.0001"})
    assert table.cost("tiny", used(1), on=DAY) == 1
    assert table.cost("tiny", used(5, 5), on=DAY) == 1
    assert table.cost("tiny", used(5, 6), on=DAY) == 2


def test_c20_a_model_without_a_price_costs_an_unknown_amount_and_a_price_of_zero_is_one() -> None:
    table = prices(free={"input": "0", "output": "0"})
    assert table.cost("free", used(5, 5), on=DAY) == 0
    assert table.cost("gpt-none", used(5, 5), on=DAY) is None
    assert table.cost_or_why("gpt-none", used(5, 5)) == 'the model "gpt-none" has no prices'
    assert table.cost(None, used(5, 5), on=DAY) is None


def test_a_class_that_was_used_and_has_no_price_costs_an_unknown_amount() -> None:
    table = prices(small=SMALL)
    assert table.cost("small", used(1, 1, cache_write=0), on=DAY) == 750
    assert table.cost_or_why("small", used(1, 1, cache_write=3)) == "3 tokens are cache_write, which has no price"


def test_reasoning_costs_what_output_costs_unless_it_has_a_price() -> None:
    assert prices(small=SMALL).cost("small", used(reasoning=10), on=DAY) == 6000
    assert prices(small={**SMALL, "reasoning": "1"}).cost("small", used(reasoning=10), on=DAY) == 10_000


@pytest.mark.parametrize("usage", [
    None, Usage(), Usage(5), Usage(None, 5), Usage(5, 5), attrs.evolve(used(1, 1), tokens_in=2),
    attrs.evolve(used(1, 1), besides=("server_tool_use.web_search_requests",)), used(USAGE_MAX, USAGE_MAX),
])  # fmt: skip
def test_what_is_not_whole_costs_an_unknown_amount(usage: Usage | None) -> None:
    dear = prices(small={"input": "1000", "output": "1000"})
    assert dear.cost("small", usage, on=DAY) is None


def test_aliases_are_the_same_model() -> None:
    table = prices(small={**SMALL, "aliases": ["small-2026-01-01"]})
    assert table.cost("small-2026-01-01", used(10), on=DAY) == table.cost("small", used(10), on=DAY) == 1500
    assert table.models() == ["small", "small-2026-01-01"]


def test_prices_are_those_of_the_day() -> None:
    table = prices(small=[{**SMALL, "from": "2026-01-01"}, {"input": "1", "output": "1", "from": "2026-12-01"}])
    assert table.cost("small", used(100), on=dt.date(2026, 11, 30)) == 15_000
    assert table.cost("small", used(100), on=dt.date(2026, 12, 1)) == 100_000
    assert table.cost_or_why("small", used(100), on=dt.date(2025, 12, 31)) == "the model has no prices on 2025-12-31"


def test_prices_may_depend_on_the_size_of_a_request() -> None:
    table = prices(long=[{"input": "1", "output": "2", "tokens_in_max": 100}, {"input": "3", "output": "4"}])
    assert table.cost("long", used(100, 1), on=DAY) == 102_000
    assert table.cost("long", used(101, 1), on=DAY) == 307_000
    short = prices(long={"input": "1", "output": "2", "tokens_in_max": 100})
    assert short.cost_or_why("long", used(101), on=DAY) == "the model has no prices for a request of 101 tokens"


def test_priced_usage_says_why_its_cost_is_unknown_and_keeps_one_that_was_reported() -> None:
    table = prices(small=SMALL)
    priced = table.priced(used(10, 1), "small", on=DAY)
    assert priced is not None
    assert priced.cost_nanousd == 2100
    unpriced = table.priced(used(10, 1), "large", on=DAY)
    assert unpriced is not None
    assert unpriced.cost_nanousd is None
    assert unpriced.problems == ('the cost is unknown: the model "large" has no prices',)
    reported = attrs.evolve(used(10, 1), cost_nanousd=5)
    assert table.priced(reported, "small", on=DAY) is reported
    assert table.priced(None, "small", on=DAY) is None


def test_what_a_stream_that_broke_off_had_told_has_a_cost_as_a_lower_bound() -> None:
    usage = broken_off(normalise({"prompt_tokens": 10, "completion_tokens": 2}))
    priced = prices(small=SMALL).priced(usage, "small", on=DAY)
    assert priced is not None
    assert priced.seen is not None
    assert (priced.cost_nanousd, priced.seen.cost_nanousd) == (None, 2700)


def test_a_bound_is_of_the_dearest_class_of_each_side() -> None:
    table = prices(small={**SMALL, "cache_write": "0.2"})
    bound = table.bound("small", tokens_in_max=1000, tokens_out_max=100, on=DAY)
    assert (bound.tokens_in, bound.tokens_out, bound.tokens, bound.nanousd) == (1000, 100, 1100, 260_000)


def test_a_bound_holds_for_prices_that_come_and_for_smaller_requests() -> None:
    later = prices(small=[SMALL, {"input": "1", "output": "1", "from": "2026-12-01"}])
    assert later.bound("small", tokens_in_max=10, tokens_out_max=0, on=DAY).nanousd == 10_000
    odd = prices(small=[{"input": "9", "output": "0", "tokens_in_max": 5}, {"input": "1", "output": "0"}])
    assert odd.bound("small", tokens_in_max=10, tokens_out_max=0, on=DAY).nanousd == 45_000


@pytest.mark.parametrize("models", [
    {}, {"other": SMALL}, {"small": {"input": "1"}}, {"small": {**SMALL, "tokens_in_max": 9}},
    {"small": {**SMALL, "from": "2027-01-01"}}, {"small": {"cache_read": "0.1", "output": "1"}},
])  # fmt: skip
def test_a_bound_without_its_prices_has_no_money(models: dict[str, Any]) -> None:
    bound = prices(**models).bound("small", tokens_in_max=10, tokens_out_max=1, on=DAY)
    assert bound.tokens == 11
    assert bound.nanousd is None or models.get("small", {}).get("from")


def test_the_digest_names_the_prices_and_not_their_file() -> None:
    assert prices(small=SMALL).digest == prices(small=dict(reversed(SMALL.items()))).digest
    assert prices(small=SMALL).digest != prices(small={**SMALL, "input": "0.16"}).digest


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"models": {}}, "prices.as_of: this key is missing"),
        ({"as_of": "May 2026", "models": {}}, "as_of"),
        ({"as_of": "2026-02-30", "models": {}}, "as_of"),
        ({"as_of": "2026-11-01", "currency": "EUR", "models": {}}, "prices.currency"),
        ({"as_of": "2026-11-01", "models": {"m": {"input": 0.15, "output": "1"}}}, 'in quotes: "0.15"'),
        ({"as_of": "2026-11-01", "models": {"m": {"input": True}}}, '"0.15", not "True"'),
        ({"as_of": "2026-11-01", "models": {"m": {"input": "-1", "output": "1"}}}, "0.15"),
        ({"as_of": "2026-11-01", "models": {"m": {"input": "1e3"}}}, "0.15"),
        ({"as_of": "2026-11-01", "models": {"m": {"input": "free"}}}, "0.15"),
        ({"as_of": "2026-11-01", "models": {"m": {"inptu": "1"}}}, 'Did you mean "input"?'),
        ({"as_of": "2026-11-01", "models": {"m": {}}}, "no class of tokens has a price"),
        ({"as_of": "2026-11-01", "models": {"m": []}}, "there are no prices"),
        ({"as_of": "2026-11-01", "models": {"m": [SMALL, SMALL]}}, "two entries"),
        ({"as_of": "2026-11-01", "models": {"m": SMALL, "n": {**SMALL, "aliases": ["m"]}}}, "has prices already"),
        ({"as_of": "2026-11-01", "models": {"m": {**SMALL, "from": "soon"}}}, "a day is text"),
    ],
)
def test_what_is_wrong_with_prices_is_told_in_one_line(table: dict[str, Any], told: str) -> None:
    with pytest.raises(WorkOrderInvalid) as found:
        read_prices(table, place="prices")
    assert told in str(found.value)
    assert "\n" not in str(found.value)


def test_the_price_file_that_the_how_to_shows_can_be_read(tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "price-a-run.md"
    (shown,) = re.findall(r"```text\n(# prices\.toml.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "prices.toml").write_text(shown, encoding="utf-8")
    table = prices_of("prices.toml", folder=tmp_path, place="prices")
    assert table.models() == ["large", "small", "small-2026-08-06"]
    assert table.cost("large", used(200_001), on=DAY) == 500_002_500
    assert table.cost("large", used(200_001), on=dt.date(2027, 1, 1)) == 200_001_000


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("prices.toml", "as_of = ", "is not readable as TOML"),
        ("prices.json", "{", "is not readable as JSON"),
        ("prices.json", "[]", "it is no table"),
        ("prices.toml", 'as_of = "2026-11-01"\n[models.m]\ninput = 0.5\n', 'write it in quotes: "0.5"'),
    ],
)
def test_a_price_file_with_a_fault_is_refused_in_one_line(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(WorkOrderInvalid) as found:
        prices_of(name, folder=tmp_path, place="order.toml: prices")
    assert told in str(found.value)
    assert name in str(found.value)
    assert "\n" not in str(found.value)


def test_a_day_of_toml_is_a_day(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('as_of = 2026-11-01\n[models.m]\ninput = "1"\n', encoding="utf-8")
    assert prices_of("p.toml", folder=tmp_path, place="prices").as_of == "2026-11-01"
