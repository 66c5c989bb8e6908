"""What is said of a fork before it is made, and after: one model for screens and ``--json``."""

from __future__ import annotations

from typing import Literal

from .report_models import Amount, Part

__all__ = ["ForkBudget", "ForkCases", "ForkOutlook", "ForkVariant"]


class ForkVariant(Part):
    """A variant of the fork: ``planned`` is the sum of ``reused``, ``unknown``, ``failed`` and ``to_pay``.

    ``taken_from`` is the earlier run's variant that is the same, null where there is none; then ``changes`` say what is
    another. ``again`` counts those to pay that the earlier run had planned, too, by how they stood there.
    """

    name: str
    taken_from: str | None
    changes: list[str]
    planned: int
    reused: int
    contaminated: int
    unknown: int
    failed: int
    to_pay: int
    again: dict[str, int]


class ForkBudget(Part):
    """A budget of the fork. ``carried`` is what counts against the work order's limit already; ``limit`` is the rest.

    ``least`` is used when every call to pay is answered the first time, ``worst`` when every limit of attempts and
    sends is reached; both at the declared bound, or at what the targets tell of their requests (a mean over all cases),
    null without either. Judges are not in it.
    """

    scope: str
    name: str
    unit: str
    kind: str
    limit: Amount
    carried: Amount
    bound_per_dispatch: Amount | None
    least: Amount | None
    worst: Amount | None
    is_enough: bool | None


class ForkCases(Part):
    """The fork's cases: ``same`` are in the earlier run with the very content, ``new`` are not; ``dropped`` of it."""

    same: int
    new: int
    dropped: int


class ForkOutlook(Part):
    """What ``fork`` says. ``run`` is the fork, null where it was only looked at; ``at_event`` is the earlier run's."""

    format: Literal["tallystick.fork/1"] = "tallystick.fork/1"
    ledger: str
    run: str | None
    name: str
    forked_from: str
    at_event: int
    planned: int
    reused: int
    unknown: int
    failed: int
    to_pay: int
    cases: ForkCases
    variants: list[ForkVariant]
    budgets_are: Literal["new", "continue"]
    failed_are: Literal["again", "keep"]
    budgets: list[ForkBudget]
    judges: list[str]
    command: str
