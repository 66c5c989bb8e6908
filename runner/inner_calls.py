"""The requests that a guarded target makes itself: replayed from the ledger where they were answered before, else
committed, sent once, and committed again.

A target's code runs on the loop or on threads of its own, and may make several requests at a time. Which of them a
recorded answer belongs to is told by what they ask (`RecordedCall.known_by`) and, among equals, by their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import attrs

from ..ledger import artifacts, attempt_calls, attempts
from ..ledger.canonical import digest_of_bytes
from ..ledger.crashpoints import crashpoint
from ..ledger.errors import (
    AttemptOver,
    BudgetExhausted,
    EarlierCallUnknown,
    LeaseLost,
    ReplayDiverged,
    TallystickError,
    TransitionRefused,
)
from ..ledger.inner_answers import CALLS_MAX, kept_answers, large_answer
from ..ledger.inner_calls import INNER, InnerLog, OpenInner, RecordedCall, end_call
from ..ledger.ledger import Ledger
from ..ledger.records import Begun, DispatchFacts, DispatchKey, Intent
from ..ledger.states import DispatchState, IfUnknown
from ..ledger.to_its_end import to_its_end
from ..ledger.transaction import Transaction
from .inner_protocols import InnerRequest, InnerSend, Replayed
from .outcome_facts import facts_of, said_of
from .protocols import Outcome
from .retry_policy import RetryPolicy
from .tally import Tally

if TYPE_CHECKING:
    from .executor import VariantSide

__all__ = ["REPLAY_PATIENCE_SECONDS", "AttemptInnerCalls", "Refusal"]

REPLAY_PATIENCE_SECONDS: Final = 1.0
"""How long a request that was not made before waits for its neighbours to take up what they were answered."""

_LOOK_SECONDS: Final = 0.005
_GOES_ON: Final = (IfUnknown.REPEAT, IfUnknown.RESEND)
_BEFORE_SENDING: Final = Outcome(DispatchState.REFUSED, "cancelled", "cancelled before it was sent", bytes_sent=0)


@attrs.frozen
class Refusal:
    """The newest outcome that says *not done*, until something else is answered."""

    reason: str
    message: str
    retry_after_seconds: float | None


@attrs.frozen
class _Asked:
    request: InnerRequest
    digest: str
    known_by: tuple[str, str]


class AttemptInnerCalls:
    """The requests of one attempt; made when it begins, closed when its target has returned.

    ``stopped_by`` is what ended it for the target: a full budget, a divergence, an unknown outcome. ``refusal`` is set
    while the newest outcome says *not done*. ``failure`` is what the ledger could not do.
    """

    def __init__(
        self,
        ledger: Ledger,
        side: VariantSide,
        attempt: DispatchKey,
        log: InnerLog,
        *,
        policy: RetryPolicy,
        tally: Tally,
        key_valid_seconds: float | None,
    ) -> None:
        self._ledger = ledger
        self._side = side
        self._attempt = attempt
        self._policy = policy
        self._tally = tally
        self._key_valid_seconds = key_valid_seconds
        self._recorded: dict[tuple[str, str], deque[RecordedCall]] = defaultdict(deque)
        for call in log.recorded:
            self._recorded[call.known_by].append(call)
        self._left = deque(log.recorded)
        self._taken: set[str] = set()
        self._ahead: dict[str, bytes | str | None] = {}
        self._open = dict(log.open)
        self._expected = log.expected
        self._lock = threading.Lock()
        self._is_over = False
        self.replayed = 0
        self.sent = 0
        self.stopped_by: TallystickError | None = None
        self.refusal: Refusal | None = None

    def close(self) -> None:
        """The target has returned: whatever it still asks for is refused."""
        with self._lock:
            self._is_over = True

    # Beginning.

    def begin(self, request: InnerRequest) -> InnerSend | Replayed:
        asked = _asked(request)
        end = time.monotonic() + REPLAY_PATIENCE_SECONDS
        while not self._may_begin(asked, is_last=time.monotonic() >= end):
            threading.Event().wait(_LOOK_SECONDS)
        known = self._known(asked)
        if isinstance(known, RecordedCall):
            return self._replay(known)
        crashpoint("dispatch.intent.before")
        work = self._again(known) if isinstance(known, OpenInner) else self._first(self._stored(asked))
        try:
            return self._began(asked, self._ledger.write(work))
        except TallystickError as problem:
            raise self._stopped(problem) from None

    async def begin_async(self, request: InnerRequest) -> InnerSend | Replayed:
        asked = _asked(request)
        end = time.monotonic() + REPLAY_PATIENCE_SECONDS
        # Threads end this wait too, and no event of a loop may be set from one.
        while not self._may_begin(asked, is_last=time.monotonic() >= end):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
        known = self._known(asked)
        if isinstance(known, RecordedCall):
            return self._replay(known)
        crashpoint("dispatch.intent.before")
        if isinstance(known, OpenInner):
            work = self._again(known)
        else:
            work = self._first(await artifacts.with_stored_payload(self._ledger, self._intent(asked)))
        try:
            return self._began(asked, await self._ledger.write_async(work, undo=self._undo))
        except TallystickError as problem:
            raise self._stopped(problem) from None

    def _may_begin(self, asked: _Asked, *, is_last: bool) -> bool:
        """Whether it may be replayed or sent now; while neighbours have not taken up their answers, it waits for them.

        Raises what stands in its way.
        """
        with self._lock:
            self._refuse_if_over()
            if self._recorded.get(asked.known_by) or asked.known_by in self._open:
                return True
            if asked.known_by in self._expected or self._next_recorded() is None:
                return True
            if not is_last:
                return False
            self.stopped_by = self._divergence(asked)
            raise self.stopped_by

    def _refuse_if_over(self) -> None:
        if self._is_over:
            raise AttemptOver(
                f"attempt {self._attempt.attempt_no} has ended and makes no further request",
                "wait in the target for every request that it makes, before it returns",
            )
        if self.stopped_by is not None:
            raise self.stopped_by

    def _next_recorded(self) -> RecordedCall | None:
        while self._left and self._left[0].call_id in self._taken:
            self._left.popleft()
        return self._left[0] if self._left else None

    def _divergence(self, asked: _Asked) -> ReplayDiverged:
        then = self._next_recorded()
        assert then is not None
        number = self.replayed + 1
        return ReplayDiverged(
            f"request {number} is {asked.request.shown} {asked.digest[:15]}, and was {_shown(then)} before the attempt"
            " broke off",
            "let the target ask the same again for the same answers (no clock, no chance, no hidden state);"
            ' retry = ["replay.diverged"] pays for a new attempt',
        )

    def _known(self, asked: _Asked) -> RecordedCall | OpenInner | None:
        """What there is of the request; taken, so that its like gets the next one."""
        with self._lock:
            self._refuse_if_over()
            waiting = self._recorded.get(asked.known_by)
            if waiting:
                call = waiting.popleft()
                self._taken.add(call.call_id)
                self.replayed += 1
                return call
            unanswered = self._open.get(asked.known_by)
            if unanswered is None or unanswered.if_unknown is not IfUnknown.RESEND:
                return None
            self._refuse_to_resend(unanswered)
            del self._open[asked.known_by]
            return unanswered

    def _refuse_to_resend(self, unanswered: OpenInner) -> None:
        until = unanswered.key_until_us
        expired = until is not None and self._ledger.clock.now_us() >= until
        if expired or not self._policy.may_dispatch(unanswered.dispatches):
            self.stopped_by = _earlier_unknown(unanswered.call_id)
            raise self.stopped_by

    def _replay(self, call: RecordedCall) -> Replayed:
        raw = self._answer_of(call)
        if call.is_cut and call.state == DispatchState.ANSWERED:
            self.stopped_by = ReplayDiverged(
                f"the answer to {_shown(call)} was longer than what is kept, and cannot be given again",
                'let the target ask for less at a time; retry = ["replay.diverged"] pays for a new attempt',
            )
            raise self.stopped_by
        crashpoint("call.replayed")
        return Replayed(DispatchState(call.state), raw, call.status, call.reason, call.message)

    def _answer_of(self, call: RecordedCall) -> bytes | None:
        with self._lock:
            if call.call_id not in self._ahead:
                # The next in order most likely: read one by one, they took as long as everything else of a replay.
                self._next_recorded()
                following = (one for one in self._left if one.call_id not in self._taken)
                asked = [call, *itertools.islice(following, CALLS_MAX - 1)]
                with self._ledger.reading() as reader:
                    self._ahead |= kept_answers(reader, asked)
            kept = self._ahead.pop(call.call_id)
        if not isinstance(kept, str):
            return kept
        with self._ledger.reading() as reader:
            return large_answer(reader, kept)

    def _intent(self, asked: _Asked) -> Intent:
        payload, side = asked.request.payload, self._side
        holds, bounds = side.holds, asked.request.bounds
        if bounds:
            holds = tuple(attrs.evolve(hold, amount=bounds.get(hold.unit, hold.amount)) for hold in holds)
        valid = self._key_valid_seconds
        until = None if valid is None else self._ledger.clock.now_us() + round(valid * 1e6)
        return Intent(
            self._attempt.run_key, self._attempt.slot_no, self._ledger.ids.next(), payload, asked.digest, len(payload),
            asked.request.head, side.target.if_unknown, holds, side.fingerprint, until, held=side.held,
        )  # fmt: skip

    def _stored(self, asked: _Asked) -> Intent:
        intent = self._intent(asked)
        if intent.payload is None or len(intent.payload) <= artifacts.INLINE_MAX:
            return intent
        return attrs.evolve(intent, payload=None, payload_artifact=artifacts.prepare(self._ledger, intent.payload))

    def _first(self, intent: Intent) -> Callable[[Transaction], Begun]:
        return lambda tx: attempt_calls.further_call(tx, intent, self._attempt.attempt_no, role=INNER)

    def _again(self, unanswered: OpenInner) -> Callable[[Transaction], Begun]:
        key = attrs.evolve(self._attempt, call_id=unanswered.call_id, dispatch_no=unanswered.dispatch_no)
        return lambda tx: attempts.dispatch_again(tx, key, self._side.holds, held=self._side.held)

    def _undo(self, tx: Transaction, begun: Begun) -> None:
        end_call(tx, begun.key, facts_of(_BEFORE_SENDING, duration_us=0))

    def _began(self, asked: _Asked, begun: Begun) -> InnerSend:
        crashpoint("dispatch.intent.committed")
        self.sent += 1
        self._tally.dispatches += 1
        return InnerSend(begun.key.call_id, begun.key, asked.known_by, time.monotonic())

    def _stopped(self, problem: TallystickError) -> TallystickError:
        if isinstance(problem, TransitionRefused):
            return AttemptOver(f"attempt {self._attempt.attempt_no} does not run any more", "nothing was sent")
        if isinstance(problem, BudgetExhausted | LeaseLost):
            self.stopped_by = problem
        return problem

    # Ending.

    def end(self, send: InnerSend, outcome: Outcome) -> None:
        crashpoint("dispatch.sent")
        facts = self._facts(send, outcome)
        if facts.raw is not None and len(facts.raw) > artifacts.INLINE_MAX:
            facts = attrs.evolve(facts, raw=None, raw_artifact=artifacts.prepare(self._ledger, facts.raw))
        with self._unless_over():
            self._ledger.write(lambda tx: end_call(tx, send.key, facts))
        self._ended(send, outcome)

    async def end_async(self, send: InnerSend, outcome: Outcome) -> None:
        crashpoint("dispatch.sent")
        facts = self._facts(send, outcome)
        if facts.raw is None or len(facts.raw) <= artifacts.INLINE_MAX:
            await self._end_async(send, outcome, facts)
        else:
            # The transaction outlives its caller's cancellation by itself, and bringing bytes into a file does not.
            await to_its_end(self._end_large(send, outcome, facts))

    async def _end_large(self, send: InnerSend, outcome: Outcome, facts: DispatchFacts) -> None:
        await self._end_async(send, outcome, await artifacts.with_stored_raw(self._ledger, facts))

    async def _end_async(self, send: InnerSend, outcome: Outcome, facts: DispatchFacts) -> None:
        try:
            with self._unless_over():
                await self._ledger.write_async(lambda tx: end_call(tx, send.key, facts))
        except asyncio.CancelledError:
            self._ended(send, outcome)  # it is committed all the same
            raise
        self._ended(send, outcome)

    def _facts(self, send: InnerSend, outcome: Outcome) -> DispatchFacts:
        took = round((time.monotonic() - send.began) * 1e6)
        facts = facts_of(outcome, duration_us=took)
        if facts.raw is not outcome.raw:  # it is cut at what is kept for people; a replay needs all of it
            return attrs.evolve(facts, raw=outcome.raw, raw_cut=outcome.raw_cut)
        return facts

    @contextlib.contextmanager
    def _unless_over(self) -> Iterator[None]:
        try:
            yield
        except TransitionRefused as refused:
            raise AttemptOver(
                f"the answer came when attempt {self._attempt.attempt_no} had ended: its outcome is unknown",
                "settle it with `tallystick reconcile RUN`",
            ) from refused

    def _ended(self, send: InnerSend, outcome: Outcome) -> None:
        crashpoint("dispatch.outcome.committed")
        with self._lock:
            if outcome.state is not DispatchState.ANSWERED:
                self._tally.fail(said_of(outcome), self._ledger.clock.now_us())
            match outcome.state:
                case DispatchState.REFUSED:
                    self.refusal = Refusal(outcome.reason, outcome.message, outcome.retry_after_seconds)
                case DispatchState.UNKNOWN:
                    self._lost(send)
                case _:
                    self.refusal = None

    def _lost(self, send: InnerSend) -> None:
        """Its outcome is not known: what its target declares says whether the attempt may send anything more."""
        policy = self._side.target.if_unknown
        if policy not in _GOES_ON:
            self.stopped_by = self.stopped_by or _earlier_unknown(send.request_id)
        elif policy is IfUnknown.RESEND:
            valid = self._key_valid_seconds
            until = None if valid is None else self._ledger.clock.now_us() + round(valid * 1e6)
            self._open[send.known_by] = OpenInner(
                send.request_id, send.key.dispatch_no, send.key.dispatch_no, policy, until
            )


def _asked(request: InnerRequest) -> _Asked:
    digest = digest_of_bytes(request.payload)
    return _Asked(request, digest, (request.head, digest))


def _earlier_unknown(call_id: str) -> EarlierCallUnknown:
    return EarlierCallUnknown(
        f"call {call_id} may have happened, and nothing may follow it by itself",
        "settle it with `tallystick reconcile RUN`, or declare if_unknown",
    )


def _shown(call: RecordedCall) -> str:
    return f"{call.head} {call.payload_digest[:15]}"
