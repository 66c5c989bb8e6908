"""Every unit of a budget counts, for whoever sends, in every scope, hard and soft."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import pytest

import tallystick as ts
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.run_reads import BudgetState, budgets_of
from tallystick.ledger.states import SlotState
from tallystick.runner.device_protocols import TakenOver
from tallystick.runner.protocols import Usage
from tests.unit.adapters.guarded import URL, Model, run
from tests.unit.runner.benches import OnBench
from tests.unit.runner.scripted import ANSWERED, Scripted, always, execute
from tests.unit.runner.scripted_judge import PASSED, ScriptedJudge, a_run, judge, judge_always

# What one dispatch uses, which is also its bound, and a limit in which two of them fit and a third one does not.
USED: Final[dict[str, tuple[Any, Any]]] = {
    "dispatches": (1, 2),
    "tokens_in": (3, 7),
    "tokens_out": (4, 10),
    "tokens": (7, 16),
    "usd": ("0.01", "0.025"),
}
USAGE: Final = Usage(3, 4, 10_000_000)
KINDS: Final = ("hard", "soft")
CASES: Final = 5


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "l.db", create=True) as opened:
        yield opened


def budget(unit: str, kind: str, **scope: str) -> dict[str, Any]:
    """Seconds are as they are: one dispatch fits a hard limit that is its bound, and one ends a soft one of nothing."""
    if unit == "seconds":
        told: dict[str, Any] = {"limit": 60, "bound_per_dispatch": 60} if kind == "hard" else {"limit": 0.001}
    else:
        bound, limit = USED[unit]
        told = {"limit": limit} if unit == "dispatches" else {"limit": limit, "bound_per_dispatch": bound}
    return {unit: {**told, "kind": kind, **scope}}


def expected(unit: str, kind: str) -> int:
    """A soft budget is passed by the dispatch that reaches it."""
    if unit == "seconds":
        return 1
    return 2 if kind == "hard" or unit == "dispatches" else 3


def state(ledger: Ledger, run_key: int = 1) -> BudgetState:
    with ledger.reading() as reader:
        (found,) = budgets_of(reader, run_key)
    return found


def check(found: BudgetState, unit: str, kind: str, sent: int) -> None:
    assert sent == expected(unit, kind)
    assert found.held == 0
    assert found.settled > 0
    if unit != "seconds":
        each = {"usd": 10_000_000}.get(unit, USED[unit][0])
        assert found.settled == sent * int(each)
        assert found.overrun == max(0, found.settled - found.plan.limit_amount)
    assert kind == "soft" or found.settled <= found.plan.limit_amount


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scope", [{}, {"role": "target"}, {"variant": "default"}], ids=["run", "role", "variant"])
@pytest.mark.parametrize("unit", [*USED, "seconds"])
def test_a_budget_of_every_unit_and_scope_stops_a_target(
    ledger: Ledger, unit: str, scope: dict[str, str], kind: str
) -> None:
    target = Scripted(always(attrs.evolve(ANSWERED, usage=USAGE)))
    execute(ledger, target, cases=CASES, concurrency=1, budgets=budget(unit, kind, **scope))
    check(state(ledger), unit, kind, len(target.asked))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scope", ["role", "evaluation"])
@pytest.mark.parametrize("unit", [*USED, "seconds"])
def test_a_budget_of_every_unit_stops_a_judge(ledger: Ledger, unit: str, scope: str, kind: str) -> None:
    asking = ScriptedJudge(judge_always(attrs.evolve(PASSED, usage=USAGE)))
    if scope == "role":
        found = a_run(ledger, cases=CASES, budgets=budget(unit, kind, role="judge"))
        judge(ledger, found, asking, concurrency=1)
    else:
        judge(ledger, a_run(ledger, cases=CASES), asking, concurrency=1, budgets=budget(unit, kind))
    check(state(ledger), unit, kind, len(asking.asked))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", [*USED, "seconds"])
def test_a_budget_of_every_unit_stops_requests_of_an_agents_own(tmp_path: Path, unit: str, kind: str) -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        told = {"prompt_tokens": 3, "completion_tokens": 4}
        return httpx.Response(200, json={"said": json.loads(request.content)["say"], "usage": told})

    model = Model(reply)

    def agent(case: ts.Case) -> str:
        with ts.httpx_client(transport=model) as client:
            return "".join(str(client.post(URL, json={"say": turn}).json()["said"]) for turn in range(CASES))

    run(tmp_path / "l.db", agent, budgets=budget(unit, kind), concurrency=1)
    with Ledger.open(tmp_path / "l.db") as ledger:
        check(state(ledger), unit, kind, len(model.seen))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", [*USED, "seconds"])
def test_a_budget_of_every_unit_stops_calls_of_a_device_for_its_own_sake(ledger: Ledger, unit: str, kind: str) -> None:
    async def look(target: OnBench, tenure: Any) -> TakenOver:
        for _ in range(CASES):
            await target.reset(tenure, "bench:1", outcome=attrs.evolve(ANSWERED, usage=USAGE))
        return TakenOver({})

    outcome = execute(ledger, OnBench(look=look), budgets=budget(unit, kind, role="device"))
    with ledger.reading() as reader:
        sent = int(reader.row("SELECT count(*) FROM calls WHERE owner = 'lease'")[0])
    check(state(ledger), unit, kind, sent)
    assert outcome.counts[SlotState.UNAVAILABLE] == 1


def test_a_soft_budget_counts_what_it_cannot_stop_and_says_how_far_it_was_overrun(ledger: Ledger) -> None:
    target = Scripted(always(attrs.evolve(ANSWERED, usage=USAGE)))
    execute(ledger, target, cases=CASES, concurrency=1, budgets={"usd": {"limit": "0.025", "kind": "soft"}})
    found = state(ledger)
    assert (found.settled, found.overrun) == (30_000_000, 5_000_000)
