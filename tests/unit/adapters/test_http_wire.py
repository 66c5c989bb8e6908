from __future__ import annotations

import asyncio
import socket

import pytest

from .http_makers import ANSWERED, REFUSED, UNKNOWN, ask, echo_server, listening, make, read_request, reply_of
from .makers import Service, dispatch_case, make_case, make_dispatching, make_slot, run, run_case


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


def test_cookies_are_not_kept() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            seen.append(await read_request(reader))
            writer.write(reply_of(b'{"answer": 1}').replace(b"\r\n\r\n", b"\r\nSet-Cookie: session=1; Path=/\r\n\r\n"))

    async def scenario() -> None:
        async with listening(serve) as url:
            target = make(url)
            await target.open()
            for _ in range(2):
                await dispatch_case(target, make_case(behave={}))
            await target.close()

    run(scenario())
    assert len(seen) == 2
    assert [request for request in seen if b"cookie" in request.lower()] == []
