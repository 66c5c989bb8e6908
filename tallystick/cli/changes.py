"""What ``resume`` may change before it goes on: slots that wait again, and limits of budgets."""

from __future__ import annotations

import getpass
from collections.abc import Sequence

import attrs

from ..ledger import budgets, run_ends
from ..ledger.errors import UsageError
from ..ledger.ledger import Ledger
from ..ledger.records import BudgetPlan
from ..ledger.run_reads import RunRow, own_budgets_of
from ..runner.budget_spec import UNITS, BudgetUnit, shown_amount, unit_key
from ..runner.errors import AmountInvalid

__all__ = ["Amendment", "Changes", "apply_changes", "made_by", "plan_of", "read_changes"]

_KEYS = {form.key: unit for unit, form in UNITS.items()}


@attrs.frozen
class Amendment:
    """A new limit. ``scope`` and ``name`` are None where only the unit was said."""

    unit: BudgetUnit
    limit: int
    scope: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        return f"{unit_key(self.unit)} = {shown_amount(self.unit, self.limit)}"


@attrs.frozen
class Changes:
    """What was asked for; false when nothing was."""

    state: str | None = None
    retry_reason: str | None = None
    amendments: tuple[Amendment, ...] = ()
    reason: str = ""

    def __bool__(self) -> bool:
        return self.state is not None or bool(self.amendments)


def read_changes(*, retry: str | None, amend: Sequence[str], reason: str | None) -> Changes:
    """The options as what they ask for; raises UsageError."""
    state, _, why = (retry or "").partition(":")
    if retry is not None and state not in run_ends.RETRIABLE:
        raise UsageError(
            f"--retry {retry}: only {', '.join(run_ends.RETRIABLE)} can wait again",
            "unknown outcomes are settled with `tallystick reconcile`",
        )
    if amend and not reason:
        raise UsageError("--amend needs a --reason, which is kept in the ledger", "add --reason TEXT")
    if reason and not amend:
        raise UsageError("--reason says why a limit is changed, and none is", "add --amend UNIT=LIMIT, or leave it out")
    return Changes(state or None, why or None, tuple(_amendment(text) for text in amend), reason or "")


def apply_changes(ledger: Ledger, run: RunRow, changes: Changes) -> int:
    """Make the changes, each recorded; returns how many planned observations wait again because of ``--retry``."""
    for one in changes.amendments:
        plan = plan_of(ledger, run, one)
        ledger.write(lambda tx, plan=plan, one=one: budgets.amend(  # type: ignore[misc]
            tx, run.run_key, plan.budget_no, limit=one.limit, reason=changes.reason, made_by=made_by()
        ))  # fmt: skip
    if (state := changes.state) is not None:
        return ledger.write(lambda tx: run_ends.retry(tx, run.run_key, state=state, reason=changes.retry_reason))
    return 0


def plan_of(ledger: Ledger, run: RunRow, one: Amendment) -> BudgetPlan:
    """The budget that is meant; raises UsageError when there is none or several."""
    with ledger.reading() as reader:
        plans = [state.plan for state in own_budgets_of(reader, run.run_key)]
    fitting = [
        plan
        for plan in plans
        if plan.unit == one.unit and (one.scope is None or (plan.scope, plan.scope_value) == (one.scope, one.name))
    ]
    for_run = [plan for plan in fitting if plan.scope == "run"]
    chosen = for_run or fitting
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(_written(plan) for plan in plans) or "none"
    what = "several budgets count" if chosen else "no budget counts"
    raise UsageError(f"{what} {unit_key(one.unit)}", f"name one of the run's budgets: {names}")


def made_by() -> str:
    """Who decides, as the ledger records it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "unnamed"  # a container's user without an entry
    return f"operator:{name}"


def _written(plan: BudgetPlan) -> str:
    unit = unit_key(plan.unit)
    return unit if plan.scope == "run" else f"{plan.scope}:{plan.scope_value}:{unit}"


def _amendment(text: str) -> Amendment:
    left, equals, amount = text.rpartition("=")
    *scope, key = left.rsplit(":", 1)
    kind, _, name = "".join(scope).partition(":")
    unit = _KEYS.get(key)
    if not equals or unit is None or (scope and (kind not in ("variant", "role", "run"))):
        raise UsageError(
            f"--amend {text} is no new limit",
            f"write UNIT=LIMIT or variant:NAME:UNIT=LIMIT, with a unit of {', '.join(_KEYS)}",
        )
    return Amendment(unit, _limit(unit, amount, text), kind if scope else None, name if scope else None)


def _limit(unit: BudgetUnit, amount: str, text: str) -> int:
    value: object = amount
    try:
        if unit is BudgetUnit.MILLISECONDS:
            value = float(amount) if "." in amount else int(amount)
        elif unit is not BudgetUnit.NANOUSD:
            value = int(amount)
        return UNITS[unit].parse(value)
    except (AmountInvalid, ValueError) as cause:
        what = f"--amend {text}: {amount} is no limit of {unit_key(unit)}"
        raise UsageError(what, "write a number, such as 100 or 2.50") from cause
