"""A plan is shown whole or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger import forks, planning, run_ends, run_reads
from tallystick.ledger.canonical import digest_of_value
from tallystick.ledger.errors import TransitionRefused
from tallystick.ledger.ledger import Ledger
from tests.unit.ledger.children import Child
from tests.unit.ledger.factories import begin, budget, case_rows, every, new_ledger, new_run, one, run_plan

TABLES = ("runs", "variants", "cases", "slots", "budgets", "evaluations", "evaluation_judges", "events")
WHOLE = {"variants": ("old", "new"), "repetitions": 2, "budgets": (budget(),), "judges": ("exact", "other")}


def counts(ledger: Ledger) -> dict[str, int]:
    return {table: one(ledger, f"SELECT count(*) FROM {table}")[0] for table in TABLES}


def visible(ledger: Ledger) -> list[str]:
    with ledger.reading() as reader:
        return [run.run_id for run in run_reads.list_runs(reader)]


def test_a_plan_is_the_product_of_cases_variants_and_repetitions(ledger: Ledger) -> None:
    run = new_run(ledger, 3, **WHOLE)
    assert run.planned == 12
    rows = every(ledger, "SELECT slot_no, case_no, variant_no, repetition, state FROM slots ORDER BY slot_no")
    assert [row[0] for row in rows] == list(range(1, 13))
    assert {row[1:4] for row in rows} == {(c, v, r) for c in (1, 2, 3) for v in (1, 2) for r in (1, 2)}
    assert {row[4] for row in rows} == {"pending"}
    assert [row[3] for row in rows] == [1] * 6 + [2] * 6, "every case is seen before any case twice"
    assert counts(ledger) == {
        "runs": 1, "variants": 2, "cases": 3, "slots": 12, "budgets": 1, "evaluations": 1, "evaluation_judges": 2,
        "events": 1,
    }  # fmt: skip
    assert one(ledger, "SELECT state, planned, identity_digest FROM runs") == ("open", 12, digest_of_value({}))


def test_a_plan_larger_than_a_batch_is_whole(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_CASES_PER_BATCH", 7)
    monkeypatch.setattr(planning, "_SLOTS_PER_BATCH", 5)
    run = new_run(ledger, 50, variants=("a", "b"), repetitions=3)
    assert run.planned == one(ledger, "SELECT count(*) FROM slots")[0] == 300
    assert one(ledger, "SELECT max(slot_no), count(DISTINCT slot_no) FROM slots") == (300, 300)


def test_variants_wider_than_a_batch_are_planned_too(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_SLOTS_PER_BATCH", 2)
    assert new_run(ledger, 3, variants=("a", "b", "c")).planned == 9


def test_a_run_without_any_case_is_a_run(ledger: Ledger) -> None:
    assert new_run(ledger, 0).planned == 0


@pytest.mark.parametrize("point", ["run.planning.batch", "run.planning.batch@2", "scribe.commit.before@4"])
def test_a_plan_that_was_killed_in_the_middle_is_seen_by_nobody_and_cleared_by_the_next(
    point: str, tmp_path: Path
) -> None:
    with new_ledger(tmp_path) as ledger, Child("plan", ledger.path, 3, crashpoint=point) as child:
        assert child.end() == -9
        assert visible(ledger) == []
        assert one(ledger, "SELECT state FROM runs") == ("planning",)
        run = new_run(ledger)
        assert visible(ledger) == [run.run_id]
        assert counts(ledger)["slots"] == counts(ledger)["cases"] == 3
        assert one(ledger, "SELECT count(*) FROM runs") == (1,)


def test_a_leftover_that_another_process_removes_too_does_not_take_that_ones_new_run_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_ledger(tmp_path) as ledger, Child("plan", ledger.path, 3, crashpoint="run.planning.batch@2") as child:
        assert child.end() == -9
        (left,) = one(ledger, "SELECT run_key FROM runs")
        made: list[planning.PlannedRun] = []
        real = forks.discard_taken

        def meanwhile(*args: Any, **more: Any) -> None:
            monkeypatch.setattr(planning, "discard_taken", real)
            made.append(new_run(ledger))  # as the other one, which was a little quicker
            real(*args, **more)

        monkeypatch.setattr(planning, "discard_taken", meanwhile)
        planning.discard_half_planned(ledger)
        assert [run.run_key for run in made] == [left]  # the number of a run that is gone is given again
        assert visible(ledger) == [made[0].run_id]
        assert counts(ledger)["slots"] == counts(ledger)["cases"] == 3


def test_a_plan_that_was_killed_when_whole_is_there(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger, Child("plan", ledger.path, 3, crashpoint="run.planned") as child:
        assert child.end() == -9
        assert len(visible(ledger)) == 1


def test_a_plan_that_a_living_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger, Child("plan", ledger.path, 3, pause_at="run.planning.batch") as child:
        child.wait_until_there()
        mine = new_run(ledger)
        assert visible(ledger) == [mine.run_id]
        child.let_go()
        theirs = child.line()
        assert visible(ledger) == [theirs, mine.run_id] or visible(ledger) == [mine.run_id, theirs]
        assert planning.discard_half_planned(ledger) == 0


def test_cases_that_cannot_be_read_to_the_end_leave_nothing(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_CASES_PER_BATCH", 2)

    def faulty() -> Iterator[planning.CasePlan]:
        yield from case_rows(5)
        raise ValueError("line 6")

    with pytest.raises(ValueError, match="line 6"):
        planning.create_run(ledger, run_plan(**WHOLE), faulty())  # type: ignore[arg-type]
    assert set(counts(ledger).values()) == {0}
    new_run(ledger)


def test_two_cases_of_one_id_leave_nothing(ledger: Ledger) -> None:
    rows = [*case_rows(2), *case_rows(1)]
    with pytest.raises(Exception, match="UNIQUE"):
        planning.create_run(ledger, run_plan(), rows)
    assert set(counts(ledger).values()) == {0}


def test_a_plan_whose_slots_do_not_add_up_is_not_shown(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_add_slots", lambda *_: None)
    with pytest.raises(RuntimeError, match="0 slots and was planned with 3"):
        new_run(ledger)
    assert visible(ledger) == []


def test_a_run_is_shown_once(ledger: Ledger) -> None:
    run = new_run(ledger)
    with pytest.raises(TransitionRefused):
        ledger.write(lambda tx: planning._show(tx, run.run_key, run.run_id, run_plan(), 3, 3, only_one=False))


def test_of_threads_that_plan_the_same_work_order_at_once_one_wins_and_all_get_its_run(ledger: Ledger) -> None:
    barrier, found = threading.Barrier(6), list[planning.PlannedRun]()

    def race() -> None:
        barrier.wait()
        found.append(planning.create_run(ledger, run_plan(**WHOLE), case_rows(3), only_one=True))  # type: ignore[arg-type]

    threads = [threading.Thread(target=race) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert visible(ledger) == [found[0].run_id]
    assert {run.run_id for run in found} == {found[0].run_id}
    assert counts(ledger)["slots"] == 12


def test_a_run_that_was_planned_and_finished_while_another_planned_the_same_is_the_one(ledger: Ledger) -> None:
    def slow() -> Iterator[planning.CasePlan]:
        first = planning.create_run(ledger, run_plan(), case_rows(1), only_one=True)
        ledger.write(lambda tx: run_ends.mark_unavailable(tx, first.run_key, reason="target"))
        assert ledger.write(lambda tx: run_ends.finish_run(tx, first.run_key))
        yield from case_rows(1)

    found = planning.create_run(ledger, run_plan(), slow(), only_one=True)
    assert visible(ledger) == [found.run_id]


def test_two_runs_of_one_ledger_do_not_mix(ledger: Ledger) -> None:
    first, second = new_run(ledger, 2), new_run(ledger, 3)
    begin(ledger, second.run_key, 3)
    assert every(ledger, "SELECT run_key, count(*) FROM slots GROUP BY run_key") == [
        (first.run_key, 2), (second.run_key, 3),
    ]  # fmt: skip
    assert one(ledger, "SELECT run_key FROM slots WHERE state = 'in_flight'") == (second.run_key,)


def test_text_that_is_hard_to_keep_is_kept(ledger: Ledger) -> None:
    hard = '"\\u0000 \\ud800 \\"quoted\\" 123456789012345678901234567890"'
    row = planning.CasePlan("id \N{SNOWMAN} \x00", "sha256:x", hard, "null", '{"a":123456789012345678901234567890}')
    planning.create_run(ledger, run_plan(), [row])
    found = one(ledger, "SELECT case_id, input, expected, metadata FROM cases")
    assert found == (row.case_id, row.input, row.expected, row.metadata)
