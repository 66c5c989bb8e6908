"""A streamed chat completion, put together to the document that the same reply would be in one piece.

A stream is whole where its first choice said how it ended, or where it said `[DONE]`. One that stopped before that has
been cut: what came is kept, and the outcome is unknown, because it was worked on and may have been paid for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from ..ledger.canonical import JsonValue, parse_json
from ..ledger.states import DispatchState
from .event_stream import events_of, whole_text
from .outcomes import one_line

__all__ = ["StreamFault", "read_chat_stream", "text_of_content"]

_DONE: Final = "[DONE]"
_TEXTS: Final = ("content", "refusal", "reasoning_content", "reasoning")
_CALLS_MAX: Final = 1024


@attrs.frozen
class StreamFault:
    """Why a stream comes to no completion; ``document`` is what its pieces told beside the reply itself."""

    state: DispatchState
    reason: str
    message: str
    document: JsonValue


@attrs.define
class _Reply:
    """What the pieces say so far."""

    document: dict[str, Any] = attrs.field(factory=dict)
    texts: dict[str, list[str]] = attrs.field(factory=dict)
    calls: list[tuple[int, dict[str, Any]]] = attrs.field(factory=list)  # with the index that it was told under
    places: dict[int, int] = attrs.field(factory=dict)  # by index, where the call that grows there stands in `calls`
    function: dict[str, Any] | None = None
    finish: JsonValue = None
    has_choice: bool = False
    is_done: bool = False

    def add(self, piece: Mapping[str, Any]) -> None:
        for name in ("id", "model", "system_fingerprint", "usage", "error"):
            if piece.get(name) is not None:
                self.document[name] = piece[name]
        for choice in _maps(piece.get("choices")):
            if choice.get("index") in (0, None):
                self._add_choice(choice)

    def _add_choice(self, choice: Mapping[str, Any]) -> None:
        self.has_choice = True
        if choice.get("finish_reason") is not None:
            self.finish = choice["finish_reason"]
        if choice.get("error"):
            self.document["error"] = choice["error"]
        delta = choice.get("delta", choice.get("message"))
        if not isinstance(delta, Mapping):
            return
        for name in _TEXTS:
            if (text := text_of_content(delta.get(name))) is not None:
                self.texts.setdefault(name, []).append(text)
        for at, call in enumerate(_maps(delta.get("tool_calls"))):
            self._add_call(at if call.get("index") is None else call["index"], call)
        if isinstance(old := delta.get("function_call"), Mapping):
            self.function = {} if self.function is None else self.function
            _merge(self.function, old)

    def _add_call(self, index: object, piece: Mapping[str, Any]) -> None:
        if not isinstance(index, int):
            return
        place = self.places.get(index)
        if place is None or _is_another(self.calls[place][1], piece):
            if len(self.calls) == _CALLS_MAX:
                return
            self.places[index] = place = len(self.calls)
            self.calls.append((index, {}))
        _merge(self.calls[place][1], piece)

    def whole(self) -> JsonValue:
        """The completion."""
        if not self.has_choice:
            return {**self.document, "choices": []}
        message: dict[str, Any] = {"role": "assistant", "content": None}
        message |= {name: whole_text(pieces) for name, pieces in self.texts.items()}
        if self.calls:
            in_order = sorted(self.calls, key=lambda told: told[0])
            message["tool_calls"] = [_joined(call) for _, call in in_order]
        if self.function is not None:
            message["function_call"] = _joined(self.function)
        choice = {"index": 0, "message": message, "finish_reason": self.finish}
        return {**self.document, "choices": [choice]}


def read_chat_stream(body: bytes, *, told: str) -> JsonValue | StreamFault:
    """The completion that a stream comes to, or why it comes to none."""
    reply, count = _Reply(), 0
    for name, data in events_of(body.decode("utf-8", "replace")):
        if data.strip() == _DONE:
            reply.is_done = True
            break
        try:
            piece = parse_json(data)
        except (ValueError, RecursionError):
            message = one_line(f"{told}, an event is not JSON: {data}")
            return StreamFault(DispatchState.FAILED, "answer.not_json", message, reply.document)
        count += 1
        if not isinstance(piece, Mapping):
            continue
        if name == "error" and "error" not in piece:
            piece = {"error": piece}
        reply.add(piece)
        if "error" in reply.document:
            break
    if "error" in reply.document or reply.is_done or reply.finish is not None:
        return reply.whole()
    message = f"{told}, and the stream stopped after {count} events without its end"
    return StreamFault(DispatchState.UNKNOWN, "stream.cut", message, reply.document)


def text_of_content(content: object) -> str | None:
    """The text of a message, also where it comes in parts; None where there is none."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
        texts = [part for part in parts if isinstance(part, str)]
        return "".join(texts) if texts else None
    return content if isinstance(content, str) else None


def _maps(found: object) -> Iterator[Mapping[str, Any]]:
    return (one for one in found if isinstance(one, Mapping)) if isinstance(found, list) else iter(())


def _is_another(whole: Mapping[str, Any], piece: Mapping[str, Any]) -> bool:
    """Whether a piece at the index of a call begins another: there are endpoints that tell no index, or always 0.

    A new id alone does not say so, as some endpoints give each piece of one call an id of its own.
    """
    known, told = whole.get("id"), piece.get("id")
    function = piece.get("function")
    return bool(known and told and known != told and isinstance(function, Mapping) and function.get("name"))


def _merge(whole: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Texts of arguments grow; a name or an id is told once, and where it is told again it is the same one."""
    for key, value in piece.items():
        if key == "index" or value is None:
            continue
        if isinstance(value, Mapping):
            inner = whole.setdefault(key, {})
            if isinstance(inner, dict):
                _merge(inner, value)
        elif key in ("arguments", "input") and isinstance(value, str):
            pieces = whole.setdefault(key, [])
            if isinstance(pieces, list):
                pieces.append(value)
        elif value != "" or key not in whole:  # there are endpoints that repeat an id or a name as the empty text
            whole[key] = value


def _joined(call: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in call.items():
        if isinstance(value, Mapping):
            found[key] = _joined(value)
        elif key in ("arguments", "input") and isinstance(value, list):
            found[key] = whole_text(value)
        else:
            found[key] = value
    return found
