from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tallystick as ts


@ts.target(if_unknown="repeat")
def echo(case: ts.Case) -> str:
    return str(case.input)


def _written(ledger: ts.AsyncLedger, run: Any) -> str:
    out = ledger.path.with_suffix(".md")
    ledger.write_report(run, out, at=1)
    return out.read_text()


GATED = ts.WorkOrder("gated", target=echo, cases=[{"id": "a", "input": "a"}], gates={"max_unknown": 5})
SLOWED = ts.WorkOrder("slowed", target=echo, cases=[{"id": "a", "input": "a"}], gates={"max_slowdown": 2.0})
LOOKS: dict[str, Callable[[ts.AsyncLedger, Any], Any]] = {
    "find": lambda ledger, run: ledger.find(run),
    "outcome": lambda ledger, run: ledger.outcome(run).counts,
    "counts": lambda ledger, run: ledger.counts(run),
    "budgets": lambda ledger, run: ledger.budgets(run),
    "scores": lambda ledger, run: ledger.scores(run),
    "report": lambda ledger, run: ledger.report(run, at=1).model_dump_json(),
    "write_report": _written,
    "to_pandas": lambda ledger, run: ledger.to_pandas(run, at=1).to_csv(),
    "compare": lambda ledger, run: ledger.compare(run, run).lines,
    "gate": lambda ledger, run: ledger.gate(run, GATED).verdict,
    "case": lambda ledger, run: ledger.case(run, "a"),
    "unknown": lambda ledger, run: ledger.unknown(run),
    "observations": lambda ledger, run: list(ledger.observations(run)),
    "calls": lambda ledger, run: list(ledger.calls(run)),
}
CHANGES = {"retry", "export", "adopt"}


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[asyncio.Runner, ts.AsyncLedger, ts.EmbeddedRun]]:
    """A ledger in which a harness of this process holds a run with one observation and one unknown outcome."""
    with asyncio.Runner() as runner:
        opening = ts.open_async(tmp_path / "evals.db")
        ledger = runner.run(opening.__aenter__())
        run = runner.run(ledger.create_or_continue("bench", slots=["a", "b"], identity={"model": "a"}))
        runner.run(_observe_first(run))
        yield runner, ledger, run
        runner.run(ledger.aclose())


async def _observe_first(run: ts.EmbeddedRun) -> None:
    async for slot in run.claims():
        async with slot.attempt() as attempt, attempt.call("model", 1) as call:
            if slot.case.id == "a":
                call.answer("yes")
                attempt.observe("yes")


def test_every_function_that_reads_takes_a_run_its_name_its_id_and_what_carries_its_id(
    held: tuple[asyncio.Runner, ts.AsyncLedger, ts.EmbeddedRun],
) -> None:
    _, ledger, run = held
    for name, look in LOOKS.items():
        by_id = look(ledger, run.run_id)
        for other in (run, "bench", run.run_id[:-1], ledger.runs()[0], ledger.outcome(run)):
            assert look(ledger, other) == by_id, name


def test_no_function_of_an_open_ledger_takes_a_run_as_text_alone() -> None:
    takes = {
        name: [str(one.annotation) for one in inspect.signature(member).parameters.values() if _is_run(one)]
        for name, member in inspect.getmembers(ts.AsyncLedger, inspect.isfunction)
        if not name.startswith("_")
    }
    asks = {name: kinds for name, kinds in takes.items() if kinds}
    assert asks.keys() == LOOKS.keys() | CHANGES
    assert {kind for kinds in asks.values() for kind in kinds} == {"RunName", "RunName | None"}


def _is_run(parameter: inspect.Parameter) -> bool:
    return parameter.name in ("run", "runs", "baseline", "candidate")


@pytest.mark.parametrize("odd", [None, 7, "", ["bench"]])
def test_what_names_no_run_is_refused_with_what_to_give(
    held: tuple[asyncio.Runner, ts.AsyncLedger, ts.EmbeddedRun], odd: Any
) -> None:
    with pytest.raises(ts.UsageError, match=r"names no run\. Give its id, the beginning of one, its name"):
        held[1].counts(odd)


def test_a_gate_takes_its_baseline_in_every_form_too(
    held: tuple[asyncio.Runner, ts.AsyncLedger, ts.EmbeddedRun],
) -> None:
    _, ledger, run = held
    for other in (run, "bench", run.run_id, ledger.runs()[0]):
        with pytest.raises(ts.UsageError, match=r"would compare default of run .* to itself"):
            ledger.gate(run, SLOWED, baseline=other)
