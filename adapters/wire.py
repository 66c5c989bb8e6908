"""HTTP exchanges with one origin: one send, never repeated, every byte bounded.

The connections are httpcore's, which httpx is made of. The pool is our own: with 64 callers httpcore's looks at every
connection twice for every request, which cost nine tenths of the time of an exchange (2.1 ms against 0.22 ms).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from typing import Any, cast

import attrs
import httpcore

from ..runner.protocols import WireProgress
from .wire_body import BodyFault, read_body
from .wire_stream import Network, NotConnected, current_progress

__all__ = ["Reply", "Wire", "WireCut", "WireRequest"]


class WireCut(Exception):
    """Something of a request left, and no whole reply came; ``reason`` is ``wire.…``."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@attrs.frozen
class WireRequest:
    """What goes out: an origin-form target, headers as they are written, a whole body."""

    method: bytes
    target: bytes
    headers: Sequence[tuple[bytes, bytes]]
    content: bytes


@attrs.define
class Reply:
    """What came back so far: filled while it comes, so that a broken exchange can be told by what there was of it.

    The body stands in `WireProgress.partial`. ``fault`` says why a whole body cannot be used.
    """

    status: int = 0
    headers: Sequence[tuple[bytes, bytes]] = ()
    fault: BodyFault | None = None

    def header(self, name: bytes) -> str | None:
        """The first value of a header, by its lower-case name."""
        for key, value in self.headers:
            if key.lower() == name:
                return value.decode("latin-1")
        return None


class Wire:
    """A pool of connections to one origin; the last one used is the next one used."""

    def __init__(
        self,
        *,
        scheme: str,
        host: str,
        port: int,
        connect_seconds: float,
        keepalive_seconds: float,
        connections: int | None = None,
        ssl_context: ssl.SSLContext | None = None,
        proxy: str | None = None,
    ) -> None:
        self._origin = httpcore.Origin(scheme.encode(), host.encode("ascii"), port)
        self._network = Network(connect_seconds=connect_seconds)
        self._ssl_context = ssl_context
        self._keepalive_seconds = keepalive_seconds
        self._idle: list[tuple[float, httpcore.AsyncHTTPConnection]] = []
        self._room = contextlib.nullcontext() if connections is None else asyncio.Semaphore(connections)
        self._proxy = _proxy_pool(proxy, ssl_context, self._network) if proxy is not None else None

    async def send(self, request: WireRequest, reply: Reply, *, progress: WireProgress, body_bytes_max: int) -> None:
        """One exchange, which fills ``reply`` and ``progress``.

        Raises NotConnected where nothing of the request left, WireCut where something did and no whole reply came.
        """
        origin = self._origin
        url = httpcore.URL(scheme=origin.scheme, host=origin.host, port=origin.port, target=request.target)
        written = httpcore.Request(request.method, url, headers=request.headers, content=request.content)
        before = progress.bytes_sent
        token = current_progress.set(progress)
        try:
            async with self._room:
                await self._exchange(written, reply, progress.partial, body_bytes_max)
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as fault:
            if progress.bytes_sent == before:
                raise _nothing_left(fault) from None
            raise _cut(fault, reply) from None
        finally:
            current_progress.reset(token)
            if progress.bytes_sent != before:
                progress.wire_sends += 1

    async def _exchange(self, request: httpcore.Request, reply: Reply, body: bytearray, body_bytes_max: int) -> None:
        connection = await self._connection() if self._proxy is None else None
        response = await (connection or self._proxy).handle_async_request(request)  # type: ignore[union-attr]
        reply.status, reply.headers = response.status, response.headers
        try:
            encoding = reply.header(b"content-encoding") or ""
            await read_body(cast("Any", response.stream), body, encoding=encoding, bytes_max=body_bytes_max)
        except BodyFault as fault:
            reply.fault = fault
        finally:
            await response.aclose()
        if connection is None:
            return
        if connection.is_idle() and _has_nothing_more(connection):
            self._idle.append((asyncio.get_running_loop().time(), connection))
        else:
            await connection.aclose()

    async def _connection(self) -> httpcore.AsyncHTTPConnection:
        oldest = asyncio.get_running_loop().time() - self._keepalive_seconds
        while self._idle:
            since, connection = self._idle.pop()
            if since >= oldest and connection.is_available() and not connection.has_expired():
                return connection
            await connection.aclose()
        return httpcore.AsyncHTTPConnection(self._origin, self._ssl_context, network_backend=self._network)

    async def close(self) -> None:
        """Close every connection; idempotent."""
        while self._idle:
            await self._idle.pop()[1].aclose()
        if self._proxy is not None:
            await self._proxy.aclose()
        await asyncio.sleep(0)  # the loop closes the sockets one turn later, and may be about to end


def _has_nothing_more(connection: httpcore.AsyncHTTPConnection) -> bool:
    # Bytes after the reply would be taken for the reply to the next request. httpcore does not say whether there are
    # any; where its parser cannot be asked, the connection is not used again.
    parser = getattr(getattr(connection, "_connection", None), "_h11_state", None)
    trailing: tuple[bytes, bool] = getattr(parser, "trailing_data", (b"?", True))
    return not trailing[0]


def _proxy_pool(proxy: str, ssl_context: ssl.SSLContext | None, network: Network) -> httpcore.AsyncHTTPProxy:
    return httpcore.AsyncHTTPProxy(
        proxy, ssl_context=ssl_context, max_connections=None, max_keepalive_connections=0, network_backend=network
    )


def _nothing_left(fault: Exception) -> NotConnected:
    if isinstance(fault, httpcore.ProxyError):
        return NotConnected("connect.proxy", f"the proxy refuses ({fault})")
    if isinstance(fault, httpcore.LocalProtocolError):
        return NotConnected("request.invalid", f"the request cannot be written ({fault})")
    return NotConnected("connect.failed", f"the connection broke before anything was sent ({fault})")


def _cut(fault: Exception, reply: Reply) -> WireCut:
    if isinstance(fault, httpcore.ProxyError):
        return WireCut("wire.proxy", f"the proxy refuses ({fault})")
    if reply.status:
        return WireCut("wire.cut", f"{reply.status}, and the body broke off ({_why(fault)})")
    if isinstance(fault, httpcore.RemoteProtocolError) and "without sending" not in str(fault):
        return WireCut("wire.protocol", f"the reply is not HTTP ({_why(fault)})")
    if isinstance(fault, httpcore.RemoteProtocolError):
        return WireCut("wire.closed", "the connection was closed without a reply")
    return WireCut("wire.reset", f"the connection broke off before a reply ({_why(fault)})")


def _why(fault: Exception) -> str:
    return str(fault) or type(fault).__name__
