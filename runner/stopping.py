"""Being asked to stop: by a signal, by another terminal, or by the program that embeds the runner."""

from __future__ import annotations

import asyncio

__all__ = ["StopSwitch"]


class StopSwitch:
    """Asked once: dispatch nothing more, let what is in flight finish within the grace time. Thread-safe to ask."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None

    @property
    def is_asked(self) -> bool:
        """Whether somebody asked."""
        return self.reason is not None

    def ask(self, reason: str) -> None:
        """Ask; the first reason stays."""
        if self.reason is None:
            self.reason = reason
            if self._loop is not None and self._event is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._event.set)

    def attach(self) -> None:
        """Bind to the running loop, so that sleepers on it can be woken."""
        self._loop, self._event = asyncio.get_running_loop(), asyncio.Event()
        if self.is_asked:
            self._event.set()

    async def sleep(self, seconds: float) -> bool:
        """Sleep, or wake early when asked to stop; says whether the time was slept to its end."""
        if self._event is None:
            self.attach()
        assert self._event is not None
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return True
        return False
