"""One hold of a lane's devices: what their target sees of it (`Tenure`), and what the executor keeps of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import attrs

from ..ledger import leases
from ..ledger.canonical import canonical_text
from ..ledger.crashpoints import crashpoint
from ..ledger.errors import LeaseLost
from ..ledger.host_claims import HostClaims
from ..ledger.lease_calls import LeaseCall, begin_lease_call, end_lease_call, open_calls
from ..ledger.lease_line import is_held
from ..ledger.lease_records import LEASE_LOST, Granted, Lease
from ..ledger.ledger import Ledger
from ..ledger.records import DispatchFacts, DispatchKey, Held, Hold
from ..ledger.states import DispatchState
from .device_protocols import REBOOTED, DeviceNeed, OpenRequest
from .outcome_facts import facts_of
from .protocols import Outcome, Prepared
from .thrown import go_if_closed

__all__ = ["DeviceTenure"]


class DeviceTenure:
    """One uninterrupted hold of a set of devices; belongs to the executor's loop.

    ``needs`` has the device first that requests go to. Only `renewed` and `lost` are called from another thread.
    """

    def __init__(
        self,
        ledger: Ledger,
        run_key: int,
        needs: Sequence[DeviceNeed],
        granted: Granted,
        *,
        claims: HostClaims,
        holds: tuple[Hold, ...] = (),
    ) -> None:
        self._ledger = ledger
        self._run_key = run_key
        self._needs = tuple(needs)
        self._claims = claims
        self._leases = {lease.resource: lease for lease in granted.leases}
        self._holds = holds
        self._expires_boot_ns = granted.expires_boot_ns
        self._loss: LeaseLost | None = None
        self.set_id = granted.set_id
        self.since = time.monotonic()
        self.is_contaminated = False
        self.needs_look = False
        self.quarantine: str | None = None
        self.taken_over: set[int] = set()

    @property
    def is_lost(self) -> bool:
        """Whether the lease ran out, was revoked or went to another holder; then nothing more may be sent."""
        return self._loss is not None or self._ledger.clock.boot_ns() > self._expires_boot_ns

    async def is_superseded(self) -> bool:
        """Whether somebody has had one of the devices since this hold ran out, in whichever ledger of this host."""
        if not self.is_lost:
            return False
        return await asyncio.to_thread(
            lambda: any(self._claims.highest_fence(name) > one.fence for name, one in self._leases.items())
        )

    @property
    def held(self) -> Held:
        """What an intent is committed under."""
        return self._held(self._needs[0].resource)

    @property
    def resources(self) -> tuple[str, ...]:
        """Its devices, in the order of their names."""
        return tuple(sorted(self._leases))

    def fence(self, resource: str) -> int:
        """The number that goes with every request to that device."""
        return self._leases[resource].fence

    def open_requests(self, resource: str) -> Sequence[OpenRequest]:
        """What earlier holders left unknown, oldest first."""
        own = [lease.lease_id for lease in self._leases.values()]
        with self._ledger.reading() as reader:
            found = open_calls(reader, resource, without=own)
        return [OpenRequest(one.call_id, one.fence, one.session, one.intended_us) for one in found]

    async def raise_fence(self, resource: str, seen: int) -> int:
        """The device has seen ``seen``: have the fence be higher, durably, and return it. Raises LeaseLost."""
        lease = self._leases[resource]
        fence = await self._ledger.write_async(lambda tx: leases.raise_fence(tx, lease.lease_id, seen=seen))
        await asyncio.to_thread(self._claims.raise_fence, self.set_id, resource, fence)
        self._leases[resource] = attrs.evolve(lease, fence=fence)
        return fence

    async def call(
        self, resource: str, role: str, prepared: Prepared, send: Callable[[str, int], Awaitable[Outcome]]
    ) -> Outcome:
        """Make a call of the lease: commit its intent, send, commit what became of it. Raises LeaseLost."""
        held = self._held(resource)
        made = LeaseCall(
            self._ledger.ids.next(), self._run_key, role, canonical_text(prepared.head), prepared.payload, held,
            prepared.keep, self._holds,
        )  # fmt: skip
        key = await self._ledger.write_async(
            lambda tx: begin_lease_call(tx, made), undo=lambda tx, begun: end_lease_call(tx, begun, _NOT_SENT)
        )
        crashpoint("lease.call.intent")
        began = time.monotonic()
        if self.is_lost:
            await self._ended(key, _NOT_SENT)
            self.refuse_if_lost()
        task = asyncio.current_task()
        try:
            outcome = await send(made.call_id, held.fence)
        except asyncio.CancelledError:
            broken = Outcome(DispatchState.UNKNOWN, "cancelled", "broken off")
            await asyncio.shield(asyncio.ensure_future(self._ended(key, _facts(broken, began))))
            raise
        except (Exception, GeneratorExit) as problem:  # noqa: BLE001 - an adapter's own fault is an outcome too
            go_if_closed(problem, task)
            outcome = Outcome(DispatchState.UNKNOWN, "target.raised", f"{type(problem).__name__}: {problem}")
        crashpoint("lease.call.sent")
        self.saw(outcome)
        await self._ended(key, _facts(outcome, began))
        return outcome

    def refuse_if_lost(self) -> None:
        """Raise LeaseLost when it is."""
        if self.is_lost:
            first = self._needs[0].resource
            raise self._loss or LeaseLost(f"the lease of {first} ran out", "the device is asked for again", first)

    def refuse_if_taken(self) -> None:
        """Raise LeaseLost when it is, or when the ledger knows of another holder; for what has no intent."""
        self.refuse_if_lost()
        if not is_held(self._ledger, self.set_id):
            first = self._needs[0].resource
            self.lost(LeaseLost(f"the lease of {first} was taken away", "the device is asked for again", first))
            self.refuse_if_lost()

    def saw(self, outcome: Outcome) -> None:
        """Take note of what an outcome says of the device and of the lease, beyond its own request."""
        if outcome.quarantine is not None and self.quarantine is None:
            self.quarantine = outcome.quarantine
        if outcome.reason == REBOOTED:
            self.needs_look = True
        if outcome.reason == LEASE_LOST:
            self.lost(LeaseLost(outcome.message or "the device has seen a higher fence", "it is asked for again"))

    def renewed(self, expires_boot_ns: int) -> None:
        """The lease holds for longer."""
        self._expires_boot_ns = expires_boot_ns

    def lost(self, loss: LeaseLost) -> None:
        """The lease is gone; the first reason stays."""
        if self._loss is None:
            self._loss = loss

    def _held(self, resource: str) -> Held:
        first = self._leases[resource]
        others: list[Lease] = [lease for lease in self._leases.values() if lease is not first]
        return Held((first.lease_id, *(lease.lease_id for lease in others)), first.fence, self.is_contaminated)

    async def _ended(self, key: DispatchKey, facts: DispatchFacts) -> None:
        await self._ledger.write_async(lambda tx: end_lease_call(tx, key, facts))


_NOT_SENT = DispatchFacts(
    DispatchState.REFUSED, "cancelled", "not sent", bytes_sent=0, wire_sends=0, charged=False
)  # fmt: skip


def _facts(outcome: Outcome, began: float) -> DispatchFacts:
    return facts_of(outcome, duration_us=round((time.monotonic() - began) * 1e6))
