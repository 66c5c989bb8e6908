"""What requests of an agent's own cost, by the prices of its work order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

import tallystick as ts

from .guarded import URL, Model, dispatches, run

PRICES = {"as_of": "2026-11-01", "models": {"m-1": {"input": "1", "output": "2"}}}
TOLD = {"prompt_tokens": 7, "completion_tokens": 3}
COST = 7_000 + 6_000


def ask(path: Path, answered_by: Any, asked: str, **options: Any) -> Any:
    model = Model(lambda request: httpx.Response(200, json={"model": answered_by, "usage": TOLD}))

    def agent(case: ts.Case) -> int:
        with ts.httpx_client(transport=model) as client:
            return client.post(URL, json={"model": asked}).status_code

    run(path, agent, **{"prices": PRICES, **options})
    (sent,) = dispatches(path)
    return sent


@pytest.mark.parametrize(
    ("answered_by", "asked", "cost"),
    [("m-1", "any", COST), ("m-1-of-today", "m-1", COST), (None, "m-1", COST), ("m-9", "m-8", None)],
    ids=["by the answer", "by the request, an unknown name answering", "by the request", "no price for either"],
)
def test_a_request_of_an_agents_own_is_priced_by_its_model(
    tmp_path: Path, answered_by: Any, asked: str, cost: int | None
) -> None:
    sent = ask(tmp_path / "l.db", answered_by, asked)
    assert (sent.tokens_in, sent.tokens_out, sent.cost_nanousd) == (7, 3, cost)


def test_without_prices_its_cost_is_unknown(tmp_path: Path) -> None:
    assert ask(tmp_path / "l.db", "m-1", "m-1", prices=None).cost_nanousd is None


def test_its_cost_settles_a_budget_of_money(tmp_path: Path) -> None:
    ask(tmp_path / "l.db", "m-1", "m-1", budgets={"usd": {"limit": "1.00", "bound_per_dispatch": "0.10"}})
    with ts.open(tmp_path / "l.db") as ledger:
        (found,) = ledger.budgets("agents")
    assert (found.settled, found.held, found.unknown_uses) == (COST, 0, 0)


@pytest.mark.parametrize("status", [400, 401, 403, 500])
@pytest.mark.parametrize("says_so", [False, True])
def test_an_error_that_does_not_say_what_it_used_counts_at_its_bound_unless_a_reader_says_that_it_is_nothing(
    tmp_path: Path, status: int, says_so: bool
) -> None:
    model = Model(lambda request: httpx.Response(status, json={"error": {"message": "no such key"}}))

    def nothing_where_it_is_turned_away(body: Any) -> Any:
        return {"tokens_in": 0, "tokens_out": 0} if "error" in body else None

    def agent(case: ts.Case) -> int:
        usage = nothing_where_it_is_turned_away if says_so else None
        with ts.httpx_client(transport=model, usage=usage) as client:
            return client.post(URL, json={"model": "m-1"}).status_code

    budgets = {"dispatches": 5, "usd": {"limit": "1.00", "bound_per_dispatch": "0.10"}}
    run(tmp_path / "l.db", agent, prices=PRICES, budgets=budgets)
    with ts.open(tmp_path / "l.db") as ledger:
        found = {one.plan.unit: (one.settled, one.held, one.unknown_uses) for one in ledger.budgets("agents")}
    assert found == {"dispatches": (1, 0, 0), "nanousd": (0, 0, 0) if says_so else (100_000_000, 0, 1)}
