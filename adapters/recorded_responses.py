"""An HTTP response as the ledger keeps it for a replay, and what it says that it used.

Kept as a response is on the wire: a status line, header lines, an empty line, the body. What an operator or a query
gave as the answer is plain JSON, and is replayed as a whole answer with status 200.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import attrs

from ..ledger.canonical import JsonValue
from ..ledger.states import DispatchState
from ..runner.protocols import MISSING, Missing, Usage
from .usage_shapes import later_usage, normalise, usage_object, usage_of_mapping

__all__ = [
    "BODY_BYTES_MAX",
    "Recorded",
    "UsageReader",
    "model_of_body",
    "read_recorded",
    "state_of_status",
    "usage_of_body",
    "written",
]

BODY_BYTES_MAX: Final = 64 << 20
"""The most that is kept of one answer: more is passed on, and cannot be replayed."""

UsageReader: TypeAlias = "Callable[[Any], Usage | Mapping[str, JsonValue] | None]"
"""From the JSON of a response's body to what it used, under the names of `Usage`."""

_START: Final = b"HTTP/1.1 "
_KEPT: Final = frozenset(
    {b"content-type", b"content-encoding", b"retry-after", b"location", b"x-request-id", b"request-id"}
)
_END_OF_HEAD: Final = b"\r\n\r\n"


@attrs.frozen
class Recorded:
    """A response that was kept."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def written(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    """The bytes to keep; of the headers (as on the wire), those that say what the body is."""
    lines = [name + b": " + value for name, value in headers if name.lower() in _KEPT]
    return b"\r\n".join([b"HTTP/1.1 %d" % status, *lines]) + _END_OF_HEAD + body


def read_recorded(raw: bytes, status: int | None) -> Recorded:
    """The response that was kept."""
    if not raw.startswith(_START):
        return Recorded(status or 200, (("content-type", "application/json"),), raw)
    head, _, body = raw.partition(_END_OF_HEAD)
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = tuple((name, value) for name, _, value in (line.partition(": ") for line in lines))
    return Recorded(int(first[len(_START) :]), headers, body)


def state_of_status(status: int, retry_after: str | None) -> DispatchState:
    """What a status says of its request, by the table that all targets share."""
    if status == 429 or (status == 503 and retry_after is not None):
        return DispatchState.REFUSED
    if status in (502, 504):
        return DispatchState.UNKNOWN
    return DispatchState.ANSWERED if status < 400 else DispatchState.FAILED


def usage_of_body(body: bytes, content_type: str, reader: UsageReader | None) -> Usage | None:
    """What the answer says that it used: as OpenAI's and Anthropic's do, or by ``reader``; None where it says nothing.

    Of an event stream, the last events that tell of it count.
    """
    if "event-stream" in content_type:
        documents = _events(body)
    else:
        documents = [document] if (document := _json(body)) is not None else []
    if reader is not None:
        return _read_by(reader, documents)
    found: JsonValue | Missing = MISSING
    for document in documents:
        told = usage_object(document)
        found = later_usage(found, told if isinstance(told, Mapping) else MISSING)
    return normalise(found)


def model_of_body(body: bytes, content_type: str) -> str | None:
    """The model that says of itself that it answered; None where none does."""
    documents = _events(body) if "event-stream" in content_type else [_json(body)]
    for document in documents:
        if isinstance(document, Mapping):
            for holder in (document, document.get("message"), document.get("response")):
                if isinstance(holder, Mapping) and isinstance(model := holder.get("model"), str):
                    return model
    return None


def _read_by(reader: UsageReader, documents: list[Any]) -> Usage | None:
    try:
        return usage_of_mapping(reader(documents[-1])) if documents else None
    except Exception as fault:  # noqa: BLE001 - the answer is paid for, and is kept whatever its reader makes of it
        return Usage(problems=(f"the usage reader raised {type(fault).__name__}: {fault}",))


def _events(body: bytes) -> list[Any]:
    lines = (line[5:].strip() for line in body.split(b"\n") if line.startswith(b"data:"))
    return [document for line in lines if (document := _json(line)) is not None]


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
