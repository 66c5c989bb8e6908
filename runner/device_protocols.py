"""What the executor and the adapters of devices say to each other, beyond `protocols`.

A target that needs devices names them; the executor takes their leases, hands the target a `Tenure` before the first
dispatch, and sends every request with the tenure's fence. What the target does to its device for its own sake (reset,
cancel, restore, checkpoint, drain) goes through `Tenure.call`, so that it is a call in the ledger too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

import attrs

from ..ledger.canonical import JsonValue
from ..ledger.lease_records import LEASE_LOST
from .protocols import Outcome, Prepared, QueryAnswer, Target, Turn

__all__ = [
    "CHECKPOINT_REFUSED",
    "LEASE_LOST",
    "LEASE_SECONDS",
    "REBOOTED",
    "SESSION_LOST",
    "ConversationTarget",
    "DeviceNeed",
    "DeviceTarget",
    "OpenRequest",
    "Resuming",
    "TakenOver",
    "Tenure",
]

LEASE_SECONDS: Final = 30.0
"""How long a lease lasts unless the work order says otherwise; it is renewed after each third of it."""

CHECKPOINT_REFUSED: Final = "checkpoint.refused"
"""The reason of a FAILED outcome of `ConversationTarget.begin_session`: it cannot be restored from that checkpoint."""

SESSION_LOST: Final = "session.lost"
"""The reason of a REFUSED or FAILED turn that was not done, because the target has forgotten its session.

The conversation goes on in a new attempt, as its target can, within the limits of attempts.
"""

REBOOTED: Final = "device.rebooted"
"""The reason of an outcome that says: the device has rebooted. It is taken over anew before the next request.

With `LEASE_LOST` as its reason, an outcome says that the device has refused an older fence: the lease is lost.
"""


@attrs.frozen
class DeviceNeed:
    """A device that must be held while the target dispatches.

    ``resource`` is its stable identity (``atlas:SN-0042``), never an address. Only a device that ``compares_fences``
    may be taken over from a holder that is frozen and not proven dead.
    """

    resource: str
    kind: str
    compares_fences: bool
    lease_seconds: float = LEASE_SECONDS


@attrs.frozen
class OpenRequest:
    """A request to the device whose outcome the ledger does not know, whichever run it belongs to."""

    request_id: str
    fence: int
    session: str | None
    intended_us: int


@runtime_checkable
class Tenure(Protocol):
    """One uninterrupted hold of a set of devices. Belongs to the executor's loop."""

    @property
    def is_lost(self) -> bool:
        """Whether the lease ran out, was revoked or went to another holder; then nothing more may be sent."""

    def fence(self, resource: str) -> int:
        """The number that goes with every request to that device."""

    def open_requests(self, resource: str) -> Sequence[OpenRequest]:
        """What earlier holders left unknown, oldest first."""

    async def raise_fence(self, resource: str, seen: int) -> int:
        """The device has seen ``seen``: have the fence be higher, durably, and return it."""

    async def call(
        self, resource: str, role: str, prepared: Prepared, send: Callable[[str, int], Awaitable[Outcome]]
    ) -> Outcome:
        """Make a call of the lease: commit its intent, ``await send(request_id, fence)``, commit what became of it.

        ``role``: ``reset``, ``cancel``, ``checkpoint``, ``restore``, ``reconcile`` or ``drain``. Raises LeaseLost.
        """


@attrs.frozen
class TakenOver:
    """What a device said when it was taken over, and what became of the requests that it was asked about.

    ``facts`` is canonical JSON (serial, firmware, boot count, …) and is kept with the device. ``settled`` answers by
    request id; what is not in it stays unknown. ``contaminating`` names open requests that may still act on the device
    while the new holder uses it. ``quarantine`` says why an operator must look first; then nothing is dispatched.
    """

    facts: Mapping[str, JsonValue]
    boot_count: int | None = None
    settled: Mapping[str, QueryAnswer] = attrs.field(factory=dict)
    contaminating: tuple[str, ...] = ()
    quarantine: str | None = None


@runtime_checkable
class DeviceTarget(Target, Protocol):
    """A target that works on devices."""

    def devices(self) -> tuple[DeviceNeed, ...]:
        """What it needs held, the device that it dispatches to first; known without any I/O."""

    async def take_over(self, tenure: Tenure) -> TakenOver:
        """Look that the devices are the ones meant, and bring them to where nothing of an earlier holder goes on.

        Called once for each tenure, before its first dispatch. Raises IdentityChanged for a device that is another
        than the work order names, and TargetNotFound where it cannot be reached.
        """

    async def let_go(self, tenure: Tenure) -> None:
        """The tenure ends in good order: leave the devices idle. Never called for a lost one."""


class Resuming(StrEnum):
    """How a target's conversation goes on in a new attempt after the earlier one broke off."""

    HISTORY = "history"  # it keeps nothing: each request carries the whole history, so committed turns are carried over
    CHECKPOINT = "checkpoint"  # its state after the last committed turn can be restored from that turn's checkpoint
    RESTART = "restart"  # only from the beginning: committed turns are asked again, as replays


@runtime_checkable
class ConversationTarget(Target, Protocol):
    """A target whose sessions have state of their own. Any other target holds conversations by `Resuming.HISTORY`."""

    resuming: Resuming

    async def begin_session(self, turn: Turn, checkpoint: bytes | None) -> Outcome:
        """Get ready for ``turn``, the first of this attempt: a fresh session, or one restored from ``checkpoint``.

        Called once for each attempt, before its first dispatch. ANSWERED, or why it could not be done; with FAILED and
        `CHECKPOINT_REFUSED` the conversation begins anew where the work order allows. An attempt that is taken up
        again by another process (its last turn was resent or asked for) begins no session: that turn is settled, and
        the conversation goes on in a new attempt.
        """

    async def end_session(self, session: str) -> None:
        """The session is over, in whatever way; raises nothing."""
