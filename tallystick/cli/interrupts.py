"""Ctrl-C, SIGTERM and a closed terminal while a run is executed. The first asks it to stop, the second leaves at once.

Leaving at once is safe: what was in flight is found and classified by the next opening of the run, as after a crash.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import types
from typing import Final

from ..runner.stopping import StopSwitch

__all__ = ["INTERRUPTED", "Interrupts"]

INTERRUPTED: Final = 130
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOW_CURSOR: Final = b"\x1b[?25h"


class Interrupts:
    """Installs the handlers while the context lasts; on the main thread."""

    def __init__(self, switch: StopSwitch, *, last_words: str) -> None:
        self._switch = switch
        self._last_words = last_words
        self._previous: dict[signal.Signals, object] = {}
        self.count = 0

    def __enter__(self) -> Interrupts:
        # What was started with `nohup` ignores the end of its terminal, and goes on doing so.
        heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._previous = {number: signal.signal(number, self._handle) for number in heeded}
        return self

    def __exit__(self, *exception: object) -> None:
        if self.count:
            return  # this process ends now, and a further signal must not end it with another status
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: types.FrameType | None) -> None:  # noqa: ARG002
        self.count += 1
        if self.count == 1:
            self._switch.ask("interrupted" if number == signal.SIGINT else "terminated")
            return
        # Not by print: the handler may have interrupted a print, whose buffer must not be entered twice.
        with contextlib.suppress(OSError):
            cursor = _SHOW_CURSOR if sys.stderr.isatty() else b""
            os.write(2, cursor + f"\ntallystick: left at once. {self._last_words}\n".encode())
        os._exit(INTERRUPTED)
