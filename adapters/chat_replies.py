"""What a chat completion says: the answer, its evidence, how it ended, and what it used.

A reply that came whole is an answer where it ended by itself (`stop`) or with tool calls. One that was cut at the most
tokens, kept back by a filter, or is the model's refusal is told apart: each gives an answer with a flag where the work
order accepts it, and has failed with a reason of its own where it does not.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping
from typing import Any, Final

import attrs

from ..ledger.canonical import JsonValue, parse_json
from ..ledger.states import DispatchState
from ..runner.protocols import Outcome, Usage
from .chat_stream import StreamFault, read_chat_stream, text_of_content
from .outcomes import one_line
from .templates import text_of
from .usage_shapes import broken_off, normalise, usage_object

__all__ = ["CUT_FINISHES", "FILTER_CODES", "ChatReplies", "error_code"]

FILTER_CODES: Final = frozenset(
    {"content_filter", "content_policy_violation", "responsible_ai_policy_violation", "moderation_blocked"}
)
"""Codes by which endpoints say that a filter turned a request away."""

_BOM: Final = b"\xef\xbb\xbf"
_FIELDS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")  # how an event stream begins
_WHOLE: Final = frozenset({"stop", "tool_calls", "function_call"})
CUT_FINISHES: Final = frozenset({"length", "max_tokens", "model_length"})
"""Finish reasons that say that the reply was cut at the most tokens."""

_REASONS: Final = {
    "length": "chat.length",
    "content_filter": "chat.content_filter",
    "refusal": "chat.refusal",
}
_FLAGS: Final = {"length": "truncated", "content_filter": "filtered", "refusal": "refused"}
_TOLD: Final = {
    "length": "the reply was cut at the most tokens",
    "content_filter": "the endpoint's content filter kept the reply back",
    "refusal": "the model refused",
}
_KEPT: Final = ("model", "system_fingerprint")


@attrs.frozen
class ChatReplies:
    """Reads the bodies of one target: a completion, or a stream of its pieces."""

    _answer: str  # text, json, message
    _accept: Collection[str]
    _is_stream: bool

    def outcome(self, body: bytes, *, told: str, charset: str = "utf-8") -> Outcome:  # noqa: ARG002 - JSON is UTF-8
        """The outcome of a whole body of a good status."""
        # Whatever was asked for: there are endpoints that stream always, and some that never do. Empty lines tell
        # nothing: some send them before a whole reply, too, to keep a connection alive.
        body = body.removeprefix(_BOM).lstrip()
        if body.startswith(_FIELDS) or (self._is_stream and not body):
            streamed = read_chat_stream(body, told=told)
            if isinstance(streamed, StreamFault):
                usage = broken_off(_usage_in(streamed.document))
                return Outcome(streamed.state, streamed.reason, streamed.message, usage=usage)
            outcome = self._completion(streamed, told)
            has_error = isinstance(streamed, Mapping) and bool(streamed.get("error"))
            return attrs.evolve(outcome, usage=broken_off(outcome.usage)) if has_error else outcome
        if not body:
            return Outcome(DispatchState.FAILED, "answer.missing", f"{told}, no body")
        try:
            document = parse_json(body)
        except (ValueError, RecursionError):
            excerpt = one_line(body[:400].decode("utf-8", "replace"), length_max=120)
            return Outcome(DispatchState.FAILED, "answer.not_json", f"{told}, not JSON: {excerpt}")
        return self._completion(document, told)

    def usage_of(self, body: bytes) -> Usage | None:
        """What an error's body reports as used."""
        try:
            return _usage_in(parse_json(body.removeprefix(_BOM)))
        except (ValueError, RecursionError):
            return None

    def usage_of_cut(self, body: bytes) -> Usage | None:
        """What a stream that broke off had told until then."""
        body = body.removeprefix(_BOM).lstrip()
        if not body.startswith(_FIELDS):
            return None
        streamed = read_chat_stream(body, told="")
        return broken_off(_usage_in(streamed.document if isinstance(streamed, StreamFault) else streamed))

    def _completion(self, document: JsonValue, told: str) -> Outcome:
        usage = _usage_in(document)
        found = document if isinstance(document, Mapping) else {}
        choices = found.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        error = found.get("error") or (choice.get("error") if isinstance(choice, Mapping) else None)
        if error:
            reason = "chat.content_filter" if _code_of(error) in FILTER_CODES else "body.error"
            return _failed(reason, f"{told}: {_error_text(error)}", usage)
        if not isinstance(choice, Mapping):
            return _failed("answer.missing", f"{told}: the reply has no choices", usage)
        message = choice.get("message")
        message = message if isinstance(message, Mapping) else {}
        return self._message(found, choice, message, usage, told)

    def _message(
        self,
        document: Mapping[str, Any],
        choice: Mapping[str, Any],
        message: Mapping[str, Any],
        usage: Usage | None,
        told: str,
    ) -> Outcome:
        finish = choice.get("finish_reason")
        named = finish if isinstance(finish, str) else ""
        end = _end_of(named, message)
        if end is not None and end not in self._accept:
            refusal = message.get("refusal")
            said = f": {one_line(refusal)}" if end == "refusal" and isinstance(refusal, str) else ""
            return _failed(_REASONS[end], f"{told}: {_TOLD[end]}{said}", usage)
        flags = [] if end is None else [_FLAGS[end]]
        if end is None and named not in _WHOLE:
            flags.append("finish_unknown")
        calls = _tool_calls(message)
        answer = self._answer_of(message, calls, end)
        if isinstance(answer, _NoAnswer):
            return _failed(answer.reason, f"{told}: {answer.message}", usage)
        evidence: dict[str, JsonValue] = {name: document[name] for name in _KEPT if document.get(name) is not None}
        evidence |= {} if finish is None else {"finish_reason": finish}
        evidence |= {} if not calls else {"tool_calls": calls}
        evidence |= {} if (thought := _reasoning(message)) is None else {"reasoning": thought}
        return Outcome(DispatchState.ANSWERED, answer=answer, usage=usage, evidence=evidence, flags=tuple(flags))

    def _answer_of(self, message: Mapping[str, Any], calls: list[JsonValue], end: str | None) -> JsonValue | _NoAnswer:
        if self._answer == "message" and message:
            return dict(message)
        text = text_of_content(message.get("content"))
        if end == "refusal":
            refusal = message.get("refusal")
            return refusal if text is None and isinstance(refusal, str) else text
        if text is None:
            # Tool calls are what it answered; a filter may leave nothing of a reply that is accepted all the same.
            if calls or end == "content_filter":
                return None
            return _NoAnswer(_REASONS.get(end or "", "answer.missing"), "the reply has no text")
        if self._answer != "json":
            return text
        try:
            return parse_json(text.encode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError):
            reason = _REASONS.get(end or "", "answer.not_json")
            return _NoAnswer(reason, f"the reply's text is not JSON: {one_line(text, length_max=120)}")


@attrs.frozen
class _NoAnswer:
    reason: str
    message: str


def error_code(body: bytes | None) -> str | None:
    """The code of the error in a body, as OpenAI gives it; None where there is none."""
    try:
        return _code_of(json.loads(body or b"null")["error"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _end_of(finish: str, message: Mapping[str, Any]) -> str | None:
    """How a reply ended that is not simply whole; a refusal is told by its own field, whatever the finish says."""
    if isinstance(message.get("refusal"), str) and message["refusal"]:
        return "refusal"
    if finish in ("content_filter", "refusal"):
        return finish
    return "length" if finish in CUT_FINISHES else None


def _tool_calls(message: Mapping[str, Any]) -> list[JsonValue]:
    """What the model asks to be called: id, name, and the arguments as JSON where they are JSON, else as text."""
    found = message.get("tool_calls")
    calls = [call for call in found if isinstance(call, Mapping)] if isinstance(found, list) else []
    told = [_tool_call(call.get("id"), call.get("function") or call.get("custom") or {}) for call in calls]
    old = message.get("function_call")
    return [*told, _tool_call(None, old)] if isinstance(old, Mapping) else told


def _tool_call(id_: JsonValue, function: object) -> JsonValue:
    named = function if isinstance(function, Mapping) else {}
    arguments = named.get("arguments", named.get("input"))
    if isinstance(arguments, str):
        # Models write what is not JSON, too: then it is told as it was written.
        with contextlib.suppress(ValueError, RecursionError):
            arguments = parse_json(arguments.encode("utf-8", "surrogatepass"))
    told: dict[str, Any] = {"name": named.get("name"), "arguments": arguments}
    return told if id_ is None else {"id": id_, **told}


def _reasoning(message: Mapping[str, Any]) -> str | None:
    for name in ("reasoning_content", "reasoning"):
        if isinstance(found := message.get(name), str) and found:
            return found
    return None


def _usage_in(document: object) -> Usage | None:
    """None where the reply says nothing of it: that is unknown, and not zero."""
    return None if not isinstance(document, Mapping) else normalise(usage_object(document))


def _failed(reason: str, message: str, usage: Usage | None) -> Outcome:
    return Outcome(DispatchState.FAILED, reason, one_line(message), usage=usage)


def _error_text(error: object) -> str:
    message = error.get("message") if isinstance(error, Mapping) else None
    return one_line(message if isinstance(message, str) else text_of(error))  # type: ignore[arg-type]


def _code_of(error: object) -> str | None:
    code = error.get("code") if isinstance(error, Mapping) else None
    return code if isinstance(code, str) else None
