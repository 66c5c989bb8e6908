"""How a step of a slot ended, as the feed has to know it."""

from __future__ import annotations

from enum import Enum, auto

__all__ = ["Ended"]


class Ended(Enum):
    """How a step ended."""

    DONE = auto()  # the slot has its end
    WAITS_AGAIN = auto()  # the slot waits for its next step
    UNTOUCHED = auto()  # nothing of it was committed
    LET_GO = auto()  # the watch gave it up meanwhile and has seen to the rest
