from __future__ import annotations

import datetime as dt
import email.utils
import json
import resource
from typing import Any

import pytest

from tallystick.adapters.http_outcomes import retry_after_seconds
from tallystick.adapters.wire import Reply
from tallystick.ledger.canonical import JsonValue
from tallystick.ledger.states import DispatchState
from tallystick.runner.protocols import MISSING

from .http_makers import ANSWERED, FAILED, REFUSED, UNKNOWN, ask, make
from .makers import Service, dispatch_case, make_case, run, run_cases

HTML = "<html><title>Bad Gateway</title>\n<body>nginx"


@pytest.mark.parametrize(
    ("behave", "state", "reason", "message"),
    [
        ({"status": 400, "body": {"error": "no"}}, FAILED, "http.status.400", '400: {"error": "no"}'),
        ({"status": 401, "body": {"error": "no"}}, FAILED, "http.status.401", '401: {"error": "no"}'),
        ({"status": 404, "body": {"error": "no model"}}, FAILED, "http.status.404", '404: {"error": "no model"}'),
        ({"status": 404, "text": ""}, FAILED, "http.status.404", "404, no body"),
        ({"status": 409, "text": "taken"}, FAILED, "http.status.409", "409, not JSON: taken"),
        ({"status": 500, "text": HTML}, FAILED, "http.status.500", f"500, not JSON: {HTML}"),
        ({"status": 501, "text": ""}, FAILED, "http.status.501", "501, no body"),
        ({"status": 502, "text": HTML}, UNKNOWN, "http.status", f"502, not JSON: {HTML}"),
        ({"status": 504, "text": ""}, UNKNOWN, "http.status", "504, no body"),
        ({"status": 503, "text": ""}, FAILED, "http.status.503", "503, no body"),
        ({"status": 503, "text": "", "retry_after": "2"}, REFUSED, "http.status", "503, no body"),
        ({"status": 429, "text": ""}, REFUSED, "http.status", "429, no body"),
        ({"status": 304, "text": ""}, FAILED, "http.status.304", "304, no body"),
        ({"text": HTML}, FAILED, "answer.not_json", f"200, not JSON: {HTML}"),
        ({"text": "[" * 100_000}, FAILED, "answer.not_json", "200, not JSON: "),
        ({"text": '{"answer": NaN}'}, FAILED, "answer.not_json", '200, not JSON: {"answer": NaN}'),
        ({"text": ""}, FAILED, "answer.missing", "200, no body"),
        ({"status": 204}, FAILED, "answer.missing", "204, no body"),
        ({"body": {"other": 1}}, FAILED, "answer.missing", "200: there is nothing at $.answer"),
        ({"body": "text"}, FAILED, "answer.missing", "200: there is nothing at $.answer"),
        ({"status": 201, "answer": 1}, ANSWERED, "", ""),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else None,
)
def test_c24_status_and_body_tell_what_became_of_it(
    service: Service, behave: dict[str, Any], state: DispatchState, reason: str, message: str
) -> None:
    outcome = ask(service, behave)
    assert (outcome.state, outcome.reason) == (state, reason)
    assert outcome.message.startswith(" ".join(message.split()))
    assert outcome.status == behave.get("status", 200)
    assert (outcome.answer is MISSING) == (state is not ANSWERED)
    assert outcome.wire_sends == len(service.lines()) == 1
    if "text" in behave:
        assert outcome.raw == behave["text"].encode()[: 64 * 1024]
        assert outcome.raw_cut == (len(behave["text"]) > 64 * 1024)


def test_statuses_can_be_declared(service: Service) -> None:
    assert ask(service, {"status": 409}, refused_statuses=[409]).state is REFUSED
    assert ask(service, {"status": 429}, refused_statuses=[409]).state is FAILED
    assert ask(service, {"status": 500}, unknown_statuses=[500]).state is UNKNOWN
    assert ask(service, {"status": 502}, unknown_statuses=[]).state is FAILED


def test_c25_error_inside_a_good_status_is_no_answer_and_the_next_call_is_a_real_one(service: Service) -> None:
    sequence: list[JsonValue] = [{"body": {"error": "rate limit exceeded", "answer": "?"}}, {"answer": "good"}]
    target = make(f"{service.url}/ask", error="$.error")
    case = make_case(behave={"sequence": sequence})
    first, second = run_cases(target, [case, case])
    assert (first.state, first.reason, first.message) == (FAILED, "body.error", "200: rate limit exceeded")
    assert (second.state, second.answer) == (ANSWERED, "good")
    assert len(service.lines()) == 2


@pytest.mark.parametrize("error", [None, False, "", 0, [], {}], ids=repr)
def test_error_that_is_null_false_or_empty_is_none(service: Service, error: JsonValue) -> None:
    assert ask(service, {"body": {"error": error, "answer": 1}}, error="$.error").state is ANSWERED


def test_error_inside_a_body_can_be_declared_a_refusal(service: Service) -> None:
    behave = {"body": {"error": {"code": "overloaded"}}, "retry_after": "3"}
    outcome = ask(service, behave, error={"path": "$.error", "refused": True})
    assert (outcome.state, outcome.reason, outcome.retry_after_seconds) == (REFUSED, "body.error", 3)
    assert outcome.message == '200: {"code":"overloaded"}'


@pytest.mark.parametrize(
    ("behave", "reason", "partial"),
    [
        ({"drop_after": 0}, "wire.closed", b""),
        ({"drop_after": 0, "reset": True}, "wire.reset", b""),
        ({"drop_after": 20}, "wire.closed", b""),
        ({"text": "half of it", "content_length": 10_000}, "wire.cut", b"half of it"),
        ({"chunks": ['{"answer":', ' "ha'], "cut": True}, "wire.cut", b'{"answer": "ha'),
        ({"chunks": ["data: 1\n\n"] * 3, "cut": True}, "wire.cut", b"data: 1\n\n" * 3),
        ({"endless_headers": True}, "wire.protocol", b""),
    ],
    ids=str,
)
def test_c01_c27_connection_that_breaks_off_is_unknown_keeps_what_came_and_is_not_sent_again(
    service: Service, behave: dict[str, Any], reason: str, partial: bytes
) -> None:
    async def scenario() -> None:
        target = make(f"{service.url}/ask")
        await target.open()
        outcome, dispatching = await dispatch_case(target, make_case(behave=behave))
        assert (outcome.state, outcome.reason) == (UNKNOWN, reason)
        assert outcome.answer is MISSING
        assert (outcome.raw or b"") == bytes(dispatching.progress.partial) == partial
        assert outcome.raw_cut == bool(partial)
        assert outcome.bytes_sent == dispatching.progress.bytes_sent
        assert (outcome.bytes_sent or 0) > 100
        assert outcome.wire_sends == dispatching.progress.wire_sends == 1
        await target.close()

    run(scenario())
    assert len(service.lines()) == 1


def test_error_status_with_a_cut_body_is_still_failed(service: Service) -> None:
    outcome = ask(service, {"status": 500, "text": "half", "content_length": 1000})
    assert (outcome.state, outcome.status, outcome.raw, outcome.raw_cut) == (FAILED, 500, b"half", True)


def test_c28_slow_server_is_held_to_the_total_deadline(service: Service) -> None:
    outcome = ask(service, {"answer": "x" * 1000, "drip_seconds": 0.02}, deadline_seconds=0.5)
    assert (outcome.state, outcome.reason) == (UNKNOWN, "deadline")


def test_c28_compressed_bomb_is_cut_at_the_bound_in_little_memory(service: Service) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = ask(service, {"gzip_bomb": 256 * 1024 * 1024}, body_bytes_max=1024 * 1024)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (outcome.state, outcome.reason) == (FAILED, "answer.too_large")
    assert outcome.message == "200, and the body is larger than 1,048,576 bytes"
    assert outcome.raw_cut
    assert grown < 32 * 1024


def test_body_of_just_the_bound_is_an_answer(service: Service) -> None:
    assert ask(service, {"text": "x" * 1000}, body_bytes_max=1000, answer="text").answer == "x" * 1000
    assert ask(service, {"text": "x" * 1001}, body_bytes_max=1000, answer="text").reason == "answer.too_large"


@pytest.mark.parametrize(
    ("usage", "tokens_in", "problem"),
    [
        ("absent", None, None),
        (None, None, None),
        ({}, None, None),
        ({"tokens_in": None}, None, None),
        ({"tokens_in": 0}, 0, None),
        ({"tokens_in": 12.0}, 12, None),
        ({"tokens_in": 12.5}, None, "tokens_in is 12.5: not a whole number"),
        ({"tokens_in": "12"}, None, "tokens_in is '12': not a number"),
        ({"tokens_in": -5}, None, "tokens_in is -5: negative"),
        ({"tokens_in": 10**30}, None, "tokens_in is an integer of more than 64 bits: beyond what can be counted"),
        ({"tokens_in": True}, None, "tokens_in is True: not a number"),
        ({"tokens_in": {"total": 3}}, None, "tokens_in is {'total': 3}: not a number"),
        ([1], None, None),
        ("text", None, None),
    ],
    ids=repr,
)
def test_c21_each_count_is_a_count_or_unknown_with_a_reason(
    service: Service, usage: Any, tokens_in: int | None, problem: str | None
) -> None:
    body = {"answer": 1} if usage == "absent" else {"answer": 1, "usage": usage}
    paths = {"tokens_in": "$.usage.tokens_in", "cost_usd": "$.usage.cost"}
    outcome = ask(service, {"body": body}, usage=paths)
    assert outcome.state is ANSWERED
    assert outcome.usage is not None
    assert outcome.usage.tokens_in == tokens_in
    assert outcome.usage.cost_nanousd is None
    assert outcome.usage.problems == (() if problem is None else (problem,))
    assert outcome.usage.raw == (MISSING if usage == "absent" else usage)


def test_usage_of_an_error_is_kept_too(service: Service) -> None:
    behave = {"status": 500, "body": {"usage": {"in": 7}}}
    outcome = ask(service, behave, usage={"tokens_in": "$.usage.in"})
    assert outcome.usage is not None
    assert outcome.usage.tokens_in == 7


def test_c27_whole_answer_can_be_flagged_and_evidence_is_kept_beside_it(service: Service) -> None:
    body = {"answer": "", "finish_reason": "content_filter", "docs": ["a"]}
    flags = {
        "filtered": {"path": "$.finish_reason", "equals": "content_filter"},
        "truncated": {"path": "$.finish_reason", "equals": "length"},
    }
    outcome = ask(service, {"body": body}, flags=flags, evidence={"context": "$.docs", "tools": "$.tools"})
    assert (outcome.state, outcome.answer, outcome.flags) == (ANSWERED, "", ("filtered",))
    assert outcome.evidence == {"context": ["a"]}


def retry_after(value: str | None, date: str | None = None) -> float | None:
    headers = [(b"Retry-After", value.encode())] if value is not None else []
    headers += [(b"Date", date.encode())] if date is not None else []
    return retry_after_seconds(Reply(429, headers), now=1_000_000_000.0)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        (" 7 ", 7),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        (None, None),
        ("9" * 400, 366 * 24 * 3600),
        (email.utils.format_datetime(dt.datetime.fromtimestamp(1_000_000_060, dt.UTC), usegmt=True), 60),
        (email.utils.format_datetime(dt.datetime.fromtimestamp(999_999_000, dt.UTC), usegmt=True), 0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0),
        ("Sun, 99 Nov 1994 08:49:37 GMT", None),
    ],
)
def test_retry_after_is_read_in_both_forms_and_never_negative(value: str | None, seconds: float | None) -> None:
    assert retry_after(value) == seconds


def test_retry_after_as_a_date_is_taken_against_the_servers_own_clock() -> None:
    assert retry_after("Sun, 06 Nov 1994 08:49:37 GMT", date="Sun, 06 Nov 1994 08:49:07 GMT") == 30
