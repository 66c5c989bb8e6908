"""What became of an HTTP exchange, told from its status, its body, or where it broke off."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Collection
from typing import Final

import attrs

from ..ledger.states import DispatchState
from ..runner.protocols import Outcome
from .bodies import BodyReader
from .outcomes import one_line
from .wire import Reply

__all__ = ["StatusRules", "outcome_of_cut", "outcome_of_reply", "retry_after_seconds"]

_ERROR_BODY_MAX: Final = 64 * 1024
_RETRY_AFTER_MAX: Final = 366 * 24 * 3600.0


@attrs.frozen
class StatusRules:
    """Which statuses say *not done*, and which do not say whether it was done."""

    refused: Collection[int] | None  # None: 429, and 503 with Retry-After
    unknown: Collection[int]

    def state(self, reply: Reply) -> DispatchState:
        """ANSWERED for 200 to 299, before the body is read."""
        status = reply.status
        if status in self.unknown:
            return DispatchState.UNKNOWN
        if self._is_refusal(reply):
            return DispatchState.REFUSED
        return DispatchState.ANSWERED if 200 <= status < 300 else DispatchState.FAILED

    def _is_refusal(self, reply: Reply) -> bool:
        if self.refused is not None:
            return reply.status in self.refused
        return reply.status == 429 or (reply.status == 503 and reply.header(b"retry-after") is not None)


def outcome_of_reply(reply: Reply, body: bytes, *, statuses: StatusRules, bodies: BodyReader) -> Outcome:
    """The outcome of a whole reply."""
    state = statuses.state(reply)
    if state is not DispatchState.ANSWERED:
        return _of_status(reply, body, state, bodies)
    if reply.fault is not None:
        told = f"{reply.status}, and {reply.fault}"
        return Outcome(
            state=DispatchState.FAILED,
            reason=reply.fault.reason,
            message=told,
            raw=body[:_ERROR_BODY_MAX],
            raw_cut=True,
            status=reply.status,
        )
    read = bodies.outcome(body, told=str(reply.status), charset=_charset(reply))
    is_kept = read.state in {DispatchState.ANSWERED, DispatchState.UNKNOWN}
    return attrs.evolve(
        read,
        raw=body if is_kept else body[:_ERROR_BODY_MAX],
        raw_cut=not is_kept and len(body) > _ERROR_BODY_MAX,
        status=reply.status,
        retry_after_seconds=retry_after_seconds(reply) if read.state is DispatchState.REFUSED else None,
    )


def outcome_of_cut(
    reply: Reply, body: bytes, *, reason: str, message: str, statuses: StatusRules, bodies: BodyReader
) -> Outcome:
    """The outcome of a reply that broke off: its status tells where it is an error, else it is unknown."""
    if reply.status:
        state = statuses.state(reply)
        if state in {DispatchState.FAILED, DispatchState.REFUSED}:
            return attrs.evolve(_of_status(reply, body, state, bodies), raw_cut=True)
    return Outcome(
        state=DispatchState.UNKNOWN,
        reason=reason,
        message=one_line(message),
        raw=body or None,
        raw_cut=bool(body),
        usage=bodies.usage_of_cut(body) if body and 200 <= reply.status < 300 else None,
        status=reply.status or None,
    )


def retry_after_seconds(reply: Reply, *, now: float | None = None) -> float | None:
    """``Retry-After`` in both of its forms (RFC 9110, 10.2.3) as seconds from now; never negative, at most a year.

    A date is taken against the reply's own ``Date`` where it has one: the two clocks need not agree.
    """
    told = (reply.header(b"retry-after") or "").strip()
    if told.isascii() and told.isdigit():
        return min(float(told[:12]), _RETRY_AFTER_MAX)
    until = _instant(told)
    if until is None:
        return None
    since = _instant(reply.header(b"date") or "")
    if since is None:
        since = time.time() if now is None else now
    return min(max(0.0, until - since), _RETRY_AFTER_MAX)


def _instant(told: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(told).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _of_status(reply: Reply, body: bytes, state: DispatchState, bodies: BodyReader) -> Outcome:
    reason = "http.status"
    return Outcome(
        state=state,
        # With its code, so that a work order can retry the one failure and not the other.
        reason=f"{reason}.{reply.status}" if state is DispatchState.FAILED else reason,
        message=_told(reply, body),
        raw=body[:_ERROR_BODY_MAX],
        raw_cut=reply.fault is not None or len(body) > _ERROR_BODY_MAX,
        usage=bodies.usage_of(body),
        status=reply.status,
        retry_after_seconds=retry_after_seconds(reply),
    )


def _told(reply: Reply, body: bytes) -> str:
    excerpt = one_line(body[:800].decode("utf-8", "replace"), length_max=200)
    if not excerpt:
        return f"{reply.status}, no body"
    return f"{reply.status}: {excerpt}" if body.lstrip()[:1] in {b"{", b"["} else f"{reply.status}, not JSON: {excerpt}"


def _charset(reply: Reply) -> str:
    _, found, charset = (reply.header(b"content-type") or "").lower().partition("charset=")
    return charset.split(";")[0].strip(" \"'") if found else "utf-8"
