"""Attempts of a harness of somebody's own, each an ``async with`` block; their calls are `embedded_calls`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from types import TracebackType
from typing import TYPE_CHECKING, Final

from ..ledger import artifacts, attempt_calls
from ..ledger.canonical import JsonValue, canonical_bytes, canonical_text
from ..ledger.crashpoints import crashpoint
from ..ledger.errors import BudgetExhausted, LeaseLost, UsageError
from ..ledger.inner_calls import InnerLog, begin_attempt, inner_log, leave_calls, take_up_attempt
from ..ledger.records import DispatchFacts, DispatchKey, PendingSlot
from ..ledger.states import DispatchState, NextStep, SlotState
from ..ledger.to_its_end import to_its_end
from ..ledger.transaction import Transaction
from .answer_texts import NoAnswer, answer_texts
from .attempt_ends import end_broken
from .embedded_calls import EmbeddedCall, EmbeddedReservation, told_message, told_reason
from .inner_calls import AttemptInnerCalls
from .inner_protocols import InnerRequest
from .outcome_facts import facts_of
from .protocols import Outcome
from .tally import Tally

if TYPE_CHECKING:
    from .embedded import EmbeddedRun

__all__ = ["EmbeddedAttempt"]

_AMOUNT_MAX: Final = 2**62  # of a budget's unit; the ledger's integers have 64 bits


class EmbeddedAttempt:
    """One try at a slot: it is observed by `observe`; by an exception, or without a word, it has failed."""

    def __init__(
        self, run: EmbeddedRun, pending: PendingSlot, solitary: bool, deadline_seconds: float | None, *, replay: bool
    ) -> None:
        self._run = run
        self._pending = pending
        self._solitary = solitary
        self._replay = replay
        self._timer = asyncio.timeout(deadline_seconds)
        self._key: DispatchKey | None = None
        self._inner: AttemptInnerCalls | None = None
        self._outcome: Outcome | None = None

    @property
    def number(self) -> int:
        """Of this attempt at its slot, from 1."""
        return self._entered().attempt_no

    async def __aenter__(self) -> EmbeddedAttempt:
        run, pending = self._run, self._pending
        run.begun(pending)
        try:
            with run.ledger.reading() as reader:
                log = inner_log(reader, run.run_key, pending.slot_no)
            self._key = await self._began()
        except BaseException:
            run.ended(pending, SlotState.PENDING)
            raise
        crashpoint("attempt.begun")
        self._inner = AttemptInnerCalls(
            run.ledger, run.side, self._key, log if self._replay else InnerLog(open=log.open, expected=log.expected),
            policy=run.policy, tally=Tally({}), key_valid_seconds=run.side.target.key_valid_seconds,
        )  # fmt: skip
        await self._timer.__aenter__()
        return self

    async def _began(self) -> DispatchKey:
        run, pending = self._run, self._pending
        key = DispatchKey(run.run_key, pending.slot_no, pending.attempts, "", 0)
        if pending.next_step is NextStep.RESEND:
            await run.ledger.write_async(lambda tx: take_up_attempt(tx, key, solitary=self._solitary))
            return key
        return await run.ledger.write_async(
            lambda tx: begin_attempt(
                tx, run.run_key, pending.slot_no, fingerprint=run.side.fingerprint, solitary=self._solitary
            ),
            undo=lambda tx, key: attempt_calls.break_off(tx, key, reason="stopped"),
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        overdue: TimeoutError | None = None
        try:
            await self._timer.__aexit__(kind, raised, trace)
        except TimeoutError as timeout:
            overdue = timeout
        await to_its_end(self._ended(overdue or raised))
        if overdue is not None:
            raise overdue

    def call(
        self,
        name: str,
        request: JsonValue | bytes,
        *,
        bound_usd: str | float | None = None,
        bound_tokens: int | None = None,
    ) -> EmbeddedCall:
        """A call of this attempt, for ``async with``: its intent is durable inside; left without a word, it is unknown.

        ``request`` (JSON or bytes) is what is kept of it. The bounds are what it sets aside in budgets of that unit,
        instead of what these declare for each dispatch.
        """
        return EmbeddedCall(*self._asking(name, request, bound_usd, bound_tokens))

    def reserve(
        self,
        name: str,
        request: JsonValue | bytes,
        *,
        bound_usd: str | float | None = None,
        bound_tokens: int | None = None,
    ) -> EmbeddedReservation:
        """Room for a call that is sent later: ``held = await attempt.reserve(…)``, then say once what became of it.

        Takes what `call` takes, and raises BudgetExhausted where there is no room. Its intent is durable from then on,
        so that ``held.request_id`` may be given to a queue, a batch or another task.
        """
        return EmbeddedReservation(*self._asking(name, request, bound_usd, bound_tokens))

    def _asking(
        self, name: str, request: JsonValue | bytes, bound_usd: str | float | None, bound_tokens: int | None
    ) -> tuple[AttemptInnerCalls, InnerRequest]:
        payload = _payload(request)
        bounds: dict[str, int] = {} if bound_tokens is None else {"tokens": _tokens(bound_tokens)}
        if bound_usd is not None:
            bounds["nanousd"] = _nanousd(bound_usd)
        self._entered()
        assert self._inner is not None
        return self._inner, InnerRequest(canonical_text({"call": name}), payload, f"call {name}", bounds)

    def observe(
        self, answer: JsonValue, *, evidence: Mapping[str, JsonValue] | None = None, flags: tuple[str, ...] = ()
    ) -> None:
        """What the attempt has come to; committed when its block is left without an exception."""
        self._outcome = Outcome(DispatchState.ANSWERED, answer=answer, evidence=evidence or {}, flags=flags)

    def fail(self, message: str = "", *, reason: str = "attempt.failed") -> None:
        """The attempt has failed; ``reason`` is a stable dotted token, as the work order's ``retry`` names them."""
        self._outcome = Outcome(DispatchState.FAILED, told_reason(reason, "attempt.failed"), told_message(message))

    def _entered(self) -> DispatchKey:
        if self._key is None:
            raise UsageError("this attempt has not begun", "use it as `async with slot.attempt() as attempt:`")
        return self._key

    async def _ended(self, raised: BaseException | None) -> None:
        key, run = self._entered(), self._run
        assert self._inner is not None
        self._inner.close()
        state = SlotState.PENDING
        try:
            state = await self._committed(key, self._inner, raised)
        finally:
            run.ended(self._pending, state)

    async def _committed(self, key: DispatchKey, inner: AttemptInnerCalls, raised: BaseException | None) -> SlotState:
        run = self._run
        outcome, is_ours = _outcome_of(self._outcome, raised)
        if isinstance(inner.stopped_by, BudgetExhausted | LeaseLost):
            outcome, is_ours = Outcome(DispatchState.REFUSED, "budget", str(inner.stopped_by)), True
            run.exhausted = inner.stopped_by if isinstance(inner.stopped_by, BudgetExhausted) else None
        crashpoint("attempt.returned")
        if outcome.state is DispatchState.ANSWERED:
            try:
                return await self._observed(key, outcome)
            except NoAnswer as none:
                outcome = Outcome(DispatchState.FAILED, none.reason, str(none))
        facts = _facts(outcome)
        return await run.ledger.write_async(
            lambda tx: end_broken(tx, key, outcome, facts, policy=run.policy, is_ours=is_ours)
        )

    async def _observed(self, key: DispatchKey, outcome: Outcome) -> SlotState:
        texts = answer_texts(outcome)
        answer = await artifacts.stored_answer(self._run.ledger, texts.answer)
        left = _facts(Outcome(DispatchState.UNKNOWN, "target.returned", "the attempt ended before it was answered"))

        def work(tx: Transaction) -> SlotState:
            leave_calls(tx, key, left)
            attempt_calls.conclude(
                tx, key, answer=answer, answer_digest=texts.digest, evidence=texts.evidence, flags=texts.flags
            )
            return SlotState.SELECTED

        return await self._run.ledger.write_async(work)


def _outcome_of(said: Outcome | None, raised: BaseException | None) -> tuple[Outcome, bool]:
    """What the attempt's block told, and whether it was broken off by what is nobody's fault."""
    if isinstance(raised, TimeoutError):
        return Outcome(DispatchState.UNKNOWN, "deadline", "it was not over within its deadline"), False
    if isinstance(raised, Exception):
        return Outcome(DispatchState.FAILED, "attempt.raised", f"{type(raised).__name__}: {raised}"), False
    if raised is not None:
        return Outcome(DispatchState.UNKNOWN, "cancelled", type(raised).__name__), True
    if said is None:
        return Outcome(DispatchState.FAILED, "attempt.not_observed", "its block was left without observe()"), False
    return said, False


def _facts(outcome: Outcome) -> DispatchFacts:
    return facts_of(outcome, duration_us=None, settled_by="runner")


def _payload(request: JsonValue | bytes) -> bytes:
    if isinstance(request, bytes):
        return request
    try:
        return canonical_bytes(request)
    except (TypeError, ValueError, RecursionError) as fault:
        raise UsageError(f"the request cannot be kept: {fault}", "give bytes or JSON; nothing is sent") from fault


def _tokens(count: object) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= _AMOUNT_MAX:
        raise UsageError(f"bound_tokens={count!r} is no number of tokens", "give a whole number: bound_tokens=5_000")
    return count


def _nanousd(amount: str | float) -> int:
    try:
        value = Decimal(str(amount))
    except InvalidOperation:
        value = Decimal(-1)
    if not value.is_finite() or not 0 <= value * 10**9 <= _AMOUNT_MAX:
        raise UsageError(f"bound_usd={amount!r} is no amount", 'give dollars: bound_usd="0.02"')
    return int((value * 10**9).to_integral_value(ROUND_CEILING))
