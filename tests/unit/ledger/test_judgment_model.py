"""Judgments against a small model of what the ledger promises of them, under any sequence of steps (I3, I6, I8, I9)."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tallystick.ledger.canonical import digest_of_bytes
from tallystick.ledger.checks import Severity, check_ledger
from tallystick.ledger.errors import BudgetExhausted, TransitionRefused
from tallystick.ledger.evaluation_holds import EvaluationHold, leave_evaluation, open_evaluation
from tallystick.ledger.evaluations import (
    EvaluationRow,
    create_evaluation,
    let_retried_wait,
    write_set,
)
from tallystick.ledger.judgment_calls import (
    JudgeIntent,
    begin_judgment,
    dispatch_judgment_again,
    end_judgment_call,
    undo_judgment,
)
from tallystick.ledger.judgments import let_wait
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.planning import JudgePlan
from tallystick.ledger.records import DispatchFacts, DispatchKey, JudgmentKey, JudgmentRow
from tallystick.ledger.states import DispatchState, IfUnknown
from tallystick.ledger.verdicts import NoVerdictReason
from tests.unit.ledger.factories import begin, budget, evaluation_plan, every, hold, new_ledger, new_run, observe

SLOTS, SAMPLES = 1, 2  # few, so that histories come to their end
ASK = digest_of_bytes(b"ask")
BOUNDS = st.integers(0, 15)
USES = st.integers(0, 20)
FOLLOWS = st.sampled_from((IfUnknown.KEEP, IfUnknown.REPEAT))


@attrs.define
class Dispatch:
    key: DispatchKey
    bound: int
    state: str = "intended"
    settled: int = 0

    @property
    def held(self) -> int:
        return self.bound if self.state in ("intended", "unknown") else 0


@attrs.define
class Judgment:
    key: JudgmentKey
    state: str = "pending"
    reason: str | None = None
    if_unknown: IfUnknown = IfUnknown.KEEP
    calls: int = 0
    dispatches: list[Dispatch] = attrs.field(factory=list)

    @property
    def newest(self) -> Dispatch:
        return self.dispatches[-1]


class JudgmentMachine(RuleBasedStateMachine):
    """One judge that calls, twice for one observation, within one budget."""

    ledger: Ledger
    row: EvaluationRow
    held: EvaluationHold

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        place = Path(self.folder.name) / "ledger"
        place.mkdir()
        self.ledger = new_ledger(place)
        self.names = itertools.count()
        self.limit = 0
        self.is_ended = False
        self.judgments: list[Judgment] = []

    def teardown(self) -> None:
        found = check_ledger(self.ledger)
        self.ledger.close()
        self.folder.cleanup()
        assert [one for one in found if one.severity is Severity.ERROR] == []

    @initialize(limit=st.integers(0, 60))
    def plan(self, limit: int) -> None:
        self.limit = limit
        run = new_run(self.ledger, SLOTS, budgets=(budget(unit="tokens_out", limit=limit),))
        for slot_no in range(1, SLOTS + 1):
            key = begin(self.ledger, run.run_key, slot_no).key
            self.write(lambda tx, key=key: observe(tx, key))
        judge = JudgePlan("strict", "model", "{}", samples=SAMPLES)
        plan = evaluation_plan("again", judge)
        self.row = self.write(lambda tx: create_evaluation(tx, run.run_id, plan))
        self.held = open_evaluation(self.ledger, self.row)
        while not self.write(lambda tx: write_set(tx, self.row)):
            pass
        number = self.row.evaluation_no
        self.judgments = [
            Judgment(JudgmentKey(run.run_key, number, 1, slot, 1, sample))
            for slot in range(1, SLOTS + 1)
            for sample in range(1, SAMPLES + 1)
        ]

    def write(self, work: Any) -> Any:
        return self.ledger.write(work)

    def spent(self) -> int:
        return sum(one.held + one.settled for each in self.judgments for one in each.dispatches)

    def having(self, state: str) -> list[Judgment]:
        """The judgments that a judge is at, with their last dispatch in that state."""
        return [one for one in self.judgments if one.state == "judging" and one.newest.state == state]

    # Steps.

    @rule(at=st.integers(0, SLOTS * SAMPLES - 1), bound=BOUNDS, if_unknown=FOLLOWS)
    def begin(self, at: int, bound: int, if_unknown: IfUnknown) -> None:
        one, holds = self.judgments[at], (hold(1, bound, unit="tokens_out"),)
        wanted = JudgeIntent(one.key, f"call-{next(self.names)}", "{}", b"ask", ASK, 3, if_unknown, holds)
        waits = one.state == "pending"
        if not waits or self.spent() + bound > self.limit:
            with pytest.raises(BudgetExhausted if waits else TransitionRefused):
                self.write(lambda tx: begin_judgment(tx, wanted))
            return
        sent = self.write(lambda tx: begin_judgment(tx, wanted))
        one.state, one.if_unknown, one.calls = "judging", if_unknown, one.calls + 1
        one.dispatches.append(Dispatch(sent, bound))
        self.is_ended = False

    @rule(used=st.none() | USES, passed=st.booleans() | st.none(), data=st.data())
    @precondition(lambda self: self.having("intended"))
    def answer(self, used: int | None, passed: bool | None, data: st.DataObject) -> None:
        """With ``passed`` None the reply is none that can be read."""
        one = data.draw(st.sampled_from(self.having("intended")))
        reason = NoVerdictReason.MALFORMED_VERDICT if passed is None else None
        facts = DispatchFacts(DispatchState.ANSWERED, tokens_out=used)
        self._end(one, facts, self._row(one, passed, reason))
        one.newest.state, one.newest.settled = "answered", one.newest.bound if used is None else used

    @rule(data=st.data())
    @precondition(lambda self: self.having("intended"))
    def fail(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.having("intended")))
        self._end(one, DispatchFacts(DispatchState.FAILED, "http.500", tokens_out=1), None)
        one.newest.state, one.newest.settled = "failed", 1

    @rule(data=st.data())
    @precondition(lambda self: self.having("intended"))
    def lose(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.having("intended")))
        keeps = one.if_unknown is IfUnknown.KEEP
        row = self._row(one, None, NoVerdictReason.UNKNOWN_OUTCOME) if keeps else None
        self._end(one, DispatchFacts(DispatchState.UNKNOWN, "timeout"), row)
        one.newest.state = "unknown"

    @rule(data=st.data())
    @precondition(lambda self: self.having("intended"))
    def undo(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.having("intended")))
        self.write(lambda tx: undo_judgment(tx, one.key, one.newest.key))
        one.state, one.newest.state = "pending", "refused"

    @rule(data=st.data())
    @precondition(lambda self: self.having("intended"))
    def refuse(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.having("intended")))
        facts = DispatchFacts(DispatchState.REFUSED, "busy")
        self.write(lambda tx: end_judgment_call(tx, one.key, one.newest.key, facts, None, goes_on=True))
        one.newest.state = "refused"

    @rule(bound=BOUNDS, data=st.data())
    @precondition(lambda self: self.having("refused"))
    def again(self, bound: int, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.having("refused")))
        holds, sent = (hold(1, bound, unit="tokens_out"),), one.newest.key
        if self.spent() + bound > self.limit:
            with pytest.raises(BudgetExhausted):
                self.write(lambda tx: dispatch_judgment_again(tx, one.key, sent, holds))
            return
        key = self.write(lambda tx: dispatch_judgment_again(tx, one.key, sent, holds))
        one.dispatches.append(Dispatch(key, bound))

    @rule(data=st.data())
    @precondition(lambda self: self.having("refused"))
    def give_up_for_now(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.having("refused")))
        self.write(lambda tx: let_wait(tx, one.key))
        one.state = "pending"

    @rule(reason=st.sampled_from((NoVerdictReason.MALFORMED_VERDICT, NoVerdictReason.UNKNOWN_OUTCOME)))
    def retry(self, reason: NoVerdictReason) -> None:
        found = [one for one in self.judgments if one.reason == reason]
        assert self.write(lambda tx: let_retried_wait(tx, self.row, reason=reason)) == len(found)
        for one in found:
            one.state, one.reason = "pending", None
        self.is_ended = self.is_ended and not found

    @rule()
    def kill(self) -> None:
        """The process is gone with everything that it was at; the next one takes over."""
        self.write(lambda tx: leave_evaluation(tx, self.held, reason="simulated death"))
        self.is_ended = self._is_whole()
        self.held = open_evaluation(self.ledger, self.row, solitary_deaths_max=10**6)
        for one in self.judgments:
            if one.state != "judging":
                continue
            was_open = one.newest.state == "intended"
            one.newest.state = "unknown" if was_open else one.newest.state
            keeps = was_open and one.if_unknown is IfUnknown.KEEP
            one.state, one.reason = ("no_verdict", NoVerdictReason.UNKNOWN_OUTCOME) if keeps else ("pending", None)

    @rule()
    @precondition(lambda self: not self.having("intended") and not self.having("refused"))
    def leave(self) -> None:
        ended = self.write(lambda tx: leave_evaluation(tx, self.held, reason="ended"))
        self.is_ended = self._is_whole()
        assert ended == self.is_ended
        self.held = open_evaluation(self.ledger, self.row)

    def _is_whole(self) -> bool:
        return all(one.state in ("judged", "no_verdict") for one in self.judgments)

    def _row(self, one: Judgment, passed: bool | None, reason: NoVerdictReason | None) -> JudgmentRow:
        key, call = one.key, one.newest.key.call_id
        return JudgmentRow(
            1, key.slot_no, key.attempt_no, passed=passed, reason=reason, sample_no=key.sample_no,
            call_id=None if reason is NoVerdictReason.UNKNOWN_OUTCOME else call,
        )  # fmt: skip

    def _end(self, one: Judgment, facts: DispatchFacts, row: JudgmentRow | None) -> None:
        self.write(lambda tx: end_judgment_call(tx, one.key, one.newest.key, facts, row))
        if row is None:
            one.state = "pending"
        else:
            one.state, one.reason = ("no_verdict", row.reason) if row.reason else ("judged", None)

    # What must hold after each.

    @invariant()
    def every_judgment_is_as_the_model_says(self) -> None:
        if not self.judgments:
            return
        rows = every(
            self.ledger, "SELECT state, reason, tries FROM judgments WHERE evaluation_no = ?"
            " ORDER BY slot_no, sample_no", self.row.evaluation_no,
        )  # fmt: skip
        assert rows == [(one.state, one.reason, one.calls) for one in self.judgments]

    @invariant()
    def every_dispatch_is_in_the_state_that_is_known_of_it(self) -> None:
        rows = every(
            self.ledger, "SELECT d.call_id, d.dispatch_no, d.state FROM dispatches d JOIN calls c"
            " ON c.call_id = d.call_id WHERE c.owner = 'judgment'",
        )  # fmt: skip
        known = [one for each in self.judgments for one in each.dispatches]
        assert {(call, number): state for call, number, state in rows} == {
            (one.key.call_id, one.key.dispatch_no): one.state for one in known
        }

    @invariant()
    def the_budget_is_what_is_held_and_used_and_holds(self) -> None:
        for held, settled, overrun, limit in every(
            self.ledger, "SELECT held, settled, overrun, limit_amount FROM budgets WHERE scope = 'run'"
        ):
            assert held == sum(one.held for each in self.judgments for one in each.dispatches)
            assert settled == sum(one.settled for each in self.judgments for one in each.dispatches)
            assert held + settled <= limit + overrun

    @invariant()
    def an_evaluation_has_ended_only_when_nothing_of_it_waits(self) -> None:
        if self.judgments:
            [(ended,)] = every(
                self.ledger, "SELECT ended_us IS NOT NULL FROM evaluations WHERE evaluation_no = ?",
                self.row.evaluation_no,
            )  # fmt: skip
            assert bool(ended) == self.is_ended
            assert not ended or self._is_whole()


TestJudgmentsAgainstTheirModel = JudgmentMachine.TestCase
TestJudgmentsAgainstTheirModel.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
