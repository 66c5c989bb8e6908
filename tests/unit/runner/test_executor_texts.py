"""Cases, requests and answers of any text and any size pass through the executor as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tallystick._wiring import ADAPTERS
from tallystick.adapters.rule_judges import exact
from tallystick.ledger.canonical import JsonValue, canonical_bytes, parse_json
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import DispatchState, IfUnknown, SlotState
from tallystick.runner.descriptions import describe
from tallystick.runner.protocols import (
    Dispatching,
    Outcome,
)
from tallystick.runner.results import NextMove
from tallystick.runner.sessions import find_or_create, run_session
from tallystick.runner.work_order_cases import cases
from tests.unit.runner.scripted import (
    ANSWERED,
    UNKNOWN,
    Scripted,
    execute,
    in_turn,
    order_of,
    page,
)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        yield opened


@pytest.mark.parametrize("odd", ["\ud800", "a\x00b", "c:\\temp", "\\ud800", "\x1b[31m"])
def test_a_case_and_an_answer_of_any_text_are_kept_as_they_are(ledger: Ledger, odd: str) -> None:
    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        if dispatching.slot.case.input == "fail":
            return Outcome(DispatchState.FAILED, "target.failed", f"no {odd}", bytes_sent=1)
        return Outcome(DispatchState.ANSWERED, answer=dispatching.slot.case.id, bytes_sent=1)

    rows: list[Mapping[str, JsonValue]] = [{"id": odd, "input": odd}, {"id": "other", "input": "fail"}]
    order = order_of(Scripted(reply)).replaced(cases=cases(rows))
    session = find_or_create(ledger, describe(order, ADAPTERS))
    outcome = asyncio.run(run_session(ledger, session))
    assert parse_json(page(ledger, outcome, odd).attempts[0].answer) == odd
    assert page(ledger, outcome, page(ledger, outcome, odd).case_id).state == "selected"
    assert outcome.counts[SlotState.FAILED] == 1


def test_no_more_workers_are_started_than_there_are_slots(ledger: Ledger) -> None:
    tasks = []

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        tasks.append(sum(task.get_name() == "tallystick-worker" for task in asyncio.all_tasks()))
        return ANSWERED

    execute(ledger, Scripted(reply), cases=3, concurrency=100_000)
    assert 1 <= max(tasks) <= 3


def test_large_requests_and_answers_lie_in_files_and_are_sent_again_and_judged_whole(ledger: Ledger) -> None:
    big = "x" * 200_000
    answered = Outcome(DispatchState.ANSWERED, answer=big, raw=big.encode(), bytes_sent=1)
    target = Scripted(in_turn(UNKNOWN, answered), IfUnknown.RESEND)
    order = order_of(target, judges=[exact()]).replaced(cases=cases([{"id": "c0", "input": big, "expected": big}]))
    outcome = asyncio.run(run_session(ledger, find_or_create(ledger, describe(order, ADAPTERS))))
    assert outcome.next is NextMove.NOTHING
    assert target.sent[0] == target.sent[1] == canonical_bytes({"input": big})
    assert parse_json(page(ledger, outcome).attempts[0].answer) == big
    with ledger.reading() as reader:
        assert reader.rows("SELECT payload, answer FROM calls, observations") == [(None, None)]
        assert reader.row("SELECT passed FROM judgments") == (1,)
