"""Answers that come as a stream of server-sent events (WHATWG HTML, 9.2).

A stream that stops without its end has been cut, however well its connection was closed: what came is kept, and the
outcome is unknown, because it was worked on and may have been paid for.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final

import attrs
from pydantic import Field, model_validator

from ..ledger.canonical import JsonValue, parse_json
from ..ledger.states import DispatchState
from ..runner.protocols import Outcome, Usage
from .bodies import BodyRules
from .outcomes import one_line
from .paths import Path, read_path
from .tables import Table
from .usage_shapes import broken_off

__all__ = ["EventRules", "EventsTable", "events_of", "read_event_rules", "whole_text"]

_LINE_END: Final = re.compile(r"\r\n|\r|\n")


class EventsTable(Table):
    """How the events of a stream make an answer."""

    text: str = Field(description="Where a piece of the answer stands in the JSON of an event; the pieces are joined.")
    end: str | None = Field(None, description='The data of the last event: "[DONE]".')
    end_event: str | None = Field(None, description='The name of the last event: "message_stop".')

    @model_validator(mode="after")
    def _has_an_end(self) -> EventsTable:
        if (self.end is None) == (self.end_event is None):
            raise ValueError("a stream needs one of end and end_event, to tell a whole answer from one that was cut")
        return self


@attrs.frozen
class EventRules:
    """Reads the body of a stream; usage, evidence, flags and error are looked for in every event."""

    _rules: BodyRules
    _text: Path
    _end: str | None
    _end_event: str | None

    def outcome(self, body: bytes, *, told: str, charset: str = "utf-8") -> Outcome:  # noqa: ARG002 - it is UTF-8
        documents: list[JsonValue] = []
        for name, data in events_of(body.decode("utf-8", "replace")):
            if data == self._end or (self._end_event is not None and name == self._end_event):
                return self._whole(documents, told)
            if name == "error":
                message = one_line(f"{told}: {data}")
                return Outcome(
                    state=DispatchState.FAILED, reason="body.error", message=message, usage=self._seen(documents)
                )
            try:
                documents.append(parse_json(data))
            except (ValueError, RecursionError):
                message = one_line(f"{told}, an event is not JSON: {data}")
                return Outcome(
                    state=DispatchState.FAILED, reason="answer.not_json", message=message, usage=self._seen(documents)
                )
            error = self._rules.error_in(documents[-1])
            if error is not None:
                return attrs.evolve(self._rules.error_outcome(error, told), usage=self._seen(documents))
        message = f"{told}, and the stream stopped after {len(documents)} events without its end"
        return Outcome(state=DispatchState.UNKNOWN, reason="stream.cut", message=message, usage=self._seen(documents))

    def _whole(self, documents: list[JsonValue], told: str) -> Outcome:
        pieces = [self._text.find(document) for document in documents]
        texts = [piece for piece in pieces if isinstance(piece, str)]
        if not texts:
            message = f"{told}: there is nothing at {self._text.text} in any event"
            return Outcome(
                state=DispatchState.FAILED, reason="answer.missing", message=message, usage=self._usage(documents)
            )
        evidence: dict[str, JsonValue] = {}
        flags: set[str] = set()
        for document in documents:
            evidence |= self._rules.evidence_in(document)
            flags |= {*self._rules.flags_in(document)}
        return Outcome(
            state=DispatchState.ANSWERED,
            answer=whole_text(texts),
            usage=self._usage(documents),
            evidence=evidence,
            flags=tuple(name for name in self._rules.flags if name in flags),
        )

    def _usage(self, documents: list[JsonValue]) -> Usage | None:
        return self._rules.usage.in_events(documents)

    def _seen(self, documents: list[JsonValue]) -> Usage | None:
        """What had been told before the stream went wrong; more may have come out."""
        return broken_off(self._usage(documents))

    def usage_of(self, body: bytes) -> Usage | None:
        """The usage in an error's body, which is no stream."""
        return self._rules.usage_of(body)

    def usage_of_cut(self, body: bytes) -> Usage | None:
        """What the whole events of a stream that broke off had told."""
        documents: list[JsonValue] = []
        for _, data in events_of(body.decode("utf-8", "replace")):
            with contextlib.suppress(ValueError, RecursionError):
                documents.append(parse_json(data))
        return self._seen(documents)


def read_event_rules(table: EventsTable, rules: BodyRules, *, place: str) -> EventRules:
    """Compile the table; raises WorkOrderInvalid."""
    text = read_path(table.text, place=f"{place}.text")
    return EventRules(rules=rules, text=text, end=table.end, end_event=table.end_event)


def whole_text(pieces: list[str]) -> str:
    """The pieces as one text; the two halves of a character that was split between them become that character."""
    joined = "".join(pieces)
    if joined.isascii():
        return joined
    return joined.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def events_of(text: str) -> Iterator[tuple[str, str]]:
    """Name and data of each event that a blank line ends; an event that was cut in the middle is none."""
    name = "message"
    data: list[str] = []
    for line in _LINE_END.split(text.removeprefix("\ufeff"))[:-1]:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield name, "\n".join(data)
            name, data = "message", []
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)
