from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tallystick as ts
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import SlotState
from tallystick.runner.report_reading import report_of
from tallystick.runner.reports import status_of

from .guarded import broken_off, run


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "l.db"
    with Ledger.open(tmp_path / "l.db") as ledger:
        assert check_ledger(ledger) == []


def test_a_step_comes_back_after_a_break_with_its_own_request_id_the_first_time(path: Path) -> None:
    ids: list[str] = []

    def charge(cents: int) -> dict[str, int]:
        ids.append(ts.request_id())
        return {"charged": cents}

    def agent(case: ts.Case) -> Any:
        with pytest.raises(LookupError):
            ts.request_id()
        return [ts.step("charge", charge, cents)["charged"] for cents in (1, 2, 2)]

    outcome = broken_off(path, agent, 2)
    assert outcome.counts[SlotState.SELECTED] == 1
    assert len(ids) == len(set(ids)) == 3, "the same step twice is two steps"


def test_a_step_that_fails_fails_in_the_same_way_in_a_replay(path: Path) -> None:
    caught: list[str] = []

    def breaks() -> None:
        raise KeyError("gone")

    async def agent(case: ts.Case) -> str:
        try:
            ts.step("break", breaks)
        except ts.StepFailed as failed:
            caught.append(str(failed))
        return str(await ts.step("later", later))

    async def later() -> int:
        await asyncio.sleep(0)
        return 7

    assert broken_off(path, agent, 1).counts[SlotState.SELECTED] == 1
    assert caught == ["KeyError: 'gone'"] * len(caught)
    assert len(caught) >= 2


def test_no_step_of_an_attempt_that_gave_an_observation_is_called_wasted(path: Path) -> None:
    def agent(case: ts.Case) -> int:
        for number in range(3):
            ts.step("look", lambda seen: seen, number)
        begun.append(case.id)
        if len(begun) == 2:
            raise KeyError("after all were paid")
        return 1

    begun: list[str] = []
    outcome = run(path, agent, repetitions=2)
    with Ledger.open(path) as ledger:
        report, standing = report_of(ledger, outcome.run_id).totals, status_of(ledger, outcome.run_id).totals
    assert report is not None
    assert (report.dispatches, report.wasted_dispatches) == (6, 3)
    assert standing == report, "the report and the status count alike"


def test_what_a_step_cannot_keep_is_said(path: Path) -> None:
    def agent(case: ts.Case) -> str:
        with pytest.raises(ts.UsageError, match="arguments of step look have no JSON form"):
            ts.step("look", len, object())
        with pytest.raises(ts.StepFailed, match="no JSON form"):
            ts.step("make", object)
        with pytest.raises(ts.UsageError, match="a step takes its name and a function, not builtin_function"):
            ts.step(len, "look")  # type: ignore[call-overload]
        return "said"

    assert run(path, agent).counts[SlotState.SELECTED] == 1
