"""C31: a broken surrounding, an error of the target and a wrong answer are three things, in counts, score and money."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tallystick._wiring import ADAPTERS
from tallystick.adapters.rule_judges import exact
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.slot_reads import scores_of
from tallystick.ledger.states import SlotState
from tallystick.runner.descriptions import describe
from tallystick.runner.protocols import Dispatching, Outcome
from tallystick.runner.results import NextMove
from tallystick.runner.sessions import find_or_create, run_session
from tallystick.runner.work_order_cases import cases
from tests.unit.runner.scripted import ANSWERED, FAILED, REFUSED, Scripted, held_and_settled, order_of


def test_what_was_never_reached_is_no_failure_of_what_is_measured(tmp_path: Path) -> None:
    told = {"unreachable": REFUSED, "error": FAILED, "wrong": ANSWERED}

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        return told[dispatching.slot.case.id]

    rows = cases([{"id": name, "input": name, "expected": "right"} for name in told])
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        order = order_of(Scripted(reply), judges=[exact()], attempts_max=1, dispatches_max=1, budgets={"dispatches": 9})
        session = find_or_create(ledger, describe(order.replaced(cases=rows), ADAPTERS))
        outcome = asyncio.run(run_session(ledger, session))
        with ledger.reading() as reader:
            (score,) = scores_of(reader, 1)
        ends = (SlotState.UNAVAILABLE, SlotState.FAILED, SlotState.SELECTED)
        assert [outcome.counts[state] for state in ends] == [1, 1, 1]
        assert (score.passed, score.judged, score.planned) == (0, 1, 3)
        assert outcome.next is NextMove.DECIDE
        assert held_and_settled(ledger) == [(0, 2, 0)]  # what never left costs nothing
