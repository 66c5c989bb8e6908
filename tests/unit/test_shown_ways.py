"""What the pages on guards, agents, notebooks and embedding show is run as it stands there."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tallystick as ts
from tallystick.adapters import guarded_clients
from tallystick.ledger.states import SlotState

from .test_docs import DOCS, blocks, defined

HOW_TO = DOCS / "how-to"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv("TALLYSTICK_LEDGER", raising=False)
    (tmp_path / "pyproject.toml").touch()
    with monkeypatch.context() as inside:
        inside.chdir(tmp_path)
        yield tmp_path


def test_the_guards_that_are_shown_call_each_key_once(capsys: pytest.CaptureFixture[str]) -> None:
    first, more, pool = blocks(HOW_TO / "guard-a-script.md", "python")
    names: dict[str, Any] = {"__name__": "shown"}
    exec(first, names)
    assert capsys.readouterr().out.splitlines()[:2] == ["ONE", "TWO"]
    exec(more, names)
    assert names["results"] == ["ONE", "TWO"]
    assert asyncio.run(names["many"]()) == ["hey!", "ho!"]
    with ts.guard("summaries", if_unknown="repeat", budget=ts.Budget(dispatches=500)) as guard:
        assert guard.summary().spent == {"dispatches": 2}
    exec(pool, names)
    assert names["chapters"] == [["A", "B"], ["C"]]


def test_the_agent_that_is_shown_runs_and_its_step_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = httpx.MockTransport(
        lambda request: httpx.Response(200, json={"answer": json.loads(request.content)["input"]})
    )
    monkeypatch.setattr(guarded_clients, "shared_sender", lambda **_: model)
    agent, step = blocks(HOW_TO / "write-an-agent.md", "python")
    names = defined(agent)
    outcome = ts.run(names["order"])
    assert (outcome.counts[SlotState.SELECTED], outcome.dispatches) == (1, 3)
    before = set(names)
    exec(step, names)
    (target,) = [names[name] for name in set(names) - before if hasattr(names[name], "identity")]
    cases = [{"id": "a", "input": "x"}]
    assert ts.run(ts.WorkOrder("step", cases=cases, target=target)).counts[SlotState.SELECTED] == 1


def test_the_harnesses_that_are_shown_run_and_send_nothing_the_second_time(capsys: pytest.CaptureFixture[str]) -> None:
    whole, queue = blocks(HOW_TO / "embed-the-ledger.md", "python")
    defined(whole)
    names = defined(whole)
    assert capsys.readouterr().out.splitlines() == ["a A", "b TWO"] * 2
    exec(queue, names)

    async def harness() -> None:
        held: asyncio.Queue[Any] = asyncio.Queue()
        async with ts.open_async("embedded.db") as ledger:
            run = await ledger.create_or_continue("queue", slots=["a"], identity={})
            async for slot in run.claims():
                work = asyncio.ensure_future(names["through_a_queue"](slot, held))
                held.put_nowait(await held.get())  # until something is reserved
                held.task_done()
                await names["sends"](held)
                await work
            assert [(call.name, call.state) for call in ledger.calls(run)] == [("batch", "answered")]

    asyncio.run(harness())


def test_the_cells_that_are_shown_run_in_a_kernel_and_again_in_the_next(folder: Path) -> None:
    cells = blocks(HOW_TO / "use-a-notebook.md", "python")

    async def kernel() -> dict[str, Any]:
        """As a kernel does: each cell on the running loop of the main thread, awaited where it awaits."""
        names: dict[str, Any] = {"__name__": "__main__"}
        for cell in cells:
            code = compile(cell, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            ran = types.FunctionType(code, names)()
            if asyncio.iscoroutine(ran):
                await ran
        return names

    first, second = asyncio.run(kernel()), asyncio.run(kernel())

    assert first["results"] == second["results"] == ["ONE", "TWO", "THREE"]
    assert first["outcome"].counts[SlotState.SELECTED] == 1
    assert second["outcome"].dispatches == 0
    assert {one.plan.unit: one.settled for one in second["budgets"]} == {"dispatches": 3}


def test_a_blocking_run_and_a_blocking_guard_work_in_a_cell() -> None:
    async def cell() -> None:
        order = ts.WorkOrder("cell", cases=[{"id": "a", "input": "x"}], target=ts.target(said))
        assert ts.run(order).counts[SlotState.SELECTED] == 1
        with ts.guard("blocking") as guard:
            assert guard.map(said_of, ["a", "b"]) == ["a", "b"]

    asyncio.run(cell())


def said(case: ts.Case) -> Any:
    return case.input


def said_of(text: str) -> str:
    return text


@pytest.mark.parametrize("page", sorted(HOW_TO.glob("*.md")), ids=lambda page: page.stem)
def test_every_name_of_ours_that_a_page_uses_is_there(page: Path) -> None:
    named = set(re.findall(r"\bts\.([A-Za-z_]\w*)", page.read_text(encoding="utf-8")))
    assert [name for name in sorted(named) if not hasattr(ts, name)] == []
