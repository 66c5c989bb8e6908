"""The ledger inside somebody's own asyncio harness: ``async with ts.open_async("evals.db") as ledger:``.

What is promised to who embeds it: no signal handler, no log handler, nothing on standard output, no task or thread on
the caller's loop, no migration of an older ledger; names that stay.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Unpack

import attrs

from ._wiring import ADAPTERS
from .api import OpenLedger
from .guard_budget import Budgets, budget_tables
from .ledger.call_reads import CallRow, calls
from .ledger.canonical import JsonValue, parse_json
from .ledger.errors import UsageError
from .ledger.ledger import Ledger
from .ledger.location import default_path
from .ledger.observation_reads import observations
from .ledger.states import DispatchState, IfUnknown
from .run_names import RunName
from .runner.descriptions import describe
from .runner.elsewhere import HarnessTarget
from .runner.embedded import EmbeddedRun, EmbeddedSlot
from .runner.embedded_attempts import EmbeddedAttempt
from .runner.embedded_calls import EmbeddedCall, EmbeddedReservation
from .runner.protocols import Case
from .runner.sessions import find_or_create
from .runner.work_order import WorkOrder
from .runner.work_order_execution import ExecutionOptions

__all__ = [
    "AsyncLedger",
    "CallRecord",
    "EmbeddedAttempt",
    "EmbeddedCall",
    "EmbeddedReservation",
    "EmbeddedRun",
    "EmbeddedSlot",
    "Observation",
    "open_async",
]

StrPath = str | os.PathLike[str]
_POLICIES = (IfUnknown.KEEP, IfUnknown.REPEAT, IfUnknown.RESEND, IfUnknown.RESTART)


@attrs.frozen
class Observation:
    """One selected observation as JSON values."""

    case_id: str
    repetition: int
    attempt: int
    answer: JsonValue
    evidence: Mapping[str, JsonValue]
    flags: tuple[str, ...]


@attrs.frozen
class CallRecord:
    """One dispatch of a call of an attempt. Counts are None where they are not known; money is in nano-USD.

    ``name`` is that of `EmbeddedAttempt.call`; empty for requests that have none, whose ``head`` says what they ask.
    """

    case_id: str
    repetition: int
    attempt: int
    position: int
    dispatch: int
    request_id: str
    name: str
    head: JsonValue
    state: DispatchState
    reason: str
    message: str
    status: int | None
    tokens_in: int | None
    tokens_out: int | None
    cost_nanousd: int | None
    began_at: datetime
    duration_seconds: float | None


class open_async:  # noqa: N801 - read as a function: async with ts.open_async("evals.db") as ledger
    """A ledger for a harness of one's own; created where there is none, unless ``create`` is false.

    Raises LedgerMissing, LedgerOutdated (it is never upgraded unasked) and what `open` raises.
    """

    def __init__(self, path: StrPath | None = None, *, create: bool = True) -> None:
        self._path = default_path() if path is None else Path(path)
        self._create = create
        self._opened: AsyncLedger | None = None

    async def __aenter__(self) -> AsyncLedger:
        ledger = await asyncio.to_thread(Ledger.open, self._path, create=self._create)
        self._opened = AsyncLedger(ledger)
        return self._opened

    async def __aexit__(self, *exception: object) -> None:
        assert self._opened is not None
        await self._opened.aclose()


class AsyncLedger(OpenLedger):
    """An open ledger that a harness executes runs in; reads as `OpenLedger` does, at once and without a call."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._held: list[EmbeddedRun] = []

    async def create_or_continue(
        self,
        name: str,
        *,
        slots: Iterable[Case | Mapping[str, JsonValue] | str],
        identity: Mapping[str, JsonValue],
        repetitions: int = 1,
        if_unknown: IfUnknown | str = IfUnknown.KEEP,
        budget: Budgets = (),
        **execution: Unpack[ExecutionOptions],
    ) -> EmbeddedRun:
        """The run of that name: what is left of it where it exists, else a new one; this process holds it from now on.

        ``slots`` are cases (a text is one whose id and input it is), each observed ``repetitions`` times. ``identity``
        is what answers depend on: with another one an unfinished run is not continued. Execution options are those
        of a work order (``attempts_max``, ``retry``, …). Raises IdentityChanged, RunBusy, UsageError and LedgerError.
        """
        try:
            policy = IfUnknown(if_unknown)
        except ValueError:
            policy = IfUnknown.QUERY
        if policy not in _POLICIES:
            raise UsageError(f'a harness has no if_unknown = "{if_unknown}"', f"choose one of {', '.join(_POLICIES)}")
        if isinstance(slots, str | Mapping):
            raise UsageError(f"slots={slots!r:.60} is no list of slots", 'give several: slots=["a", "b"]')
        if not isinstance(identity, Mapping):
            raise UsageError(f"identity={identity!r:.60} is no mapping", 'give one: identity={"model": "small"}')
        cases = [{"id": one, "input": one} if isinstance(one, str) else one for one in slots]
        order = WorkOrder(
            name, target=HarnessTarget(dict(identity), policy), cases=cases, repetitions=repetitions,
            budgets=budget_tables(budget), **execution,
        )  # fmt: skip
        description = await asyncio.to_thread(describe, order, ADAPTERS)
        session = await asyncio.to_thread(find_or_create, self._ledger, description)
        # On the loop: its events belong here. It is one transaction.
        run = EmbeddedRun(self._ledger, session)
        self._held.append(run)
        return run

    def observations(self, run: RunName) -> Iterator[Observation]:
        """Every selected observation of a run in the order of its plan, some hundred at a time."""
        run_key = self.find(run).run_key
        for row in observations(self._ledger, run_key):
            evidence: Any = parse_json(row.evidence)
            flags: Any = parse_json(row.flags)
            yield Observation(
                row.case_id, row.repetition, row.attempt_no, parse_json(row.answer), evidence, tuple(flags)
            )

    def calls(self, run: RunName) -> Iterator[CallRecord]:
        """Every send of every call of the run's attempts, in the order of its plan, some hundred at a time."""
        run_key = self.find(run).run_key
        return map(_call_record, calls(self._ledger, run_key))

    async def aclose(self) -> None:
        """Give back every run that is held, and close the ledger; idempotent."""
        held, self._held = self._held, []
        try:
            for run in held:
                if self._ledger.failure is None:
                    await run.close()
        finally:
            await asyncio.to_thread(self._ledger.close)


def _call_record(row: CallRow) -> CallRecord:
    head = parse_json(row.head)
    name = head.get("call") if isinstance(head, dict) else None
    return CallRecord(
        row.case_id, row.repetition, row.attempt_no, row.position, row.dispatch_no, row.call_id,
        name if isinstance(name, str) else "", head, row.state, row.reason, row.message, row.status, row.tokens_in,
        row.tokens_out, row.cost_nanousd, datetime.fromtimestamp(row.intended_us / 1e6, UTC),
        None if row.duration_us is None else row.duration_us / 1e6,
    )  # fmt: skip
