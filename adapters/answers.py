"""What a Python target says to tallystick: an `Answer`, or why there is none.

A target returns any JSON value, or an `Answer` where it has more to say. It raises `Refused` where it knows that
nothing was done, `Failed` where the answer is an error, `OutcomeUnknown` where it cannot know. Every other exception
counts as failed, but for those of networks that broke off after something may have been sent: these are unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar

import attrs

from ..ledger.canonical import JsonValue
from ..runner.protocols import MISSING, Dispatching, Missing, Usage, told_evidence, told_flags

__all__ = ["Answer", "Failed", "OutcomeUnknown", "Refused", "current_dispatch", "request_id"]

current_dispatch: ContextVar[Dispatching] = ContextVar("tallystick_dispatch")


@attrs.frozen
class Answer:
    """An answer with what belongs to it.

    ``usage`` is a `Usage`, or a mapping with ``tokens_in``, ``tokens_out`` and ``cost_usd``. ``context`` is what the
    answer was made from (retrieved passages), ``tool_calls`` what was called for it; both are kept as evidence beside
    what ``evidence`` holds. ``flags`` are facts about the answer: ``truncated``, ``filtered``.
    """

    value: JsonValue
    usage: Usage | Mapping[str, JsonValue] | None = None
    context: JsonValue | Missing = MISSING
    tool_calls: Sequence[JsonValue] | Missing = MISSING
    evidence: Mapping[str, JsonValue] = attrs.field(factory=dict, converter=told_evidence)
    flags: Sequence[str] = attrs.field(default=(), converter=told_flags)


class Refused(Exception):
    """Raised by a target that knows that nothing was done; it may be asked again after ``retry_after_seconds``."""

    def __init__(self, message: str = "", *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Failed(Exception):
    """Raised by a target whose answer is an error; ``reason`` is a stable dotted token of its own."""

    def __init__(
        self,
        message: str = "",
        *,
        reason: str = "target.failed",
        usage: Usage | Mapping[str, JsonValue] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.usage = usage


class OutcomeUnknown(Exception):
    """Raised by a target that sent something and does not know what became of it."""


def request_id() -> str:
    """The durable id of the dispatch that the caller is in; raises LookupError outside one.

    Stays the same when the same request is sent again, and so is what a target passes on as an idempotency key. In a
    guarded target it is that of the step that the caller is in; its requests carry theirs by themselves.
    """
    found = current_dispatch.get().request_id
    if not found:
        raise LookupError("a guarded target has no request id of its own; ask inside a step")
    return found
