"""From what a target says of a dispatch to what the ledger keeps of it."""

from __future__ import annotations

from typing import Any

from ..ledger.canonical import canonical_text, printable
from ..ledger.records import DispatchFacts
from ..ledger.states import DispatchState
from .protocols import MISSING, USAGE_MAX, Outcome, Usage, WireProgress

__all__ = ["facts_of", "interrupted_outcome", "said_of"]

RAW_BYTES_MAX = 1 << 20


def facts_of(outcome: Outcome, *, duration_us: int | None, settled_by: str = "wire") -> DispatchFacts:
    """The facts to store; the raw bytes are cut at a mebibyte, and said to be. None is an unknown duration."""
    usage = outcome.usage or Usage()
    raw, cut = outcome.raw, outcome.raw_cut
    if raw is not None and len(raw) > RAW_BYTES_MAX:
        raw, cut = raw[:RAW_BYTES_MAX], True
    wait = outcome.retry_after_seconds
    seen = usage.seen or Usage()
    return DispatchFacts(
        outcome.state,
        printable(outcome.reason),
        printable(outcome.message),
        duration_us,
        outcome.bytes_sent,
        outcome.wire_sends,
        outcome.status,
        raw,
        cut,
        None if wait is None else round(wait * 1_000_000),
        _count(usage.tokens_in),
        _count(usage.tokens_out),
        _count(usage.cost_nanousd),
        _usage_text(usage),
        settled_by,
        _is_charged(outcome),
        tokens_out_seen=_count(seen.tokens_out),
        cost_nanousd_seen=_count(seen.cost_nanousd),
    )


def interrupted_outcome(progress: WireProgress, *, reason: str, message: str) -> Outcome:
    """What is known of a dispatch that was broken off: refused when it is certain that nothing left, else unknown."""
    partial = bytes(progress.partial) or None
    if progress.bytes_sent == 0:
        return Outcome(DispatchState.REFUSED, reason, message, bytes_sent=0, wire_sends=progress.wire_sends)
    return Outcome(
        DispatchState.UNKNOWN,
        reason,
        message,
        raw=partial,
        bytes_sent=progress.bytes_sent,
        wire_sends=max(1, progress.wire_sends),
    )


def _is_charged(outcome: Outcome) -> bool:
    # What reached the target counts as a dispatch, and what never left costs nothing.
    return not (outcome.state in (DispatchState.REFUSED, DispatchState.FAILED) and outcome.bytes_sent == 0)


def _count(used: object) -> int | None:
    # Not every adapter is ours: what is no count is not known, and an answer is never lost for it.
    return used if isinstance(used, int) and not isinstance(used, bool) and 0 <= used <= USAGE_MAX else None


def _usage_text(usage: Usage) -> str | None:
    """What was reported, what was wrong with it, and how its tokens are parted; read again by reports."""
    kept: dict[str, Any] = {"problems": list(usage.problems)}
    if classes := {str(one): count for one, count in usage.classes.items() if _count(count) is not None}:
        kept["classes"] = classes
    if usage.besides:
        kept["besides"] = list(usage.besides)
    if usage.seen is not None:
        kept["seen"] = {
            "tokens_out": _count(usage.seen.tokens_out), "cost_nanousd": _count(usage.seen.cost_nanousd),
        }  # fmt: skip
    if usage.raw is MISSING:
        return canonical_text(kept) if len(kept) > 1 or usage.problems else None
    try:
        return canonical_text({**kept, "raw": usage.raw})  # type: ignore[dict-item]
    except (TypeError, ValueError) as problem:
        kept["problems"] = [*usage.problems, f"the reported usage is not JSON: {problem}"]
        return canonical_text(kept)


def said_of(outcome: Outcome) -> str:
    """Why there is no answer, in one text without a secret."""
    return f"{outcome.reason}: {outcome.message}" if outcome.message else str(outcome.reason)
