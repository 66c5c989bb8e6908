"""One connection's bytes, counted as they leave: the network below httpcore, on asyncio alone.

httpcore's own backend yields to the loop before each read and write and cannot say how many bytes left. This one
counts into the `WireProgress` of the dispatch that uses the connection, before each write, and sees at once when a
connection that nobody uses has been closed or has received bytes that nobody asked for.
"""

# ruff: noqa: ARG002 - the parameters are those of httpcore's interface

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Final

import httpcore

from ..runner.protocols import WireProgress

__all__ = ["Network", "NotConnected", "current_progress"]

current_progress: ContextVar[WireProgress] = ContextVar("tallystick_wire_progress")

_BUFFER_MAX: Final = 256 * 1024
_EARLY_ADDRESS_SECONDS: Final = 0.25  # RFC 8305: when to try the next address beside the first


class NotConnected(Exception):
    """No connection came about, so no byte of a request left; ``reason`` is ``connect.…``."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Network(httpcore.AsyncNetworkBackend):
    """Opens the connections of one target."""

    def __init__(self, *, connect_seconds: float) -> None:
        self._connect_seconds = connect_seconds

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_seconds):
                transport, stream = await loop.create_connection(
                    _Stream, host, port, happy_eyeballs_delay=_EARLY_ADDRESS_SECONDS
                )
        except TimeoutError:
            raise NotConnected("connect.timeout", f"no connection within {self._connect_seconds:g} s") from None
        except socket.gaierror as fault:
            raise NotConnected("connect.dns", f"the name {host} cannot be resolved ({fault.strerror})") from None
        except ConnectionRefusedError:
            raise NotConnected("connect.refused", f"{host}:{port} refuses connections") from None
        except (OSError, UnicodeError) as fault:
            raise NotConnected("connect.failed", f"{host}:{port} cannot be reached ({fault})") from None
        stream.transport = transport
        stream.connect_seconds = self._connect_seconds
        return stream

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Stream(asyncio.Protocol, httpcore.AsyncNetworkStream):
    transport: asyncio.Transport
    connect_seconds: float

    def __init__(self) -> None:
        self._received = bytearray()
        self._is_ended = False
        self._fault: BaseException | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._is_full = False
        self._is_reading_paused = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if not self._received and not self._is_ended:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if not self._received:
            if self._fault is not None:
                raise httpcore.ReadError(str(self._fault)) from self._fault
            return b""
        data = bytes(self._received[:max_bytes])
        del self._received[:max_bytes]
        if self._is_reading_paused and len(self._received) < _BUFFER_MAX:
            self._is_reading_paused = False
            self.transport.resume_reading()
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        if self._is_ended:
            raise httpcore.WriteError("the connection is closed")
        progress = current_progress.get(None)
        if progress is not None:
            progress.bytes_sent = (progress.bytes_sent or 0) + len(buffer)
        self.transport.write(buffer)
        if self._is_full:
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_seconds):
                transport = await loop.start_tls(self.transport, self, ssl_context, server_hostname=server_hostname)
        except TimeoutError:
            self.transport.abort()
            what = f"no TLS connection to {server_hostname} within {self.connect_seconds:g} s"
            raise NotConnected("connect.timeout", what) from None
        except OSError as fault:
            self.transport.abort()
            raise NotConnected("connect.tls", f"no TLS connection to {server_hostname} ({fault})") from None
        except BaseException:
            self.transport.abort()
            raise
        if transport is None:
            raise NotConnected("connect.tls", f"{server_hostname} closed the connection during the TLS handshake")
        self.transport = transport
        return self

    async def aclose(self) -> None:
        self._is_ended = True
        self.transport.abort() if self._is_full else self.transport.close()

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return bool(self._received) or self._is_ended
        return self.transport.get_extra_info(info)

    # What the loop calls.

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > _BUFFER_MAX and not self._is_reading_paused:
            self._is_reading_paused = True
            self.transport.pause_reading()
        self._wake_reader()

    def eof_received(self) -> None:
        self._is_ended = True
        self._wake_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_ended = True
        self._fault = exc
        self._wake_reader()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
