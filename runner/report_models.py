"""The shape of what is said about a run, on screens and in ``--json``: one model for both.

``docs/reference/commands.md`` explains the keys. They are stable: a later version adds keys and changes none. Amounts
are written as in a work order: whole numbers, dollars as decimal text, seconds as a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from .device_outlooks import DeviceUse

__all__ = [
    "BudgetLine",
    "Executing",
    "ForkOrigin",
    "Part",
    "Population",
    "PricesLine",
    "ReasonLine",
    "Recovery",
    "RunEnd",
    "RunLine",
    "RunList",
    "RunStanding",
    "RunStatus",
    "ScoreLine",
    "SessionPart",
    "TotalsPart",
    "UnknownPart",
    "VariantLine",
]

Amount: TypeAlias = int | float | str


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Population(Part):
    """Every planned observation once: ``planned`` is the sum of the others."""

    planned: int
    selected: int
    failed: int
    unknown: int
    unavailable: int
    cancelled: int
    parked: int
    in_flight: int
    pending: int


class BudgetLine(Part):
    """``unknown_uses`` counts dispatches that did not say what they used: each is in ``settled`` at its bound.

    ``name`` is the variant or role of the scope. ``counted`` and ``wasted`` part what is settled by whether it gave a
    selected observation. ``carried`` is what the runs had used or held that a fork goes on from: ``limit`` is the rest.
    """

    scope: str
    name: str
    unit: str
    kind: str
    limit: Amount
    settled: Amount
    held: Amount
    left: Amount
    overrun: Amount
    unknown_uses: int
    held_by_unknown: Amount
    counted: Amount | None = None
    wasted: Amount | None = None
    carried: Amount = 0


class TotalsPart(Part):
    """Everything sent in all sessions; null is unknown, and a cost with ``unpriced_dispatches`` is a lower bound.

    So are tokens with ``unmetered_dispatches``. ``tokens_by_class`` parts them into disjoint classes (``input``,
    ``cache_read``, ``output``, ``reasoning``, …), as far as they were told apart.
    ``wasted_dispatches`` are those whose outcome is known and that gave no selected observation, or no verdict, where
    they are judges'; what never left, or was settled as not done, is none. ``replays`` are sends of conversations'
    turns that an earlier attempt had an answer to.
    """

    attempts: int
    calls: int
    dispatches: int
    dispatches_by_state: dict[str, int]
    wasted_dispatches: int
    replays: int
    tokens_in: int | None
    tokens_out: int | None
    cost_usd: str | None
    unpriced_dispatches: int
    unmetered_dispatches: int = 0
    tokens_by_class: dict[str, int] = {}


class ScoreLine(Part):
    """``judged`` of ``planned``, of which ``rated`` say whether it passed; ``mean`` is over those with a score."""

    judge: str
    variant: str
    planned: int
    judged: int
    passed: int
    rated: int = 0
    mean: float | None
    no_verdict: dict[str, int]


class ReasonLine(Part):
    """Why there is no observation. ``example`` is what the newest attempt of one of them was told, without secrets.

    ``remedy`` is what helps in general. Either may be empty.
    """

    state: str
    reason: str
    count: int
    example: str = ""
    remedy: str = ""


class UnknownPart(Part):
    """Outcomes that are unknown, also those whose case has gone on since."""

    count: int
    reasons: dict[str, int]


class PricesLine(Part):
    """Prices that the run goes by, or went by: the day that they are of, their file and the digest of what is in it."""

    as_of: str
    file: str
    digest: str


class FlagLine(Part):
    """How many of a variant's selected answers have a flag, such as ``truncated``."""

    variant: str
    flag: str
    count: int


class VariantLine(Part):
    name: str
    if_unknown: str


class ForkOrigin(Part):
    """The run that a fork comes of, the event to which that is pinned, and how many observations were reused."""

    run: str
    event: int
    reused: int


class RunStanding(Part):
    """How a run stands. ``next`` is what helps, ``command`` the command that does it, empty where none is needed.

    ``totals``, ``flags`` and ``scores`` are null in the status of a large run, which must not wait for counting;
    ``judge_totals`` also where judges sent nothing.
    """

    format: str
    ledger: str
    run: str
    name: str
    state: str
    custody: str
    next: Literal["nothing", "resume", "decide", "fund", "adopt"]
    command: str
    exit_status: int
    created_at: str
    started_at: str | None
    ended_at: str | None
    active_seconds: float
    not_before: str | None
    population: Population
    reasons: list[ReasonLine]
    unknown: UnknownPart
    budgets: list[BudgetLine]
    totals: TotalsPart | None
    judge_totals: TotalsPart | None
    variants: list[VariantLine]
    prices: list[PricesLine] = []
    flags: list[FlagLine] | None = None
    scores: Sequence[ScoreLine] | None
    forked_from: ForkOrigin | None = None


class Executing(Part):
    """Who executes the run; ``alive`` is false only where the process is proven dead."""

    worker: str
    pid: int
    alive: bool
    since: str


class RunStatus(RunStanding):
    """What ``status`` says."""

    format: Literal["tallystick.status/1"] = "tallystick.status/1"
    executing: Executing | None = None
    devices: list[DeviceUse] = []


class Recovery(Part):
    """What was found of processes that died, in cases that were in flight."""

    dead_workers: list[str] = Field(default_factory=list)
    unknown: int = 0
    again: int = 0
    interrupted: int = 0
    parked: int = 0


class PassedOverLine(Part):
    """A device that the session did without, and why: somebody else kept it, or an operator has to look at it."""

    device: str
    why: str


class SessionPart(Part):
    """What this command did. ``reused`` had been answered before it began, ``stopped`` is why it ended early."""

    reused: int
    dispatches: int
    stopped: str | None
    recovery: Recovery
    passed_over: list[PassedOverLine] = []


class RunEnd(RunStanding):
    """What ``run`` and ``resume`` end with."""

    format: Literal["tallystick.run/1"] = "tallystick.run/1"
    session: SessionPart


class RunLine(Part):
    run: str
    name: str
    state: str
    created_at: str
    planned: int
    selected: int
    next: str


class RunList(Part):
    """What ``runs`` says, the newest first."""

    format: Literal["tallystick.runs/1"] = "tallystick.runs/1"
    ledger: str
    runs: list[RunLine]


def as_json(model: BaseModel) -> dict[str, Any]:
    """The model as plain values in the order of its keys."""
    return model.model_dump(mode="python")
