"""The shape of what is said about an evaluation, on screens and in ``--json``: one model for both."""

from __future__ import annotations

from typing import Literal

from .report_models import Part

__all__ = ["AgreementLine", "EvaluationEnd", "JudgeLine", "JudgeRecovery", "QualifiedPart"]


class QualifiedPart(Part):
    """Whether a judge that must be qualified is: its verdicts count only where ``met`` is true.

    ``required`` has the least values, ``lacking`` says in words what is not reached, ``qualification`` names the
    qualification that was looked at, null where there is none; ``brought`` says that a snapshot brought that.
    """

    required: dict[str, float]
    met: bool
    lacking: list[str]
    qualification: str | None
    brought: bool


class JudgeLine(Part):
    """How far one judge has come: ``planned`` is ``waiting`` + ``judged`` + all of ``no_verdict``.

    ``reused`` counts verdicts that were given before and cost no call; ``passed`` of ``rated``, which are those of the
    ``judged`` that say whether it passed; ``mean`` over those with a score, null where there is none. ``examples`` has
    one explanation of each reason in ``no_verdict``.
    """

    judge: str
    planned: int
    waiting: int
    judged: int
    passed: int
    rated: int
    mean: float | None
    reused: int
    no_verdict: dict[str, int]
    examples: dict[str, str]
    qualified: QualifiedPart | None


class AgreementLine(Part):
    """How far two judges agree where both gave a verdict: ``agreed`` of ``count``, and beyond chance (Cohen).

    ``rate`` and ``kappa`` are null where they cannot be told.
    """

    judges: list[str]
    count: int
    agreed: int
    rate: float | None
    kappa: float | None
    kappa_low: float | None
    kappa_high: float | None


class JudgeRecovery(Part):
    """What was found of a process that died at it."""

    dead_worker: str = ""
    again: int = 0
    undecided: int = 0
    parked: int = 0


class EvaluationEnd(Part):
    """What ``judge`` ends with. ``set_at_event`` is the event of the run up to which observations are in the set.

    ``calls`` counts what this command sent; ``stopped`` is why it ended early.
    """

    format: Literal["tallystick.evaluation/1"] = "tallystick.evaluation/1"
    ledger: str
    run: str
    evaluation: int
    id: str
    name: str
    set_at_event: int
    ended: bool
    next: Literal["nothing", "resume", "decide", "fund"]
    command: str
    exit_status: int
    judges: list[JudgeLine]
    agreements: list[AgreementLine]
    calls: int
    stopped: str | None
    recovery: JudgeRecovery
