"""The shape of what ``qualify`` says, on the screen and in ``--json``."""

from __future__ import annotations

from typing import Literal

from .report_models import Part

__all__ = ["LabelLine", "LabelledSetPart", "QualifiedLine", "QualifyEnd"]


class LabelLine(Part):
    """One label. ``recall`` is the part of what is labelled so that is judged so, ``precision`` the other way about.

    Null where there is none.
    """

    label: str
    labelled: int
    judged: int
    agreed: int
    recall: float | None
    precision: float | None


class QualifiedLine(Part):
    """One judge against the labels.

    ``accuracy`` is ``agreed`` of ``judged``, with its 95 % interval; ``coverage`` is ``judged`` of ``labels``;
    ``kappa`` is null where it cannot be told. ``confusion`` has by label how often each verdict was given,
    ``no_verdict`` why there is none. ``met`` is null where nothing is required.
    """

    judge: str
    labels: int
    judged: int
    agreed: int
    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None
    kappa: float | None
    kappa_low: float | None
    kappa_high: float | None
    coverage: float
    by_label: list[LabelLine]
    confusion: dict[str, dict[str, int]]
    no_verdict: dict[str, int]
    qualification: str | None
    required: dict[str, float]
    met: bool | None
    lacking: list[str]


class LabelledSetPart(Part):
    file: str
    digest: str
    count: int


class QualifyEnd(Part):
    """What ``qualify`` ends with; ``run`` and ``evaluation`` hold every judgment of it."""

    format: Literal["tallystick.qualification/1"] = "tallystick.qualification/1"
    ledger: str
    run: str
    evaluation: int
    labelled: LabelledSetPart
    judges: list[QualifiedLine]
    next: Literal["nothing", "resume", "decide", "fund"]
    command: str
    exit_status: int
    calls: int
    stopped: str | None
