from __future__ import annotations

import json
from typing import Any

import pytest

from tallystick.adapters.chat_replies import ChatReplies
from tallystick.ledger.canonical import JsonValue
from tallystick.runner.protocols import MISSING, Outcome

from .http_makers import ANSWERED, FAILED, UNKNOWN

USAGE = {"prompt_tokens": 11, "completion_tokens": 5}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}


def replies(answer: str = "text", accept: tuple[str, ...] = ("length",), *, stream: bool = False) -> ChatReplies:
    return ChatReplies(answer, frozenset(accept), stream)


def completion(finish: Any = "stop", /, **message: Any) -> dict[str, Any]:
    told = {"role": "assistant", "content": "Hello", **message}
    choice = {"index": 0, "message": told, "finish_reason": finish}
    return {"id": "x", "model": "small-1", "choices": [choice], "usage": USAGE}


def read(document: Any, /, *options: Any, **more: Any) -> Outcome:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return replies(*options, **more).outcome(body, told="200")


def events(*pieces: Any, done: bool = True) -> bytes:
    told = [f"data: {piece if isinstance(piece, str) else json.dumps(piece)}\n\n" for piece in pieces]
    return "".join([*told, "data: [DONE]\n\n"] if done else told).encode()


def piece(finish: Any = None, index: int | None = 0, **delta: Any) -> dict[str, Any]:
    return {"model": "small-1", "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def test_whole_reply_is_answered_with_its_text_usage_and_model() -> None:
    outcome = read(completion())
    assert (outcome.state, outcome.answer, outcome.flags) == (ANSWERED, "Hello", ())
    assert outcome.evidence == {"model": "small-1", "finish_reason": "stop"}
    assert outcome.usage is not None
    assert (outcome.usage.tokens_in, outcome.usage.tokens_out, outcome.usage.raw) == (11, 5, USAGE)


def test_c36_tool_calls_without_text_are_an_answer_with_evidence() -> None:
    outcome = read(completion("tool_calls", content=None, tool_calls=[CALL]))
    assert (outcome.state, outcome.answer, outcome.flags) == (ANSWERED, None, ())
    assert outcome.evidence["tool_calls"] == [{"id": "c1", "name": "weather", "arguments": {"city": "Bern"}}]
    both = read(
        completion("stop", content="I look.", tool_calls=[CALL, {"function": {"name": "f", "arguments": "{x"}}])
    )
    assert both.answer == "I look."
    assert both.evidence["tool_calls"] == [
        {"id": "c1", "name": "weather", "arguments": {"city": "Bern"}},
        {"name": "f", "arguments": "{x"},
    ]
    old = read(completion("function_call", content=None, function_call=CALL["function"]))
    assert old.evidence["tool_calls"] == [{"name": "weather", "arguments": {"city": "Bern"}}]


@pytest.mark.parametrize(
    ("document", "reason", "flag"),
    [
        (completion("length"), "chat.length", "truncated"),
        (completion("content_filter"), "chat.content_filter", "filtered"),
        (completion("stop", content=None, refusal="I will not."), "chat.refusal", "refused"),
    ],
    ids=["length", "content_filter", "refusal"],
)
def test_c36_end_that_is_not_plain_is_told_apart_as_reason_or_as_flag(
    document: dict[str, Any], reason: str, flag: str
) -> None:
    refused = read(document, "text", ())
    assert (refused.state, refused.reason, refused.answer) == (FAILED, reason, MISSING)
    assert refused.usage is not None
    assert refused.usage.tokens_out == 5  # it was paid for
    accepted = read(document, "text", ("length", "content_filter", "refusal"))
    assert (accepted.state, accepted.flags) == (ANSWERED, (flag,))
    assert accepted.answer == ("I will not." if flag == "refused" else "Hello")


def test_c27_cut_reply_is_accepted_and_flagged_unless_it_is_told_otherwise_and_the_others_fail() -> None:
    assert read(completion("length")).flags == ("truncated",)
    assert read(completion("content_filter", content="")).reason == "chat.content_filter"
    refusal = read(completion("stop", content=None, refusal="I will not."))
    assert refusal.message == "200: the model refused: I will not."


def test_reply_that_was_cut_before_any_text_or_inside_its_json_is_cut_and_not_malformed() -> None:
    assert read(completion("length", content=None)).reason == "chat.length"
    assert read(completion("length", content='{"a": ')).answer == '{"a": '
    assert read(completion("length", content='{"a": '), "json").reason == "chat.length"
    assert read(completion("stop", content='{"a": '), "json").reason == "answer.not_json"


@pytest.mark.parametrize("finish", [None, "eos", 3, {}], ids=repr)
def test_whole_reply_whose_end_is_not_known_is_flagged(finish: JsonValue) -> None:
    outcome = read(completion(finish))
    assert (outcome.state, outcome.answer, outcome.flags) == (ANSWERED, "Hello", ("finish_unknown",))


@pytest.mark.parametrize(
    ("answer", "content", "found"),
    [
        ("text", "", ""),
        ("text", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ("json", "false", False),
        ("json", ' {"a": 1.0} ', {"a": 1.0}),
        ("message", "x", {"role": "assistant", "content": "x"}),
        ("message", None, {"role": "assistant", "content": None}),
    ],
    ids=repr,
)
def test_c36_answer_is_the_text_its_json_or_the_message(answer: str, content: Any, found: Any) -> None:
    outcome = read(completion(content=content), answer)
    assert (outcome.state, outcome.answer) == (ANSWERED, found)
    assert type(outcome.answer) is type(found)


@pytest.mark.parametrize(
    ("body", "reason", "told"),
    [
        (b"", "answer.missing", "200, no body"),
        (b"<html>sorry</html>", "answer.not_json", "200, not JSON: <html>"),
        (b"null", "answer.missing", "the reply has no choices"),
        (b'"text"', "answer.missing", "the reply has no choices"),
        ({"choices": []}, "answer.missing", "the reply has no choices"),
        ({"choices": None}, "answer.missing", "the reply has no choices"),
        ({"choices": [None]}, "answer.missing", "the reply has no choices"),
        ({"choices": [{}]}, "answer.missing", "the reply has no text"),
        (completion(content=None), "answer.missing", "the reply has no text"),
        (completion(content=7), "answer.missing", "the reply has no text"),
        ({"error": {"message": "overloaded", "code": 429}}, "body.error", "200: overloaded"),
        ({"error": "rate limit exceeded"}, "body.error", "200: rate limit exceeded"),
        ({**completion(), "error": {"a": 1}}, "body.error", '200: {"a":1}'),
        ({"choices": [{"error": {"message": "upstream"}}]}, "body.error", "200: upstream"),
        ({"error": {"message": "no", "code": "content_filter"}}, "chat.content_filter", "200: no"),
    ],
)
def test_c25_body_that_is_no_reply_has_failed_and_says_why(body: Any, reason: str, told: str) -> None:
    outcome = read(body)
    assert (outcome.state, outcome.reason, outcome.answer) == (FAILED, reason, MISSING)
    assert told in outcome.message


@pytest.mark.parametrize(
    "usage",
    [None, {}, "12", [], True, {"prompt_tokens": None}, {"prompt_tokens": "12"}, {"prompt_tokens": -5}],
    ids=repr,
)
def test_c21_odd_usage_costs_no_answer_and_is_never_zero(usage: Any) -> None:
    outcome = read({**completion(), "usage": usage})
    assert outcome.answer == "Hello"
    assert outcome.usage is None or (outcome.usage.tokens_in, outcome.usage.tokens_out) == (None, None)
    if usage is not None:
        assert outcome.usage is not None
        assert outcome.usage.raw == usage


# Streams.


def test_pieces_of_a_stream_are_one_reply() -> None:
    body = events(
        piece(role="assistant", content=""), piece(content="Hel"), piece(content="lo"), piece("stop"),
        {"choices": [], "usage": USAGE},
    )  # fmt: skip
    streamed, whole = read(body, stream=True), read(completion())
    assert (streamed.state, streamed.answer, streamed.evidence) == (ANSWERED, whole.answer, whole.evidence)
    assert streamed.usage == whole.usage


def test_tool_calls_that_come_in_pieces_are_put_together() -> None:
    def call(index: int, **more: Any) -> dict[str, Any]:
        return {"index": index, **more}

    body = events(
        piece(tool_calls=[call(0, id="c1", type="function", function={"name": "weather", "arguments": ""})]),
        piece(tool_calls=[call(0, function={"arguments": '{"city": "B'})]),
        piece(tool_calls=[call(1, id="c2", type="function", function={"name": "time", "arguments": "{}"})]),
        piece(tool_calls=[call(0, function={"arguments": 'ern"}'})]),
        piece("tool_calls"),
    )
    outcome = read(body, stream=True)
    assert (outcome.state, outcome.answer) == (ANSWERED, None)
    assert outcome.evidence["tool_calls"] == [
        {"id": "c1", "name": "weather", "arguments": {"city": "Bern"}},
        {"id": "c2", "name": "time", "arguments": {}},
    ]
    whole = read(body, "message", stream=True).answer
    assert isinstance(whole, dict)
    assert whole["tool_calls"][0] == CALL | {"function": {"name": "weather", "arguments": '{"city": "Bern"}'}}


@pytest.mark.parametrize("index", [{}, {"index": 0}, {"index": None}], ids=["no index", "always 0", "null"])
def test_several_tool_calls_of_an_endpoint_that_does_not_count_them_are_kept_apart(index: dict[str, Any]) -> None:
    def call(id_: str, name: str, arguments: str) -> dict[str, Any]:
        return {**index, "id": id_, "function": {"name": name, "arguments": arguments}}

    body = events(
        piece(tool_calls=[call("c1", "weather", '{"city": ')]),
        piece(tool_calls=[{**index, "id": "", "function": {"name": "", "arguments": '"Be'}}]),
        piece(tool_calls=[{**index, "id": "other", "function": {"arguments": 'rn"}'}}]),
        piece(tool_calls=[call("c2", "time", "{}")]),
        piece("tool_calls"),
    )
    told: Any = read(body, stream=True).evidence["tool_calls"]
    assert [(one["name"], one["arguments"]) for one in told] == [("weather", {"city": "Bern"}), ("time", {})]


def test_c32_character_split_between_two_pieces_is_joined() -> None:
    outcome = read(events('{"choices": [{"delta": {"content": "a\\ud83d"}}]}', piece("stop", content="\ude00b")))
    assert outcome.answer == "a\U0001f600b"


@pytest.mark.parametrize(
    "body",
    [events(piece(content="Hel"), piece(content="lo"), done=False), events(done=False), b": keep-alive\n\n"],
    ids=["pieces", "nothing", "comment"],
)
def test_c27_stream_without_an_end_is_unknown(body: bytes) -> None:
    outcome = read(body, stream=True)
    assert (outcome.state, outcome.reason, outcome.answer) == (UNKNOWN, "stream.cut", MISSING)


def test_stream_is_whole_by_its_finish_reason_or_by_its_end() -> None:
    unended = read(events(piece(content="Hello"), piece("stop"), done=False), stream=True)
    assert (unended.state, unended.answer, unended.flags) == (ANSWERED, "Hello", ())
    unsaid = read(events(piece(content="Hello")), stream=True)
    assert (unsaid.state, unsaid.answer, unsaid.flags) == (ANSWERED, "Hello", ("finish_unknown",))


@pytest.mark.parametrize(
    "error",
    ['data: {"error": {"message": "overloaded"}}\n\n', 'event: error\ndata: {"message": "overloaded"}\n\n'],
)
def test_c27_error_inside_a_stream_has_failed_with_the_usage_so_far(error: str) -> None:
    body = events({**piece(content="Hel"), "usage": USAGE}, done=False) + error.encode() + b"data: [DONE]\n\n"
    outcome = read(body, stream=True)
    assert (outcome.state, outcome.reason, outcome.message) == (FAILED, "body.error", "200: overloaded")
    assert outcome.usage is not None
    assert outcome.usage.tokens_in == 11
    assert outcome.usage.tokens_out is None, "what had come out by then is no more than the least"


@pytest.mark.parametrize("stream", [False, True])
def test_empty_lines_that_keep_a_connection_alive_are_no_stream(stream: bool) -> None:
    outcome = read(b"\n\n\r\n" + json.dumps(completion()).encode(), stream=stream)
    assert (outcome.state, outcome.answer) == (ANSWERED, "Hello")
    assert read(b"\n\n" + events(piece("stop", content="Hello")), stream=stream).answer == "Hello"


@pytest.mark.parametrize(
    ("pieces", "reason", "flags"),
    [
        ([piece(content="Hel"), piece("length")], "", ("truncated",)),
        ([piece(refusal="I will "), piece("stop", refusal="not.")], "chat.refusal", ()),
        ([piece(content="Hel"), piece("content_filter")], "chat.content_filter", ()),
        ([{"choices": []}], "answer.missing", ()),
        (["not json"], "answer.not_json", ()),
    ],
    ids=["length", "refusal", "content_filter", "nothing", "not json"],
)
def test_stream_ends_as_a_whole_reply_does(pieces: list[Any], reason: str, flags: tuple[str, ...]) -> None:
    outcome = read(events(*pieces), stream=True)
    assert (outcome.reason, outcome.flags) == (reason, flags)


def test_other_choices_and_what_is_no_piece_are_passed_over() -> None:
    odd = ["7", "null", '{"choices": 3}', '{"choices": [7, {"delta": 3}, {"delta": {"content": 3, "tool_calls": 3}}]}']
    outcome = read(events(*odd, piece(index=1, content="other"), piece("stop", content="mine")), stream=True)
    assert outcome.answer == "mine"


def test_pieces_without_an_index_and_text_in_parts_are_understood() -> None:
    parts = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    outcome = read(events(piece(index=None, content=parts), piece("stop", index=None)), stream=True)
    assert (outcome.state, outcome.answer) == (ANSWERED, "Hello")


def test_endpoint_that_does_not_stream_when_it_is_asked_to_is_understood_and_so_is_the_other_way_round() -> None:
    assert read(completion(), stream=True).answer == "Hello"
    assert read(events(piece("stop", content="Hello")), stream=False).answer == "Hello"


def test_reasoning_is_evidence_and_no_part_of_the_answer() -> None:
    whole = read(completion(reasoning_content="Let me see."))
    streamed = read(events(piece(reasoning="Let me "), piece(reasoning="see."), piece("stop", content="Hello")))
    assert whole.evidence["reasoning"] == streamed.evidence["reasoning"] == "Let me see."
    assert whole.answer == streamed.answer == "Hello"
