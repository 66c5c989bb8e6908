"""Calls of a harness of somebody's own: in a block (`EmbeddedCall`), or settled when it knows (`EmbeddedReservation`).

The intent of either is durable before the harness may send. What is said of it is committed once; where nothing is
said, its outcome is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any, Final

from ..ledger.canonical import JsonValue, canonical_bytes
from ..ledger.errors import UsageError
from ..ledger.states import DispatchState
from .inner_calls import AttemptInnerCalls
from .inner_protocols import InnerRequest, InnerSend, Replayed
from .protocols import Outcome, Usage

__all__ = ["EmbeddedCall", "EmbeddedReservation", "GivenUsage", "told_message", "told_reason"]

GivenUsage = Usage | Mapping[str, object] | None
"""What a call used: `Usage`, or a mapping with its names. What is neither is not known, and loses no answer."""

_WAIT_MAX_SECONDS: Final = 365 * 86_400.0
_NAMES: Final = ("tokens_in", "tokens_out", "cost_nanousd")


class EmbeddedCall:
    """One call of an attempt. Inside its block it may be sent once; say what became of it before leaving.

    ``known`` is the answer that an earlier attempt had, as bytes; then nothing is to be sent.
    """

    def __init__(self, inner: AttemptInnerCalls, request: InnerRequest) -> None:
        self._inner = inner
        self._request = request
        self._send: InnerSend | None = None
        self._outcome: Outcome | None = None
        self.known: bytes | None = None

    @property
    def request_id(self) -> str:
        """The durable id of this call, to go on the wire; empty where the answer is known."""
        return "" if self._send is None else self._send.request_id

    async def __aenter__(self) -> EmbeddedCall:
        begun = await self._inner.begin_async(self._request)
        if isinstance(begun, Replayed):
            self.known = begun.raw or b""
        else:
            self._send = begun
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._send is not None:
            outcome = self._outcome or _unsaid(raised)
            await self._inner.end_async(self._send, outcome)

    def answer(self, body: JsonValue | bytes = None, *, usage: GivenUsage = None, status: int | None = None) -> None:
        """A whole answer; ``body`` is what is kept of it, and what a replay gives back."""
        self._outcome = _answered(None, usage, status)  # paid for, also where its body cannot be kept
        self._outcome = _answered(_kept(body), usage, status)

    def fail(
        self, message: str = "", *, reason: str = "call.failed", usage: GivenUsage = None, status: int | None = None
    ) -> None:
        """An answer that is an error; it is charged what it used, or its bound."""
        self._outcome = _failed(message, reason, usage, status)

    def refuse(self, message: str = "", *, retry_after_seconds: float | None = None, sent: bool = True) -> None:
        """Provably not done; ``sent=False``: nothing left, and it counts as no dispatch."""
        self._outcome = _refused(message, retry_after_seconds, sent=sent)


class EmbeddedReservation:
    """Room for one call that is sent later, by whoever; ``await attempt.reserve(…)``, or ``async with`` for its block.

    Its intent is durable, and its bound is set aside until it is settled, by one of `answer`, `fail`, `refuse` and
    `release`: once, and durably when that returns. One that is not settled when its block, or its attempt, ends is
    unknown: it may have been sent. ``known`` is the answer that an earlier attempt had; then nothing is to be sent.
    """

    def __init__(self, inner: AttemptInnerCalls, request: InnerRequest) -> None:
        self._inner = inner
        self._request = request
        self._send: InnerSend | None = None
        self._is_settled = False
        self.known: bytes | None = None

    @property
    def request_id(self) -> str:
        """The durable id of the call, to go on the wire; empty where the answer is known."""
        return "" if self._send is None else self._send.request_id

    @property
    def is_settled(self) -> bool:
        """Whether something was said of it, or an earlier attempt had its answer."""
        return self._is_settled

    def __await__(self) -> Generator[Any, None, EmbeddedReservation]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> EmbeddedReservation:
        if self._send is not None or self._is_settled:
            return self  # ``async with await attempt.reserve(…)``
        begun = await self._inner.begin_async(self._request)
        if isinstance(begun, Replayed):
            self.known, self._is_settled = begun.raw or b"", True
        else:
            self._send = begun
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_settled:
            await self._settle(_unsaid(raised))

    async def answer(
        self, body: JsonValue | bytes = None, *, usage: GivenUsage = None, status: int | None = None
    ) -> None:
        """A whole answer; ``body`` is what is kept of it, and what a replay gives back."""
        try:
            raw = _kept(body)
        except UsageError:
            await self._settle(_answered(None, usage, status))  # paid for, though its body cannot be kept
            raise
        await self._settle(_answered(raw, usage, status))

    async def fail(
        self, message: str = "", *, reason: str = "call.failed", usage: GivenUsage = None, status: int | None = None
    ) -> None:
        """An answer that is an error; it is charged what it used, or its bound."""
        await self._settle(_failed(message, reason, usage, status))

    async def refuse(self, message: str = "", *, retry_after_seconds: float | None = None) -> None:
        """It was sent, and is provably not done; it counts as a dispatch."""
        await self._settle(_refused(message, retry_after_seconds, sent=True))

    async def release(self, message: str = "") -> None:
        """It was never sent: its room is given back, and nothing is charged."""
        await self._settle(_refused(message, None, sent=False))

    async def _settle(self, outcome: Outcome) -> None:
        if self.known is not None:
            return  # nothing was set aside
        if self._send is None:
            raise UsageError("nothing is reserved yet", "await attempt.reserve(…), or use it with `async with`")
        if self._is_settled:
            raise UsageError(f"call {self.request_id} is settled already", "say once what became of it")
        self._is_settled = True
        await self._inner.end_async(self._send, outcome)


def _unsaid(raised: BaseException | None) -> Outcome:
    if raised is None:
        return Outcome(DispatchState.UNKNOWN, "call.unsaid", "its block was left without a word")
    return Outcome(DispatchState.UNKNOWN, "call.broken_off", f"{type(raised).__name__}: {raised}")


def _kept(body: JsonValue | bytes) -> bytes:
    if isinstance(body, bytes):
        return body
    try:
        return canonical_bytes(body)
    except (TypeError, ValueError) as fault:
        raise UsageError(
            f"the answer cannot be kept: {fault}", "give bytes or JSON; the call is recorded as answered, without it"
        ) from fault


def _answered(raw: bytes | None, usage: GivenUsage, status: object) -> Outcome:
    return Outcome(DispatchState.ANSWERED, answer=None, raw=raw, usage=_usage(usage), status=_status(status))


def _failed(message: object, reason: object, usage: GivenUsage, status: object) -> Outcome:
    return Outcome(
        DispatchState.FAILED, told_reason(reason, "call.failed"), told_message(message), usage=_usage(usage),
        status=_status(status),
    )  # fmt: skip


def _refused(message: object, retry_after_seconds: object, *, sent: bool) -> Outcome:
    return Outcome(
        DispatchState.REFUSED, "call.refused", told_message(message), retry_after_seconds=_wait(retry_after_seconds),
        bytes_sent=None if sent else 0,
    )  # fmt: skip


# What a harness says beside the outcome must not lose it: of what is no text and no number, only that is kept.


def told_reason(given: object, default: str) -> str:
    """The reason that a harness gives, or ours where it gives none."""
    return given if isinstance(given, str) and given else default


def told_message(given: object) -> str:
    """What a harness says, as text: most give an exception sooner or later."""
    return given if isinstance(given, str) else "" if given is None else str(given)


def _status(given: object) -> int | None:
    return given if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 2**31 else None


def _wait(given: object) -> float | None:
    is_number = isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
    return min(max(0.0, float(given)), _WAIT_MAX_SECONDS) if is_number else None  # type: ignore[arg-type]


def _usage(given: object) -> Usage | None:
    if given is None or isinstance(given, Usage):
        return given
    if not isinstance(given, Mapping):
        return Usage(problems=(f"the usage is {type(given).__name__}, and neither ts.Usage nor a mapping",))
    counts: dict[str, Any] = {name: given.get(name) for name in _NAMES}
    odd = tuple(f"{name} is not known" for name in given if name not in _NAMES)
    return Usage(**counts, problems=odd)
