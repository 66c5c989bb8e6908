"""``judge``: a new evaluation of what a run has observed, or an unfinished one gone on with."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .._wiring import ADAPTERS
from ..ledger.evaluations import find_evaluation, let_retried_wait
from ..ledger.ledger import Ledger
from ..ledger.run_reads import find_run
from ..ledger.verdicts import NoVerdictReason
from ..runner.evaluation_models import AgreementLine, EvaluationEnd, JudgeLine
from ..runner.evaluation_reports import evaluation_end, only_it
from ..runner.evaluations import (
    EvaluationSession,
    SessionEnd,
    find_or_create_evaluation,
    reparsing,
    run_evaluation,
)
from ..runner.evaluations import describe_judge_order as describe
from ..runner.judge_orders import load_judge_order
from ..runner.results import NextMove
from ..runner.stopping import StopSwitch
from .interrupts import Interrupts
from .judging_display import JudgingDisplay
from .loops import run_to_end
from .output import write_json
from .screen import Screen, Tone
from .settings import Settings
from .words import command_words, joined, plural

__all__ = ["judge_run", "show_evaluation"]


def judge_run(
    settings: Settings,
    run: str,
    order: Path,
    *,
    at_event: int | None,
    new: bool,
    retry: tuple[str, ...],
    reparse: str | None,
    concurrency: int | None,
) -> int:
    """``judge``: what the run has observed, by the judges of a judge work order."""
    unknown = [reason for reason in retry if reason not in set(NoVerdictReason)]
    if unknown:
        raise click.UsageError(f"there is no reason {unknown[0]}; known are {', '.join(NoVerdictReason)}")
    with settings.aside():
        description = describe(load_judge_order(order), ADAPTERS)
    with Ledger.open(settings.ledger_path) as ledger:
        with ledger.reading() as reader:
            found = find_run(reader, run)
            source = None if reparse is None else find_evaluation(reader, found.run_key, reparse)
        if source is not None:
            description = reparsing(ledger, source, description)
        session = find_or_create_evaluation(
            ledger, found, description, new=new, at_event=at_event, must_exist=bool(retry)
        )
        _let_wait(settings, ledger, session, retry)
        with ledger.reading() as reader:
            only = only_it(reader, session.row)
        again = only.split() if at_event is None else ["--at", str(at_event)]
        again += [] if reparse is None else ["--reparse", reparse]  # without it the judges would be asked, and paid for
        command = settings.command("judge", found.run_id, str(order), *again)
        done = _to_end(settings, ledger, session, concurrency, command)
        end = evaluation_end(ledger, session.row, done, order=str(order), ledger_option=settings.ledger_option)
    if settings.json:
        write_json(end)
    else:
        show_evaluation(settings.screen(), end)
    return end.exit_status


def _let_wait(settings: Settings, ledger: Ledger, session: EvaluationSession, retry: tuple[str, ...]) -> None:
    for reason in retry:
        count = ledger.write(lambda tx, reason=reason: let_retried_wait(tx, session.row, reason=reason))  # type: ignore[misc]
        if not count:
            settings.progress_screen().line(f"nothing to retry: no judgment has the reason {reason}")


def _to_end(
    settings: Settings, ledger: Ledger, session: EvaluationSession, concurrency: int | None, command: str
) -> SessionEnd:
    switch = StopSwitch()
    display = JudgingDisplay(switch, sys.stderr, is_silent=settings.json)
    with settings.aside(), Interrupts(switch, last_words=f"Go on with: {command}"):

        async def judged() -> SessionEnd:
            try:
                return await run_evaluation(
                    ledger, session, stop=switch, concurrency=concurrency, on_start=display.start
                )
            finally:
                await display.end()

        return run_to_end(settings, judged())


def show_evaluation(screen: Screen, end: EvaluationEnd) -> None:
    """How an evaluation stands, and what helps next."""
    screen.line(f"evaluation {end.evaluation} ({end.name}) of run {end.run}", tone=Tone.STRONG)
    calls = "no call" if not end.calls else plural(end.calls, "call")
    screen.pairs([
        ("ledger", end.ledger), ("set", f"what was observed up to event {end.set_at_event}"),
        ("sent", f"{calls} by this command"),
    ])  # fmt: skip
    screen.table(
        ["judge", ">passed", ">rate", ">mean", ">judged", ">reused", ">waiting", "no verdict", "counts"],
        [_row(line) for line in end.judges],
        title="judges",
    )
    agreed = [_agreed(one) for one in end.agreements if one.count]
    if agreed:
        screen.table(["judges", ">same", ">rate", ">kappa", "95 %"], agreed, title="agreement")
    for line in end.judges:
        for reason, told in line.examples.items():
            if told:
                screen.line(f"{line.judge}, {reason}: {told[:200]}", tone=Tone.DIM)
        if line.qualified is not None and not line.qualified.met:
            why = "; ".join(line.qualified.lacking)
            screen.line(f"the verdicts of {line.judge} do not count, it is unqualified: {why}", tone=Tone.WARNING)
        elif line.qualified is not None and line.qualified.brought:
            screen.line(
                f"the verdicts of {line.judge} count by a qualification that came with a snapshot: qualify it here to"
                " rely on your own", tone=Tone.WARNING,
            )  # fmt: skip
    text, tone = _exit_line(screen, end)
    screen.line(text, tone=tone)


def _agreed(one: AgreementLine) -> tuple[object, ...]:
    between = "" if one.kappa_low is None else f"{one.kappa_low:.2f} to {one.kappa_high:.2f}"
    return (
        " and ".join(one.judges), f"{one.agreed} of {one.count}", "-" if one.rate is None else f"{one.rate:.1%}",
        "-" if one.kappa is None else f"{one.kappa:.2f}", between,
    )  # fmt: skip


def _row(line: JudgeLine) -> tuple[object, ...]:
    return (
        line.judge, f"{line.passed} of {line.rated}" if line.rated or not line.judged else "",
        f"{line.passed / line.rated:.1%}" if line.rated else "" if line.judged else "-",
        "" if line.mean is None else f"{line.mean:.4g}", f"{line.judged} of {line.planned}", line.reused or "",
        line.waiting or "", joined(f"{count} {reason}" for reason, count in line.no_verdict.items()),
        "" if line.qualified is None or line.qualified.met else "no: unqualified",
    )  # fmt: skip


def _exit_line(screen: Screen, end: EvaluationEnd) -> tuple[str, Tone]:
    missing = sum(sum(line.no_verdict.values()) for line in end.judges)
    waiting, command = sum(line.waiting for line in end.judges), command_words(end.command)
    match NextMove(end.next):
        case NextMove.NOTHING:
            return "complete: every observation of the set is judged", Tone.GOOD
        case NextMove.RESUME:
            why = f"stopped ({end.stopped})" if end.stopped else "not finished"
            return f"{why}, {plural(waiting, 'judgment')} left: {command} goes on", Tone.WARNING
        case NextMove.FUND:
            its_run = screen.named(f"tallystick resume {end.run} --amend UNIT=LIMIT --reason TEXT")
            return f"out of budget: raise the limit, here or by `{its_run}` of the run, and {command}", Tone.BAD
        case _ if missing:
            again = f"; {command} tries them again" if end.command else " in the replies that were kept"
            return f"finished, {plural(missing, 'judgment')} without a verdict{again}", Tone.WARNING
        case _:
            qualify = screen.named("tallystick qualify ORDER LABELLED")
            return f"finished, and verdicts do not count: qualify the judge with `{qualify}`", Tone.WARNING
