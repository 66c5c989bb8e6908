"""Chat requests: one JSON body, made from the table once and from the case for each request.

The messages stand first, and all other keys in the order of their names, inside too, whichever way the work order
came: a run that is resumed from its ledger sends the same bytes. Only what the table gives as JSON text (a schema whose
order of keys means something to a model) keeps its own order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from ..ledger.canonical import JsonValue, canonical_text, parse_json
from ..ledger.errors import WorkOrderInvalid
from ..runner.protocols import SlotView, Turn
from .chat_table import ChatTable
from .errors import CaseUnfit
from .outcomes import one_line
from .templates import JsonTemplate, TextTemplate, TurnNeeds, read_json_template, read_text_template, text_of

__all__ = ["ChatRequests", "holds_only_text", "read_chat_requests"]

_MARK: Final = '"messages":'
# With these, services of several vendors put what they have searched for or heard into the request.
_BRINGS_MORE: Final = frozenset({"web_search_options", "search_parameters", "plugins", "audio"})
_TEXT_PARTS: Final = frozenset({"text", "refusal"})


@attrs.frozen
class ChatRequests:
    """Makes the bodies of one target."""

    _before: str  # the body up to its messages
    _after: str
    _system: TextTemplate | None
    _message: JsonTemplate | None
    _messages: JsonTemplate | None
    turn_needs: TurnNeeds

    def body(self, slot: SlotView) -> bytes:
        """The body as ASCII JSON; raises CaseUnfit where the case lacks what a template asks for."""
        told = [] if self._system is None else [_said("system", canonical_text(self._system.render(slot)))]
        told += self._whole_list(slot) if self._messages is not None else self._conversation(slot)
        return f"{self._before}[{','.join(told)}]{self._after}".encode("ascii")

    def _whole_list(self, slot: SlotView) -> list[str]:
        assert self._messages is not None
        text = self._messages.render(slot).decode("ascii")
        if not text.startswith("["):
            case_id = slot.case.id
            what = f'case "{one_line(case_id)}" gives no list of messages for the target\'s template'
            raise CaseUnfit(what, 'Let it be a list of {"role": …, "content": …}', case_id=case_id)
        return [text[1:-1]] if text != "[]" else []

    def _conversation(self, slot: SlotView) -> list[str]:
        """What was said and answered so far, and the message that is to be answered."""
        turn = slot.turn
        if turn is None:
            return [self._asked(slot)]
        told: list[str] = []
        for at, one in enumerate(turn.history):
            then = Turn(turn.session, at + 1, one.message, turn.history[:at])
            told += [self._asked(attrs.evolve(slot, turn=then)), _answered(one.answer)]
        return [*told, self._asked(slot)]

    def _asked(self, slot: SlotView) -> str:
        if self._message is not None:
            return _said("user", _content(self._message.render(slot).decode("ascii")))
        message = slot.case.input if slot.turn is None else slot.turn.message
        if slot.turn is not None and (whole := _whole_messages(message)):
            return whole
        try:
            return _said("user", _content(canonical_text(message)))
        except (TypeError, ValueError, RecursionError) as fault:
            case_id = slot.case.id
            raise CaseUnfit(f'case "{one_line(case_id)}" has no JSON form ({fault})', case_id=case_id) from fault


def read_chat_requests(table: ChatTable, *, place: str) -> ChatRequests:
    """Compile the templates of a table; raises WorkOrderInvalid."""
    told = table.model_fields_set
    system = None if table.system is None else read_text_template(table.system, place=f"{place}.system")
    message = read_json_template(table.message, place=f"{place}.message") if "message" in told else None
    messages = read_json_template(table.messages, place=f"{place}.messages") if "messages" in told else None
    if messages is not None and not isinstance(table.messages, list | str):
        remedy = 'Write [{ role = "user", content = "{{input}}" }]'
        raise WorkOrderInvalid(f"{place}.messages: this is no list of messages", remedy, place=f"{place}.messages")
    needs = TurnNeeds() if system is None else system.turn_needs
    for template in (message, messages):
        needs |= TurnNeeds() if template is None else template.turn_needs
    if message is None and messages is None:
        needs |= TurnNeeds(hears=True)  # the turn's message, in a conversation
    before, _, after = _body_of(table, place).partition(_MARK)
    return ChatRequests(before + _MARK, after, system, message, messages, needs)


def holds_only_text(payload: bytes) -> bool:
    """Whether nothing in the messages of a body stands for more tokens than it has bytes (an image by its address)."""
    body = json.loads(payload)
    if _BRINGS_MORE & body.keys():
        return False
    for message in body["messages"]:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            kinds = {part.get("type") if isinstance(part, dict) else None for part in content}
            if not kinds <= _TEXT_PARTS:
                return False
        elif isinstance(content, dict) or (isinstance(message, dict) and message.get("audio")):
            return False
    return all(tool.get("type") == "function" for tool in body.get("tools", ()))


def _body_of(table: ChatTable, place: str) -> str:
    """The body with nothing behind ``"messages":``."""
    parts: dict[str, str] = {name: _fixed(value, f"{place}.extra.{name}") for name, value in table.extra.items()}
    for name in ("model", "temperature", "max_tokens", "max_completion_tokens", "seed"):
        if (value := getattr(table, name)) is not None:
            parts[name] = _fixed(value, f"{place}.{name}")
    for name in ("tools", "response_format"):
        if (value := getattr(table, name)) is not None:
            parts[name] = _ordered(value, f"{place}.{name}")
    if table.stream:
        parts["stream"] = "true"
        if table.stream_usage:
            parts["stream_options"] = '{"include_usage":true}'
    # First, so that the mark in a text that the table gives is never taken for it.
    return "{" + _MARK + "".join(f",{canonical_text(name)}:{parts[name]}" for name in sorted(parts)) + "}"


def _fixed(value: Any, place: str) -> str:
    try:
        return canonical_text(value)
    except (TypeError, ValueError, RecursionError) as fault:
        raise WorkOrderInvalid(f"{place}: this has no JSON form ({fault})", "Write JSON values", place=place) from None


def _ordered(value: Any, place: str) -> str:
    """JSON text in its own order of keys, any other value in that of their names."""
    if not isinstance(value, str):
        return _fixed(value, place)
    wanted = list if place.endswith(".tools") else dict
    try:
        parse_json(
            value.encode("utf-8", "surrogatepass")
        )  # refuses what json.loads lets pass, as a key that stands twice
        found = json.loads(value)
    except (ValueError, RecursionError) as fault:
        raise WorkOrderInvalid(f"{place}: this text is not JSON ({fault})", "Correct it", place=place) from None
    if not isinstance(found, wanted) or (wanted is list and not all(isinstance(one, dict) for one in found)):
        shown = "an array of objects" if wanted is list else "an object"
        raise WorkOrderInvalid(f"{place}: this text is not {shown}", f"Write {shown}", place=place)
    return json.dumps(found, ensure_ascii=True, separators=(",", ":"))


def _said(role: str, content: str) -> str:
    return f'{{"content":{content},"role":"{role}"}}'


def _content(text: str) -> str:
    """Text and lists of parts as they are, every other value as text that is its JSON."""
    if text.startswith('"') or (text.startswith("[") and _is_parts(text)):
        return text
    return canonical_text(text)


def _is_parts(text: str) -> bool:
    found = json.loads(text)
    return bool(found) and all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in found)


def _answered(answer: JsonValue) -> str:
    """A turn's answer as the assistant's message."""
    if isinstance(answer, Mapping) and answer.get("role") == "assistant":
        return canonical_text(answer)
    return _said("assistant", canonical_text("" if answer is None else text_of(answer)))


def _whole_messages(message: JsonValue) -> str:
    """What is said where it is whole messages (the results of tools) and not the text of one; else nothing."""
    found: Sequence[JsonValue] = message if isinstance(message, list | tuple) else [message]
    is_whole = found and all(isinstance(one, Mapping) and isinstance(one.get("role"), str) for one in found)
    return ",".join(canonical_text(one) for one in found) if is_whole else ""
