"""What settling would do is told beforehand exactly as it then comes."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from tallystick.ledger import attempts
from tallystick.ledger.canonical import digest_of_bytes
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import DispatchFacts, DispatchKey, Hold, Waiting
from tallystick.ledger.run_reads import RunRow, find_run, slot_counts
from tallystick.ledger.settlements import Decision, Settlement
from tallystick.ledger.slot_reads import Unknown, unknown_outcomes
from tallystick.ledger.states import DispatchState, IfUnknown, NextStep
from tallystick.runner.reconciling import settle_all
from tallystick.runner.unknowns import preview
from tests.unit.ledger import factories

HOLDS = (Hold(1, "dispatches", 1, hard=True),)
CHOSEN = [one for size in range(1, 6) for one in itertools.combinations(range(5), size)]
LOST = DispatchFacts(DispatchState.UNKNOWN, "deadline")


def _lose(ledger: Ledger, key: DispatchKey, waiting: Waiting | None) -> None:
    ledger.write(lambda tx: attempts.lose(tx, key, LOST, waiting=waiting))


def _ledger(folder: Path) -> tuple[Ledger, int]:
    """Four slots: unknown; unknown twice in one attempt; unknown and asked anew; unknown and waiting."""
    ledger = factories.new_ledger(folder)
    run_key = factories.opened_run(ledger, 4, budgets=(factories.budget(),)).run_key
    _lose(ledger, factories.begin(ledger, run_key, 1, holds=HOLDS).key, None)
    first = factories.begin(ledger, run_key, 2, holds=HOLDS, if_unknown=IfUnknown.RESEND).key
    _lose(ledger, first, Waiting(NextStep.RESEND))
    _lose(ledger, ledger.write(lambda tx: attempts.reopen(tx, first, HOLDS)).key, None)
    _lose(ledger, factories.begin(ledger, run_key, 3, holds=HOLDS).key, Waiting(NextStep.NEW))
    again = factories.begin(ledger, run_key, 3, holds=HOLDS).key
    ledger.write(lambda tx: factories.observe(tx, again))
    _lose(ledger, factories.begin(ledger, run_key, 4, holds=HOLDS).key, Waiting(NextStep.NEW))
    return ledger, run_key


def _read(ledger: Ledger, run_key: int) -> tuple[RunRow, list[Unknown], Counter[str]]:
    with ledger.reading() as reader:
        run = find_run(reader, "a run")
        counts = Counter({state.value: count for state, count in slot_counts(reader, run_key).items()})
        return run, unknown_outcomes(reader, run_key), counts


@pytest.mark.parametrize("decision", [Decision.LANDED, Decision.NOT_LANDED, Decision.GIVE_UP])
@pytest.mark.parametrize(
    "chosen", [one for size in range(1, 6) for one in itertools.combinations(range(5), size)], ids=str
)
def test_preview_tells_what_settling_does(tmp_path: Path, decision: Decision, chosen: tuple[int, ...]) -> None:
    ledger, run_key = _ledger(tmp_path)
    with ledger:
        run, everything, before = _read(ledger, run_key)
        assert len(everything) == 5
        picked = [everything[number] for number in chosen]
        told = preview(picked, everything, decision, run=run)
        answer = factories.ANSWER if decision is Decision.LANDED else None
        settle_all(ledger, [
            Settlement(one.call_id, one.dispatch_no, decision, "operator:me", "test", answer=answer,
                       answer_digest=digest_of_bytes(factories.ANSWER.encode()))
            for one in picked
        ])  # fmt: skip
        _, left, after = _read(ledger, run_key)
    came = {state: after[state] - before[state] for state in ("selected", "failed")}
    assert {state: told.states.get(state, 0) for state in came} == came
    assert told.states.get("pending", 0) >= after["pending"] - before["pending"]
    assert (told.count, len(left)) == (len(picked), 5 - len(picked))
    assert told.held == {"dispatches": len(picked)}
    touched = {one.slot_no for one in picked}
    assert sum(told.states.values()) + told.kept == len(touched)
