"""The run behind a guard in a plain script: a case for each key, one call an attempt, and nobody but the script calls.

The script is the coordinator while it is in the guard. Everything here may be called from any thread; the async forms
are for an event loop.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs

from ..ledger import artifacts, attempts, run_ends
from ..ledger.attempt_groups import Beginning, Observing
from ..ledger.canonical import JsonValue, canonical_text, digest_of_bytes, escaped_text, parse_json
from ..ledger.coordinators import Coordinator, open_run, release_run
from ..ledger.crashpoints import crashpoint
from ..ledger.errors import EarlierCallUnknown, GuardKeyChanged, TransitionRefused
from ..ledger.growing import KnownKey, add_keys, answers_of, known_keys, let_key_wait, meaning_of, newest_dispatch
from ..ledger.ledger import Ledger
from ..ledger.planning import CasePlan
from ..ledger.records import Begun, DispatchFacts, DispatchKey, Hold, Intent, Waiting
from ..ledger.run_reads import BudgetState, own_budgets_of, slot_counts
from ..ledger.states import DispatchState, IfUnknown, NextStep, SlotState
from ..ledger.transaction import Transaction
from .answer_texts import NoAnswer, answer_texts
from .case_files import CasesInLedger
from .elsewhere import GuardTarget
from .holds import holds_by_variant
from .outcome_facts import facts_of
from .protocols import Outcome

__all__ = ["GROWING", "GuardRun", "GuardTarget", "KeyAsked", "Known", "Underway", "broken_off"]

_HEAD_KEY: Final = "function"


class _Growing(CasesInLedger):
    """No case yet: each key of the script becomes one."""

    def digested(self) -> Iterator[Any]:
        return iter(())


GROWING: Final = _Growing()


@attrs.frozen
class KeyAsked:
    """A key, with the canonical JSON text of what it stands for: function, code, arguments."""

    key: str
    function: str
    text: str

    @property
    def digest(self) -> str:
        return digest_of_bytes(self.text.encode())


@attrs.frozen
class Known:
    """The key was answered before."""

    value: JsonValue


@attrs.frozen
class Underway:
    """The intent is durable: call now, once."""

    request_id: str
    dispatch: DispatchKey
    key: str
    began: float


class GuardRun:
    """This process's hold of a guard's run; `close` gives it back. Counts what happened to keys in ``counts``."""

    def __init__(self, ledger: Ledger, run_id: str, *, if_unknown: IfUnknown, reuses_changed: bool) -> None:
        self._ledger = ledger
        self.coordinator: Coordinator = open_run(ledger, run_id, solitary_deaths_max=0)
        self._run_key = self.coordinator.run_key
        self._if_unknown = if_unknown
        self._reuses_changed = reuses_changed
        self._began = time.monotonic()
        with ledger.reading() as reader:
            plans = [state.plan for state in own_budgets_of(reader, self._run_key)]
        self._holds: tuple[Hold, ...] = holds_by_variant(plans, {1: "default"})[1]
        self._lock = threading.Lock()
        self._busy: dict[str, Underway | None] = {}
        self._planning = threading.Lock()
        self.counts: Counter[str] = Counter()

    # Looking.

    def look(self, asked: Sequence[KeyAsked]) -> tuple[dict[str, Known], dict[str, KnownKey]]:
        """Which keys were answered before, and how the others that are planned stand.

        Raises GuardKeyChanged where a key stands for something else than before.
        """
        with self._ledger.reading() as reader:
            found = known_keys(reader, self._run_key, (one.key for one in asked))
            for one in asked:
                if one.key in found:
                    self._refuse_changed(one, found[one.key])
            slots = {known.slot_no for known in found.values() if known.state is SlotState.SELECTED}
            answers = answers_of(reader, self._run_key, slots)
        done = {key: Known(parse_json(answers[one.slot_no])) for key, one in found.items() if one.slot_no in answers}
        return done, {key: one for key, one in found.items() if key not in done}

    def _refuse_changed(self, asked: KeyAsked, known: KnownKey) -> None:
        if self._reuses_changed or known.digest == asked.digest:
            return
        with self._ledger.reading() as reader:
            then = meaning_of(reader, self._run_key, known.slot_no)
        raise GuardKeyChanged(
            f'key "{asked.key}" stands for {_differing(asked.text, then)} now',
            'use another key or another guard name, or changed="reuse" where the old result still holds', asked.key,
        )  # fmt: skip

    # Calling.

    def claim(self, key: str) -> bool:
        """Whether nobody else of this process is at the key; then it is this caller's until `leave`."""
        with self._lock:
            if key in self._busy:
                return False
            self._busy[key] = None
            return True

    def leave(self, key: str) -> None:
        with self._lock:
            self._busy.pop(key, None)

    def plan(self, asked: Sequence[KeyAsked]) -> dict[str, KnownKey]:
        """Plan keys that are new, in one transaction; how they stand then."""
        first = self._ledger.write(lambda tx: add_keys(tx, self._run_key, [_case_plan(one) for one in asked]))
        return {
            one.key: KnownKey(number, one.digest, SlotState.PENDING, 0, NextStep.NEW)
            for number, one in enumerate(asked, first)
        }

    def begin(self, asked: KeyAsked, known: KnownKey | None) -> Underway:
        """Commit the intent; raises BudgetExhausted, EarlierCallUnknown and LedgerError, and then nothing is called."""
        work = self._beginning(asked, known)
        crashpoint("dispatch.intent.before")
        return self._begun(asked, self._ledger.write(work))

    async def begin_async(self, asked: KeyAsked, known: KnownKey | None) -> Underway:
        work = self._beginning(asked, known)
        crashpoint("dispatch.intent.before")
        begun: Begun = await self._ledger.write_async(work, undo=self._undo)
        return self._begun(asked, begun)

    def _beginning(self, asked: KeyAsked, known: KnownKey | None) -> Any:
        if known is None:
            return lambda tx: self._add_and_begin(tx, asked)
        intent = self._intent(asked, known.slot_no)
        match known.state:
            case SlotState.PENDING if known.next_step is NextStep.NEW:
                return Beginning(intent, known.attempts + 1)
            case SlotState.PENDING if known.next_step is NextStep.RESEND:
                return lambda tx: self._send_again(tx, known)
            case SlotState.FAILED | SlotState.UNAVAILABLE | SlotState.PARKED:
                return lambda tx: self._again(tx, intent, known)
            case _:
                self.counts["unknown"] += 1
                raise EarlierCallUnknown(
                    f'key "{asked.key}" is {known.state}: an earlier call of it may have happened',
                    f'settle it with `{self._reconcile()}`, or declare if_unknown="repeat" in a guard of another name',
                )

    def _reconcile(self) -> str:
        return f"tallystick reconcile {self.coordinator.run_id} --ledger {shlex.quote(str(self._ledger.path))}"

    def _add_and_begin(self, tx: Transaction, asked: KeyAsked) -> Begun:
        slot_no = add_keys(tx, self._run_key, [_case_plan(asked)])
        return attempts.begin(tx, self._intent(asked, slot_no))

    def _again(self, tx: Transaction, intent: Intent, known: KnownKey) -> Begun:
        let_key_wait(tx, self._run_key, known.slot_no)
        return attempts.begin(tx, intent)

    def _send_again(self, tx: Transaction, known: KnownKey) -> Begun:
        key = newest_dispatch(tx, self._run_key, known)
        return attempts.reopen(tx, key, self._holds)

    def _intent(self, asked: KeyAsked, slot_no: int) -> Intent:
        payload = asked.text.encode()
        stored = artifacts.prepare(self._ledger, payload) if len(payload) > artifacts.INLINE_MAX else None
        return Intent(
            self._run_key, slot_no, self._ledger.ids.next(), None if stored else payload, asked.digest, len(payload),
            canonical_text({_HEAD_KEY: asked.function}), self._if_unknown, self._holds, asked.digest,
            payload_artifact=stored,
        )  # fmt: skip

    def _begun(self, asked: KeyAsked, begun: Begun) -> Underway:
        crashpoint("dispatch.intent.committed")
        made = Underway(begun.key.call_id, begun.key, asked.key, time.monotonic())
        with self._lock:
            self._busy[asked.key] = made
        return made

    def _undo(self, tx: Transaction, begun: Begun) -> None:
        facts = facts_of(Outcome(DispatchState.REFUSED, "cancelled", "cancelled before it was called", bytes_sent=0),
                         duration_us=0)  # fmt: skip
        attempts.refuse(tx, begun.key, facts)
        attempts.give_back(tx, begun.key, Waiting(), reason="stopped")

    # Ending.

    def end(self, underway: Underway, outcome: Outcome) -> Outcome:
        """Commit what became of the call; the outcome as it was committed."""
        crashpoint("dispatch.sent")
        outcome, work = self._ending(underway, outcome)
        self._ledger.write(work)
        return self._ended(outcome)

    async def end_async(self, underway: Underway, outcome: Outcome) -> Outcome:
        crashpoint("dispatch.sent")
        outcome, work = self._ending(underway, outcome)
        await self._ledger.write_async(work)
        return self._ended(outcome)

    def _ending(self, underway: Underway, outcome: Outcome) -> tuple[Outcome, Any]:
        key, took = underway.dispatch, round((time.monotonic() - underway.began) * 1e6)
        if outcome.state is DispatchState.ANSWERED:
            try:
                texts = answer_texts(outcome)
            except NoAnswer as none:
                outcome = attrs.evolve(outcome, state=DispatchState.FAILED, reason=none.reason, message=str(none))
            else:
                facts = facts_of(outcome, duration_us=took)
                if len(texts.answer) <= artifacts.INLINE_MAX:
                    return outcome, Observing(key, facts, texts.answer, texts.digest, texts.evidence, texts.flags)
                stored = artifacts.prepare(self._ledger, texts.answer.encode(), media_type="application/json")
                return outcome, lambda tx: attempts.observe(
                    tx, key, facts, answer=stored, answer_digest=texts.digest, evidence=texts.evidence,
                    flags=texts.flags,
                )  # fmt: skip
        facts = facts_of(outcome, duration_us=took)
        match outcome.state:
            case DispatchState.FAILED:
                return outcome, lambda tx: attempts.fail(tx, key, facts, waiting=None)
            case DispatchState.REFUSED:
                return outcome, lambda tx: _refuse(tx, key, facts)
            case _:
                return outcome, lambda tx: self._lose(tx, key, facts)

    def _lose(self, tx: Transaction, key: DispatchKey, facts: DispatchFacts) -> None:
        step = {IfUnknown.REPEAT: NextStep.NEW, IfUnknown.RESEND: NextStep.RESEND}.get(self._if_unknown)
        attempts.lose(tx, key, facts, waiting=None if step is None else Waiting(step))

    def _ended(self, outcome: Outcome) -> Outcome:
        crashpoint("dispatch.outcome.committed")
        with self._lock:
            self.counts["called"] += 1
            if outcome.state is not DispatchState.ANSWERED:
                self.counts[outcome.state.value] += 1
        return outcome

    def close(self, *, reason: str) -> None:
        """Give the run back, ended where nothing is left; what is still being called is unknown from now on."""
        left = [underway for underway in self._busy.values() if underway is not None]
        lost = facts_of(Outcome(DispatchState.UNKNOWN, "guard.left", "the script left the guard"), duration_us=None)

        def work(tx: Transaction) -> None:
            for underway in left:
                try:
                    self._lose(tx, underway.dispatch, lost)
                except TransitionRefused:
                    continue  # its outcome was committed meanwhile
            run_ends.finish_run(tx, self._run_key)
            release_run(tx, self.coordinator, reason=reason, active_us=round((time.monotonic() - self._began) * 1e6))

        self._ledger.write(work)

    def standing(self) -> tuple[dict[SlotState, int], list[BudgetState]]:
        """The keys by state, and the budgets."""
        with self._ledger.reading() as reader:
            return slot_counts(reader, self._run_key), own_budgets_of(reader, self._run_key)


def broken_off(problem: BaseException) -> Outcome:
    """What is known of a call that was cancelled or interrupted."""
    return Outcome(DispatchState.UNKNOWN, "guard.broken_off", type(problem).__name__)


def _refuse(tx: Transaction, key: DispatchKey, facts: DispatchFacts) -> None:
    attempts.refuse(tx, key, facts)
    attempts.give_back(tx, key, Waiting(), reason=facts.reason, message=facts.message)


def _case_plan(asked: KeyAsked) -> CasePlan:
    return CasePlan(escaped_text(asked.key), asked.digest, asked.text, None, "{}")


def _differing(now: str, then: str) -> str:
    """What of a key's meaning is another than before, in a few words."""
    new, old = parse_json(now), parse_json(then)
    assert isinstance(new, dict)
    assert isinstance(old, dict)
    if new["function"] != old["function"]:
        return f"{new['function']}, not {old['function']} as before,"
    if new["code"] != old["code"]:
        return f"another code of {new['function']}"
    return f"other arguments of {new['function']}"
