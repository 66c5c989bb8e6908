from __future__ import annotations

import json
from typing import Any

import pytest

from tallystick.adapters.recorded_responses import model_of_body, read_recorded, state_of_status, usage_of_body, written
from tallystick.ledger.states import DispatchState


@pytest.mark.parametrize(
    ("body", "kind", "counts"),
    [
        ({"usage": {"prompt_tokens": 1, "completion_tokens": 2}}, "application/json", (1, 2)),
        ({"usage": {"input_tokens": 1, "output_tokens": 2}}, "application/json", (1, 2)),
        ({"usage": {"prompt_tokens": None}}, "application/json", (None, None)),
        ({"usage": {"prompt_tokens": "12", "completion_tokens": -1}}, "application/json", (None, None)),
        ({"usage": {"prompt_tokens": True, "completion_tokens": 2.5}}, "application/json", (None, None)),
        ({"usage": "much"}, "application/json", None),
        ({"usage": []}, "application/json", None),
        ([1], "application/json", None),
        ("text", "text/plain", None),
    ],
)
def test_usage_is_read_in_every_odd_shape_and_never_guessed(body: Any, kind: str, counts: Any) -> None:
    found = usage_of_body(json.dumps(body).encode(), kind, None)
    assert (None if found is None else (found.tokens_in, found.tokens_out)) == counts


def test_usage_of_an_event_stream_is_what_its_last_events_say() -> None:
    events = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}},
        {"type": "message_delta", "usage": {"output_tokens": 5}},
    ]
    body = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in events) + b"data: [DONE]\n\n"
    found = usage_of_body(body, "text/event-stream", None)
    assert found is not None
    assert (found.tokens_in, found.tokens_out) == (9, 5)


def test_tokens_of_a_cache_count_as_what_went_in() -> None:
    told = {"input_tokens": 9, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 1, "output_tokens": 5}
    found = usage_of_body(json.dumps({"usage": told}).encode(), "application/json", None)
    assert found is not None
    assert (found.tokens_in, found.tokens_out) == (100, 5)


@pytest.mark.parametrize(
    ("body", "kind", "model"),
    [
        (b'{"model": "m-1"}', "application/json", "m-1"),
        (b'data: {"x": 1}\n\ndata: {"message": {"model": "m-2"}}\n\n', "text/event-stream", "m-2"),
        (b'{"model": 5}', "application/json", None),
        (b"no JSON", "text/plain", None),
    ],
)
def test_the_model_that_answered_is_told_by_the_answer(body: bytes, kind: str, model: str | None) -> None:
    assert model_of_body(body, kind) == model


def test_a_usage_reader_that_raises_loses_no_answer() -> None:
    found = usage_of_body(b'{"meter": 1}', "application/json", lambda body: body["nothing"])
    assert found is not None
    assert found.problems
    read = usage_of_body(b'{"meter": 1}', "application/json", lambda body: {"tokens_in": body["meter"]})
    assert read is not None
    assert read.tokens_in == 1


def test_a_response_is_kept_as_it_is_on_the_wire() -> None:
    kept = written(201, [(b"Content-Type", b"text/plain"), (b"Set-Cookie", b"a=b")], b"\r\n\r\nbody")
    assert kept == b"HTTP/1.1 201\r\nContent-Type: text/plain\r\n\r\n\r\n\r\nbody"
    assert read_recorded(kept, None).body == b"\r\n\r\nbody"
    assert read_recorded(kept, None).status == 201
    assert read_recorded(b'{"a":1}', None).headers == (("content-type", "application/json"),)


@pytest.mark.parametrize(
    ("status", "retry_after", "state"),
    [
        (200, None, DispatchState.ANSWERED), (302, None, DispatchState.ANSWERED), (404, None, DispatchState.FAILED),
        (429, None, DispatchState.REFUSED), (500, None, DispatchState.FAILED), (502, None, DispatchState.UNKNOWN),
        (503, "1", DispatchState.REFUSED), (503, None, DispatchState.FAILED), (504, None, DispatchState.UNKNOWN),
    ],
)  # fmt: skip
def test_a_status_says_what_became_of_a_request(status: int, retry_after: str | None, state: DispatchState) -> None:
    assert state_of_status(status, retry_after) is state
