"""Chat replies on the wire: what is lost there is unknown, and what came of it is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.adapters.chat_target import from_work_order
from tallystick.runner.protocols import MISSING, Outcome

from .http_makers import ANSWERED, FAILED, REFUSED, UNKNOWN
from .makers import Service, make_case, run_case


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Service]:
    service = Service.start(tmp_path, "chat_endpoint.py")
    yield service
    service.stop()


def ask(endpoint: Service, behave: dict[str, Any], **options: Any) -> Outcome:
    table = {"url": f"{endpoint.url}/v1/chat/completions", "model": "small", **options}
    return run_case(from_work_order(table, folder=Path(), place="target"), make_case(json.dumps(behave)))


def event(**told: Any) -> str:
    return f"data: {json.dumps(told)}\n\n"


def test_whole_reply_and_streamed_reply_are_the_same_answer(endpoint: Service) -> None:
    whole, streamed = (ask(endpoint, {"reply": "Grüezi 😀"}, stream=stream) for stream in (False, True))
    assert whole.answer == streamed.answer == "Grüezi 😀"
    assert whole.usage == streamed.usage
    assert whole.evidence == streamed.evidence == {"model": "small", "finish_reason": "stop"}


@pytest.mark.parametrize("cut", [False, True], ids=["closed well", "connection cut"])
def test_c27_stream_that_dies_midway_is_unknown_with_what_came_and_what_it_told_of_its_use(
    endpoint: Service, cut: bool
) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 1}
    chunks = [event(choices=[{"delta": {"content": text}}], usage=usage) for text in ("Hel", "lo")]
    outcome = ask(endpoint, {"chunks": chunks, "cut": cut}, stream=True)
    assert (outcome.state, outcome.reason) == (UNKNOWN, "wire.cut" if cut else "stream.cut")
    assert (outcome.answer, outcome.raw) == (MISSING, "".join(chunks).encode())
    assert outcome.usage is not None
    assert (outcome.usage.tokens_in, outcome.usage.tokens_out) == (7, None)
    assert outcome.usage.seen is not None
    assert outcome.usage.seen.tokens_out == 1
    assert len(endpoint.lines()) == 1


@pytest.mark.parametrize(
    ("behave", "state", "reason"),
    [
        ({"drop_after": 0}, UNKNOWN, "wire.closed"),
        ({"content_length": 10_000}, UNKNOWN, "wire.cut"),
        ({"status": 502, "text": "<html>"}, UNKNOWN, "http.status"),
        ({"status": 429, "retry_after": 3, "body": {"error": {"message": "slow down"}}}, REFUSED, "http.status"),
        ({"status": 401, "body": {"error": {"message": "no such key"}}}, FAILED, "http.status.401"),
        ({"status": 404, "text": "<html>"}, FAILED, "http.status.404"),
        ({"redirect": "http://127.0.0.1:1/"}, FAILED, "http.redirect"),
        ({"body": {"error": {"message": "rate limit exceeded"}}}, FAILED, "body.error"),
        ({"finish_reason": "length"}, ANSWERED, ""),
    ],
)
def test_c24_outcome_follows_the_one_table_for_all_targets(
    endpoint: Service, behave: dict[str, Any], state: str, reason: str
) -> None:
    outcome = ask(endpoint, behave)
    assert (outcome.state, outcome.reason) == (state, reason)
    assert len(endpoint.lines()) == 1, "nothing is sent again by itself"
