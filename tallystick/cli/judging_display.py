"""How judging goes on: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import asyncio
import time
from typing import IO, Any, Final

from ..runner.stopping import StopSwitch
from .screen import PlainScreen, is_terminal

__all__ = ["JudgingDisplay"]

_TERMINAL_SECONDS: Final = 0.25
_PLAIN_SECONDS: Final = 5.0


class JudgingDisplay:
    """Counts what is given, and shows it from a task on the loop that judges."""

    def __init__(self, switch: StopSwitch, stream: IO[str], *, is_silent: bool) -> None:
        self._switch = switch
        self._stream = stream
        self._is_silent = is_silent
        self._waiting = 0
        self._given = 0
        self._task: asyncio.Task[None] | None = None

    def start(self, waiting: int) -> None:
        """Begin to show, on the running loop."""
        self._waiting = waiting
        if not self._is_silent and waiting:
            follow = self._on_terminal if is_terminal(self._stream) else self._in_lines
            self._task = asyncio.get_running_loop().create_task(follow(), name="tallystick-display")

    def given(self, count: int) -> None:
        """So many judgments more are given."""
        self._given += count

    async def end(self) -> None:
        """Stop; nothing of it stays on a terminal."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _in_lines(self) -> None:
        screen, spoken = PlainScreen(self._stream), time.monotonic()
        while True:
            await asyncio.sleep(_TERMINAL_SECONDS)
            if time.monotonic() - spoken >= _PLAIN_SECONDS:
                spoken = time.monotonic()
                screen.line(self._line())

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

        bar = Padding(ProgressBar(total=max(1, self._waiting), completed=self._given), 0)
        return Group(bar, Text(self._line()))

    def _line(self) -> str:
        stopping = "; stopping, Ctrl-C again leaves at once" if self._switch.is_asked else ""
        return f"{self._given} of {self._waiting} judged{stopping}"
