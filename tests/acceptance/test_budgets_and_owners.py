"""E08 (the cap on dispatches), C10, C23: who sends the last call, who owns a run, and what its sessions add up to."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

import tallystick as ts

from .harness import DRIVER, FIXTURES, KILLED, Site, until
from .invariants import check_invariants, rows
from .orders import case, http_order


@pytest.mark.parametrize("winner", ["commits its answer", "dies with its answer"])
def test_e08_two_processes_race_for_the_last_dispatch_and_one_is_made(site: Site, winner: str) -> None:
    """One run has one coordinator, so the two are embedders on the ledger's own API, each for a slot of its own."""
    site.order(http_order(site.service, [case("a"), case("b")], budgets={"dispatches": 1}, judges=[]))
    site.run(crashpoint="run.planned").died_at_its_point()
    more = ["die"] if winner == "dies with its answer" else []
    racers = [
        site.speaking(FIXTURES / "last_call.py", site.ledger, slot_no, site.service.url, *more) for slot_no in (1, 2)
    ]
    assert [racer.line() for racer in racers] == ["ready", "ready"]
    for racer in racers:
        racer.say("go")
    said = Counter(racer.line().partition(" ")[0] for racer in racers)
    assert said == {"won": 1, "lost": 1}
    assert sorted(racer.process.wait(60) for racer in racers) == ([KILLED, 0] if more else [0, 0])
    assert site.service.received() == 1
    (budget,) = site.budgets()
    assert budget.settled + budget.held == 1

    # The resumed run does not get a second last call, and the loser's work is unavailable for want of budget.
    for _ in range(2):
        assert site.resume("acceptance").ended() == 6
        assert site.service.received() == 1
    assert site.counts() == {"unknown" if more else "selected": 1, "unavailable": 1}
    assert rows(site.ledger, "SELECT reason FROM slots WHERE state = 'unavailable'") == [("budget",)]
    assert site.outcome().next == "fund"
    (budget,) = site.budgets()
    assert (budget.settled, budget.held) == ((0, 1) if more else (1, 0))
    check_invariants(site.ledger, site.requests())


@pytest.mark.parametrize("point", ["dispatch.intent.committed", "dispatch.sent", "dispatch.outcome.committed"])
def test_e08_reservation_of_the_last_dispatch_outlives_a_death(site: Site, point: str) -> None:
    order = http_order(
        site.service, [case(name) for name in "abcd"], budgets={"dispatches": 2}, if_unknown="repeat", concurrency=4
    )
    site.order(order)
    site.run(crashpoint=f"{point}@2").died_at_its_point()
    (budget,) = site.budgets()
    assert budget.settled + budget.held == 2

    assert site.resume().ended() == 6

    counts = site.counts()
    assert site.service.received() <= 2
    assert sum(counts.values()) == 4
    assert counts["unavailable"] >= 2
    assert "failed" not in counts
    check_invariants(site.ledger, site.requests())


def test_c10_a_run_that_is_alive_is_not_adopted(site: Site) -> None:
    site.order(http_order(site.service, [case("a", wait="gate"), case("b")]))
    owner = site.run()
    site.wait_for("gate")
    for other in (site.resume("acceptance"), site.run(), site.resume("acceptance", launcher=DRIVER)):
        assert other.ended() == 4
        assert "run.busy" in other.err
        assert str(owner.process.pid) in other.err, "it says who has it"
    with pytest.raises(ts.RunBusy):
        ts.resume("acceptance", ledger=site.ledger)
    site.service.go("gate")
    assert owner.ended() == 0
    assert site.service.received() == 2
    check_invariants(site.ledger, site.requests())


def test_c10_whoever_is_told_that_a_run_is_busy_has_changed_nothing(site: Site) -> None:
    cases = [case("a", wait="gate"), case("b")]
    site.order(http_order(site.service, cases, budgets={"dispatches": 5}))
    owner = site.run()
    site.wait_for("gate")
    amending = site.resume("acceptance", "--amend", "dispatches=9", "--reason", "more")
    site.order(http_order(site.service, cases, budgets={"dispatches": 8}))
    changed = site.run()
    assert (amending.ended(), changed.ended()) == (4, 4)
    assert "run.busy" in amending.err
    assert "run.busy" in changed.err
    assert rows(site.ledger, "SELECT limit_amount FROM budgets") == [(5,)]
    site.service.go("gate")
    assert owner.ended() == 0
    check_invariants(site.ledger, site.requests())


def test_c10_what_stands_right_after_its_recovery_is_not_recovered_from(site: Site) -> None:
    site.order(http_order(site.service, [case("a"), case("b", sequence=[{"wait": "gate"}, {}])], if_unknown="repeat"))
    dead = site.run()
    site.wait_for("gate")
    dead.dies()
    first = site.resume("acceptance", pause_at="run.opened")
    first.wait_until_there()
    second = site.resume("acceptance")
    assert second.ended() == 4
    assert "run.busy" in second.err
    first.let_go()
    assert first.ended() == 0
    assert site.service.received() == 3, "a, b and b again: nobody asked twice"
    check_invariants(site.ledger, site.requests())


def test_c10_of_several_that_recover_a_dead_run_at_once_one_gets_it(site: Site) -> None:
    waiting: dict[str, Any] = {"sequence": [{"wait": "first"}, {"wait": "second"}]}
    site.order(http_order(site.service, [case("a"), case("b", **waiting)], if_unknown="repeat"))
    dead = site.run()
    site.wait_for("first")
    dead.dies()
    racers = [site.resume("acceptance", launcher=DRIVER) for _ in range(3)]
    # The one that got it waits for its answer until the others have been told.
    until(lambda: sum(racer.process.poll() is not None for racer in racers) == 2, "two of three are refused")
    site.service.go("second")
    assert sorted(racer.ended() for racer in racers) == [0, 4, 4], [racer.err for racer in racers]
    assert site.counts() == {"selected": 2}
    assert site.service.received() == 3
    assert rows(site.ledger, "SELECT count(*) FROM events WHERE kind = 'run.recovered'") == [(1,)]
    check_invariants(site.ledger, site.requests())


def test_c10_two_threads_that_start_the_same_work_order_at_once_make_one_run(site: Site) -> None:
    site.order(http_order(site.service, [case("a"), case("b")]))
    both = site.start_program(*DRIVER, "twice", site.order_file, "--ledger", site.ledger)
    assert both.ended() == 0, both.err
    assert Counter(json.loads(both.out)) <= Counter({"0": 2, "run.busy": 1})
    assert rows(site.ledger, "SELECT count(*) FROM runs WHERE state <> 'planning'") == [(1,)]
    assert site.service.received() == 2
    check_invariants(site.ledger, site.requests())


def test_c23_totals_cover_every_session_and_every_attempt(site: Site) -> None:
    cases = [case(f"c{number}") for number in range(9)]
    failing = {"status": 500, "body": {"error": "again", "usage": {"tokens_in": 7, "tokens_out": 0}}}
    cases.insert(3, case("twice", sequence=[failing, {}]))
    site.order(http_order(site.service, cases, retry=["*"], attempts_max=2))
    site.run(crashpoint="dispatch.outcome.committed@6").died_at_its_point()
    started = rows(site.ledger, "SELECT started_us FROM runs")
    assert site.resume().ended() == 0

    report = site.told("report", "acceptance", "--json")
    assert rows(site.ledger, "SELECT started_us FROM runs") == started, "it began when the first session did"
    assert rows(site.ledger, "SELECT sum(tokens_in + tokens_out) FROM dispatches") == [(107,)]
    totals = report["totals"]
    assert totals["tokens_in"] + totals["tokens_out"] == 107
    assert totals["wasted_dispatches"] == 1
    check_invariants(site.ledger, site.requests())
