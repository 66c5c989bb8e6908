"""Taking a set of devices, having their target look at them, and giving them back.

Every wait lies before an intent: standing in line in the ledger, then on the host. The first thing that is sent to a
device under a new lease is the look of `DeviceTarget.take_over`, and nothing else is sent before its result is durable.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from ..ledger import device_care, leases
from ..ledger.canonical import canonical_text, parse_json
from ..ledger.crashpoints import crashpoint
from ..ledger.device_looks import DeviceLook, record_look
from ..ledger.errors import DeviceQuarantined
from ..ledger.host_claims import Claimed, ClaimedElsewhere, HostClaims
from ..ledger.lease_calls import open_calls
from ..ledger.lease_line import is_held, is_wanted, leave, poll, stand_in_line
from ..ledger.lease_records import Blocked, DeviceAsk, Granted
from ..ledger.ledger import Ledger
from ..ledger.records import Hold
from .device_protocols import DeviceNeed, DeviceTarget, TakenOver
from .device_settling import lease_call_facts, settlements_of
from .device_words import waits_for
from .lease_thread import LeaseThread
from .stopping import StopSwitch
from .tally import Tally
from .tenures import DeviceTenure

if TYPE_CHECKING:
    from .executor import VariantSide

__all__ = ["POLL_SECONDS", "DeviceSet", "LeaseKeeper"]

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.2
"""How often a waiting runner looks; a killed holder is replaced at the next look."""


@attrs.frozen
class DeviceSet:
    """The devices that a target needs, the one that it dispatches to first, and how long a lease of them lasts."""

    needs: tuple[DeviceNeed, ...]
    lease_seconds: float
    accept_reboot: bool

    @property
    def asks(self) -> tuple[DeviceAsk, ...]:
        """The same as the ledger takes it."""
        milliseconds = max(1, round(self.lease_seconds * 1000))
        return tuple(DeviceAsk(one.resource, one.kind, one.compares_fences, milliseconds) for one in self.needs)

    @property
    def first(self) -> str:
        """The device that requests go to."""
        return self.needs[0].resource


class LeaseKeeper:
    """Takes devices for one session of a run and gives them back; on the session's loop.

    ``on_lost`` is called with a tenure whose lease is gone. ``holds`` is what a call of a lease sets aside.
    """

    def __init__(
        self,
        ledger: Ledger,
        run_key: int,
        run_id: str,
        *,
        claims: HostClaims,
        stop: StopSwitch,
        tally: Tally,
        on_lost: Callable[[DeviceTenure], None],
        holds: tuple[Hold, ...] = (),
    ) -> None:
        self._ledger = ledger
        self._run_key = run_key
        self._run_id = run_id
        self._claims = claims
        self._stop = stop
        self._tally = tally
        self._holds = holds
        self._thread = LeaseThread(ledger, claims, loop=asyncio.get_running_loop(), on_lost=on_lost)

    async def take(self, devices: DeviceSet, *, is_out_of_patience: Callable[[], bool]) -> DeviceTenure | None:
        """Stand in line for the set and hold it; None when asked to stop, or once ``is_out_of_patience`` says so.

        Raises DeviceQuarantined, and LeaseLost when its place in line or what it had already was lost meanwhile.
        """
        asks = devices.asks
        set_id = await stand_in_line(self._ledger, asks, run_key=self._run_key)
        granted = None
        try:
            granted = await self._granted(set_id, is_out_of_patience)
            if granted is None:
                return None
            return await self._claimed(devices, granted, is_out_of_patience)
        finally:
            self._tally.waits_for.pop(set_id, None)
            if granted is None:
                await asyncio.shield(asyncio.ensure_future(leave(self._ledger, set_id, reason="gave up waiting")))

    async def _granted(self, set_id: str, is_out_of_patience: Callable[[], bool]) -> Granted | None:
        while True:
            found = await poll(self._ledger, set_id)
            if isinstance(found, Granted):
                return found
            if found.quarantined:
                raise _quarantined(found)
            self._tally.waits_for[set_id] = waits_for(self._ledger, found)
            if is_out_of_patience() or not await self._stop.sleep(POLL_SECONDS):
                return None

    async def _claimed(
        self, devices: DeviceSet, granted: Granted, is_out_of_patience: Callable[[], bool]
    ) -> DeviceTenure | None:
        """The lease is held and renewed from here on; other ledgers of this host may still have a device of it."""
        tenure = DeviceTenure(
            self._ledger, self._run_key, devices.needs, granted, claims=self._claims, holds=self._holds
        )
        self._thread.watch(tenure, lease_seconds=devices.lease_seconds)
        try:
            while not tenure.is_lost:
                found = await self._claims_taken(granted, devices)
                if isinstance(found, Claimed):
                    await self._as_high_as(tenure, granted, found)
                    return tenure
                self._tally.waits_for[granted.set_id] = waits_for(self._ledger, found)
                if is_out_of_patience() or not await self._stop.sleep(POLL_SECONDS):
                    break
            tenure.refuse_if_lost()
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self.give_back(tenure, reason="was not claimed")))
            raise
        await self.give_back(tenure, reason="gave up waiting")
        return None

    async def _claims_taken(self, granted: Granted, devices: DeviceSet) -> Claimed | ClaimedElsewhere:
        """A thread cannot be cancelled: whoever is waits for its end, so that what it claims is given back after it."""
        taking = asyncio.ensure_future(asyncio.to_thread(self._claims.take, granted, devices.asks))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            await asyncio.wait({taking})
            raise

    async def _as_high_as(self, tenure: DeviceTenure, granted: Granted, claimed: Claimed) -> None:
        for lease in granted.leases:
            if claimed.fences[lease.resource] > lease.fence:
                await tenure.raise_fence(lease.resource, claimed.fences[lease.resource] - 1)

    async def look(self, tenure: DeviceTenure, devices: DeviceSet, side: VariantSide, *, within: float) -> None:
        """Have the target look at its devices, and commit what it found, before anything else is sent.

        Raises what `DeviceTarget.take_over` raises, and LeaseLost. A device that an operator must look at is in
        ``tenure.quarantine`` afterwards.
        """
        target = side.target
        assert isinstance(target, DeviceTarget)
        async with asyncio.timeout(within):
            taken = await target.take_over(tenure)
        crashpoint("device.taken_over")
        await self._record(tenure, devices, taken)
        crashpoint("device.reconciled")
        tenure.is_contaminated = tenure.is_contaminated or bool(taken.contaminating)
        tenure.quarantine = tenure.quarantine or taken.quarantine
        tenure.needs_look = False
        tenure.taken_over.add(side.variant_no)

    async def _record(self, tenure: DeviceTenure, devices: DeviceSet, taken: TakenOver) -> None:
        own = tenure.held.leases
        with self._ledger.reading() as reader:
            calls = open_calls(reader, devices.first, without=own)
        facts = parse_json(canonical_text(taken.facts))
        assert isinstance(facts, dict)
        look = DeviceLook(
            devices.first, own, self._run_key, facts, taken.boot_count, devices.accept_reboot,
            await settlements_of(self._ledger, calls, taken.settled), lease_call_facts(calls, taken.settled),
            taken.contaminating,
        )  # fmt: skip
        for moved in await self._ledger.write_async(lambda tx: record_look(tx, look)):
            self._tally.move(moved.old, moved.new)

    async def is_wanted(self, tenure: DeviceTenure) -> bool:
        """Whether another runner, of this ledger or of another on this host, waits for a device of it."""
        if is_wanted(self._ledger, tenure.set_id):
            return True
        return await asyncio.to_thread(self._claims.is_wanted, tenure.set_id)

    async def is_taken(self, tenure: DeviceTenure) -> bool:
        """Whether a lost device may be in other hands, of this ledger or of another on this host."""
        return not is_held(self._ledger, tenure.set_id) or await tenure.is_superseded()

    async def let_go(
        self, tenure: DeviceTenure, targets: Sequence[DeviceTarget], *, within: float, reason: str
    ) -> None:
        """End a tenure in good order: the targets leave the devices idle, then the leases are given back."""
        for target in targets:
            try:
                async with asyncio.timeout(within):
                    await target.let_go(tenure)
            except Exception:
                # The next holder looks at the device before it sends anything.
                logger.exception("a device could not be left in good order", extra={"event": "device.let_go_failed"})
        await self.give_back(tenure, reason=reason)

    async def give_back(self, tenure: DeviceTenure, *, reason: str) -> None:
        """Give the leases and the claims back; after a loss, own up to it."""
        self._thread.forget(tenure)
        try:
            if tenure.is_lost:
                await self._ledger.write_async(lambda tx: leases.abandon(tx, tenure.set_id))
            else:
                await leave(self._ledger, tenure.set_id, reason=reason)
        finally:
            # Also where the ledger has failed: this process sends nothing more, and others need not wait for its end.
            await asyncio.to_thread(self._claims.release, tenure.set_id)

    async def quarantine(self, tenure: DeviceTenure, devices: DeviceSet) -> None:
        """Let nobody have the device before an operator has looked at it, and give the rest of the set back."""
        self._thread.forget(tenure)
        why = tenure.quarantine or "no reason is given"
        # Each of the three also where the one before has failed: a full disk of the host's folder must not leave the
        # device to the next runner of this ledger, nor with a holder that does nothing more.
        try:
            await asyncio.to_thread(self._claims.quarantine, devices.first, why)
        finally:
            try:
                await self._ledger.write_async(
                    lambda tx: device_care.quarantine(tx, devices.first, reason=why, made_by=f"run {self._run_id}")
                )
            finally:
                await self.give_back(tenure, reason=f"{devices.first} is in quarantine")

    def close(self) -> None:
        """End the thread that renews."""
        self._thread.stop()


def _quarantined(found: Blocked) -> DeviceQuarantined:
    resource = found.quarantined[0]
    why = next((one.reason for one in found.obstacles if one.resource == resource and one.reason), "no reason is given")
    return DeviceQuarantined(
        f"the device {resource} is in quarantine ({why})",
        f"look at it, then `tallystick device clear {shlex.quote(resource)} --reason TEXT`", resource,
    )  # fmt: skip
