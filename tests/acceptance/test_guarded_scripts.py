"""E02, E03 and their like in a plain script whose paid calls stand in a guard: killed, and simply started again."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import pytest

from .harness import FIXTURES, Coordinator, Site
from .invariants import check_invariants

COUNT: Final = 5
ANSWERS: Final = [f"answer {number}" for number in range(1, COUNT + 1)]
FORMS: Final = ("calls", "threads", "tasks")


def script(site: Site, form: str, *more: object, if_unknown: str = "repeat", **options: Any) -> Coordinator:
    program = (sys.executable, FIXTURES / "guarded_script.py", site.service.url, COUNT, if_unknown, form)
    return site.start_program(*program, "--ledger", site.ledger, *more, **options)


def told(made: Coordinator) -> dict[str, Any]:
    assert made.ended() == 0, made.err
    found: dict[str, Any] = json.loads(made.out)
    return found


def dies_in_a_call(site: Site, form: str, if_unknown: str) -> None:
    running = script(site, form, if_unknown=if_unknown)
    site.wait_for("gate")
    running.dies()
    site.service.go("gate")


@pytest.mark.parametrize("form", FORMS)
def test_e02_e03_a_killed_script_goes_on_and_pays_twice_only_for_what_is_unknown(site: Site, form: str) -> None:
    dies_in_a_call(site, form, "repeat")
    answered = site.service.received() - 1 if form == "calls" else 0

    found = told(script(site, form))

    assert found["results"] == ANSWERS
    assert found["reused"] >= answered
    (budget,) = site.budgets()
    assert budget.held >= 1, "the unknown call keeps what it holds"
    assert max(site.seen().values()) == 1
    check_invariants(site.ledger, site.requests())
    again = told(script(site, form))
    assert (again["results"], again["reused"], again["called"]) == (ANSWERS, COUNT, 0)


@pytest.mark.parametrize("form", FORMS)
def test_e03_what_must_not_follow_by_itself_is_refused_until_an_operator_has_decided(site: Site, form: str) -> None:
    dies_in_a_call(site, form, "keep")

    refused = script(site, form, if_unknown="keep")
    assert refused.ended() == 4
    assert refused.err.startswith("attempt.call_unknown: key ")
    assert len(refused.err.strip().splitlines()) == 1
    assert max(site.seen().values()) == 1
    for _ in range(COUNT):
        with site.opened() as ledger:
            for unknown in ledger.unknown(ledger.runs()[0].run_id):
                ledger.not_landed(unknown, reason="a test", made_by="test")
    assert told(script(site, form, if_unknown="keep"))["results"] == ANSWERS
    check_invariants(site.ledger, site.requests())


def test_e03b_what_may_be_resent_goes_out_again_under_its_id(site: Site) -> None:
    dies_in_a_call(site, "calls", "resend")
    lost = site.requests()[-1].request_id

    assert told(script(site, "calls", if_unknown="resend"))["results"] == ANSWERS

    assert site.seen()[lost] == 2
    assert site.service.worked() == COUNT
    check_invariants(site.ledger, site.requests())


def test_two_scripts_at_once_are_told_of_each_other(site: Site) -> None:
    running = script(site, "calls")
    site.wait_for("gate")

    other = script(site, "calls")
    assert other.ended() == 4
    assert other.err.startswith("run.busy: ")

    site.service.go("gate")
    assert told(running)["results"] == ANSWERS


def test_a_hard_budget_stops_a_script_and_a_larger_one_lets_it_go_on(site: Site) -> None:
    site.service.go("gate")
    stopped = script(site, "calls", "--dispatches", 2)
    assert stopped.ended() == 6
    assert stopped.err.startswith("budget.exhausted: ") or stopped.err.startswith("budget")
    assert site.service.received() == 2

    found = told(script(site, "calls", "--dispatches", 9))

    assert (found["reused"], found["called"]) == (2, 3)
    assert site.service.received() == COUNT
    check_invariants(site.ledger, site.requests())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("point", "passage"),
    [
        ("run.planned", 1),
        ("run.opened", 1),
        ("dispatch.intent.before", 2),
        ("dispatch.intent.inside", 2),
        ("dispatch.intent.committed", 2),
        ("dispatch.sent", 2),
        ("dispatch.outcome.inside", 2),
        ("dispatch.outcome.committed", 2),
        ("scribe.commit.before", 8),
        ("scribe.commit.after", 8),
    ],
)
def test_crash_of_a_script_at_every_point_loses_nothing(site: Site, point: str, passage: int, form: str) -> None:
    site.service.go("gate")
    script(site, form, crashpoint=f"{point}@{passage}").died_at_its_point()

    found = told(script(site, form))

    assert found["results"] == ANSWERS
    assert max(site.seen().values()) == 1, "each send has a request id of its own"
    (budget,) = site.budgets()
    assert budget.settled == COUNT
    assert site.service.received() <= budget.settled + budget.held
    check_invariants(site.ledger, site.requests())
    assert told(script(site, form))["called"] == 0
