"""A judge that calls and answers as a test says, and what it takes to judge a run with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs

from tallystick._wiring import ADAPTERS
from tallystick.adapters.verdict_parsing import JsonVerdicts
from tallystick.ledger.canonical import JsonValue, canonical_bytes
from tallystick.ledger.evaluations import find_evaluation
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.run_reads import find_run
from tallystick.ledger.states import DispatchState, IfUnknown
from tallystick.ledger.verdicts import NoVerdictReason
from tallystick.runner.evaluation_models import EvaluationEnd
from tallystick.runner.evaluation_reports import evaluation_end
from tallystick.runner.evaluations import describe_judge_order, find_or_create_evaluation, reparsing, run_evaluation
from tallystick.runner.judge_orders import JudgeOrder
from tallystick.runner.protocols import Dispatching, NoVerdict, Observed, Outcome, Prepared, Usage, Verdict
from tallystick.runner.stopping import StopSwitch
from tallystick.runner.tally import JudgingTally
from tests.unit.runner.scripted import ANSWERED, Scripted, always, execute

PASSED = Outcome(DispatchState.ANSWERED, answer='{"passed": true}', bytes_sent=1, usage=Usage(11, 5))
MALFORMED = Outcome(DispatchState.ANSWERED, answer="well, it is fine", bytes_sent=1)

Reply = Callable[["ScriptedJudge", Dispatching], Awaitable[Outcome]]


@attrs.define(eq=False)
class ScriptedJudge:
    """A judge that answers by a function and keeps what it was asked."""

    reply: Reply
    name: str = "scripted"
    kind: str = "scripted"
    scale: tuple[float, float] | None = None
    needs: Sequence[str] = ()
    if_unknown: IfUnknown = IfUnknown.REPEAT
    reasks: int = 0
    wire_sends_max: int = 1
    is_blind: bool = True
    samples: int = 1
    require: Mapping[str, float] = attrs.field(factory=dict)
    rubric: str = "be strict"
    parser: str = "json_verdict/1"
    asked: list[Dispatching] = attrs.field(factory=list)
    sent: list[bytes] = attrs.field(factory=list)
    broken: str = ""
    is_open: bool = False

    def identity(self) -> Mapping[str, JsonValue]:
        return {"rubric": self.rubric, "parser": self.parser}

    def check(self) -> None:
        """Everything is here."""

    async def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    def prepare(self, observed: Observed) -> Prepared:
        if self.broken == "prepare":
            raise ValueError("it cannot be asked")
        return Prepared(canonical_bytes({"judged": observed.answer}), {"to": "nowhere"})

    async def dispatch(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:
        assert self.is_open
        self.asked.append(dispatching)
        self.sent.append(prepared.payload)
        return await self.reply(self, dispatching)

    def reply_of(self, outcome: Outcome) -> str | NoVerdict:
        if self.broken == "reply_of":
            raise ValueError("it cannot be understood")
        return str(outcome.answer)

    def failed(self, outcome: Outcome) -> NoVerdict:
        return NoVerdict(NoVerdictReason.JUDGE_ERROR, outcome.message)

    def read(self, reply: str) -> Verdict | NoVerdict:
        if self.broken == "read":
            raise ValueError("it cannot be read")
        return JsonVerdicts(self.scale).read(reply)


def judge_always(outcome: Outcome) -> Reply:
    async def reply(judge: ScriptedJudge, dispatching: Dispatching) -> Outcome:
        return outcome

    return reply


def judge_in_turn(*outcomes: Outcome) -> Reply:
    """The first outcome for the first dispatch, and so on; the last one from then on."""

    async def reply(judge: ScriptedJudge, dispatching: Dispatching) -> Outcome:
        return outcomes[min(len(judge.asked), len(outcomes)) - 1]

    return reply


def a_run(ledger: Ledger, *, cases: int = 3, answer: Any = "x", **options: Any) -> str:
    """A finished run of so many observations; its id."""
    return execute(ledger, Scripted(always(attrs.evolve(ANSWERED, answer=answer))), cases=cases, **options).run_id


def judge(
    ledger: Ledger,
    run: str,
    *judges: Any,
    new: bool = False,
    at_event: int | None = None,
    stop: StopSwitch | None = None,
    on_start: Callable[[JudgingTally], None] = lambda tally: None,
    name: str = "strict",
    reparse: str | None = None,
    **options: Any,
) -> EvaluationEnd:
    """Judge the run and say how the evaluation stands."""
    settings = {"backoff": {"first_seconds": 0.001, "max_seconds": 0.002}, "concurrency": 2, "grace_seconds": 0.2}
    order = JudgeOrder(name, judges=list(judges), **{**settings, **options})
    description = describe_judge_order(order, ADAPTERS)
    with ledger.reading() as reader:
        found = find_run(reader, run)
        source = None if reparse is None else find_evaluation(reader, found.run_key, reparse)
    if source is not None:
        description = reparsing(ledger, source, description)
    session = find_or_create_evaluation(ledger, found, description, new=new, at_event=at_event)
    done = asyncio.run(run_evaluation(ledger, session, stop=stop, on_start=on_start))
    return evaluation_end(ledger, session.row, done)


def judgment_rows(ledger: Ledger, columns: str = "slot_no, state, passed, reason", evaluation: int = 2) -> list[Any]:
    with ledger.reading() as reader:
        return reader.rows(
            f"SELECT {columns} FROM judgments WHERE evaluation_no = ? ORDER BY judge_no, slot_no, sample_no",
            (evaluation,),
        )


def judge_dispatches(ledger: Ledger) -> list[Any]:
    """``(state, reason)`` of every dispatch of a judge, in the order of their intents."""
    with ledger.reading() as reader:
        return reader.rows(
            "SELECT d.state, d.reason FROM dispatches d JOIN calls c ON c.call_id = d.call_id"
            " WHERE c.owner = 'judgment' ORDER BY d.intended_us, d.call_id, d.dispatch_no"
        )


def said(**verdict: Any) -> Outcome:
    return attrs.evolve(PASSED, answer=json.dumps(verdict))
