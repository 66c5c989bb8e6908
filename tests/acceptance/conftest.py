from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A folder of its own with a ledger; everything that was started there ends with the test."""
    made = Site(tmp_path / "site")
    try:
        yield made
    finally:
        made.close()
