"""One judgment by a judge that calls: intent, dispatch, outcome, and what may follow when it brought no verdict.

The order is the promise, as in `attempt_steps`: prepare, commit the intent, dispatch, commit the outcome with the
verdict. Every wait lies before an intent. An unknown outcome keeps what it holds, and another call follows only where
the judge says that it may (``if_unknown = "repeat"``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

import attrs

from ..ledger import artifacts
from ..ledger.canonical import canonical_text, digest_of_bytes
from ..ledger.crashpoints import crashpoint
from ..ledger.errors import BudgetExhausted
from ..ledger.judging_reads import judge_tries_spent
from ..ledger.judgment_calls import (
    JudgeIntent,
    begin_judgment,
    dispatch_judgment_again,
    end_judgment_call,
    undo_judgment,
)
from ..ledger.judgments import add_judgments, let_wait
from ..ledger.ledger import Ledger
from ..ledger.records import DispatchFacts, DispatchKey, Hold, JudgmentKey, JudgmentRow
from ..ledger.states import DispatchState, IfUnknown
from ..ledger.transaction import Transaction
from ..ledger.verdicts import NoVerdictReason
from .judge_protocols import CallingJudge
from .judging import judge_error
from .outcome_facts import facts_of, interrupted_outcome, said_of
from .pacing import Pace
from .protocols import Dispatching, NoVerdict, Observed, Outcome, Prepared, SlotView, Verdict, WireProgress
from .request_bounds import RequestBounds
from .retry_policy import RetryPolicy
from .stopping import StopSwitch
from .tally import JudgingTally
from .verdict_rows import by_judge, checked, judgment_row

__all__ = ["Asked", "JudgeCalls", "read_safely"]

_WAIT_SECONDS_MAX: Final = 300.0
"""How long a judge may ask to be left alone before its judgments are given up for now."""

_CANCEL_SECONDS: Final = 1.0
_UNREADABLE: Final = frozenset(
    {NoVerdictReason.MALFORMED_VERDICT, NoVerdictReason.AMBIGUOUS_VERDICT, NoVerdictReason.CONFLICTING_VERDICT}
)
_OUT_OF_TIME: Final = frozenset({"deadline"})


@attrs.frozen
class Asked:
    """What a judge is asked: which judgment, on which observation; ``row`` has what its row says in any case."""

    key: JudgmentKey
    judge: CallingJudge
    observed: Observed
    run_id: str
    evidence_digest: str | None = None
    cache_key: str | None = None
    solitary: bool = False


class JudgeCalls:
    """Makes the calls of judges for one session, on its loop."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        holds: Mapping[int, tuple[Hold, ...]],
        bounds: Mapping[int, RequestBounds],
        policy: RetryPolicy,
        deadline_seconds: float,
        pace: Pace,
        stop: StopSwitch,
        tally: JudgingTally,
    ) -> None:
        self._ledger = ledger
        self._holds = holds
        self._bounds = bounds
        self._policy = policy
        self._deadline_seconds = deadline_seconds
        self._pace = pace
        self._stop = stop
        self._tally = tally
        self._busy = self._waiting = self._ended_count = 0
        self._ended = asyncio.Event()
        self.dispatches = 0

    async def judge(self, asked: Asked) -> bool:
        """Ask until there is a verdict or a reason why not; says whether one is committed.

        False where somebody asked to stop: the judgment waits. Raises LedgerError.
        """
        self._busy += 1
        try:
            return await self._judge(asked)
        finally:
            self._busy -= 1
            self._has_ended()

    async def _judge(self, asked: Asked) -> bool:
        try:
            prepared = asked.judge.prepare(asked.observed)
            head = canonical_text(prepared.head)
            holds = self._holds_of(asked, prepared)
        except Exception as problem:  # noqa: BLE001 - one observation's fault must not stop the others
            return await self._commit(asked, judge_error(problem))
        failures = 0
        while await self._turn(asked.key.judge_no):
            try:
                sent = await self._begun(asked, prepared, head, holds)
            except BudgetExhausted as full:
                return await self._commit(asked, NoVerdict(NoVerdictReason.OUT_OF_BUDGET, full.what))
            if sent is None:
                return False
            if await self._one_call(asked, prepared, sent):
                return True
            failures += 1
            if not await self._stop.sleep(self._policy.wait_seconds(failures)):
                return False
        return False

    # Before the dispatch.

    async def _turn(self, judge_no: int) -> bool:
        """Wait for the judge's turn, also while it asks to be left alone; False where that is for too long, or where
        somebody asked to stop.

        Each wait is one that a reply asked for, and how many replies there may be is bounded for every judgment.
        """
        while not await self._pace.turn(judge_no):
            wait = self._pace.held_back().get(judge_no, 0.0)
            if self._stop.is_asked or wait > _WAIT_SECONDS_MAX or not await self._stop.sleep(wait):
                return False
        return True

    def _holds_of(self, asked: Asked, prepared: Prepared) -> tuple[Hold, ...]:
        holds, bounds = self._holds[asked.key.judge_no], self._bounds.get(asked.key.judge_no)
        return holds if bounds is None else bounds.holds(holds, prepared)

    async def _begun(self, asked: Asked, prepared: Prepared, head: str, holds: tuple[Hold, ...]) -> DispatchKey | None:
        """The call's first dispatch, its intent being durable; None where somebody asked to stop.

        Raises BudgetExhausted where a budget has no room and nothing of this session is under way.
        """
        crashpoint("judgment.intent.before")
        payload = prepared.payload if prepared.keep else None
        intent = JudgeIntent(
            asked.key, self._ledger.ids.next(), head, payload, digest_of_bytes(prepared.payload),
            len(prepared.payload), asked.judge.if_unknown, holds, asked.solitary,
        )  # fmt: skip
        if payload is not None and len(payload) > artifacts.INLINE_MAX:
            file = await artifacts.prepare_async(self._ledger, payload)
            intent = attrs.evolve(intent, payload=None, payload_artifact=file)
        while True:
            ended_before = self._ended_count
            try:
                sent = await self._ledger.write_async(
                    lambda tx: begin_judgment(tx, intent), undo=lambda tx, sent: undo_judgment(tx, asked.key, sent)
                )
            except BudgetExhausted:
                if not await self._wait_for_room(ended_before):
                    raise
                if self._stop.is_asked:
                    return None
                continue
            crashpoint("judgment.intent.committed")
            return sent

    async def _wait_for_room(self, ended_before: int) -> bool:
        """What others are at may settle below its bound; only when nobody is at anything, there is no room."""
        if self._ended_count != ended_before:
            return True
        if self._busy <= self._waiting + 1:
            return False
        self._waiting += 1
        self._ended.clear()
        try:
            await self._ended.wait()
        finally:
            self._waiting -= 1
        return True

    # The dispatches of one call.

    async def _one_call(self, asked: Asked, prepared: Prepared, sent: DispatchKey) -> bool:
        """Dispatch until the call has an end; says whether the judgment has one, too."""
        while True:
            began = time.monotonic()
            outcome = await self._sent(asked, prepared, sent)
            crashpoint("judgment.sent")
            facts = await self._facts(outcome, began)
            if outcome.state is not DispatchState.REFUSED:
                return await self._ended_call(asked, sent, facts, outcome)
            again = await self._refused(asked, sent, facts, outcome)
            if isinstance(again, bool):
                return again
            sent = again

    async def _sent(self, asked: Asked, prepared: Prepared, sent: DispatchKey) -> Outcome:
        progress, observed = WireProgress(), asked.observed
        view = SlotView(asked.run_id, observed.case, observed.variant, observed.repetition)
        dispatching = Dispatching(sent.call_id, 1, sent.dispatch_no, view, self._deadline_seconds, progress)
        self.dispatches += 1
        began = time.monotonic()
        task = asyncio.ensure_future(asked.judge.dispatch(prepared, dispatching))
        try:
            # The judge keeps the deadline itself; one that does not is cancelled, and then let go of.
            await asyncio.wait({task}, timeout=self._deadline_seconds + _CANCEL_SECONDS)
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.ensure_future(self._broken_off(asked, sent, task, progress, began)))
            raise
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
            return interrupted_outcome(progress, reason="deadline", message="it did not end at its deadline")
        return _outcome_of(task, progress)

    async def _broken_off(
        self, asked: Asked, sent: DispatchKey, task: asyncio.Future[Outcome], progress: WireProgress, began: float
    ) -> None:
        """The session was asked to stop, and its grace time is over: commit what is known."""
        task.cancel()
        await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
        if task.done() and not task.cancelled():
            outcome = _outcome_of(task, progress)
        else:
            outcome = interrupted_outcome(progress, reason="stopped", message="broken off")
        facts = await self._facts(outcome, began)
        if outcome.state is DispatchState.REFUSED:
            await self._ledger.write_async(lambda tx: end_judgment_call(tx, asked.key, sent, facts, None))
        else:
            await self._ended_call(asked, sent, facts, outcome)

    async def _refused(
        self, asked: Asked, sent: DispatchKey, facts: DispatchFacts, outcome: Outcome
    ) -> DispatchKey | bool:
        """The next dispatch of the call; True where it is given up, False where somebody asked to stop."""
        self._tally.fail(said_of(outcome), self._ledger.clock.now_us())
        wait = self._policy.wait_seconds(sent.dispatch_no, retry_after_seconds=outcome.retry_after_seconds)
        if outcome.retry_after_seconds:
            self._pace.hold(asked.key.judge_no, outcome.retry_after_seconds)
        if wait > _WAIT_SECONDS_MAX or not self._policy.may_dispatch(sent.dispatch_no):
            row = _row(asked, NoVerdict(NoVerdictReason.JUDGE_UNAVAILABLE, outcome.message), sent)
            await self._ledger.write_async(lambda tx: end_judgment_call(tx, asked.key, sent, facts, row))
            crashpoint("judgment.outcome.committed")
            return True
        await self._ledger.write_async(lambda tx: end_judgment_call(tx, asked.key, sent, facts, None, goes_on=True))
        try:
            may_go_on = await self._stop.sleep(wait) and await self._turn(asked.key.judge_no)
            if may_go_on:
                return await self._again(asked, sent)
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.ensure_future(self._leave(asked)))
            raise
        await self._leave(asked)
        return False

    async def _again(self, asked: Asked, sent: DispatchKey) -> DispatchKey | bool:
        try:
            again = await self._ledger.write_async(
                lambda tx: dispatch_judgment_again(tx, asked.key, sent, sent.holds),
                undo=lambda tx, again: undo_judgment(tx, asked.key, again),
            )
        except BudgetExhausted as full:
            return await self._commit(asked, NoVerdict(NoVerdictReason.OUT_OF_BUDGET, full.what))
        crashpoint("judgment.intent.committed")
        return again

    async def _leave(self, asked: Asked) -> None:
        await self._ledger.write_async(lambda tx: let_wait(tx, asked.key))

    # After the dispatch.

    async def _ended_call(self, asked: Asked, sent: DispatchKey, facts: DispatchFacts, outcome: Outcome) -> bool:
        """Commit the outcome with what came of it; says whether the judgment has its end."""
        said, raw = _said_of(asked.judge, outcome)
        row = _row(asked, said, sent, raw=raw)

        def work(tx: Transaction) -> bool:
            again = self._may_ask_again(tx, asked, facts, row)
            end_judgment_call(tx, asked.key, sent, facts, None if again else row)
            return not again

        is_given = await self._ledger.write_async(work)
        crashpoint("judgment.outcome.committed")
        if outcome.state is DispatchState.ANSWERED:
            self._tally.judged(row.reason, row.explanation, self._ledger.clock.now_us())
        else:
            self._tally.fail(said_of(outcome), self._ledger.clock.now_us())
        self._has_ended()
        return is_given

    def _has_ended(self) -> None:
        """Something was settled, or is not under way any more: whoever waits for room looks again."""
        self._ended_count += 1
        self._ended.set()

    def _may_ask_again(self, tx: Transaction, asked: Asked, facts: DispatchFacts, row: JudgmentRow) -> bool:
        match facts.state:
            case DispatchState.ANSWERED:
                if row.reason not in _UNREADABLE:
                    return False
                return judge_tries_spent(tx, _place(asked.key), answered=True) < asked.judge.reasks
            case DispatchState.FAILED:
                return self._policy.may_retry(facts.reason, judge_tries_spent(tx, _place(asked.key)) + 1)
            case _:
                if asked.judge.if_unknown is not IfUnknown.REPEAT:
                    return False
                # What a stop broke off is not the judge's fault and costs none of its tries.
                spent = judge_tries_spent(tx, _place(asked.key)) + 1
                return facts.reason in ("stopped", "cancelled") or self._policy.may_attempt(spent)

    async def _facts(self, outcome: Outcome, began: float) -> DispatchFacts:
        facts = facts_of(outcome, duration_us=round((time.monotonic() - began) * 1e6))
        return facts if facts.raw is None else await artifacts.with_stored_raw(self._ledger, facts)

    async def _commit(self, asked: Asked, said: NoVerdict) -> bool:
        row = _row(asked, said, None)
        await self._ledger.write_async(lambda tx: add_judgments(tx, asked.key.run_key, asked.key.evaluation_no, [row]))
        crashpoint("judgment.committed")
        return True


def read_safely(judge: CallingJudge, reply: str) -> object:
    """The verdict that the judge reads in a reply; what it raises is a reason."""
    try:
        return checked(by_judge(judge.read(reply)), judge.scale)
    except Exception as problem:  # noqa: BLE001 - a judge's own fault is a reason
        return judge_error(problem)


def _said_of(judge: CallingJudge, outcome: Outcome) -> tuple[Verdict | NoVerdict, str | None]:
    """The verdict that an outcome holds, and the text that it was read from."""
    try:
        match outcome.state:
            case DispatchState.ANSWERED:
                reply = judge.reply_of(outcome)
                if isinstance(reply, NoVerdict):
                    return reply, None
                return checked(by_judge(judge.read(reply)), judge.scale), reply
            case DispatchState.UNKNOWN:
                late = outcome.reason in _OUT_OF_TIME
                return NoVerdict(
                    NoVerdictReason.TIMEOUT if late else NoVerdictReason.UNKNOWN_OUTCOME, outcome.message
                ), None
            case _:
                return judge.failed(outcome), None
    except Exception as problem:  # noqa: BLE001 - a judge's own fault is a reason, and its call stays paid for
        return judge_error(problem), None


def _outcome_of(task: asyncio.Future[Outcome], progress: WireProgress) -> Outcome:
    try:
        return task.result()
    except (Exception, asyncio.CancelledError, GeneratorExit) as problem:  # noqa: BLE001 - an adapter's own fault is an outcome, too
        message = f"the judge raised {type(problem).__name__}: {problem}"
        state = DispatchState.FAILED if progress.bytes_sent == 0 else DispatchState.UNKNOWN
        return Outcome(state, "judge.raised", message, bytes_sent=progress.bytes_sent)


def _row(asked: Asked, said: Verdict | NoVerdict, sent: DispatchKey | None, *, raw: str | None = None) -> JudgmentRow:
    key = asked.key
    return judgment_row(
        key.judge_no, key.slot_no, key.attempt_no, said, asked.judge.scale, sample_no=key.sample_no, raw=raw,
        parser=None if raw is None else asked.judge.parser, evidence_digest=asked.evidence_digest,
        cache_key=asked.cache_key, call_id=None if sent is None else sent.call_id,
    )  # fmt: skip


def _place(key: JudgmentKey) -> tuple[int, int, int, int, int, int]:
    return key.run_key, key.evaluation_no, key.judge_no, key.slot_no, key.attempt_no, key.sample_no
