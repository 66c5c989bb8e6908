"""How judging goes on: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import asyncio
import time
from typing import IO, Any, Final

from ..runner.stopping import StopSwitch
from ..runner.tally import JudgingTally
from .live import trouble_of, trouble_reason
from .screen import PlainScreen, is_terminal, safe
from .words import joined

__all__ = ["JudgingDisplay"]

_TERMINAL_SECONDS: Final = 0.25
_PLAIN_SECONDS: Final = 5.0


class JudgingDisplay:
    """Follows a session's tally from a task on the loop that judges."""

    def __init__(self, switch: StopSwitch, stream: IO[str], *, is_silent: bool) -> None:
        self._switch = switch
        self._stream = stream
        self._is_silent = is_silent
        self._tally = JudgingTally()
        self._task: asyncio.Task[None] | None = None

    def start(self, tally: JudgingTally) -> None:
        """Begin to follow it, on the running loop."""
        self._tally = tally
        if not self._is_silent and tally.waiting:
            follow = self._on_terminal if is_terminal(self._stream) else self._in_lines
            self._task = asyncio.get_running_loop().create_task(follow(), name="tallystick-display")

    async def end(self) -> None:
        """Stop; nothing of it stays on a terminal."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _in_lines(self) -> None:
        screen, spoken, reasons = PlainScreen(self._stream), time.monotonic(), {""}
        while True:
            await asyncio.sleep(_TERMINAL_SECONDS)
            # A judge that begins to fail is told of at once, once for each reason.
            is_new = trouble_reason(self._tally) not in reasons
            if is_new or time.monotonic() - spoken >= _PLAIN_SECONDS:
                reasons.add(trouble_reason(self._tally))
                spoken = time.monotonic()
                screen.line(joined(self._lines()))

    async def _on_terminal(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._stream, highlight=False, markup=False, emoji=False)
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(self._picture(), refresh=True)
                await asyncio.sleep(_TERMINAL_SECONDS)

    def _picture(self) -> Any:
        from rich.console import Group
        from rich.padding import Padding
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        bar = Padding(ProgressBar(total=max(1, self._tally.waiting), completed=self._tally.given), 0)
        return Group(bar, *(Text(safe(line), overflow="ellipsis", no_wrap=True) for line in self._lines()))

    def _lines(self) -> list[str]:
        stopping = "; stopping, Ctrl-C again leaves at once" if self._switch.is_asked else ""
        head = f"{self._tally.given} of {self._tally.waiting} judged{stopping}"
        # On a line of its own, as a terminal cuts what is too long.
        return [head, *filter(None, [trouble_of(self._tally, "verdict")])]
