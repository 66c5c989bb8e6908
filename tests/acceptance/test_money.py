"""E08b, C20, C21: tokens and money under hard caps, whatever a service says that it used, and across deaths."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from .harness import Site
from .invariants import check_invariants, rows
from .orders import case, http_order

PRICES: Final = {"as_of": "2026-11-01", "models": {"m-1": {"input": "1", "output": "2"}}}
MODEL: Final = {"usage": {"shape": "openai"}, "model": "m-1", "tokens_in_max": 10, "tokens_out_max": 10}
BOUND: Final = 10 * 1_000 + 10 * 2_000  # nano-USD of one request at most
COST: Final = 7 * 1_000 + 3 * 2_000
GOOD: Final = {"prompt_tokens": 7, "completion_tokens": 3}
ODD: Final[dict[str, Any]] = {
    "absent": ..., "null": None, "empty": {}, "text": {"prompt_tokens": "7", "completion_tokens": 3},
    "absurd": {**GOOD, "prompt_tokens": 10**30}, "negative": {**GOOD, "prompt_tokens": -7},
    "contradictory": {**GOOD, "total_tokens": 11}, "list": [7, 3],
}  # fmt: skip


def telling(name: str, usage: Any = GOOD) -> dict[str, Any]:
    return case(name, body={"answer": name} if usage is ... else {"answer": name, "usage": usage})


def money_order(site: Site, cases: list[dict[str, Any]], usd: Any, **options: Any) -> dict[str, Any]:
    target = {**MODEL, **options.pop("target", {})}
    order = http_order(site.service, cases, target=target, budgets={"usd": usd}, judges=[], **options)
    return {**order, "prices": PRICES}


def usd(nano: int) -> str:
    return f"{nano / 10**9:.9f}"


def test_e08b_whatever_is_said_of_usage_the_cap_holds_and_what_is_unknown_is_never_nothing(site: Site) -> None:
    cases = [telling("good"), telling("free", {"prompt_tokens": 0, "completion_tokens": 0})]
    cases += [telling(name, usage) for name, usage in ODD.items()]
    site.order(money_order(site, [*cases, telling("beyond")], usd(COST + len(ODD) * BOUND + BOUND - 1)))
    assert site.run().ended() == 6
    assert site.service.received() == len(cases), "the bound of one more did not fit"
    assert site.counts() == {"selected": len(cases), "unavailable": 1}
    (budget,) = site.budgets()
    assert (budget.settled, budget.held, budget.unknown_uses) == (COST + len(ODD) * BOUND, 0, len(ODD))
    totals = site.told("report", "acceptance", "--json")["totals"]
    assert (totals["cost_usd"], totals["unpriced_dispatches"]) == ("0.000013", len(ODD))
    assert totals["tokens_by_class"] == {"input": 7, "output": 12}
    kept = rows(site.ledger, "SELECT count(*) FROM dispatches WHERE usage ->> '$.problems[0]' IS NOT NULL")
    assert kept == [(len(ODD) - 2,)], "nothing is wrong with what is not there"
    check_invariants(site.ledger, site.requests())


@pytest.mark.parametrize("point", ["dispatch.outcome.inside", "dispatch.outcome.committed"])
def test_e08b_a_death_at_a_settlement_leaves_it_made_once_or_not_at_all(site: Site, point: str) -> None:
    cases = [telling(name) for name in "abc"]
    site.order(money_order(site, cases, "1.00", if_unknown="repeat"))
    site.run(crashpoint=f"{point}@2").died_at_its_point()
    assert site.resume().ended() == 0
    lost = int(point == "dispatch.outcome.inside")
    (budget,) = site.budgets()
    assert (budget.settled, budget.held, budget.overrun) == (3 * COST, lost * BOUND, 0)
    if lost:
        give_up = ("reconcile", "acceptance", "--give-up", "--reason", "nobody knows", "--yes")
        site.start(*give_up).ended()
        site.start(*give_up).ended()
        (budget,) = site.budgets()
        assert (budget.settled, budget.held, budget.unknown_uses) == (3 * COST + BOUND, 0, 1)
    check_invariants(site.ledger, site.requests())


def test_e08b_what_a_stream_told_before_it_was_cut_is_charged_and_the_rest_at_its_bound(site: Site) -> None:
    begun = {"message": {"usage": {"input_tokens": 4, "output_tokens": 1}}}
    chunks = [f"data: {json.dumps(begun)}\n\n", 'data: {"delta": "Hel"}\n\n']
    headers = {"Content-Type": "text/event-stream"}
    cut = case("a", chunks=chunks, cut=True, headers=headers)
    order = http_order(
        site.service, [cut], judges=[],
        target={**MODEL, "usage": {"shape": "anthropic"}, "events": {"text": "$.delta", "end": "[DONE]"}},
        budgets={"tokens_in": 100, "tokens_out": 100, "usd": "1.00"},
    )  # fmt: skip
    del order["target"]["answer"]
    site.order({**order, "prices": PRICES})
    assert site.run().ended() == 3
    assert [(one.settled, one.held) for one in site.budgets()] == [(0, 10), (0, 10), (0, BOUND)]
    site.start("reconcile", "acceptance", "--give-up", "--reason", "gone", "--yes").ended()
    assert [(one.settled, one.held, one.unknown_uses) for one in site.budgets()] == [
        (4, 0, 0), (10, 0, 1), (BOUND, 0, 1),
    ]  # fmt: skip
    check_invariants(site.ledger, site.requests())


def test_which_prices_a_run_went_by_is_recorded_also_where_they_change_under_it(site: Site) -> None:
    file = site.folder / "prices.json"
    file.write_text(json.dumps(PRICES))
    site.order({**money_order(site, [telling("a"), telling("b")], "1.00"), "prices": "prices.json"})
    site.run("--limit", 1).ended()
    dearer = {"as_of": "2026-11-15", "models": {"m-1": {"input": "10", "output": "20"}}}
    file.write_text(json.dumps(dearer))
    assert site.run().ended() == 0
    assert site.service.received() == 2, "the same run went on"
    report = site.told("report", "acceptance", "--json")
    assert [(one["as_of"], one["file"]) for one in report["prices"]] == [
        ("2026-11-01", "prices.json"), ("2026-11-15", "prices.json"),
    ]  # fmt: skip
    assert report["totals"]["cost_usd"] == "0.000143"
    shown = site.start("report", "acceptance")
    assert shown.ended() == 0
    assert "of 2026-11-15, prices.json (sha256:" in shown.out
    check_invariants(site.ledger, site.requests())
