"""Two runners on one device, killed and frozen at random until enough is enough; in one ledger, and in two.

Nothing is judged by how long it took: the device's own log, held against the ledgers, says whether there was ever a
second holder, a request that was begun twice, or one that no ledger knows of.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import attrs
import pytest

from .benches import Bench, asks, check_device, freeze, thaw
from .harness import KILLED, Coordinator, Site, until
from .invariants import check_invariants, rows

SHORT: Final = 8
LONG: Final = 100
CASES: Final = 10
LEASE_SECONDS: Final = 1.5

# What the device does to a request besides answering it; nothing of that may cost an answer.
TROUBLE: Final[tuple[dict[str, Any], ...]] = ({}, {}, {}, {"lose": "after"}, {"twice": True}, {"as_id": "another"})


class Runner:
    """A runner that is started again whenever it has died, and with a new work order whenever it has finished."""

    def __init__(self, bench: Bench, site: Site, name: str) -> None:
        self.bench, self.site, self.name = bench, site, name
        self.orders = 0
        self.ends: Counter[int] = Counter()
        self.coordinator = self._next_order()

    def _next_order(self) -> Coordinator:
        self.orders += 1
        name = f"{self.name}{self.orders}"
        self.cases = [
            asks(f"{name}-{number}", **TROUBLE[number % len(TROUBLE)]) for number in range(1, CASES + 1)
        ]  # fmt: skip
        return self._start()

    def _start(self) -> Coordinator:
        return self.bench.run(
            f"{self.name}{self.orders}", self.cases, site=self.site, lease_seconds=LEASE_SECONDS, attempts_max=9,
            target={"drain_seconds": 0.2, "call_seconds": 5.0},
        )  # fmt: skip

    @property
    def is_running(self) -> bool:
        return self.coordinator.process.poll() is None

    def has_asked(self, request_id: str) -> bool:
        """Whether that request is one of this runner's."""
        name = "SELECT r.name FROM calls c JOIN runs r ON r.run_key = c.run_key WHERE c.call_id = ?"
        found = rows(self.site.ledger, name, request_id) if self.site.ledger.exists() else []
        return [row[0][: len(self.name)] for row in found] == [self.name]

    def revive(self) -> None:
        """Start it again if it has ended."""
        status = self.coordinator.process.poll()
        if status is None:
            return
        self.ends[status] += 1
        # Who stood still inside a transaction or the gate was killed by the next in line.
        assert status in (0, KILLED), f"exit {status}\n{self.coordinator.out}\n{self.coordinator.err}"
        self.coordinator = self._next_order() if status == 0 else self._start()

    def finish(self) -> None:
        """Go on until the work order is done."""
        while (status := self.coordinator.ended()) != 0:
            assert status == KILLED, f"exit {status}\n{self.coordinator.out}\n{self.coordinator.err}"
            self.coordinator = self._start()


@attrs.define
class Soak:
    """``disturbed`` counts what was done to runners that were alive."""

    bench: Bench
    runners: tuple[Runner, Runner]
    chance: random.Random
    disturbed: Counter[str] = attrs.field(factory=Counter)
    gates: int = 0

    def accepted(self) -> int:
        return len(self.bench.device.lines(verdict="accepted"))

    def progressed(self, runner: Runner, lines: int) -> None:
        """Until the device has done so much more, or nothing more is to be expected of that runner."""
        wanted = self.accepted() + lines
        until(lambda: self.accepted() >= wanted or not runner.is_running, f"{runner.name} gets on")

    def once(self) -> None:
        """Choose one of the two and a moment, and kill or freeze it then."""
        for runner in self.runners:
            runner.revive()
        victim, other = self.chance.sample(self.runners, 2)
        gate, at_it = self.reach_a_gate() if self.chance.random() < 0.5 else ("", None)
        if at_it is other and self.chance.random() < 0.75:
            victim, other = other, victim
        if at_it is not victim:
            self.bench.device.go(gate or "none")
        if not gate and self.chance.random() < 0.8:
            self.progressed(victim, self.chance.randint(1, 12))  # else while it starts
        if self.chance.random() < 0.5:
            self.disturbed["kill"] += victim.coordinator.kill() == KILLED
            self.open(gate)
        else:
            self.freeze(victim, other, gate)

    def reach_a_gate(self) -> tuple[str, Runner | None]:
        """Have the next request be one that the device is at until it is let go on; says whose that is."""
        self.gates += 1
        gate = f"gate-{self.gates}"
        self.bench.device.tell("plan", behave={"wait": gate})

        def is_there() -> bool:
            told = self.bench.device.tell("machine")
            return not told["plans"] and told["state"] == "busy"

        until(lambda: is_there() or not all(runner.is_running for runner in self.runners), "it is at a request")
        if not is_there():
            return gate, None
        request_id = self.bench.device.get("state")["request"]["request_id"]
        return gate, next(runner for runner in self.runners if runner.has_asked(request_id))

    def open(self, gate: str) -> None:
        """Let the device finish, or leave it to the next holder to stop what goes on."""
        if gate and self.chance.random() < 0.5:
            self.bench.device.go(gate)

    def freeze(self, victim: Runner, other: Runner, gate: str) -> None:
        if not freeze(victim.coordinator):
            return
        self.disturbed["freeze"] += 1
        self.open(gate)
        if self.chance.random() < 0.75:
            self.progressed(other, self.chance.randint(4, 12))  # past the lease, where it was the victim's
        if gate:
            self.bench.device.go(gate)
        thaw(victim.coordinator)


@pytest.fixture
def bench(site: Site) -> Iterator[Bench]:
    made = Bench(site)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("ledgers", [1, 2])
@pytest.mark.parametrize("wanted", [SHORT, pytest.param(LONG, marks=pytest.mark.soak)], ids=["short", "long"])
def test_soak_of_two_runners_on_one_device_that_are_killed_and_frozen(
    site: Site, bench: Bench, ledgers: int, wanted: int
) -> None:
    elsewhere = site if ledgers == 1 else bench.another_ledger()
    runners = Runner(bench, site, "a"), Runner(bench, elsewhere, "b")
    soak = Soak(bench, runners, random.Random(f"{ledgers} {wanted}"))
    for _ in range(4 * wanted):
        if soak.disturbed.total() == wanted:
            break
        soak.once()
    for gate in range(1, soak.gates + 1):
        bench.device.go(f"gate-{gate}")
    for runner in runners:
        runner.finish()

    assert soak.disturbed.total() == wanted, soak.disturbed
    check_device(bench, stale_max=soak.disturbed["freeze"])
    for one in bench.sites:
        check_invariants(one.ledger, None)
    planned = CASES * sum(runner.orders for runner in runners)
    assert Counter(state for one in bench.sites for (state,) in rows(one.ledger, "SELECT state FROM slots")) == {
        "selected": planned
    }, "every planned slot has its observation, and no innocent is parked"
    assert all(json.loads(answer) == case for one in bench.sites for case, answer in answers(one))
    leases = [row for one in bench.sites for row in rows(one.ledger, LEASES)]
    lost = sum(state == "lost" for state, _ in leases)
    assert lost <= wanted, f"a holder that was neither killed nor frozen keeps its lease: {Counter(leases)}"
    print(f"\n{dict(soak.disturbed)}, {planned} planned, {soak.accepted()} requests, leases {Counter(leases)}, "
          f"{len(bench.device.lines(verdict='fence.stale'))} refused for their fence, ends "
          f"{[dict(runner.ends) for runner in runners]}")  # fmt: skip


LEASES: Final = "SELECT state, reason FROM leases WHERE set_id IS NOT NULL"


def answers(site: Site) -> list[tuple[str, str]]:
    return rows(
        site.ledger,
        "SELECT k.case_id, o.answer FROM observations o JOIN slots s ON s.run_key = o.run_key AND s.slot_no = o.slot_no"
        " AND s.selected_attempt = o.attempt_no JOIN cases k ON k.run_key = s.run_key AND k.case_no = s.case_no",
    )
