"""Requests made from a template and a case, by one pass of substitution.

``{{input}}``, ``{{input.field}}``, ``{{case.id}}``, ``{{metadata.field}}``, ``{{variant}}``, ``{{repetition}}`` and
``{{run_id}}`` stand for values, in a conversation also ``{{message}}``, ``{{message.field}}``, ``{{history}}``,
``{{messages}}``, ``{{turn}}`` and ``{{session}}``; ``{{"text"}}`` stands for the text itself, so that ``{{`` can be
written. A string that is one placeholder and nothing else becomes the JSON value; inside a longer string its text is
put in. What was put in is never looked at again: a case that holds template syntax goes out as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from ..ledger.canonical import JsonValue, canonical_text
from ..ledger.errors import WorkOrderInvalid
from ..runner.protocols import SlotView, Turn
from .errors import CaseUnfit
from .outcomes import one_line
from .tables import nearest

__all__ = ["JsonTemplate", "TextTemplate", "TurnNeeds", "read_json_template", "read_text_template", "text_of"]

Getter: TypeAlias = Callable[[SlotView], JsonValue]

_PLACEHOLDER: Final = re.compile(r"""\{\{\s*(?:"(?P<literal>[^"]*)"|(?P<name>[^\s{}"]+))\s*\}\}""")
_ROOTS: Final = ("input", "message", "metadata")
_PLAIN: Final[Mapping[str, Getter]] = {
    "case.id": lambda slot: slot.case.id,
    "run_id": lambda slot: slot.run_id,
    "variant": lambda slot: slot.variant,
    "repetition": lambda slot: slot.repetition,
}


@attrs.frozen
class _TurnGetter:
    """A value of the turn that a request is for; ``hears`` where it depends on what is said in it."""

    name: str
    get: Callable[[Turn], JsonValue]
    hears: bool = True
    fields: tuple[str, ...] = ()

    def __call__(self, slot: SlotView) -> JsonValue:
        if slot.turn is None:
            raise CaseUnfit(f"{{{{{self.name}}}}} stands for something in a conversation only", case_id=slot.case.id)
        found = self.get(slot.turn)
        return _field(found, self.fields, self.name, slot) if self.fields else found


def _exchanges(turn: Turn) -> list[JsonValue]:
    return [{"message": one.message, "answer": one.answer} for one in turn.history]


def _chat(turn: Turn) -> list[JsonValue]:
    """The whole conversation in the form that chat interfaces take, the new message last."""
    told: list[JsonValue] = []
    for one in turn.history:
        told += [{"role": "user", "content": one.message}, {"role": "assistant", "content": one.answer}]
    return [*told, {"role": "user", "content": turn.message}]


_OF_TURN: Final[Mapping[str, _TurnGetter]] = {
    getter.name: getter
    for getter in (
        _TurnGetter("message", lambda turn: turn.message),
        _TurnGetter("history", _exchanges),
        _TurnGetter("messages", _chat),
        _TurnGetter("turn", lambda turn: turn.number, hears=False),
        _TurnGetter("session", lambda turn: turn.session, hears=False),
    )
}


@attrs.frozen
class TurnNeeds:
    """What templates ask of a conversation: ``needs`` one at all, ``hears`` what is said in it."""

    needs: bool = False
    hears: bool = False

    def __or__(self, other: TurnNeeds) -> TurnNeeds:
        return TurnNeeds(self.needs or other.needs, self.hears or other.hears)


def _needs_of(getters: Iterable[object]) -> TurnNeeds:
    found = [getter for getter in getters if isinstance(getter, _TurnGetter)]
    return TurnNeeds(bool(found), any(getter.hears for getter in found))


@attrs.frozen
class TextTemplate:
    """Text with placeholders."""

    _parts: Sequence[str | Getter]

    @property
    def turn_needs(self) -> TurnNeeds:
        """What it asks of a conversation."""
        return _needs_of(self._parts)

    @property
    def is_static(self) -> bool:
        """Whether it is the same for every slot."""
        return all(isinstance(part, str) for part in self._parts)

    def render(self, slot: SlotView, *, escape: Callable[[str], str] = str) -> str:
        """The text for a slot, each value put through ``escape``; raises CaseUnfit where the case lacks a field."""
        return "".join([part if isinstance(part, str) else escape(text_of(part(slot))) for part in self._parts])


@attrs.frozen
class JsonTemplate:
    """A JSON document with placeholders, kept as the bytes between them."""

    _parts: Sequence[str | tuple[Getter, bool]]

    @property
    def turn_needs(self) -> TurnNeeds:
        """What it asks of a conversation."""
        return _needs_of(part[0] for part in self._parts if not isinstance(part, str))

    def render(self, slot: SlotView) -> bytes:
        """The document for a slot as ASCII JSON; raises CaseUnfit where the case lacks a field."""
        return "".join([part if isinstance(part, str) else _rendered(part, slot) for part in self._parts]).encode(
            "ascii"
        )


def read_text_template(text: str, *, place: str) -> TextTemplate:
    """Compile text; raises WorkOrderInvalid for a placeholder that is not known."""
    return TextTemplate(tuple(_split(text, place)))


def read_json_template(document: JsonValue, *, place: str) -> JsonTemplate:
    """Compile a document; raises WorkOrderInvalid for a placeholder that is not known, or that stands in a key."""
    parts: list[str | tuple[Getter, bool]] = []
    _compile(document, parts, place)
    return JsonTemplate(tuple(_joined(parts)))


def text_of(value: JsonValue) -> str:
    """The value inside a longer text: a string as it is, everything else as JSON."""
    return value if isinstance(value, str) else canonical_text(value)


def _rendered(part: tuple[Getter, bool], slot: SlotView) -> str:
    getter, is_embedded = part
    value = getter(slot)
    try:
        return canonical_text(text_of(value))[1:-1] if is_embedded else canonical_text(value)
    except (TypeError, ValueError, RecursionError) as fault:
        raise CaseUnfit(f'case "{one_line(slot.case.id)}" has no JSON form ({fault})', case_id=slot.case.id) from fault


def _compile(value: JsonValue, parts: list[str | tuple[Getter, bool]], place: str) -> None:
    match value:
        case str():
            _compile_string(value, parts, place)
        case Mapping():
            opening = "{"
            for key, inner in value.items():
                if "{{" in key:
                    remedy = "Put the placeholder into the value"
                    raise WorkOrderInvalid(f'{place}: the key "{key}" holds a placeholder', remedy, place=place)
                parts.append(f"{opening}{canonical_text(key)}:")
                _compile(inner, parts, f"{place}.{key}")
                opening = ","
            parts.append("}" if opening == "," else "{}")
        case list() | tuple():
            opening = "["
            for index, inner in enumerate(value):
                parts.append(opening)
                _compile(inner, parts, f"{place}[{index}]")
                opening = ","
            parts.append("]" if opening == "," else "[]")
        case _:
            parts.append(canonical_text(value))


def _compile_string(text: str, parts: list[str | tuple[Getter, bool]], place: str) -> None:
    found = _split(text, place)
    if len(found) == 1 and not isinstance(found[0], str):
        parts.append((found[0], False))
        return
    parts.append('"')
    parts.extend(canonical_text(part)[1:-1] if isinstance(part, str) else (part, True) for part in found)
    parts.append('"')


def _joined(parts: Sequence[str | tuple[Getter, bool]]) -> list[str | tuple[Getter, bool]]:
    joined: list[str | tuple[Getter, bool]] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def _split(text: str, place: str) -> list[str | Getter]:
    parts: list[str | Getter] = []
    position = 0
    for match in _PLACEHOLDER.finditer(text):
        parts.append(_without_opening(text[position : match.start()], place))
        parts.append(match["literal"] if match["literal"] is not None else _getter(match["name"], place))
        position = match.end()
    parts.append(_without_opening(text[position:], place))
    return [part for part in parts if part != ""]


def _without_opening(text: str, place: str) -> str:
    if "{{" in text:
        remedy = 'Close it with }}, or write {{"{{"}} for the two braces themselves'
        raise WorkOrderInvalid(f"{place}: {{{{ begins no placeholder", remedy, place=place)
    return text


def _getter(name: str, place: str) -> Getter:
    plain = _PLAIN.get(name) or _OF_TURN.get(name)
    if plain is not None:
        return plain
    root, *fields = name.split(".")
    if root not in _ROOTS or (root == "metadata" and not fields) or "" in fields:
        remedy = nearest(name, [*_PLAIN, *_OF_TURN, "input", "input.FIELD", "message.FIELD", "metadata.FIELD"])
        raise WorkOrderInvalid(f"{place}: there is no placeholder {{{{{name}}}}}", remedy, place=place)
    if not fields:
        return lambda slot: slot.case.input
    if root == "message":
        return _TurnGetter(name, lambda turn: turn.message, fields=tuple(fields))
    if root == "input":
        return lambda slot: _field(slot.case.input, fields, name, slot)
    return lambda slot: _field(slot.case.metadata, fields, name, slot)


def _field(value: JsonValue, fields: Sequence[str], name: str, slot: SlotView) -> JsonValue:
    for field in fields:
        if isinstance(value, Mapping) and field in value:
            value = value[field]
        elif isinstance(value, list | tuple) and field.isdecimal() and int(field) < len(value):
            value = value[int(field)]
        else:
            raise CaseUnfit(
                f'case "{one_line(slot.case.id)}" has no {name}, which the target\'s template asks for',
                "Add it to the case, or take the placeholder out of the work order",
                case_id=slot.case.id,
            )
    return value
