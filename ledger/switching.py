"""Letting threads that mostly work outside the interpreter have it back soon, while another works within it.

A thread that hashes, copies or waits for SQLite needs the interpreter for microseconds between two such steps. While
another one computes in Python, it gets it only after the switch interval: with the 5 ms that Python begins with, a
thread that hashes files of a megabyte spends nine tenths of its time waiting.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Final

__all__ = ["quick_switching"]

_SECONDS: Final = 0.0002
_lock = threading.Lock()
_inside = 0
_before = 0.0


@contextlib.contextmanager
def quick_switching() -> Iterator[None]:
    """While anybody is inside, threads change places soon; the last one out restores what was set before the first."""
    global _inside, _before
    with _lock:
        _inside += 1
        if _inside == 1:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(_before, _SECONDS))
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                sys.setswitchinterval(_before)
