"""Answers that come as a stream of server-sent events (WHATWG HTML, 9.2).

A stream that stops without its end has been cut, however well its connection was closed: what came is kept, and the
outcome is unknown, because it was worked on and may have been paid for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import attrs
from pydantic import Field, model_validator

from ..ledger.canonical import JsonValue, parse_json
from ..ledger.states import DispatchState
from ..runner.protocols import Missing, Outcome, Usage
from .bodies import BodyRules
from .outcomes import one_line
from .paths import Path, read_path
from .tables import Table

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
                    state=DispatchState.FAILED, reason="body.error", message=message, usage=self._usage(documents)
                )
            try:
                documents.append(parse_json(data))
            except (ValueError, RecursionError):
                message = one_line(f"{told}, an event is not JSON: {data}")
                return Outcome(state=DispatchState.FAILED, reason="answer.not_json", message=message)
            error = self._rules.error_in(documents[-1])
            if error is not None:
                return attrs.evolve(self._rules.error_outcome(error, told), usage=self._usage(documents))
        message = f"{told}, and the stream stopped after {len(documents)} events without its end"
        return Outcome(state=DispatchState.UNKNOWN, reason="stream.cut", message=message, usage=self._usage(documents))

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
        told = [usage for usage in map(self._rules.usage_in, documents) if usage is not None]
        reported = [usage for usage in told if not isinstance(usage.raw, Missing) and usage.raw is not None]
        merged: Usage | None = None
        for usage in reported:
            merged = usage if merged is None else _later(merged, usage)
        return merged if merged is not None else (told[-1] if told else None)

    def usage_of(self, body: bytes) -> Usage | None:
        """The usage in an error's body, which is no stream."""
        return self._rules.usage_of(body)


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


def _later(earlier: Usage, later: Usage) -> Usage:
    """Counts are told piece by piece (what went in at the beginning, what came out at the end); later ones count."""
    return Usage(
        tokens_in=earlier.tokens_in if later.tokens_in is None else later.tokens_in,
        tokens_out=earlier.tokens_out if later.tokens_out is None else later.tokens_out,
        cost_nanousd=earlier.cost_nanousd if later.cost_nanousd is None else later.cost_nanousd,
        raw=later.raw,
        problems=(*earlier.problems, *later.problems),
    )


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
