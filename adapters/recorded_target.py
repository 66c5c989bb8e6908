"""Answers that are there already: a file of them, one JSON object a line, stands in for whatever gave them.

For judging what another program answered, and for labelled observations (``tallystick qualify``). Each line has the
case's ``id``, its ``answer``, and perhaps ``context``, ``tool_calls``, ``evidence`` and ``flags``; other keys are
somebody else's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
from pydantic import Field

from ..ledger.canonical import JsonValue, canonical_bytes, digest_of_bytes, parse_json
from ..ledger.errors import TargetNotFound
from ..ledger.states import DispatchState, IfUnknown
from ..runner.protocols import Dispatching, Outcome, Prepared, QueryAnswer, QueryState, SlotView
from .errors import CaseUnfit
from .outcomes import one_line
from .tables import Table, read_table

__all__ = ["RecordedTable", "RecordedTarget", "from_work_order"]

_EVIDENCE: Final = ("context", "retrieval", "tool_calls")


class RecordedTable(Table):
    """The table of a target of kind ``recorded``."""

    file: str = Field(description="The answers, one JSON object a line with `id` and `answer`; relative to the folder.")


@attrs.frozen
class _Recorded:
    answer: JsonValue
    evidence: Mapping[str, JsonValue]
    flags: tuple[str, ...]


def from_work_order(table: Mapping[str, Any], *, folder: Path, place: str) -> RecordedTarget:
    """The target that a work order's table says; raises TargetNotFound."""
    return RecordedTarget(read_table(RecordedTable, table, place=place), folder=folder, place=place)


class RecordedTarget:
    """A file of answers. A dispatch reads what was read when the target was made."""

    kind = "recorded"
    if_unknown = IfUnknown.REPEAT
    key_valid_seconds: float | None = None
    is_wire_visible = True

    def __init__(self, table: RecordedTable, *, folder: Path, place: str) -> None:
        path = folder / table.file
        try:
            data = path.read_bytes()
        except OSError as cause:
            what = f"{place}.file: {table.file} cannot be read ({cause.strerror})"
            raise TargetNotFound(what, "Correct it; it is relative to the work order's folder") from cause
        self._digest = digest_of_bytes(data)
        self._written = table.file
        self._answers = dict(_read(data, f"{place}.file: {table.file}"))

    def identity(self) -> Mapping[str, JsonValue]:
        """The content of the file, and not its name."""
        return {"kind": self.kind, "answers": self._digest}

    def check(self) -> None:
        """Everything was read when it was made."""

    def prepare(self, slot: SlotView) -> Prepared:
        if slot.case.id not in self._answers:
            what = f'case "{one_line(slot.case.id)}" has no answer in {self._written}'
            raise CaseUnfit(what, "Add a line with its id and answer", case_id=slot.case.id)
        return Prepared(canonical_bytes({"recorded": slot.case.id}), {"file": self._written})

    async def open(self) -> None:
        """There is nothing to open."""

    async def dispatch(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:  # noqa: ARG002
        found = self._answers[dispatching.slot.case.id]
        return Outcome(
            DispatchState.ANSWERED, answer=found.answer, evidence=found.evidence, flags=found.flags, bytes_sent=0
        )

    async def query(self, request_id: str, prepared: Prepared) -> QueryAnswer:  # noqa: ARG002
        return QueryAnswer(QueryState.NO_PROOF)

    async def close(self) -> None:
        """There is nothing to give back."""


def _read(data: bytes, place: str) -> list[tuple[str, _Recorded]]:
    found: list[tuple[str, _Recorded]] = []
    seen: set[str] = set()
    if data.startswith(b"\xef\xbb\xbf"):
        raise TargetNotFound(f"{place}:1: begins with a byte order mark", "Save it as UTF-8 without BOM")
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        key, recorded = _one(line, f"{place}:{number}")
        if key in seen:
            raise TargetNotFound(f'{place}:{number}: a second answer for "{one_line(key)}"', "Keep one of them")
        seen.add(key)
        found.append((key, recorded))
    return found


def _one(line: bytes, where: str) -> tuple[str, _Recorded]:
    try:
        row = parse_json(line)
    except ValueError as cause:
        told = one_line(str(cause), length_max=80)
        raise TargetNotFound(f"{where}: not JSON ({told})", "Write one JSON object a line") from cause
    if not isinstance(row, dict) or "id" not in row or "answer" not in row:
        raise TargetNotFound(f"{where}: an object with id and answer is wanted", "Write one for each case")
    evidence = row.get("evidence", {})
    flags = row.get("flags", [])
    if not isinstance(evidence, dict):
        raise TargetNotFound(f'{where}: "evidence" is an object', "Write the evidence by name")
    if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
        raise TargetNotFound(f'{where}: "flags" is a list of texts', "Write [] or leave it out")
    named = {name: row[name] for name in _EVIDENCE if name in row}
    return str(row["id"]), _Recorded(row["answer"], {**evidence, **named}, tuple(str(flag) for flag in flags))
