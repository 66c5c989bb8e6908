"""Where the tests keep their files, and the signals that their processes start with.

Files are kept in memory where there is room, since thousands of ledgers sync thousands of times. Nothing is lost by it:
a killed process leaves the same files there, and what a loss of power takes is tested by a rig that records the syncs
themselves (`tests/power`). ``--basetemp`` or ``PYTEST_DEBUG_TEMPROOT`` name another place.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_MEMORY: Final = Path("/dev/shm")
_ROOM_BYTES: Final = 4 << 30


def pytest_configure(config: pytest.Config) -> None:
    named = config.getoption("basetemp") or os.environ.get("PYTEST_DEBUG_TEMPROOT")
    if not named and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(_MEMORY)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            # In the background of a script or under nohup. What is ignored stays so in each program that is started,
            # and tallystick would let it be; what is handled here is not handled there.
            signal.signal(number, _pass_over)


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """An empty folder on a disk, for tests in which a sync has to take its time."""
    with tempfile.TemporaryDirectory(prefix="tallystick-") as folder:
        yield Path(folder)


def _pass_over(number: int, frame: types.FrameType | None) -> None:
    """Ignore a signal in this process alone."""
