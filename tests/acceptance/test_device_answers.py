"""E04, C31: answers of a device that come after their attempt or their run has ended, and what is no answer at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .benches import RESOURCE, Bench, asks, check_device
from .harness import Coordinator, Site, until
from .invariants import check_invariants, rows


@pytest.fixture
def bench(site: Site) -> Iterator[Bench]:
    made = Bench(site)
    try:
        yield made
    finally:
        made.close()


def slot_of(site: Site, run: str, case: str) -> Any:
    """The one slot of a case of the run of that name."""
    with site.opened() as ledger:
        (slot,) = ledger.case(ledger.find(run).run_id, case)
        return slot


BUDGETS = {"dispatches": 20, "tokens": {"limit": 400, "bound_per_dispatch": 20}}
EXPIRES_AFTER_SECONDS = 2.0


def first_attempt_expires(bench: Bench, if_unknown: str, *more: dict[str, Any]) -> Coordinator:
    """A run whose first answer is done at the device at once, and held back on its way until the attempt has ended."""
    paid = {"usage": {"tokens_in": 7, "tokens_out": 3}}
    bench.device.tell("plan", behave={"late": "old", "answer": "first", **paid})
    if if_unknown == "repeat":
        bench.device.tell("plan", behave={"wait": "new", "answer": "second", **paid})
    case = {"id": "slow", "input": {"value": 1}, "expected": "second"}
    run = bench.run(
        "first", [case, *more], target={"if_unknown": if_unknown}, deadline_seconds=EXPIRES_AFTER_SECONDS,
        attempts_max=9, budgets=BUDGETS,
    )  # fmt: skip
    bench.device.wait_until_waiting("old")
    return run


@pytest.mark.parametrize("first_to_arrive", ["the old one", "the new one"])
def test_e04_late_answer_of_a_device_is_evidence_of_its_own_attempt_whatever_comes_first(
    site: Site, bench: Bench, first_to_arrive: str
) -> None:
    run = first_attempt_expires(bench, "repeat")
    bench.device.wait_until_waiting("new")  # the first attempt has passed its deadline, the second has begun
    if first_to_arrive == "the old one":
        bench.device.go("old")
        bench.device.go("new")
    else:
        bench.device.go("new")
        until(lambda: rows(site.ledger, "SELECT 1 FROM observations"), "the answer in time is selected")
        bench.device.go("old")
    assert run.ended() == 0, run.err

    slot = slot_of(site, "first", "slow")
    old, new = slot.attempts[:2]
    assert (slot.state, slot.selected_attempt) == ("selected", new.attempt_no)
    assert (new.state, new.answer, new.source) == ("observed", '"second"', "wire")
    assert (old.state, old.answer) == ("unknown", None)
    assert old.dispatches[0].call_id != new.dispatches[0].call_id

    # The device remembers what it did: whoever takes it over next is told, under the old request's own id.
    assert bench.run("next", [asks("n")]).ended() == 0
    slot = slot_of(site, "first", "slow")
    old = slot.attempts[0]
    assert (slot.state, slot.selected_attempt) == ("selected", new.attempt_no), "nothing replaces the answer in time"
    assert (old.state, old.answer, old.source) == ("late", '"first"', "late")
    assert [judgment.passed for judgment in slot.judgments] == [1], "only the selected answer is judged"
    with site.opened() as ledger:
        budgets = {one.plan.unit: (one.settled, one.held) for one in ledger.budgets(ledger.find("first").run_id)}
    assert budgets == {"dispatches": (2, 0), "tokens": (20, 0)}, "both are paid for"
    check_device(bench)
    check_invariants(site.ledger, None)


def test_e04_a_device_that_answers_after_the_run_has_ended_is_asked_when_it_is_taken_over_next(
    site: Site, bench: Bench
) -> None:
    run = first_attempt_expires(bench, "keep")
    assert run.ended() == 3, run.err
    assert slot_of(site, "first", "slow").state == "unknown"
    bench.device.go("old")  # nobody listens any more

    assert bench.run("next", [asks("n")]).ended() == 0
    slot = slot_of(site, "first", "slow")
    (only,) = slot.attempts
    assert (slot.state, only.state, only.answer, only.source) == ("selected", "observed", '"first"', "query")
    submitted = len(bench.device.lines(role="submit"))
    assert bench.resume("first").ended() == 0
    assert len(bench.device.lines(role="submit")) == submitted, "nothing is asked again"
    assert [judgment.passed for judgment in slot_of(site, "first", "slow").judgments] == [0]
    check_device(bench)
    check_invariants(site.ledger, None)


def test_c31_a_device_that_refuses_one_that_fails_and_one_that_is_wrong_are_three_outcomes(
    site: Site, bench: Bench
) -> None:
    cases = [
        asks("refuses", refuse=0),
        asks("fails", fail="the lamp is broken", reason="lamp"),
        {**asks("wrong"), "expected": "right"},
        asks("right"),
    ]
    run = bench.run("first", cases, dispatches_max=1, attempts_max=1, budgets={"dispatches": 9})
    assert run.ended() == 3, run.out + run.err
    found = rows(site.ledger, "SELECT k.case_id, s.state, s.reason FROM slots s JOIN cases k USING (run_key, case_no)")
    assert found == [
        ("refuses", "unavailable", "device.refused"), ("fails", "failed", "device.failed.lamp"),
        ("wrong", "selected", None), ("right", "selected", None),
    ]  # fmt: skip
    told = bench.told("report", "first", "--json")
    (score,) = told["scores"]
    assert (score["passed"], score["judged"]) == (1, 2), "what was not measured is in no denominator"
    assert told["next"] == "decide"
    check_device(bench)
    check_invariants(site.ledger, None)


def test_c31_a_device_that_cannot_be_reached_costs_nothing_and_leaves_every_case_to_be_asked(
    site: Site, bench: Bench
) -> None:
    away = {"url": "http://127.0.0.1:9"}
    run = bench.run("first", [asks("a"), asks("b")], target=away, budgets={"dispatches": 9})
    assert run.ended() == 2
    assert "cannot be reached" in run.err
    assert rows(site.ledger, "SELECT state, count(*) FROM slots GROUP BY state") == [("pending", 2)]
    assert rows(site.ledger, "SELECT count(*) FROM calls WHERE owner = 'attempt'") == [(0,)]
    assert rows(site.ledger, "SELECT held, settled FROM budgets") == [(0, 0)]
    assert bench.told("device", "show", RESOURCE, "--json")["state"] == "free"
    check_invariants(site.ledger, None)
