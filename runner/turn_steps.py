"""A case with several turns: one attempt, one session, a call a turn; two commits a turn.

Each answered turn is committed before the next is thought of. After a death, an unknown outcome or a lost session, a
new attempt carries over what its target can go on from, and asks the rest again, as replays.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs

from ..ledger import artifacts, attempt_calls, turns
from ..ledger.canonical import JsonValue, canonical_text, digest_of_bytes
from ..ledger.coordinators import Coordinator
from ..ledger.crashpoints import crashpoint
from ..ledger.errors import BudgetExhausted, LeaseLost, TransitionRefused
from ..ledger.ledger import Ledger
from ..ledger.records import Begun, DispatchKey, Intent, PendingSlot, Waiting
from ..ledger.slot_reads import CallToRepeat
from ..ledger.states import DispatchState, NextStep, SlotState
from ..ledger.transaction import Transaction
from ..ledger.turns import Opening, TurnAnswer
from .answer_texts import NoAnswer, answer_texts, checkpoint_of
from .call_steps import Asking, CallSteps, LetGo, Sent, as_failure
from .claims import unless_settled
from .conversations import Conversation, Said, Unsayable
from .ended import Ended
from .inline_judging import InlineJudging
from .pacing import Pace
from .protocols import MISSING, Missing, Outcome, Prepared
from .query_steps import QuerySteps, stored_request
from .request_bounds import bounded
from .session_steps import SessionSteps
from .stopping import StopSwitch
from .talks import Start, Talk, read_past, start_after
from .tally import Tally
from .turn_ends import TurnEnds
from .unanswered_turns import UnansweredTurns

if TYPE_CHECKING:
    from .executor import Execution, VariantSide

__all__ = ["TurnSteps"]

Came: TypeAlias = Ended | Waiting | None
"""How a step came out: the attempt ended, its unknown turn is to be followed up, or the next turn may be said."""

_BUDGET: Final = "budget"


class TurnSteps:
    """Holds the conversations of one session of a run, on its loop."""

    def __init__(
        self,
        ledger: Ledger,
        coordinator: Coordinator,
        execution: Execution,
        conversation: Conversation,
        *,
        calls: CallSteps,
        queries: QuerySteps,
        stop: StopSwitch,
        tally: Tally,
        pace: Pace,
        judging: InlineJudging,
    ) -> None:
        self._ledger = ledger
        self._run_key = coordinator.run_key
        self._conversation = conversation
        self._deadline_seconds = execution.deadline_seconds
        self._calls = calls
        self._stop = stop
        self._tally = tally
        self._pace = pace
        self._judging = judging
        self._ends = TurnEnds(ledger, self._run_key, execution.policy, tally)
        self._sessions = SessionSteps(
            ledger, self._ends, conversation.spec.resume, deadline_seconds=execution.deadline_seconds,
            grace_seconds=execution.grace_seconds,
        )  # fmt: skip
        self._unanswered = UnansweredTurns(
            ledger, coordinator, execution.policy, calls=calls, queries=queries, stop=stop, tally=tally,
            exchange=self._sent_again,
        )  # fmt: skip

    async def run(self, slot: PendingSlot, asking: Asking, *, solitary: bool) -> Ended:
        """Take the slot's next step, and go on with its conversation as far as it goes.

        Raises BudgetExhausted and LeaseLost once nothing of it is under way any more: the slot waits again.
        """
        with self._ledger.reading() as reader:
            past = read_past(reader, self._run_key, slot.slot_no)
        talk = Talk(slot, asking, solitary, self._ledger.ids.next(), past)
        limit = self._conversation.spec.deadline_seconds
        if limit is not None:
            talk.ends = time.monotonic() + limit
        if slot.next_step is NextStep.NEW:
            return await self._begin(talk)
        if past is not None:
            talk.attempt = DispatchKey(self._run_key, slot.slot_no, past.attempt_no, "", 0)
            talk.turns, talk.message = list(past.turns), past.asked
        return await self._go_on(talk, Waiting(slot.next_step))

    # Beginning.

    async def _begin(self, talk: Talk) -> Ended:
        try:
            if self._is_over(talk):
                return await self._conclude(talk)
            talk.start = start_after(talk.past, talk.asking.side.target, self._conversation.spec.resume)
            talk.turns = [] if talk.past is None else list(talk.past.turns[: talk.start.carried])
            is_to_be_asked = self._conversation.user is not None and isinstance(talk.known_message(), Missing)
            if not is_to_be_asked:
                talk.message = await self._next_message(talk)
        except Unsayable as fault:
            with unless_settled(self._ledger, self._run_key, talk.slot):
                return await self._ends.fail(talk, fault.reason, str(fault))
        # A user function is code that may end this process: then its case has to be found in flight.
        if talk.keeps_state or is_to_be_asked:
            return await self._begin_session(talk)
        return await self._go_on(talk, None)

    def _is_over(self, talk: Talk) -> bool:
        """Whether earlier attempts have left nothing of a script to say; then all of their turns are the talk's."""
        past = talk.past
        if self._conversation.user is not None or past is None or not past.turns:
            return False
        if len(past.turns) < len(self._conversation.messages_of(talk.case)):
            return False
        talk.turns, talk.start = list(past.turns), Start(len(past.turns))
        return True

    async def _begin_session(self, talk: Talk) -> Ended:
        opening = self._opening(talk)
        with unless_settled(self._ledger, self._run_key, talk.slot):
            talk.attempt = await self._ledger.write_async(
                lambda tx: turns.open_session(tx, self._run_key, talk.slot.slot_no, opening), undo=_undo_opening
            )
        self._tally.move(SlotState.PENDING, SlotState.IN_FLIGHT)
        talk.is_between = True
        crashpoint("session.begun")
        async with self._leaving(talk):
            if talk.keeps_state:
                try:
                    talk.message = await self._next_message(talk)
                except Unsayable as fault:
                    return await self._ends.fail(talk, fault.reason, str(fault))
                if isinstance(talk.message, Missing):
                    return await self._conclude(talk)
                ended = await self._sessions.begin(talk, talk.message)
                if ended is not None:
                    return ended
            return await self._go_on(talk, None)

    def _opening(self, talk: Talk) -> Opening:
        past, held, side = talk.past, talk.asking.side.held, talk.asking.side
        is_carried = past is not None and talk.start.carried > 0
        return Opening(
            talk.session, side.fingerprint, talk.solitary,
            past.attempt_no if past is not None and is_carried else None, talk.start.carried,
            0 if past is None else len(past.turns), talk.start.checkpoint,
            None if held is None else held.leases[0],
        )  # fmt: skip

    # Turn after turn.

    async def _go_on(self, talk: Talk, step: Waiting | None) -> Ended:
        async with self._leaving(talk):
            while True:
                came = await (self._one_turn(talk) if step is None else self._unanswered.follow_up(talk, step))
                if isinstance(came, Ended):
                    return came
                step = came

    @contextlib.asynccontextmanager
    async def _leaving(self, talk: Talk) -> AsyncIterator[None]:
        """Whatever ends the conversation here: no attempt is left running, and no session is left."""
        try:
            yield
        except LetGo:
            talk.is_live = False  # the dispatch that was let go of may still be at it
            raise
        except asyncio.CancelledError:
            if talk.is_between:
                with contextlib.suppress(TransitionRefused):
                    await asyncio.shield(asyncio.ensure_future(self._ends.break_off(talk, "stopped")))
            raise
        except (BudgetExhausted, LeaseLost) as problem:
            if talk.is_between:
                reason = _BUDGET if isinstance(problem, BudgetExhausted) else "lease.lost"
                await self._ends.break_off(talk, reason, str(problem))
            raise
        finally:
            await self._sessions.leave(talk)

    async def _one_turn(self, talk: Talk) -> Came:
        try:
            message = await self._next_message(talk)
        except Unsayable as fault:
            return await self._ends.fail(talk, fault.reason, str(fault))
        if isinstance(message, Missing):
            return await self._conclude(talk)
        if talk.attempt is not None and (ended := await self._ended_before(talk)) is not None:
            return ended
        asking = talk.asking_now(message)
        try:
            prepared = asking.side.target.prepare(asking.view)
            head = canonical_text(prepared.head)
            asking = attrs.evolve(asking, side=bounded(asking.side, prepared))
        except Exception as problem:  # noqa: BLE001 - one case's fault must not stop the others
            with unless_settled(self._ledger, self._run_key, talk.slot):
                return await self._ends.fail(talk, "request.not_prepared", str(problem))
        talk.message = message
        crashpoint("dispatch.intent.before")
        intent = await self._calls.intent(
            asking, self._run_key, talk.slot.slot_no, prepared, head, solitary=talk.solitary
        )
        key = await self._intended(talk, intent, canonical_text(message))
        return await self._exchanged(talk, asking, prepared, key)

    async def _next_message(self, talk: Talk) -> JsonValue | Missing:
        known = talk.known_message()
        if not isinstance(known, Missing):
            return known
        left = min(self._deadline_seconds, talk.ends - time.monotonic())
        return await self._conversation.next_message(talk.case, talk.history, deadline_seconds=max(0.0, left))

    async def _ended_before(self, talk: Talk) -> Ended | None:
        """Why a running attempt says no further turn, if so."""
        if talk.keeps_state and not talk.is_live:
            return await self._ends.break_off(talk, "session.over", "its session was that of another process")
        if time.monotonic() >= talk.ends:
            limit = self._conversation.spec.deadline_seconds
            return await self._ends.fail(talk, "conversation.deadline", f"it was not over within {limit:g} s")
        if talk.last_call is None and not talk.keeps_state:
            return None  # the step itself was paced
        return None if await self._may_begin(talk) else await self._ends.break_off(talk, "stopped")

    async def _may_begin(self, talk: Talk) -> bool:
        """Keep to the work order's rate; where a target asked to be left alone, wait for that within a turn's time."""
        variant_no = talk.slot.variant_no
        while not await self._pace.turn(variant_no):
            wait = self._pace.held_back().get(variant_no)
            if wait is None or wait > self._deadline_seconds or not await self._stop.sleep(wait):
                return False
        return True

    async def _intended(self, talk: Talk, intent: Intent, message: str) -> DispatchKey:
        begins = talk.attempt is None
        opening = self._opening(talk) if begins else None
        number, is_replay = talk.number, talk.is_replay

        def work(tx: Transaction) -> Begun:
            if opening is not None:
                attempt = turns.open_session(tx, self._run_key, talk.slot.slot_no, opening)
            else:
                assert talk.attempt is not None
                attempt = talk.attempt
            return turns.intend_turn(tx, intent, attempt.attempt_no, turn=number, message=message, is_replay=is_replay)

        was_between, talk.is_between = talk.is_between, False
        try:
            with unless_settled(self._ledger, self._run_key, talk.slot) if begins else contextlib.nullcontext():
                begun = await self._ledger.write_async(work, undo=lambda tx, begun: self._calls.undo(tx, begun.key))
        except (BudgetExhausted, LeaseLost):
            talk.is_between = was_between
            raise
        if begins:
            self._tally.move(SlotState.PENDING, SlotState.IN_FLIGHT)
            talk.attempt = attrs.evolve(begun.key, call_id="", dispatch_no=0, holds=())
            crashpoint("session.begun")
        crashpoint("dispatch.intent.committed")
        return begun.key

    # What came.

    async def _sent_again(self, talk: Talk, side: VariantSide, call: CallToRepeat, key: DispatchKey) -> Came:
        """``side`` has what its intent has set aside: that is durable, and the target is asked for no bound now."""
        assert not isinstance(talk.message, Missing)
        asking = attrs.evolve(talk.asking_now(talk.message), side=side)
        return await self._exchanged(talk, asking, stored_request(call), key)

    async def _exchanged(self, talk: Talk, asking: Asking, prepared: Prepared, key: DispatchKey) -> Came:
        deadline = min(time.monotonic() + self._deadline_seconds, talk.ends)
        sent = await self._calls.exchange(asking, prepared, key, deadline=deadline)
        if isinstance(sent, Ended):
            return sent
        match sent.outcome.state:
            case DispatchState.ANSWERED:
                with self._calls.late_if_taken(asking, sent):
                    return await self._answered(talk, sent)
            case DispatchState.FAILED:
                return await self._calls.failed(sent)
            case _:
                waiting = await self._calls.lose(sent, asking.side)
                if waiting is None:
                    return Ended.DONE
                return waiting if talk.is_live and waiting.step is not NextStep.NEW else Ended.WAITS_AGAIN

    async def _answered(self, talk: Talk, sent: Sent) -> Came:
        try:
            texts = answer_texts(sent.outcome)
        except NoAnswer as none:
            return await self._calls.failed(as_failure(sent, none.reason, str(none)))
        outcome, message = sent.outcome, talk.message
        assert not isinstance(message, Missing)
        assert not isinstance(outcome.answer, Missing)
        said = Said(
            message, outcome.answer, texts.digest, outcome.evidence, tuple(outcome.flags), is_replay=talk.is_replay
        )
        facts = await self._calls.facts(sent)
        answer = TurnAnswer(
            talk.number, canonical_text(message), await artifacts.stored_answer(self._ledger, texts.answer),
            texts.digest, texts.evidence, texts.flags, "wire", await checkpoint_of(self._ledger, outcome),
            talk.is_replay,
        )  # fmt: skip
        if self._conversation.is_last(talk.case, talk.number):
            observed, as_outcome = await self._observed([*talk.turns, said])
            await self._ledger.write_async(lambda tx: turns.commit_last_turn(tx, sent.key, facts, answer, observed))
            self._tally.move(SlotState.IN_FLIGHT, SlotState.SELECTED)
            crashpoint("dispatch.outcome.committed")
            return await self._judged(talk, sent.key, as_outcome)
        await self._committed(talk, lambda tx: turns.commit_turn(tx, sent.key, facts, answer))
        talk.turns.append(said)
        talk.message, talk.last_call = MISSING, sent.key
        crashpoint("dispatch.outcome.committed")
        crashpoint("turn.committed")
        return None

    async def _committed(self, talk: Talk, work: Callable[[Transaction], None]) -> None:
        talk.is_between = True  # what is committed is so, also for whoever is cancelled meanwhile
        try:
            await self._ledger.write_async(work)
        except Exception:
            talk.is_between = False
            raise

    async def _conclude(self, talk: Talk) -> Ended:
        """Nothing is left to say; where earlier attempts have all the turns, an attempt of its own says so."""
        observed, as_outcome = await self._observed(talk.turns)
        attempt, opening = talk.attempt, self._opening(talk)

        def work(tx: Transaction) -> DispatchKey:
            key = talk.last_call or attempt or turns.open_session(tx, self._run_key, talk.slot.slot_no, opening)
            turns.conclude_session(tx, key, observed)
            return key

        with unless_settled(self._ledger, self._run_key, talk.slot) if attempt is None else contextlib.nullcontext():
            key = await self._ledger.write_async(work)
        talk.is_between = False
        self._tally.move(SlotState.PENDING if attempt is None else SlotState.IN_FLIGHT, SlotState.SELECTED)
        crashpoint("dispatch.outcome.committed")
        return await self._judged(talk, key, as_outcome)

    async def _observed(self, said: Sequence[Said]) -> tuple[TurnAnswer, Outcome]:
        """What is observed of these turns, as the ledger keeps it and as judges see it."""
        found = self._conversation.observed(said)
        text = canonical_text(found.answer)
        source = said[-1].source if said[-1].source in ("query", "operator") else "wire"
        kept = TurnAnswer(
            len(said), canonical_text(said[-1].message), await artifacts.stored_answer(self._ledger, text),
            digest_of_bytes(text.encode()), canonical_text(found.evidence), canonical_text(list(found.flags)), source,
        )  # fmt: skip
        as_outcome = Outcome(DispatchState.ANSWERED, answer=found.answer, evidence=found.evidence, flags=found.flags)
        return kept, as_outcome

    async def _judged(self, talk: Talk, key: DispatchKey, outcome: Outcome) -> Ended:
        await self._judging.judge(talk.asking.view, key.slot_no, key.attempt_no, outcome)
        return Ended.DONE


def _undo_opening(tx: Transaction, key: DispatchKey) -> None:
    attempt_calls.break_off(tx, key, reason="stopped", message="cancelled before its session was begun")
