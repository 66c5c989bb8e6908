"""What a service reports as used: the shapes of vendors, in bodies and streams, whole or broken off, and its cost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.runner.protocols import Outcome, Usage

from .http_makers import ANSWERED, FAILED, UNKNOWN, ask, make
from .makers import Service

PRICES = {"as_of": "2026-11-01", "models": {"m-1": {"input": "1", "output": "2", "cache_read": "0.5"}}}
TEXT = {"text": "$.delta.text", "end_event": "message_stop"}


def event(name: str, document: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(document)}\n\n"


BEGUN = event("message_start", {"message": {"usage": {"input_tokens": 20, "cache_read_input_tokens": 5,
                                                      "output_tokens": 1}}})  # fmt: skip
PIECE = event("content_block_delta", {"delta": {"text": "Hello"}})
ENDED = event("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}})
STOP = event("message_stop", {})


def body(service: Service, document: Any, *, status: int = 200, **options: Any) -> Usage | None:
    behave = {"status": status, "body": document}
    return ask(service, behave, **{"answer": "$.a", "model": "m-1", "prices": PRICES, **options}).usage


def stream(service: Service, *chunks: str, cut: bool = False, **options: Any) -> Outcome:
    behave = {"chunks": [*chunks], "cut": cut, "headers": {"Content-Type": "text/event-stream"}}
    told = {"answer": None, "events": TEXT, "usage": {"shape": "anthropic"}, "model": "m-1", "prices": PRICES}
    return ask(service, behave, **{**told, **options})


def test_a_body_in_a_named_shape_has_its_cost(service: Service) -> None:
    told = {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}
    usage = body(service, {"a": 1, "usage": told}, usage={"shape": "openai"})
    assert usage is not None
    assert (usage.tokens_in, usage.tokens_out, usage.cost_nanousd) == (10, 4, 8000 + 1000 + 8000)
    assert usage.raw == told


@pytest.mark.parametrize("told", [None, {}, 5, "12", {"prompt_tokens": "9", "completion_tokens": 10**30}])
def test_e08b_c21_absurd_usage_is_unknown_and_so_is_its_cost(service: Service, told: Any) -> None:
    usage = body(service, {"a": 1, "usage": told}, usage={"shape": "openai"})
    assert usage is None or (usage.tokens_in, usage.tokens_out, usage.cost_nanousd) == (None, None, None)
    assert usage is None or usage.problems


def test_c20_a_model_that_has_no_price_costs_an_unknown_amount_and_the_counts_are_kept(service: Service) -> None:
    told = {"prompt_tokens": 10, "completion_tokens": 4}
    usage = body(service, {"a": 1, "usage": told}, usage={"shape": "auto"}, model="m-2")
    assert usage is not None
    assert (usage.tokens_in, usage.tokens_out, usage.cost_nanousd) == (10, 4, None)
    assert usage.problems == ('the cost is unknown: the model "m-2" has no prices',)


def test_a_cost_that_the_service_says_itself_is_kept(service: Service) -> None:
    told = {"prompt_tokens": 10, "completion_tokens": 4, "cost": 0.25}
    usage = body(service, {"a": 1, "usage": told}, usage={"shape": "openai", "cost_usd": "$.usage.cost"})
    assert usage is not None
    assert usage.cost_nanousd == 250_000_000


def test_usage_in_the_body_of_an_error_has_its_cost(service: Service) -> None:
    told = {"prompt_tokens": 10, "completion_tokens": 0}
    usage = body(service, {"usage": told}, status=400, usage={"shape": "openai"})
    assert usage is not None
    assert usage.cost_nanousd == 10_000


def test_a_stream_that_tells_its_usage_piece_by_piece_is_read_whole(service: Service) -> None:
    outcome = stream(service, BEGUN, PIECE, ENDED, STOP)
    assert (outcome.state, outcome.answer) == (ANSWERED, "Hello")
    assert outcome.usage is not None
    assert (outcome.usage.tokens_in, outcome.usage.tokens_out) == (25, 7)
    assert outcome.usage.cost_nanousd == 20_000 + 2_500 + 14_000


@pytest.mark.parametrize("cut", [False, True], ids=["closed well", "connection cut"])
def test_of_a_stream_that_broke_off_what_went_in_is_known_and_the_rest_is_a_lower_bound(
    service: Service, cut: bool
) -> None:
    outcome = stream(service, BEGUN, PIECE, cut=cut)
    assert outcome.state is UNKNOWN
    usage = outcome.usage
    assert usage is not None
    assert usage.seen is not None
    assert (usage.tokens_in, usage.tokens_out, usage.cost_nanousd) == (25, None, None)
    assert (usage.seen.tokens_out, usage.seen.cost_nanousd) == (1, 20_000 + 2_500 + 2_000)


def test_a_stream_that_broke_off_before_any_usage_says_nothing_of_it(service: Service) -> None:
    assert stream(service, PIECE, cut=True).usage is None


def test_an_error_inside_a_stream_leaves_what_came_out_a_lower_bound(service: Service) -> None:
    outcome = stream(service, BEGUN, PIECE, event("error", {"type": "overloaded"}), STOP)
    assert outcome.state is FAILED
    assert outcome.usage is not None
    assert outcome.usage.seen is not None
    assert (outcome.usage.tokens_in, outcome.usage.tokens_out) == (25, None)


def test_what_is_declared_bounds_each_request() -> None:
    bare = make("http://127.0.0.1:1/", tokens_in_max=100)
    assert dict(bare._bounds()) == {"tokens_in": 100}
    assert bare.bounded_units == {"tokens_in"}
    whole = make("http://127.0.0.1:1/", tokens_in_max=100, tokens_out_max=10, model="m-1", prices=PRICES)
    assert dict(whole._bounds()) == {"tokens_in": 100, "tokens_out": 10, "tokens": 110, "nanousd": 120_000}
    unpriced = make("http://127.0.0.1:1/", tokens_in_max=100, tokens_out_max=10, model="m-2", prices=PRICES)
    assert "nanousd" not in unpriced.bounded_units


def test_prices_and_bounds_are_no_part_of_what_an_answer_depends_on() -> None:
    url = "http://127.0.0.1:1/"
    told = make(url, tokens_in_max=100, tokens_out_max=10, model="m-1", prices=PRICES)
    assert told.identity() == make(url).identity()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"usage": {"shape": "openia"}}, "openia"),
        ({"usage": {"shape": "openai", "tokens_in": "$.a"}}, "shape and the paths of tokens both say"),
        ({"usage": {}}, "Name a shape, or tokens_in"),
        ({"prices": "missing.toml"}, "the price file missing.toml cannot be read"),
        ({"prices": {"models": {}}}, "as_of"),
    ],
)
def test_what_is_wrong_with_usage_or_prices_is_told_in_one_line(options: dict[str, Any], told: str) -> None:
    with pytest.raises(WorkOrderInvalid) as found:
        make("http://127.0.0.1:1/", **options)
    assert told in str(found.value)
    assert "\n" not in str(found.value)
