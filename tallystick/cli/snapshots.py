"""``export``, ``import`` and ``adopt``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import attrs
from pydantic import BaseModel, ConfigDict

from ..ledger.custody import unfinished_copies
from ..ledger.custody_changes import Adopted, adopt
from ..ledger.errors import RunNotFound, UsageError
from ..ledger.ledger import Ledger
from ..ledger.run_reads import find_run
from ..ledger.snapshot_compare import Became
from ..ledger.snapshot_export import Exported
from ..ledger.snapshot_import import Imported, import_snapshot
from ..ledger.snapshot_wish import SnapshotWish, write_snapshot
from ..ledger.states import CustodyState
from ..runner.reports import status_of
from .changes import made_by
from .output import write_json
from .screen import Tone
from .settings import Settings
from .words import plural

__all__ = ["ExportWish", "adopt_runs", "export_to", "import_from"]


@attrs.frozen
class ExportWish:
    """What ``export`` was asked for."""

    runs: tuple[str, ...]
    output: Path
    move: bool
    slots: tuple[str, ...]
    redact: tuple[str, ...]
    force: bool


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LeftOut(_Document):
    """One request to leave contents out, and how many texts and events it changed."""

    rule: str
    texts: int
    events: int


class ExportedRun(_Document):
    """A run as a snapshot holds it."""

    run: str
    name: str
    state: str
    event: int
    custody: str
    epoch: int
    left_out: list[LeftOut]


class ExportDone(_Document):
    """What ``export`` says."""

    format: Literal["tallystick.export/1"] = "tallystick.export/1"
    ledger: str
    file: str
    digest: str
    bytes: int
    artifacts: int
    runs: list[ExportedRun]


class ImportedLine(_Document):
    """What an import made of a run, and what helps next."""

    run: str
    name: str
    became: str
    event_before: int
    event: int
    custody: str
    epoch: int
    next: str
    command: str


class ImportDone(_Document):
    """What ``import`` says; ``changed`` is false where everything had been here."""

    format: Literal["tallystick.import/1"] = "tallystick.import/1"
    ledger: str
    file: str
    digest: str
    changed: bool
    runs: list[ImportedLine]


class AdoptedLine(_Document):
    """A run that this ledger may go on with now; ``unknown`` counts what was in flight and is unknown."""

    run: str
    was: str
    epoch: int
    unknown: int
    next: str
    command: str


class AdoptDone(_Document):
    """What ``adopt`` says."""

    format: Literal["tallystick.adopt/1"] = "tallystick.adopt/1"
    ledger: str
    reason: str
    made_by: str
    runs: list[AdoptedLine]


def export_to(settings: Settings, wish: ExportWish) -> int:
    """Write the snapshot and say what is in it."""
    with Ledger.open(settings.ledger_path) as ledger:
        with ledger.reading() as reader:
            run_ids = [find_run(reader, run).run_id for run in wish.runs]
        made = write_snapshot(
            ledger, run_ids, wish.output,
            SnapshotWish(move=wish.move, slots=wish.slots, redact=wish.redact, force=wish.force),
        )  # fmt: skip
        done = _exported(ledger, made)
    if settings.json:
        write_json(done)
        return 0
    screen = settings.screen()
    screen.pairs([
        ("ledger", done.ledger),
        ("snapshot", f"{done.file} ({done.bytes:,} bytes, {plural(done.artifacts, 'large artifact')})"),
        ("digest", done.digest),
    ])  # fmt: skip
    for run in done.runs:
        how = "moved: only who imports this file goes on with it" if run.custody == "move" else "a copy"
        screen.line(f"run {run.run} ({run.name}), {run.state}, up to event {run.event}: {how}", tone=Tone.STRONG)
        for one in run.left_out:
            screen.line(f"  left out by {one.rule}: {plural(one.texts, 'text')} and {plural(one.events, 'event text')}")
    return 0


def _exported(ledger: Ledger, made: Exported) -> ExportDone:
    runs = [
        ExportedRun(
            run=one.run, name=one.name, state=one.state, event=one.event_no, custody=one.custody, epoch=one.epoch,
            left_out=[LeftOut(rule=rule.rule, texts=rule.texts, events=rule.events) for rule in one.left_out],
        )
        for one in made.manifest.runs
    ]  # fmt: skip
    return ExportDone(
        ledger=str(ledger.path), file=str(made.path), digest=made.digest, bytes=made.size,
        artifacts=made.manifest.artifacts.count, runs=runs,
    )  # fmt: skip


_BECAME = {
    Became.NEW: "taken in",
    Became.FORWARD: "moved forward from event {before}",
    Became.HELD: "was here, and is this ledger's now",
    Became.UNCHANGED: "was here already",
}


_WHOSE = {
    CustodyState.HELD: "this ledger's to continue",
    CustodyState.COPY: "a copy here",
    CustodyState.MOVING: "being moved away from here",
    CustodyState.MOVED: "moved away from here",
}


def import_from(settings: Settings, file: Path) -> int:
    """Take the snapshot in and say what became of each run."""
    with Ledger.open(settings.ledger_path, create=True) as ledger:
        found = import_snapshot(ledger, file)
        done = _imported(settings, ledger, found)
    if settings.json:
        write_json(done)
        return 0
    screen = settings.screen()
    screen.pairs([("ledger", done.ledger), ("snapshot", done.file), ("digest", done.digest)])
    for run in done.runs:
        became = _BECAME[Became(run.became)].format(before=run.event_before)
        whose = _WHOSE[CustodyState(run.custody)]
        screen.line(f"run {run.run} ({run.name}): {became}, up to event {run.event}; {whose}", tone=Tone.STRONG)
        if run.command:
            # Whoever only looks at a copy must not be told to take it over: it goes on where it came from.
            is_copy = run.custody == CustodyState.COPY
            screen.line(f"  {'only where nobody else goes on with it' if is_copy else 'next'}: `{run.command}`")
    if not done.changed:
        screen.line("everything in it was here; nothing was changed", tone=Tone.GOOD)
    return 0


def _imported(settings: Settings, ledger: Ledger, found: Imported) -> ImportDone:
    runs = []
    for one in found.runs:
        standing = status_of(ledger, one.run_id, ledger_option=settings.ledger_option, counted_max=0)
        runs.append(ImportedLine(
            run=one.run_id, name=one.name, became=one.became, event_before=one.event_before, event=one.event_no,
            custody=one.custody, epoch=one.epoch, next=standing.next, command=standing.command,
        ))  # fmt: skip
    return ImportDone(
        ledger=str(ledger.path), file=str(found.path), digest=found.digest, changed=found.changed, runs=runs
    )


def adopt_runs(settings: Settings, runs: tuple[str, ...], *, reason: str | None) -> int:
    """Take custody of the named runs, or of every unfinished copy."""
    if not reason:
        raise UsageError("a run is adopted with a --reason, which is kept in the ledger",
                         "say how you know that nobody else goes on with it")  # fmt: skip
    with Ledger.open(settings.ledger_path) as ledger:
        # Its first use notices a file that was copied: then its runs are copies from here on.
        assert ledger.worker_id
        with ledger.reading() as reader:
            chosen = [find_run(reader, run).run_id for run in runs] or unfinished_copies(reader)
        if not chosen:
            raise RunNotFound(
                "no unfinished run is a copy here", "name a finished one to adopt it; `tallystick runs` lists all"
            )
        adopted = [adopt(ledger, run_id, reason=reason, made_by=made_by()) for run_id in chosen]
        done = _adopted(settings, ledger, adopted, reason)
    if settings.json:
        write_json(done)
        return 0
    screen = settings.screen()
    screen.pairs([("ledger", done.ledger)])
    for run in done.runs:
        left = f"; {plural(run.unknown, 'outcome')} that was in flight is unknown" if run.unknown else ""
        screen.line(f"run {run.run} is this ledger's to continue, epoch {run.epoch}{left}", tone=Tone.GOOD)
        if run.command:
            screen.line(f"  next: `{run.command}`")
    return 0


def _adopted(settings: Settings, ledger: Ledger, adopted: list[Adopted], reason: str) -> AdoptDone:
    lines = []
    for one in adopted:
        standing = status_of(ledger, one.run_id, ledger_option=settings.ledger_option, counted_max=0)
        lines.append(AdoptedLine(
            run=one.run_id, was=one.was, epoch=one.epoch, unknown=one.unknown, next=standing.next,
            command=standing.command,
        ))  # fmt: skip
    return AdoptDone(ledger=str(ledger.path), reason=reason, made_by=made_by(), runs=lines)
