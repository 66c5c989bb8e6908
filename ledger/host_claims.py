"""One holder a device on a whole host: what a holder of leases claims besides, so that other ledgers see it.

A set is claimed after its leases are granted, all or none, behind the gate of the host's folder. A claim counts unless
its process is dead (its lock is free), a newer lease of the same ledger stands above it, an operator has revoked it, or
it has run out on boot time at a device that compares fences. Who has to wait draws a ticket, and tickets are served in
order, so that two ledgers share a device evenly. The highest fence that was given on this host is kept beside them.
Between hosts nothing is promised.
"""

from __future__ import annotations

import hashlib
import secrets
import shlex
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import attrs

from .crashpoints import crashpoint
from .errors import DeviceQuarantined, LeaseLost
from .host_folder import Entry, Found, HostFolder, host_folder, revoked_mark
from .lease_records import DeviceAsk, Granted, Lease, this_boot
from .ledger import Ledger
from .processes import host_id, this_process

__all__ = ["Claimed", "ClaimedElsewhere", "HostClaims", "HostObstacle", "ledger_digest"]

_STALL_PARTS: Final = 3
_CLAIMS: Final = "claims"
_LINE: Final = "line"


@attrs.frozen
class Claimed:
    """The set is this process's on the whole host. A fence that is higher than the lease's was given elsewhere before:

    have the ledger's be as high (``leases.raise_fence`` with ``seen`` one less) before anything is sent.
    """

    set_id: str
    fences: dict[str, int]


@attrs.frozen
class HostObstacle:
    """Who is in the way on this host; ``entry`` is None where it cannot be read (another user's, or damaged)."""

    resource: str
    entry: Entry | None
    is_waiting: bool


@attrs.frozen
class ClaimedElsewhere:
    """Another ledger of this host has a device of the set, or stood in line for it before."""

    set_id: str
    obstacles: tuple[HostObstacle, ...]


@attrs.define
class _Set:
    claims: dict[str, Path] = attrs.field(factory=dict)
    line: dict[str, Path] = attrs.field(factory=dict)
    lease_ms: dict[str, int] = attrs.field(factory=dict)


class HostClaims:
    """This process's claims for one ledger; safe for threads. Most methods may wait for the gate: not for a loop.

    ``folder`` is for tests; see `host_folder.default_folder`.
    """

    def __init__(self, ledger: Ledger, *, folder: Path | None = None) -> None:
        self._ledger = ledger
        self._folder: HostFolder = host_folder(folder)
        self._digest = ledger_digest(ledger.path)
        self._sets: dict[str, _Set] = {}

    def take(self, granted: Granted, asks: Collection[DeviceAsk]) -> Claimed | ClaimedElsewhere:
        """Claim the set, or keep its place in line; call it again, within the lease time, until it is claimed.

        Raises LeaseLost when a newer lease of the same ledger has claimed a device of it meanwhile, DeviceQuarantined
        when a ledger of this host has put one in quarantine, and DeviceLocksUnusable where the folder cannot be used.
        """
        known = {one.resource: one for one in asks}
        # Frozen inside the gate, a process keeps everybody from every device: it may do so for no longer than a part
        # of the lease, so that what it holds can be taken over in time.
        patience = min(one.lease_ms for one in asks) / 1000 / _STALL_PARTS
        with self._folder.gate(stall_seconds=patience):
            found = self._take(granted, known)
        if isinstance(found, Claimed):
            crashpoint("lease.claimed")
        return found

    def renew(self, set_id: str) -> None:
        """Hold the claims, or the places in line, for another lease time; raises LeaseLost when one had run out."""
        its = self._sets.get(set_id, _Set())
        for path in [*list(its.claims.values()), *list(its.line.values())]:
            self._renew(path, its)

    def release(self, set_id: str) -> None:
        """Give the claims of the set back, and its places in line; idempotent."""
        its = self._sets.pop(set_id, _Set())
        for path in (*its.claims.values(), *its.line.values()):
            self._folder.remove(path)

    def raise_fence(self, set_id: str, resource: str, fence: int) -> None:
        """The lease's fence was raised because the device had seen a higher one: remember it on this host."""
        with self._folder.gate():
            self._remember_fence(resource, fence)
            path = self._sets[set_id].claims[resource]
            if (entry := self._folder.own(path)) is not None:
                self._folder.rewrite(path, attrs.evolve(entry, fence=fence))

    def is_wanted(self, set_id: str) -> bool:
        """Whether another ledger of this host waits for a device of the set, so that its holder should give way."""
        its = self._sets.get(set_id, _Set())
        with self._folder.usable():
            return any(True for resource in its.claims for _ in self._line_of(resource))

    def highest_fence(self, resource: str) -> int:
        """The highest fence that was given for the device on this host, by whichever ledger; 0 where there was none."""
        with self._folder.usable():
            return self._folder.number(self._fence_path(resource))

    def holders(self, resource: str) -> tuple[HostObstacle, ...]:
        """Who has the device on this host and who waits for it, of whichever ledger; looks only."""
        with self._folder.usable():
            claims, line = self._counting(resource, _CLAIMS), self._counting(resource, _LINE)
        return (
            *(HostObstacle(resource, one.entry, is_waiting=False) for one in claims),
            *(HostObstacle(resource, one.entry, is_waiting=True) for one in line),
        )

    def revoke(self, resource: str) -> int:
        """An operator's forced release: the claims of this ledger count no more; returns how many that were."""
        with self._folder.gate():
            mine = [one for one in self._counting(resource, _CLAIMS) if self._is_mine(one)]
            for one in mine:
                revoked_mark(one.path).touch()
        return len(mine)

    def quarantine(self, resource: str, reason: str) -> None:
        """Let no ledger of this host have the device before an operator has looked at it."""
        with self._folder.gate():
            self._folder.keep_note(self._quarantine_path(resource), f"{reason}, in {self._ledger.path}")

    def clear(self, resource: str) -> bool:
        """An operator has looked at the device; says whether it was in quarantine on this host."""
        with self._folder.gate():
            was = self.quarantined(resource) is not None
            if was:
                self._folder.keep_note(self._quarantine_path(resource), "")
        return was

    def quarantined(self, resource: str) -> str | None:
        """Why the device is in quarantine on this host, None when it is not; looks only."""
        with self._folder.usable():
            return self._folder.note(self._quarantine_path(resource)).strip() or None

    # Inside the gate.

    def _take(self, granted: Granted, known: dict[str, DeviceAsk]) -> Claimed | ClaimedElsewhere:
        its = self._sets.setdefault(granted.set_id, _Set())
        its.lease_ms = {resource: one.lease_ms for resource, one in known.items()}
        if its.claims:
            self.renew(granted.set_id)
            return Claimed(granted.set_id, {name: self._fence_of(path) for name, path in its.claims.items()})
        for lease in granted.leases:
            self._refuse_quarantined(lease.resource)
            self._folder.sweep(self._folder.device(lease.resource) / _CLAIMS)
            self._folder.sweep(self._folder.device(lease.resource) / _LINE)
        tickets = [entry.ticket for path in its.line.values() if (entry := self._folder.own(path)) is not None]
        ticket = min(tickets, default=None)
        obstacles = tuple(one for lease in granted.leases for one in self._in_the_way(granted.set_id, lease, ticket))
        if obstacles:
            if ticket is None:
                self._draw_ticket(granted, known, its)
            self.renew(granted.set_id)
            return ClaimedElsewhere(granted.set_id, obstacles)
        return self._claim(granted, known, its)

    def _refuse_quarantined(self, resource: str) -> None:
        why = self.quarantined(resource)
        if why is not None:
            raise DeviceQuarantined(
                f"the device {resource} is in quarantine on this host ({why})",
                f"look at it, then `tallystick device clear {shlex.quote(resource)} --reason TEXT`", resource,
            )  # fmt: skip

    def _in_the_way(self, set_id: str, lease: Lease, ticket: int | None) -> Iterable[HostObstacle]:
        for one in self._counting(lease.resource, _CLAIMS):
            if not self._is_mine(one):
                yield HostObstacle(lease.resource, one.entry, is_waiting=False)
            elif one.entry is not None and one.entry.set_id > set_id:
                raise _lost(lease.resource, "a newer lease of this ledger has claimed it")
        for one in self._line_of(lease.resource):
            if one.entry is None or ticket is None or one.entry.ticket < ticket:
                yield HostObstacle(lease.resource, one.entry, is_waiting=True)

    def _claim(self, granted: Granted, known: dict[str, DeviceAsk], its: _Set) -> Claimed:
        fences: dict[str, int] = {}
        try:
            for lease in granted.leases:
                highest = self._folder.number(self._fence_path(lease.resource))
                fences[lease.resource] = lease.fence if lease.fence > highest else highest + 1
                self._folder.keep_number(self._fence_path(lease.resource), fences[lease.resource])
                entry = self._entry(granted, lease, known[lease.resource], fence=fences[lease.resource])
                its.claims[lease.resource] = self._add(_CLAIMS, entry)
        except OSError:
            self.release(granted.set_id)
            raise
        for path in its.line.values():
            self._folder.remove(path)
        its.line.clear()
        return Claimed(granted.set_id, fences)

    def _draw_ticket(self, granted: Granted, known: dict[str, DeviceAsk], its: _Set) -> None:
        path = self._folder.path / "tickets"
        ticket = self._folder.number(path) + 1
        self._folder.keep_number(path, ticket)
        for lease in granted.leases:
            entry = self._entry(granted, lease, known[lease.resource], fence=lease.fence, ticket=ticket)
            its.line[lease.resource] = self._add(_LINE, entry)

    def _remember_fence(self, resource: str, fence: int) -> None:
        path = self._fence_path(resource)
        if fence > self._folder.number(path):
            self._folder.keep_number(path, fence)

    # Entries.

    def _counting(self, resource: str, kind: str) -> list[Found]:
        """The claims, or places in line, that count now."""
        found = self._folder.entries(self._folder.device(resource) / kind)
        return [one for one in found if self._counts(one, kind)]

    def _counts(self, one: Found, kind: str) -> bool:
        if not one.is_locked:
            return False
        if one.entry is None:
            return True
        if kind == _LINE:
            return not self._has_expired(one.entry)
        if revoked_mark(one.path).exists():
            return False
        return not (one.entry.compares_fences and self._has_expired(one.entry))

    def _line_of(self, resource: str) -> list[Found]:
        return [one for one in self._counting(resource, _LINE) if not self._is_mine(one)]

    def _is_mine(self, one: Found) -> bool:
        return one.entry is not None and one.entry.ledger == self._digest

    def _has_expired(self, entry: Entry) -> bool:
        """By boot time, and only where that is the same clock: another host's claim runs out for nobody here."""
        if entry.process.host != host_id():
            return False
        return entry.process.boot_id != this_boot() or self._ledger.clock.boot_ns() > entry.expires_boot_ns

    def _renew(self, path: Path, its: _Set) -> None:
        entry = self._folder.own(path)
        if entry is None:
            return
        is_claim = path.parent.name == _CLAIMS
        if is_claim and self._has_expired(entry):
            raise _lost(entry.resource, "its claim on this host has run out")
        expires = self._ledger.clock.boot_ns() + its.lease_ms[entry.resource] * 1_000_000
        self._folder.rewrite(path, attrs.evolve(entry, expires_boot_ns=expires))
        # Frozen between the look and the write, this process would give new life to what another has taken over.
        if is_claim and self._has_expired(entry):
            raise _lost(entry.resource, "its claim on this host ran out while it was renewed")

    def _entry(self, granted: Granted, lease: Lease, one: DeviceAsk, *, fence: int, ticket: int = 0) -> Entry:
        return Entry(
            lease.resource, self._digest, str(self._ledger.path), granted.set_id, lease.lease_id,
            self._ledger.worker_id, this_process(), fence, one.compares_fences,
            self._ledger.clock.boot_ns() + one.lease_ms * 1_000_000, self._ledger.clock.now_us(), ticket,
        )  # fmt: skip

    def _add(self, kind: str, entry: Entry) -> Path:
        return self._folder.add(self._folder.device(entry.resource) / kind, secrets.token_hex(16), entry)

    def _fence_of(self, path: Path) -> int:
        entry = self._folder.own(path)
        return 0 if entry is None else entry.fence

    def _fence_path(self, resource: str) -> Path:
        return self._folder.device(resource) / "fence"

    def _quarantine_path(self, resource: str) -> Path:
        return self._folder.device(resource) / "quarantine"


def ledger_digest(path: Path) -> str:
    """By what the ledgers of a host tell each other apart: a digest of the file's path, so that a copy is another."""
    return hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]


def _lost(resource: str, why: str) -> LeaseLost:
    return LeaseLost(
        f"the device {resource} is not this process's on this host any more: {why}",
        f"nothing was sent under it; `tallystick device show {shlex.quote(resource)}` tells who has it now", resource,
    )  # fmt: skip
