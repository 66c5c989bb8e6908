"""A run to report on: two variants, judged, with every kind of trouble, kills between sessions, and budgets."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from tallystick.ledger import attempts, coordinators, run_ends
from tallystick.ledger.canonical import canonical_text, digest_of_bytes
from tallystick.ledger.judgments import add_judgments
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.planning import CasePlan, JudgePlan, RunPlan, VariantPlan, create_run
from tallystick.ledger.records import BudgetPlan, DispatchFacts, Hold, Intent, JudgmentRow, Waiting
from tallystick.ledger.states import DispatchState, IfUnknown
from tallystick.ledger.stored_digests import digest_of_case
from tallystick.ledger.transaction import Transaction

__all__ = ["HandClock", "made_to_report"]

_LANGUAGES: Final = ("de", "fr", "en", "it", "pt")
_BATCH: Final = 500


@attrs.define
class HandClock:
    """A clock that moves as the run does."""

    us: int = 1_750_000_000_000_000

    def now_us(self) -> int:
        return self.us

    def boot_ns(self) -> int:
        return self.us * 1000


def made_to_report(path: Path, slots: int, *, sessions: int = 3, note: str = "") -> str:
    """A ledger with one run of that many planned observations in it; returns the run's id. ``note`` is in its texts."""
    clock, source = HandClock(), random.Random(7)
    with Ledger.open(path, create=True, clock=clock) as ledger:
        cases = max(1, slots // 2)
        run = create_run(ledger, _plan(slots), _cases(cases, note))
        coordinator = coordinators.open_run(ledger, run.run_id)
        for number, first in enumerate(range(1, cases * 2 + 1, _BATCH)):
            last = min(first + _BATCH, cases * 2 + 1)
            ledger.write(lambda tx, a=first, b=last: _execute(tx, run.run_key, a, b, source, clock, note))  # type: ignore[misc]
            if sessions > 1 and number % max(1, cases * 2 // _BATCH // sessions) == 1:
                coordinator = _die_and_come_back(ledger, run.run_id, coordinator, clock)
        ledger.write(lambda tx: run_ends.finish_run(tx, run.run_key))
        ledger.write(lambda tx: coordinators.release_run(tx, coordinator, reason="ended", active_us=90_000_000))
        return run.run_id


def _plan(slots: int) -> RunPlan:
    return RunPlan(
        "language-id", json.dumps({"judges": [], "variants": {}}), "sha256:order", "{}", "{}",
        (VariantPlan("small-model", "{}", IfUnknown.KEEP), VariantPlan("large-model", "{}", IfUnknown.KEEP)), 1,
        (BudgetPlan(1, "run", "", "dispatches", "hard", slots * 3 // 2, 1),
         BudgetPlan(2, "run", "", "nanousd", "hard", slots * 500_000 + 10**9, 10_000_000)),
        (JudgePlan("exact", "exact", "{}"), JudgePlan("helpful", "python", "{}")),
    )  # fmt: skip


def _cases(count: int, note: str) -> Iterator[CasePlan]:
    for number in range(1, count + 1):
        language = _LANGUAGES[number % len(_LANGUAGES)]
        given = {"text": f"Sample {number} of what somebody wrote in a language that is to be named. {note}"}
        metadata = {"language": language, "hard": number % 7 == 0}
        texts = f"case-{number:06d}", canonical_text(given), canonical_text(language), canonical_text(metadata)
        yield CasePlan(texts[0], digest_of_case(*texts), *texts[1:])


def _execute(
    tx: Transaction, run_key: int, first: int, last: int, source: random.Random, clock: HandClock, note: str
) -> None:
    for slot_no in range(first, last):
        chance = source.random()
        if chance < 0.02:
            attempts.give_up(tx, run_key, slot_no, reason="connect.refused")
            continue
        _attempt(tx, run_key, slot_no, chance, source, note)
        clock.us += 40_000
        tx.now_us = clock.us


def _attempt(tx: Transaction, run_key: int, slot_no: int, chance: float, source: random.Random, note: str) -> None:
    took = round(source.lognormvariate(13.2 + 0.4 * (slot_no % 2), 0.5))
    begun = attempts.begin(tx, _intent(tx, run_key, slot_no))
    tx.now_us += took
    used: dict[str, Any] = {
        "duration_us": took, "wire_sends": 1, "bytes_sent": 90, "status": 200, "tokens_in": 40, "tokens_out": 3,
        "cost_nanousd": 21_000,
    }  # fmt: skip
    if chance < 0.03:
        lost = DispatchFacts(DispatchState.UNKNOWN, "deadline", f"no whole answer in time {note}", bytes_sent=90)
        attempts.lose(tx, begun.key, lost, waiting=None)
    elif chance < 0.06:
        failed = DispatchFacts(DispatchState.FAILED, "http.status.500", f"the service is overloaded {note}", **used)
        attempts.fail(tx, begun.key, failed, waiting=None if chance < 0.045 else Waiting())
        if chance >= 0.045:
            _attempt(tx, run_key, slot_no, 0.5, source, note)
    else:
        _observe(tx, run_key, slot_no, begun, source, used, note)


def _observe(
    tx: Transaction, run_key: int, slot_no: int, begun: Any, source: random.Random, used: dict[str, Any], note: str
) -> None:
    language = _LANGUAGES[((slot_no - 1) // 2 + 1) % len(_LANGUAGES)]
    passed = source.random() < (0.86 if slot_no % 2 else 0.91)
    answer = canonical_text({"language": language if passed else "xx", "why": f"its words say so {note}"})
    evidence = canonical_text({"context": [f"dictionary of {language}", note]})
    attempts.observe(
        tx, begun.key, DispatchFacts(DispatchState.ANSWERED, **used), answer=answer,
        answer_digest=digest_of_bytes(answer.encode()), evidence=evidence,
    )  # fmt: skip
    attempt_no = begun.key.attempt_no
    rows = [JudgmentRow(1, slot_no, attempt_no, passed, None, None, "" if passed else f"wanted {language} {note}")]
    if source.random() < 0.97:
        rows.append(JudgmentRow(2, slot_no, attempt_no, None, repr(round(source.gauss(3.6, 0.7), 2)), None, ""))
    else:
        rows.append(JudgmentRow(2, slot_no, attempt_no, reason="malformed_verdict", explanation=f"no number {note}"))
    add_judgments(tx, run_key, 1, rows)


def _intent(tx: Transaction, run_key: int, slot_no: int) -> Intent:
    payload = b'{"text":"a sample"}'
    return Intent(
        run_key, slot_no, tx.ids.next(), payload, "sha256:payload", len(payload), "{}", IfUnknown.KEEP,
        (Hold(1, "dispatches", 1, True), Hold(2, "nanousd", 10_000_000, True)), "fp",
    )  # fmt: skip


def _die_and_come_back(
    ledger: Ledger, run_id: str, before: coordinators.Coordinator, clock: HandClock
) -> coordinators.Coordinator:
    holder: Callable[..., Any] = coordinators.Holder
    clock.us += 600_000_000
    dead = holder(before.lease_id, ledger.worker_id, None, True, 0)
    return ledger.write(lambda tx: coordinators._take(tx, run_id, dead, 3))
