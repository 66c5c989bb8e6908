"""Where the layers meet: adapters found for the runner."""

from __future__ import annotations

from .adapters.registry import judge_from_work_order, target_from_work_order
from .runner.descriptions import Adapters

__all__ = ["ADAPTERS"]

ADAPTERS = Adapters(target=target_from_work_order, judge=judge_from_work_order)
