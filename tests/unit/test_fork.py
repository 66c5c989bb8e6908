"""Forks: what is reused, what is paid again, what stays unknown, and that the earlier run is only read."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest

import tallystick as ts
from tallystick.ledger.canonical import canonical_text, digest_of_bytes
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.contamination import mark_contaminated
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.planning import discard_half_planned
from tallystick.ledger.settlements import Decision, Settlement
from tallystick.ledger.states import SlotState

CASES: list[dict[str, Any]] = [{"id": name, "input": name, "expected": name.upper()} for name in "abcd"]


@attrs.define
class Asked:
    """Who was asked what, and what the next answers are: ``lost`` and ``bad`` name cases."""

    calls: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    lost: set[str] = attrs.field(factory=set)
    bad: set[str] = attrs.field(factory=set)

    def target(self, *, version: str = "1", if_unknown: str = "keep") -> Any:
        @ts.target(version=version, if_unknown=if_unknown)
        def answer(case: ts.Case, model: str = "m") -> str:
            self.calls[model, case.id] += 1
            if case.id in self.lost:
                raise ts.OutcomeUnknown("the line went dead")
            if case.id in self.bad:
                raise ts.Failed("no")
            return str(case.input).upper()

        return answer


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evals.db"


def order(variants: dict[str, Any], **options: Any) -> ts.WorkOrder:
    return ts.WorkOrder("forked", **{"cases": CASES, "judges": [{"kind": "exact"}], "variants": variants, **options})


def two(asked: Asked, *, old: str = "1", new: str = "1") -> dict[str, Any]:
    return {"old": asked.target(version=old).using(model="old"), "new": asked.target(version=new).using(model="new")}


def sound(path: Path) -> bool:
    with Ledger.open(path) as ledger:
        return check_ledger(ledger) == []


def counts(path: Path, run: str) -> dict[str, int]:
    with ts.open(path) as ledger:
        return {state.value: count for state, count in ledger.counts(run).items() if count}


def test_what_has_not_changed_is_reused_and_only_the_changed_variant_is_paid_for(path: Path, asked: Asked) -> None:
    first = ts.run(order(two(asked), repetitions=2), ledger=path)
    asked.calls.clear()
    outlook = ts.fork(first.run_id, order(two(asked, new="2"), repetitions=2), ledger=path)
    assert (outlook.planned, outlook.reused, outlook.to_pay, outlook.unknown) == (16, 8, 8, 0)
    told = {one.name: (one.reused, one.to_pay, one.taken_from, one.changes) for one in outlook.variants}
    assert told["old"] == (8, 0, "old", [])
    assert told["new"][:3] == (0, 8, None)
    assert 'new.target.version: "1" -> "2"' in told["new"][3]
    assert not asked.calls, "a fork calls nothing"
    outcome = ts.run(order(two(asked, new="2"), repetitions=2), ledger=path)
    assert (outcome.run_id, outcome.dispatches, outcome.next) == (outlook.run, 8, ts.NextMove.NOTHING)
    assert asked.calls == {("new", case["id"]): 2 for case in CASES}
    assert sound(path)


def test_a_fork_by_its_own_work_order_tells_its_cost_from_the_cases_of_the_ledger(path: Path) -> None:
    nobody: dict[str, Any] = {"kind": "http", "url": "http://127.0.0.1:1/", "tokens_in_max": 100, "tokens_out_max": 10}
    given = ts.WorkOrder("told", cases=CASES, target=nobody, budgets={"tokens": 10_000})
    ts.run(given, ledger=path, limit=0)
    (budget,) = ts.fork("told", ledger=path, dry_run=True).budgets
    assert (budget.least, budget.is_enough) == (4 * 110, True)


def test_a_looked_at_fork_writes_nothing(path: Path, asked: Asked) -> None:
    first = ts.run(order(two(asked)), ledger=path)
    outlook = ts.fork(first.run_id, order(two(asked, new="2")), ledger=path, dry_run=True)
    assert (outlook.run, outlook.reused, outlook.to_pay) == (None, 4, 4)
    with ts.open(path) as ledger:
        assert [run.run_id for run in ledger.runs()] == [first.run_id]


def test_a_changed_case_a_new_one_and_a_further_repetition_are_paid_for(path: Path, asked: Asked) -> None:
    first = ts.run(order({"old": asked.target()}), ledger=path)
    changed = [CASES[0], {**CASES[1], "input": "other"}, CASES[2], {"id": "e", "input": "e"}]
    outlook = ts.fork(first.run_id, order({"old": asked.target()}, cases=changed, repetitions=2), ledger=path)
    assert (outlook.cases.same, outlook.cases.new, outlook.cases.dropped) == (2, 2, 2)
    assert (outlook.planned, outlook.reused, outlook.to_pay) == (8, 2, 6)
    asked.calls.clear()
    ts.resume(outlook.run, ledger=path, targets={"old": asked.target()})
    assert asked.calls == {("m", "a"): 1, ("m", "c"): 1, ("m", "b"): 2, ("m", "e"): 2}
    assert sound(path)


def test_reused_observations_are_marked_cost_nothing_and_are_counted_by_nothing_that_was_sent(
    path: Path, asked: Asked
) -> None:
    limited = {"budgets": {"dispatches": 20}}
    first = ts.run(order(two(asked), **limited), ledger=path)
    made = ts.fork(first.run_id, order(two(asked, new="2"), **limited), ledger=path)
    ts.run(order(two(asked, new="2"), **limited), ledger=path)
    with ts.open(path) as ledger:
        report = ledger.report(str(made.run))
        assert report.forked_from is not None
        assert (report.forked_from.run, report.forked_from.reused) == (first.run_id, 4)
        assert (report.totals.attempts, report.totals.calls, report.totals.wasted_dispatches) == (4, 4, 0)
        assert (report.budgets[0].settled, report.budgets[0].limit, report.budgets[0].carried) == (4, 20, 0)
        assert {one.variant: (one.known, one.unknown) for one in report.durations} == {"old": (0, 0), "new": (4, 0)}
        page = {one.variant: one.attempts for one in ledger.case(str(made.run), "b")}
    ((old,), (new,)) = page["old"], page["new"]
    assert (old.source, old.dispatches, new.reused_from) == ("reused", (), None)
    assert str(old.reused_from).startswith(f"{first.run_id}/")
    assert old.answer == '"B"'


def test_judges_that_are_the_same_judge_what_is_reused(path: Path, asked: Asked) -> None:
    first = ts.run(order(two(asked)), ledger=path)
    made = ts.fork(first.run_id, order(two(asked), judges=[{"kind": "exact"}, {"kind": "contains"}]), ledger=path)
    outcome = ts.run(order(two(asked), judges=[{"kind": "exact"}, {"kind": "contains"}]), ledger=path)
    assert (outcome.run_id, outcome.dispatches) == (made.run, 0)
    with ts.open(path) as ledger:
        assert {(one.judge, one.variant): one.passed for one in ledger.scores(outcome.run_id)} == {
            (judge, variant): 4 for judge in ("exact", "contains") for variant in ("old", "new")
        }


def test_a_later_evaluation_of_a_fork_judges_what_it_reused(path: Path, asked: Asked) -> None:
    first = ts.run(order(two(asked), judges=[]), ledger=path)
    made = ts.fork(first.run_id, order(two(asked), judges=[]), ledger=path)
    told = ts.evaluate(str(made.run), ts.JudgeOrder("later", judges=[ts.exact()]), ledger=path)
    assert {line.judged for line in told.judges} == {8}
    assert sound(path)


def test_what_is_unknown_stays_unknown_and_is_settled_in_the_fork_by_itself(path: Path, asked: Asked) -> None:
    asked.lost = {"a", "b", "c"}
    limited = {"budgets": {"dispatches": 9}}
    first = ts.run(order({"old": asked.target()}, **limited), ledger=path)
    made = ts.fork(first.run_id, order({"old": asked.target()}, **limited), ledger=path)
    assert (made.reused, made.unknown, made.to_pay) == (1, 3, 0)
    asked.calls.clear()
    outcome = ts.resume(made.run, ledger=path, targets={"old": asked.target()})
    assert not asked.calls, "nothing that may have happened is sent again"
    with ts.open(path) as ledger:
        before = ledger.unknown(first.run_id)
        found = {one.case_id: one for one in ledger.unknown(outcome.run_id)}
        assert {one.sent_as for one in found.values()} == {one.call_id for one in before}
        assert {one.call_id for one in found.values()}.isdisjoint(one.call_id for one in before)
        assert all(one.held == {} for one in found.values())
        assert [state.held for state in ledger.budgets(first.run_id)] == [3]
        assert [(state.held, state.settled) for state in ledger.budgets(outcome.run_id)] == [(0, 0)]
        text = canonical_text("A")
        landed = Settlement(found["a"].call_id, 1, Decision.LANDED, "me", "log", answer=text,
                            answer_digest=digest_of_bytes(text.encode()))  # fmt: skip
        assert ledger.settle(landed) is SlotState.SELECTED
        assert ledger.not_landed(found["b"], reason="log", made_by="me") is SlotState.PENDING
        assert ledger.give_up(found["c"], reason="log", made_by="me") is SlotState.FAILED
        assert len(ledger.unknown(first.run_id)) == 3, "the earlier run is as it was"
    asked.lost = set()
    ts.resume(made.run, ledger=path, targets={"old": asked.target()})
    assert asked.calls == {("m", "b"): 1}
    assert counts(path, str(made.run)) == {"selected": 3, "failed": 1}
    with ts.open(path) as ledger:
        totals = ledger.report(str(made.run)).totals
        assert (totals.dispatches, totals.attempts) == (1, 1)
        assert ledger.report(str(made.run), at=5).population.unknown == 3, "as it was made"
    assert sound(path)


def test_what_was_in_flight_is_unknown_in_the_fork_and_goes_on_in_its_own_run(path: Path, asked: Asked) -> None:
    made: list[Any] = []

    @ts.target(version="1")
    def forks_itself(case: ts.Case) -> str:
        if case.id == "b":
            made.append(ts.fork("forked", ledger=path, targets={"old": forks_itself}))
        return case.id.upper()

    first = ts.run(order({"old": forks_itself}), ledger=path, concurrency=1)
    (found,) = made
    assert (found.reused, found.unknown, found.to_pay) == (1, 1, 2)
    assert counts(path, first.run_id) == {"selected": 4}
    assert counts(path, found.run) == {"selected": 1, "unknown": 1, "pending": 2}
    with ts.open(path) as ledger:
        (one,) = ledger.unknown(found.run)
        assert (one.case_id, one.reason) == ("b", "fork.in_flight")
    assert sound(path)


def test_failed_ones_are_asked_again_or_kept_as_the_work_order_says(path: Path, asked: Asked) -> None:
    asked.bad = {"a"}
    first = ts.run(order({"old": asked.target()}), ledger=path)
    again = ts.fork(first.run_id, order({"old": asked.target()}), ledger=path)
    assert (again.to_pay, again.variants[0].again) == (1, {"failed": 1})
    kept = ts.fork(first.run_id, order({"old": asked.target()}, fork={"failed": "keep"}), ledger=path)
    assert (kept.failed, kept.to_pay) == (1, 0)
    asked.calls.clear()
    assert ts.resume(kept.run, ledger=path, targets={"old": asked.target()}).next is ts.NextMove.DECIDE
    assert not asked.calls
    with ts.open(path) as ledger:
        assert ledger.retry(str(kept.run), "failed") == 1
    assert sound(path)


def test_budgets_begin_anew_or_go_on_as_the_work_order_says(path: Path, asked: Asked) -> None:
    asked.lost = {"a"}
    first = ts.run(order({"old": asked.target()}, budgets={"dispatches": 9}), ledger=path)
    options: dict[str, Any] = {"budgets": {"dispatches": 9}, "fork": {"budgets": "continue"}}
    made = ts.fork(first.run_id, order({"old": asked.target(version="2")}, **options), ledger=path)
    (line,) = made.budgets
    assert (line.limit, line.carried, line.least, line.is_enough) == (5, 4, 4, True)
    further = ts.fork(str(made.run), order({"old": asked.target(version="3")}, **options), ledger=path)
    assert (further.budgets[0].limit, further.budgets[0].carried) == (5, 4)
    anew = ts.fork(first.run_id, order({"old": asked.target(version="2")}, budgets={"dispatches": 9}), ledger=path)
    assert (anew.budgets[0].limit, anew.budgets[0].carried) == (9, 0)
    raised = {**options, "budgets": {"dispatches": 12}}
    ts.run(order({"old": asked.target(version="3")}, **raised), ledger=path)
    with ts.open(path) as ledger:
        (state,) = ledger.budgets(str(further.run))
        assert (state.plan.limit_amount, state.plan.carried) == (8, 4), "a raised limit counts what is carried, too"
    assert sound(path)


def test_a_fork_of_a_fork_names_where_its_observations_came_from_first(path: Path, asked: Asked) -> None:
    asked.lost = {"d"}
    first = ts.run(order({"old": asked.target()}), ledger=path)
    second = ts.fork(first.run_id, ledger=path, targets={"old": asked.target()})
    third = ts.fork(str(second.run), ledger=path, targets={"old": asked.target()})
    assert (third.forked_from, third.reused, third.unknown) == (second.run, 3, 1)
    with ts.open(path) as ledger:
        (page,) = ledger.case(str(third.run), "a")
        assert str(page.attempts[0].reused_from).startswith(f"{first.run_id}/")
        assert ledger.unknown(str(third.run))[0].sent_as == ledger.unknown(first.run_id)[0].call_id
    assert sound(path)


def test_a_renamed_variant_is_the_same_and_two_of_one_kind_do_not_share_an_observation(
    path: Path, asked: Asked
) -> None:
    first = ts.run(order({"old": asked.target()}), ledger=path)
    made = ts.fork(first.run_id, order({"left": asked.target(), "right": asked.target()}), ledger=path)
    assert [(one.name, one.taken_from, one.reused) for one in made.variants] == [("left", "old", 4), ("right", None, 0)]


def test_a_fork_of_an_imported_copy_is_this_ledgers_own(path: Path, asked: Asked, tmp_path: Path) -> None:
    asked.lost = {"c"}
    first = ts.run(order({"old": asked.target()}), ledger=path)
    with ts.open(path) as ledger:
        ledger.export(first.run_id, to=tmp_path / "run.zip")
    there = tmp_path / "there.db"
    with ts.open(there, create=True) as ledger:
        ledger.import_(tmp_path / "run.zip")
    made = ts.fork(first.run_id, ledger=there, targets={"old": asked.target()})
    assert (made.reused, made.unknown) == (3, 1)
    with ts.open(there) as ledger:
        assert (ledger.find(first.run_id).custody, ledger.find(str(made.run)).custody) == ("copy", "held")
        (one,) = ledger.unknown(str(made.run))
        assert ledger.not_landed(one, reason="log", made_by="me") is SlotState.PENDING
        ledger.export(str(made.run), to=tmp_path / "fork.zip")
    with ts.open(tmp_path / "third.db", create=True) as ledger:
        ledger.import_(tmp_path / "fork.zip")
        assert ledger.find(str(made.run)).forked_from == first.run_id
    assert sound(there)
    assert sound(tmp_path / "third.db")


def test_a_run_that_came_without_its_contents_is_not_forked(path: Path, asked: Asked, tmp_path: Path) -> None:
    first = ts.run(order({"old": asked.target()}), ledger=path)
    with ts.open(path) as ledger:
        ledger.export(first.run_id, to=tmp_path / "run.zip", redact=["answers"])
    with ts.open(tmp_path / "there.db", create=True) as ledger:
        ledger.import_(tmp_path / "run.zip")
    with pytest.raises(ts.RefusedError, match="cannot be forked"):
        ts.fork(first.run_id, ledger=tmp_path / "there.db", targets={"old": asked.target()})


def test_a_guard_of_a_script_is_not_forked(path: Path) -> None:
    with ts.guard("script", ledger=path) as guard:
        guard.call("one", str.upper, "x")
    with pytest.raises(ts.UsageError, match="guard or harness"):
        ts.fork("script", ledger=path)


def test_reused_conversations_are_whole_and_an_unknown_turn_begins_its_case_anew(path: Path) -> None:
    asked: Counter[Any] = Counter()
    lost = {"b"}

    @ts.target(version="1")
    def talk(case: ts.Case, turn: ts.Turn) -> str:
        asked[case.id, turn.number] += 1
        if case.id in lost and turn.number == 2:
            raise ts.OutcomeUnknown("the line went dead")
        return f"{turn.message}!"

    rows: list[dict[str, Any]] = [{"id": name, "input": {"turns": ["x", "y", "z"]}} for name in "ab"]
    talking = ts.WorkOrder("talks", cases=rows, target=talk, conversation={"turns": "$.turns"})
    first = ts.run(talking, ledger=path)
    made = ts.fork(first.run_id, ledger=path, targets={"default": talk})
    assert (made.reused, made.unknown) == (1, 1)
    asked.clear()
    lost.clear()
    with ts.open(path) as ledger:
        (one,) = ledger.unknown(str(made.run))
        text = canonical_text("y!")
        landed = Settlement(one.call_id, one.dispatch_no, Decision.LANDED, "me", "log", answer=text,
                            answer_digest=digest_of_bytes(text.encode()))  # fmt: skip
        assert ledger.settle(landed) is SlotState.PENDING
    ts.resume(made.run, ledger=path, targets={"default": talk})
    assert asked == {("b", 1): 1, ("b", 2): 1, ("b", 3): 1}
    assert counts(path, str(made.run)) == {"selected": 2}
    assert sound(path)


def test_an_unknown_request_of_an_agent_is_settled_in_the_fork_and_its_case_begins_anew(path: Path) -> None:
    made: Counter[str] = Counter()
    is_lost = [True]

    def pay(name: str) -> str:
        made[name] += 1
        if name == "second" and is_lost[0]:
            raise ts.OutcomeUnknown("the line went dead")
        return name

    @ts.target(version="1", guarded=True)
    def agent(case: ts.Case) -> str:
        return ts.step("first", pay, "first") + ts.step("second", pay, "second")

    paying = ts.WorkOrder("agent", cases=[{"id": "a", "input": "x"}], target=agent)
    first = ts.run(paying, ledger=path)
    fork = ts.fork(first.run_id, ledger=path, targets={"default": agent})
    assert (fork.unknown, fork.to_pay) == (1, 0)
    with ts.open(path) as ledger:
        (one,) = ledger.unknown(str(fork.run))
        text = canonical_text("second")
        landed = Settlement(one.call_id, one.dispatch_no, Decision.LANDED, "me", "log", answer=text,
                            answer_digest=digest_of_bytes(text.encode()))  # fmt: skip
        assert ledger.settle(landed) is SlotState.PENDING
    is_lost[0] = False
    made.clear()
    assert ts.resume(fork.run, ledger=path, targets={"default": agent}).next is ts.NextMove.NOTHING
    assert made == {"first": 1, "second": 1}
    assert sound(path)


def test_a_contaminated_observation_stays_marked(path: Path, asked: Asked) -> None:
    first = ts.run(order({"old": asked.target()}), ledger=path)
    with Ledger.open(path) as ledger, ledger.reading() as reader:
        key = reader.row("SELECT run_key FROM runs")[0]
        ledger.write(lambda tx: mark_contaminated(tx, key, 2, 1, body={"reason": "an earlier holder"}))
    made = ts.fork(first.run_id, ledger=path, targets={"old": asked.target()})
    assert (made.reused, made.variants[0].contaminated) == (4, 1)
    with ts.open(path) as opened:
        pages = [page for name in "abcd" for page in opened.case(str(made.run), name)]
        assert [page.attempts[0].contaminated for page in pages] == [0, 1, 0, 0]
    with Ledger.open(path) as ledger, ledger.reading() as reader:
        told = reader.row("SELECT body FROM events WHERE kind = 'slots.reused'")[0]
        assert json.loads(told)["contaminated"] == [2], "as reports read it"
    assert sound(path)


@pytest.mark.parametrize(("place", "left"), [("planning.tell_of_fork", 1), ("forks._keep_unknown", 0)])
def test_a_fork_that_breaks_off_leaves_nothing(
    path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch, place: str, left: int
) -> None:
    asked.lost, asked.bad = {"d"}, {"a"}
    first = ts.run(order({"old": asked.target()}), ledger=path)
    kept = order({"old": asked.target()}, fork={"failed": "keep"})

    def full(*_: Any) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(f"tallystick.ledger.{place}", full)
    with pytest.raises(RuntimeError, match="disk"):
        ts.fork(first.run_id, kept, ledger=path)
    with Ledger.open(path) as ledger:
        assert discard_half_planned(ledger) == left
        with ledger.reading() as reader:
            for table in ("runs", "slots", "attempts", "observations", "calls", "dispatches"):
                assert len(reader.rows(f"SELECT DISTINCT run_key FROM {table}")) == 1, table
    assert sound(path)


@pytest.mark.parametrize(
    ("harm", "code"),
    [
        ("UPDATE attempts SET reused_from = NULL WHERE reused_from IS NOT NULL", "fork.not_marked"),
        ("UPDATE runs SET forked_from = NULL", "fork.not_marked"),
        ("UPDATE attempts SET reused_from = substr(reused_from, 1, 27) || '3/1' WHERE reused_from LIKE '%/1/1'",
         "fork.another_answer"),
    ],
)  # fmt: skip
def test_a_check_sees_that_something_reused_is_not_what_it_says(harm: str, code: str, path: Path, asked: Asked) -> None:
    first = ts.run(order({"old": asked.target()}), ledger=path)
    ts.fork(first.run_id, ledger=path, targets={"old": asked.target()})
    with Ledger.open(path) as ledger, ledger.alone() as connection:
        connection.execute(harm)
    with Ledger.open(path) as ledger:
        assert code in {finding.code for finding in check_ledger(ledger)}
