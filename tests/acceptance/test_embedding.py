"""E02, E03 and their like in a harness of somebody's own that has the ledger inside: killed, and started again."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import pytest

from .harness import FIXTURES, Coordinator, Site
from .invariants import check_invariants
from .shown import ROOT

COUNT: Final = 4
IN_FLIGHT: Final = 2
ANSWERS: Final = [f"q{number} first, second" for number in range(COUNT)]


def harness(site: Site, *, if_unknown: str = "repeat", **options: Any) -> Coordinator:
    program = (sys.executable, FIXTURES / "embedding_harness.py", site.service.url, COUNT, if_unknown)
    return site.start_program(*program, "--ledger", site.ledger, **options)


def answers(made: Coordinator) -> Any:
    assert made.ended() == 0, made.err
    return json.loads(made.out)


def dies_in_two_calls(site: Site, if_unknown: str) -> None:
    """Killed when the first half of the cases is answered and each of the others is in its second call."""
    running = harness(site, if_unknown=if_unknown)
    for _ in range(IN_FLIGHT):
        site.wait_for("gate")
    running.dies()
    site.service.go("gate")


def test_e02_e03_a_killed_harness_goes_on_and_asks_again_only_for_what_is_unknown(site: Site) -> None:
    dies_in_two_calls(site, "repeat")
    assert site.service.received() == 2 * COUNT

    assert answers(harness(site)) == ANSWERS

    assert max(site.seen().values()) == 1
    (budget,) = site.budgets()
    assert (budget.settled, budget.held) == (2 * COUNT, IN_FLIGHT)
    assert site.service.received() == 2 * COUNT + IN_FLIGHT, "only what was in flight is asked again"
    check_invariants(site.ledger, site.requests())
    received = site.service.received()
    assert answers(harness(site)) == ANSWERS
    assert site.service.received() == received, "a finished run is not asked for anything"


def test_e03_what_must_not_follow_by_itself_waits_for_an_operator(site: Site) -> None:
    dies_in_two_calls(site, "keep")

    assert answers(harness(site, if_unknown="keep")) == ANSWERS[:-IN_FLIGHT]
    assert site.service.received() == 2 * COUNT, "nothing is asked before somebody has decided"
    with site.opened() as ledger:
        for unknown in ledger.unknown("harness"):
            ledger.not_landed(unknown, reason="a test", made_by="test")

    assert answers(harness(site, if_unknown="keep")) == ANSWERS
    check_invariants(site.ledger, site.requests())


@pytest.mark.parametrize(
    ("point", "passage"),
    [
        ("attempt.begun", 2),
        # The first calls of two cases are reserved, the next one is not.
        ("dispatch.intent.committed", 2),
        ("dispatch.sent", 2),
        ("dispatch.outcome.committed", 2),
        ("dispatch.intent.before", 3),
        ("dispatch.intent.inside", 3),
        ("dispatch.intent.committed", 3),
        ("dispatch.sent", 3),
        ("dispatch.outcome.inside", 3),
        ("dispatch.outcome.committed", 3),
        ("attempt.returned", 2),
    ],
)
def test_crash_of_a_harness_at_every_point_loses_nothing(site: Site, point: str, passage: int) -> None:
    site.service.go("gate")
    harness(site, crashpoint=f"{point}@{passage}").died_at_its_point()

    assert answers(harness(site)) == ANSWERS

    assert max(site.seen().values()) == 1
    (budget,) = site.budgets()
    assert budget.settled == 2 * COUNT, "each answer is paid once"
    assert site.service.received() <= budget.settled + budget.held
    check_invariants(site.ledger, site.requests())


def test_the_example_harness_runs_as_it_is_and_sends_nothing_the_second_time(site: Site) -> None:
    program = (sys.executable, ROOT / "examples" / "embedding" / "harness.py", site.ledger)
    for _ in range(2):
        made = site.start_program(*program)
        assert made.ended() == 0, made.err
        assert made.out == "20 of 20 are right\n"
    with site.opened() as ledger:
        assert ledger.budgets("adding")[0].settled == 20
