"""One hold of devices: what is lost and kept with it, its calls, its fence, reboots, quarantine and contamination."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tallystick.ledger import device_care
from tallystick.ledger.errors import BudgetExhausted, IdentityChanged
from tallystick.ledger.host_claims import HostClaims
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import DispatchState, IfUnknown, SlotState
from tallystick.runner import attempt_steps
from tallystick.runner.device_protocols import LEASE_LOST, REBOOTED, TakenOver, Tenure
from tallystick.runner.protocols import Dispatching, Outcome, QueryAnswer, QueryState
from tallystick.runner.reports import status_of
from tallystick.runner.results import NextMove
from tests.unit.ledger.factories import HandClock
from tests.unit.runner.benches import Bench, OnBench
from tests.unit.runner.scripted import (
    ANSWERED,
    UNKNOWN,
    Reply,
    Scripted,
    always,
    execute,
    held_and_settled,
    in_turn,
    page,
)


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_DEVICE_LOCKS", str(tmp_path / "locks"))


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: HandClock) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True, clock=clock) as opened:
        yield opened


def rows(ledger: Ledger, sql: str, *parameters: object) -> list[Any]:
    with ledger.reading() as reader:
        return reader.rows(sql, parameters)


def leases_of(ledger: Ledger) -> list[tuple[str, int]]:
    return rows(ledger, "SELECT state, fence FROM leases WHERE resource = 'bench:1' ORDER BY set_id")


def once(change: Any) -> Reply:
    """The first answer comes after ``change`` was done."""

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        if len(target.asked) == 1:
            change()
        return ANSWERED

    return reply


# Losing it.


def test_a_lease_that_ran_out_is_refused_at_the_next_intent_and_asked_for_anew(
    ledger: Ledger, clock: HandClock
) -> None:
    """As after SIGSTOP or suspend: nobody took the device over, so that the answer that was on its way counts."""
    target = OnBench(reply=once(lambda: clock.suspend(31_000_000)))
    outcome = execute(ledger, target, cases=2)
    assert outcome.counts[SlotState.SELECTED] == 2
    assert leases_of(ledger) == [("lost", 1), ("released", 2)]
    assert [(fence, role) for _, fence, role in target.benches[0].log] == [
        (1, "reset"), (1, "submit"), (2, "reset"), (2, "submit")
    ]  # fmt: skip
    assert len(target.left) == 1  # a lost tenure is not let go in good order
    states = rows(ledger, "SELECT state FROM dispatches d JOIN calls c USING (call_id) WHERE c.owner = 'attempt'")
    assert states == [("answered",), ("answered",)]  # nothing was intended under the old one


@pytest.mark.parametrize("point", ["dispatch.intent.before", "dispatch.intent.committed"])
def test_a_holder_that_stood_still_on_its_way_to_a_request_never_sends_it(
    ledger: Ledger, clock: HandClock, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Before its intent, that is refused; after it, the request that was intended is known not to have been sent."""
    passed: list[str] = []

    def stand_still(name: str) -> None:
        if name == point and not passed:
            passed.append(name)
            clock.suspend(31_000_000)

    monkeypatch.setattr(attempt_steps, "crashpoint", stand_still)
    target = OnBench()
    outcome = execute(ledger, target, attempts_max=1)
    assert outcome.counts[SlotState.SELECTED] == 1
    assert [(fence, role) for _, fence, role in target.benches[0].log] == [(1, "reset"), (2, "reset"), (2, "submit")]
    assert target.benches[0].refused == []
    never = [] if point == "dispatch.intent.before" else [("given_back", LEASE_LOST)]
    assert [(one.state, one.reason) for one in page(ledger, outcome).attempts] == [*never, ("observed", "")]


@pytest.mark.parametrize("step_us", [-3_600_000_000, 3_600_000_000])
def test_a_stepped_wall_clock_neither_frees_nor_loses_a_device(ledger: Ledger, clock: HandClock, step_us: int) -> None:
    target = OnBench(reply=once(lambda: clock.step(step_us)))
    assert execute(ledger, target, cases=2).counts[SlotState.SELECTED] == 2
    assert leases_of(ledger) == [("released", 1)]


def test_a_device_that_is_taken_away_in_flight_leaves_the_request_unknown_and_is_asked_for_anew(ledger: Ledger) -> None:
    def take_away() -> None:
        ledger.write(lambda tx: device_care.revoke(tx, "bench:1", reason="I need it", made_by="ada"))

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        if len(target.asked) == 1:
            await asyncio.to_thread(take_away)
        return ANSWERED

    target = OnBench(reply=reply)
    outcome = execute(ledger, target, cases=2)
    assert [(one.state, one.reason) for one in page(ledger, outcome).attempts] == [("late", "late")]
    assert rows(ledger, "SELECT answer, source FROM observations WHERE source = 'late'") == [('"x"', "late")]
    assert outcome.counts[SlotState.FAILED] == outcome.counts[SlotState.SELECTED] == 1
    assert leases_of(ledger) == [("revoked", 1), ("released", 2)]


def test_a_request_that_can_be_queried_is_asked_for_after_its_device_was_taken_away(ledger: Ledger) -> None:
    def take_away() -> None:
        ledger.write(lambda tx: device_care.revoke(tx, "bench:1", reason="I need it", made_by="ada"))

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        await asyncio.to_thread(take_away)
        return ANSWERED

    target = OnBench(reply=reply, if_unknown=IfUnknown.QUERY, query_answer=QueryAnswer(QueryState.LANDED, ANSWERED))
    outcome = execute(ledger, target)
    assert outcome.counts[SlotState.SELECTED] == 1
    assert target.queries == [target.asked[0].request_id]
    assert len(target.tenures) == 2


def test_an_older_fence_that_the_device_refuses_costs_no_try(ledger: Ledger) -> None:
    bench = Bench()

    async def look(target: OnBench, tenure: Tenure) -> TakenOver:
        if len(target.tenures) == 1:
            bench.highest = 7  # somebody whom no ledger here knows
        else:
            await tenure.raise_fence(bench.name, bench.highest)
        return TakenOver({})

    target = OnBench(benches=(bench,), look=look)
    outcome = execute(ledger, target, attempts_max=1)
    assert outcome.counts[SlotState.SELECTED] == 1
    assert [one.reason for one in page(ledger, outcome).attempts] == [LEASE_LOST, ""]
    assert leases_of(ledger)[-1] == ("released", 8)
    assert bench.refused == [(rows(ledger, "SELECT call_id FROM calls ORDER BY call_id")[0][0], 1)]


def test_an_event_loop_that_is_blocked_for_longer_than_the_lease_keeps_it(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "real.db", create=True) as ledger:

        def expiry() -> int:
            found: int = rows(ledger, "SELECT expires_boot_ns FROM leases WHERE resource = 'bench:1'")[0][0]
            return found

        def block() -> None:
            first, end = expiry(), time.monotonic() + 60
            while ledger.clock.boot_ns() <= first or expiry() <= first:
                assert time.monotonic() < end

        target = OnBench(reply=once(block))
        assert execute(ledger, target, cases=2, device={"lease_seconds": 0.5}).counts[SlotState.SELECTED] == 2
        assert leases_of(ledger) == [("released", 1)]


# What a call of a lease is.


def calls_of_leases(ledger: Ledger) -> list[tuple[str, str, int]]:
    return rows(
        ledger,
        "SELECT c.role, d.state, c.fence FROM calls c JOIN dispatches d ON d.call_id = c.call_id"
        " WHERE c.owner = 'lease' ORDER BY c.call_id",
    )


def resetting(outcome: Outcome) -> Any:
    async def look(target: OnBench, tenure: Tenure) -> TakenOver:
        assert await target.reset(tenure, "bench:1", outcome=outcome) is outcome
        return TakenOver({})

    return look


def test_a_call_of_a_lease_has_its_intent_before_it_is_sent_and_its_outcome_after(ledger: Ledger) -> None:
    seen: list[tuple[str, str, int]] = []

    async def look(target: OnBench, tenure: Tenure) -> TakenOver:
        takes = target.benches[0].takes

        def spy(request_id: str, fence: int, role: str) -> bool:
            seen.extend(calls_of_leases(ledger))
            return takes(request_id, fence, role)

        target.benches[0].takes = spy  # type: ignore[method-assign]
        await target.reset(tenure, "bench:1")
        target.benches[0].takes = takes  # type: ignore[method-assign]
        return TakenOver({})

    bench = attrs.define(slots=False, eq=False)(type("Open", (Bench,), {}))()
    execute(ledger, OnBench(benches=(bench,), look=look))
    assert seen == [("reset", "intended", 1)]
    assert calls_of_leases(ledger) == [("reset", "answered", 1)]


@pytest.mark.parametrize("state", [DispatchState.ANSWERED, DispatchState.FAILED, DispatchState.REFUSED])
def test_what_became_of_a_call_of_a_lease_is_kept(ledger: Ledger, state: DispatchState) -> None:
    execute(ledger, OnBench(look=resetting(Outcome(state, "why", "because", bytes_sent=3))))
    assert calls_of_leases(ledger) == [("reset", str(state), 1)]


def test_an_unknown_call_of_a_lease_does_not_matter_once_its_device_was_looked_at_again(ledger: Ledger) -> None:
    execute(ledger, OnBench(look=resetting(UNKNOWN)))
    assert calls_of_leases(ledger) == [("reset", "abandoned", 1)] or calls_of_leases(ledger) == [
        ("reset", "unknown", 1)
    ]
    execute(ledger, OnBench(), new=True)
    assert calls_of_leases(ledger) == [("reset", "abandoned", 1), ("reset", "answered", 2)]


def test_calls_of_leases_count_in_budgets_of_their_role_alone(ledger: Ledger) -> None:
    budgets = [{"unit": "dispatches", "limit": 10}, {"unit": "dispatches", "limit": 3, "role": "device"}]
    execute(ledger, OnBench(), budgets=budgets, cases=2)
    assert held_and_settled(ledger) == [(0, 2, 0), (0, 1, 0)]


def test_a_budget_of_the_device_that_is_used_up_ends_the_session_with_nothing_sent(ledger: Ledger) -> None:
    target = OnBench()
    outcome = execute(ledger, target, budgets=[{"unit": "dispatches", "limit": 0, "role": "device"}])
    assert outcome.next is NextMove.FUND
    assert outcome.counts[SlotState.UNAVAILABLE] == 1
    assert target.benches[0].log == []
    assert BudgetExhausted.exit_status == int(outcome.exit_status)


def test_resets_are_no_calls_of_the_run_in_its_figures_and_no_unknown_outcomes_that_somebody_settles(
    ledger: Ledger,
) -> None:
    outcome = execute(ledger, OnBench(look=resetting(UNKNOWN)), cases=2)
    found = status_of(ledger, outcome.run_id)
    assert found.totals is not None
    assert (found.totals.calls, found.totals.dispatches_by_state) == (2, {"answered": 2})
    assert found.totals.wasted_dispatches == 0
    assert found.unknown.count == 0


# What a look finds.


def test_a_device_is_asked_about_what_was_left_and_what_it_says_settles_it(ledger: Ledger) -> None:
    lost = OnBench(reply=in_turn(UNKNOWN, UNKNOWN, UNKNOWN))
    run_id = execute(ledger, lost, cases=3).run_id
    ids = [one.request_id for one in lost.asked]
    told = {
        ids[0]: QueryAnswer(QueryState.LANDED, attrs.evolve(ANSWERED, answer="found")),
        ids[1]: QueryAnswer(QueryState.NEVER),
        ids[2]: QueryAnswer(QueryState.PENDING),
    }
    open_requests: list[tuple[str, int]] = []

    async def look(target: OnBench, tenure: Tenure) -> TakenOver:
        open_requests.extend((one.request_id, one.fence) for one in tenure.open_requests("bench:1"))
        return TakenOver({"serial": "1"}, 1, settled=told)

    execute(ledger, OnBench(look=look), new=True)
    assert open_requests == [(ids[0], 1), (ids[1], 1), (ids[2], 1)]
    states = rows(
        ledger,
        "SELECT s.state FROM slots s JOIN runs r ON r.run_key = s.run_key WHERE r.run_id = ? ORDER BY slot_no",
        run_id,
    )
    assert states == [("selected",), ("pending",), ("unknown",)]


def test_what_an_earlier_request_may_still_do_marks_the_attempts_meanwhile(ledger: Ledger) -> None:
    async def look(target: OnBench, tenure: Tenure) -> TakenOver:
        return TakenOver({}, contaminating=("01h",))

    outcome = execute(ledger, OnBench(look=look), cases=2)
    assert outcome.counts[SlotState.SELECTED] == 2
    assert rows(ledger, "SELECT contaminated FROM attempts") == [(1,), (1,)]
    assert rows(ledger, "SELECT count(*) FROM events WHERE kind = 'attempt.contaminated'") == [(2,)]


def booting(bench: Bench) -> Any:
    async def look(target: OnBench, tenure: Tenure) -> TakenOver:
        return TakenOver({"boot": bench.boot_count}, bench.boot_count)

    return look


def rebooting(bench: Bench) -> Reply:
    """The device reboots in the middle of the first request, and says so."""

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        if len(target.asked) > 1:
            return ANSWERED
        bench.boot_count += 1
        return Outcome(DispatchState.UNKNOWN, REBOOTED, "boot 2", bytes_sent=1)

    return reply


def test_a_reboot_under_a_run_is_refused_unless_the_work_order_accepts_it(ledger: Ledger) -> None:
    bench = Bench()
    target = OnBench(reply=rebooting(bench), benches=(bench,), look=booting(bench))
    with pytest.raises(IdentityChanged, match="has rebooted since this run saw it: boot 1, now 2"):
        execute(ledger, target, cases=2)
    assert len(target.asked) == 1
    outcome = execute(ledger, target, cases=2, device={"on_reboot": "new_generation"})
    assert (outcome.counts[SlotState.SELECTED], outcome.counts[SlotState.UNKNOWN]) == (1, 1)
    assert rows(ledger, "SELECT boot_count, generation FROM devices") == [(2, 2)]


def test_a_device_that_rebooted_is_looked_at_again_before_the_next_request(ledger: Ledger) -> None:
    bench = Bench()
    target = OnBench(reply=rebooting(bench), benches=(bench,), look=booting(bench))
    outcome = execute(ledger, target, cases=2, device={"on_reboot": "new_generation"})
    assert outcome.counts[SlotState.SELECTED] == 1
    assert len(target.tenures) == 2
    assert len(set(map(id, target.tenures))) == 1  # under the same lease
    assert leases_of(ledger) == [("released", 1)]


def test_a_new_run_does_not_mind_that_a_device_rebooted_before_it_began(ledger: Ledger) -> None:
    bench = Bench()
    execute(ledger, OnBench(benches=(bench,), look=booting(bench)))
    bench.boot_count = 9
    outcome = execute(ledger, OnBench(benches=(bench,), look=booting(bench)), new=True)
    assert outcome.counts[SlotState.SELECTED] == 1
    assert rows(ledger, "SELECT boot_count, generation FROM devices") == [(9, 2)]


# Quarantine.


@pytest.mark.parametrize("by", ["an answer", "a look"])
def test_a_device_in_quarantine_gets_nothing_more_while_others_go_on(ledger: Ledger, by: str, tmp_path: Path) -> None:
    async def look(target: OnBench, tenure: Tenure) -> TakenOver:
        return TakenOver({}, quarantine="it smokes" if by == "a look" else None)

    smoking = attrs.evolve(ANSWERED, quarantine="it smokes")
    sides = {"bench": OnBench(reply=always(smoking), look=look), "free": Scripted(always(ANSWERED))}
    outcome = execute(ledger, sides, cases=3)
    sent = 0 if by == "a look" else 1
    assert len(sides["bench"].asked) == sent
    assert outcome.counts[SlotState.SELECTED] == 3 + sent
    assert outcome.counts[SlotState.PENDING] == 3 - sent
    assert outcome.next is NextMove.DECIDE
    assert int(outcome.exit_status) == 3
    assert [(one.resource, one.is_for_operator) for one in outcome.passed_over] == [("bench:1", True)]
    assert leases_of(ledger) == [("quarantined", 1)]
    assert str(HostClaims(ledger).quarantined("bench:1")).startswith("it smokes")


def test_a_run_that_meets_a_device_in_quarantine_asks_for_a_decision_and_goes_on_once_it_is_cleared(
    ledger: Ledger,
) -> None:
    smoking = OnBench(reply=always(attrs.evolve(ANSWERED, quarantine="it smokes")))
    execute(ledger, smoking)
    target = OnBench()
    outcome = execute(ledger, target, new=True)
    assert outcome.next is NextMove.DECIDE
    assert target.benches[0].log == []
    ledger.write(lambda tx: device_care.clear(tx, "bench:1", reason="a fuse", made_by="ada"))
    HostClaims(ledger).clear("bench:1")
    again = execute(ledger, target)
    assert again.counts[SlotState.SELECTED] == 1
