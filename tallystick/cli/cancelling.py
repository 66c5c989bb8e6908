"""``cancel``: ask the process that executes a run to stop, or give the rest of a run up."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from ..ledger import run_ends
from ..ledger.errors import RunBusy, UsageError
from ..ledger.ledger import Ledger
from ..ledger.run_reads import find_run
from ..runner.report_models import Executing
from ..runner.reports import executing_now, status_of
from .changes import made_by
from .output import write_json
from .screens import show_exit
from .settings import Settings

__all__ = ["Cancelled", "abandon_run", "ask_to_stop"]


class Cancelled(BaseModel):
    """What ``cancel`` says. ``asked`` is who was asked to stop; ``given_up`` counts what will never begin."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["tallystick.cancel/1"] = "tallystick.cancel/1"
    ledger: str
    run: str
    asked: Executing | None
    given_up: int
    next: str
    command: str
    exit_status: int


def ask_to_stop(settings: Settings, run: str, *, reason: str | None) -> int:
    """Ask the live coordinator to stop; say so when there is none."""
    with Ledger.open(settings.ledger_path) as ledger:
        with ledger.reading() as reader:
            found = find_run(reader, run)
        holder = executing_now(ledger, found.run_id)
        alive = holder if holder is not None and holder.alive else None
        if alive is not None:
            why = f"cancelled by {made_by()}" + (f": {reason}" if reason else "")
            ledger.write(lambda tx: run_ends.ask_to_stop(tx, found.run_key, reason=why))
        _tell(settings, ledger, found.run_id, asked=alive, given_up=0)
    return 0


def abandon_run(settings: Settings, run: str, *, reason: str | None) -> int:
    """Give up what has not begun."""
    if not reason:
        raise UsageError("--abandon needs a --reason, which is kept in the ledger", "add --reason TEXT")
    with Ledger.open(settings.ledger_path) as ledger:
        with ledger.reading() as reader:
            found = find_run(reader, run)
        holder = executing_now(ledger, found.run_id)
        if holder is not None and holder.alive:
            raise RunBusy(
                f"run {found.run_id} is being executed by process {holder.pid}",
                f"ask it to stop first: `{settings.command('cancel', found.run_id)}`", found.run_id, str(holder.pid),
            )  # fmt: skip
        count = ledger.write(lambda tx: run_ends.abandon_run(tx, found.run_key, reason=reason, made_by=made_by()))
        _tell(settings, ledger, found.run_id, asked=None, given_up=count, abandoned=True)
    return 0


def _tell(
    settings: Settings, ledger: Ledger, run_id: str, *, asked: Executing | None, given_up: int, abandoned: bool = False
) -> None:
    standing = status_of(ledger, run_id, ledger_option=settings.ledger_option)
    if settings.json:
        write_json(Cancelled(
            ledger=str(ledger.path), run=run_id, asked=asked, given_up=given_up, next=standing.next,
            command=standing.command, exit_status=standing.exit_status,
        ))  # fmt: skip
        return
    screen = settings.screen()
    screen.pairs([("ledger", str(ledger.path))])
    if abandoned:
        screen.line(f"{given_up} that had not begun are given up")
    elif asked is not None:
        screen.line(f"process {asked.pid} is asked to stop; what is in flight gets its grace time")
        return
    else:
        screen.line(f"nobody is executing run {run_id}; to give up what has not begun, add --abandon and --reason TEXT")
    show_exit(screen, standing)
