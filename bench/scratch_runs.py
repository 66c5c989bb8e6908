"""Runs to measure on: planned through the library, of one case a slot, under one budget or under nine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tallystick.ledger.canonical import digest_of_bytes
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.planning import CasePlan, JudgePlan, PlannedRun, RunPlan, VariantPlan, create_run
from tallystick.ledger.records import BudgetPlan, DispatchFacts, Hold, Intent
from tallystick.ledger.states import DispatchState, IfUnknown
from tallystick.ledger.stored_digests import digest_of_case

__all__ = [
    "ANSWER",
    "ANSWER_DIGEST",
    "FACTS",
    "PAYLOAD",
    "PAYLOAD_DIGEST",
    "holds_of",
    "instant_target",
    "intent_of",
    "plan_run",
    "write_cases",
]

_PLENTY: Final = 10**15
_SCOPES: Final = (("run", ""), ("role", "target"), ("variant", "default"))
_UNITS: Final = ("dispatches", "tokens", "nanousd")

PAYLOAD: Final = b'{"text":"the quick brown fox jumps over the lazy dog"}'
PAYLOAD_DIGEST: Final = digest_of_bytes(PAYLOAD)
ANSWER: Final = '"en"'
ANSWER_DIGEST: Final = digest_of_bytes(ANSWER.encode())
FACTS: Final = DispatchFacts(
    DispatchState.ANSWERED, duration_us=5, bytes_sent=len(PAYLOAD), wire_sends=1, status=200, raw=b'{"language":"en"}',
    tokens_in=7, tokens_out=3, cost_nanousd=1_100,
)  # fmt: skip


async def instant_target(payload: bytes) -> str:
    """What is called between intent and outcome: it costs nothing, so that only the keeping of books is measured."""
    return ANSWER if payload else ""


def write_cases(path: Path, count: int) -> None:
    """A case file of that many cases."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(1, count + 1):
            case = {"id": f"case-{number}", "input": f"sentence {number}", "expected": "en"}
            file.write(json.dumps(case) + "\n")


def plan_run(ledger: Ledger, slots: int, *, budgets: int, name: str = "bench") -> PlannedRun:
    """A run of that many slots under a hard budget of dispatches, or under three scopes × three units."""
    plan = RunPlan(
        name=name,
        work_order='{"version":1}',
        work_order_digest=digest_of_bytes(name.encode()),
        identity='{"version":1}',
        settings="{}",
        variants=(VariantPlan("default", '{"kind":"python"}', "keep"),),
        repetitions=1,
        budgets=_budgets(budgets),
        judges=(JudgePlan("exact", "exact", "{}"),),
    )
    return create_run(ledger, plan, _cases(slots))


def holds_of(budgets: int) -> tuple[Hold, ...]:
    """What each dispatch sets aside."""
    return tuple(
        Hold(budget.budget_no, budget.unit, budget.bound_amount or 0, hard=True) for budget in _budgets(budgets)
    )


def intent_of(run_key: int, slot_no: int, call_id: str, holds: tuple[Hold, ...]) -> Intent:
    """What is committed before a first dispatch."""
    return Intent(
        run_key, slot_no, call_id, PAYLOAD, PAYLOAD_DIGEST, len(PAYLOAD), '{"kind":"bench"}', IfUnknown.KEEP, holds,
        "sha256:fingerprint",
    )  # fmt: skip


def _cases(count: int) -> Iterator[CasePlan]:
    for number in range(1, count + 1):
        text = f'{{"text":"sentence {number}"}}'
        digest = digest_of_case(f"case-{number}", text, '"en"', "{}")
        yield CasePlan(f"case-{number}", digest, text, '"en"', "{}")


def _budgets(count: int) -> tuple[BudgetPlan, ...]:
    if count == 1:
        return (BudgetPlan(1, "run", "", "dispatches", "hard", _PLENTY, 1),)
    bounds = {"dispatches": 1, "tokens": 100, "nanousd": 10_000}
    pairs = [(scope, unit) for scope in _SCOPES for unit in _UNITS][:count]
    return tuple(
        BudgetPlan(number, scope, value, unit, "hard", _PLENTY, bounds[unit])
        for number, ((scope, value), unit) in enumerate(pairs, start=1)
    )
