from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .makers import Service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    started = Service.start(tmp_path)
    yield started
    started.stop()
