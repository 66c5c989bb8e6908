"""A run described before it is executed: its targets, judges, cases, identity and worst cost. Makes no call.

Adapters are looked up by the caller, so that the runner knows none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from ..ledger.canonical import JsonValue, canonical_text, digest_of_value, escaped_text, parse_json
from ..ledger.errors import CaseFileInvalid, WorkOrderInvalid
from ..ledger.planning import CasePlan, JudgePlan, RunPlan, VariantPlan
from ..ledger.records import BudgetPlan
from ..ledger.run_reads import RunRow
from .case_files import CasesDigest, survey
from .case_selection import CaseCounts, ChosenCases
from .conversations import (
    Conversation,
    PathMaker,
    Unsayable,
    UserMaker,
    build_conversation,
    build_user,
    refuse_unfit_targets,
)
from .identity import Section, evaluation_document, identity_digest, identity_document
from .judge_protocols import is_calling, needs_of
from .price_use import PricesMaker, PricesUsed, give_prices, prices_used
from .protocols import Case, Judge, Missing, Target
from .request_bounds import refuse_unbounded
from .work_order import WorkOrder
from .work_order_budgets import budget_tables
from .work_order_build import Maker, build_judges, build_targets
from .work_order_conversation import conversation_limits
from .work_order_device import device_table
from .work_order_execution import execution_table
from .work_order_gates import gates_table, refuse_unreachable_gates
from .work_order_judges import JudgeSettings, settings_of_judges

__all__ = [
    "Adapters",
    "Description",
    "case_plans",
    "describe",
    "describe_again",
    "fingerprint_of",
    "judge_plans",
    "run_plan",
    "settings_of",
]


@attrs.frozen
class Adapters:
    """Where targets, judges, users and prices come from; ``path`` compiles a place in a case."""

    target: Maker
    judge: Maker
    user: UserMaker
    path: PathMaker
    prices: PricesMaker


@attrs.frozen
class Description:
    """A work order with everything that it names found and checked.

    ``turns`` counts the messages of all scripts together, once a case; None where no script says them. ``population``
    counts the cases that the work order's were chosen from, None where all are asked or where they were not gone
    through. ``without_expected`` counts those that do not say what is expected, by the judge that needs it.
    """

    order: WorkOrder
    targets: Mapping[str, Target]
    judges: Sequence[Judge]
    case_count: int
    cases_digest: str
    identity: Mapping[str, JsonValue]
    digest: str
    conversation: Conversation | None = None
    turns: int | None = None
    prices: tuple[PricesUsed, ...] = ()
    population: int | None = None
    without_expected: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def planned(self) -> int:
        """The population: cases × variants × repetitions."""
        return self.case_count * len(self.targets) * self.order.repetitions

    @property
    def dispatches_max(self) -> int:
        """The most dispatches that the limits of the execution allow, budgets aside."""
        execution = self.order.execution
        calls = 1 if self.conversation is None else self.conversation.spec.turns_max
        return self.planned * calls * execution.attempts_max * execution.dispatches_max


def describe(order: WorkOrder, adapters: Adapters) -> Description:
    """Find and check everything that the work order names; raises a UsageError at the first fault."""
    order, targets, judges = _built(order, adapters)
    refuse_unreachable_gates(order.gates, judges, source=order.source)
    user = build_user(order, adapters.user)
    talk = build_conversation(order, user, path=adapters.path)
    turns, missing, unsaid = [0], [0], [0]
    is_scripted = talk is not None and user is None

    def count(case: Case) -> None:
        unsaid[0] += isinstance(case.expected, Missing)
        if not is_scripted:
            return
        try:
            turns[0] += 0 if talk is None else len(talk.messages_of(case))
        except Unsayable as problem:  # the case will fail, alone
            missing[0] += problem.reason == "turns.missing"

    source, counts = order.cases, CaseCounts()
    if isinstance(source, ChosenCases):
        source = attrs.evolve(source, counts=counts)
    needing = [judge.name for judge in judges if "expected" in needs_of(judge)]
    found = survey(source, look=count if is_scripted or needing else None)
    if talk is not None and found.count and missing[0] == found.count:
        raise WorkOrderInvalid(
            f"{order.source}: conversation.turns: no case has a list of messages at {talk.spec.turns}",
            "Name the path of the messages in a case's input, as in $.turns", place="conversation.turns",
        )  # fmt: skip
    described = _described(order, targets, judges, talk, found.value(), found.count)
    return attrs.evolve(
        described, turns=turns[0] if is_scripted else None, population=counts.population or None,
        without_expected=dict.fromkeys(needing, unsaid[0]) if unsaid[0] else {},
    )  # fmt: skip


def describe_again(order: WorkOrder, run: RunRow, adapters: Adapters) -> Description:
    """The same for a run that exists: its cases lie in the ledger and are not read again."""
    stored = parse_json(run.identity)
    assert isinstance(stored, dict)
    cases = stored["identity"]["cases"]
    order, targets, judges = _built(order, adapters)
    talk = build_conversation(order, build_user(order, adapters.user), path=adapters.path)
    return _described(order, targets, judges, talk, str(cases["digest"]), int(cases.get("count", 0)))


def run_plan(description: Description) -> RunPlan:
    """What the ledger writes down of it."""
    order = description.order
    tables = order.to_document()["variants"]
    assert isinstance(tables, Mapping)
    return RunPlan(
        order.name,
        canonical_text(order.to_document()),
        description.digest,
        canonical_text(description.identity),
        settings_of(order),
        tuple(
            VariantPlan(name, canonical_text(tables[name]), target.if_unknown)
            for name, target in description.targets.items()
        ),
        order.repetitions,
        tuple(
            BudgetPlan(number, spec.scope_kind, spec.scope_value, spec.unit, spec.kind, spec.limit,
                       spec.bound_per_dispatch)
            for number, spec in enumerate(order.budgets, start=1)
        ),
        judge_plans(description.judges, settings_of_judges(order.judges)),
        folder=order.folder,
    )  # fmt: skip


def judge_plans(judges: Sequence[Judge], settings: Mapping[str, JudgeSettings]) -> tuple[JudgePlan, ...]:
    """The judges as an evaluation keeps them, with what is asked of each by name."""
    identities = evaluation_document(judges)["judges"]
    assert isinstance(identities, Mapping)
    return tuple(
        JudgePlan(
            judge.name, judge.kind, canonical_text(identities[judge.name]), settings[judge.name].samples,
            canonical_text(dict(settings[judge.name].require)) if settings[judge.name].require else None,
        )
        for judge in judges
    )  # fmt: skip


def settings_of(order: WorkOrder) -> str:
    """How the work order wants a run to be executed from now on, as canonical JSON text."""
    return canonical_text({
        "execution": execution_table(order.execution),
        "budgets": budget_tables(order.budgets),
        "device": device_table(order.device),
        **({} if order.conversation is None else {"conversation": conversation_limits(order.conversation)}),
        **({} if order.gates is None else {"gates": gates_table(order.gates)}),
        **({} if order.prices is None else {"prices": order.prices}),
    })  # fmt: skip


def case_plans(description: Description) -> Iterator[CasePlan]:
    """The cases as the ledger keeps them, one by one.

    Raises CaseFileInvalid at the end when they are not those that were described: the file changed in between.
    """
    seen = CasesDigest()
    for case, digest in description.order.cases.digested():
        seen.add(digest)
        expected = None if isinstance(case.expected, Missing) else canonical_text(case.expected)
        text, metadata = canonical_text(case.input), canonical_text(case.metadata)
        yield CasePlan(escaped_text(case.id), digest, text, expected, metadata)
    if seen.value() != description.cases_digest:
        raise CaseFileInvalid("the cases changed while the run was planned", "Start again")


def _built(order: WorkOrder, adapters: Adapters) -> tuple[WorkOrder, dict[str, Target], list[Judge]]:
    """What the work order names, and itself with its prices written out: a price file can change, or be elsewhere."""
    targets, judges = build_targets(order, adapters.target), build_judges(order, adapters.judge)
    if order.prices is None:
        return order, targets, judges
    prices = adapters.prices(order.prices, folder=order.folder, place=f"{order.source}: prices")
    give_prices(prices, [*targets.values(), *judges])
    return order.replaced(prices=prices.document()), targets, judges


def _described(
    order: WorkOrder,
    targets: Mapping[str, Target],
    judges: Sequence[Judge],
    talk: Conversation | None,
    cases_digest: str,
    count: int,
) -> Description:
    for target in targets.values():
        target.check()
    for judge in judges:
        if is_calling(judge):  # a judge whose key is not set is found out before the first answer is paid for
            judge.check()  # type: ignore[attr-defined]  # a judge that calls has it
    refuse_unfit_targets(order, targets)
    refuse_unbounded(order, targets, judges)
    user = None if talk is None else talk.user
    prices = prices_used([*targets.values(), *judges])
    identity = identity_document(order, targets, cases_digest, cases_count=count, user=user, prices=prices)
    digest = identity_digest(identity)
    return Description(order, targets, judges, count, cases_digest, identity, digest, talk, prices=prices)


def fingerprint_of(description: Description, variant: str) -> str:
    """The digest of what an attempt of this variant depends on."""
    seen: dict[str, JsonValue] = {"variant": variant, "target": dict(description.targets[variant].identity())}
    identity = description.identity[Section.IDENTITY.value]
    assert isinstance(identity, Mapping)
    if "conversation" in identity:
        seen["conversation"] = identity["conversation"]
    return digest_of_value(seen)
