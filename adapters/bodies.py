"""What a body says: the answer, the usage, an error inside it, evidence, and facts about the answer.

Shared by every target that gets bytes back. An answer is there or is not there; whether it is null, false, 0 or empty
is never asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import attrs
from pydantic import Field

from ..ledger.canonical import JsonValue, parse_json
from ..ledger.states import DispatchState
from ..runner.protocols import Missing, Outcome, Usage
from .outcomes import one_line
from .paths import Path, read_path
from .tables import Table
from .templates import text_of
from .usage_rules import UsageRules, UsageTable, read_usage_rules

__all__ = ["BodyReader", "BodyRules", "BodyTable", "ErrorTable", "FlagTable", "UsageTable", "read_body_rules"]

_BOM: Final = b"\xef\xbb\xbf"
_KNOWN_ENDS: Final = (None, False, "", 0)


class ErrorTable(Table):
    """An error inside a body: what stands at ``path`` and is not null, false, 0 or empty."""

    path: str = Field(description="Where the error stands.")
    refused: bool = Field(False, description="Whether it says that nothing was done.")


class FlagTable(Table):
    """A fact about the answer, such as ``truncated``: it holds where the value at ``path`` is one of these."""

    path: str = Field(description="Where the value stands.")
    equals: Any = Field(None, description="The value for which the flag holds.")


class BodyTable(Table):
    """The keys that all targets with a body share."""

    answer: str = Field("$", description='JSONPath or JSON pointer of the answer; "text" for the whole body as text.')
    usage: UsageTable | None = Field(None, description="Where tokens and cost stand.")
    evidence: dict[str, str] = Field({}, description="What is kept beside the answer, by name: `context`, …")
    flags: dict[str, FlagTable] = Field({}, description="Facts about an answer: `truncated`, `filtered`.")
    error: str | ErrorTable | None = Field(None, description="Where an error stands inside a body of a good status.")


class BodyReader(Protocol):
    """What reads the whole body of a good status, and the usage in that of a bad one, or in one that broke off."""

    def outcome(self, body: bytes, *, told: str, charset: str = ...) -> Outcome: ...

    def usage_of(self, body: bytes) -> Usage | None: ...

    def usage_of_cut(self, body: bytes) -> Usage | None: ...


@attrs.frozen
class BodyRules:
    """How bodies of one target are read."""

    answer: Path | None  # None: the whole body as text
    usage: UsageRules
    evidence: Mapping[str, Path]
    flags: Mapping[str, tuple[Path, JsonValue]]
    error: Path | None
    is_error_refusal: bool

    def outcome(self, body: bytes, *, told: str, charset: str = "utf-8") -> Outcome:
        """Answered, failed or refused; ``told`` is what messages begin with (``200``, ``exit status 0``)."""
        if self.answer is None and not (self.usage or self.evidence or self.flags or self.error):
            return _text_outcome(body, charset)
        try:
            document = _parsed(body)
        except (ValueError, RecursionError):
            if self.answer is None:
                return _text_outcome(body, charset)
            what = f"{told}, not JSON: {_excerpt(body)}" if body else f"{told}, no body"
            return Outcome(
                state=DispatchState.FAILED, reason="answer.not_json" if body else "answer.missing", message=what
            )
        return self._document_outcome(document, body, told=told, charset=charset)

    def _document_outcome(self, document: JsonValue, body: bytes, *, told: str, charset: str) -> Outcome:
        usage = self.usage_in(document)
        error = self.error_in(document)
        if error is not None:
            return attrs.evolve(self.error_outcome(error, told), usage=usage)
        answer = _decoded(body, charset)[0] if self.answer is None else self.answer.find(document)
        if isinstance(answer, Missing):
            path = self.answer.text if self.answer is not None else ""
            what = f"{told}: there is nothing at {path}"
            return Outcome(state=DispatchState.FAILED, reason="answer.missing", message=what, usage=usage)
        return Outcome(
            state=DispatchState.ANSWERED,
            answer=answer,
            usage=usage,
            evidence=self.evidence_in(document),
            flags=self.flags_in(document),
        )

    def error_outcome(self, error: str, told: str) -> Outcome:
        """Failed, or refused where the work order says that the error does."""
        state = DispatchState.REFUSED if self.is_error_refusal else DispatchState.FAILED
        return Outcome(state=state, reason="body.error", message=f"{told}: {error}")

    def usage_of(self, body: bytes) -> Usage | None:
        """What a body that is no answer reports as used; None where it is not JSON."""
        if not self.usage:
            return None
        try:
            return self.usage_in(_parsed(body))
        except (ValueError, RecursionError):
            return None

    def usage_of_cut(self, body: bytes) -> Usage | None:  # noqa: ARG002 - half a document is none
        """What a body that broke off had told until then: nothing."""
        return None

    def usage_in(self, document: JsonValue) -> Usage | None:
        return self.usage.in_document(document)

    def error_in(self, document: JsonValue) -> str | None:
        if self.error is None:
            return None
        error = self.error.find(document)
        if isinstance(error, Missing) or error in _KNOWN_ENDS or error in ([], {}):
            return None
        return one_line(text_of(error))

    def flags_in(self, document: JsonValue) -> tuple[str, ...]:
        return tuple(name for name, (path, value) in self.flags.items() if _same(path.find(document), value))

    def evidence_in(self, document: JsonValue) -> dict[str, JsonValue]:
        found = {name: path.find(document) for name, path in self.evidence.items()}
        return {name: value for name, value in found.items() if not isinstance(value, Missing)}


def read_body_rules(table: BodyTable, *, place: str) -> BodyRules:
    """Compile the paths; raises WorkOrderInvalid."""
    error = ErrorTable(path=table.error) if isinstance(table.error, str) else table.error
    return BodyRules(
        answer=None if table.answer == "text" else read_path(table.answer, place=f"{place}.answer"),
        usage=read_usage_rules(table.usage, f"{place}.usage"),
        evidence={name: read_path(text, place=f"{place}.evidence.{name}") for name, text in table.evidence.items()},
        flags={
            name: (read_path(flag.path, place=f"{place}.flags.{name}"), flag.equals)
            for name, flag in table.flags.items()
        },
        error=None if error is None else read_path(error.path, place=f"{place}.error"),
        is_error_refusal=error is not None and error.refused,
    )


def _parsed(body: bytes) -> JsonValue:
    return parse_json(body.removeprefix(_BOM))


def _unread(body: bytes, told: str) -> Outcome:
    if not body:
        return Outcome(state=DispatchState.FAILED, reason="answer.missing", message=f"{told}, no body")
    what = f"{told}, not JSON: {_excerpt(body)}"
    return Outcome(state=DispatchState.FAILED, reason="answer.not_json", message=what)


def _text_outcome(body: bytes, charset: str) -> Outcome:
    text, is_whole = _decoded(body, charset)
    return Outcome(state=DispatchState.ANSWERED, answer=text, flags=() if is_whole else ("undecodable",))


def _decoded(body: bytes, charset: str) -> tuple[str, bool]:
    try:
        return body.decode(charset), True
    except (UnicodeDecodeError, LookupError):
        return body.decode("utf-8", "replace"), False


def _excerpt(body: bytes) -> str:
    return one_line(body[:400].decode("utf-8", "replace"), length_max=120)


def _same(found: JsonValue | Missing, wanted: JsonValue) -> bool:
    if isinstance(found, Missing):
        return False
    return type(found) is type(wanted) and found == wanted
