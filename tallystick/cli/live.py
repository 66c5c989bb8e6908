"""How a session stands while it goes on: a live display on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, Final

from ..ledger.ledger import Ledger
from ..ledger.run_reads import own_budgets_of
from ..ledger.states import SlotState
from ..runner.budget_spec import shown_amount, unit_key
from ..runner.reports import instant
from ..runner.stopping import StopSwitch
from ..runner.tally import JudgingTally, Tally
from .screen import PlainScreen, is_terminal, safe
from .settings import Settings
from .words import duration, joined, money_or_count

__all__ = ["Display", "Pace", "progress_lines", "trouble_of", "trouble_reason"]

_TERMINAL_SECONDS: Final = 0.25
_PLAIN_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.25
_CAUSE_MAX: Final = 200
_SETTLED: Final = (SlotState.SELECTED, SlotState.FAILED, SlotState.UNKNOWN, SlotState.UNAVAILABLE, SlotState.PARKED,
                   SlotState.CANCELLED)  # fmt: skip


class Display:
    """Follows a session's tally from a task on its loop, until it is ended."""

    def __init__(
        self, settings: Settings, ledger: Ledger, run_key: int, switch: StopSwitch, *, grace_seconds: float
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._run_key = run_key
        self._switch = switch
        self._grace_seconds = grace_seconds
        self._task: asyncio.Task[None] | None = None

    def start(self, tally: Tally) -> None:
        """Begin to follow it, on the running loop."""
        follow = self._on_terminal if is_terminal(sys.stderr) else self._in_lines
        self._task = asyncio.get_running_loop().create_task(follow(tally), name="tallystick-display")

    async def end(self) -> None:
        """Stop; nothing of the display stays on a terminal."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _in_lines(self, tally: Tally) -> None:
        screen, pace = PlainScreen(sys.stderr), Pace(tally)
        said_stop, spoken, told, reasons = False, time.monotonic(), "", {""}
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._switch.is_asked and not said_stop:
                said_stop = True
                screen.line(self._stopping(tally))
            waits = joined(list(tally.waits_for.values()))
            # A run that stands still for want of a device says so at once.
            is_new, told = bool(waits) and waits != told, waits
            # So does one whose sends begin to fail, once for each reason.
            new = {trouble_reason(tally), trouble_reason(tally.judging)} - reasons
            reasons |= new
            if is_new or new or time.monotonic() - spoken >= _PLAIN_SECONDS:
                spoken = time.monotonic()
                screen.line(joined(self._lines(tally, pace)))

    async def _on_terminal(self, tally: Tally) -> None:
        from rich.console import Console
        from rich.live import Live

        pace = Pace(tally)
        console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
        with Live(console=console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(self.picture(tally, pace), refresh=True)
                await asyncio.sleep(_TERMINAL_SECONDS)

    def picture(self, tally: Tally, pace: Pace) -> Any:
        """What a terminal shows at this moment."""
        from rich.console import Group
        from rich.padding import Padding
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        # A bar does not end its line, and would swallow the next one; padding ends it.
        bar = Padding(ProgressBar(total=max(1, tally.planned), completed=_done(tally)), 0)
        lines = [Text(safe(line), overflow="ellipsis", no_wrap=True) for line in self._lines(tally, pace)]
        if self._switch.is_asked:
            lines.append(Text(safe(self._stopping(tally)), style="yellow"))
        return Group(bar, *lines)

    def _lines(self, tally: Tally, pace: Pace) -> list[str]:
        return progress_lines(self._ledger, self._run_key, tally, seconds_left=pace.seconds_left(tally))

    def _stopping(self, tally: Tally) -> str:
        flying = tally.by_state[SlotState.IN_FLIGHT]
        grace = duration(self._grace_seconds)
        return (
            f"stopping ({self._switch.reason}): {flying} in flight, given {grace} to end; Ctrl-C again leaves at once"
        )


def progress_lines(ledger: Ledger, run_key: int, tally: Tally, *, seconds_left: float | None = None) -> list[str]:
    """What is done, why nothing is any more, and what is spent and held of each budget."""
    with ledger.reading() as reader:
        states, now_us = own_budgets_of(reader, run_key), ledger.clock.now_us()
    until = tally.waits_until_us
    waiting = until is not None and until > now_us and not tally.by_state[SlotState.IN_FLIGHT]
    counts = [
        f"{tally.by_state[state]} {word}"
        for state, word in (
            (SlotState.IN_FLIGHT, "in flight"), (SlotState.UNKNOWN, "unknown"), (SlotState.FAILED, "failed"),
            (SlotState.UNAVAILABLE, "unavailable"), (SlotState.PARKED, "parked"),
        )
        if tally.by_state[state]
    ]  # fmt: skip
    head = joined([
        f"{_done(tally)} of {tally.planned} done", *counts,
        f"waiting until {instant(until)}" if waiting and until else "",
        "" if seconds_left is None else f"about {duration(seconds_left)} left",
        *(f"waits for {device}" for device in tally.waits_for.values()),
    ])  # fmt: skip
    # On a line of its own, as a terminal cuts what is too long.
    troubles = [trouble_of(tally, "observation"), trouble_of(tally.judging, "verdict")]
    return [head, *filter(None, troubles), *(_budget(state) for state in states)]


def trouble_of(tally: Tally | JudgingTally, lacking: str) -> str:
    """Why the newest that was asked for is lacking, and since when there was none; empty where all is well."""
    if tally.trouble_since_us is None:
        return ""
    said = tally.trouble if len(tally.trouble) <= _CAUSE_MAX else f"{tally.trouble[: _CAUSE_MAX - 1]}…"
    return f"{said} (no {lacking} since {instant(tally.trouble_since_us)})"


def trouble_reason(tally: Tally | JudgingTally) -> str:
    """The reason alone; empty where all is well."""
    return "" if tally.trouble_since_us is None else tally.trouble.partition(":")[0]


def _budget(state: Any) -> str:
    unit = state.plan.unit
    spent, held, limit = (
        money_or_count(unit_key(unit), shown_amount(unit, amount))
        for amount in (state.settled, state.held, state.plan.limit_amount)
    )
    of = "" if state.plan.scope == "run" else f" of {state.plan.scope} {state.plan.scope_value}"
    return f"{unit_key(unit)}{of}: {spent} spent, {held} held of {limit}"


def _done(tally: Tally) -> int:
    return sum(tally.by_state[state] for state in _SETTLED)


class Pace:
    """How fast the session goes, for a guess at the time left."""

    def __init__(self, tally: Tally) -> None:
        self._began = time.monotonic()
        self._done = _done(tally)

    def seconds_left(self, tally: Tally) -> float | None:
        done, spent = _done(tally) - self._done, time.monotonic() - self._began
        if done < 3 or spent < 1:
            return None
        return (tally.planned - _done(tally)) * spent / done
