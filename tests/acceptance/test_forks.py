"""A changed work order makes a linked run that pays for the change alone (E13), also when it is killed or not alone."""

from __future__ import annotations

from typing import Any, Final

import pytest

from .harness import Site
from .invariants import check_invariants, rows
from .orders import case, http_order

SCENARIOS: Final[dict[str, tuple[int, ...]]] = {"fork.batch": (1, 2, 3)}
"""The passages: what is reused, what stays failed, what stays unknown."""
ELSEWHERE: Final = (("run.planning.batch", 2), ("run.planned", 1))


def order_of(site: Site, cases: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    order = http_order(site.service, cases, attempts_max=1, **options)
    return {**order, "fork": {"failed": "keep"}}


def ended_run(site: Site) -> str:
    """Three answers, a failure and an unknown outcome; the work order is changed by one case then."""
    plain: list[dict[str, Any]] = [case(name, remember=True) for name in "abc"]
    trouble = [case("bad", sequence=[{"status": 500}]), case("lost", sequence=[{"drop_after": 0}])]
    site.order(order_of(site, [*plain, *trouble]))
    assert site.run().ended() == 3
    assert site.counts() == {"selected": 3, "failed": 1, "unknown": 1}
    site.order(order_of(site, [*plain, *trouble, case("new", remember=True)]))
    return site.outcome().run_id


def forked(site: Site, run: str, *arguments: str, **options: Any) -> Any:
    return site.start("fork", run, site.order_file, "--yes", "--json", *arguments, **options)


@pytest.mark.parametrize(
    ("point", "passage"),
    [*ELSEWHERE, *((point, passage) for point, passages in SCENARIOS.items() for passage in passages)],
)
def test_e13_a_fork_that_was_killed_is_whole_or_nothing(site: Site, point: str, passage: int) -> None:
    run, sent = ended_run(site), 5
    forked(site, run, crashpoint=f"{point}@{passage}").died_at_its_point()
    check_invariants(site.ledger, site.requests(), at_rest=False)
    with site.opened() as ledger:
        shown = [one.run_id for one in ledger.runs()]
    if point == "run.planned":
        assert len(shown) == 2, "it was whole already"
    else:
        assert shown == [run]
        assert forked(site, run).ended() == 0
    assert site.service.received() == sent, "a fork asks nothing"
    assert rows(site.ledger, "SELECT count(*) FROM runs WHERE state = 'planning'") == [(0,)]
    assert site.run().ended() == 3
    assert site.counts() == {"selected": 4, "failed": 1, "unknown": 1}
    assert site.service.received() == sent + 1
    with site.opened() as ledger:
        totals = ledger.report("acceptance").totals
    assert (totals.calls, totals.dispatches) == (1, 1)
    check_invariants(site.ledger, site.requests())


def test_e13_two_forks_at_once_are_two_runs_and_each_is_whole(site: Site) -> None:
    run = ended_run(site)
    first = forked(site, run, pause_at="fork.batch@2")
    first.wait_until_there()
    assert forked(site, run).ended() == 0
    first.let_go()
    assert first.ended() == 0
    selected = "SELECT count(*) FROM slots WHERE state = 'selected' GROUP BY run_key"
    assert rows(site.ledger, selected) == [(3,), (3,), (3,)]
    check_invariants(site.ledger, site.requests())


def test_e13_a_run_is_forked_while_it_goes_on(site: Site) -> None:
    cases = [case("a"), case("b", wait="held"), case("c")]
    site.order(http_order(site.service, cases))
    going = site.run()
    site.wait_for("held")
    fork = site.told("fork", "acceptance", "--yes", "--json")
    assert (fork["reused"], fork["unknown"], fork["to_pay"]) == (1, 1, 1)
    site.service.go("held")
    assert going.ended() == 0
    assert site.resume(fork["run"]).ended() == 3
    assert site.counts() == {"selected": 2, "unknown": 1}
    assert site.service.received() == 4, "what was in flight is not sent again"
    check_invariants(site.ledger, site.requests())
