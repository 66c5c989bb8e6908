"""What the transactions take and give: plain frozen rows."""

from __future__ import annotations

from typing import Final

import attrs

from .states import DispatchState, IfUnknown, NextStep

__all__ = [
    "EVALUATION_SCOPE",
    "UNITS",
    "Artifact",
    "Begun",
    "BudgetPlan",
    "DispatchFacts",
    "DispatchKey",
    "Held",
    "Hold",
    "Intent",
    "JudgmentKey",
    "JudgmentRow",
    "PendingSlot",
    "Waiting",
]

UNITS: Final = ("dispatches", "tokens_in", "tokens_out", "tokens", "nanousd", "milliseconds")
"""What budgets count, always in whole numbers."""

EVALUATION_SCOPE: Final = "evaluation"
"""The scope of a budget that is for one evaluation alone; its value is the evaluation's id."""


@attrs.frozen
class BudgetPlan:
    """One budget of a run. ``scope`` is ``run``, ``role`` or ``variant``; amounts are integers of ``unit``.

    ``carried`` is what the runs had used or held that a fork goes on from; the limit is without it.
    """

    budget_no: int
    scope: str
    scope_value: str
    unit: str
    kind: str
    limit_amount: int
    bound_amount: int | None
    carried: int = 0


@attrs.frozen
class Artifact:
    """Bytes by digest, ready to be recorded; ``data`` is None where they lie in a file already."""

    digest: str
    size: int
    data: bytes | None
    media_type: str | None = None


@attrs.frozen
class Hold:
    """What one dispatch sets aside in one budget."""

    budget_no: int
    unit: str
    amount: int
    hard: bool


@attrs.frozen
class Held:
    """The leases under which something is dispatched, that of the device which it goes to first.

    ``contaminated``: an earlier holder's request may still act on the device meanwhile.
    """

    leases: tuple[str, ...]
    fence: int
    contaminated: bool = False


@attrs.frozen
class PendingSlot:
    """A slot that waits, with its case (canonical JSON texts) and, for a resend or a query, its newest attempt."""

    slot_no: int
    variant_no: int
    repetition: int
    case_id: str
    input: str
    expected: str | None
    metadata: str
    attempts: int
    next_step: NextStep
    not_before_us: int


@attrs.frozen
class Intent:
    """Everything that is committed before a first dispatch. ``head`` is canonical JSON text.

    ``held`` is what it is dispatched under, where it goes to a device. A large payload lies in a file: then ``payload``
    is None and ``payload_artifact`` says which (`artifacts`).
    """

    run_key: int
    slot_no: int
    call_id: str
    payload: bytes | None
    payload_digest: str
    payload_size: int
    head: str
    if_unknown: IfUnknown
    holds: tuple[Hold, ...]
    fingerprint: str
    key_until_us: int | None = None
    solitary: bool = False
    held: Held | None = None
    payload_artifact: Artifact | None = None


@attrs.frozen
class DispatchKey:
    """Which dispatch is meant."""

    run_key: int
    slot_no: int
    attempt_no: int
    call_id: str
    dispatch_no: int
    holds: tuple[Hold, ...] = ()


@attrs.frozen
class Begun:
    """An attempt whose intent is durable."""

    key: DispatchKey
    intended_us: int


@attrs.frozen
class DispatchFacts:
    """What became of a dispatch, ready to be stored; None is unknown throughout.

    ``usage`` is canonical JSON text of what the target reported. ``charged`` is false where
    nothing was sent, so that a refused or failed dispatch costs nothing. What was *seen* before an answer broke off is
    a lower bound of what is not known.
    """

    state: DispatchState
    reason: str = ""
    message: str = ""
    duration_us: int | None = None
    bytes_sent: int | None = None
    wire_sends: int | None = None
    status: int | None = None
    raw: bytes | None = None
    raw_cut: bool = False
    retry_after_us: int | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_nanousd: int | None = None
    usage: str | None = None
    settled_by: str = "wire"
    charged: bool = True
    raw_artifact: Artifact | None = None
    tokens_out_seen: int | None = None
    cost_nanousd_seen: int | None = None

    def used(self, unit: str) -> int | None:
        """What the dispatch used of a unit, None where that is not known."""
        match unit:
            case "dispatches":
                return max(1, self.wire_sends or 1)
            case "tokens_in":
                return self.tokens_in
            case "tokens_out":
                return self.tokens_out
            case "tokens":
                known = self.tokens_in is not None and self.tokens_out is not None
                return (self.tokens_in or 0) + (self.tokens_out or 0) if known else None
            case "nanousd":
                return self.cost_nanousd
            case "milliseconds":
                return None if self.duration_us is None else -(-self.duration_us // 1000)
        raise ValueError(f"no budget counts {unit}")

    def at_least(self, unit: str) -> int:
        """What the dispatch used of a unit at least, where how much is not known; 0 where nothing was seen."""
        match unit:
            case "tokens_out":
                return self.tokens_out_seen or 0
            case "tokens":
                return (self.tokens_in or 0) + (self.tokens_out or self.tokens_out_seen or 0)
            case "nanousd":
                return self.cost_nanousd_seen or 0
            case _:
                return 0


@attrs.frozen
class Waiting:
    """What a slot does after an attempt that is not its last: which step comes next, and not before when."""

    step: NextStep = NextStep.NEW
    not_before_us: int = 0


@attrs.frozen
class JudgmentKey:
    """Which judgment is meant: one judge's, of one observation, in one evaluation."""

    run_key: int
    evaluation_no: int
    judge_no: int
    slot_no: int
    attempt_no: int
    sample_no: int = 1


@attrs.frozen
class JudgmentRow:
    """One judgment. ``score`` is the decimal text of a number; exactly one of verdict and ``reason`` is set.

    ``raw`` is what the ``parser`` (name and version) read the verdict from. ``call_id`` is the call that brought it,
    ``reused_from`` the judgment (`ledger.judgments.name_of`) whose verdict it is.
    """

    judge_no: int
    slot_no: int
    attempt_no: int
    passed: bool | None = None
    score: str | None = None
    reason: str | None = None
    explanation: str = ""
    sample_no: int = 1
    raw: str | None = None
    parser: str | None = None
    evidence_digest: str | None = None
    cache_key: str | None = None
    reused_from: str | None = None
    call_id: str | None = None
