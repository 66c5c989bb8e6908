"""A run that somebody's own asyncio harness executes: it takes slots, begins attempts, and tells of its calls.

The harness sends; the ledger is told before and after. Nothing here starts a task, a thread or a handler of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from typing import Final

from ..ledger import run_ends
from ..ledger.coordinators import Coordinator, open_run, release_run
from ..ledger.errors import BudgetExhausted, UsageError
from ..ledger.ledger import Ledger
from ..ledger.records import PendingSlot
from ..ledger.run_reads import own_budgets_of, stop_asked
from ..ledger.states import SlotState
from ..ledger.transaction import Transaction
from .descriptions import fingerprint_of
from .embedded_attempts import EmbeddedAttempt
from .executor import VariantSide
from .feed import Feed
from .holds import holds_by_variant
from .inline_judging import case_of
from .protocols import Case
from .retry_policy import RetryPolicy, retry_policy
from .sessions import Session

__all__ = ["EmbeddedRun", "EmbeddedSlot"]

_LOOK_SECONDS: Final = 0.2


class EmbeddedRun:
    """This process's hold of a run; `close` gives it back. For one event loop."""

    def __init__(self, ledger: Ledger, session: Session) -> None:
        self._ledger = ledger
        order = session.description.order
        self.coordinator: Coordinator = open_run(
            ledger, session.run.run_id, solitary_deaths_max=order.execution.solitary_deaths_max
        )
        self.run_id = session.run.run_id
        self.run_key = self.coordinator.run_key
        self.policy: RetryPolicy = retry_policy(order.execution, chance=random.random)
        (name,) = session.description.targets
        with ledger.reading() as reader:
            plans = [state.plan for state in own_budgets_of(reader, self.run_key)]
        self.side = VariantSide(
            1, name, session.description.targets[name], holds_by_variant(plans, {1: name})[1],
            fingerprint_of(session.description, name),
        )  # fmt: skip
        self._feed = Feed(ledger, self.run_key)
        self._out: set[int] = set()
        self._begun: set[int] = set()
        self._passed_over: set[int] = set()
        self._change = asyncio.Event()
        self._began = time.monotonic()
        self._is_closed = False
        self.exhausted: BudgetExhausted | None = None

    async def claims(self, *, concurrency: int | None = None) -> AsyncIterator[EmbeddedSlot]:
        """What is left, one slot after the other, until nothing waits, a budget is full, or somebody asks to stop.

        With ``concurrency``, at most so many of them have not ended their attempt. What was in flight at a death comes
        first, one at a time. One that is given and never begun is waited for: say `EmbeddedSlot.pass_over` of it.
        """
        if concurrency is not None and concurrency < 1:
            raise UsageError(f"claims cannot go {concurrency} at a time", "give a concurrency of 1 or more")
        while not self._is_ending():
            limit = concurrency
            waiting = [*self._feed.suspects(blamed=False), *self._feed.suspects(blamed=True)]
            suspects = [slot for slot in waiting if slot.slot_no not in self._passed_over]
            if suspects:
                limit = 1
            if limit is not None and len(self._out - self._passed_over) >= limit:
                await self._wait()
                continue
            found = suspects[0] if suspects else self._feed.next()
            if found is None:
                if not await self._is_more_coming():
                    return
                continue
            self._out.add(found.slot_no)
            yield EmbeddedSlot(self, found, solitary=bool(suspects))

    def _is_ending(self) -> bool:
        with self._ledger.reading() as reader:
            asked, _ = stop_asked(reader, self.run_key)
        return asked is not None or self.exhausted is not None or self._is_closed

    async def _is_more_coming(self) -> bool:
        """Whether a slot may wait again: one of an attempt that goes on, or one that waits for its time."""
        await asyncio.sleep(0)  # tasks that were just given a slot begin its attempt
        if self._begun:
            await self._wait()
            return True
        until_us = self._feed.waits_until_us(besides=self._passed_over)
        if until_us is None or self._out - self._begun - self._passed_over:
            return False
        await asyncio.sleep(min(_LOOK_SECONDS, max(0.0, (until_us - self._ledger.clock.now_us()) / 1e6)))
        return True

    async def _wait(self) -> None:
        self._change.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._change.wait()

    def pass_over(self, slot: PendingSlot) -> None:
        """The slot stays as it is, and is not given again by this hold of the run."""
        if slot.slot_no not in self._begun:
            self._passed_over.add(slot.slot_no)
            self._change.set()

    def begun(self, slot: PendingSlot) -> None:
        self._begun.add(slot.slot_no)
        self._passed_over.discard(slot.slot_no)

    def ended(self, slot: PendingSlot, state: SlotState) -> None:
        self._out.discard(slot.slot_no)
        self._begun.discard(slot.slot_no)
        self._feed.done(slot.slot_no, waits_again=state is SlotState.PENDING)
        self._change.set()

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    async def close(self, *, reason: str = "ended") -> None:
        """Give the run back, ended where nothing is left; idempotent. An attempt that is still going on is not over."""
        if self._is_closed:
            return
        self._is_closed = True
        active_us = round((time.monotonic() - self._began) * 1e6)

        def work(tx: Transaction) -> None:
            run_ends.finish_run(tx, self.run_key)
            release_run(tx, self.coordinator, reason=reason, active_us=active_us)

        await self._ledger.write_async(work)


class EmbeddedSlot:
    """One planned observation that is to be made; `attempt` begins to make it."""

    def __init__(self, run: EmbeddedRun, pending: PendingSlot, *, solitary: bool) -> None:
        self._run = run
        self._pending = pending
        self._solitary = solitary
        self.case: Case = case_of(pending.case_id, pending.input, pending.expected, pending.metadata)
        self.repetition = pending.repetition

    def __repr__(self) -> str:
        return f"<EmbeddedSlot {self.case.id} repetition {self.repetition}>"

    def pass_over(self) -> None:
        """Leave it for another time: it waits on, and whoever takes it comes by a later hold of the run."""
        self._run.pass_over(self._pending)

    def attempt(self, *, deadline_seconds: float | None = None, replay: bool = False) -> EmbeddedAttempt:
        """A new attempt, for ``async with``. Past its deadline the block is cancelled and raises TimeoutError.

        With ``replay``, a call that an earlier attempt has an answer for brings it as `EmbeddedCall.known`.
        """
        return EmbeddedAttempt(self._run, self._pending, self._solitary, deadline_seconds, replay=replay)
