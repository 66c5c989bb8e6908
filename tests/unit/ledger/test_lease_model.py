"""Leases against a small model of what they promise, under any sequence of steps, deaths, freezes and clocks (I5)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tallystick.ledger import device_care, leases
from tallystick.ledger.checks import Severity, check_ledger
from tallystick.ledger.errors import LeaseLost, UsageError
from tallystick.ledger.lease_records import Granted
from tallystick.ledger.ledger import Ledger
from tests.unit.ledger.devices import LEASE_US, attempt, device, line_up, other_worker, write_as
from tests.unit.ledger.factories import HandClock, every, new_ledger

DEVICES = {"A": True, "B": True, "P": False}
"""Name, and whether the device compares fences."""

OPEN = ("waiting", "held")


@attrs.define
class Asked:
    set_id: str
    worker: str
    expires: int
    states: dict[str, str]
    fences: dict[str, int] = attrs.field(factory=dict)

    def all_are(self, state: str) -> bool:
        return set(self.states.values()) == {state}


class LeaseMachine(RuleBasedStateMachine):
    """Workers that are no processes ask, poll, renew and let go; some die, some stand still while time goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        place = Path(self.folder.name) / "ledger"
        place.mkdir()
        self.clock = HandClock()
        self.ledger: Ledger = new_ledger(place, clock=self.clock)
        self.workers = [other_worker(self.ledger, f"w{number}") for number in range(3)]
        self.dead: set[str] = set()
        self.sets: list[Asked] = []
        self.quarantined: set[str] = set()
        self.known: set[str] = set()
        self.highest = dict.fromkeys(DEVICES, 0)
        self.grants: dict[str, list[int]] = {name: [] for name in DEVICES}

    def teardown(self) -> None:
        found = check_ledger(self.ledger)
        self.ledger.close()
        self.folder.cleanup()
        assert [one for one in found if one.severity is Severity.ERROR] == []

    # What the model knows.

    def living(self) -> list[str]:
        return [worker for worker in self.workers if worker not in self.dead]

    def of_the_living(self) -> list[Asked]:
        """The sets that still have something open, and the last that has not."""
        mine = [one for one in self.sets if one.worker not in self.dead]
        closed = [one for one in mine if not set(OPEN) & set(one.states.values())]
        return [one for one in mine if one not in closed] + closed[-1:]

    def has_expired(self, one: Asked) -> bool:
        return self.clock.us > one.expires

    def holder(self, name: str) -> Asked | None:
        return next((one for one in self.sets if one.states.get(name) == "held"), None)

    def holds(self, one: Asked) -> bool:
        return one.all_are("held") and not self.has_expired(one)

    def in_the_way(self, asked: Asked, name: str) -> tuple[bool, list[Asked]]:
        """Whether the device is not to be had, and whom the set would replace there."""
        blocked, replaced = name in self.quarantined, []
        holder = self.holder(name)
        if holder is not None:
            if holder.worker in self.dead or (self.has_expired(holder) and DEVICES[name]):
                replaced.append(holder)
            else:
                blocked = True
        for one in self.sets:
            if one.states.get(name) != "waiting" or one.set_id >= asked.set_id:
                continue
            if one.worker in self.dead:
                replaced.append(one)
            elif not self.has_expired(one) and not self.quarantined & one.states.keys():
                blocked = True
        return blocked, replaced

    def lose(self, one: Asked, wanted: set[str]) -> None:
        for name, state in one.states.items():
            goes = one.worker in self.dead or name in wanted or (self.has_expired(one) and DEVICES[name])
            if state in OPEN and goes:
                one.states[name] = "lost"

    def dead_leases(self) -> list[str]:
        rows = every(self.ledger, "SELECT lease_id, worker_id FROM leases WHERE state IN ('held', 'waiting')")
        return [lease_id for lease_id, worker in rows if worker in self.dead]

    # Steps.

    @precondition(lambda self: self.living())
    @rule(data=st.data(), names=st.sets(st.sampled_from(sorted(DEVICES)), min_size=1, max_size=2))
    def ask(self, data: st.DataObject, names: set[str]) -> None:
        worker = data.draw(st.sampled_from(self.living()))
        asks = [device(name, compares=DEVICES[name]) for name in names]
        set_id = line_up(self.ledger, *asks, worker=worker)
        assert all(set_id > one.set_id for one in self.sets), "who asks later stands behind, whatever the clock"
        self.known |= names
        self.sets.append(Asked(set_id, worker, self.clock.us + LEASE_US, dict.fromkeys(names, "waiting")))
        if data.draw(st.booleans()):
            self.poll_once(self.sets[-1])

    @precondition(lambda self: self.of_the_living())
    @rule(data=st.data())
    def poll(self, data: st.DataObject) -> None:
        self.poll_once(data.draw(st.sampled_from(self.of_the_living())))

    def poll_once(self, asked: Asked) -> None:
        dead = self.dead_leases()
        if not asked.all_are("waiting"):
            self.expect_refusal_unless_held(asked, lambda: attempt(self.ledger, asked.set_id, worker=asked.worker))
            return
        found = attempt(self.ledger, asked.set_id, *dead, worker=asked.worker)
        asked.expires = self.clock.us + LEASE_US
        looked = {name: self.in_the_way(asked, name) for name in asked.states}
        assert isinstance(found, Granted) is not any(blocked for blocked, _ in looked.values())
        if isinstance(found, Granted):
            wanted = {name: replaced for name, (_, replaced) in looked.items()}
            for one in {id(one): one for replaced in wanted.values() for one in replaced}.values():
                self.lose(one, {name for name, replaced in wanted.items() if one in replaced})
            self.grant(asked, found)

    def grant(self, asked: Asked, found: Granted) -> None:
        asked.states = dict.fromkeys(asked.states, "held")
        for lease in found.leases:
            assert lease.fence == self.highest[lease.resource] + 1
            self.raised(asked, lease.resource, lease.fence)

    def raised(self, asked: Asked, name: str, fence: int) -> None:
        asked.fences[name] = self.highest[name] = fence
        self.grants[name].append(fence)

    def expect_refusal_unless_held(self, asked: Asked, work: Any) -> bool:
        if self.holds(asked):
            work()
            return True
        with pytest.raises(LeaseLost):
            work()
        return False

    @precondition(lambda self: self.of_the_living())
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from(self.of_the_living()))
        renewed = self.expect_refusal_unless_held(
            asked, lambda: write_as(self.ledger, asked.worker, lambda tx: leases.renew(tx, asked.set_id))
        )
        if renewed:
            asked.expires = self.clock.us + LEASE_US

    @precondition(lambda self: self.of_the_living())
    @rule(data=st.data(), seen=st.integers(0, 9))
    def raise_fence(self, data: st.DataObject, seen: int) -> None:
        asked = data.draw(st.sampled_from(self.of_the_living()))
        name = min(asked.states)
        if asked.states[name] != "held" or self.has_expired(asked):
            return
        lease_id = every(
            self.ledger, "SELECT lease_id FROM leases WHERE set_id = ? AND resource = ?", asked.set_id, name
        )[0][0]
        fence = write_as(self.ledger, asked.worker, lambda tx: leases.raise_fence(tx, lease_id, seen=seen))
        assert fence > seen
        if fence != asked.fences[name]:
            assert fence > self.highest[name]
            self.raised(asked, name, fence)

    @precondition(lambda self: self.of_the_living())
    @rule(data=st.data(), owns_up=st.booleans())
    def let_go(self, data: st.DataObject, owns_up: bool) -> None:
        asked = data.draw(st.sampled_from(self.of_the_living()))
        held = "held" in asked.states.values()
        step = leases.abandon if owns_up else leases.release
        left = write_as(self.ledger, asked.worker, lambda tx: step(tx, asked.set_id))
        assert left == any(state in OPEN for state in asked.states.values())
        new = "lost" if owns_up and held else "released"
        asked.states = {name: new if state in OPEN else state for name, state in asked.states.items()}

    @precondition(lambda self: self.known)
    @rule(data=st.data(), care=st.sampled_from(["revoke", "quarantine", "clear"]))
    def operator(self, data: st.DataObject, care: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.known)))
        holder = self.holder(name)
        work = getattr(device_care, care)
        if care == "clear" and name not in self.quarantined:
            with pytest.raises(UsageError):
                self.ledger.write(lambda tx: work(tx, name, reason="r", made_by="me"))
            return
        self.ledger.write(lambda tx: work(tx, name, reason="r", made_by="me"))
        if care == "clear":
            self.quarantined.discard(name)
            for one in self.sets:
                if one.states.get(name) == "quarantined":
                    one.states[name] = "released"
            return
        if holder is not None and not (care == "quarantine" and name in self.quarantined):
            holder.states[name] = "revoked" if care == "revoke" else "quarantined"
        if care == "quarantine":
            self.quarantined.add(name)

    @rule(us=st.sampled_from([1, LEASE_US // 3, LEASE_US, LEASE_US + 1, LEASE_US + 1]))
    def time_goes_on(self, us: int) -> None:
        self.clock.us += us

    @rule(us=st.sampled_from([-3_600_000_000, 3_600_000_000]))
    def somebody_sets_the_wall_clock(self, us: int) -> None:
        self.clock.step(us)

    @precondition(lambda self: len(self.living()) > 1)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.dead.add(data.draw(st.sampled_from(self.living())))

    # What holds at every instant.

    @invariant()
    def the_ledger_is_as_the_model_says(self) -> None:
        rows = every(self.ledger, "SELECT set_id, resource, state FROM leases WHERE set_id IS NOT NULL ORDER BY 1, 2")
        wanted = [(one.set_id, name, one.states[name]) for one in self.sets for name in sorted(one.states)]
        assert rows == wanted

    @invariant()
    def no_device_has_two_holders(self) -> None:
        held = every(self.ledger, "SELECT resource FROM leases WHERE state = 'held'")
        assert len(held) == len(set(held))
        may_send = [name for one in self.sets if self.holds(one) for name in one.states]
        assert len(may_send) == len(set(may_send))

    @invariant()
    def fences_only_rise(self) -> None:
        assert all(given == sorted(set(given)) for given in self.grants.values())


LeaseMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
TestLeases = LeaseMachine.TestCase
