"""The prices of a work order: who gets them, where they are recorded, and that they change no run's identity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tallystick as ts
from tallystick._wiring import ADAPTERS
from tallystick.ledger.canonical import parse_json
from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.run_reads import find_run
from tallystick.runner.descriptions import Description, describe, run_plan, settings_of
from tallystick.runner.judge_orders import JudgeOrder
from tallystick.runner.sessions import stored_order
from tallystick.runner.work_order import WorkOrder, load_work_order

PRICES: dict[str, Any] = {"as_of": "2026-11-01", "models": {"m-1": {"input": "1", "output": "2"}}}
OTHER: dict[str, Any] = {"as_of": "2026-11-02", "models": {"m-1": {"input": "9", "output": "9"}}}
CASES: list[Any] = [{"id": "a", "input": 1}]


def target(**options: Any) -> dict[str, Any]:
    return {"kind": "http", "url": "http://127.0.0.1:1/", "json": {"a": 1}, "usage": {"shape": "openai"},
            "model": "m-1", **options}  # fmt: skip


def judge(**options: Any) -> dict[str, Any]:
    return {"kind": "llm", "name": "j", "url": "http://127.0.0.1:1/v1", "model": "m-1", "rubric": "x", **options}


def described(folder: Path | str = "", **options: Any) -> Description:
    given = {"cases": CASES, "target": target(), "prices": PRICES, "folder": folder, **options}
    return describe(WorkOrder("bot", **given), ADAPTERS)


def as_of(user: Any) -> str | None:
    return None if user.prices is None else user.prices.as_of


def test_targets_and_judges_without_prices_of_their_own_go_by_those_of_the_work_order() -> None:
    found = described(
        target=None, variants={"bare": target(), "own": target(prices=OTHER)}, judges=[judge(), judge(name="k")]
    )
    assert {name: as_of(one) for name, one in found.targets.items()} == {"bare": "2026-11-01", "own": "2026-11-02"}
    assert [as_of(one) for one in found.judges] == ["2026-11-01"] * 2
    assert [one.as_of for one in found.prices] == ["2026-11-01", "2026-11-02"]


@pytest.mark.parametrize("name", ["prices.toml", "prices.json"])
def test_a_price_file_is_read_beside_the_work_order_and_written_out_into_the_ledger(tmp_path: Path, name: str) -> None:
    toml = 'as_of = "2026-11-01"\n[models.m-1]\ninput = "1"\noutput = "2"\n'
    (tmp_path / name).write_text(json.dumps(PRICES) if name.endswith("json") else toml)
    found = described(tmp_path, prices=name)
    assert found.prices[0].file == name
    assert found.prices[0].digest == described().prices[0].digest
    kept = parse_json(run_plan(found).work_order)
    assert isinstance(kept, dict)
    (tmp_path / name).unlink()
    again = describe(WorkOrder.from_document(kept, cases=CASES), ADAPTERS)
    assert again.prices == found.prices


def test_prices_are_recorded_and_change_no_identity() -> None:
    one, other, none = described(), described(prices=OTHER), described(prices=None)
    assert one.digest == other.digest == none.digest
    limits = one.identity["limits"]
    assert isinstance(limits, dict)
    assert limits["prices"] == [{"as_of": "2026-11-01", "digest": one.prices[0].digest, "file": ""}]
    assert settings_of(one.order) != settings_of(other.order)


def test_prices_that_were_taken_out_of_a_work_order_stay_out_when_its_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    for prices in (PRICES, None):
        order = WorkOrder("n", cases=CASES, target=target(), prices=prices)
        ts.run(order, ledger=path, limit=0)
    with Ledger.open(path) as ledger, ledger.reading() as reader:
        assert stored_order(find_run(reader, "n"), folder=None).prices is None


def test_a_hard_budget_of_money_needs_no_bound_where_prices_and_tokens_tell_it() -> None:
    bounded = target(tokens_in_max=100, tokens_out_max=10)
    found = described(target=bounded, budgets={"usd": "1.00"})
    assert found.targets["default"].bounds_of(None)["nanousd"] == 120_000  # type: ignore[attr-defined]


def test_a_judge_under_it_needs_no_bound_either_where_its_reply_is_bounded() -> None:
    bounded = target(tokens_in_max=100, tokens_out_max=10)
    assert described(target=bounded, budgets={"usd": "1.00"}, judges=[judge(parameters={"max_tokens": 50})]).judges


@pytest.mark.parametrize("change", [{"prices": None}, {"target": target()}, {"judges": [judge()]}])
def test_e08b_a_hard_budget_of_money_whose_bound_is_not_known_is_refused_in_one_line(change: dict[str, Any]) -> None:
    bounded = target(tokens_in_max=100, tokens_out_max=10)
    with pytest.raises(WorkOrderInvalid) as found:
        described(**{"target": bounded, "budgets": {"usd": "1.00"}, **change})
    assert "a hard budget of usd needs the most that one dispatch can use" in str(found.value)
    assert "bound_per_dispatch" in str(found.value)
    assert "\n" not in str(found.value)


def test_a_work_order_file_may_hold_its_prices(tmp_path: Path) -> None:
    path = tmp_path / "order.toml"
    path.write_text(
        'version = 1\nname = "n"\n[cases]\nitems = [{id = "a", input = 1}]\n[target]\nkind = "http"\n'
        'url = "http://127.0.0.1:1/"\nmodel = "m-1"\n[prices]\nas_of = "2026-11-01"\n[prices.models."m-1"]\n'
        'input = "1"\noutput = "2"\n'
    )
    assert [one.as_of for one in describe(load_work_order(path), ADAPTERS).prices] == ["2026-11-01"]


@pytest.mark.parametrize(
    ("prices", "told"),
    [
        (5, "prices"),
        ("nowhere.toml", "the price file nowhere.toml cannot be read"),
        ({"models": {}}, "as_of: this key is missing"),
        ({"as_of": "2026-11-01", "models": {"m": {"input": 0.5}}}, 'write it in quotes: "0.5"'),
    ],
)
def test_what_is_wrong_with_prices_is_told_with_its_place(prices: Any, told: str) -> None:
    with pytest.raises(WorkOrderInvalid) as found:
        described(prices=prices)
    assert told in str(found.value)
    assert "\n" not in str(found.value)


def test_a_judge_work_order_has_prices_too() -> None:
    order = JudgeOrder("again", judges=[judge()], prices=PRICES)
    assert order.to_document()["prices"] == PRICES
