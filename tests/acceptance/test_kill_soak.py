"""Killed at random moments, again and again, until the run has come to its end."""

from __future__ import annotations

import random

import pytest

from .harness import KILLED, Site, until
from .invariants import check_invariants, rows
from .orders import case, http_order

SHORT, LONG = (60, 8), (300, 50)


@pytest.mark.parametrize("if_unknown", ["repeat", "keep", "resend", "query"])
@pytest.mark.parametrize(
    ("calls", "kills"), [SHORT, pytest.param(*LONG, marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_soak_of_kills_loses_nothing_and_sends_nothing_twice(
    site: Site, if_unknown: str, calls: int, kills: int
) -> None:
    chance = random.Random(f"{if_unknown} {calls} {kills}")
    drop = {"sequence": [{"drop_after": 0, "remember": True}, {"remember": True}]}
    cases = [case(f"c{number}", **(drop if number % 20 == 19 else {"remember": True})) for number in range(calls // 2)]
    limit = calls + 8 * kills + calls // 10
    site.order(
        http_order(
            site.service,
            cases,
            if_unknown=if_unknown,
            repetitions=2,
            budgets={"dispatches": limit, "tokens": {"limit": 10 * limit, "bound_per_dispatch": 10}},
            concurrency=4,
            # So that there is something left to kill, also on a fast machine.
            rate_per_second=200.0,
            dispatches_max=20,
            attempts_max=20,
        )
    )
    killed = 0
    for _ in range(4 * kills):
        if killed == kills:
            break
        killed += _kill_once(site, chance, most=calls // kills)
    assert site.run().ended() in (0, 3)

    counts = site.counts()
    assert sum(counts.values()) == calls
    assert set(counts) <= {"selected", "unknown"}, "no innocent is parked, nothing failed"
    if if_unknown in ("repeat", "resend"):
        assert counts == {"selected": calls}
    if if_unknown == "query":
        assert 200 not in [site.service.ask("GET", f"/outcome/{unknown.call_id}")[0] for unknown in site.unknown()]
    assert killed == kills, "the run was over before it could be killed often enough"
    assert rows(site.ledger, "SELECT count(*) FROM judgments")[0][0] == counts["selected"]
    check_invariants(site.ledger, site.requests())


def _kill_once(site: Site, chance: random.Random, *, most: int) -> bool:
    """Start, and kill after some more requests or soon after the process has begun; says whether it was alive."""
    coordinator = site.run()
    if chance.random() < 0.25:
        # Anywhere: also before the first request, while it plans, opens or recovers.
        begun = last_written(site)
        until(lambda: coordinator.process.poll() is not None or last_written(site) != begun, "it has written something")
    else:
        wanted = site.service.received() + chance.randint(1, most)
        until(lambda: coordinator.process.poll() is not None or site.service.received() >= wanted, "it has sent some")
    return coordinator.kill() == KILLED


def last_written(site: Site) -> float | None:
    """When the ledger's log was last written to."""
    wal = site.ledger.with_name(site.ledger.name + "-wal")
    try:
        return wal.stat().st_mtime
    except FileNotFoundError:
        return None
