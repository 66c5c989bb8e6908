"""One request on its way through a guarded client: what it is known by, and what is kept of its answer.

For httpx and for httpx2 alike, to which SDKs of models have gone over: a request's class says of which it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final

import attrs
import httpx

from ..ledger.canonical import JsonValue, canonical_text
from ..ledger.errors import AttemptOver, LedgerClosed
from ..ledger.states import DispatchState
from ..runner.inner_protocols import InnerRequest, InnerSend, Replayed
from ..runner.protocols import Outcome, Usage
from .outcomes import one_line
from .pricing import current_prices
from .recorded_responses import (
    BODY_BYTES_MAX,
    UsageReader,
    model_of_body,
    read_recorded,
    state_of_status,
    usage_of_body,
    written,
)
from .secrets import Redactor, environment_redactor
from .usage_shapes import broken_off

__all__ = ["Exchange", "keeping", "unheard"]

_BODY_ENDS: Final = (b"data: [DONE]", b'"message_stop"', b'"response.completed"')
_STABLE: Final = frozenset({b"accept", b"content-type"})
_STABLE_ENDS: Final = (b"-version", b"-beta")
_BOUNDARY: Final = re.compile(r"boundary=\"?([^\";]+)")
_TAIL: Final = 256
_WAIT_MAX: Final = 366 * 24 * 3600.0
_NOT_SENT: Final = (
    "ConnectError",
    "ConnectTimeout",
    "PoolTimeout",
    "UnsupportedProtocol",
    "ProxyError",
    "LocalProtocolError",
)


class Exchange:
    """Made when a request is about to be sent; ``library`` is httpx or httpx2, whichever the request is of."""

    def __init__(self, request: Any, usage: UsageReader | None) -> None:
        self.library = httpx if isinstance(request, httpx.Request) else _library_of(request)
        self.request = request
        self.body = bytearray()
        self.is_cut = False
        self._usage = usage
        self._redactor = _redactor()
        self.asked = _asked(request, self._redactor)

    def sent_as(self, begun: InnerSend) -> None:
        """Put on the request what goes on the wire besides what it is known by."""
        self.request.headers["Idempotency-Key"] = begun.request_id
        self.request.headers["Accept-Encoding"] = "identity"  # what is kept can be read, and read again

    def passed_on(self, response: Any, stream: Any) -> Any:
        """The response with that stream in place of its own."""
        if not response.is_closed:  # as every response from a wire is
            response.stream = stream
            return response
        return self.library.Response(
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
        if isinstance(problem, _not_sent(self.library)):
            return Outcome(DispatchState.REFUSED, "connect.failed", told, bytes_sent=0, wire_sends=0)
        reason = "cancelled" if isinstance(problem, asyncio.CancelledError) else "wire.broken_off"
        raw = self._redactor.bytes(bytes(self.body))
        return Outcome(DispatchState.UNKNOWN, reason, told, raw=raw or None, raw_cut=bool(raw))

    def left(self, response: Any) -> Outcome:
        """What is known of an answer that its reader has closed before its end."""
        whole = self.outcome(response)
        if self.is_whole():
            return whole
        told = "the target closed the answer before its end"
        usage = self._usage_of(self._redactor.bytes(bytes(self.body)), response, is_whole=False)
        return attrs.evolve(
            whole, state=DispatchState.UNKNOWN, reason="stream.left", message=told, raw_cut=True, usage=usage
        )

    def _usage_of(self, body: bytes, response: Any, *, is_whole: bool) -> Usage | None:
        """What was used, with its cost by the model that answered, or else by the one that was asked."""
        content_type, prices = _last(response.headers.raw, b"content-type") or "", current_prices.get()
        usage = usage_of_body(body, content_type, self._usage)
        usage = usage if is_whole else broken_off(usage)
        if prices is None or usage is None:
            return usage
        named = (model_of_body(body, content_type), model_of_body(self.request.content, ""))
        known = (name for name in named if name in prices)
        return prices.priced(usage, next(known, next(filter(None, named), None)))

    def outcome(self, response: Any) -> Outcome:
        """What became of a request whose whole answer is here."""
        status, headers = response.status_code, response.headers.raw
        retry_after = _last(headers, b"retry-after")
        state = state_of_status(status, retry_after)
        body = self._redactor.bytes(bytes(self.body))
        is_answered = state is DispatchState.ANSWERED
        return Outcome(
            state,
            "" if is_answered else f"http.status.{status}",
            "" if is_answered else one_line(body[:400].decode("utf-8", "replace")),
            raw=written(status, self._without_secrets(headers), body), raw_cut=self.is_cut, status=status,
            usage=self._usage_of(body, response, is_whole=True),
            retry_after_seconds=_seconds(retry_after) if state is DispatchState.REFUSED else None,
        )  # fmt: skip

    def _without_secrets(self, headers: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        return ((name, self._redactor.bytes(value)) for name, value in headers)

    def replayed(self, known: Replayed) -> Any:
        """The answer that was kept; raises what was raised then."""
        if known.raw is None or (known.status is None and known.state is not DispatchState.ANSWERED):
            raise _raised_then(known, self.request, self.library)
        kept = read_recorded(known.raw, known.status)
        return self.library.Response(
            kept.status, headers=list(kept.headers), stream=self.library.ByteStream(kept.body),
            extensions={"http_version": b"HTTP/1.1", "tallystick_replayed": True},
        )  # fmt: skip


def unheard() -> contextlib.AbstractContextManager[None]:
    """For an answer that is closed by what clears up after its attempt: it is unknown, and there is nobody to tell."""
    return contextlib.suppress(AttemptOver, LedgerClosed)


@contextlib.contextmanager
def keeping(problem: BaseException) -> Iterator[None]:
    """What broke the request off is what its caller hears of; that its attempt had ended then is no news to it."""
    try:
        yield
    except AttemptOver as over:
        problem.add_note(str(over))


def _library_of(request: Any) -> ModuleType:
    return sys.modules[type(request).__module__.partition(".")[0]]


@functools.cache
def _not_sent(library: Any) -> tuple[type[BaseException], ...]:
    return tuple(getattr(library, name) for name in _NOT_SENT)


_known: tuple[dict[Any, Any], Redactor] | None = None


def _redactor() -> Redactor:
    """Of the environment as it is now, which a target may have changed since its last request."""
    global _known
    # Its own dictionary, since going through `os.environ` decodes each name and value: a tenth of what a request costs.
    now: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
    known = _known
    if known is None or known[0] != now:
        known = _known = (dict(now), environment_redactor())
    return known[1]


def _asked(request: Any, redactor: Redactor) -> InnerRequest:
    """What a request is known by: method, address, body, and the headers that change its meaning."""
    stable = tuple(sorted(_stable(request)))
    head, shown, boundary = _head(redactor, request.method, str(request.url), stable)
    body = request.content
    if boundary:
        body = body.replace(boundary, b"boundary")  # drawn anew for each request
    return InnerRequest(head, redactor.bytes(body), shown)


def _stable(request: Any) -> Iterator[tuple[bytes, bytes]]:
    for raw_name, value in request.headers.raw:
        name = raw_name.lower()
        if name in _STABLE or (name.endswith(_STABLE_ENDS) and not name.startswith(b"x-stainless")):
            yield name, value


# An agent asks the same address again and again.
@functools.lru_cache(maxsize=256)
def _head(redactor: Redactor, method: str, url: str, stable: tuple[tuple[bytes, bytes], ...]) -> tuple[str, str, bytes]:
    """The head as canonical text, a line for people, and the boundary of a body of several parts."""
    url = redactor.text(url)
    headers: dict[str, str] = {}
    for raw_name, raw_value in stable:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    boundary = _BOUNDARY.search(headers.get("content-type", ""))
    found = b""
    if boundary is not None and "multipart/" in headers["content-type"]:
        found = boundary[1].encode("latin-1")
        headers["content-type"] = headers["content-type"].replace(boundary[1], "boundary")
    told: JsonValue = {name: redactor.text(value) for name, value in headers.items()}
    return canonical_text({"method": method, "url": url, "headers": told}), f"{method} {url}", found


def _raised_then(known: Replayed, request: Any, library: Any) -> Exception:
    """The exception that the caller had then, by its name."""
    name, _, message = known.message.partition(": ")
    kind = getattr(library, name, None)
    if not (isinstance(kind, type) and issubclass(kind, library.RequestError)):
        kind, message = library.ReadError, known.message or known.reason
    raised: Exception = kind(message, request=request)
    return raised


def _last(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> str | None:
    found = [value for name, value in headers if name.lower() == wanted]
    return found[-1].decode("latin-1") if found else None


def _seconds(told: str | None) -> float | None:
    told = (told or "").strip()
    return min(float(told[:12]), _WAIT_MAX) if told.isascii() and told.isdigit() else None
