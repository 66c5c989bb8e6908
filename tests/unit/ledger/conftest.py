from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.ledger.ledger import Ledger
from tests.unit.ledger.factories import HandClock, new_ledger


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: HandClock) -> Iterator[Ledger]:
    with new_ledger(tmp_path, clock=clock) as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger in another folder."""
    folder = tmp_path / "other"
    folder.mkdir()
    with new_ledger(folder) as opened:
        yield opened
