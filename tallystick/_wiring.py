"""Where the layers meet: adapters found for the runner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .adapters.registry import judge_from_work_order, target_from_work_order
from .runner.conversations import Finder
from .runner.descriptions import Adapters
from .runner.price_use import Prices, WrittenPrices
from .runner.protocols import User

__all__ = ["ADAPTERS"]


def _user(function: str, options: Mapping[str, Any], *, folder: Path, place: str) -> User:
    from .adapters.python_user import from_work_order

    return from_work_order(function, options, folder=folder, place=place)


def _path(text: str, *, place: str) -> Finder:
    from .adapters.paths import read_path

    return read_path(text, place=place).find


def _prices(told: WrittenPrices, *, folder: Path, place: str) -> Prices:
    from .adapters.price_files import prices_of

    return prices_of(told, folder=folder, place=place)


ADAPTERS = Adapters(target=target_from_work_order, judge=judge_from_work_order, user=_user, path=_path, prices=_prices)
