"""Judges that call: every call is the ledger's, and what brings no verdict says why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tallystick.ledger.checks import check_ledger
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.run_ends import retry
from tallystick.ledger.states import DispatchState, IfUnknown, SlotState
from tallystick.runner.protocols import Dispatching, Outcome, Usage
from tallystick.runner.stopping import StopSwitch
from tallystick.runner.tally import JudgingTally
from tests.unit.runner.scripted import ANSWERED, FAILED, REFUSED, UNKNOWN, Scripted, execute, in_turn
from tests.unit.runner.scripted_judge import (
    MALFORMED,
    PASSED,
    ScriptedJudge,
    a_run,
    judge,
    judge_always,
    judge_dispatches,
    judge_in_turn,
    judgment_rows,
    said,
)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "l.db", create=True) as opened:
        yield opened


LATE = Outcome(DispatchState.UNKNOWN, "deadline", "no whole reply", bytes_sent=10)


def budget_of(ledger: Ledger) -> tuple[int, int, int]:
    with ledger.reading() as reader:
        held, settled, unknown = reader.row("SELECT held, settled, unknown_uses FROM budgets ORDER BY budget_no DESC")
    return held, settled, unknown


def test_a_verdict_is_committed_with_the_call_that_brought_it(ledger: Ledger) -> None:
    run = a_run(ledger, cases=2)
    asking = ScriptedJudge(judge_always(said(passed=True, explanation="it is so")))
    end = judge(ledger, run, asking, budgets={"dispatches": 5})
    assert (end.next, end.exit_status, end.calls, end.ended) == ("nothing", 0, 2, True)
    rows = judgment_rows(ledger, "state, passed, explanation, raw, parser, call_id IS NOT NULL, tries, cache_key")
    assert [row[:7] for row in rows] == [
        ("judged", 1, "it is so", '{"passed": true, "explanation": "it is so"}', "json_verdict/1", 1, 1)
    ] * 2
    assert judge_dispatches(ledger) == [("answered", "")] * 2
    with ledger.reading() as reader:
        calls = reader.rows(
            "SELECT owner, role, evaluation_no, judge_no, sample_no FROM calls WHERE owner = 'judgment'"
        )
        used = reader.row("SELECT sum(d.tokens_in), sum(d.tokens_out) FROM dispatches d")
    assert calls == [("judgment", "judge", 2, 1, 1)] * 2
    assert used == (22, 10)
    assert budget_of(ledger) == (0, 2, 0)
    assert check_ledger(ledger) == []


def test_its_intent_is_durable_before_it_is_sent(ledger: Ledger) -> None:
    run = a_run(ledger, cases=1)
    seen = []

    async def reply(judge: ScriptedJudge, dispatching: Dispatching) -> Outcome:
        with ledger.reading() as reader:
            seen.append(
                reader.row(
                    "SELECT d.state, j.state, r.state FROM dispatches d JOIN reservations r ON r.call_id = d.call_id,"
                    " judgments j WHERE d.call_id = ?",
                    (dispatching.request_id,),
                )
            )
        return PASSED

    judge(ledger, run, ScriptedJudge(reply), budgets={"dispatches": 5})
    assert seen == [("intended", "judging", "held")]


def test_what_was_refused_is_dispatched_again_as_the_same_call(ledger: Ledger) -> None:
    asking = ScriptedJudge(judge_in_turn(REFUSED, REFUSED, PASSED))
    end = judge(ledger, a_run(ledger, cases=1), asking, budgets={"dispatches": 5})
    assert end.next == "nothing"
    assert judge_dispatches(ledger) == [("refused", "connect.refused")] * 2 + [("answered", "")]
    assert len({one.request_id for one in asking.asked}) == 1
    assert [one.dispatch for one in asking.asked] == [1, 2, 3]
    assert budget_of(ledger) == (0, 1, 0), "what never left costs nothing"


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (FAILED, f"{FAILED.reason}: {FAILED.message}"),
        (UNKNOWN, f"{UNKNOWN.reason}: {UNKNOWN.message}"),
        (REFUSED, f"{REFUSED.reason}: {REFUSED.message}"),
        (MALFORMED, "malformed_verdict: "),
    ],
    ids=lambda one: one.answer if isinstance(one, Outcome) else "",
)
def test_why_there_is_no_verdict_is_there_for_displays_until_there_is_one(
    ledger: Ledger, outcome: Outcome, told: str
) -> None:
    tallies: list[JudgingTally] = []
    seen: list[tuple[str, bool]] = []

    async def reply(judge: ScriptedJudge, dispatching: Dispatching) -> Outcome:
        seen.append((tallies[0].trouble, tallies[0].trouble_since_us is None))
        return outcome if len(judge.asked) == 1 else PASSED

    judge(ledger, a_run(ledger, cases=2), ScriptedJudge(reply), concurrency=1, on_start=tallies.append)
    assert seen[0] == ("", True)
    assert seen[1][0].startswith(told)
    assert not seen[1][1]
    (tally,) = tallies
    assert (tally.waiting, tally.given, tally.trouble_since_us) == (2, 2, None)


def test_a_judge_that_asks_to_be_left_alone_for_a_while_is_waited_for_by_all(ledger: Ledger) -> None:
    busy = attrs.evolve(REFUSED, retry_after_seconds=0.1)
    asking = ScriptedJudge(judge_in_turn(busy, PASSED))
    end = judge(ledger, a_run(ledger, cases=6), asking, concurrency=2)
    assert (end.next, end.judges[0].judged, end.judges[0].waiting) == ("nothing", 6, 0)


def test_a_judge_that_asks_to_be_left_alone_for_a_year_is_not_waited_for(ledger: Ledger) -> None:
    asking = ScriptedJudge(judge_in_turn(attrs.evolve(REFUSED, retry_after_seconds=31_536_000.0), PASSED))
    end = judge(ledger, a_run(ledger, cases=6), asking, concurrency=1)
    assert (end.next, end.exit_status, end.judges[0].no_verdict) == ("resume", 75, {"judge_unavailable": 1})
    assert len(asking.asked) == 1


@pytest.mark.parametrize("is_inline", [False, True])
def test_what_a_judge_asked_for_holds_for_the_next_session_too_and_for_no_target(
    ledger: Ledger, is_inline: bool
) -> None:
    asking = ScriptedJudge(judge_in_turn(attrs.evolve(REFUSED, retry_after_seconds=3600.0), PASSED))
    target = Scripted(in_turn(ANSWERED, FAILED, ANSWERED))
    inline: dict[str, Any] = {"judges": [asking]} if is_inline else {}
    run = execute(ledger, target, cases=3, concurrency=1, **inline)
    end: Any = run if is_inline else judge(ledger, run.run_id, asking, concurrency=1)
    assert (end.exit_status, len(asking.asked)) == (75, 1)
    ledger.write(lambda tx: retry(tx, 1, state="failed", reason=None))
    again = execute(ledger, target, cases=3, concurrency=1, **inline)
    assert again.counts[SlotState.SELECTED] == 3, "a target is not held back by what a judge asked for"
    assert (again.not_before_us is not None) == is_inline, "who supervises the run is told when to come again"
    if not is_inline:
        assert judge(ledger, run.run_id, asking, concurrency=1).exit_status == 75
    assert len(asking.asked) == 1


def test_a_judge_that_refuses_every_request_is_unavailable(ledger: Ledger) -> None:
    end = judge(ledger, a_run(ledger, cases=1), ScriptedJudge(judge_always(REFUSED)), dispatches_max=2)
    assert judgment_rows(ledger) == [(1, "no_verdict", None, "judge_unavailable")]
    assert (end.next, end.exit_status, end.calls) == ("decide", 3, 2)


def test_a_failure_is_the_judges_error_and_is_retried_only_where_the_work_order_says_so(ledger: Ledger) -> None:
    run = a_run(ledger, cases=1)
    judge(ledger, run, ScriptedJudge(judge_always(FAILED)))
    assert judgment_rows(ledger) == [(1, "no_verdict", None, "judge_error")]
    judge(ledger, run, ScriptedJudge(judge_in_turn(FAILED, PASSED), rubric="2"), retry=["http.status"])
    assert judgment_rows(ledger, evaluation=3) == [(1, "judged", 1, None)]
    assert judge_dispatches(ledger) == [("failed", "http.status.500")] * 2 + [("answered", "")]


def test_an_unknown_outcome_keeps_what_it_holds_and_is_asked_again_as_another_call(ledger: Ledger) -> None:
    asking = ScriptedJudge(judge_in_turn(UNKNOWN, PASSED))
    end = judge(ledger, a_run(ledger, cases=1), asking, budgets={"dispatches": 5})
    assert end.next == "nothing"
    assert judge_dispatches(ledger) == [("unknown", "reset"), ("answered", "")]
    assert len({one.request_id for one in asking.asked}) == 2
    assert judgment_rows(ledger, "state, tries") == [("judged", 2)]
    assert budget_of(ledger) == (1, 1, 0)
    assert check_ledger(ledger) == []


@pytest.mark.parametrize(("outcome", "reason"), [(LATE, "timeout"), (UNKNOWN, "unknown_outcome")])
@pytest.mark.parametrize(("if_unknown", "calls"), [(IfUnknown.REPEAT, 3), (IfUnknown.KEEP, 1)])
def test_e10_what_stays_unknown_is_a_timeout_or_an_unknown_outcome(
    ledger: Ledger, outcome: Outcome, reason: str, if_unknown: IfUnknown, calls: int
) -> None:
    asking = ScriptedJudge(judge_always(outcome), if_unknown=if_unknown)
    end = judge(ledger, a_run(ledger, cases=1), asking, attempts_max=3)
    assert judgment_rows(ledger) == [(1, "no_verdict", None, reason)]
    assert (len(asking.asked), end.exit_status) == (calls, 3)


@pytest.mark.parametrize("reasks", [0, 2])
def test_a_reply_that_is_no_verdict_is_asked_again_within_its_bound_and_each_is_counted(
    ledger: Ledger, reasks: int
) -> None:
    asking = ScriptedJudge(judge_always(MALFORMED), reasks=reasks)
    judge(ledger, a_run(ledger, cases=1), asking, budgets={"dispatches": 9})
    assert judgment_rows(ledger, "state, reason, raw") == [("no_verdict", "malformed_verdict", "well, it is fine")]
    assert len(asking.asked) == reasks + 1
    assert budget_of(ledger) == (0, reasks + 1, 0)


@pytest.mark.parametrize(("where", "calls"), [("prepare", 0), ("reply_of", 1), ("read", 1)])
def test_a_judge_that_raises_gives_a_reason_and_its_call_stays_paid_for(ledger: Ledger, where: str, calls: int) -> None:
    asking = ScriptedJudge(judge_always(PASSED), broken=where)
    judge(ledger, a_run(ledger, cases=1), asking)
    ((state, reason, explanation),) = judgment_rows(ledger, "state, reason, explanation")
    assert (state, reason) == ("no_verdict", "judge_error")
    assert explanation.startswith("ValueError: it cannot be")
    assert judge_dispatches(ledger) == [("answered", "")] * calls


def test_a_dispatch_that_raises_is_unknown_where_something_may_have_left(ledger: Ledger) -> None:
    async def reply(judge: ScriptedJudge, dispatching: Dispatching) -> Outcome:
        dispatching.progress.bytes_sent = 3
        raise ValueError("broken")

    judge(ledger, a_run(ledger, cases=1), ScriptedJudge(reply, if_unknown=IfUnknown.KEEP))
    assert judge_dispatches(ledger) == [("unknown", "judge.raised")]


def test_what_a_judge_needs_and_what_is_not_there_costs_no_call(ledger: Ledger) -> None:
    asking = ScriptedJudge(judge_always(PASSED), needs=["context"])
    judge(ledger, a_run(ledger, cases=1), asking)
    assert judgment_rows(ledger) == [(1, "no_verdict", None, "missing_context")]
    assert asking.asked == []


# Budgets.


def test_e08_what_a_full_budget_keeps_from_being_asked_is_out_of_budget_and_no_fail(ledger: Ledger) -> None:
    run = a_run(ledger, cases=3)
    asking = ScriptedJudge(judge_always(PASSED))
    end = judge(ledger, run, asking, budgets={"dispatches": 2})
    assert sorted(row[1:] for row in judgment_rows(ledger)) == [
        ("judged", 1, None), ("judged", 1, None), ("no_verdict", None, "out_of_budget"),
    ]  # fmt: skip
    assert (end.next, end.exit_status, len(asking.asked)) == ("fund", 6, 2)
    again = judge(ledger, run, asking, budgets={"dispatches": 2})
    assert (again.next, len(asking.asked), again.evaluation) == ("fund", 2, 2), "no call more without more room"

    more = judge(ledger, run, asking, budgets={"dispatches": 3})
    assert (more.next, more.evaluation, len(asking.asked)) == ("nothing", 2, 3)
    assert check_ledger(ledger) == []


def test_the_budgets_of_the_run_and_of_judges_count_a_judges_call_too(ledger: Ledger) -> None:
    budgets = [
        {"unit": "dispatches", "limit": 4},
        {"unit": "tokens", "limit": 100, "role": "judge", "bound_per_dispatch": 20},
        {"unit": "dispatches", "limit": 9, "role": "target"},
    ]
    run = a_run(ledger, cases=3, budgets=budgets)
    end = judge(ledger, run, ScriptedJudge(judge_always(PASSED)))
    assert end.next == "fund", "the target has used three of the run's four"
    with ledger.reading() as reader:
        states = reader.rows("SELECT scope, scope_value, held, settled FROM budgets ORDER BY budget_no")
    assert states == [("run", "", 0, 4), ("role", "judge", 0, 16), ("role", "target", 0, 3)]


def test_another_waits_for_room_while_one_is_under_way_that_may_settle_below_its_bound(ledger: Ledger) -> None:
    run = a_run(ledger, cases=2)
    asking = ScriptedJudge(judge_always(PASSED))
    limit = {"tokens": {"limit": 40, "bound_per_dispatch": 24}}
    end = judge(ledger, run, asking, budgets=limit, concurrency=2)
    assert (end.next, len(asking.asked)) == ("nothing", 2), "16 were used of the 24 that were set aside"


@pytest.mark.parametrize("usage", [None, Usage(), Usage(tokens_in=5), Usage(10**30, 1), Usage(-5, 3)])
def test_e08b_a_use_that_is_not_known_counts_at_its_bound_and_is_never_nothing(
    ledger: Ledger, usage: Usage | None
) -> None:
    outcome = attrs.evolve(PASSED, usage=usage)
    limit = {"tokens": {"limit": 50, "bound_per_dispatch": 20}}
    end = judge(ledger, a_run(ledger, cases=3), ScriptedJudge(judge_always(outcome)), budgets=limit, concurrency=1)
    assert budget_of(ledger) == (0, 40, 2)
    assert end.judges[0].no_verdict == {"out_of_budget": 1}


# Stopping.


def test_asked_to_stop_it_lets_what_is_under_way_end_and_the_rest_wait(ledger: Ledger) -> None:
    run, stop = a_run(ledger, cases=3), StopSwitch()

    async def reply(judge: ScriptedJudge, dispatching: Dispatching) -> Outcome:
        stop.ask("SIGINT")
        return PASSED

    asking = ScriptedJudge(reply)
    end = judge(ledger, run, asking, stop=stop, concurrency=1)
    assert (end.next, end.exit_status, end.stopped, end.ended) == ("resume", 130, "SIGINT", False)
    assert [row[1] for row in judgment_rows(ledger)] == ["judged", "pending", "pending"]
    again = judge(ledger, run, ScriptedJudge(judge_always(PASSED)), concurrency=1)
    assert (again.next, again.calls, again.evaluation) == ("nothing", 2, 2)


def test_what_does_not_end_within_the_grace_time_is_broken_off_and_unknown(ledger: Ledger) -> None:
    run, stop = a_run(ledger, cases=1), StopSwitch()

    async def reply(judge: ScriptedJudge, dispatching: Dispatching) -> Outcome:
        dispatching.progress.bytes_sent = 5
        stop.ask("SIGINT")
        await asyncio.Event().wait()
        raise AssertionError

    end = judge(ledger, run, ScriptedJudge(reply), stop=stop, grace_seconds=0.05)
    assert end.next == "resume"
    assert judge_dispatches(ledger) == [("unknown", "stopped")]
    assert [row[1] for row in judgment_rows(ledger)] == ["pending"]
    assert judge(ledger, run, ScriptedJudge(judge_always(PASSED)), attempts_max=1).next == "nothing", "it cost no try"
    assert check_ledger(ledger) == []


def test_a_judge_that_passes_its_deadline_is_cancelled_and_unknown(ledger: Ledger) -> None:
    async def reply(judge: ScriptedJudge, dispatching: Dispatching) -> Outcome:
        dispatching.progress.bytes_sent = None
        await asyncio.Event().wait()
        raise AssertionError

    asking = ScriptedJudge(reply, if_unknown=IfUnknown.KEEP)
    judge(ledger, a_run(ledger, cases=1), asking, deadline_seconds=0.01)
    assert judge_dispatches(ledger) == [("unknown", "deadline")]
    assert judgment_rows(ledger) == [(1, "no_verdict", None, "timeout")]
