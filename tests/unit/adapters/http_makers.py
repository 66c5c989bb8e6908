"""HTTP targets, and servers on the test's own loop for what must happen between two bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from tallystick.adapters.http_target import HttpTarget, from_work_order
from tallystick.ledger.states import DispatchState
from tallystick.runner.protocols import Outcome

from .makers import Service, make_case, run_case

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
