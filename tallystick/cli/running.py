"""``run`` and ``resume``: find or create the run, execute what is left, show how it stands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from .._wiring import ADAPTERS
from ..ledger.coordinators import Coordinator, refuse_busy
from ..ledger.custody import refuse_moved_away
from ..ledger.errors import IdentityChanged, LedgerMissing, RunNotFound
from ..ledger.ledger import Ledger
from ..ledger.run_reads import RunRow, find_run, newest_of_name, newest_unfinished, run_by_digest, unfinished_of_name
from ..runner.descriptions import Description, describe
from ..runner.device_outlooks import DeviceOutlook, device_outlooks
from ..runner.evaluating import is_of_judges, with_judges_of
from ..runner.identity import compare
from ..runner.identity_changes import changes_of, refuse_changes
from ..runner.preflight import Earlier, Preflight, preflight_of
from ..runner.report_options import slice_term
from ..runner.report_reading import report_of
from ..runner.reports import run_end
from ..runner.results import RunOutcome
from ..runner.sessions import Session, find_or_create, reopened, run_session
from ..runner.stopping import StopSwitch
from ..runner.tally import Tally
from ..runner.work_order import WorkOrder, load_work_order
from .changes import apply_changes, read_changes
from .interrupts import Interrupts
from .live import Display
from .loops import run_to_end
from .output import write_json
from .report_screen import show_report
from .screens import show_card, show_end
from .screens import show_preflight as show_preflight_on
from .settings import Settings

__all__ = ["CaseChoice", "named_or_newest", "resume_run", "run_order", "show_preflight", "telling_how"]


@attrs.frozen
class CaseChoice:
    """Which cases the command line asks for, besides what the work order says."""

    where: Sequence[str] = ()
    sample: int | None = None
    seed: int | None = None

    def of(self, order: WorkOrder) -> WorkOrder:
        """The work order with these cases alone; raises UsageError."""
        return order.choosing(
            where=[slice_term(text, "--where") for text in self.where], sample=self.sample, seed=self.seed
        )

    @property
    def words(self) -> list[str]:
        """The options that ask for the same."""
        found = [word for text in self.where for word in ("--where", text)]
        numbers = {"--sample": self.sample, "--seed": self.seed}
        return [
            *found,
            *(word for name, number in numbers.items() if number is not None for word in (name, str(number))),
        ]


def show_preflight(settings: Settings, order: Path, choice: CaseChoice, *, concurrency: int | None, new: bool) -> int:
    """``run --dry-run``: check everything, call nothing, change nothing."""
    with settings.aside():
        description = describe(choice.of(load_work_order(order)), ADAPTERS)
    with telling_how(settings, order, choice):
        known = _known_run(settings.ledger_for(order), description, new=new)
    found = _preflight(settings, description, known, concurrency)
    if settings.json:
        write_json(found)
    else:
        _show_preflight(settings, found, order, choice)
    return 0


def run_order(
    settings: Settings, order: Path, choice: CaseChoice, *, limit: int | None, concurrency: int | None, new: bool
) -> int:
    """``run``: an unfinished run of the work order goes on, a finished one prints its report."""
    with settings.aside():
        description = describe(choice.of(load_work_order(order)), ADAPTERS)
    path = settings.ledger_for(order)
    with telling_how(settings, order, choice):
        known = _known_run(path, description, new=new)
    outlook = _preflight(settings, description, known, concurrency)
    with Ledger.open(path, create=True) as ledger:
        if known is None and not settings.json:
            _show_preflight(settings, outlook, order, choice)
        with telling_how(settings, order, choice):
            session = find_or_create(ledger, description, new=new)
        return _execute(settings, ledger, session, limit=limit, concurrency=concurrency)


def resume_run(
    settings: Settings,
    run: str | None,
    *,
    retry: str | None,
    amend: Sequence[str],
    reason: str | None,
    limit: int | None,
    concurrency: int | None,
) -> int:
    """``resume``: recover a run and go on."""
    changes = read_changes(retry=retry, amend=amend, reason=reason)
    with Ledger.open(settings.ledger_path) as ledger:
        found = named_or_newest(ledger, run, is_changed=bool(changes))
        with settings.aside(), telling_how(settings):
            session = reopened(ledger, found.run_id, ADAPTERS)
        if changes:
            refuse_busy(ledger, found.run_id)
        waiting = apply_changes(ledger, found, changes)
        if changes.state is not None and not waiting:
            why = "" if changes.retry_reason is None else f" for the reason {changes.retry_reason}"
            settings.progress_screen().line(f"nothing to retry: no planned observation is {changes.state}{why}")
        if changes:
            with settings.aside():
                session = reopened(ledger, found.run_id, ADAPTERS)
        return _execute(settings, ledger, session, limit=limit, concurrency=concurrency)


@contextlib.contextmanager
def telling_how(settings: Settings, order: Path | None = None, choice: CaseChoice | None = None) -> Iterator[None]:
    """Give a refused change the commands that help against it, as they are to be typed here."""
    try:
        yield
    except IdentityChanged as changed:
        helps = _helps_for_judges if is_of_judges(changed) else _helps
        remedy = f"{helps(settings, changed.run_id, order, choice)}; --json names every difference"
        raise IdentityChanged(changed.what, remedy, changed.run_id, changed.differences) from changed


def _helps(settings: Settings, run_id: str, order: Path | None, choice: CaseChoice | None) -> str:
    more = "" if order is None else f"; `{settings.command('run', str(order), '--new', *_words(choice))}` pays for all"
    fork = _fork_command(settings, run_id, order, choice)
    return f"change it back, or make a new run of it that reuses what has not changed: `{fork}`{more}"


def _helps_for_judges(settings: Settings, run_id: str, order: Path | None, choice: CaseChoice | None) -> str:
    judge = settings.command("judge", run_id, "judges.toml")
    return (
        "change them back, or judge what is observed by the new ones: give them a file of their own, with version,"
        f" name and [[judges]], and `{judge}`; a new run reuses what is observed, too:"
        f" `{_fork_command(settings, run_id, order, choice)}`"
    )


def _fork_command(settings: Settings, run_id: str, order: Path | None, choice: CaseChoice | None) -> str:
    return settings.command("fork", run_id, *([] if order is None else [str(order), *_words(choice)]))


def _words(choice: CaseChoice | None) -> list[str]:
    return [] if choice is None else choice.words


def _show_preflight(settings: Settings, found: Preflight, order: Path, choice: CaseChoice) -> None:
    fork = "" if found.earlier is None else _fork_command(settings, found.earlier.run, order, choice)
    show_preflight_on(settings.screen(), found, fork=fork)


def named_or_newest(ledger: Ledger, run: str | None, *, is_changed: bool = False) -> RunRow:
    """The run that is meant; raises RunNotFound."""
    with ledger.reading() as reader:
        found = newest_unfinished(reader) if run is None else find_run(reader, run)
    if found is None:
        more = "; one that has ended is named: `tallystick resume RUN`" if is_changed else ""
        raise RunNotFound("there is no unfinished run", f"list the runs with `tallystick runs`{more}")
    return found


def _known_run(path: Path, description: Description, *, new: bool) -> RunRow | None:
    """The run that ``run`` would go on with, if there is one; refuses at once what `find_or_create` will refuse."""
    with contextlib.ExitStack() as stack:
        try:
            ledger = stack.enter_context(Ledger.open(path))
        except LedgerMissing:
            return None
        if new:
            return None
        with ledger.reading() as reader:
            found = run_by_digest(reader, description.digest)
            other = None if found else unfinished_of_name(reader, description.order.name)
            if found is None:
                refuse_moved_away(reader, description.digest)
        if other is not None:
            refuse_changes(other.run_id, compare(_identity_of(other), description.identity))
        if found is not None:
            with_judges_of(ledger, found, description)
        return found


def _earlier_run(path: Path, description: Description) -> Earlier | None:
    """A run of that name which is not continued, because the work order or a target's code is another now."""
    try:
        with Ledger.open(path) as ledger, ledger.reading() as reader:
            found = newest_of_name(reader, description.order.name)
    except LedgerMissing:
        return None
    if found is None or found.work_order_digest == description.digest:
        return None
    differences = compare(_identity_of(found), description.identity)
    return Earlier(run=found.run_id, changes=list(changes_of(differences)))


def _identity_of(run: RunRow) -> dict[str, object]:
    from ..ledger.canonical import parse_json

    found = parse_json(run.identity)
    assert isinstance(found, dict)
    return dict(found)


def _preflight(
    settings: Settings, description: Description, known: RunRow | None, concurrency: int | None
) -> Preflight:
    path = settings.ledger_path
    return preflight_of(
        description,
        earlier=None if known is not None else _earlier_run(path, description),
        ledger=str(path.resolve()),
        ledger_exists=path.exists(),
        action="create" if known is None else "report" if known.state == "finished" else "continue",
        run=None if known is None else known.run_id,
        concurrency=concurrency,
        devices=_devices(path, description),
    )


def _devices(path: Path, description: Description) -> list[DeviceOutlook]:
    """The devices that the targets need, and who has them as far as the ledger and this host tell."""
    with contextlib.ExitStack() as stack:
        try:
            ledger = stack.enter_context(Ledger.open(path))
        except LedgerMissing:
            return device_outlooks(description.targets, None)
        return device_outlooks(description.targets, ledger)


def _execute(
    settings: Settings, ledger: Ledger, session: Session, *, limit: int | None, concurrency: int | None
) -> int:
    switch = StopSwitch()
    command = f"tallystick resume {session.run.run_id}{settings.ledger_option}"
    with settings.aside(), Interrupts(switch, last_words=f"Go on with: {command}"):
        outcome = run_to_end(settings, _session(settings, ledger, session, switch, limit, concurrency))
    end = run_end(ledger, outcome, ledger_option=settings.ledger_option)
    if settings.json:
        write_json(end)
    elif session.run.state == "finished":
        show_report(settings.screen(), report_of(ledger, outcome.run_id, ledger_option=settings.ledger_option))
    else:
        show_end(settings.screen(), end)
    return int(outcome.exit_status)


async def _session(
    settings: Settings,
    ledger: Ledger,
    session: Session,
    switch: StopSwitch,
    limit: int | None,
    concurrency: int | None,
) -> RunOutcome:
    grace = session.description.order.execution.grace_seconds
    display = Display(settings, ledger, session.run.run_key, switch, grace_seconds=grace)

    def started(coordinator: Coordinator, tally: Tally) -> None:
        if settings.json:
            return
        with contextlib.suppress(OSError):  # a reader that went away does not end what is paid for
            show_card(settings.screen(), ledger, session, coordinator, tally)
        display.start(tally)

    try:
        return await run_session(
            ledger, session, stop=switch, concurrency=concurrency, slots_max=limit, on_start=started
        )
    finally:
        await display.end()
