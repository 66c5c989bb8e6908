"""Killed at every crash point of the code that leases, takes over and gives back devices; the next in line goes on.

Whatever point a runner dies at: another gets the device without waiting for the lease, which has minutes to run, and
looks at it first; the dead run goes on with `resume`; nothing is done twice, and device and ledgers agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import attrs
import pytest

from .benches import Bench, asks, check_device
from .harness import Site
from .invariants import check_invariants, rows


@attrs.frozen
class Scenario:
    """How a runner is brought to a crash point; ``passage``: at which time that it comes there."""

    way: Callable[[Bench, str], list[tuple[Site, str]]]
    passage: int = 1
    is_for_soak: bool = False

    def __str__(self) -> str:
        return f"{self.passage}-{self.way.__name__}"


# Each says which runs it has left unfinished.


def alone(bench: Bench, point: str) -> list[tuple[Site, str]]:
    bench.run("first", [asks("a"), asks("b")], crashpoint=point).died_at_its_point()
    return [(bench.site, "first")]


def in_line(bench: Bench, point: str) -> list[tuple[Site, str]]:
    """Behind a holder that works on, and is not disturbed by it."""
    holder = bench.run("holder", [asks("h", wait="gate")])
    bench.device.wait_until_waiting("gate")
    bench.run("first", [asks("a"), asks("b")], crashpoint=point).died_at_its_point()
    bench.device.go("gate")
    assert holder.ended() == 0, holder.err
    return [(bench.site, "first")]


def giving_way(bench: Bench, point: str) -> list[tuple[Site, str]]:
    """To another that waits, in the middle of the run."""
    first = bench.run("first", [asks("a", wait="gate"), asks("b"), asks("c")], crashpoint=point)
    bench.device.wait_until_waiting("gate")
    other = bench.run("other", [asks("x"), asks("y")])
    bench.until_waiting("other")
    bench.device.go("gate")
    first.died_at_its_point()
    assert other.ended() == 0, other.err
    return [(bench.site, "first")]


def after_a_death(bench: Bench, point: str) -> list[tuple[Site, str]]:
    """While it takes the device over from one that died before it had its answer."""
    bench.run("dead", [asks("d"), asks("e")], crashpoint="dispatch.sent").died_at_its_point()
    bench.run("first", [asks("a"), asks("b")], crashpoint=point).died_at_its_point()
    return [(bench.site, "dead"), (bench.site, "first")]


def on_resume(bench: Bench, point: str) -> list[tuple[Site, str]]:
    """In the process that goes on after its own run's death."""
    bench.run("first", [asks("a"), asks("b")], crashpoint="dispatch.sent").died_at_its_point()
    bench.resume("first", crashpoint=point).died_at_its_point()
    return [(bench.site, "first")]


def in_another_ledger(bench: Bench, point: str) -> list[tuple[Site, str]]:
    """After a death in one ledger, and before the next of that ledger."""
    bench.run("dead", [asks("d"), asks("e")], crashpoint="dispatch.sent").died_at_its_point()
    elsewhere = bench.another_ledger()
    bench.run("first", [asks("a"), asks("b")], site=elsewhere, crashpoint=point).died_at_its_point()
    return [(bench.site, "dead"), (elsewhere, "first")]


def everywhere() -> list[Scenario]:
    return [
        Scenario(alone), Scenario(after_a_death), Scenario(in_another_ledger), Scenario(on_resume, is_for_soak=True)
    ]  # fmt: skip


SCENARIOS: Final[dict[str, list[Scenario]]] = {
    "lease.asked": [Scenario(alone), Scenario(in_line), Scenario(giving_way, 2), Scenario(in_another_ledger)],
    "lease.takeover.inside": [Scenario(after_a_death), Scenario(on_resume, is_for_soak=True)],
    "lease.granted": everywhere(),
    "lease.claimed": everywhere(),
    # Taking over makes two calls of the lease or three: fence, a query where something is open, reset.
    "lease.call.intent": [Scenario(after_a_death, 1), Scenario(after_a_death, 2), Scenario(alone, 2)],
    "lease.call.sent": [*everywhere(), Scenario(after_a_death, 2), Scenario(after_a_death, 3), Scenario(alone, 2)],
    "device.taken_over": everywhere(),
    "device.reconciled": everywhere(),
    "lease.released": [Scenario(alone), Scenario(giving_way), Scenario(in_another_ledger)],
    "dispatch.intent.inside": [Scenario(alone, 2), Scenario(after_a_death)],
    "dispatch.intent.committed": [Scenario(alone, 2), Scenario(after_a_death)],
    "dispatch.sent": [Scenario(alone, 2), Scenario(after_a_death), Scenario(on_resume)],
    "dispatch.outcome.inside": [Scenario(alone, 2)],
    "dispatch.outcome.committed": [Scenario(alone)],
}


@pytest.fixture
def bench(site: Site) -> Iterator[Bench]:
    made = Bench(site)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    ("point", "scenario"),
    [
        pytest.param(
            point, scenario, id=f"{point}-{scenario}", marks=[pytest.mark.soak] if scenario.is_for_soak else []
        )
        for point, scenarios in SCENARIOS.items()
        for scenario in scenarios
    ],
)
def test_crash_of_a_holder_at_every_point_lets_the_next_go_on(bench: Bench, point: str, scenario: Scenario) -> None:
    left = scenario.way(bench, f"{point}@{scenario.passage}")
    for one in bench.sites:
        check_invariants(one.ledger, None, at_rest=False)

    second = bench.run("second", [asks("s"), asks("t")])
    assert second.ended() == 0, f"the next in line goes on\n{second.err}"

    for where, name in left:
        again = bench.resume(name, site=where)
        assert again.ended() == 0, f"{name} goes on\n{again.err}"
    for one in bench.sites:
        assert {state for (state,) in rows(one.ledger, "SELECT state FROM slots")} == {"selected"}
        check_invariants(one.ledger, None)
    submitted = bench.device.lines(role="submit", verdict="accepted")
    assert len(submitted) == sum(rows(one.ledger, "SELECT count(*) FROM slots")[0][0] for one in bench.sites), (
        "each case was asked once: what became of it is asked for, and not done again"
    )
    check_device(bench)
