from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import email.utils
import json
import resource
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import pytest

from tallystick.adapters.errors import CaseUnfit
from tallystick.adapters.http_outcomes import retry_after_seconds
from tallystick.adapters.http_target import HttpTarget, from_work_order
from tallystick.adapters.wire import Reply
from tallystick.ledger.canonical import JsonValue
from tallystick.ledger.errors import SecretMissing, TargetNotFound, WorkOrderInvalid
from tallystick.ledger.states import DispatchState
from tallystick.runner.protocols import MISSING, Outcome, QueryState

from .makers import Service, dispatch_case, make_case, make_dispatching, make_slot, run, run_case, run_cases

ANSWERED, FAILED, REFUSED, UNKNOWN = (
    DispatchState.ANSWERED,
    DispatchState.FAILED,
    DispatchState.REFUSED,
    DispatchState.UNKNOWN,
)


def make(url: str, **options: Any) -> HttpTarget:
    table = {
        "url": url,
        "json": {"input": "{{input}}", "behave": "{{metadata.behave}}"},
        "answer": "$.answer",
        **options,
    }
    return from_work_order(
        {name: value for name, value in table.items() if value is not None}, folder=Path(), place="target"
    )


def ask(service: Service, behave: dict[str, Any], /, **options: Any) -> Outcome:
    more = {name: options.pop(name) for name in ("deadline_seconds",) if name in options}
    return run_case(make(f"{service.url}/ask", **options), make_case(behave=behave), **more)


HTML = "<html><title>Bad Gateway</title>\n<body>nginx"


@pytest.mark.parametrize(
    ("behave", "state", "reason", "message"),
    [
        ({"status": 400, "body": {"error": "no"}}, FAILED, "http.status", '400: {"error": "no"}'),
        ({"status": 401, "body": {"error": "no"}}, FAILED, "http.status", '401: {"error": "no"}'),
        ({"status": 404, "body": {"error": "no model"}}, FAILED, "http.status", '404: {"error": "no model"}'),
        ({"status": 404, "text": ""}, FAILED, "http.status", "404, no body"),
        ({"status": 409, "text": "taken"}, FAILED, "http.status", "409, not JSON: taken"),
        ({"status": 500, "text": HTML}, FAILED, "http.status", f"500, not JSON: {HTML}"),
        ({"status": 501, "text": ""}, FAILED, "http.status", "501, no body"),
        ({"status": 502, "text": HTML}, UNKNOWN, "http.status", f"502, not JSON: {HTML}"),
        ({"status": 504, "text": ""}, UNKNOWN, "http.status", "504, no body"),
        ({"status": 503, "text": ""}, FAILED, "http.status", "503, no body"),
        ({"status": 503, "text": "", "retry_after": "2"}, REFUSED, "http.status", "503, no body"),
        ({"status": 429, "text": ""}, REFUSED, "http.status", "429, no body"),
        ({"status": 304, "text": ""}, FAILED, "http.status", "304, no body"),
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
    ("url", "reason"),
    [
        ("http://127.0.0.1:1/", "connect.refused"),
        ("http://name.invalid/", "connect.dns"),
    ],
)
def test_where_no_byte_left_it_is_refused(url: str, reason: str) -> None:
    outcome = run_case(make(url), make_case(behave={}))
    assert (outcome.state, outcome.reason) == (REFUSED, reason)
    assert (outcome.bytes_sent, outcome.wire_sends) == (0, 0)


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""], ids=["plain text", "closed"])
def test_server_without_tls_is_refused_before_a_byte_of_the_request_left(reply: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(reply)
        writer.close()

    async def scenario() -> None:
        async with listening(serve) as url:
            target = make(url.replace("http://", "https://"))
            await target.open()
            outcome, _ = await dispatch_case(target, make_case(behave={}))
            assert (outcome.state, outcome.reason) == (REFUSED, "connect.tls")
            assert (outcome.bytes_sent, outcome.wire_sends) == (0, 0)
            await target.close()

    run(scenario())


def test_server_that_accepts_nothing_is_refused_when_the_time_to_connect_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        filler = [socket.socket() for _ in range(4)]
        for one in filler:
            one.setblocking(False)
            one.connect_ex(address)
        target = make(f"http://127.0.0.1:{address[1]}/", connect_seconds=0.2)
        by_deadline = make(f"http://127.0.0.1:{address[1]}/")
        outcomes = [
            run_case(target, make_case(behave={})),
            run_case(by_deadline, make_case(behave={}), deadline_seconds=0.2),
        ]
        for one in filler:
            one.close()
    assert [(outcome.state, outcome.reason) for outcome in outcomes] == [(REFUSED, "connect.timeout")] * 2


def test_waiting_for_a_connection_of_the_pool_is_refused_at_the_deadline(service: Service) -> None:
    async def scenario() -> None:
        target = make(f"{service.url}/ask", connections=1)
        await target.open()
        slot = make_slot(make_case(behave={"wait": "room"}))
        first = asyncio.create_task(target.dispatch(target.prepare(slot), make_dispatching(slot)))
        await asyncio.to_thread(service.wait_until_waiting, "room")
        second, _ = await dispatch_case(target, make_case(behave={}), deadline_seconds=0.1)
        assert (second.state, second.bytes_sent) == (REFUSED, 0)
        service.go("room")
        assert (await first).state is ANSWERED
        await target.close()

    run(scenario())
    assert len(service.lines()) == 1


@asynccontextmanager
async def listening(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[str]:
    """A server on this loop, for what must happen between two bytes."""
    handlers: set[asyncio.Task[Any]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(cast("asyncio.Task[Any]", asyncio.current_task()))
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await serve(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers)


def reply_of(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
    return head + await reader.readexactly(int(length.partition(b":")[2]))


def test_connection_that_the_server_closed_meanwhile_is_not_used_again() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(reply_of(b'{"answer": 1}'))
        writer.close()
        await writer.wait_closed()
        closed.set()

    async def scenario() -> None:
        async with listening(serve) as url:
            target = make(url, keepalive_seconds=60.0)
            await target.open()
            for _ in range(2):
                closed.clear()
                outcome, _ = await dispatch_case(target, make_case(behave={}))
                assert outcome.answer == 1
                await closed.wait()
                await asyncio.sleep(0)
            await target.close()

    closed = asyncio.Event()
    run(scenario())
    assert connections == 2


def test_bytes_that_nobody_asked_for_are_never_taken_for_the_next_answer() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(reply_of(b'{"answer": "right"}') + reply_of(b'{"answer": "stray"}'))
        sent.set()
        await reader.read()

    async def scenario() -> None:
        async with listening(serve) as url:
            target = make(url, keepalive_seconds=60.0)
            await target.open()
            for _ in range(2):
                outcome, _ = await dispatch_case(target, make_case(behave={}))
                assert outcome.answer == "right"
                await sent.wait()
            await target.close()

    sent = asyncio.Event()
    run(scenario())


def test_request_on_a_connection_that_dies_under_it_is_unknown_and_sent_once() -> None:
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await read_request(reader))
        writer.write(reply_of(b'{"answer": 1}'))
        received.append(await read_request(reader))
        writer.close()

    async def scenario() -> None:
        async with listening(serve) as url:
            target = make(url, keepalive_seconds=60.0)
            await target.open()
            first, _ = await dispatch_case(target, make_case(behave={}))
            second, _ = await dispatch_case(target, make_case(behave={}))
            assert (first.state, second.state, second.reason) == (ANSWERED, UNKNOWN, "wire.closed")
            await target.close()

    run(scenario())
    assert len(received) == 2


def test_connections_are_used_again(service: Service) -> None:
    async def scenario() -> None:
        target = make(f"{service.url}/ask")
        await target.open()
        ports = set()
        for _ in range(3):
            await dispatch_case(target, make_case(behave={}))
            [(_, connection)] = target._wire._idle  # type: ignore[union-attr]
            ports.add(id(connection))
        assert len(ports) == 1
        await target.close()

    run(scenario())


def echo_server(headers: list[dict[str, str]], body: Callable[[dict[str, str]], bytes]) -> Any:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await read_request(reader)).decode("latin-1")
        lines = request.split("\r\n\r\n")[0].split("\r\n")
        found = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:])}
        found["request-line"] = lines[0]
        found["body"] = request.split("\r\n\r\n", 1)[1]
        headers.append(found)
        writer.write(reply_of(body(found)))
        writer.close()

    return serve


def sent_by(*, case: Any = None, **options: Any) -> dict[str, str]:
    """What arrives for a case."""
    seen: list[dict[str, str]] = []

    async def scenario() -> None:
        async with listening(echo_server(seen, lambda found: b'{"answer": 1}')) as url:
            path = options.pop("path", "/ask")
            target = make(url + path, **{"json": None, **options})
            await target.open()
            outcome, _ = await dispatch_case(target, case or make_case("a b&c=é/?"), request_id="req-1")
            assert outcome.state is ANSWERED, outcome
            await target.close()

    run(scenario())
    return seen[0]


def test_request_has_its_id_and_says_who_asks() -> None:
    sent = sent_by(json={"a": 1})
    assert sent["idempotency-key"] == "req-1"
    assert sent["content-type"] == "application/json"
    assert sent["accept-encoding"] == "gzip, deflate"
    assert sent["user-agent"] == "tallystick"
    assert sent_by(idempotency_header="X-Request-Id")["x-request-id"] == "req-1"


def test_url_parameters_and_form_are_filled_and_escaped() -> None:
    sent = sent_by(path="/m/{{input}}/x?v={{variant}}", params={"q": "{{input}}", "n": 3}, method="GET")
    assert sent["request-line"].startswith("GET /m/a%20b%26c%3D%C3%A9%2F%3F/x?v=default&q=")
    query = urlsplit(sent["request-line"].split()[1]).query
    assert parse_qsl(query) == [("v", "default"), ("q", "a b&c=é/?"), ("n", "3")]
    form = sent_by(form={"text": "{{input}}", "id": "{{case.id}}"})
    assert form["content-type"] == "application/x-www-form-urlencoded"
    assert parse_qsl(form["body"]) == [("text", "a b&c=é/?"), ("id", "case-1")]


def test_text_body_and_headers_are_filled() -> None:
    sent = sent_by(text="<{{input}}>", headers={"X-Case": "{{case.id}}", "X-Fixed": "1", "Content-Type": "text/x-own"})
    assert sent["body"].encode("latin-1").decode() == "<a b&c=é/?>"
    assert (sent["x-case"], sent["x-fixed"], sent["content-type"]) == ("case-1", "1", "text/x-own")


@pytest.mark.parametrize("value", ["a\r\nX-Other: 1", "a\x00b", "\x1b"], ids=repr)
def test_case_cannot_add_a_header(value: str) -> None:
    target = make("http://127.0.0.1:1/", json=None, headers={"X-Case": "{{input}}"})
    with pytest.raises(CaseUnfit, match='case "case-1" has control characters'):
        target.prepare(make_slot(make_case(value)))


def test_case_without_the_field_is_named() -> None:
    target = make("http://127.0.0.1:1/", json={"q": "{{metadata.question}}"})
    with pytest.raises(CaseUnfit, match=r'case "case-1" has no metadata.question'):
        target.prepare(make_slot())


def test_secret_goes_out_and_stands_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_KEY", "SK-CANARY-42")
    seen: list[dict[str, str]] = []

    def telltale(found: dict[str, str]) -> bytes:
        return json.dumps({"answer": f"you sent {found['authorization']} and {found['request-line']}"}).encode()

    async def scenario() -> tuple[Outcome, list[str]]:
        async with listening(echo_server(seen, telltale)) as url:
            target = make(
                url,
                json={"a": 1},
                headers={"Authorization": {"env": "SERVICE_KEY", "prefix": "Bearer "}},
                params={"key": {"env": "SERVICE_KEY"}},
            )
            await target.open()
            slot = make_slot()
            prepared = target.prepare(slot)
            dispatching = make_dispatching(slot)
            outcome = await target.dispatch(prepared, dispatching)
            await target.close()
            everything = [prepared, dispatching.progress, outcome, target.identity(), vars(target)]
            return outcome, [repr(thing) for thing in everything]

    outcome, everything = run(scenario())
    assert seen[0]["authorization"] == "Bearer SK-CANARY-42"
    assert "key=SK-CANARY-42" in seen[0]["request-line"]
    assert outcome.answer == "you sent Bearer *** and POST /?key=*** HTTP/1.1"
    assert [text for text in everything[:4] if "CANARY" in text] == []


def test_secret_that_is_not_set_is_named_before_any_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVICE_KEY", raising=False)
    target = make("http://127.0.0.1:1/", headers={"Authorization": {"env": "SERVICE_KEY"}})
    with pytest.raises(SecretMissing, match="environment variable SERVICE_KEY is not set") as caught:
        run(target.open())
    assert caught.value.variable == "SERVICE_KEY"


def test_proxies_of_the_environment_are_not_used(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert ask(service, {"answer": 1}).answer == 1


def test_declared_proxy_is_used(service: Service) -> None:
    seen: list[dict[str, str]] = []

    async def scenario() -> None:
        async with listening(echo_server(seen, lambda found: b'{"answer": "by proxy"}')) as proxy:
            target = make(f"{service.url}/ask", proxy=proxy)
            await target.open()
            outcome, _ = await dispatch_case(target, make_case(behave={}))
            assert outcome.answer == "by proxy"
            await target.close()

    run(scenario())
    assert seen[0]["request-line"] == f"POST {service.url}/ask HTTP/1.1"
    assert service.lines() == []


def test_cookies_are_not_kept(service: Service) -> None:
    seen: list[dict[str, str]] = []

    async def scenario() -> None:
        async with listening(echo_server(seen, lambda found: b'{"answer": 1}')) as url:
            target = make(url)
            await target.open()
            for _ in range(2):
                await dispatch_case(target, make_case(behave={}))
            await target.close()

    run(scenario())
    assert [found for found in seen if "cookie" in found] == []


# Redirects


def test_c29_redirect_is_not_followed_by_default(service: Service) -> None:
    outcome = ask(service, {"redirect": "/elsewhere?token=1"})
    assert (outcome.state, outcome.reason, outcome.status) == (FAILED, "http.redirect", 307)
    assert outcome.message == f"307: a redirect to {service.url}/elsewhere, which is not followed"
    assert len(service.lines()) == 1


@pytest.mark.parametrize("host", ["http://127.0.0.1:1/x", "https://127.0.0.1:{port}/x", "//localhost:{port}/x"])
def test_c29_redirect_to_another_origin_is_never_followed(service: Service, host: str) -> None:
    outcome = ask(service, {"redirect": host.replace("{port}", str(service.port))}, follow_redirects=True)
    assert (outcome.state, outcome.reason) == (FAILED, "http.redirect")
    assert "another origin" in outcome.message
    assert len(service.lines()) == outcome.wire_sends == 1


def redirecting(service: Service, *hops: dict[str, Any], **options: Any) -> Outcome:
    return ask(service, {"sequence": [*hops]}, follow_redirects=True, **options)


def test_c29_redirect_within_the_origin_is_followed_and_each_hop_counted(service: Service) -> None:
    outcome = redirecting(service, {"redirect": "/b"}, {"redirect": "/c", "status": 308}, {"answer": "there"})
    assert (outcome.state, outcome.answer, outcome.wire_sends) == (ANSWERED, "there", 3)
    lines = service.lines()
    assert [line["path"] for line in lines] == ["/ask", "/b", "/c"]
    assert len({line["request_id"] for line in lines}) == len({line["payload_digest"] for line in lines}) == 1


def test_c29_redirect_loop_is_bounded(service: Service) -> None:
    outcome = redirecting(service, {"redirect": "/ask"})
    assert (outcome.state, outcome.reason, outcome.message) == (FAILED, "http.redirect", "307: more than 5 redirects")
    assert outcome.wire_sends == len(service.lines()) == 6


@pytest.mark.parametrize("status", [301, 302])
def test_c29_redirect_that_would_turn_a_post_into_a_get_is_not_followed(service: Service, status: int) -> None:
    outcome = redirecting(service, {"redirect": "/b", "status": status})
    assert (outcome.state, outcome.reason) == (FAILED, "http.redirect")
    assert len(service.lines()) == 1


def test_see_other_is_fetched_by_get(service: Service) -> None:
    outcome = redirecting(service, {"redirect": '/b?answer="seen"', "status": 303})
    assert (outcome.state, outcome.answer) == (ANSWERED, "seen")
    assert [line["method"] for line in service.lines()] == ["POST", "GET"]


# Usage


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


# Event streams


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


# Retry-After


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


# Query


QUERY = {"url": "{base}/outcome/{{request_id}}", "answer": "$.answer", "never": {"status": [410]}}


def querying(service: Service, **query: Any) -> HttpTarget:
    table = {**QUERY, **query}
    table["url"] = table["url"].replace("{base}", service.url)
    return make(f"{service.url}/ask", if_unknown="query", query=table)


def test_e03c_query_tells_landed_pending_never_and_no_proof_apart(service: Service) -> None:
    async def scenario() -> None:
        target = querying(service)
        await target.open()
        slot = make_slot(make_case(behave={"answer": "kept"}))
        prepared = target.prepare(slot)
        unknown = await target.query("id-1", prepared)
        assert unknown.state == QueryState.NO_PROOF
        assert unknown.message.startswith("404: ")
        await target.dispatch(prepared, make_dispatching(slot, request_id="id-1"))
        landed = await target.query("id-1", prepared)
        assert landed.state == QueryState.LANDED
        assert landed.outcome is not None
        assert (landed.outcome.state, landed.outcome.answer) == (ANSWERED, "kept")

        waiting = make_slot(make_case(behave={"wait": "gate"}))
        call = asyncio.create_task(
            target.dispatch(target.prepare(waiting), make_dispatching(waiting, request_id="id-2"))
        )
        await asyncio.to_thread(service.wait_until_waiting, "gate")
        assert (await target.query("id-2", prepared)).state == QueryState.PENDING
        service.go("gate")
        await call
        await target.close()

    run(scenario())
    assert [line["request_id"] for line in service.lines()] == ["id-1", "id-2"]


def test_e03c_only_a_tombstone_proves_that_an_id_never_lands(service: Service) -> None:
    async def scenario() -> None:
        target = querying(service)
        tombstone = make(f"{service.url}/tombstone/id-3", json={}, answer="$.state")
        await target.open()
        await tombstone.open()
        slot = make_slot(make_case(behave={"answer": "too late"}))
        prepared = target.prepare(slot)
        assert (await target.query("id-3", prepared)).state == QueryState.NO_PROOF
        await dispatch_case(tombstone, make_case())
        assert (await target.query("id-3", prepared)).state == QueryState.NEVER
        late = await target.dispatch(prepared, make_dispatching(slot, request_id="id-3"))
        assert (late.state, late.status) == (FAILED, 409)
        await target.close()
        await tombstone.close()

    run(scenario())


def test_query_that_cannot_be_asked_proves_nothing(service: Service) -> None:
    async def scenario() -> None:
        target = querying(service)
        await target.open()
        service.stop()
        answer = await target.query("id", target.prepare(make_slot(make_case(behave={}))))
        assert answer.state == QueryState.NO_PROOF
        await target.close()

    run(scenario())


def test_query_can_tell_by_a_value_in_the_body(service: Service) -> None:
    rules = {
        "landed": {"path": "$.state", "equals": "done"},
        "never": {"path": "$.state", "equals": "never"},
        "pending": {"status": [404], "path": "$.state", "equals": "not known"},
    }

    async def scenario() -> None:
        target = querying(service, **rules)
        await target.open()
        answer = await target.query("id", target.prepare(make_slot(make_case(behave={}))))
        assert answer.state == QueryState.PENDING
        await target.close()

    run(scenario())


# Tables


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "ftp://x/"}, 'target.url: "ftp://x/" is no address of a service'),
        ({"url": "http://user:pw@x/"}, "target.url: a URL with a user or password would be stored"),
        ({"url": "http://{{input}}/"}, "target.url: a placeholder cannot choose the host"),
        ({"url": "http://x:port/"}, 'target.url: "http://x:port/" is no URL'),
        ({"url": "http://x/{{inptu}}"}, 'there is no placeholder {{inptu}}. Did you mean "input"'),
        ({"json": {"a": ["{{user}}"]}}, "target.json.a[0]: there is no placeholder {{user}}"),
        ({"json": {"a{{input}}": 1}}, 'target.json: the key "a{{input}}" holds a placeholder'),
        ({"text": "x"}, "json and text both make the body"),
        ({"json": None, "text": "x", "method": "GET"}, 'method = "GET" has none'),
        ({"headers": {"Authorization": "Bearer x"}}, "target.headers.Authorization: a secret would be stored"),
        ({"headers": {"Content-Length": "1"}}, "tallystick sets this header itself"),
        ({"headers": {"Idempotency-Key": "1"}}, "tallystick sets this header itself"),
        ({"headers": {"a b": "1"}}, "this is no name of a header"),
        ({"headers": {"a": "1\r\nb: 2"}}, "a header holds one line"),
        ({"if_unknown": "query"}, 'if_unknown = "query" and the table query go together'),
        ({"query": {"url": "http://x/"}}, 'if_unknown = "query" and the table query go together'),
        (
            {"if_unknown": "query", "query": {"url": "http://other/{{request_id}}"}},
            "http://other is not the target's own origin",
        ),
        ({"if_unknown": "query", "query": {"url": "http://x/{{input}}"}}, "no URL for a request id"),
        ({"answer": "answer"}, 'target.answer: "answer" is not a path'),
        ({"answer": "$.a["}, 'target.answer: "$.a[" is not a JSONPath'),
        ({"usage": {}}, "target.usage: no path is given"),
        ({"usage": {"tokens": "$.a"}}, 'target.usage.tokens: there is no such key. Did you mean "tokens_in"'),
        ({"conections": 3}, 'target.conections: there is no such key. Did you mean "connections"'),
        ({"connections": "3"}, "target.connections: '3' cannot stand here"),
        ({"method": "FETCH"}, "target.method: 'FETCH' is not known here"),
    ],
    ids=str,
)
def test_table_with_a_fault_is_refused_in_one_line(options: dict[str, Any], text: str) -> None:
    with pytest.raises(WorkOrderInvalid) as caught:
        make(options.pop("url", "http://x/"), **options)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.place.startswith("target")


def test_certificates_that_are_not_there_are_told_before_any_call() -> None:
    with pytest.raises(TargetNotFound, match=r"target.ca_file: no.pem cannot be read"):
        run(make("https://127.0.0.1:1/", ca_file="no.pem").open())


def test_identity_holds_what_an_answer_depends_on_and_no_more() -> None:
    url = "http://x/"
    same = {"connections": 3, "connect_seconds": 1.0, "if_unknown": "repeat", "method": "POST", "body_bytes_max": 10}
    assert make(url).identity() == make(url, **same).identity()
    for other in ({"answer": "$.b"}, {"json": {"a": 1}}, {"headers": {"X": "1"}}, {"error": "$.e"}, {"version": "2"}):
        assert make(url).identity() != make(url, **other).identity()
    secret = make(url, headers={"Authorization": {"env": "KEY", "prefix": "Bearer "}}).identity()
    assert secret["headers"] == {"Authorization": {"env": "KEY", "prefix": "Bearer "}}
