from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.ledger.ledger import Ledger
from tests.browser.chromium import Browser, started
from tests.unit.ledger.factories import HandClock, new_ledger


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with new_ledger(tmp_path, clock=HandClock()) as opened:
        yield opened
