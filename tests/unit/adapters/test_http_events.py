from __future__ import annotations

import json
from typing import Any

import pytest

from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.runner.protocols import MISSING, Outcome

from .http_makers import ANSWERED, FAILED, UNKNOWN, ask, make
from .makers import Service


def delta(text: str) -> str:
    return f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}\n\n"


EVENTS = {"text": "$.choices[0].delta.content", "end": "[DONE]"}
DONE = "data: [DONE]\n\n"


def stream(service: Service, *chunks: str, cut: bool = False, **options: Any) -> Outcome:
    behave = {"chunks": [*chunks], "cut": cut, "headers": {"Content-Type": "text/event-stream"}}
    return ask(service, behave, **{"answer": None, "events": EVENTS, **options})


def test_whole_stream_is_answered_with_its_pieces_joined(service: Service) -> None:
    head = ": comment\r\nid: 1\nretry: 5\n\n"
    usage = 'data: {"usage": {"in": 3}}\n\ndata: {"usage":\ndata: {"out": 4}}\n\n'
    outcome = stream(
        service,
        *(head, delta("Hel"), delta("lo"), usage, DONE, delta("beyond the end")),
        usage={"tokens_in": "$.usage.in", "tokens_out": "$.usage.out"},
    )
    assert (outcome.state, outcome.answer) == (ANSWERED, "Hello")
    assert outcome.usage is not None
    assert (outcome.usage.tokens_in, outcome.usage.tokens_out) == (3, 4)


def test_c32_character_split_between_two_events_is_joined(service: Service) -> None:
    high, low = 'data: {"t": "a\\ud83d"}\n\n', 'data: {"t": "\\ude00b"}\n\n'
    outcome = stream(service, high, low, DONE, events={"text": "$.t", "end": "[DONE]"})
    assert outcome.answer == "a\U0001f600b"
    alone = stream(service, high, DONE, events={"text": "$.t", "end": "[DONE]"})
    assert alone.answer == "a\ud83d"


@pytest.mark.parametrize("cut", [False, True], ids=["closed well", "connection cut"])
def test_c27_stream_without_its_end_is_unknown_and_what_came_is_kept(service: Service, cut: bool) -> None:
    chunks = [delta("one"), delta("two"), delta("three")]
    outcome = stream(service, *chunks, cut=cut)
    assert (outcome.state, outcome.reason) == (UNKNOWN, "wire.cut" if cut else "stream.cut")
    assert outcome.answer is MISSING
    assert outcome.raw == "".join(chunks).encode()
    assert len(service.lines()) == 1


@pytest.mark.parametrize(
    "event", ['event: error\ndata: {"type": "overloaded"}\n\n', 'data: {"error": {"type": "overloaded"}}\n\n']
)
def test_c27_error_event_inside_a_good_stream_is_failed(service: Service, event: str) -> None:
    outcome = stream(service, delta("Hel"), event, DONE, error="$.error")
    assert (outcome.state, outcome.reason) == (FAILED, "body.error")
    assert "overloaded" in outcome.message


def test_c27_truncated_answer_is_whole_and_flagged(service: Service) -> None:
    last = 'data: {"choices": [{"delta": {}, "finish_reason": "length"}]}\n\n'
    flags = {"truncated": {"path": "$.choices[0].finish_reason", "equals": "length"}}
    outcome = stream(service, delta("Hel"), last, DONE, flags=flags)
    assert (outcome.state, outcome.answer, outcome.flags) == (ANSWERED, "Hel", ("truncated",))


def test_stream_may_end_by_the_name_of_an_event(service: Service) -> None:
    events = {"text": "$.t", "end_event": "stop"}
    outcome = stream(service, 'data: {"t": "x"}\n\n', "event: stop\ndata: {}\n\n", events=events)
    assert outcome.answer == "x"


@pytest.mark.parametrize(
    ("chunks", "reason"),
    [(["data: {oops\n\n", DONE], "answer.not_json"), ([DONE], "answer.missing"), (["<html>"], "stream.cut")],
)
def test_stream_that_holds_no_answer_is_told_so(service: Service, chunks: list[str], reason: str) -> None:
    assert stream(service, *chunks).reason == reason


def test_stream_needs_a_declared_end() -> None:
    with pytest.raises(WorkOrderInvalid, match="a stream needs one of end and end_event"):
        make("http://x/", answer=None, events={"text": "$.t"})
