"""Forking a run: a linked new one that reuses what has not changed, and pays for the rest.

An observation is reused where the case's content, what the variant's target is, and the repetition are the same. What
was unknown there stays unknown. Nothing is called, and nothing of the earlier run changes.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from ..ledger.canonical import canonical_text, parse_json
from ..ledger.errors import ContentsLeftOut, UsageError
from ..ledger.fork_reads import Ancestor, cases_of_run, read_ancestor
from ..ledger.forks import Kept, KeptUnknown, TakenOver
from ..ledger.history_budgets import budgets_at
from ..ledger.ledger import Ledger
from ..ledger.local_facts import folder_of
from ..ledger.planning import CasePlan, create_run
from ..ledger.records import EVALUATION_SCOPE
from ..ledger.run_reads import BudgetState, RunRow, find_run
from ..ledger.states import SlotState
from ..ledger.views import Views
from .descriptions import Adapters, Description, case_plans, describe, describe_again, run_plan
from .fork_budgets import carried_amounts, fork_budgets, with_carried
from .fork_document import ForkCases, ForkOutlook, ForkVariant
from .identity import Section, compare
from .protocols import GIVEN, Case, User
from .sessions import stored_identity, stored_order
from .stored_cases import case_of
from .work_order import WorkOrder
from .work_order_budgets import read_budgets
from .work_order_files import Place
from .work_order_fork import ForkFailed

__all__ = ["Fork", "fork_run", "planned_fork"]

_OWN_PROGRAM: Final = frozenset({"guard", "harness"})


@attrs.define
class _Side:
    """A variant of the fork while it is gone through; ``from_no`` is the earlier run's, 0: there is no such one."""

    name: str
    from_name: str | None
    from_no: int
    changes: list[str]
    reused: int = 0
    contaminated: int = 0
    unknown: int = 0
    failed: int = 0
    to_pay: int = 0
    again: Counter[str] = attrs.field(factory=Counter)

    def part(self) -> ForkVariant:
        planned = self.reused + self.unknown + self.failed + self.to_pay
        return ForkVariant(
            name=self.name, taken_from=self.from_name, changes=self.changes, planned=planned, reused=self.reused,
            contaminated=self.contaminated, unknown=self.unknown, failed=self.failed, to_pay=self.to_pay,
            again=dict(sorted(self.again.items())),
        )  # fmt: skip


@attrs.frozen
class Fork:
    """A fork that is planned in this process and not written: what it takes over, and what is said of it."""

    description: Description
    run: RunRow
    taken: TakenOver
    carried: Mapping[tuple[str, str, str], int]
    outlook: ForkOutlook
    is_same_order: bool


def planned_fork(
    ledger: Ledger,
    run_id: str,
    adapters: Adapters,
    *,
    order: WorkOrder | None = None,
    targets: Mapping[str, Any] | None = None,
    judges: Mapping[str, Any] | None = None,
    user: User | None = None,
    folder: Path | None = None,
    ledger_option: str = "",
) -> Fork:
    """What a fork of the run would be, by another work order or by its own; writes nothing and calls nothing.

    Raises ContentsLeftOut, UsageError for a run that only its own program can execute, and what `describe` raises.
    """
    with ledger.reading() as reader:
        run = find_run(reader, run_id)
        _refuse_unfit(run, reader.row("SELECT left_out FROM runs WHERE run_key = ?", (run.run_key,))[0])
        known = folder or folder_of(reader, run.run_id)
    if order is None:
        own = _own_order(run, known, targets, judges, user)
        description = describe_again(own, run, adapters)
    else:
        description = describe(order, adapters)
    with Views.of(ledger) as views:
        ancestor = read_ancestor(views, run, now_us=ledger.clock.now_us())
        if not ancestor.is_whole:
            raise _not_ours(run)
        standing = budgets_at(views.turn(), ancestor.history)
        before = [state for state in standing if state.plan.scope != EVALUATION_SCOPE]
        return _planned(views, ancestor, description, before, ledger, ledger_option, is_same_order=order is None)


def fork_run(ledger: Ledger, fork: Fork) -> ForkOutlook:
    """Write the fork down, hidden until it is whole; returns the outlook with the new run's id."""
    plan = run_plan(fork.description)
    plan = attrs.evolve(plan, budgets=with_carried(plan.budgets, fork.carried), taken=fork.taken)
    rows: Iterator[CasePlan]
    rows = cases_of_run(ledger, fork.run.run_key) if fork.is_same_order else case_plans(fork.description)
    made = create_run(ledger, plan, rows)
    return fork.outlook.model_copy(
        update={"run": made.run_id, "command": fork.outlook.command.replace("RUN", made.run_id, 1)}
    )


def _refuse_unfit(run: RunRow, left_out: str | None) -> None:
    if left_out is not None:
        raise ContentsLeftOut(
            f"run {run.run_id} came without all of its contents, and cannot be forked here",
            "import a snapshot that was exported without --slots and --redact", run.run_id,
        )  # fmt: skip
    document: Any = parse_json(run.work_order)
    sides = [side["target"] for side in document["variants"].values()]
    if any(one["kind"] == GIVEN and one.get("of") in _OWN_PROGRAM for one in sides):
        raise _not_ours(run)


def _not_ours(run: RunRow) -> UsageError:
    return UsageError(
        f"run {run.run_id} belongs to a program's own guard or harness, and only that can plan for it",
        "run the program under another name; what it asks again is paid for again",
    )


def _own_order(
    run: RunRow,
    folder: Path | None,
    targets: Mapping[str, Any] | None,
    judges: Mapping[str, Any] | None,
    user: User | None,
) -> WorkOrder:
    """The run's own work order with the limits that it was last seen with."""
    order = stored_order(run, folder=folder, targets=targets, judges=judges, user=user)
    settings: Any = parse_json(run.settings)
    place = Place(f"run {run.run_id}", ("budgets",))
    return order.replaced(
        budgets=read_budgets(settings["budgets"], variants=list(order.variants), place=place, may_be_told=True)
    )


def _planned(
    views: Views,
    ancestor: Ancestor,
    description: Description,
    before: list[BudgetState],
    ledger: Ledger,
    ledger_option: str,
    *,
    is_same_order: bool,
) -> Fork:
    sides, cases = _sides(ancestor, description), _cases(ancestor, description, is_same_order=is_same_order)
    taken = _taken(views, ancestor, sides, cases, description)
    carried = carried_amounts(description, before)
    order, parts = description.order, [side.part() for side in sides]
    same = sum(1 for number in cases if number)
    outlook = ForkOutlook(
        ledger=str(ledger.path), run=None, name=order.name, forked_from=ancestor.run.run_id,
        at_event=ancestor.history.event_no, planned=sum(part.planned for part in parts),
        reused=sum(part.reused for part in parts), unknown=sum(part.unknown for part in parts),
        failed=sum(part.failed for part in parts), to_pay=sum(part.to_pay for part in parts),
        cases=ForkCases(same=same, new=len(cases) - same, dropped=len(ancestor.cases) - same), variants=parts,
        budgets_are=order.fork.budgets.value, failed_are=order.fork.failed.value,
        budgets=fork_budgets(
            description, {part.name: part.to_pay for part in parts}, carried,
            cases=_stored_cases(ledger, ancestor.run) if is_same_order else None,
        ),
        judges=[judge.name for judge in description.judges], command=f"tallystick resume RUN{ledger_option}",
    )  # fmt: skip
    return Fork(description, ancestor.run, taken, carried, outlook, is_same_order)


def _stored_cases(ledger: Ledger, run: RunRow) -> Iterator[Case]:
    """Its cases from the ledger: their source may be gone by now, or have changed."""
    for one in cases_of_run(ledger, run.run_key):
        yield case_of(one.case_id, one.input, one.expected, one.metadata)


def _cases(ancestor: Ancestor, description: Description, *, is_same_order: bool) -> array[int]:
    """For each case of the fork, in its order, the number of the very same one in the earlier run; 0: there is none."""
    if is_same_order:
        return array("q", range(1, len(ancestor.cases) + 1))
    return array("q", (ancestor.cases.get(digest, 0) for _, digest in description.order.cases.digested()))


def _sides(ancestor: Ancestor, description: Description) -> list[_Side]:
    """The fork's variants; each takes over from that of its name, else from one that has another name in the fork."""
    then, now = (
        _told(document) for document in (stored_identity(ancestor.run), description.identity)
    )  # by name, what the answers of each depend on
    free = [name for name in then if name not in now]
    sides = []
    for name, told in now.items():
        same = next((other for other in ([name] if name in then else free) if _is_same(then[other], told)), None)
        if same in free:
            free.remove(same)
        changes = [] if same is not None else _changes(name, then.get(name), told)
        sides.append(_Side(name, same, 0 if same is None else ancestor.variants[same], changes))
    return sides


def _told(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    identity = document[Section.IDENTITY.value]
    talk = {"conversation": identity["conversation"]} if "conversation" in identity else {}
    return {name: {"target": side["target"], **talk} for name, side in identity["variants"].items()}


def _is_same(then: dict[str, Any], now: dict[str, Any]) -> bool:
    return canonical_text(then) == canonical_text(now)


def _changes(name: str, then: dict[str, Any] | None, now: dict[str, Any]) -> list[str]:
    if then is None:
        return [f"the earlier run has no variant {name}"]
    found = compare(
        *({"identity_version": 1, Section.IDENTITY.value: {name: side}} for side in (then, now))
    )  # of what is in both documents, so that no default of ours counts
    return [str(one) for one in found]


def _taken(
    views: Views, ancestor: Ancestor, sides: list[_Side], cases: array[int], description: Description
) -> TakenOver:
    """Go through the fork's planned observations in their order; counts them by variant on the way."""
    reused: list[Kept] = []
    failed: list[Kept] = []
    unknown: list[KeptUnknown] = []
    keeps_failed = description.order.fork.failed is ForkFailed.KEEP
    slot_no = 0
    for repetition in range(1, description.order.repetitions + 1):
        for case_no in cases:
            for side in sides:
                slot_no += 1
                from_slot = ancestor.slot_no(case_no, side.from_no, repetition)
                state = ancestor.state_of(from_slot) if from_slot else None
                if state is SlotState.SELECTED:
                    reused.append(ancestor.kept(slot_no, from_slot))
                    side.reused += 1
                    side.contaminated += (from_slot, ancestor.history.attempts[from_slot]) in (
                        ancestor.history.contaminated
                    )
                elif state is SlotState.UNKNOWN:
                    unknown.append(ancestor.kept_unknown(views.turn(), slot_no, from_slot))
                    side.unknown += 1
                elif state is SlotState.FAILED and keeps_failed and ancestor.history.attempts[from_slot]:
                    failed.append(ancestor.kept(slot_no, from_slot))
                    side.failed += 1
                else:
                    side.to_pay += 1
                    if state is not None:
                        side.again[state.value] += 1
    run = ancestor.run
    return TakenOver(run.run_key, run.run_id, ancestor.history.event_no, reused, failed, unknown)
