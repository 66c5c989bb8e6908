"""Usage of vendors, read into disjoint classes: what is missing or contradicts itself stays unknown, with a problem."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.adapters.usage_shapes import UsageShape, broken_off, later_usage, normalise, usage_object
from tallystick.ledger.canonical import JsonValue
from tallystick.runner.protocols import MISSING, USAGE_MAX, Usage
from tallystick.runner.token_classes import TOKENS_IN, TOKENS_OUT, TokenClass, known_classes

CHAT: dict[str, Any] = {
    "prompt_tokens": 100,
    "completion_tokens": 50,
    "total_tokens": 150,
    "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 30, "audio_tokens": 0, "accepted_prediction_tokens": 3},
}
RESPONSES: dict[str, Any] = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 64},
    "output_tokens": 50,
    "output_tokens_details": {"reasoning_tokens": 30},
    "total_tokens": 150,
}
MESSAGES: dict[str, Any] = {
    "input_tokens": 20,
    "cache_read_input_tokens": 64,
    "cache_creation_input_tokens": 16,
    "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 6},
    "output_tokens": 50,
    "service_tier": "standard",
}
SHAPES = {UsageShape.OPENAI: CHAT, UsageShape.OPENAI_RESPONSES: RESPONSES, UsageShape.ANTHROPIC: MESSAGES}


def read(raw: JsonValue, shape: UsageShape = UsageShape.AUTO) -> Usage:
    usage = normalise(raw, shape)
    assert usage is not None
    return usage


def classes(usage: Usage) -> dict[str, int]:
    return {one.value: count for one, count in usage.classes.items() if count}


@pytest.mark.parametrize("raw", [CHAT, RESPONSES])
def test_details_of_openai_are_parts_of_their_total(raw: dict[str, Any]) -> None:
    usage = read(raw)
    assert (usage.tokens_in, usage.tokens_out, usage.problems) == (100, 50, ())
    assert classes(usage) == {"input": 36, "cache_read": 64, "output": 20, "reasoning": 30}
    assert usage.raw == raw


def test_counts_of_a_cache_stand_beside_the_input_of_anthropic() -> None:
    usage = read(MESSAGES)
    assert (usage.tokens_in, usage.tokens_out, usage.problems) == (100, 50, ())
    told = {"input": 20, "cache_read": 64, "cache_write": 10, "cache_write_long": 6, "output": 50}
    assert classes(usage) == told


def test_a_cache_write_without_its_duration_is_one_of_minutes() -> None:
    raw = {key: value for key, value in MESSAGES.items() if key != "cache_creation"}
    assert classes(read(raw))["cache_write"] == 16


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_is_told_by_its_keys_or_named(shape: UsageShape) -> None:
    assert read(SHAPES[shape]) == read(SHAPES[shape], shape)


def test_the_plain_shape_has_two_counts() -> None:
    usage = read({"tokens_in": 3, "tokens_out": 4, "cost_usd": "0.01"})
    assert (usage.tokens_in, usage.tokens_out, usage.cost_nanousd) == (3, 4, 10_000_000)
    assert classes(usage) == {"input": 3, "output": 4}


def test_input_and_output_alone_are_the_same_in_either_shape() -> None:
    raw = {"input_tokens": 7, "output_tokens": 2}
    assert classes(read(raw)) == classes(read(raw, UsageShape.OPENAI_RESPONSES)) == {"input": 7, "output": 2}


def test_keys_of_two_shapes_are_not_guessed_at() -> None:
    usage = read({**CHAT, "tokens_in": 1})
    assert (usage.tokens_in, usage.tokens_out, usage.classes) == (None, None, {})
    assert usage.problems == ("usage can be read as plain and as openai; say its shape",)
    assert read({**CHAT, "tokens_in": 1}, UsageShape.OPENAI).tokens_in == 100


@pytest.mark.parametrize("raw", [None, 5, "12", True, [], {}, {"tokens": 4}, {"a": {"prompt_tokens": 1}}])
def test_what_is_no_usage_is_kept_and_nothing_of_it_is_known(raw: JsonValue) -> None:
    usage = read(raw)
    assert (usage.tokens_in, usage.tokens_out, usage.cost_nanousd, usage.classes) == (None, None, None, {})
    assert usage.problems
    assert usage.raw == raw


def test_no_usage_at_all_is_none() -> None:
    assert normalise(MISSING) is None


TOTALS = {
    UsageShape.OPENAI: ("prompt_tokens", "completion_tokens"),
    UsageShape.OPENAI_RESPONSES: ("input_tokens", "output_tokens"),
    UsageShape.ANTHROPIC: ("input_tokens", "output_tokens"),
    UsageShape.PLAIN: ("tokens_in", "tokens_out"),
}
ODD: list[JsonValue] = [None, "12", 1.5, -5, 10**30, True, {}, [3], {"count": 3}, USAGE_MAX + 1]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("shape", TOTALS)
@pytest.mark.parametrize("side", [0, 1])
def test_c21_a_total_that_is_no_count_is_unknown_and_the_other_side_is_known(
    shape: UsageShape, side: int, odd: JsonValue
) -> None:
    raw: dict[str, JsonValue] = {**dict.fromkeys(TOTALS[shape], 9), TOTALS[shape][side]: odd}
    usage = read(raw, shape)
    known = (usage.tokens_in, usage.tokens_out)
    assert known == ((None, 9) if side == 0 else (9, None))
    assert usage.raw == raw
    assert usage.problems or (odd is None and shape is UsageShape.PLAIN)
    if shape is not UsageShape.PLAIN:
        missing = {key: count for key, count in raw.items() if key != TOTALS[shape][side]}
        assert f"{TOTALS[shape][side]} is missing" in read(missing, shape).problems


def test_c21_a_whole_float_is_a_count_and_a_missing_detail_is_no_problem() -> None:
    usage = read({"prompt_tokens": 12.0, "completion_tokens": 0, "prompt_tokens_details": None})
    assert (usage.tokens_in, usage.tokens_out, usage.problems) == (12, 0, ())
    assert usage.classes == {TokenClass.INPUT: 12, TokenClass.OUTPUT: 0}


DETAILS = {
    UsageShape.OPENAI: ("prompt_tokens_details", "cached_tokens"),
    UsageShape.OPENAI_RESPONSES: ("input_tokens_details", "cached_tokens"),
    UsageShape.ANTHROPIC: ("cache_creation", "ephemeral_5m_input_tokens"),
}


@pytest.mark.parametrize("odd", ["12", 1.5, -5, True, {}, [3]])
@pytest.mark.parametrize("is_nested", [True, False])
@pytest.mark.parametrize("shape", DETAILS)
def test_c21_an_unfit_detail_leaves_its_side_undivided(shape: UsageShape, is_nested: bool, odd: JsonValue) -> None:
    outer, inner = DETAILS[shape]
    if odd == {} and not is_nested:
        odd = 3
    usage = read({**SHAPES[shape], outer: {inner: odd} if is_nested else odd}, shape)
    assert usage.tokens_in == 100
    assert not {*TOKENS_IN} & usage.classes.keys()
    assert known_classes(usage.classes, TOKENS_OUT, 50)
    assert any(outer in problem for problem in usage.problems)


@pytest.mark.parametrize("shape", [UsageShape.OPENAI, UsageShape.OPENAI_RESPONSES])
def test_more_cached_than_went_in_is_not_believed(shape: UsageShape) -> None:
    outer, inner = DETAILS[shape]
    usage = read({**SHAPES[shape], outer: {inner: 101}}, shape)
    assert (usage.tokens_in, usage.tokens_out) == (None, 50)
    assert "101 of them are cache_read" in usage.problems[0]


def test_parts_that_are_more_than_their_total_together_are_not_believed() -> None:
    details = {"reasoning_tokens": 30, "audio_tokens": 30}
    usage = read({**CHAT, "completion_tokens_details": details})
    assert (usage.tokens_in, usage.tokens_out) == (100, None)
    assert usage.problems == ("completion_tokens is 50, and its parts are 60",)


def test_a_total_that_is_not_the_sum_leaves_both_sides_unknown() -> None:
    usage = read({**CHAT, "total_tokens": 151})
    assert (usage.tokens_in, usage.tokens_out, usage.classes) == (None, None, {})
    assert usage.problems == ("total_tokens is 151, and prompt_tokens and completion_tokens are 100 and 50",)


def test_reasoning_that_is_counted_beside_the_output_is_part_of_what_came_out() -> None:
    usage = read({**CHAT, "total_tokens": 180})
    assert (usage.tokens_in, usage.tokens_out, usage.problems) == (100, 80, ())
    assert classes(usage)["output"] == 50


def test_audio_that_may_have_been_cached_cannot_be_told_apart() -> None:
    usage = read({**CHAT, "prompt_tokens_details": {"cached_tokens": 10, "audio_tokens": 10}})
    assert usage.tokens_in == 100
    assert TokenClass.INPUT not in usage.classes
    assert usage.problems == ("prompt_tokens_details: how much of the audio was cached is not told",)


def test_a_cache_write_that_contradicts_its_parts_leaves_the_side_undivided() -> None:
    usage = read({**MESSAGES, "cache_creation_input_tokens": 17})
    assert usage.tokens_in == 101
    assert TokenClass.INPUT not in usage.classes
    assert "cache_creation says 10 and 6" in usage.problems[0]


@pytest.mark.parametrize("told", [{"web_search_requests": 2}, {"web_search_requests": "2"}, 5])
def test_tools_of_the_vendor_are_named_besides(told: JsonValue) -> None:
    assert read({**MESSAGES, "server_tool_use": told}).besides
    assert not read({**MESSAGES, "server_tool_use": {"web_search_requests": 0}}).besides


@pytest.mark.parametrize(
    "document",
    [
        {"usage": MESSAGES},
        {"type": "message_start", "message": {"id": "m", "usage": MESSAGES}},
        {"type": "response.completed", "response": {"usage": MESSAGES}},
        {"usage": None, "response": {"usage": MESSAGES}},
    ],
)
def test_the_usage_of_a_body_or_an_event_is_found(document: JsonValue) -> None:
    assert usage_object(document) == MESSAGES


@pytest.mark.parametrize("document", [None, 5, [], {}, {"usage": None}, {"message": "text"}, {"response": []}])
def test_where_there_is_no_usage_none_is_found(document: JsonValue) -> None:
    assert usage_object(document) is MISSING


def test_a_stream_that_tells_piece_by_piece_counts_each_as_it_was_told_last() -> None:
    begun = {**MESSAGES, "output_tokens": 1}
    ended = {"output_tokens": 50, "cache_read_input_tokens": None}
    merged = normalise(later_usage(begun, ended))
    assert merged == read(MESSAGES)
    assert later_usage(MISSING, CHAT) == CHAT
    assert later_usage(CHAT, None) == CHAT


def test_of_a_stream_that_broke_off_what_came_out_is_a_lower_bound() -> None:
    usage = broken_off(read({**MESSAGES, "output_tokens": 1}))
    assert usage is not None
    assert usage.seen is not None
    assert (usage.tokens_in, usage.tokens_out) == (100, None)
    assert (usage.seen.tokens_in, usage.seen.tokens_out) == (100, 1)
    assert not known_classes(usage.classes, TOKENS_OUT, usage.tokens_out)
    assert broken_off(usage) is usage
    assert broken_off(None) is None
