"""The library: run a work order, resume a run, look into a ledger.

Everything here may be called from a thread, a script or a notebook. Where an event loop is running already, the
blocking functions execute on a loop of their own in another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._wiring import ADAPTERS
from .blocking import blocking
from .ledger import run_ends
from .ledger.canonical import canonical_text
from .ledger.errors import RunNotFound
from .ledger.ledger import Ledger
from .ledger.location import default_path, path_for_order
from .ledger.run_reads import BudgetState, RunRow, budgets_of, find_run, list_runs, newest_unfinished, slot_counts
from .ledger.settlements import Decision, Settlement
from .ledger.slot_reads import CasePage, Score, Unknown, case_page, scores_of, unknown_outcomes
from .ledger.states import SlotState
from .run_names import RunName, run_text
from .runner.compare_document import Comparison
from .runner.comparing import MIN_COVERAGE, compare
from .runner.descriptions import describe
from .runner.gate_document import GateReport
from .runner.gating import gate
from .runner.protocols import Judge, Target, User
from .runner.reconciling import settle_all
from .runner.report_document import RunReport
from .runner.report_options import ReportOptions, SliceTerm
from .runner.report_reading import open_report, report_of
from .runner.results import RunOutcome, outcome_of
from .runner.sessions import find_or_create, reopened, run_session
from .runner.stopping import StopSwitch
from .runner.work_order import WorkOrder, load_work_order

if TYPE_CHECKING:
    from .ledger.custody_changes import Adopted
    from .ledger.snapshot_export import Exported
    from .ledger.snapshot_import import Imported
    from .runner.fork_document import ForkOutlook

__all__ = ["OpenLedger", "fork", "open", "resume", "resume_async", "run", "run_async"]

StrPath = str | os.PathLike[str]


def run(
    order: WorkOrder | StrPath,
    *,
    ledger: StrPath | None = None,
    new: bool = False,
    concurrency: int | None = None,
    limit: int | None = None,
    stop: StopSwitch | None = None,
) -> RunOutcome:
    """Execute a work order and say how its run stands.

    An unfinished run of the same work order goes on, a finished one makes no call, ``new`` pays again. ``limit`` is the
    number of planned observations that this session takes up. The ledger is ``ledger``, else
    ``$TALLYSTICK_LEDGER``, else ``tallystick.db`` beside the project; it is created where there is none.

    Raises UsageError, RefusedError and LedgerError (see `tallystick.ledger.errors`); what a target does never raises.
    """
    return blocking(lambda: run_async(order, ledger=ledger, new=new, concurrency=concurrency, limit=limit, stop=stop))


async def run_async(
    order: WorkOrder | StrPath,
    *,
    ledger: StrPath | None = None,
    new: bool = False,
    concurrency: int | None = None,
    limit: int | None = None,
    stop: StopSwitch | None = None,
) -> RunOutcome:
    """`run` on the running loop."""
    made = order if isinstance(order, WorkOrder) else load_work_order(Path(order))
    description = await asyncio.to_thread(describe, made, ADAPTERS)
    path = path_for_order(made.folder) if ledger is None else Path(ledger)
    with Ledger.open(path, create=True) as opened:
        session = await asyncio.to_thread(find_or_create, opened, description, new=new)
        return await run_session(opened, session, stop=stop, concurrency=concurrency, slots_max=limit)


def resume(
    run: RunName | None = None,
    *,
    ledger: StrPath | None = None,
    targets: Mapping[str, Target] | None = None,
    judges: Mapping[str, Judge] | None = None,
    user: User | None = None,
    concurrency: int | None = None,
    limit: int | None = None,
    stop: StopSwitch | None = None,
) -> RunOutcome:
    """Recover a run and go on: the one with that id, id prefix or name, else the newest unfinished one.

    ``targets`` (by variant), ``judges`` (by name) and the conversation's ``user`` are given again where the run was
    made from Python objects.
    Raises RunNotFound, RunBusy, IdentityChanged, and what `run` raises.
    """
    return blocking(
        lambda: resume_async(
            run,
            ledger=ledger,
            targets=targets,
            judges=judges,
            user=user,
            concurrency=concurrency,
            limit=limit,
            stop=stop,
        )
    )


async def resume_async(
    run: RunName | None = None,
    *,
    ledger: StrPath | None = None,
    targets: Mapping[str, Target] | None = None,
    judges: Mapping[str, Judge] | None = None,
    user: User | None = None,
    concurrency: int | None = None,
    limit: int | None = None,
    stop: StopSwitch | None = None,
) -> RunOutcome:
    """`resume` on the running loop."""
    with Ledger.open(_path(ledger)) as opened:
        run_id = _named_or_newest(opened, run).run_id
        session = await asyncio.to_thread(reopened, opened, run_id, ADAPTERS, targets=targets, judges=judges, user=user)
        return await run_session(opened, session, stop=stop, concurrency=concurrency, slots_max=limit)


def fork(
    run: RunName,
    order: WorkOrder | StrPath | None = None,
    *,
    ledger: StrPath | None = None,
    dry_run: bool = False,
    targets: Mapping[str, Target] | None = None,
    judges: Mapping[str, Judge] | None = None,
    user: User | None = None,
) -> ForkOutlook:
    """Make a linked new run out of one, by another work order or by its own with today's code; makes no call.

    Observations of the same case content, variant and repetition are reused, what was unknown stays so, all else is to
    pay by `resume`. With ``dry_run`` nothing is written. Without a work order, ``targets``, ``judges`` and ``user`` are
    given again where they came from Python. Raises RunNotFound, and what `run` raises.
    """
    from .runner.forking import fork_run, planned_fork

    made = load_work_order(Path(order)) if isinstance(order, str | os.PathLike) else order
    with Ledger.open(_path(ledger)) as opened:
        planned = planned_fork(opened, run_text(run), ADAPTERS, order=made, targets=targets, judges=judges, user=user)
        return planned.outlook if dry_run else fork_run(opened, planned)


@contextlib.contextmanager
def open(path: StrPath | None = None, *, create: bool = False) -> Iterator[OpenLedger]:  # noqa: A001
    """A ledger to look into and to settle unknown outcomes in; ``with ts.open("evals.db") as ledger:``."""
    with Ledger.open(_path(path), create=create) as opened:
        yield OpenLedger(opened)


class OpenLedger:
    """An open ledger. Reading changes nothing and makes no call.

    A run is named by id, id prefix or name, or is whatever carries its id: an `EmbeddedRun`, a `RunOutcome`, a row of
    `runs`.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return self._ledger.path

    def runs(self, *, limit: int = 100) -> list[RunRow]:
        """The newest runs first."""
        with self._ledger.reading() as reader:
            return list_runs(reader, limit=limit)

    def find(self, run: RunName) -> RunRow:
        """The run; raises RunNotFound and RunAmbiguous."""
        with self._ledger.reading() as reader:
            return find_run(reader, run_text(run))

    def outcome(self, run: RunName) -> RunOutcome:
        """How the run stands and what helps next."""
        return outcome_of(self._ledger, self.find(run).run_id)

    def counts(self, run: RunName) -> dict[SlotState, int]:
        """The whole population by state."""
        with self._ledger.reading() as reader:
            return slot_counts(reader, find_run(reader, run_text(run)).run_key)

    def budgets(self, run: RunName) -> list[BudgetState]:
        """What each budget has settled and holds, in whole units (nano-USD, milliseconds)."""
        with self._ledger.reading() as reader:
            return budgets_of(reader, find_run(reader, run_text(run)).run_key)

    def scores(self, run: RunName) -> list[Score]:
        """Each judge's figures for each variant, with their denominators."""
        with self._ledger.reading() as reader:
            return scores_of(reader, find_run(reader, run_text(run)).run_key)

    def report(
        self,
        run: RunName,
        *,
        at: int | None = None,
        slices: Mapping[str, Any] | None = None,
        by: str | None = None,
        evaluation: str | None = None,
    ) -> RunReport:
        """The report of a run as it stood at an event, without the planned observations themselves.

        ``slices`` are metadata that cases must have, ``by`` a metadata key whose values get scores of their own,
        ``evaluation`` a number, id or name. Raises RunNotFound, EvaluationNotFound and UsageError.
        """
        return report_of(self._ledger, run_text(run), _options(at, slices, by, evaluation))

    def write_report(
        self,
        run: RunName,
        path: StrPath,
        *,
        form: str | None = None,
        at: int | None = None,
        slices: Mapping[str, Any] | None = None,
        by: str | None = None,
        evaluation: str | None = None,
    ) -> None:
        """The whole report in a file; ``form`` is ``json``, ``html``, ``md``, ``csv`` or ``junit``, else its name says.

        Raises what `report` raises, and UsageError for a file that cannot be written.
        """
        from .renderers.files import ReportForm, form_of, pieces_of, write_whole

        wanted = form_of(Path(path)) if form is None else ReportForm(form)
        with open_report(self._ledger, run_text(run), _options(at, slices, by, evaluation)) as report:
            write_whole(Path(path), pieces_of(report, wanted))

    def to_pandas(
        self,
        run: RunName,
        *,
        at: int | None = None,
        slices: Mapping[str, Any] | None = None,
        evaluation: str | None = None,
    ) -> Any:
        """A data frame with a row for each planned observation; needs ``tallystick[pandas]``."""
        from .renderers.frames import report_frame

        with open_report(self._ledger, run_text(run), _options(at, slices, None, evaluation)) as report:
            return report_frame(report)

    def compare(
        self,
        baseline: RunName,
        candidate: RunName | None = None,
        *,
        slices: Mapping[str, Any] | None = None,
        by: str | None = None,
        per_case: bool = False,
        min_coverage: float = MIN_COVERAGE,
    ) -> Comparison:
        """Two sides pair by pair, each ``RUN[:VARIANT][#EVALUATION][@EVENT]``; the first alone has two variants."""
        terms = _options(None, slices, None, None).terms
        second = None if candidate is None else run_text(candidate)
        return compare(
            self._ledger, run_text(baseline), second, terms=terms, by=by, per_case=per_case, min_coverage=min_coverage
        )

    def gate(
        self,
        run: RunName,
        order: WorkOrder | None = None,
        *,
        baseline: RunName | None = None,
        at: int | None = None,
        slices: Mapping[str, Any] | None = None,
        evaluation: str | None = None,
    ) -> GateReport:
        """Whether the run is within its gates, or within those of the work order ``order``; raises UsageError."""
        gates = None if order is None else order.gates
        against = None if baseline is None else run_text(baseline)
        options = _options(at, slices, None, evaluation)
        return gate(self._ledger, run_text(run), gates, baseline=against, options=options)

    def case(self, run: RunName, case_id: str) -> list[CasePage]:
        """Every planned observation of a case with its whole history."""
        with self._ledger.reading() as reader:
            return case_page(reader, find_run(reader, run_text(run)).run_key, case_id)

    def unknown(self, run: RunName) -> list[Unknown]:
        """Every unknown outcome with its evidence."""
        with self._ledger.reading() as reader:
            return unknown_outcomes(reader, find_run(reader, run_text(run)).run_key)

    def settle(self, settlement: Settlement) -> SlotState:
        """Settle one unknown outcome by an operator's decision; raises TransitionRefused when it is not unknown."""
        return settle_all(self._ledger, [settlement])[0]

    def give_up(self, unknown: Unknown, *, reason: str, made_by: str) -> SlotState:
        """Settle an unknown outcome as never to be known; its bound counts as spent."""
        return self.settle(Settlement(unknown.call_id, unknown.dispatch_no, Decision.GIVE_UP, made_by, reason))

    def not_landed(self, unknown: Unknown, *, reason: str, made_by: str) -> SlotState:
        """Settle an unknown outcome as proven not to have happened; its case waits for a new attempt."""
        return self.settle(Settlement(unknown.call_id, unknown.dispatch_no, Decision.NOT_LANDED, made_by, reason))

    def retry(self, run: RunName, state: str, *, reason: str | None = None) -> int:
        """Let planned observations that ended so wait again, all or those with that reason; returns how many.

        ``state`` is ``failed``, ``unavailable``, ``parked`` or ``cancelled``. The next `run` of the same work order, or
        `resume`, takes them up. Raises UsageError for another state: unknown outcomes are settled.
        """
        run_key = self.find(run).run_key
        return self._ledger.write(lambda tx: run_ends.retry(tx, run_key, state=state, reason=reason))

    def export(
        self,
        *runs: RunName,
        to: StrPath,
        move: bool = False,
        slots: Sequence[str] = (),
        redact: Sequence[str] = (),
        force: bool = False,
    ) -> Exported:
        """Write the runs with everything that they refer to into one file, durably, while they may go on.

        A copy, unless ``move`` gives them away. ``slots`` and ``redact`` say what is left out, as for the command line.
        Raises UsageError where the path is taken (unless ``force``), RunBusy and CustodyElsewhere for a move.
        """
        from .ledger.snapshot_wish import SnapshotWish, write_snapshot

        wish = SnapshotWish(move=move, slots=tuple(slots), redact=tuple(redact), force=force)
        return write_snapshot(self._ledger, [self.find(run).run_id for run in runs], Path(to), wish)

    def import_(self, path: StrPath) -> Imported:
        """Verify a snapshot completely and take in its runs, or nothing; the same again changes nothing.

        Raises SnapshotInvalid (with the place), SnapshotNewer, SnapshotDiverged and RunBusy.
        """
        from .ledger.snapshot_import import import_snapshot

        return import_snapshot(self._ledger, Path(path))

    def adopt(self, run: RunName, *, reason: str, made_by: str) -> Adopted:
        """Go on here with a run that is a copy, or take back one that was moved away and never imported.

        That nobody else goes on with it cannot be proven: ``reason`` is kept as the word for it.
        """
        from .ledger.custody_changes import adopt

        return adopt(self._ledger, self.find(run).run_id, reason=reason, made_by=made_by)


def _options(at: int | None, slices: Mapping[str, Any] | None, by: str | None, evaluation: str | None) -> ReportOptions:
    terms = (
        SliceTerm(key, value if isinstance(value, str) else canonical_text(value))
        for key, value in (slices or {}).items()
    )
    return ReportOptions(at, tuple(terms), by, evaluation)


def _named_or_newest(ledger: Ledger, run: RunName | None) -> RunRow:
    with ledger.reading() as reader:
        found = newest_unfinished(reader) if run is None else find_run(reader, run_text(run))
    if found is None:
        raise RunNotFound("there is no unfinished run", "list the runs with `tallystick runs`")
    return found


def _path(ledger: StrPath | None) -> Path:
    return default_path() if ledger is None else Path(ledger)
