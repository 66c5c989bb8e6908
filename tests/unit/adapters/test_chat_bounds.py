"""What a chat request can use at most, and what its reply has cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tallystick._wiring import ADAPTERS
from tallystick.adapters.chat_target import ChatTarget, from_work_order
from tallystick.adapters.price_files import prices_of
from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.runner.descriptions import describe
from tallystick.runner.protocols import Case
from tallystick.runner.work_order import WorkOrder

from .makers import Service, make_case, make_slot, run_case

PRICES = {"as_of": "2026-11-01", "models": {"small": {"input": "1", "output": "4", "cache_read": "0.1"}}}
IMAGE = [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]


def make(url: str = "http://127.0.0.1:1/v1/chat/completions", *, folder: Path = Path(), **options: Any) -> ChatTarget:
    return from_work_order({"url": url, "model": "small", **options}, folder=folder, place="target")


def bounds(case: Case | None = None, **options: Any) -> tuple[int, Mapping[str, int]]:
    target = make(**options)
    prepared = target.prepare(make_slot(case))
    return len(prepared.payload), target.bounds_of(prepared)


def test_a_request_is_at_most_as_many_tokens_as_bytes_and_a_reply_as_many_as_are_asked_for() -> None:
    size, found = bounds(max_tokens=40, prices=PRICES)
    assert found == {"tokens_in": size, "tokens_out": 40, "tokens": size + 40, "nanousd": size * 1000 + 40 * 4000}


def test_what_is_not_bounded_is_not_told() -> None:
    size, found = bounds(prices=PRICES)
    assert found == {"tokens_in": size}
    size, found = bounds(max_completion_tokens=40)
    assert found == {"tokens_in": size, "tokens_out": 40, "tokens": size + 40}
    assert bounds(max_tokens=40, message=IMAGE)[1] == {}


def test_declared_bound_of_what_goes_in_counts_for_images_and_where_it_is_lower() -> None:
    assert bounds(tokens_in_max=2000, max_tokens=1, message=IMAGE)[1]["tokens_in"] == 2000
    size, found = bounds(tokens_in_max=2000)
    assert found == {"tokens_in": size}
    assert bounds(make_case("x" * 9000), tokens_in_max=2000)[1] == {"tokens_in": 2000}


@pytest.mark.parametrize(
    ("options", "units"),
    [
        ({}, {"tokens_in"}),
        ({"max_tokens": 4}, {"tokens_in", "tokens_out", "tokens"}),
        ({"max_tokens": 4, "prices": PRICES}, {"tokens_in", "tokens_out", "tokens", "nanousd"}),
        ({"max_tokens": 4, "prices": PRICES, "model": "unpriced"}, {"tokens_in", "tokens_out", "tokens"}),
    ],
    ids=["nothing", "a bound of the reply", "prices", "a model without a price"],
)
def test_c20_units_that_it_can_tell_are_known_before_any_request(options: dict[str, Any], units: set[str]) -> None:
    assert make(**options).bounded_units == units


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"prices": PRICES}, "max_tokens is missing, and nothing else bounds a reply"),
        ({"max_tokens": 4}, 'it has no prices (write `prices = "FILE"`)'),
        (
            {"max_tokens": 4, "prices": PRICES, "model": "unpriced"},
            'the model "unpriced" has no price (write [models."unpriced"] in its price file)',
        ),
    ],
)
def test_c20_what_is_missing_for_a_hard_budget_of_money_is_said(options: dict[str, Any], why: str) -> None:
    order = WorkOrder(
        "chat", cases=[{"id": "a", "input": "x"}], budgets={"usd": "1"},
        target={"kind": "chat", "url": "http://127.0.0.1:1/", "model": "small", **options},
    )  # fmt: skip
    with pytest.raises(WorkOrderInvalid) as caught:
        describe(order, ADAPTERS)
    assert f"and a chat target cannot tell it: {why}. Give bound_per_dispatch" in str(caught.value)


@pytest.mark.parametrize(
    ("budget", "options", "why"),
    [
        ("tokens_in", {}, "it has no tokens_in_max"),
        ("usd", {"tokens_in_max": 9}, "it has no tokens_out_max and no model and no prices"),
        (
            "usd",
            {"tokens_in_max": 9, "tokens_out_max": 9, "model": "unpriced", "prices": PRICES},
            'the model "unpriced" has no price (write [models."unpriced"] in its price file)',
        ),
    ],
)
def test_what_a_service_lacks_for_a_hard_budget_is_said(budget: str, options: dict[str, Any], why: str) -> None:
    target = {"kind": "http", "url": "http://127.0.0.1:1/", "json": {}, **options}
    limit = "1" if budget == "usd" else 1
    order = WorkOrder("service", cases=[{"id": "a", "input": "x"}], budgets={budget: limit}, target=target)
    with pytest.raises(WorkOrderInvalid) as caught:
        describe(order, ADAPTERS)
    assert f"and an http target cannot tell it: {why}. Give bound_per_dispatch" in str(caught.value)


@pytest.fixture
def url(tmp_path: Path) -> Any:
    service = Service.start(tmp_path, "chat_endpoint.py")
    yield f"{service.url}/v1/chat/completions"
    service.stop()


def test_reply_has_its_cost_by_class_and_an_unpriced_one_has_none(url: str) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
    case = make_case(json.dumps({"usage": usage}))
    priced = run_case(make(url, prices=PRICES), case)
    assert priced.usage is not None
    assert priced.usage.cost_nanousd == 6 * 1000 + 4 * 100 + 5 * 4000
    unpriced = run_case(make(url, prices=PRICES, model="large"), case)
    assert unpriced.usage is not None
    assert (unpriced.usage.tokens_in, unpriced.usage.cost_nanousd) == (10, None)
    assert run_case(make(url, prices=PRICES), make_case('{"usage": null}')).usage is None


def test_prompt_that_a_filter_turned_away_is_told_as_that(url: str) -> None:
    body = {"error": {"message": "the prompt is filtered", "code": "content_filter"}}
    outcome = run_case(make(url), make_case(json.dumps({"status": 400, "body": body})))
    assert (outcome.state, outcome.reason, outcome.status) == ("failed", "chat.content_filter", 400)


def test_key_goes_out_as_a_bearer_and_comes_back_nowhere(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("MODEL_KEY", "SK-CANARY-1")
    target = make(url, api_key={"env": "MODEL_KEY"})
    outcome = run_case(target, make_case("it said SK-CANARY-1"))
    assert outcome.answer == "it said ***"
    assert b"CANARY" not in (outcome.raw or b"")
    target.check()
    assert (b"Authorization", b"Bearer SK-CANARY-1") in target._secret_headers


def test_prices_are_read_from_a_file_beside_the_work_order(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(
        'as_of = "2026-11-01"\n[models.small]\ninput = "1"\noutput = "4"\n', encoding="utf-8"
    )
    (tmp_path / "prices.json").write_text(json.dumps(PRICES), encoding="utf-8")
    for name in ("prices.toml", "prices.json"):
        assert prices_of(name, folder=tmp_path, place="target.prices").models() == ["small"]
        assert "nanousd" in make(folder=tmp_path, prices=name, max_tokens=1).bounded_units


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "target.prices: the price file p.toml cannot be read"),
        ("{", "target.prices: the price file p.toml is not readable as TOML"),
        ("\xff", "target.prices: the price file p.toml is not readable as TOML"),
        ('as_of = "2026-11-01"\n[models.a]\ninput = 0.5\n', "target.prices (p.toml).models.a"),
        ("", "target.prices (p.toml).as_of: this key is missing"),
    ],
    ids=["missing", "no TOML", "no UTF-8", "a float", "no day"],
)
def test_fault_in_a_price_file_is_one_line_that_names_it(tmp_path: Path, text: str | None, told: str) -> None:
    if text is not None:
        (tmp_path / "p.toml").write_text(text, encoding="latin-1")
    with pytest.raises(WorkOrderInvalid) as caught:
        make(folder=tmp_path, prices="p.toml")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
