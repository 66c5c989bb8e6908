"""``qualify``: judges held against labelled observations."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from .._wiring import ADAPTERS
from ..ledger.ledger import Ledger
from ..runner.judge_orders import load_judge_order
from ..runner.labelled import load_labelled
from ..runner.qualification_models import QualifiedLine, QualifyEnd
from ..runner.qualifying import qualify
from ..runner.results import NextMove
from ..runner.stopping import StopSwitch
from .interrupts import Interrupts
from .judging_display import JudgingDisplay
from .loops import run_to_end
from .output import write_json
from .screen import Screen, Tone
from .settings import Settings
from .words import command_words, joined, plural

__all__ = ["qualify_judges", "show_qualification"]


def qualify_judges(settings: Settings, order: Path, labelled: Path, *, concurrency: int | None) -> int:
    """``qualify``: every judge of a judge work order, on a labelled file."""
    with settings.aside():
        made, labels = load_judge_order(order), load_labelled(labelled)
    switch = StopSwitch()
    display = JudgingDisplay(switch, sys.stderr, is_silent=settings.json)
    command = f"tallystick qualify {shlex.quote(str(order))} {shlex.quote(str(labelled))}"
    with (
        Ledger.open(settings.ledger_path, create=True) as ledger,
        settings.aside(),
        Interrupts(switch, last_words=f"Go on with: {command}{settings.ledger_option}"),
    ):

        async def judged() -> QualifyEnd:
            try:
                return await qualify(
                    ledger, made, labels, ADAPTERS, stop=switch, concurrency=concurrency, command=command,
                    ledger_option=settings.ledger_option, on_start=display.start,
                )  # fmt: skip
            finally:
                await display.end()

        end = run_to_end(settings, judged())
    if settings.json:
        write_json(end)
    else:
        show_qualification(settings.screen(), end)
    return end.exit_status


def show_qualification(screen: Screen, end: QualifyEnd) -> None:
    """Each judge's accuracy with its interval, what it confuses, and whether it is good enough."""
    screen.line(f"{plural(end.labelled.count, 'labelled observation')} in {end.labelled.file}", tone=Tone.STRONG)
    screen.pairs([("ledger", end.ledger), ("run", f"{end.run}, evaluation {end.evaluation}")])
    screen.table(
        ["judge", ">accuracy", "95 %", ">kappa", "95 %", ">judged", "no verdict", "required"],
        [_row(line) for line in end.judges], title="judges",
    )  # fmt: skip
    for line in end.judges:
        rows = [
            (label, verdict, count) for label, verdicts in line.confusion.items() for verdict, count in verdicts.items()
        ]
        screen.table(["label", "verdict", ">count"], rows, title=f"what {line.judge} says of what is labelled")
        if line.lacking:
            screen.line(f"{line.judge} is not qualified: {'; '.join(line.lacking)}", tone=Tone.WARNING)
    text, tone = _exit_line(end)
    screen.line(text, tone=tone)


def _row(line: QualifiedLine) -> tuple[object, ...]:
    required = ", ".join(f"{name} {least:g}" for name, least in line.required.items())
    return (
        line.judge, _rate(line.accuracy), _between(line.accuracy_low, line.accuracy_high), _number(line.kappa),
        _between(line.kappa_low, line.kappa_high), f"{line.judged} of {line.labels}",
        joined(f"{count} {reason}" for reason, count in line.no_verdict.items()),
        "" if line.met is None else f"{required}: {'met' if line.met else 'not met'}",
    )  # fmt: skip


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _between(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.2f} to {high:.2f}"


def _exit_line(end: QualifyEnd) -> tuple[str, Tone]:
    match NextMove(end.next):
        case NextMove.NOTHING:
            return "complete: the figures are kept", Tone.GOOD
        case NextMove.RESUME:
            return f"not finished: {command_words(end.command)} goes on", Tone.WARNING
        case NextMove.FUND:
            return f"out of budget: raise the limit and {command_words(end.command)}", Tone.BAD
        case _:
            return "finished: a judge is not good enough, or gave no verdict on something", Tone.WARNING
