"""What a work order would do, before it does: how much, at which cost at worst, and what identifies the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from .budget_spec import BudgetSpec, shown_amount, unit_key
from .case_selection import ChosenCases
from .descriptions import Description
from .device_outlooks import DeviceOutlook
from .judge_protocols import is_calling
from .protocols import Target
from .report_models import Amount, PricesLine
from .told_outlooks import sends_of, told_of, told_sums
from .work_order_judges import settings_of_judges

__all__ = [
    "BudgetOutlook",
    "ChoiceOutlook",
    "ConversationOutlook",
    "Earlier",
    "Preflight",
    "VariantOutlook",
    "preflight_of",
]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class VariantOutlook(_Part):
    """``guarded``: it makes requests of its own, each a call. ``client_retries``: those known of client libraries.

    ``package`` is the name and version of the package that its adapter comes from, null for one of ours.
    """

    name: str
    kind: str
    if_unknown: str
    guarded: bool = False
    client_retries: dict[str, int] = {}
    package: str | None = None


class BudgetOutlook(_Part):
    """What the plan may use of a budget.

    ``least`` is used when every call is answered the first time, ``worst`` when every limit of attempts and sends is
    reached: at the declared bound, or at what targets tell of each request of a new run; null without either.
    ``enough_for`` counts the planned observations that fit.
    """

    scope: str
    name: str
    unit: str
    kind: str
    limit: Amount
    bound_per_dispatch: Amount | None
    planned: int
    least: Amount | None
    worst: Amount | None
    enough_for: int | None


class Earlier(_Part):
    """A run of the same name that is not continued, since what its answers depend on was another."""

    run: str
    changes: list[str]


class ConversationOutlook(_Part):
    """What is said in each case. ``turns`` counts the messages of all scripts, null where a ``user`` says them."""

    script: str | None
    turns: int | None
    user: str | None
    turns_max: int
    resume: str
    deadline_seconds: float | None


class ChoiceOutlook(_Part):
    """From how many cases the run's were chosen, by what: ``where`` by key, ``split``, ``sample`` with its seed."""

    population: int
    where: dict[str, list[str | int | float | bool | None]]
    split: str | None
    sample: int | None
    seed: int | None
    told: str


class Preflight(_Part):
    """What ``run --dry-run`` says. ``action`` is what ``run`` would do: create, continue, or report a finished run.

    ``without_expected`` counts the cases of a new run that do not say what is expected, by the judge that needs it.
    """

    format: Literal["tallystick.preflight/1"] = "tallystick.preflight/1"
    ledger: str
    ledger_exists: bool
    action: Literal["create", "continue", "report"]
    run: str | None
    name: str
    cases: int
    variants: list[VariantOutlook]
    repetitions: int
    planned: int
    attempts_max: int
    dispatches_max: int
    concurrency: int
    deadline_seconds: float
    budgets: list[BudgetOutlook]
    judges: list[str]
    prices: list[PricesLine] = []
    cases_digest: str
    identity_digest: str
    earlier: Earlier | None = None
    devices: list[DeviceOutlook] = []
    conversation: ConversationOutlook | None = None
    chosen: ChoiceOutlook | None = None
    without_expected: dict[str, int] = {}


def preflight_of(
    description: Description,
    *,
    ledger: str,
    ledger_exists: bool,
    action: Literal["create", "continue", "report"] = "create",
    run: str | None = None,
    concurrency: int | None = None,
    earlier: Earlier | None = None,
    devices: Sequence[DeviceOutlook] = (),
) -> Preflight:
    """The outlook of a described work order; makes no call."""
    order = description.order
    sums = told_sums(description) if action == "create" else {}
    return Preflight(
        ledger=ledger, ledger_exists=ledger_exists, action=action, run=run, name=order.name,
        cases=description.case_count,
        variants=[
            VariantOutlook(
                name=name, kind=target.kind, if_unknown=target.if_unknown.value,
                guarded=bool(getattr(target, "is_guarded", False)),
                client_retries=dict(getattr(target, "client_retries", dict)()), package=_package(target),
            )
            for name, target in description.targets.items()
        ],
        repetitions=order.repetitions, planned=description.planned,
        attempts_max=order.execution.attempts_max, dispatches_max=order.execution.dispatches_max,
        concurrency=concurrency or order.execution.concurrency, deadline_seconds=order.execution.deadline_seconds,
        budgets=[_outlook(description, spec, sums) for spec in order.budgets],
        judges=[judge.name for judge in description.judges],
        prices=[PricesLine(as_of=one.as_of, file=one.file, digest=one.digest) for one in description.prices],
        cases_digest=description.cases_digest, identity_digest=description.digest, earlier=earlier,
        devices=list(devices), conversation=_conversation(description), chosen=_chosen(description),
        without_expected=dict(description.without_expected) if action == "create" else {},
    )  # fmt: skip


def _package(target: Target) -> str | None:
    found = target.identity().get("adapter_package")
    return f"{found['name']} {found['version']}" if isinstance(found, Mapping) else None


def _chosen(description: Description) -> ChoiceOutlook | None:
    source = description.order.cases
    if not isinstance(source, ChosenCases) or description.population is None:
        return None
    found = source.selection
    return ChoiceOutlook(
        population=description.population, where={one.key: list(one.values) for one in found.where},
        split=None if found.split is None else found.split.name, sample=found.sample,
        seed=None if found.sample is None else found.seed, told=str(found),
    )  # fmt: skip


def _conversation(description: Description) -> ConversationOutlook | None:
    talk = description.conversation
    if talk is None:
        return None
    name = None if talk.user is None else str(talk.user.identity().get("function", talk.user.kind))
    return ConversationOutlook(
        script=talk.spec.turns, turns=description.turns, user=name, turns_max=talk.spec.turns_max,
        resume=talk.spec.resume.value, deadline_seconds=talk.spec.deadline_seconds,
    )  # fmt: skip


def _outlook(description: Description, spec: BudgetSpec, sums: Mapping[tuple[str, str], int]) -> BudgetOutlook:
    """Retried attempts and sends multiply, a redirect that is followed is a send of its own; calls of judges count."""
    execution = description.order.execution
    sides = [target for name, target in description.targets.items() if spec.counts_target(name)]
    each = description.case_count * description.order.repetitions
    fewest, most = _calls(description)
    judged, judged_most = _judges_calls(description, spec)
    bound = spec.bound_per_dispatch
    least = None if bound is None else (fewest * len(sides) + judged) * bound
    tries = execution.attempts_max * execution.dispatches_max
    sends = sum(sends_of(target, spec) for target in sides)
    worst = None if bound is None else (most * sends + judged_most) * bound * tries
    if (told := told_of(description, spec, sums)) is not None:
        least, worst = told, told * tries
    return BudgetOutlook(
        scope=spec.scope_kind.value, name=spec.scope_value, unit=unit_key(spec.unit.value), kind=spec.kind.value,
        limit=shown_amount(spec.unit.value, spec.limit), planned=each * len(sides),
        bound_per_dispatch=None if bound is None else shown_amount(spec.unit.value, bound),
        least=None if least is None else shown_amount(spec.unit.value, least),
        worst=None if worst is None else shown_amount(spec.unit.value, worst),
        enough_for=None if not bound or not fewest else min(each * len(sides), spec.limit * each // (bound * fewest)),
    )  # fmt: skip


def _judges_calls(description: Description, spec: BudgetSpec) -> tuple[int, int]:
    """The fewest and the most calls of judges that the budget counts, nothing being sent twice: of every sample one,
    and at most as many more as a judge may be asked again after a reply that is no verdict.
    """
    if not spec.counts_judges:
        return 0, 0
    settings, fewest, most = settings_of_judges(description.order.judges), 0, 0
    for judge in filter(is_calling, description.judges):
        asked = description.planned * settings[judge.name].samples
        fewest += asked
        most += asked * (1 + int(getattr(judge, "reasks", 0))) * sends_of(judge, spec)
    return fewest, most


def _calls(description: Description) -> tuple[int, int]:
    """The fewest and the most calls that one variant's observations are made of, nothing being sent twice."""
    each, talk = description.case_count * description.order.repetitions, description.conversation
    if talk is None:
        return each, each
    if description.turns is None:
        return each, each * talk.spec.turns_max
    return (description.turns * description.order.repetitions,) * 2
