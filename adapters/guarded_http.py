"""httpx transports that make each request a call of the attempt which is going on.

The attempt is that of the code that asks (a context variable), so one client may serve all attempts of a process. A
request is committed before it is sent and its answer before the caller has the end of it. The transports serve clients
of httpx and of httpx2.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from types import ModuleType
from typing import Any, Final

import httpx

from ..ledger.errors import AttemptOver, UsageError
from ..runner.inner_protocols import InnerCalls, InnerSend, Replayed
from ..runner.protocols import Outcome
from .answers import current_dispatch
from .guarded_exchanges import Exchange, keeping, unheard
from .recorded_responses import UsageReader

__all__ = ["AsyncGuardedTransport", "GuardedTransport", "current_inner_calls"]

_NO_ATTEMPT: Final = "no attempt is going on here, so that nobody would account for this request"


def current_inner_calls() -> InnerCalls:
    """Those of the attempt that the caller is in; raises AttemptOver outside one, and UsageError in a plain target."""
    dispatching = current_dispatch.get(None)
    if dispatching is None:
        raise AttemptOver(
            _NO_ATTEMPT,
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

    def __init__(self, inner: Any, *, usage: UsageReader | None = None) -> None:
        self._inner = inner
        self._usage = usage

    def handle_request(self, request: Any) -> Any:
        calls = current_inner_calls()
        request.read()
        exchange = Exchange(request, self._usage)
        begun = calls.begin(exchange.asked)
        if isinstance(begun, Replayed):
            return exchange.replayed(begun)
        exchange.sent_as(begun)
        try:
            response = self._inner.handle_request(request)
        except BaseException as problem:
            with keeping(problem):
                calls.end(begun, exchange.outcome_of(problem))
            raise
        return exchange.passed_on(response, _recording(exchange.library)(exchange, calls, begun, response))

    def close(self) -> None:
        self._inner.close()


class AsyncGuardedTransport(httpx.AsyncBaseTransport):
    """The same for an event loop."""

    def __init__(self, inner: Any, *, usage: UsageReader | None = None) -> None:
        self._inner = inner
        self._usage = usage

    async def handle_async_request(self, request: Any) -> Any:
        calls = current_inner_calls()
        await request.aread()
        exchange = Exchange(request, self._usage)
        begun = await calls.begin_async(exchange.asked)
        if isinstance(begun, Replayed):
            return exchange.replayed(begun)
        exchange.sent_as(begun)
        try:
            response = await self._inner.handle_async_request(request)
        except BaseException as problem:
            with keeping(problem):
                await calls.end_async(begun, exchange.outcome_of(problem))
            raise
        return exchange.passed_on(response, _async_recording(exchange.library)(exchange, calls, begun, response))

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Passing:
    """An answer's stream as its reader gets it, recorded on the way."""

    def __init__(self, exchange: Exchange, calls: InnerCalls, begun: InnerSend, response: Any) -> None:
        self._stream, self._exchange, self._calls = response.stream, exchange, calls
        self._begun, self._response = begun, response
        self._is_ended = False


class _Recording(_Passing):
    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._stream:
                self._exchange.add(chunk)
                yield chunk
        except GeneratorExit:
            raise  # the reader has left; `close` comes next
        except BaseException as problem:
            with keeping(problem):
                self._end(self._exchange.outcome_of(problem))
            raise
        self._end(self._exchange.outcome(self._response))

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            if not self._is_ended:
                with unheard():
                    self._end(self._exchange.left(self._response))

    def _end(self, outcome: Outcome) -> None:
        self._is_ended = True
        self._calls.end(self._begun, outcome)


class _AsyncRecording(_Passing):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                self._exchange.add(chunk)
                yield chunk
        except GeneratorExit:
            raise  # the reader has left; `aclose` comes next
        except BaseException as problem:
            with keeping(problem):
                await self._end(self._exchange.outcome_of(problem))
            raise
        await self._end(self._exchange.outcome(self._response))

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            if not self._is_ended:
                with unheard():
                    await self._end(self._exchange.left(self._response))

    async def _end(self, outcome: Outcome) -> None:
        self._is_ended = True
        await self._calls.end_async(self._begun, outcome)


# A client looks whether a stream is one of its own library's.


@functools.cache
def _recording(library: ModuleType) -> Any:
    return type("Recording", (_Recording, library.SyncByteStream), {})


@functools.cache
def _async_recording(library: ModuleType) -> Any:
    return type("AsyncRecording", (_AsyncRecording, library.AsyncByteStream), {})
