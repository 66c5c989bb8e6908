"""Run evaluations and benchmarks that cost money around a durable ledger.

    import tallystick as ts

    @ts.target(if_unknown="repeat")
    async def bot(case: ts.Case, model: str) -> ts.Answer: ...

    order = ts.WorkOrder("bot", cases=ts.cases("q.jsonl"), target=bot.using(model="a"), judges=[ts.exact()])
    outcome = ts.run(order)

Importing this is cheap: each name is loaded when it is first used. As a library, tallystick installs no signal handler
and no log handler, prints nothing, and migrates nothing that it was not asked to.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapters.answers import Answer, Failed, OutcomeUnknown, Refused, request_id
    from .adapters.guarded_clients import (
        Http,
        SyncHttp,
        httpx2_async_client,
        httpx2_client,
        httpx_async_client,
        httpx_client,
    )
    from .adapters.json_judges import json_schema, jsonpath
    from .adapters.llm_judge import llm_judge
    from .adapters.process_judge import process_judge
    from .adapters.python_judge import judge
    from .adapters.python_target import target
    from .adapters.python_user import user
    from .adapters.rule_judges import contains, exact, not_contains, numeric, regex
    from .adapters.similarity_judge import similarity
    from .adapters.steps import StepFailed, step
    from .api import OpenLedger, fork, open, resume, resume_async, run, run_async  # noqa: A004 - read as ts.open
    from .embedding import (
        AsyncLedger,
        CallRecord,
        EmbeddedAttempt,
        EmbeddedCall,
        EmbeddedReservation,
        EmbeddedRun,
        EmbeddedSlot,
        Observation,
        open_async,
    )
    from .guarding import Budget, Guard, GuardSummary, guard
    from .judging_api import evaluate, evaluate_async, qualify, qualify_async
    from .ledger.errors import (
        AttemptOver,
        BudgetExhausted,
        CommitUnknown,
        EarlierCallUnknown,
        GuardKeyChanged,
        IdentityChanged,
        LedgerError,
        LedgerFailed,
        RefusedError,
        ReplayDiverged,
        RunBusy,
        RunNotFound,
        TallystickError,
        UsageError,
        WorkOrderInvalid,
    )
    from .ledger.verdicts import NoVerdictReason
    from .runner.errors import GuardDeadlock
    from .runner.judge_orders import JudgeOrder, load_judge_order
    from .runner.protocols import MISSING, Case, Exchange, Judge, NoVerdict, Target, Turn, Usage, User, Verdict
    from .runner.results import ExitStatus, NextMove, RunOutcome
    from .runner.stopping import StopSwitch
    from .runner.work_order import WorkOrder, load_work_order
    from .runner.work_order_cases import cases

__all__ = [
    "MISSING",
    "Answer",
    "AsyncLedger",
    "AttemptOver",
    "Budget",
    "BudgetExhausted",
    "CallRecord",
    "Case",
    "CommitUnknown",
    "EarlierCallUnknown",
    "EmbeddedAttempt",
    "EmbeddedCall",
    "EmbeddedReservation",
    "EmbeddedRun",
    "EmbeddedSlot",
    "Exchange",
    "ExitStatus",
    "Failed",
    "Guard",
    "GuardDeadlock",
    "GuardKeyChanged",
    "GuardSummary",
    "Http",
    "IdentityChanged",
    "Judge",
    "JudgeOrder",
    "LedgerError",
    "LedgerFailed",
    "NextMove",
    "NoVerdict",
    "NoVerdictReason",
    "Observation",
    "OpenLedger",
    "OutcomeUnknown",
    "Refused",
    "RefusedError",
    "ReplayDiverged",
    "RunBusy",
    "RunNotFound",
    "RunOutcome",
    "StepFailed",
    "StopSwitch",
    "SyncHttp",
    "TallystickError",
    "Target",
    "Turn",
    "Usage",
    "UsageError",
    "User",
    "Verdict",
    "WorkOrder",
    "WorkOrderInvalid",
    "cases",
    "contains",
    "evaluate",
    "evaluate_async",
    "exact",
    "fork",
    "guard",
    "httpx2_async_client",
    "httpx2_client",
    "httpx_async_client",
    "httpx_client",
    "json_schema",
    "jsonpath",
    "judge",
    "llm_judge",
    "load_judge_order",
    "load_work_order",
    "not_contains",
    "numeric",
    "open",
    "open_async",
    "process_judge",
    "qualify",
    "qualify_async",
    "regex",
    "request_id",
    "resume",
    "resume_async",
    "run",
    "run_async",
    "similarity",
    "step",
    "target",
    "user",
]

_HOMES = {
    ".adapters.answers": ("Answer", "Failed", "OutcomeUnknown", "Refused", "request_id"),
    ".adapters.guarded_clients": (
        "Http",
        "SyncHttp",
        "httpx2_async_client",
        "httpx2_client",
        "httpx_async_client",
        "httpx_client",
    ),
    ".adapters.json_judges": ("json_schema", "jsonpath"),
    ".adapters.llm_judge": ("llm_judge",),
    ".adapters.process_judge": ("process_judge",),
    ".adapters.python_judge": ("judge",),
    ".adapters.python_target": ("target",),
    ".adapters.python_user": ("user",),
    ".adapters.rule_judges": ("contains", "exact", "not_contains", "numeric", "regex"),
    ".adapters.similarity_judge": ("similarity",),
    ".adapters.steps": ("StepFailed", "step"),
    ".api": ("OpenLedger", "fork", "open", "resume", "resume_async", "run", "run_async"),
    ".ledger.errors": (
        "AttemptOver",
        "BudgetExhausted",
        "CommitUnknown",
        "EarlierCallUnknown",
        "GuardKeyChanged",
        "IdentityChanged",
        "LedgerError",
        "LedgerFailed",
        "RefusedError",
        "ReplayDiverged",
        "RunBusy",
        "RunNotFound",
        "TallystickError",
        "UsageError",
        "WorkOrderInvalid",
    ),
    ".embedding": (
        "AsyncLedger",
        "CallRecord",
        "EmbeddedAttempt",
        "EmbeddedCall",
        "EmbeddedReservation",
        "EmbeddedRun",
        "EmbeddedSlot",
        "Observation",
        "open_async",
    ),
    ".guarding": ("Budget", "Guard", "GuardSummary", "guard"),
    ".judging_api": ("evaluate", "evaluate_async", "qualify", "qualify_async"),
    ".ledger.verdicts": ("NoVerdictReason",),
    ".runner.work_order_cases": ("cases",),
    ".runner.errors": ("GuardDeadlock",),
    ".runner.judge_orders": ("JudgeOrder", "load_judge_order"),
    ".runner.protocols": (
        "MISSING",
        "Case",
        "Exchange",
        "Judge",
        "NoVerdict",
        "Target",
        "Turn",
        "Usage",
        "User",
        "Verdict",
    ),
    ".runner.results": ("ExitStatus", "NextMove", "RunOutcome"),
    ".runner.stopping": ("StopSwitch",),
    ".runner.work_order": ("WorkOrder", "load_work_order"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(home, __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
