"""The messages of the Atlas protocol (docs/atlas-protocol.md); its JSON schema is made from these models.

Requests are exact. Replies may hold more than the protocol says; what it says is never converted between types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "ERRORS",
    "PROTOCOL",
    "REPLIES",
    "REQUESTS",
    "CancelReply",
    "CancelRequest",
    "CheckpointReply",
    "CheckpointRequest",
    "Envelope",
    "ErrorReply",
    "FenceRequest",
    "FencedReply",
    "Identity",
    "OutcomeReply",
    "QueryReply",
    "QueryRequest",
    "ResetReply",
    "ResetRequest",
    "RestoreReply",
    "RestoreRequest",
    "State",
    "SubmitReply",
    "SubmitRequest",
    "schema",
]

PROTOCOL: Final = "atlas/1"
ID_LENGTH_MAX: Final = 128

ERRORS: Final[Mapping[str, tuple[int, str]]] = {
    "request.invalid": (400, "the request is not as this protocol says"),
    "session.unknown": (404, "there is no such session"),
    "fence.stale": (409, "a higher fence has been seen"),
    "request.tombstoned": (410, "this id was given up, by a query or a cancel, before anything was done for it"),
    "device.rebooted": (412, "the request is for another boot"),
    "turn.unexpected": (412, "another turn of this session is the next"),
    "device.other": (421, "the request is for another serial"),
    "request.reused": (422, "another request came under this id"),
    "checkpoint.refused": (422, "the bytes are no checkpoint that can be restored"),
    "device.busy": (423, "another request is being done"),
    "device.refused": (429, "not now"),
    "device.faulted": (503, "nothing but a reset is done"),
}
"""What a device can refuse with: the status, and what it means. Nothing was done in any of these cases."""


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    serial: str = Field(min_length=1, max_length=ID_LENGTH_MAX, description="Which device is meant.")
    fence: int = Field(ge=1, description="The number of the holder's lease.")


class _Call(_Request):
    request_id: str = Field(min_length=1, max_length=ID_LENGTH_MAX, description="Under which it is done at most once.")
    boot_count: int | None = Field(None, ge=1, description="Do it only in this boot.")


class FenceRequest(_Call):
    """Nothing but: from now on, refuse lower fences."""


class SubmitRequest(_Call):
    """Do one piece of work, outside of any session or as the next turn of one; turn 1 begins a session."""

    session: str | None = Field(None, min_length=1, max_length=ID_LENGTH_MAX, description="The session, if any.")
    turn: int | None = Field(None, ge=1, description="Which turn of the session this is; counts from 1.")
    checkpoint: bool = Field(False, description="Whether the reply is to bring a checkpoint of the session.")
    payload: Any = Field(description="What is to be done: any JSON.")


class CancelRequest(_Call):
    """Stop a request, and tombstone its id where nothing was done."""

    about: str = Field(min_length=1, max_length=ID_LENGTH_MAX, description="The id of the request to stop.")


class ResetRequest(_Call):
    """Forget one session; without one, forget all of them and clear a fault."""

    session: str | None = Field(None, min_length=1, max_length=ID_LENGTH_MAX, description="The session; all if absent.")
    force: bool = Field(False, description="Whether a request that is being done is broken off.")


class CheckpointRequest(_Call):
    """Ask for the state of a session."""

    session: str = Field(min_length=1, max_length=ID_LENGTH_MAX, description="The session.")


class RestoreRequest(_Call):
    """Begin a session with the state of a checkpoint."""

    session: str = Field(min_length=1, max_length=ID_LENGTH_MAX, description="The session that begins.")
    checkpoint: str = Field(description="Base64 of the bytes of the checkpoint.")


class QueryRequest(_Request):
    """Ask what became of a request, and tombstone its id where it has never been seen."""

    about: str = Field(min_length=1, max_length=ID_LENGTH_MAX, description="The id of the request.")


class Envelope(BaseModel):
    """What every reply says."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    serial: str = Field(description="Which device answers.")
    boot_count: int = Field(ge=1, description="How many times it has started.")
    highest_fence: int = Field(ge=0, description="The highest fence that it has seen; kept over a reboot.")


class Identity(Envelope):
    """What the device is."""

    protocol: Literal["atlas/1"] = Field(description="This protocol and its version.")
    firmware: str = Field(description="The version of what runs on it.")
    checkpoints: bool = Field(description="Whether its sessions can be restored.")


class Running(BaseModel):
    """The request that is being done."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    request_id: str = Field(description="Its id.")
    fence: int = Field(description="Its fence.")
    session: str | None = Field(None, description="Its session.")
    turn: int | None = Field(None, description="Its turn.")


class State(Envelope):
    """What the device is doing."""

    state: Literal["idle", "busy", "faulted"] = Field(description="Whether it does something or can do anything.")
    request: Running | None = Field(None, description="What it is doing, when busy.")
    fault: str | None = Field(None, description="Why it does nothing, when faulted.")
    stale: dict[str, Any] | None = Field(None, description="How many stale fences it refused, and the last of them.")
    sessions: list[dict[str, Any]] = Field([], description="Its sessions and the last turn of each.")


class _Reply(Envelope):
    request_id: str = Field(description="The id of the request that this is the reply to.")
    fence: int = Field(description="The fence of the request that this is the reply to.")


class FencedReply(_Reply):
    """The fence is known."""

    outcome: Literal["done"] = Field(description="It was done.")


class ResetReply(FencedReply):
    """The sessions are gone."""


class OutcomeReply(BaseModel):
    """What became of a submitted request; kept by the device for later questions."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    request_id: str = Field(description="The id of the request.")
    outcome: Literal["answered", "failed", "unknown"] = Field(description="unknown: begun, and broken off.")
    answer: Any = Field(None, description="The answer, when answered; there, also where it is null.")
    usage: dict[str, Any] | None = Field(None, description="tokens_in, tokens_out, cost_usd, as far as known.")
    evidence: dict[str, Any] = Field({}, description="What belongs beside the answer.")
    reason: str | None = Field(None, pattern="^[a-z0-9_]{1,40}$", description="Why it failed, as a token.")
    message: str = Field("", description="Why it failed, for people.")
    session: str | None = Field(None, description="The session that it was a turn of.")
    turn: int | None = Field(None, description="The turn that it was.")
    checkpoint: str | None = Field(None, description="Base64 of the session's state after this turn.")

    @property
    def has_answer(self) -> bool:
        return self.outcome == "answered" and "answer" in self.model_fields_set


class SubmitReply(_Reply, OutcomeReply):
    """What became of the work."""


class CancelReply(FencedReply):
    """What became of the request that was to be stopped."""

    about: str = Field(description="The id of the request that was to be stopped.")
    became: Literal["landed", "never", "pending", "unknown"] = Field(description="As in the reply to a query.")


class CheckpointReply(FencedReply):
    """The state of a session."""

    turn: int = Field(ge=0, description="The last turn that it holds.")
    checkpoint: str = Field(description="Base64 of the bytes.")


class RestoreReply(FencedReply):
    """The session has begun."""

    turn: int = Field(ge=0, description="The last turn that it holds.")


class QueryReply(Envelope):
    """What became of a request."""

    about: str = Field(description="The id of the request that was asked for.")
    outcome: Literal["landed", "never", "pending", "unknown"] = Field(
        description="landed: done, reply says how. never: not done, and never will be. pending: being done. "
        "unknown: begun and broken off, or not remembered."
    )
    reply: dict[str, Any] | None = Field(None, description="The reply that it had, when landed.")


class ErrorReply(Envelope):
    """Nothing was done, and why."""

    error: str = Field(description="One of the protocol's errors.")
    message: str = Field("", description="The same for people.")
    done: Literal[False] = Field(description="Says that nothing was done.")
    request_id: str | None = Field(None, description="The id of the request.")
    fence: int | None = Field(None, description="The fence of the request.")
    retry_after_seconds: float | None = Field(None, ge=0, strict=False, description="When to come back.")
    request: Running | None = Field(None, description="What it is doing, when busy.")
    expected: int | None = Field(None, description="The turn that is the next.")


REQUESTS: Final[Mapping[str, type[_Request]]] = {
    "fence": FenceRequest,
    "submit": SubmitRequest,
    "query": QueryRequest,
    "cancel": CancelRequest,
    "reset": ResetRequest,
    "checkpoint": CheckpointRequest,
    "restore": RestoreRequest,
}
"""The body of ``POST /v1/NAME``."""

REPLIES: Final[Mapping[str, type[Envelope]]] = {
    "identity": Identity,
    "state": State,
    "fence": FencedReply,
    "submit": SubmitReply,
    "query": QueryReply,
    "cancel": CancelReply,
    "reset": ResetReply,
    "checkpoint": CheckpointReply,
    "restore": RestoreReply,
    "error": ErrorReply,
}
"""The body of the reply to ``GET`` or ``POST /v1/NAME`` with status 200, and of every other status."""


def schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of all messages: ``#/$defs/submit-request``, ``#/$defs/submit-reply``, …"""
    told = [*((f"{name}-request", model) for name, model in REQUESTS.items())]
    models: list[tuple[str, type[BaseModel]]] = [*told, *((f"{name}-reply", model) for name, model in REPLIES.items())]
    definitions: dict[str, Any] = {"Running": Running.model_json_schema()}
    for name, model in models:
        made = model.model_json_schema(ref_template="#/$defs/{model}")
        made.pop("$defs", None)
        definitions[name] = made
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Messages of the Atlas protocol, {PROTOCOL}",
        "$defs": definitions,
    }
