"""The base of targets that work on one device in a lab.

A device does one thing at a time, its answers come late or not at all, and an answer does not say which question it
is for. So there is one exchange at a time, and after one whose end is not known the device is *out of step*: nothing
is sent to it before it is proven that nothing of the earlier exchange can be taken for the next answer, or else it is
quarantined and an operator looks.

A subclass says how to `connect`, `identify`, `ask`, `resynchronise` and `disconnect`; the rest is here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import attrs
from pydantic import Field

from ..ledger.canonical import JsonValue, canonical_bytes, parse_json
from ..ledger.errors import IdentityChanged, LeaseLost, TargetNotFound, WorkOrderInvalid
from ..ledger.states import DispatchState, IfUnknown
from ..runner.device_protocols import LEASE_LOST, DeviceNeed, TakenOver, Tenure
from ..runner.protocols import Dispatching, Outcome, Prepared, QueryAnswer, QueryState, SlotView, WireProgress
from .answers import Answer
from .lab_standing import Standing, standing_of
from .outcomes import one_line
from .python_outcomes import outcome_of_exception, outcome_of_value
from .tables import Table, read_table
from .templates import read_json_template
from .wire import WireCut
from .wire_stream import NotConnected

__all__ = ["LabTable", "LabTarget", "NotInStep", "broken_off"]

_NOT_IDENTITY: Final = frozenset({"address", "drain_seconds", "if_unknown"})
_DRAIN_LEAST: Final = 0.1  # of the time that a proof may take, for a try after that time


class LabTable(Table):
    """The keys that all devices share; a subclass adds where the device is reached, best under ``address``."""

    serial: str = Field(min_length=1, max_length=128, description="Which device it has to be.")
    firmware: str | None = Field(None, description="The firmware that it has to have; any if absent.")
    payload: Any = Field("{{input}}", description="Template of what it is asked.")
    drain_seconds: float = Field(
        10.0, gt=0, le=3600, description="How long it may take to prove that nothing of an earlier request is going on."
    )
    if_unknown: IfUnknown = Field(IfUnknown.KEEP, strict=False, description="What may follow an unknown outcome.")
    version: str | None = Field(None, description="Version of what answers; counts in the run's identity.")


class NotInStep(Exception):
    """The device cannot be used now; nothing has been sent. With ``quarantine``, not before an operator has looked."""

    def __init__(
        self, reason: str, message: str, *, quarantine: bool = False, state: DispatchState = DispatchState.REFUSED
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.state = state
        self.quarantine = one_line(message) if quarantine else None

    def outcome(self) -> Outcome:
        """Of the request that it was met for, which was not sent."""
        told = one_line(str(self))
        return Outcome(self.state, self.reason, told, bytes_sent=0, wire_sends=0, quarantine=self.quarantine)


class LabTarget:
    """One device. Serves one event loop at a time, between `open` and `close`."""

    kind: str = "lab"
    compares_fences: ClassVar[bool] = False
    can_be_queried: ClassVar[bool] = False
    has_one_connection: ClassVar[bool] = True
    not_identity: ClassVar[frozenset[str]] = _NOT_IDENTITY
    is_wire_visible = True
    key_valid_seconds: float | None = None
    table_type: ClassVar[type[LabTable]] = LabTable

    @classmethod
    def from_work_order(cls, table: Mapping[str, Any], *, folder: Path, place: str) -> Self:  # noqa: ARG003
        """The target that a work order's table says; raises WorkOrderInvalid. What an entry point names."""
        return cls(read_table(cls.table_type, table, place=place), place=place)

    def __init__(self, table: LabTable, *, place: str) -> None:
        if table.if_unknown is IfUnknown.QUERY and not self.can_be_queried:
            where = f"{place}.if_unknown"
            told = f'{where}: a device of kind "{self.kind}" cannot be asked by request id'
            raise WorkOrderInvalid(told, 'Write "keep", or "repeat" where asking again is harmless', place=where)
        self.if_unknown = table.if_unknown
        self.table = table
        self.place = place
        self.resource = f"{self.kind}:{table.serial}"
        self._template = read_json_template(table.payload, place=f"{place}.payload")
        self.facts: Mapping[str, JsonValue] = {}
        self._tenure: Tenure | None = None
        self._is_connected = False
        self._standing = Standing()

    # What a subclass says.

    async def connect(self) -> None:
        """Reach the device at its address; an OSError says that it cannot be reached."""
        raise NotImplementedError

    async def identify(self) -> Mapping[str, JsonValue]:
        """Ask the device what it is: ``serial``, and ``firmware`` or whatever else it says. Changes nothing on it."""
        raise NotImplementedError

    async def ask(self, payload: JsonValue) -> JsonValue | Answer:
        """One exchange. Raises `Refused` where nothing was done, `Failed` for an error that the device tells.

        Whatever else is raised says that the end is not known, and puts the device out of step. It is cancelled at
        the deadline.
        """
        raise NotImplementedError

    async def resynchronise(self) -> None:
        """Prove that nothing of an earlier exchange can still come; raises NotInStep where that cannot be proven."""
        told = "what it is still doing is not known, and there is no way to find out"
        raise NotInStep("device.out_of_step", told, quarantine=True)

    @property
    def can_resynchronise(self) -> bool:
        """Whether `resynchronise` is worth a try, also where nothing of an earlier exchange is known."""
        return type(self).resynchronise is not LabTarget.resynchronise

    @property
    def proves_idle(self) -> bool:
        """Whether a device that is back in step has also ended what it was doing."""
        return True

    async def disconnect(self) -> None:
        """Give the connection back; idempotent, raises nothing."""

    # What a target is.

    def identity(self) -> Mapping[str, JsonValue]:
        """The table without the address and what only says how patient we are."""
        hidden = set(self.not_identity | _NOT_IDENTITY)
        dumped = self.table.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=hidden)
        return {"kind": self.kind, **dumped}

    def prepare(self, slot: SlotView) -> Prepared:
        """The payload as canonical JSON: the template's, or the turn's message where no template is given."""
        head: dict[str, JsonValue] = {"device": self.resource}
        if slot.turn is not None:
            head |= {"session": slot.turn.session, "turn": slot.turn.number}
            if "payload" not in self.table.model_fields_set:
                return Prepared(canonical_bytes(slot.turn.message), head)
        return Prepared(canonical_bytes(parse_json(self._template.render(slot))), head)

    def check(self) -> None:
        """Nothing can be missing that does not need the device."""

    async def open(self) -> None:
        self._standing = Standing()
        self.check()

    async def close(self) -> None:
        self._tenure = None
        await self.leave()

    async def query(self, request_id: str, prepared: Prepared) -> QueryAnswer:  # noqa: ARG002 - cannot be asked
        return QueryAnswer(QueryState.NO_PROOF, message="the device cannot be asked by request id")

    # What a device's target is.

    def devices(self) -> tuple[DeviceNeed, ...]:
        return (DeviceNeed(self.resource, self.kind, self.compares_fences),)

    async def take_over(self, tenure: Tenure) -> TakenOver:
        """Prove that nothing of an earlier holder can be taken for an answer, then look that it is the device meant."""
        self._standing = standing = standing_of(tenure, self.resource)
        async with standing.lock:
            self._tenure = tenure
            await self.leave()
            is_owed = bool(tenure.open_requests(self.resource))
            if is_owed or self.can_resynchronise:
                standing.lose_step()
            try:
                return await self.taken_over(tenure)
            except NotInStep as fault:
                facts = self.facts
                await self.leave()
                if fault.reason == LEASE_LOST:
                    raise LeaseLost(str(fault), "The device is asked for again", self.resource) from None
                if fault.quarantine is None:
                    raise TargetNotFound(f"{self.place}: {self.resource}: {fault}", "Look at the device") from None
                return TakenOver(facts, quarantine=fault.quarantine)
            except (OSError, NotConnected, WireCut) as fault:
                await self.leave()
                remedy = "Switch it on, or correct its address"
                raise TargetNotFound(f"{self.place}: {self.resource} cannot be reached ({fault})", remedy) from None
            except BaseException:
                await self.leave()
                raise

    async def taken_over(self, tenure: Tenure) -> TakenOver:
        """Get into step and identify."""
        await self._get_ready()
        owed = () if self.proves_idle else tuple(one.request_id for one in tenure.open_requests(self.resource))
        return TakenOver(self.facts, contaminating=owed)

    async def let_go(self, tenure: Tenure) -> None:
        async with self._standing.lock:
            try:
                if not self._standing.is_in_step and self.can_resynchronise and not tenure.is_lost:
                    with contextlib.suppress(NotInStep, OSError, NotConnected, WireCut):
                        await self._get_ready()  # in vain: the next holder finds out what it is at
            finally:
                self._tenure = None
                await self.leave()

    async def lease_call(
        self, role: str, prepared: Prepared, send: Callable[[str, int], Awaitable[Outcome]]
    ) -> Outcome:
        """A call for the device's own sake, under the lease; raises NotInStep where the lease is lost."""
        assert self._tenure is not None, "take_over() comes before every call"
        try:
            return await self._tenure.call(self.resource, role, prepared, send)
        except LeaseLost as fault:
            raise NotInStep(LEASE_LOST, str(fault)) from None

    # One exchange.

    async def dispatch(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:
        progress = dispatching.progress

        async def exchanged() -> Outcome:
            await self.get_ready(prepared)
            return await self._in_step(prepared, dispatching)

        outcome = await self.guarded(progress, dispatching.deadline_seconds, exchanged)
        return attrs.evolve(outcome, bytes_sent=progress.bytes_sent, wire_sends=progress.wire_sends)

    async def guarded(
        self, progress: WireProgress, deadline_seconds: float, work: Callable[[], Awaitable[Outcome]]
    ) -> Outcome:
        """Do it when it is its turn, within the deadline; whatever is raised becomes an outcome."""
        try:
            async with asyncio.timeout(deadline_seconds), self._standing.lock:
                return await work()
        except NotInStep as fault:
            return fault.outcome()
        except IdentityChanged as fault:
            return NotInStep("device.other", str(fault), quarantine=True).outcome()
        except TimeoutError:
            reason = "deadline" if progress.bytes_sent != 0 else "device.busy"
            return broken_off(progress, reason, f"no whole answer within {deadline_seconds:g} s")
        except (NotConnected, WireCut) as fault:
            return broken_off(progress, fault.reason, str(fault))
        except Exception as fault:  # noqa: BLE001 - a dispatch says what became of it, whatever happens
            known = isinstance(fault, OSError) or progress.bytes_sent != 0
            reason = "device.broken_off" if progress.bytes_sent != 0 else "connect.failed"
            return broken_off(progress, reason if known else "adapter.error", f"{type(fault).__name__}: {fault}")

    async def _in_step(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:
        standing, progress = self._standing, dispatching.progress
        try:
            outcome = await self.exchange(prepared, dispatching)
        except NotInStep:
            standing.lose_step()
            raise
        except BaseException:
            if progress.bytes_sent != 0:
                standing.lose_step()
            raise
        if not self.is_in_step_after(outcome):
            standing.lose_step()
        return outcome

    async def exchange(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:
        """Ask, and say what became of it."""
        progress = dispatching.progress
        progress.bytes_sent, progress.wire_sends = None, 1
        try:
            return outcome_of_value(await self.ask(parse_json(prepared.payload)))
        except Exception as raised:  # noqa: BLE001 - what a lab's code raises says what became of it
            outcome = outcome_of_exception(raised)
        if outcome.reason in {"python.exception", "python.broken_off"}:
            # The device may have done what it was asked, whatever the driver stumbled over.
            return attrs.evolve(outcome, state=DispatchState.UNKNOWN, reason="device.broken_off")
        return outcome

    def is_in_step_after(self, outcome: Outcome) -> bool:
        """Whether nothing more can come of the exchange that ended like this."""
        return outcome.state is not DispatchState.UNKNOWN

    async def get_ready(self, prepared: Prepared) -> None:  # noqa: ARG002 - a device with sessions has to know
        """Whatever has to be before this request; raises NotInStep, and what `connect` raises."""
        if self._tenure is None:
            raise NotInStep("device.not_held", "a device is used under a lease only", state=DispatchState.FAILED)
        await self._get_ready()

    async def _get_ready(self) -> None:
        """Reached, in step, and the device that is meant."""
        if self._tenure is not None and self._tenure.is_lost:
            raise NotInStep(LEASE_LOST, f"the lease of {self.resource} is lost")
        await self._speak()
        if not self._is_connected:
            await self.connect()
            self._is_connected, self.facts = True, {}
        if not self._standing.is_in_step:
            await self.settle()
            self._standing.regain_step()
        if not self.facts:
            facts = await self.identify()
            self.compare(facts)
            self.facts = facts

    async def _speak(self) -> None:
        before, self._standing.speaker = self._standing.speaker, self
        if before not in (None, self) and self.has_one_connection:
            assert before is not None
            await before.leave()

    async def settle(self) -> None:
        """Get back into step; raises NotInStep."""
        drained = await self.lease_call("drain", Prepared(b"", {"device": self.resource}), self._drained)
        if drained.state is not DispatchState.ANSWERED:
            await self.leave()
            raise NotInStep(drained.reason, drained.message, quarantine=drained.quarantine is not None)

    async def _drained(self, request_id: str, fence: int) -> Outcome:  # noqa: ARG002 - neither can be sent
        seconds = self.table.drain_seconds
        try:
            async with asyncio.timeout(max(self._standing.left(seconds), _DRAIN_LEAST * seconds)):
                await self.resynchronise()
        except NotInStep as fault:
            return attrs.evolve(fault.outcome(), bytes_sent=None, wire_sends=1)
        except TimeoutError:
            told = f"what it is still doing could not be found out within {seconds:g} s"
            return Outcome(DispatchState.UNKNOWN, "device.out_of_step", told, quarantine=told)
        except (OSError, NotConnected, WireCut) as fault:
            return Outcome(DispatchState.REFUSED, "connect.failed", one_line(f"it cannot be reached ({fault})"))
        return Outcome(DispatchState.ANSWERED, answer=None)

    def compare(self, facts: Mapping[str, JsonValue]) -> None:
        """Look that it is the device that the work order names; raises IdentityChanged."""
        wanted = {"serial": self.table.serial, "firmware": self.table.firmware}
        told = {name: facts.get(name) for name in wanted}
        differences = tuple(
            f"{name}: {value} -> {told[name]}" for name, value in wanted.items() if value not in (None, told[name])
        )
        if differences:
            what = f"{self.place}: {self.resource} is another device ({one_line(', '.join(differences))})"
            raise IdentityChanged(what, "Connect the device that the work order names", "", differences)

    async def leave(self) -> None:
        """Give the connection back, and forget who was behind it."""
        was_connected, self._is_connected, self.facts = self._is_connected, False, {}
        if was_connected:
            await self.disconnect()


def broken_off(progress: WireProgress, reason: str, message: str) -> Outcome:
    """What is known of an exchange that brought no whole answer: whether anything of it left."""
    told = one_line(message)
    if progress.bytes_sent != 0:
        partial = bytes(progress.partial) or None
        return Outcome(DispatchState.UNKNOWN, reason, told, raw=partial, raw_cut=partial is not None)
    state = DispatchState.FAILED if reason in {"adapter.error", "request.invalid"} else DispatchState.REFUSED
    return Outcome(state, reason, told)
