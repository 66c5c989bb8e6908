"""httpx transports that make each request a call of the attempt which is going on.

The attempt is that of the code that asks (a context variable), so one client may serve all attempts of a process. A
request is committed before it is sent and its answer before the caller has the end of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, cast

import attrs
import httpx

from ..ledger.canonical import JsonValue
from ..ledger.errors import AttemptOver, UsageError
from ..ledger.states import DispatchState
from ..runner.inner_protocols import InnerCalls, InnerRequest, InnerSend, Replayed
from ..runner.protocols import Outcome
from .answers import current_dispatch
from .outcomes import one_line
from .recorded_responses import BODY_BYTES_MAX, UsageReader, read_recorded, state_of_status, usage_of_body, written
from .secrets import Redactor, environment_redactor

__all__ = ["AsyncGuardedTransport", "GuardedTransport", "current_inner_calls"]

_BODY_ENDS: Final = (b"data: [DONE]", b'"message_stop"', b'"response.completed"')
_STABLE: Final = frozenset({"accept", "content-type"})
_BOUNDARY: Final = re.compile(r"boundary=\"?([^\";]+)")
_TAIL: Final = 256
_WAIT_MAX: Final = 366 * 24 * 3600.0
_NOT_SENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
    httpx.ProxyError,
    httpx.LocalProtocolError,
)


def current_inner_calls() -> InnerCalls:
    """Those of the attempt that the caller is in; raises AttemptOver outside one, and UsageError in a plain target."""
    dispatching = current_dispatch.get(None)
    if dispatching is None:
        raise AttemptOver(
            "no attempt is going on here, so that nobody would account for this request",
            "use the client inside a target's function; a thread of your own needs contextvars.copy_context()",
        )
    if dispatching.inner is None:
        raise UsageError(
            "this target is one call by itself, and its requests are not calls of the ledger",
            "declare it as @target(guarded=True), or give its function a parameter named http",
        )
    return dispatching.inner


class GuardedTransport(httpx.BaseTransport):
    """Around another transport, which sends; ``usage`` reads what a response says that it used."""

    def __init__(self, inner: httpx.BaseTransport, *, usage: UsageReader | None = None) -> None:
        self._inner = inner
        self._usage = usage

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        calls = current_inner_calls()
        request.read()
        exchange = _Exchange(request, self._usage)
        begun = calls.begin(exchange.asked)
        if isinstance(begun, Replayed):
            return exchange.replayed(begun)
        exchange.sent_as(begun)
        try:
            response = self._inner.handle_request(request)
        except BaseException as problem:
            with _keeping(problem):
                calls.end(begun, exchange.outcome_of(problem))
            raise
        stream = _Recording(cast("httpx.SyncByteStream", response.stream), exchange, calls, begun, response)
        return exchange.passed_on(response, stream)

    def close(self) -> None:
        self._inner.close()


class AsyncGuardedTransport(httpx.AsyncBaseTransport):
    """The same for an event loop."""

    def __init__(self, inner: httpx.AsyncBaseTransport, *, usage: UsageReader | None = None) -> None:
        self._inner = inner
        self._usage = usage

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        calls = current_inner_calls()
        await request.aread()
        exchange = _Exchange(request, self._usage)
        begun = await calls.begin_async(exchange.asked)
        if isinstance(begun, Replayed):
            return exchange.replayed(begun)
        exchange.sent_as(begun)
        try:
            response = await self._inner.handle_async_request(request)
        except BaseException as problem:
            with _keeping(problem):
                await _to_its_end(calls, begun, exchange.outcome_of(problem))
            raise
        stream = _AsyncRecording(cast("httpx.AsyncByteStream", response.stream), exchange, calls, begun, response)
        return exchange.passed_on(response, stream)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Exchange:
    """One request on its way, and what is kept of its answer."""

    def __init__(self, request: httpx.Request, usage: UsageReader | None) -> None:
        self.request = request
        self.body = bytearray()
        self.is_cut = False
        self._usage = usage
        self._redactor = _redactor(tuple(os.environb.items()))
        self.asked = _asked(request, self._redactor)

    def sent_as(self, begun: InnerSend) -> None:
        self.request.headers["Idempotency-Key"] = begun.request_id
        self.request.headers["Accept-Encoding"] = "identity"  # what is kept can be read, and read again

    def passed_on(self, response: httpx.Response, stream: Any) -> httpx.Response:
        return httpx.Response(
            response.status_code, headers=response.headers, stream=stream, extensions=response.extensions
        )

    def add(self, chunk: bytes) -> None:
        room = BODY_BYTES_MAX - len(self.body)
        self.body += chunk[:room] if len(chunk) > room else chunk
        self.is_cut = self.is_cut or len(chunk) > room

    def is_whole(self) -> bool:
        """Whether an event stream that its reader has left had come to its last event."""
        return any(end in self.body[-_TAIL:] for end in _BODY_ENDS)

    def outcome_of(self, problem: BaseException) -> Outcome:
        """What is known of a request that broke off."""
        told = one_line(self._redactor.text(f"{type(problem).__name__}: {problem}"))
        if isinstance(problem, _NOT_SENT):
            return Outcome(DispatchState.REFUSED, "connect.failed", told, bytes_sent=0, wire_sends=0)
        reason = "cancelled" if isinstance(problem, asyncio.CancelledError) else "wire.broken_off"
        return Outcome(DispatchState.UNKNOWN, reason, told, raw=bytes(self.body) or None, raw_cut=bool(self.body))

    def left(self, response: httpx.Response) -> Outcome:
        """What is known of an answer that its reader has closed before its end."""
        whole = self.outcome(response)
        if self.is_whole():
            return whole
        told = "the target closed the answer before its end"
        return attrs.evolve(whole, state=DispatchState.UNKNOWN, reason="stream.left", message=told, raw_cut=True)

    def outcome(self, response: httpx.Response) -> Outcome:
        """What became of a request whose whole answer is here."""
        status, retry_after = response.status_code, response.headers.get("retry-after")
        state = state_of_status(status, retry_after)
        body = self._redactor.bytes(bytes(self.body))
        content_type = response.headers.get("content-type", "")
        return Outcome(
            state,
            "" if state is DispatchState.ANSWERED else f"http.status.{status}",
            "" if state is DispatchState.ANSWERED else one_line(body[:400].decode("utf-8", "replace")),
            raw=written(status, response.headers.items(), body), raw_cut=self.is_cut, status=status,
            usage=usage_of_body(body, content_type, self._usage),
            retry_after_seconds=_seconds(retry_after) if state is DispatchState.REFUSED else None,
        )  # fmt: skip

    def replayed(self, known: Replayed) -> httpx.Response:
        """The answer that was kept; raises what was raised then."""
        if known.raw is None or (known.status is None and known.state is not DispatchState.ANSWERED):
            raise _raised_then(known, self.request)
        kept = read_recorded(known.raw, known.status)
        return httpx.Response(
            kept.status, headers=list(kept.headers), stream=httpx.ByteStream(kept.body),
            extensions={"http_version": b"HTTP/1.1", "tallystick_replayed": True},
        )  # fmt: skip


class _Recording(httpx.SyncByteStream):
    def __init__(
        self, stream: httpx.SyncByteStream, exchange: _Exchange, calls: InnerCalls, begun: InnerSend,
        response: httpx.Response,
    ) -> None:  # fmt: skip
        self._stream, self._exchange, self._calls = stream, exchange, calls
        self._begun, self._response = begun, response
        self._is_ended = False

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._stream:
                self._exchange.add(chunk)
                yield chunk
        except GeneratorExit:
            raise  # the reader has left; `close` comes next
        except BaseException as problem:
            with _keeping(problem):
                self._end(self._exchange.outcome_of(problem))
            raise
        self._end(self._exchange.outcome(self._response))

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            if not self._is_ended:
                self._end(self._exchange.left(self._response))

    def _end(self, outcome: Outcome) -> None:
        self._is_ended = True
        self._calls.end(self._begun, outcome)


class _AsyncRecording(httpx.AsyncByteStream):
    def __init__(
        self, stream: httpx.AsyncByteStream, exchange: _Exchange, calls: InnerCalls, begun: InnerSend,
        response: httpx.Response,
    ) -> None:  # fmt: skip
        self._stream, self._exchange, self._calls = stream, exchange, calls
        self._begun, self._response = begun, response
        self._is_ended = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                self._exchange.add(chunk)
                yield chunk
        except GeneratorExit:
            raise  # the reader has left; `aclose` comes next
        except BaseException as problem:
            with _keeping(problem):
                await self._end(self._exchange.outcome_of(problem))
            raise
        await self._end(self._exchange.outcome(self._response))

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            if not self._is_ended:
                await self._end(self._exchange.left(self._response))

    async def _end(self, outcome: Outcome) -> None:
        self._is_ended = True
        await _to_its_end(self._calls, self._begun, outcome)


async def _to_its_end(calls: InnerCalls, begun: InnerSend, outcome: Outcome) -> None:
    """Commit, whoever is cancelled meanwhile: an answer that is not committed would be paid for again."""
    await asyncio.shield(asyncio.ensure_future(calls.end_async(begun, outcome)))


@contextlib.contextmanager
def _keeping(problem: BaseException) -> Iterator[None]:
    """What broke the request off is what its caller hears of; that its attempt had ended then is no news to it."""
    try:
        yield
    except AttemptOver as over:
        problem.add_note(str(over))


@functools.lru_cache(maxsize=1)
def _redactor(environment: tuple[tuple[bytes, bytes], ...]) -> Redactor:  # noqa: ARG001 - it is what the cache goes by
    return environment_redactor()


def _asked(request: httpx.Request, redactor: Redactor) -> InnerRequest:
    """What a request is known by: method, address, body, and the headers that change its meaning."""
    body, url = request.content, redactor.text(str(request.url))
    headers = {name: value for name, value in request.headers.items() if _is_stable(name)}
    boundary = _BOUNDARY.search(headers.get("content-type", ""))
    if boundary is not None and "multipart/" in headers["content-type"]:
        body = body.replace(boundary[1].encode("latin-1"), b"boundary")  # drawn anew for each request
        headers["content-type"] = headers["content-type"].replace(boundary[1], "boundary")
    head: Mapping[str, JsonValue] = {
        "method": request.method, "url": url, "headers": {key: redactor.text(headers[key]) for key in sorted(headers)},
    }  # fmt: skip
    return InnerRequest(head, redactor.bytes(body), f"{request.method} {url}")


def _is_stable(name: str) -> bool:
    return name in _STABLE or (name.endswith(("-version", "-beta")) and not name.startswith("x-stainless"))


def _raised_then(known: Replayed, request: httpx.Request) -> httpx.HTTPError:
    """The exception that the caller had then, by its name."""
    name, _, message = known.message.partition(": ")
    kind = getattr(httpx, name, None)
    if isinstance(kind, type) and issubclass(kind, httpx.RequestError):
        return kind(message, request=request)
    return httpx.ReadError(known.message or known.reason, request=request)


def _seconds(told: str | None) -> float | None:
    told = (told or "").strip()
    return min(float(told[:12]), _WAIT_MAX) if told.isascii() and told.isdigit() else None
