"""The ledger against a small model of what it promises, under any sequence of steps (I3, I4, I6, I8)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tallystick.ledger import attempts, budgets, coordinators, run_ends, run_reads
from tallystick.ledger.canonical import digest_of_bytes
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.errors import BudgetExhausted, RunNotResumable, TransitionRefused, UsageError
from tallystick.ledger.late import keep_late
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import Begun, DispatchFacts, DispatchKey, Hold, Waiting
from tallystick.ledger.settlements import Decision, Settlement, settle_unknown
from tallystick.ledger.states import DispatchState, IfUnknown
from tests.unit.ledger.factories import (
    ANSWER,
    ANSWER_DIGEST,
    answered,
    budget,
    every,
    hold,
    intent,
    lost,
    new_ledger,
    new_run,
    observe,
)

SLOTS = 3
LATE = '"late"'
LATE_DIGEST = digest_of_bytes(LATE.encode())
BOUNDS = st.integers(0, 15)
USES = st.integers(0, 20)
ENDED = {"selected", "failed", "unknown", "unavailable", "cancelled", "parked"}


@attrs.define
class Dispatch:
    key: DispatchKey
    state: str
    bound: int
    settled: int | None = None

    @property
    def held(self) -> int:
        return self.bound if self.state in ("intended", "unknown") else 0


@attrs.define
class Attempt:
    state: str
    dispatches: list[Dispatch] = attrs.field(factory=list)

    @property
    def unknown(self) -> list[Dispatch]:
        return [dispatch for dispatch in self.dispatches if dispatch.state == "unknown"]


@attrs.define
class Slot:
    state: str = "pending"
    step: str = "new"
    selected: int | None = None
    if_unknown: IfUnknown = IfUnknown.KEEP
    attempts: list[Attempt] = attrs.field(factory=list)

    @property
    def newest(self) -> Attempt:
        return self.attempts[-1]


def follows(value: IfUnknown) -> Waiting | None:
    return coordinators.follow_up(value, now_us=0, key_until_us=None)


class LedgerMachine(RuleBasedStateMachine):
    """Every rule does a step to the ledger and to the model; each invariant compares them."""

    ledger: Ledger
    coordinator: coordinators.Coordinator

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        folder = Path(self.folder.name) / "ledger"
        folder.mkdir()
        self.ledger = new_ledger(folder)
        self.slots = {number: Slot() for number in range(1, SLOTS + 1)}
        self.limit = 0
        self.run_state = "open"

    def teardown(self) -> None:
        found = check_ledger(self.ledger)
        self.ledger.close()
        self.folder.cleanup()
        assert found == []

    @initialize(limit=st.integers(0, 40))
    def plan(self, limit: int) -> None:
        self.limit = limit
        run = new_run(self.ledger, SLOTS, budgets=(budget(unit="tokens_out", limit=limit),))
        self.run_key, self.run_id = run.run_key, run.run_id
        self.coordinator = coordinators.open_run(self.ledger, run.run_id)

    # What the model knows.

    def dispatches(self) -> list[Dispatch]:
        return [one for slot in self.slots.values() for attempt in slot.attempts for one in attempt.dispatches]

    def spent(self) -> int:
        return sum(one.held + (one.settled or 0) for one in self.dispatches())

    def having(self, state: str) -> list[Slot]:
        """The slots whose newest attempt runs and whose last dispatch is in that state."""
        found = [slot for slot in self.slots.values() if slot.state == "in_flight"]
        return [slot for slot in found if slot.newest.dispatches[-1].state == state]

    def to_resend(self) -> list[Slot]:
        return [slot for slot in self.slots.values() if slot.state == "pending" and slot.step == "resend"]

    def unknown(self) -> list[tuple[Slot, Attempt, Dispatch]]:
        return [
            (slot, attempt, one) for slot in self.slots.values() for attempt in slot.attempts for one in attempt.unknown
        ]

    def write(self, work: Any) -> Any:
        return self.ledger.write(work)

    # Steps.

    @rule(number=st.integers(1, SLOTS), bound=BOUNDS, if_unknown=st.sampled_from(IfUnknown))
    def begin(self, number: int, bound: int, if_unknown: IfUnknown) -> None:
        slot = self.slots[number]
        wanted = intent(self.run_key, number, if_unknown=if_unknown, holds=(hold(1, bound, unit="tokens_out"),))
        waits = slot.state == "pending" and slot.step == "new"
        if not waits or self.spent() + bound > self.limit:
            with pytest.raises(BudgetExhausted if waits else TransitionRefused):
                self.write(lambda tx: attempts.begin(tx, wanted))
            return
        key = self.write(lambda tx: attempts.begin(tx, wanted)).key
        slot.attempts.append(Attempt("running", [Dispatch(key, "intended", bound)]))
        slot.state, slot.if_unknown = "in_flight", if_unknown
        assert key.attempt_no == len(slot.attempts)

    @rule(used=st.none() | USES, data=st.data())
    @precondition(lambda self: self.having("intended"))
    def answer(self, used: int | None, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.having("intended")))
        dispatch = slot.newest.dispatches[-1]
        self.write(lambda tx: observe(tx, dispatch.key, answered(tokens_out=used)))
        dispatch.state, dispatch.settled = "answered", dispatch.bound if used is None else used
        slot.newest.state, slot.state, slot.selected, slot.step = "observed", "selected", len(slot.attempts), "new"

    @rule(again=st.booleans(), data=st.data())
    @precondition(lambda self: self.having("intended"))
    def fail(self, again: bool, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.having("intended")))
        if slot.newest.unknown:
            return  # the runner never ends an attempt so of which something is unknown
        dispatch = slot.newest.dispatches[-1]
        facts = DispatchFacts(DispatchState.FAILED, "http.500", tokens_out=1)
        self.write(lambda tx: attempts.fail(tx, dispatch.key, facts, waiting=Waiting() if again else None))
        dispatch.state, dispatch.settled, slot.newest.state = "failed", 1, "failed"
        slot.state, slot.step = ("pending" if again else "failed"), "new"

    @rule(data=st.data())
    @precondition(lambda self: self.having("intended"))
    def lose(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.having("intended")))
        key, waiting = slot.newest.dispatches[-1].key, follows(slot.if_unknown)
        self.write(lambda tx: attempts.lose(tx, key, lost(), waiting=waiting))
        self._lost(slot)

    def _lost(self, slot: Slot) -> None:
        waiting = follows(slot.if_unknown)
        if slot.newest.dispatches[-1].state == "intended":
            slot.newest.dispatches[-1].state = "unknown"
        slot.newest.state = "unknown"
        slot.state, slot.step = ("pending", str(waiting.step)) if waiting else ("unknown", "new")

    @rule(data=st.data())
    @precondition(lambda self: self.having("intended"))
    def refuse(self, data: st.DataObject) -> None:
        dispatch = data.draw(st.sampled_from(self.having("intended"))).newest.dispatches[-1]
        self.write(lambda tx: attempts.refuse(tx, dispatch.key, DispatchFacts(DispatchState.REFUSED, "busy")))
        dispatch.state = "refused"

    @rule(bound=BOUNDS, data=st.data())
    @precondition(lambda self: self.having("refused"))
    def dispatch_again(self, bound: int, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.having("refused")))
        key = slot.newest.dispatches[-1].key
        self._dispatch(slot, bound, lambda tx, holds: attempts.dispatch_again(tx, key, holds))

    @rule(bound=BOUNDS, data=st.data())
    @precondition(lambda self: self.to_resend())
    def resend(self, bound: int, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.to_resend()))
        key = slot.newest.dispatches[-1].key
        if self._dispatch(slot, bound, lambda tx, holds: attempts.reopen(tx, key, holds)):
            slot.newest.state, slot.state = "running", "in_flight"

    def _dispatch(self, slot: Slot, bound: int, step: Callable[[Any, tuple[Hold, ...]], Begun]) -> bool:
        holds = (hold(1, bound, unit="tokens_out"),)
        if self.spent() + bound > self.limit:
            with pytest.raises(BudgetExhausted):
                self.write(lambda tx: step(tx, holds))
            return False
        key = self.write(lambda tx: step(tx, holds)).key
        slot.newest.dispatches.append(Dispatch(key, "intended", bound))
        return True

    @rule(data=st.data())
    @precondition(lambda self: self.having("refused"))
    def give_back(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.having("refused")))
        key = slot.newest.dispatches[-1].key
        self.write(lambda tx: attempts.give_back(tx, key, Waiting(), reason="busy"))
        is_unknown = bool(slot.newest.unknown)
        slot.newest.state = "unknown" if is_unknown else "given_back"
        slot.state, slot.step = "pending", "resend" if is_unknown else "new"

    @rule(used=USES, data=st.data())
    @precondition(lambda self: self.dispatches())
    def late(self, used: int, data: st.DataObject) -> None:
        choices = [
            (slot, attempt, one)
            for slot in self.slots.values()
            for attempt in slot.attempts
            for one in attempt.dispatches
        ]
        slot, attempt, dispatch = data.draw(st.sampled_from(choices))
        facts = DispatchFacts(DispatchState.LATE, tokens_out=used)
        kept = self.write(lambda tx: keep_late(tx, dispatch.key, facts, answer=LATE, answer_digest=LATE_DIGEST))
        assert kept == (dispatch.state == "unknown")
        if not kept:
            return
        dispatch.state, dispatch.settled = "late", used
        is_settled = attempt.state == "unknown" and not attempt.unknown
        if is_settled:
            attempt.state = "late"  # else another dispatch of it is open, and the answer stays with its own
        waits_for_it = slot.state == "unknown" or (slot.state == "pending" and slot.step != "new")
        if attempt is slot.newest and waits_for_it:
            slot.state, slot.step = "failed" if is_settled else "unknown", "new"

    @rule(decision=st.sampled_from(Decision), used=USES, data=st.data())
    @precondition(lambda self: self.unknown())
    def settle(self, decision: Decision, used: int, data: st.DataObject) -> None:
        slot, attempt, dispatch = data.draw(st.sampled_from(self.unknown()))
        told = DispatchFacts(DispatchState.ANSWERED, tokens_out=used)
        landed = decision is Decision.LANDED
        wanted = Settlement(
            dispatch.key.call_id, dispatch.key.dispatch_no, decision, "operator", "r", told,
            ANSWER if landed else None, ANSWER_DIGEST if landed else "",
        )  # fmt: skip
        self.write(lambda tx: settle_unknown(tx, wanted))
        is_open = attempt is slot.newest and slot.state in ("unknown", "pending")
        self._settle_dispatch(dispatch, decision, used, is_open=is_open)
        if attempt.state != "unknown":
            return  # it runs again, or has ended by another of its dispatches
        if attempt.unknown and not (landed and is_open):
            return
        self._settle_slot(slot, attempt, decision, is_open=is_open)
        if self.run_state == "finished" and slot.state == "pending":
            self.run_state = "open"

    def _settle_dispatch(self, dispatch: Dispatch, decision: Decision, used: int, *, is_open: bool) -> None:
        dispatch.state = {
            "landed": "answered" if is_open else "late",
            "failed": "failed",
            "not_landed": "refused",
            "give_up": "abandoned",
        }[decision]
        dispatch.settled = {"landed": used, "failed": used, "not_landed": None, "give_up": dispatch.bound}[decision]

    def _settle_slot(self, slot: Slot, attempt: Attempt, decision: Decision, *, is_open: bool) -> None:
        # Another dispatch of the attempt was done or may have been: then that none was done is not so.
        done = [one.state for one in attempt.dispatches if one.state in ("failed", "abandoned", "late")]
        attempt.state = {
            "landed": "observed" if is_open else "late",
            "failed": "failed",
            "not_landed": done[-1] if done else "not_landed",
            "give_up": "abandoned",
        }[decision]
        if not is_open:
            return
        if decision is Decision.LANDED:
            slot.state, slot.selected, slot.step = "selected", len(slot.attempts), "new"
        elif decision is Decision.NOT_LANDED and not done:
            slot.state, slot.step = "cancelled" if self.run_state == "cancelled" else "pending", "new"
        elif not (slot.state == "pending" and slot.step == "new"):
            slot.state, slot.step = "failed", "new"

    @rule(state=st.sampled_from(run_ends.RETRIABLE))
    def retry(self, state: str) -> None:
        if self.run_state == "cancelled":
            return
        count = self.write(lambda tx: run_ends.retry(tx, self.run_key, state=state, reason=None))
        found = [slot for slot in self.slots.values() if slot.state == state]
        assert count == len(found)
        for slot in found:
            slot.state = "pending"
        if found:
            self.run_state = "open"

    @rule(solitary_deaths_max=st.just(10**6))
    @precondition(lambda self: self.run_state in ("open", "finished"))
    def kill(self, solitary_deaths_max: int) -> None:
        """The coordinator is gone with everything that it had in flight; the next one takes over."""
        self.write(lambda tx: coordinators.release_run(tx, self.coordinator, reason="simulated death", active_us=0))
        self.coordinator = coordinators.open_run(self.ledger, self.run_id, solitary_deaths_max=solitary_deaths_max)
        for slot in self.slots.values():
            if slot.state != "in_flight":
                continue
            if slot.newest.unknown or slot.newest.dispatches[-1].state == "intended":
                self._lost(slot)
            else:
                slot.newest.state, slot.state, slot.step = "interrupted", "pending", "new"

    @rule(limit=st.integers(0, 60))
    def amend(self, limit: int) -> None:
        def work(tx: Any) -> None:
            budgets.amend(tx, self.run_key, 1, limit=limit, reason="r", made_by="me")

        if limit < self.spent():
            with pytest.raises(UsageError):
                self.write(work)
            return
        self.write(work)
        self.limit = limit

    @rule()
    def finish(self) -> None:
        ended = all(slot.state in ENDED for slot in self.slots.values())
        assert self.write(lambda tx: run_ends.finish_run(tx, self.run_key)) is ended
        if ended and self.run_state == "open":
            self.run_state = "finished"

    @rule()
    @precondition(lambda self: any(slot.state == "in_flight" for slot in self.slots.values()))
    def give_up_while_something_is_in_flight(self) -> None:
        with pytest.raises(RunNotResumable):
            self.write(lambda tx: run_ends.abandon_run(tx, self.run_key, reason="r", made_by="me"))

    # What must hold after each.

    @invariant()
    def slots_and_attempts_are_as_the_model_says(self) -> None:
        rows = every(self.ledger, "SELECT state, attempts, selected_attempt, next_step FROM slots ORDER BY slot_no")
        assert [row[:3] for row in rows] == [
            (slot.state, len(slot.attempts), slot.selected) for slot in self.slots.values()
        ]
        # The next step of a slot says something while it waits.
        assert [row[3] for row in rows if row[0] == "pending"] == [
            slot.step for slot in self.slots.values() if slot.state == "pending"
        ]
        found = every(self.ledger, "SELECT slot_no, state FROM attempts ORDER BY slot_no, attempt_no")
        assert found == [(number, one.state) for number, slot in self.slots.items() for one in slot.attempts]

    @invariant()
    def every_dispatch_is_in_the_state_that_is_known_of_it(self) -> None:
        rows = every(self.ledger, "SELECT call_id, dispatch_no, state FROM dispatches")
        assert {(call_id, number): state for call_id, number, state in rows} == {
            (one.key.call_id, one.key.dispatch_no): one.state for one in self.dispatches()
        }

    @invariant()
    def only_the_newest_attempt_is_selected_and_its_answer_is_its_own(self) -> None:
        for slot_no, attempt_no, answer in every(self.ledger, "SELECT slot_no, attempt_no, answer FROM observations"):
            attempt = self.slots[slot_no].attempts[attempt_no - 1]
            assert attempt.state in ("observed", "late")
            assert (answer == '"late"') <= (attempt.state == "late")
        for slot in self.slots.values():
            assert slot.selected in (None, len(slot.attempts))

    @invariant()
    def the_budget_is_what_its_dispatches_hold_and_used_and_holds(self) -> None:
        [(held, settled, overrun, limit)] = every(
            self.ledger, "SELECT held, settled, overrun, limit_amount FROM budgets"
        )
        assert held == sum(one.held for one in self.dispatches())
        assert settled == sum(one.settled or 0 for one in self.dispatches())
        assert limit == self.limit
        assert held + settled <= limit + overrun

    @invariant()
    def the_population_is_whole(self) -> None:
        with self.ledger.reading() as reader:
            counts = run_reads.slot_counts(reader, self.run_key)
        assert sum(counts.values()) == SLOTS
        assert {str(state): count for state, count in counts.items() if count} == {
            state: [slot.state for slot in self.slots.values()].count(state)
            for state in {slot.state for slot in self.slots.values()}
        }


TestLedgerAgainstItsModel = LedgerMachine.TestCase
TestLedgerAgainstItsModel.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
