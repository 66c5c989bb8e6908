"""How spend is shown: tokens by class, what was not told, what has no price, and by which prices."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tallystick.adapters.prices import read_prices
from tallystick.adapters.usage_shapes import broken_off, normalise
from tallystick.cli.screen import PlainScreen
from tallystick.cli.screens import totals_rows
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.run_reads import find_run
from tallystick.ledger.slot_reads import case_page
from tallystick.runner.case_pages import DispatchUsage, case_model
from tallystick.runner.protocols import Usage
from tallystick.runner.reports import status_of
from tests.unit.renderers.made_runs import document
from tests.unit.runner.scripted import ANSWERED, FAILED, UNKNOWN, Scripted, execute, in_turn

PRICES = read_prices(
    {"as_of": "2026-11-01", "models": {"m-1": {"input": "1", "output": "2", "cache_read": "0.5"}}}, place="prices"
)
CHAT: dict[str, Any] = {
    "prompt_tokens": 10, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 5},
}  # fmt: skip
TOLD = normalise(CHAT)
COST = 6_000 + 2_000 + 12_000


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "l.db", create=True) as opened:
        yield opened


def run(ledger: Ledger, *usages: Usage | None, **options: Any) -> str:
    outcomes = [attrs.evolve(ANSWERED, usage=PRICES.priced(usage, "m-1")) for usage in usages]
    return execute(ledger, Scripted(in_turn(*outcomes)), cases=len(usages), concurrency=1, **options).run_id


def shown(ledger: Ledger, run_id: str) -> dict[str, str]:
    return dict(totals_rows(PlainScreen(io.StringIO()), status_of(ledger, run_id)))


def usage_shown(ledger: Ledger, run_id: str, case: str) -> DispatchUsage | None:
    with ledger.reading() as reader:
        found = find_run(reader, run_id)
        pages = case_page(reader, found.run_key, case)
    (sent,) = case_model("l.db", found, pages).planned[0].attempts[0].dispatches
    return sent.usage


def test_tokens_are_shown_by_class_and_add_up(ledger: Ledger) -> None:
    found = run(ledger, TOLD, TOLD)
    totals = document(ledger, found)["totals"]
    assert totals["tokens_by_class"] == {"input": 12, "cache_read": 8, "output": 2, "reasoning": 10}
    assert (totals["tokens_in"], totals["tokens_out"], totals["unmetered_dispatches"]) == (20, 12, 0)
    assert (totals["cost_usd"], totals["unpriced_dispatches"]) == ("0.00004", 0)
    assert status_of(ledger, found).totals.model_dump() == totals  # type: ignore[union-attr]
    assert shown(ledger, found)["by class"] == "12 input, 8 cache_read, 2 output, 10 reasoning"


def test_c20_what_has_no_price_makes_the_sum_a_lower_bound_and_is_counted(ledger: Ledger) -> None:
    found = run(ledger, TOLD, None, normalise({"prompt_tokens": 5}))
    totals = document(ledger, found)["totals"]
    assert (totals["cost_usd"], totals["unpriced_dispatches"], totals["unmetered_dispatches"]) == ("0.00002", 2, 2)
    assert shown(ledger, found)["cost"] == "$0.00002; at least, 2 had no price"
    assert shown(ledger, found)["tokens"] == "15 in, 6 out; 2 sends did not say"


def test_a_cost_of_which_nothing_is_known_is_said_to_be_unknown(ledger: Ledger) -> None:
    usage = normalise({"prompt_tokens": 5, "completion_tokens": 1})
    found = execute(ledger, Scripted(in_turn(attrs.evolve(ANSWERED, usage=usage)))).run_id
    assert document(ledger, found)["totals"]["cost_usd"] is None
    assert shown(ledger, found)["cost"] == "unknown: nothing that was sent had a price"


def test_what_a_failed_send_used_counts_and_what_an_unknown_one_told_waits_for_its_settlement(ledger: Ledger) -> None:
    cut = PRICES.priced(broken_off(TOLD), "m-1")
    target = Scripted(in_turn(attrs.evolve(FAILED, usage=TOLD), attrs.evolve(UNKNOWN, usage=cut)))
    found = execute(ledger, target, cases=2, concurrency=1).run_id
    totals = document(ledger, found)["totals"]
    assert (totals["tokens_in"], totals["tokens_out"], totals["unmetered_dispatches"]) == (10, 6, 1)
    assert status_of(ledger, found).totals.model_dump() == totals  # type: ignore[union-attr]


def test_c21_the_page_of_a_case_says_what_was_reported_and_what_is_wrong_with_it(ledger: Ledger) -> None:
    found = run(ledger, normalise({**CHAT, "total_tokens": 99}), broken_off(TOLD))
    odd, cut = (usage_shown(ledger, found, case) for case in ("c0", "c1"))
    assert odd is not None
    assert odd.raw == {**CHAT, "total_tokens": 99}
    assert odd.problems[0].startswith("total_tokens is 99")
    assert "the cost is unknown" in odd.problems[1]
    assert cut is not None
    assert cut.seen == {"tokens_out": 6, "cost_nanousd": COST}
    assert cut.classes == {"input": 6, "cache_read": 4}


FOREIGN = [
    "no JSON", "5", "[]", '{"classes": 5}', '{"classes": [1, 2]}', '{"classes": null}',
    '{"classes": {"input": "9", "output": -1, "reasoning": 1.5, "cache_read": 9223372036854775807, "other": 3}}',
]  # fmt: skip


@pytest.mark.parametrize("text", FOREIGN)
def test_what_another_program_wrote_as_usage_breaks_no_view(ledger: Ledger, text: str) -> None:
    found = run(ledger, TOLD, TOLD, TOLD)
    change = "UPDATE dispatches SET usage = ? WHERE call_id <> (SELECT min(call_id) FROM dispatches)"
    ledger.write(lambda tx: tx.change(change, (text,)))
    totals = document(ledger, found)["totals"]
    assert totals["tokens_by_class"] == {"input": 6, "cache_read": 4, "output": 1, "reasoning": 5}
    assert status_of(ledger, found).totals.model_dump() == totals  # type: ignore[union-attr]
    usage_shown(ledger, found, "c1")
