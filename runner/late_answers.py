"""Answers that come after their attempt has ended: kept with that attempt, paid for, and never anything else."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine

import attrs

from ..ledger import artifacts
from ..ledger.canonical import canonical_text, digest_of_bytes
from ..ledger.late import keep_late
from ..ledger.ledger import Ledger
from ..ledger.records import DispatchKey
from ..ledger.states import DispatchState
from .outcome_facts import facts_of
from .protocols import Missing, Outcome
from .stopping import StopSwitch
from .tally import Tally

__all__ = ["LateAnswers"]

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2


class LateAnswers:
    """Takes late answers from any thread and commits them; belongs to the coordinator's loop."""

    def __init__(self, ledger: Ledger, tally: Tally) -> None:
        self._ledger = ledger
        self._tally = tally
        self._loop = asyncio.get_running_loop()
        self._expected: set[str] = set()
        self._tasks: set[asyncio.Task[object]] = set()
        self._change = asyncio.Event()

    def expect(self, key: DispatchKey) -> None:
        """The target is still at it and will report; the end of the session waits a little for it."""
        self._expected.add(key.call_id)

    def reporter(self, key: DispatchKey, began: float) -> Callable[[Outcome], None]:
        """What a target calls, from any thread, when a whole answer came too late."""

        def report(outcome: Outcome) -> None:
            try:
                self._loop.call_soon_threadsafe(self.arrived, key, outcome, began)
            except RuntimeError:
                # The session is over: nobody listens any more, and the outcome stays unknown.
                logger.info("a late answer came after the session", extra={"event": "late.unheard"})

        return report

    def arrived(self, key: DispatchKey, outcome: Outcome, began: float) -> None:
        """Something came back late; only a whole answer is evidence."""
        if outcome.state is DispatchState.ANSWERED and not isinstance(outcome.answer, Missing):
            _ = self.spawn(self._keep(key, outcome, began))
        else:
            self._expected.discard(key.call_id)
            self._change.set()

    def spawn(self, work: Coroutine[object, object, object]) -> asyncio.Task[object]:
        """Run what must be committed though its worker has gone on."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def wait(self, seconds: float, stop: StopSwitch) -> None:
        """Wait for what is on its way, at most so long, and only for commits once asked to stop."""
        end = time.monotonic() + seconds
        while (self._tasks or (self._expected and not stop.is_asked)) and (left := end - time.monotonic()) > 0:
            self._change.clear()
            try:
                async with asyncio.timeout(min(left, _LOOK_SECONDS)):
                    await self._change.wait()
            except TimeoutError:
                continue

    async def _keep(self, key: DispatchKey, outcome: Outcome, began: float) -> None:
        answer = canonical_text(outcome.answer)  # type: ignore[arg-type]  # `arrived` asked
        late = attrs.evolve(outcome, state=DispatchState.LATE)
        facts = facts_of(late, duration_us=round((time.monotonic() - began) * 1e6), settled_by="late")
        facts = await artifacts.with_stored_raw(self._ledger, facts)
        digest, stored = digest_of_bytes(answer.encode()), await artifacts.stored_answer(self._ledger, answer)
        evidence, flags = canonical_text(outcome.evidence), canonical_text(list(outcome.flags))
        self._tally.late += await self._ledger.write_async(
            lambda tx: keep_late(tx, key, facts, answer=stored, answer_digest=digest, evidence=evidence, flags=flags)
        )
        self._expected.discard(key.call_id)

    def _done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        self._change.set()
        if not task.cancelled() and (problem := task.exception()) is not None:
            logger.error("a late answer could not be kept", exc_info=problem, extra={"event": "late.lost"})
