"""The library's judging: evaluate what a run has observed, hold judges against labels."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from ._wiring import ADAPTERS
from .api import StrPath, _path
from .blocking import blocking
from .ledger.errors import UsageError
from .ledger.evaluations import find_evaluation, let_retried_wait
from .ledger.ledger import Ledger
from .ledger.run_reads import find_run
from .ledger.verdicts import NoVerdictReason
from .run_names import RunName, run_text
from .runner.evaluation_models import EvaluationEnd
from .runner.evaluation_reports import evaluation_end
from .runner.evaluations import (
    EvaluationSession,
    describe_judge_order,
    find_or_create_evaluation,
    reparsing,
    run_evaluation,
)
from .runner.judge_orders import JudgeOrder, load_judge_order
from .runner.labelled import load_labelled
from .runner.qualification_models import QualifyEnd
from .runner.qualifying import qualify as _qualify
from .runner.stopping import StopSwitch

__all__ = ["evaluate", "evaluate_async", "qualify", "qualify_async"]


def evaluate(
    run: RunName,
    order: JudgeOrder | StrPath,
    *,
    ledger: StrPath | None = None,
    new: bool = False,
    at_event: int | None = None,
    retry: Sequence[str] = (),
    reparse: str | None = None,
    concurrency: int | None = None,
    stop: StopSwitch | None = None,
) -> EvaluationEnd:
    """Judge what a run has observed, as a new evaluation or an unfinished one gone on with; no target is called.

    ``run`` is an id, the beginning of one, or a name. The other options are those of ``tallystick judge``. Raises
    UsageError, RefusedError and LedgerError; what a judge does never raises.
    """
    return blocking(
        lambda: evaluate_async(
            run, order, ledger=ledger, new=new, at_event=at_event, retry=retry, reparse=reparse,
            concurrency=concurrency, stop=stop,
        )
    )  # fmt: skip


async def evaluate_async(
    run: RunName,
    order: JudgeOrder | StrPath,
    *,
    ledger: StrPath | None = None,
    new: bool = False,
    at_event: int | None = None,
    retry: Sequence[str] = (),
    reparse: str | None = None,
    concurrency: int | None = None,
    stop: StopSwitch | None = None,
) -> EvaluationEnd:
    """`evaluate` on the running loop."""
    made = order if isinstance(order, JudgeOrder) else load_judge_order(Path(order))
    with Ledger.open(_path(ledger)) as opened:
        session = await asyncio.to_thread(
            _session, opened, run, made, new=new, at_event=at_event, reparse=reparse, must_exist=bool(retry)
        )
        _let_wait(opened, session, retry)
        done = await run_evaluation(opened, session, stop=stop, concurrency=concurrency)
        return evaluation_end(opened, session.row, done, order=made.source)


def qualify(
    order: JudgeOrder | StrPath,
    labelled: StrPath,
    *,
    ledger: StrPath | None = None,
    concurrency: int | None = None,
    stop: StopSwitch | None = None,
) -> QualifyEnd:
    """Hold judges against a file of labelled observations, and keep their figures.

    Raises CaseFileInvalid for the file, and what `evaluate` raises.
    """
    return blocking(lambda: qualify_async(order, labelled, ledger=ledger, concurrency=concurrency, stop=stop))


async def qualify_async(
    order: JudgeOrder | StrPath,
    labelled: StrPath,
    *,
    ledger: StrPath | None = None,
    concurrency: int | None = None,
    stop: StopSwitch | None = None,
) -> QualifyEnd:
    """`qualify` on the running loop."""
    made = order if isinstance(order, JudgeOrder) else load_judge_order(Path(order))
    labels = load_labelled(Path(labelled))
    with Ledger.open(_path(ledger), create=True) as opened:
        return await _qualify(opened, made, labels, ADAPTERS, stop=stop, concurrency=concurrency)


def _session(
    ledger: Ledger,
    run: RunName,
    order: JudgeOrder,
    *,
    new: bool,
    at_event: int | None,
    reparse: str | None,
    must_exist: bool,
) -> EvaluationSession:
    description = describe_judge_order(order, ADAPTERS)
    with ledger.reading() as reader:
        found = find_run(reader, run_text(run))
        source = None if reparse is None else find_evaluation(reader, found.run_key, reparse)
    if source is not None:
        description = reparsing(ledger, source, description)
    return find_or_create_evaluation(ledger, found, description, new=new, at_event=at_event, must_exist=must_exist)


def _let_wait(ledger: Ledger, session: EvaluationSession, retry: Sequence[str]) -> None:
    for reason in retry:
        if reason not in set(NoVerdictReason):
            raise UsageError(f"there is no reason {reason}", f"known are {', '.join(NoVerdictReason)}")
        ledger.write(lambda tx, reason=reason: let_retried_wait(tx, session.row, reason=reason))  # type: ignore[misc]
