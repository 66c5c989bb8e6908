"""What the budgets of a run held and had settled at one of its events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import attrs

from .canonical import stored_json
from .evaluations import EVALUATION_SCOPE
from .history import RunHistory
from .history_effects import INTENTS
from .ledger import Reader
from .records import BudgetPlan, DispatchFacts
from .run_reads import BudgetState, budgets_of
from .states import DispatchState

__all__ = ["BudgetSteps", "budgets_at", "budgets_by_replay"]

_ENDS: Final = frozenset(
    {
        "attempt.failed",
        "attempt.observed",
        "dispatch.late",
        "call.ended",
        "dispatch.refused",
        "dispatch.settled",
        "judgment.call_ended",
        "turn.committed",
    }
)
_AMENDS: Final = frozenset({"budget.amended", "budget.bound_amended"})
_TELLING: Final = INTENTS | _ENDS | _AMENDS

_Amounts: TypeAlias = tuple[tuple[str, int], ...]
_Step: TypeAlias = (
    "tuple[Literal['held'], _Amounts] | tuple[Literal['ended'], _Key] | tuple[Literal['amended'], _Change]"
)
_Key: TypeAlias = tuple[str, int]
"""A dispatch: the id of its call, and its number."""
_Change: TypeAlias = tuple[str, dict[str, Any]]
"""The kind of an event, and its body."""


class BudgetSteps:
    """What the events of a run do to its budgets, in their order and without the rest of them.

    For who goes through the events anyway: reading and decoding them again is most of what a replay costs.
    """

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._alike: dict[_Step, _Step] = {}

    def note(self, kind: str, body: dict[str, Any]) -> None:
        """Take the next event."""
        step = _step(kind, body)
        if step is not None:
            # Most dispatches hold what others hold: that is kept once.
            self._steps.append(self._alike.setdefault(step, step) if step[0] == "held" else step)

    def __iter__(self) -> Iterator[_Step]:
        return iter(self._steps)


def _step(kind: str, body: dict[str, Any]) -> _Step | None:
    if kind in INTENTS:
        return ("held", tuple(body["held"].items())) if "held" in body else None
    if kind in _ENDS:
        # A judge's call may be unknown, and what it holds stays held.
        is_unknown = body.get("state") == DispatchState.UNKNOWN
        return None if is_unknown else ("ended", (body["call"], body["dispatch"]))
    return ("amended", (kind, body)) if kind in _AMENDS else None


@attrs.define
class _Sums:
    """A budget under way; changed in place, because a run has hundreds of thousands of events."""

    plan: BudgetPlan
    held: int = 0
    settled: int = 0
    overrun: int = 0
    unknown_uses: int = 0

    @property
    def state(self) -> BudgetState:
        return BudgetState(self.plan, self.held, self.settled, self.overrun, self.unknown_uses)

    def settle(self, one: _Reserved) -> None:
        self.held -= one.held
        self.settled += one.settled or 0
        self.overrun = max(self.overrun, self.held + self.settled - self.plan.limit_amount)
        self.unknown_uses += int(one.uses_unknown)

    def amend(self, **values: Any) -> None:
        self.plan = attrs.evolve(self.plan, **values)


class _Reserved(NamedTuple):
    """One reservation as it ended."""

    budget_no: int
    held: int
    settled: int | None
    uses_unknown: bool


def budgets_at(reader: Reader, history: RunHistory) -> list[BudgetState]:
    """The run's budgets as they stood; of its newest event, as their rows say."""
    return budgets_of(reader, history.run_key) if history.is_newest else budgets_by_replay(reader, history)


def budgets_by_replay(reader: Reader, history: RunHistory, steps: Iterable[_Step] | None = None) -> list[BudgetState]:
    """The same from reservations and events alone; goes through both, unless ``steps`` has what the events tell."""
    planned = _first_amendments(reader, history.run_key)
    states = {
        state.plan.budget_no: _before(state, planned.get(state.plan.budget_no, {}))
        for state in budgets_of(reader, history.run_key)
    }
    reserved = _reservations(reader, history)
    for step in _steps_of(reader, history) if steps is None else steps:
        if step[0] == "held":
            for number, amount in step[1]:
                states[int(number)].held += amount
        elif step[0] == "ended":
            for one in reserved.pop(step[1], ()):
                states[one.budget_no].settle(one)
        else:
            _amend(states, *step[1])
    return [found for one in states.values() if _was_there(found := one.state, history)]


def _steps_of(reader: Reader, history: RunHistory) -> Iterator[_Step]:
    rows = reader.each(
        "SELECT kind, body FROM events WHERE run_key = ? AND event_no <= ? ORDER BY event_no",
        (history.run_key, history.event_no),
    )
    for kind, text in rows:
        if kind in _TELLING and (step := _step(kind, stored_json(text))) is not None:
            yield step


def _amend(states: dict[int, _Sums], kind: str, body: dict[str, Any]) -> None:
    if kind == "budget.amended":
        states[body["budget"]].amend(limit_amount=body["new"])
    else:
        kind_now, bound = body["new"]
        states[body["budget"]].amend(kind=kind_now, bound_amount=bound)


def _was_there(state: BudgetState, history: RunHistory) -> bool:
    """An evaluation brings its own budgets when it is created."""
    plan = state.plan
    return plan.scope != EVALUATION_SCOPE or plan.scope_value in history.evaluation_ids.values()


def _first_amendments(reader: Reader, run_key: int) -> dict[int, dict[str, Any]]:
    """What each budget was before the first amendment of each kind, by number and kind."""
    found: dict[int, dict[str, Any]] = {}
    for kind, text in reader.each(
        "SELECT kind, body FROM events WHERE run_key = ? AND kind IN ('budget.amended', 'budget.bound_amended')"
        " ORDER BY event_no",
        (run_key,),
    ):
        body = stored_json(text)
        found.setdefault(body["budget"], {}).setdefault(kind, body["old"])
    return found


def _before(state: BudgetState, first: dict[str, Any]) -> _Sums:
    """The budget as it was planned."""
    plan = state.plan
    limit = first.get("budget.amended", plan.limit_amount)
    kind, bound = first.get("budget.bound_amended", (plan.kind, plan.bound_amount))
    return _Sums(attrs.evolve(plan, limit_amount=limit, kind=kind, bound_amount=bound))


def _reservations(reader: Reader, history: RunHistory) -> dict[_Key, tuple[_Reserved, ...]]:
    """Those that have ended by then, by their dispatch."""
    found: dict[_Key, tuple[_Reserved, ...]] = {}
    open_ones = history.open_dispatches
    rows = reader.each(
        "SELECT r.call_id, r.dispatch_no, r.budget_no, r.held, r.settled, r.state, b.unit, d.state, d.duration_us,"
        " d.wire_sends, d.tokens_in, d.tokens_out, d.cost_nanousd FROM reservations r"
        " JOIN budgets b ON b.run_key = r.run_key AND b.budget_no = r.budget_no"
        " JOIN dispatches d ON d.call_id = r.call_id AND d.dispatch_no = r.dispatch_no"
        " WHERE r.run_key = ? AND r.state <> 'held'",
        (history.run_key,),
    )
    alike: dict[tuple[int, int, int | None, bool], tuple[_Reserved, ...]] = {}
    for call_id, dispatch_no, budget_no, held, settled, state, unit, *facts in rows:
        key = (call_id, dispatch_no)
        if key in open_ones:
            continue
        unknown = (
            unit != "dispatches"
            and state == "settled"
            and _is_use_unknown(unit, facts, decided=key in history.settled_by_decision)
        )
        told = (budget_no, held, settled, unknown)
        ones = alike.get(told)  # most are like others, and a run has as many as calls
        if ones is None:
            ones = alike[told] = (_Reserved(*told),)
        found[key] = (*found[key], *ones) if key in found else ones
    return found


def _is_use_unknown(unit: str, facts: list[Any], *, decided: bool) -> bool:
    """Whether the bound was settled because nobody said what was used; as `budgets.settle` sees it."""
    state, duration, sends, tokens_in, tokens_out, cost = facts
    if unit == "dispatches":
        return False
    # Who settles an unknown outcome knows no time, and the row keeps that of the send which was lost.
    took = None if decided else duration
    told = DispatchFacts(
        DispatchState(state), duration_us=took, wire_sends=sends, tokens_in=tokens_in, tokens_out=tokens_out,
        cost_nanousd=cost,
    )  # fmt: skip
    return (state == DispatchState.ABANDONED and unit == "milliseconds") or told.used(unit) is None
