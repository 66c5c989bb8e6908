"""E08 (judges), E08b, E09, E10: who makes the last call, what it costs, what is used again, and what is no verdict."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from .harness import COMMAND_LINE, Site, until
from .invariants import check_invariants, rows
from .judging import Endpoint, endpoint, judge_order, llm_judge, reasons_of, watched
from .orders import case, http_order, python_target, work_order

LAST_CALL = [{"unit": "dispatches", "limit": 1000}, {"unit": "dispatches", "limit": 1, "role": "judge"}]


def checked(site: Site, where: Endpoint) -> None:
    check_invariants(site.ledger, site.requests(), judged=where.requests())


def observed(site: Site, cases: list[dict[str, Any]], **options: Any) -> None:
    """A run that has observed everything, and is judged by nobody yet."""
    site.order(http_order(site.service, cases, judges=[], **options))
    assert site.run().ended() == 0


@pytest.mark.parametrize("winner", ["commits its verdict", "dies waiting for it"])
def test_e08_two_judges_in_two_processes_race_for_the_last_call_and_one_is_made(site: Site, winner: str) -> None:
    where = endpoint(site)
    observed(site, [watched("a", judge={"wait": "gate"})], budgets=LAST_CALL)
    orders = [judge_order(site, [llm_judge(where, rubric=name)], name=name) for name in ("mild", "strict")]
    dies = winner == "dies waiting for it"

    racers = [site.start("judge", "acceptance", order, pause_at="judgment.intent.before") for order in orders]
    for racer in racers:
        racer.wait_until_there()
    for racer in racers:
        racer.let_go()
    where.wait_for("gate")
    until(lambda: any(racer.process.poll() is not None for racer in racers), "the loser has been told")
    (lost,) = [racer for racer in racers if racer.process.poll() is not None]
    (won,) = [racer for racer in racers if racer is not lost]
    assert lost.ended() == 6
    assert "out of budget" in lost.out
    if dies:
        won.dies()
    where.go("gate")
    if not dies:
        assert won.ended() == 0

    for order in orders:
        assert site.start("judge", "acceptance", order).ended() in ((6,) if dies else (0, 6))
    assert where.received() == 1, "nobody gets a second last call"
    verdicts = sorted(verdict["a"] for verdict in (reasons_of(site, 2), reasons_of(site, 3)))
    assert verdicts == (["out_of_budget"] * 2 if dies else ["out_of_budget", "passed"])
    (_, budget) = site.budgets()
    assert (budget.settled, budget.held) == ((0, 1) if dies else (1, 0))
    checked(site, where)


def test_e08_what_had_no_room_is_judged_once_the_limit_is_raised(site: Site) -> None:
    where = endpoint(site)
    observed(site, [watched(name) for name in "abc"])
    order = judge_order(site, [llm_judge(where)], budgets={"dispatches": 2})
    assert site.start("judge", "acceptance", order).ended() == 6
    assert sorted(reasons_of(site).values()) == ["out_of_budget", "passed", "passed"]
    assert site.start("judge", "acceptance", order).ended() == 6
    assert where.received() == 2

    judge_order(site, [llm_judge(where)], budgets={"dispatches": 3})
    assert site.start("judge", "acceptance", order).ended() == 0
    assert where.received() == 3
    assert rows(site.ledger, "SELECT count(*) FROM evaluations") == [(1,)]
    checked(site, where)


USAGES: dict[str, Any] = {
    "missing": None,
    "an empty object": {},
    "null": {"prompt_tokens": None, "completion_tokens": None},
    "a text": {"prompt_tokens": "12", "completion_tokens": "5"},
    "negative": {"prompt_tokens": -5, "completion_tokens": 5},
    "absurd": {"prompt_tokens": 10**30, "completion_tokens": 5},
    "true": {"prompt_tokens": True, "completion_tokens": True},
    "a list": [1, 2],
}
PRICES = {"usd_per_million_in": "100", "usd_per_million_out": "1000"}
LIMITS = {
    "tokens": {"limit": 100, "bound_per_dispatch": 40},
    "usd": {"limit": "0.05", "bound_per_dispatch": "0.02"},
}


@pytest.mark.parametrize("usage", USAGES)
def test_e08b_a_use_that_is_not_told_counts_at_its_bound_and_is_unknown_and_never_nothing(
    site: Site, usage: str
) -> None:
    where = endpoint(site)
    observed(site, [watched(name, judge={"usage": USAGES[usage]}) for name in "abcd"])
    order = judge_order(site, [llm_judge(where, prices=PRICES)], budgets=LIMITS)
    assert site.start("judge", "acceptance", order).ended() == 6
    assert where.received() == 2, "a third could pass both limits"
    assert sorted(reasons_of(site).values()) == ["out_of_budget", "out_of_budget", "passed", "passed"]
    states = {state.plan.unit: state for state in site.budgets() if state.plan.scope == "evaluation"}
    assert (states["tokens"].settled, states["tokens"].unknown_uses) == (80, 2)
    assert (states["nanousd"].settled, states["nanousd"].unknown_uses) == (40_000_000, 2)
    assert rows(site.ledger, "SELECT count(*) FROM dispatches WHERE cost_nanousd = 0") == [(0,)]
    report = site.told("report", "acceptance", "--evaluation", "2", "--json")
    assert json.dumps(report).count("unknown_uses") >= 2
    checked(site, where)


def test_e08b_actual_use_settles_what_was_set_aside_and_nothing_is_nothing_where_it_is_told(site: Site) -> None:
    where = endpoint(site)
    told = [{"prompt_tokens": 11, "completion_tokens": 5}, {"prompt_tokens": 0, "completion_tokens": 0}]
    observed(site, [watched(f"c{at}", judge={"usage": usage}) for at, usage in enumerate(told)])
    order = judge_order(site, [llm_judge(where, prices=PRICES)], budgets=LIMITS)
    assert site.start("judge", "acceptance", order).ended() == 0
    states = {state.plan.unit: state for state in site.budgets() if state.plan.scope == "evaluation"}
    assert (states["tokens"].settled, states["tokens"].held, states["tokens"].unknown_uses) == (16, 0, 0)
    assert (states["nanousd"].settled, states["nanousd"].unknown_uses) == (11 * 100_000 + 5 * 1_000_000, 0)
    checked(site, where)


def test_e08b_a_hard_cap_without_a_bound_is_refused_before_anything_is_made(site: Site) -> None:
    where = endpoint(site)
    observed(site, [watched("a")])
    order = judge_order(site, [llm_judge(where)], budgets={"usd": {"limit": "1"}})
    refused = site.start("judge", "acceptance", order)
    assert refused.ended() == 2
    assert "hard budget of usd needs the most that one dispatch can use" in refused.err
    assert (where.received(), rows(site.ledger, "SELECT count(*) FROM evaluations")) == (0, [(0,)])


def test_e09_a_hit_makes_no_call_and_names_the_judgment_that_it_reuses(site: Site) -> None:
    where = endpoint(site)
    observed(site, [watched("a"), watched("b", judge={"reply": "well"})])
    order = judge_order(site, [llm_judge(where)])
    assert site.start("judge", "acceptance", order).ended() == 3
    assert where.received() == 2

    again = site.told("judge", "acceptance", order, "--new", "--json", statuses=[3])
    assert where.received() == 3, "b has no verdict, and an error is never used again"
    (line,) = again["judges"]
    assert (line["judged"], line["reused"], line["no_verdict"]) == (1, 1, {"malformed_verdict": 1})
    ((source,),) = rows(site.ledger, "SELECT evaluation_id FROM evaluations WHERE evaluation_no = 2")
    found = rows(site.ledger, "SELECT reused_from, call_id FROM judgments WHERE evaluation_no = 3 AND state = 'judged'")
    assert found == [(f"{source}/1/1/1/1", None)]
    checked(site, where)


def test_e09_each_deliberate_repeat_is_its_own_call_also_across_a_death(site: Site) -> None:
    where = endpoint(site)
    observed(site, [watched("a")])
    order = judge_order(site, [llm_judge(where, samples=4)])
    site.start("judge", "acceptance", order, crashpoint="judgment.outcome.committed@2").died_at_its_point()
    assert where.received() == 2
    assert site.start("judge", "acceptance", order).ended() == 0
    assert where.received() == 4
    found = rows(site.ledger, "SELECT sample_no, state, reused_from, call_id FROM judgments ORDER BY sample_no")
    assert [row[:3] for row in found] == [(number, "judged", None) for number in (1, 2, 3, 4)]
    assert len({row[3] for row in found}) == 4
    checked(site, where)


def e10_cases() -> list[dict[str, Any]]:
    """Each answers its own name; what was retrieved stands beside it, is empty, or is not there."""

    def answered(name: str, retrieved: Any, judge: dict[str, Any] | None = None) -> dict[str, Any]:
        body = {"answer": name} if retrieved is None else {"answer": name, "context": retrieved}
        return watched(name, judge=judge, body=body)

    return [
        answered("passes", ["c"]),
        answered("no-context", None),
        answered("nothing-found", []),
        answered("malformed", ["c"], {"reply": "It is INCORRECT to say CORRECT"}),
        answered("late", ["c"], {"wait": "never"}),
    ]  # fmt: skip


WANTED = {
    "passes": "passed",
    "no-context": "missing_context",
    "nothing-found": "empty_retrieval",
    "malformed": "malformed_verdict",
    "late": "timeout",
}
COUNTED = {"missing_context": 1, "empty_retrieval": 1, "malformed_verdict": 1, "timeout": 1}


def forms_of_report(site: Site) -> list[str]:
    """Every form that there is, as the help says."""
    told = site.start_program(*COMMAND_LINE, "report", "--help")
    assert told.ended() == 0
    found = re.search(r"--format \[([a-z|]+)\]", told.out)
    assert found is not None, told.out
    return found[1].split("|")


@pytest.mark.parametrize("way", ["inline", "afterwards"])
def test_e10_four_outcomes_are_told_apart_everywhere_and_none_counts_as_a_pass(site: Site, way: str) -> None:
    where = endpoint(site)
    judge = llm_judge(where, needs=["context"])
    target = {"evidence": {"context": "$.context"}}
    limits: dict[str, Any] = {"deadline_seconds": 1.0, "attempts_max": 1}
    inline = way == "inline"
    site.order(http_order(site.service, e10_cases(), judges=[judge] if inline else [], target=target, **limits))
    ran = site.run()
    if inline:
        assert ran.ended() == 3
        evaluation = 1
    else:
        assert ran.ended() == 0
        told = site.told("judge", "acceptance", judge_order(site, [judge], **limits), "--json", statuses=[3])
        assert told["judges"][0]["no_verdict"] == COUNTED
        assert (told["exit_status"], told["next"], told["judges"][0]["passed"]) == (3, "decide", 1)
        evaluation = 2
    assert reasons_of(site, evaluation) == WANTED
    assert where.received() == 3, "what lacks its evidence is not asked for"

    for form in forms_of_report(site):
        shown = site.start("report", "acceptance", "--evaluation", evaluation, "--format", form)
        assert shown.ended() in (0, 3), shown.err
        words = shown.out.replace("\\_", "_")  # as Markdown writes it
        missing = [reason for reason in COUNTED if reason not in words]
        assert missing == [], f"{form} does not tell them apart"
    checked(site, where)


def test_e10_a_functions_own_reasons_are_told_apart_too(site: Site) -> None:
    (site.folder / "judges.py").write_text(
        "from tallystick import NoVerdict\n"
        "def grounded(answer, context):\n    return answer in context\n"
        "def odd(answer):\n    return {'a': 'yes', 'b': float('nan'), 'c': NoVerdict('too_odd')}[answer]\n"
    )
    judges = [
        {"kind": "python", "name": name, "file": "judges.py", "function": name, "scale": [0.0, 1.0]}
        for name in ("odd", "grounded")
    ]
    target = python_target(site.folder)
    site.order(work_order(target, [{"id": name, "input": name} for name in "abc"], judges=judges))
    assert site.run().ended() == 3
    assert reasons_of(site, 1) == {"a": "malformed_verdict", "b": "malformed_verdict", "c": "abstained"}
    second = rows(site.ledger, "SELECT DISTINCT reason FROM judgments WHERE judge_no = 2")
    assert second == [("missing_context",)]
    check_invariants(site.ledger, site.requests())


def test_c31_what_the_target_does_wrong_is_in_no_judges_denominator(site: Site) -> None:
    where = endpoint(site)
    site.order(
        http_order(site.service, [watched("a"), case("b", status=500, body={"error": "no"})], judges=[llm_judge(where)])
    )
    assert site.run().ended() == 3
    assert reasons_of(site, 1) == {"a": "passed"}
    assert where.received() == 1
    report = site.told("report", "acceptance", "--json")
    assert json.dumps(report).count("target_unavailable") >= 1
    checked(site, where)


def test_secrets_of_a_judge_are_nowhere(site: Site) -> None:
    where = endpoint(site)
    observed(site, [watched("a")])
    headers = {"Authorization": {"env": "JUDGE_KEY", "prefix": "Bearer "}}
    order = judge_order(site, [llm_judge(where, headers=headers)])
    assert site.start("judge", "acceptance", order).ended() == 2, "the variable is not set"
    made = site.start("judge", "acceptance", order, environment={"JUDGE_KEY": "SK-CANARY-7"})
    assert made.ended() == 0
    assert b"SK-CANARY" not in site.ledger.read_bytes()
    for file in site.ledger.parent.glob(f"{site.ledger.name}*"):
        if file.is_file():
            assert b"SK-CANARY" not in file.read_bytes(), file
    checked(site, where)
