"""What is shown while a session goes on."""

from __future__ import annotations

import asyncio
import io
import sys

import pytest
from rich.console import Console

from tallystick.cli import judging_display, live
from tallystick.cli.judging_display import JudgingDisplay
from tallystick.cli.live import Display, Pace, progress_lines
from tallystick.cli.settings import Settings
from tallystick.cli.words import duration
from tallystick.ledger.run_reads import find_run, slot_counts
from tallystick.ledger.states import SlotState
from tallystick.runner.stopping import StopSwitch
from tallystick.runner.tally import JudgingTally, Tally
from tests.unit.cli.project import Project


def test_progress_names_done_in_flight_unknown_spent_and_held(project: Project) -> None:
    project.order(budgets='dispatches = 10\nusd = { limit = "1", bound_per_dispatch = "0.25" }')
    project.with_an_unknown()
    with project.opened() as ledger:
        with ledger.reading() as reader:
            run_key = find_run(reader, "asked").run_key
            tally = Tally(slot_counts(reader, run_key))
        assert progress_lines(ledger, run_key, tally, seconds_left=75) == [
            "3 of 3 done · 1 unknown · about 1 min 15 s left",
            "dispatches: 2 spent, 1 held of 10",
            "usd: $0.50 spent, $0.25 held of $1.00",
        ]


def test_the_bar_leaves_every_line_below_it_to_be_seen(project: Project) -> None:
    project.give("run", "order.toml", "--limit", 1)
    stream = io.StringIO()
    with project.opened() as ledger:
        with ledger.reading() as reader:
            run_key = find_run(reader, "asked").run_key
            tally = Tally(slot_counts(reader, run_key))
        display = Display(Settings(), ledger, run_key, StopSwitch(), grace_seconds=1)
        Console(file=stream, width=60).print(display.picture(tally, Pace(tally)))
    _, head, budget = stream.getvalue().splitlines()
    assert (head.strip(), budget.strip()) == ("1 of 3 done", "dispatches: 1 spent, 0 held of 10")


def test_progress_says_until_when_everything_waits(project: Project) -> None:
    project.give("run", "order.toml", "--limit", 1)
    with project.opened() as ledger:
        with ledger.reading() as reader:
            run_key = find_run(reader, "asked").run_key
            tally = Tally(slot_counts(reader, run_key))
        tally.fail(f"http.status.401: {'x' * 400}", 1_750_000_000_000_000)
        assert progress_lines(ledger, run_key, tally)[1].startswith(f"http.status.401: {'x' * 182}… (no ")
        tally.trouble_since_us = None
        tally.waits_until_us = ledger.clock.now_us() + 3_600_000_000
        assert "waiting until 20" in progress_lines(ledger, run_key, tally)[0]
        tally.refuse("connect.refused: nobody listens", 1_750_000_000_000_000)
        tally.refuse("http.status.503: too busy", 1_750_000_001_000_000)
        said = "http.status.503: too busy (no observation since 2025-06-15T15:06:40.000Z)"
        assert progress_lines(ledger, run_key, tally)[1] == said
        tally.move(SlotState.PENDING, SlotState.SELECTED)
        assert "no observation since" not in "".join(progress_lines(ledger, run_key, tally))
        tally.judging.fail("judge_error: it cannot be read", 1_750_000_000_000_000)
        assert progress_lines(ledger, run_key, tally)[1].startswith("judge_error: it cannot be read (no verdict since ")
        tally.move(SlotState.PENDING, SlotState.IN_FLIGHT)
        assert "waiting" not in progress_lines(ledger, run_key, tally)[0]


class Watched(io.StringIO):
    """Says when something is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = asyncio.Event()

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


@pytest.mark.parametrize("is_device", [True, False])
def test_lines_say_at_once_for_which_device_a_run_stands_still_and_why_its_sends_fail(
    project: Project, monkeypatch: pytest.MonkeyPatch, is_device: bool
) -> None:
    project.give("run", "order.toml", "--limit", 1)
    stream = Watched()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(live, "_PLAIN_SECONDS", 1e9)  # no ordinary line comes
    with project.opened() as ledger:
        with ledger.reading() as reader:
            run_key = find_run(reader, "asked").run_key
            tally = Tally(slot_counts(reader, run_key))
        if is_device:
            tally.waits_for["1"] = "atlas:SN-1, held by process 7"
        else:
            tally.fail("http.status.401: no such key", 1_750_000_000_000_000)

        async def follow() -> None:
            display = Display(Settings(), ledger, run_key, StopSwitch(), grace_seconds=1)
            display.start(tally)
            async with asyncio.timeout(60):
                await stream.written.wait()
            await display.end()

        asyncio.run(follow())
    told = "waits for atlas:SN-1, held by process 7" if is_device else "http.status.401: no such key (no observation "
    assert told in stream.getvalue()


def test_judging_says_at_once_and_once_for_each_reason_why_there_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, tally = Watched(), JudgingTally(waiting=3)
    monkeypatch.setattr(judging_display, "_PLAIN_SECONDS", 1e9)  # no ordinary line comes
    monkeypatch.setattr(judging_display, "_TERMINAL_SECONDS", 0)
    display = JudgingDisplay(StopSwitch(), stream, is_silent=False)

    async def follow() -> None:
        display.start(tally)
        for said in ("http.status.401: no such key", "http.status.401: still not", "http.status.503: too busy"):
            tally.fail(said, 1_750_000_000_000_000)
            for _ in range(20):
                await asyncio.sleep(0)
        await display.end()

    asyncio.run(follow())
    since = "(no verdict since 2025-06-15T15:06:40.000Z)"
    assert stream.getvalue().splitlines() == [
        f"0 of 3 judged · http.status.401: no such key {since}", f"0 of 3 judged · http.status.503: too busy {since}",
    ]  # fmt: skip


def test_the_bar_of_judging_stands_above_why_there_is_no_verdict() -> None:
    stream = io.StringIO()
    display, tally = JudgingDisplay(StopSwitch(), stream, is_silent=True), JudgingTally(waiting=3, given=1)
    display.start(tally)
    tally.fail("http.status.401: no\x1b[2J such key", 1_750_000_000_000_000)
    Console(file=stream, width=80).print(display._picture())
    _, head, why = (line.strip() for line in stream.getvalue().splitlines())
    assert (head, why[:15]) == ("1 of 3 judged", "http.status.401")
    assert "\x1b" not in why
    tally.judged(None, "", 0)
    assert display._lines() == ["1 of 3 judged"]


def test_durations_are_told_in_the_two_largest_units() -> None:
    assert [duration(seconds) for seconds in (0.4, 59, 61, 3599, 7500)] == [
        "0 s", "59 s", "1 min 1 s", "59 min 59 s", "2 h 5 min",
    ]  # fmt: skip
