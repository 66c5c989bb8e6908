"""What became of a request to an Atlas device, told from its reply."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Final

import attrs

from ..ledger.canonical import JsonValue
from ..ledger.states import DispatchState
from ..runner.device_protocols import CHECKPOINT_REFUSED, LEASE_LOST, REBOOTED, SESSION_LOST
from ..runner.protocols import Missing, Outcome, QueryAnswer, QueryState
from .atlas_link import BadReply
from .atlas_messages import ErrorReply, OutcomeReply, QueryReply
from .outcomes import one_line
from .paths import Path
from .usage_shapes import usage_of_mapping

__all__ = ["answer_of_query", "outcome_of_bad_reply", "outcome_of_error", "outcome_of_reply"]

_REFUSED, _FAILED = DispatchState.REFUSED, DispatchState.FAILED
_ERRORS: Final[Mapping[str, tuple[DispatchState, str]]] = {
    "request.invalid": (_FAILED, "request.invalid"),
    "session.unknown": (_FAILED, SESSION_LOST),
    "fence.stale": (_REFUSED, LEASE_LOST),
    "request.tombstoned": (_REFUSED, "request.tombstoned"),
    "device.rebooted": (_REFUSED, REBOOTED),
    "turn.unexpected": (_FAILED, SESSION_LOST),
    "device.other": (_REFUSED, "device.other"),
    "request.reused": (_FAILED, "request.reused"),
    "checkpoint.refused": (_FAILED, CHECKPOINT_REFUSED),
    "device.busy": (_REFUSED, "device.busy"),
    "device.refused": (_REFUSED, "device.refused"),
    "device.faulted": (_REFUSED, "device.faulted"),
}


def outcome_of_error(reply: ErrorReply) -> Outcome:
    """Nothing was done: refused, or failed where the same request cannot fare better."""
    state, reason = _ERRORS.get(reply.error, (_REFUSED, "device.refused"))
    told = one_line(f"{reply.error}: {reply.message}" if reply.message else reply.error)
    return Outcome(
        state,
        reason,
        told,
        retry_after_seconds=reply.retry_after_seconds,
        quarantine=f"another device answers: {one_line(reply.serial)}" if reason == "device.other" else None,
    )


def outcome_of_reply(reply: OutcomeReply, *, answer: Path) -> Outcome:
    """What the device says that became of a request that it has begun; ``answer`` is where the answer stands in its."""
    usage, evidence = usage_of_mapping(reply.usage), reply.evidence
    if reply.outcome == "unknown":
        told = one_line(reply.message or "the device does not know what became of it")
        return Outcome(DispatchState.UNKNOWN, "device.unsure", told, usage=usage)
    if reply.outcome == "failed":
        reason = f"device.failed.{reply.reason}" if reply.reason else "device.failed"
        return Outcome(_FAILED, reason, one_line(reply.message or reason), usage=usage, evidence=evidence)
    found = answer.find(reply.answer) if reply.has_answer else None
    if not reply.has_answer or isinstance(found, Missing):
        return Outcome(_FAILED, "answer.missing", f"there is nothing at {answer.text}", usage=usage)
    checkpoint = _bytes_of(reply.checkpoint)
    return Outcome(DispatchState.ANSWERED, answer=found, usage=usage, evidence=evidence, checkpoint=checkpoint)


def outcome_of_bad_reply(fault: BadReply, body: bytes) -> Outcome:
    """Unknown: whatever came, it does not say what became of this request."""
    quarantine = str(fault) if fault.is_other_device else None
    return Outcome(
        DispatchState.UNKNOWN, fault.reason, str(fault), raw=body or None, raw_cut=bool(body), quarantine=quarantine
    )


def answer_of_query(reply: QueryReply, *, answer: Path) -> QueryAnswer:
    """What a query proves. Raises BadReply where what the device kept is not a reply to the id that was asked for."""
    match reply.outcome:
        case "never":
            return QueryAnswer(QueryState.NEVER, message="the device has given the id up; it never will be done")
        case "pending":
            return QueryAnswer(QueryState.PENDING, message="the device is at it")
        case "unknown":
            return QueryAnswer(QueryState.NO_PROOF, message="the device does not know what became of it")
    kept = _kept(reply)
    if kept.outcome == "unknown":
        return QueryAnswer(QueryState.NO_PROOF, message=one_line(kept.message))
    outcome = attrs.evolve(outcome_of_reply(kept, answer=answer), wire_sends=0, bytes_sent=None)
    return QueryAnswer(QueryState.LANDED, outcome, "fetched from the device by its id")


def _kept(reply: QueryReply) -> OutcomeReply:
    told: Mapping[str, JsonValue] = {"outcome": "answered", **(reply.reply or {})}
    if told["outcome"] == "done":  # of a reset or the like, which has no answer
        told = {**told, "outcome": "answered", "answer": None}
    try:
        kept = OutcomeReply.model_validate(told)
    except ValueError as fault:
        raise BadReply("reply.garbage", f"what the device kept is no reply ({fault})") from None
    if kept.request_id != reply.about:
        raise BadReply("reply.mismatched", f"the device kept the reply to {kept.request_id!r} for {reply.about!r}")
    return kept


def _bytes_of(text: str | None) -> bytes | None:
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None  # a checkpoint that cannot be read is none; the answer stands
