"""A target that translates word by word, by a file of pairs. It stands for whatever service you want to measure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from tallystick.adapters.tables import Table, read_table
from tallystick.ledger.canonical import canonical_bytes, digest_of_bytes, parse_json
from tallystick.ledger.errors import TargetNotFound
from tallystick.ledger.states import DispatchState, IfUnknown
from tallystick.runner.protocols import Dispatching, Outcome, Prepared, QueryAnswer, QueryState, SlotView


class GlossaryTable(Table):
    """What a work order may say in the target's table, besides ``kind``."""

    file: str = Field(description="Pairs of words, one `word = translation` a line; relative to the work order.")
    keep_unknown: bool = Field(False, description="Whether a word that has no translation stays as it is.")


def from_work_order(table: Mapping[str, Any], *, folder: Path, place: str) -> GlossaryTarget:
    """The target of a work order's table. Whatever is wrong in it is told under ``place``."""
    return GlossaryTarget(read_table(GlossaryTable, table, place=place), folder=folder, place=place)


class GlossaryTarget:
    kind = "glossary"
    if_unknown = IfUnknown.REPEAT  # asking again costs nothing and changes nothing
    key_valid_seconds: float | None = None
    is_wire_visible = True

    def __init__(self, table: GlossaryTable, *, folder: Path, place: str) -> None:
        self._keep_unknown = table.keep_unknown
        try:
            data = (folder / table.file).read_bytes()
        except OSError as cause:
            what = f"{place}.file: {table.file} cannot be read ({cause.strerror})"
            raise TargetNotFound(what, "Correct it; it is relative to the work order's folder") from cause
        self._digest = digest_of_bytes(data)
        pairs = (line.split("=", 1) for line in data.decode("utf-8").splitlines() if "=" in line)
        self._words = {word.strip(): translation.strip() for word, translation in pairs}

    def identity(self) -> Mapping[str, Any]:
        """What an answer depends on. What stands at its default is left out, so that a new key changes no old run."""
        return {"words": self._digest, **({"keep_unknown": True} if self._keep_unknown else {})}

    def check(self) -> None:
        """Everything was looked at when it was made."""

    def prepare(self, slot: SlotView) -> Prepared:
        # No I/O here: these bytes are committed before anything is sent.
        return Prepared(canonical_bytes({"text": slot.case.input}))

    async def open(self) -> None:
        """A client of a service would be opened here, on the running loop."""

    async def dispatch(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:
        text = parse_json(prepared.payload)["text"]
        if not isinstance(text, str):
            return Outcome(DispatchState.REFUSED, "glossary.no_text", "the case's input is no text", bytes_sent=0)
        dispatching.progress.bytes_sent = len(prepared.payload)  # from here on, something may have been sent
        missing = sorted({word for word in text.split() if word not in self._words})
        if missing and not self._keep_unknown:
            return Outcome(DispatchState.FAILED, "glossary.missing", f"no translation of {', '.join(missing)}")
        answer = " ".join(self._words.get(word, word) for word in text.split())
        return Outcome(DispatchState.ANSWERED, answer=answer, raw=answer.encode(), evidence={"missing": missing})

    async def query(self, request_id: str, prepared: Prepared) -> QueryAnswer:
        return QueryAnswer(QueryState.NO_PROOF)

    async def close(self) -> None:
        """The client would be closed here; closing twice has to do no harm."""
