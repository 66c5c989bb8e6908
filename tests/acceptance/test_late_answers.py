"""E04, C02, E14: answers that come after their attempt has ended, in either order, and what may not attach to what."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from .harness import FIXTURES, Coordinator, Site, until
from .invariants import check_invariants, rows
from .orders import execution

LATE = "SELECT count(*) FROM dispatches WHERE state = 'late'"
SELECTED = "SELECT count(*) FROM slots WHERE state = 'selected'"


def started(site: Site, *answers: Any, **options: Any) -> Coordinator:
    """A run of one case whose attempts wait at the gates 1, 2, …, and of one that keeps it going until it is let go."""
    shutil.copy(FIXTURES / "late_target.py", site.folder)
    attempts = [{"wait": str(number), "answer": answer} for number, answer in enumerate(answers, start=1)]
    cases = [
        {"id": "slow", "input": {"behave": {"sequence": attempts}}, "expected": "second"},
        {"id": "other", "input": {"input": "other", "behave": {"wait": "other"}}, "expected": "other"},
    ]
    target = {"kind": "python", "file": "late_target.py", "function": "ask", "if_unknown": "repeat"}
    # Longer than any test takes for the rest, shorter than patience: the first attempt has to reach its end.
    site.order(
        {
            "version": 1,
            "name": "late",
            "cases": {"items": cases},
            "target": target,
            "judges": [{"kind": "exact"}],
            "budgets": {"dispatches": 20, "tokens": {"limit": 200, "bound_per_dispatch": 20}},
            "execution": execution(concurrency=2, deadline_seconds=2.0, attempts_max=9, **options),
        }
    )
    return site.run(environment={"SERVICE_URL": site.service.url})


@pytest.mark.parametrize("first_to_arrive", ["the old one", "the new one"])
def test_e04_late_answer_is_evidence_of_its_own_attempt_whatever_comes_first(site: Site, first_to_arrive: str) -> None:
    coordinator = started(site, "first", "second")
    site.wait_for("1")
    site.wait_for("2")  # the first attempt has passed its deadline, the second has begun
    if first_to_arrive == "the old one":
        site.service.go("1")
        until(lambda: rows(site.ledger, LATE)[0][0], "the late answer is kept")
        site.service.go("2")
    else:
        site.service.go("2")
        until(lambda: rows(site.ledger, SELECTED)[0][0], "the answer in time is selected")
        site.service.go("1")
        until(lambda: rows(site.ledger, LATE)[0][0], "the late answer is kept")
    site.service.go("other")
    assert coordinator.ended() == 0, coordinator.err

    slot = site.only("slow")
    old, new = slot.attempts[:2]
    assert (slot.state, slot.selected_attempt) == ("selected", new.attempt_no)
    assert (new.state, new.answer, new.source) == ("observed", '"second"', "wire")
    assert (old.state, old.answer, old.source) == ("late", '"first"', "late")
    assert old.dispatches[0].call_id != new.dispatches[0].call_id
    assert [judgment.passed for judgment in slot.judgments] == [1], "only the selected answer is judged"
    # C02: exactly one counted result, and both are paid for.
    assert [attempt.dispatches[0].tokens_in for attempt in (old, new)] == [7, 7]
    by_unit = {budget.plan.unit: (budget.settled, budget.held) for budget in site.budgets()}
    held = len(site.unknown())  # the other case may have passed its deadline as well
    paid = site.service.received() - held
    assert by_unit == {"dispatches": (paid, held), "tokens": (10 * paid, 20 * held)}
    check_invariants(site.ledger, site.requests())


def test_e04_answer_that_never_comes_leaves_its_attempt_unknown_and_held(site: Site) -> None:
    coordinator = started(site, "first", "second", grace_seconds=0.2)
    site.wait_for("1")
    site.wait_for("2")
    site.service.go("2")
    site.service.go("other")
    assert coordinator.ended() == 0, coordinator.err
    old, new = site.only("slow").attempts[:2]
    assert (old.state, new.state) == ("unknown", "observed")
    held = len(site.unknown())
    assert {budget.plan.unit: budget.held for budget in site.budgets()} == {"dispatches": held, "tokens": 20 * held}
    check_invariants(site.ledger, site.requests())


@pytest.mark.parametrize("first_to_arrive", ["the old one", "the new one"])
def test_e14_old_evidence_usage_and_context_do_not_attach_to_a_new_generation(site: Site, first_to_arrive: str) -> None:
    rich = {"text": "first", "context": ["passage"]}
    coordinator = started(site, rich, {"text": "second"})
    site.wait_for("1")
    site.wait_for("2")
    if first_to_arrive == "the old one":
        site.service.go("1")
        until(lambda: rows(site.ledger, LATE)[0][0], "the late answer is kept")
        site.service.go("2")
    else:
        site.service.go("2")
        until(lambda: rows(site.ledger, SELECTED)[0][0], "the answer in time is selected")
        site.service.go("1")
        until(lambda: rows(site.ledger, LATE)[0][0], "the late answer is kept")
    site.service.go("other")
    assert coordinator.ended() == 0, coordinator.err

    old, new = site.only("slow").attempts[:2]
    assert (new.answer, new.evidence) == ('"second"', "{}")
    assert (new.dispatches[0].tokens_in, new.dispatches[0].tokens_out) == (None, None)
    assert (old.state, old.dispatches[0].tokens_in) == ("late", 7)
    assert '"passage"' in old.evidence, "it stays with the attempt that it belongs to"
    check_invariants(site.ledger, site.requests())


def test_e14_evidence_of_an_attempt_that_died_does_not_attach_to_the_next(site: Site) -> None:
    """The first generation had context and usage; it was received and never committed."""
    shutil.copy(FIXTURES / "late_target.py", site.folder)
    answers = [{"answer": {"text": "first", "context": ["passage"]}}, {"answer": {"text": "second"}}]
    site.order(
        {
            "version": 1,
            "name": "late",
            "cases": {"items": [{"id": "slow", "input": {"behave": {"sequence": answers}}}]},
            "target": {"kind": "python", "file": "late_target.py", "function": "ask", "if_unknown": "repeat"},
            "execution": execution(),
        }
    )
    environment = {"SERVICE_URL": site.service.url}
    site.run(crashpoint="dispatch.sent", environment=environment).died_at_its_point()
    assert site.resume(environment=environment).ended() == 0
    old, new = site.only("slow").attempts
    assert (old.state, old.answer, old.evidence) == ("unknown", None, None)
    assert (new.answer, new.evidence, new.dispatches[0].tokens_in) == ('"second"', "{}", None)
    check_invariants(site.ledger, site.requests())
