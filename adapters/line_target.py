"""Instruments that answer one line a query, over TCP, a serial port or a pseudo-terminal.

Such an instrument compares no fences and its answers do not say what they answer. Whoever reads a line that came late
takes it for the answer to the next query. So a line counts only where the instrument is in step: nothing had come
unasked before the query, one line came after it, and where the instrument has an *echo* a nonce that is sent behind
the query comes back behind that line. After a query without an answer the work order says what proves that no late
line can come: the echo, a new connection, or a time after which none comes. Where nothing does, it is quarantined.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import attrs
from pydantic import Field, model_validator

from ..ledger.canonical import JsonValue, parse_json
from ..ledger.states import DispatchState
from ..runner.protocols import Dispatching, Outcome, Prepared, SlotView, WireProgress
from .bodies import BodyTable, read_body_rules
from .errors import CaseUnfit
from .lab import LabTable, LabTarget, NotInStep, broken_off
from .line_link import LineLink, LineTooLong, read_address
from .outcomes import one_line
from .tables import read_table
from .templates import text_of

__all__ = ["LineTable", "LineTarget", "from_work_order"]

_NONCE: Final = "{{nonce}}"
_LINES_MAX: Final = 10_000
_NOT_IDENTITY: Final = frozenset(
    {"address", "baud", "connect_seconds", "echo", "reconnect", "answer_seconds_max", "line_bytes_max"}
)


class LineTable(LabTable, BodyTable):
    """The table of a target of kind ``line``."""

    address: str = Field(description='Where it is reached: "host:port", or the path of a serial port.')
    payload: Any = Field("{{input}}", description="Template of the line that is sent; what is no text goes as JSON.")
    output: Literal["text", "number", "json"] = Field("text", description="How the line that comes back is read.")
    identify: str = Field("*IDN?", description="The query whose answer has the serial between its commas.")
    echo: str | None = Field(None, description='A query that is answered with its own "{{nonce}}".')
    reconnect: bool = Field(False, description="Whether an answer never comes over another connection than its query.")
    answer_seconds_max: float | None = Field(None, gt=0, description="The time after which no answer comes any more.")
    ends_with: Literal["\n", "\r\n", "\r"] = Field("\n", description="The end of a line that is sent.")
    encoding: Literal["utf-8", "ascii", "latin-1"] = Field("utf-8", description="The encoding of lines.")
    baud: int | None = Field(None, gt=0, description="Speed of a serial port; as it is if absent.")
    connect_seconds: float = Field(5.0, gt=0, description="Bound of connecting.")
    line_bytes_max: int = Field(1024 * 1024, ge=1, le=2**23, description="Bound of a line that comes back.")

    @model_validator(mode="after")
    def _is_of_one_mind(self) -> LineTable:
        if self.echo is not None and _NONCE not in self.echo:
            raise ValueError(f'echo = "{self.echo}" has no {_NONCE} in it')
        if self.answer_seconds_max is not None and self.answer_seconds_max > self.drain_seconds:
            raise ValueError("drain_seconds has to be at least answer_seconds_max")
        if self.output != "json" and "answer" in self.model_fields_set and self.answer != "text":
            raise ValueError(f'output = "{self.output}" has no places; leave answer out')
        return self


def from_work_order(table: Mapping[str, Any], *, folder: Path, place: str) -> LineTarget:  # noqa: ARG001
    """The target that a work order's table says; raises WorkOrderInvalid."""
    return LineTarget(read_table(LineTable, table, place=place), place=place)


class _Unasked(Exception):
    """More lines came than were asked for."""


class LineTarget(LabTarget):
    """One instrument. Serves one event loop at a time, between `open` and `close`."""

    kind = "line"
    table_type = LineTable
    not_identity: ClassVar[frozenset[str]] = _NOT_IDENTITY
    table: LineTable

    def __init__(self, table: LineTable, *, place: str) -> None:
        super().__init__(table, place=place)
        self._address = read_address(table.address, place=f"{place}.address")
        answer = {"answer": "text"} if table.output != "json" else {}
        self._bodies = read_body_rules(table.model_copy(update=answer), place=place)
        self._ending = table.ends_with.encode("ascii")
        self._link: LineLink | None = None

    def prepare(self, slot: SlotView) -> Prepared:
        """The line, without its end; raises CaseUnfit where it would be more than one."""
        prepared = super().prepare(slot)
        text = text_of(parse_json(prepared.payload))
        try:
            line = text.encode(self.table.encoding, "surrogatepass" if self.table.encoding == "utf-8" else "strict")
        except UnicodeEncodeError as fault:
            raise self._unfit(slot, f"cannot be written as {self.table.encoding} ({fault.reason})") from None
        if b"\n" in line or b"\r" in line:
            raise self._unfit(slot, "would be more than one line")
        return Prepared(line, prepared.head)

    def _unfit(self, slot: SlotView, why: str) -> CaseUnfit:
        what = f'case "{one_line(slot.case.id)}": what is sent to {self.resource} {why}'
        return CaseUnfit(what, "Change the case, or the target's payload", case_id=slot.case.id)

    # What the base asks of a device.

    async def connect(self) -> None:
        table = self.table
        self._link = await LineLink.open(self._address, connect_seconds=table.connect_seconds, baud=table.baud)

    async def disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
            await asyncio.sleep(0)  # the loop closes the file one turn later, and may be about to end

    @property
    def link(self) -> LineLink:
        assert self._link is not None, "connect() comes before everything else"
        return self._link

    async def identify(self) -> Mapping[str, JsonValue]:
        """Manufacturer, model, serial and firmware (IEEE 488.2, 10.14), or any line that has the serial in it."""
        query, seconds = self.table.identify, self.table.drain_seconds
        try:
            async with asyncio.timeout(seconds):
                line = await self._answer_to(query.encode(self.table.encoding), WireProgress())
        except (_Unasked, LineTooLong) as fault:
            self._standing.lose_step()
            raise NotInStep("device.silent", f"no sound answer to {query}: {fault}") from None
        except TimeoutError:
            self._standing.lose_step()
            raise NotInStep("device.silent", f"no answer to {query} within {seconds:g} s") from None
        told = line.decode(self.table.encoding, "replace").strip()
        fields = [field.strip() for field in told.split(",")]
        found = {"serial": self.table.serial, "firmware": self.table.firmware}
        by_place = {"serial": 2, "firmware": 3}
        facts: dict[str, JsonValue] = {"identification": told}
        for name, place in by_place.items():
            facts[name] = found[name] if found[name] in fields else fields[place] if len(fields) > place else told
        return facts

    @property
    def can_resynchronise(self) -> bool:
        return self.table.echo is not None or self.table.reconnect or self.table.answer_seconds_max is not None

    @property
    def proves_idle(self) -> bool:
        return self.table.echo is not None or self.table.answer_seconds_max is not None

    async def resynchronise(self) -> None:
        """Get to where no line of an earlier query can come any more, by all that the work order names."""
        if not self.can_resynchronise:
            await super().resynchronise()
        if self.table.reconnect or self.link.is_closed:
            await self.disconnect()
            await self.connect()
            self.facts = {}  # whoever is there now has to say who it is
        if self.table.answer_seconds_max is not None:
            await asyncio.sleep(self._standing.left(self.table.answer_seconds_max))
            self.link.drop_received()
        if self.table.echo is not None:
            await self._echoed()

    async def get_ready(self, prepared: Prepared) -> None:
        if self._link is not None and self._link.has_bytes:
            self._standing.lose_step()
        if self._link is not None and self._link.is_closed and self._standing.is_in_step:
            await self.leave()  # nothing was owed on it
        await super().get_ready(prepared)

    def is_in_step_after(self, outcome: Outcome) -> bool:
        return super().is_in_step_after(outcome) and outcome.reason != "answer.too_large"

    # One query.

    async def exchange(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:
        progress = dispatching.progress
        try:
            line = await self._answer_to(prepared.payload, progress)
        except _Unasked as fault:
            return broken_off(progress, "reply.mismatched", str(fault))
        except LineTooLong as fault:
            return Outcome(DispatchState.FAILED, "answer.too_large", str(fault))
        return self._read(line)

    def _read(self, line: bytes) -> Outcome:
        outcome = attrs.evolve(self._bodies.outcome(line, told="a line", charset=self.table.encoding), raw=line)
        if self.table.output != "number" or outcome.state is not DispatchState.ANSWERED:
            return outcome
        try:
            return attrs.evolve(outcome, answer=_number(line))
        except ValueError:
            told = one_line(f"a line, and no number: {line[:80].decode('utf-8', 'replace')}")
            return Outcome(DispatchState.FAILED, "answer.not_json", told, raw=line)

    async def _answer_to(self, query: bytes, progress: WireProgress) -> bytes:
        """The one line that came for the query; raises _Unasked where that cannot be told."""
        link = self.link
        if link.has_bytes:
            raise NotInStep("device.out_of_step", "something came that was not asked for")
        link.write_line(query, self._ending)
        progress.bytes_sent, progress.wire_sends = len(query) + len(self._ending), 1
        line = await link.read_line(self.table.line_bytes_max)
        progress.partial += line
        between = [] if self.table.echo is None else await self._echoed()
        if between or link.has_bytes:
            progress.partial += b"\n" + b"\n".join(between)
            raise _Unasked("more lines came than were asked for; which of them is the answer cannot be told")
        progress.partial.clear()
        return line

    async def _echoed(self) -> list[bytes]:
        """Send a nonce, and read until it comes back: everything before it belongs to what was asked before."""
        assert self.table.echo is not None
        nonce = secrets.token_hex(8)
        self.link.write_line(self.table.echo.replace(_NONCE, nonce).encode(self.table.encoding), self._ending)
        before: list[bytes] = []
        while len(before) < _LINES_MAX:
            try:
                line = await self.link.read_line(self.table.line_bytes_max)
            except LineTooLong as fault:
                line = str(fault).encode("ascii")
            if nonce.encode("ascii") in line:
                return before
            before.append(line)
        raise NotInStep("device.out_of_step", "it talks without end", quarantine=True)


def _number(line: bytes) -> JsonValue:
    text = line.decode("ascii").strip()
    try:
        return int(text)
    except ValueError:
        value = float(text)
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError("not a finite number")
    return value
