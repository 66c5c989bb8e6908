"""C04: runs whose process was killed, and a case that kills its runner each time."""

from __future__ import annotations

from typing import Any

import pytest

from .harness import Site
from .invariants import check_invariants, rows
from .orders import case, http_order, python_target, work_order


@pytest.mark.parametrize("function", ["blocking", "on_the_loop"])
def test_c04_case_that_kills_its_runner_is_parked_and_the_rest_proceeds(site: Site, function: str) -> None:
    cases: list[dict[str, Any]] = [{"id": f"c{number}", "input": f"c{number}"} for number in range(8)]
    cases[2] = {"id": "deadly", "input": {"exit": 137}}
    target = python_target(site.folder, function=function, if_unknown="repeat")
    site.order(work_order(target, cases, judges=[], concurrency=4, solitary_deaths_max=3))

    ends = [site.run().ended()]
    while ends[-1] == 137:
        assert len(ends) < 10, "it does not come to an end"
        ends.append(site.resume().ended())
        if len(ends) == 3:
            assert site.counts()["selected"] == 7, "the rest proceeds before the deadly case is tried again"

    assert ends[-1] == 3
    assert site.counts() == {"selected": 7, "parked": 1}
    slot = site.only("deadly")
    assert (slot.state, slot.reason) == ("parked", "kills_the_runner")
    assert rows(site.ledger, "SELECT solitary_deaths FROM slots WHERE state = 'parked'") == [(3,)]
    assert rows(site.ledger, "SELECT count(*) FROM slots WHERE solitary_deaths > 0") == [(1,)], "no innocent is blamed"
    assert site.outcome().next == "decide"
    check_invariants(site.ledger, site.requests())

    # It stays parked until somebody says otherwise.
    before = len(site.requests())
    assert site.resume("acceptance").ended() == 3
    assert len(site.requests()) == before


def test_c04_case_that_kills_its_runner_is_unknown_where_it_may_not_be_repeated(site: Site) -> None:
    cases: list[dict[str, Any]] = [
        {"id": "a", "input": "a"},
        {"id": "deadly", "input": {"exit": 137}},
        {"id": "c", "input": "c"},
    ]
    site.order(work_order(python_target(site.folder, if_unknown="keep"), cases, judges=[]))
    assert site.run().ended() == 137
    assert site.resume().ended() == 3
    assert site.counts() == {"selected": 2, "unknown": 1}
    assert len(site.requests()) == 3
    check_invariants(site.ledger, site.requests())


def test_c04_run_whose_process_was_killed_is_seen_as_dead_and_goes_on_without_help(site: Site) -> None:
    site.order(http_order(site.service, [case("a"), case("b", sequence=[{"wait": "gate"}, {}])], if_unknown="repeat"))
    coordinator = site.run()
    site.wait_for("gate")
    alive = site.told("status", "--json")
    coordinator.dies()
    dead = site.told("status", "--json")
    assert alive["executing"]["alive"] is True
    assert alive["executing"]["pid"] == coordinator.process.pid
    assert dead["executing"]["alive"] is False
    assert dead["next"] == "resume"
    assert site.resume().ended() == 0
    assert site.counts() == {"selected": 2}
    check_invariants(site.ledger, site.requests())
