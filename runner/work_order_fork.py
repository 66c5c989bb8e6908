"""What a fork of an earlier run does by the work order: the ``[fork]`` table, and what it says once it was read."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypedDict

import attrs

from ..ledger.canonical import JsonValue
from .work_order_files import Place
from .work_order_models import ForkTable, check

__all__ = ["ForkBudgets", "ForkFailed", "ForkOptions", "ForkSpec", "fork_table", "read_fork"]


class ForkBudgets(StrEnum):
    NEW = "new"  # the whole limits again
    CONTINUE = "continue"  # what the earlier run has used or holds counts against them


class ForkFailed(StrEnum):
    AGAIN = "again"  # asked, and paid for, again
    KEEP = "keep"  # failed in the fork, too


class ForkOptions(TypedDict, total=False):
    """The same keys for `WorkOrder` in Python."""

    budgets: Literal["new", "continue"]
    failed: Literal["again", "keep"]


@attrs.frozen
class ForkSpec:
    """The values in force; they count when a fork is made, and are no part of any run's identity."""

    budgets: ForkBudgets = ForkBudgets.NEW
    failed: ForkFailed = ForkFailed.AGAIN


def read_fork(raw: object, *, place: Place) -> ForkSpec:
    """The table as what it says; raises WorkOrderInvalid."""
    table = check(ForkTable, raw, place=place)
    return ForkSpec(ForkBudgets(table.budgets), ForkFailed(table.failed))


def fork_table(spec: ForkSpec) -> dict[str, JsonValue]:
    """The table that `read_fork` reads back, every value written out."""
    return {"budgets": spec.budgets.value, "failed": spec.failed.value}
