"""Gates: passed, failed or neither, with a line that says why."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import pytest

from docs import generate_schemas
from tallystick.ledger.canonical import canonical_text
from tallystick.ledger.errors import UsageError, WorkOrderInvalid
from tallystick.ledger.evaluations import find_evaluation
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.qualifications import link_qualification
from tallystick.runner.gate_document import GateReport
from tallystick.runner.gating import gate
from tallystick.runner.report_options import ReportOptions, slice_term
from tallystick.runner.work_order_files import Place
from tallystick.runner.work_order_gates import GatesSpec, gates_table, read_gates
from tests.unit.renderers.made_runs import Asked, answer, every_row, fail, judge, lose, made_run
from tests.unit.renderers.test_comparing import two_sided


def gates(**table: Any) -> GatesSpec:
    found = read_gates(table, place=Place("order", ("gates",)))
    assert found is not None
    return found


def judged(ledger: Ledger, passed: int, planned: int, **options: Any) -> str:
    run = made_run(ledger, [Asked(f"c{number}", {"k": number % 2}) for number in range(planned)], **options)
    for slot in range(1, planned + 1):
        answer(ledger, run.run_key, slot, cost_nanousd=100_000_000)
        judge(ledger, run.run_key, slot, slot <= passed)
    return run.run_id


def verdicts(found: GateReport) -> list[tuple[str, str]]:
    return [(line.gate, line.verdict.value) for line in found.lines]


@pytest.mark.parametrize(("passed", "verdict", "status"), [(9, "passed", 0), (8, "passed", 0), (7, "failed", 1)])
def test_a_score_decides_at_its_limit(ledger: Ledger, passed: int, verdict: str, status: int) -> None:
    found = gate(ledger, judged(ledger, passed, 10), gates(min_score=0.8))
    assert (found.verdict, found.exit_status) == (verdict, status)
    assert verdicts(found) == [("min_coverage", "passed"), ("min_score", verdict)]
    assert "at least 0.8 is wanted" in found.lines[1].why


def test_below_its_coverage_a_gate_is_inconclusive(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked(f"c{number}") for number in range(10)])
    for slot in range(1, 10):
        answer(ledger, run.run_key, slot)
        judge(ledger, run.run_key, slot, True)
    lose(ledger, run.run_key, 10)
    found = gate(ledger, run.run_id, gates(min_score=0.5))
    assert (found.verdict, found.exit_status) == ("inconclusive", 3)
    assert {line.verdict for line in found.lines} == {"inconclusive"}
    assert "9 of 10" in found.lines[0].why
    assert gate(ledger, run.run_id, gates(min_score=0.5, min_coverage=0.9)).verdict == "passed"


def test_what_fails_fails_although_something_else_is_inconclusive(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked("a"), Asked("b")])
    answer(ledger, run.run_key, 1)
    fail(ledger, run.run_key, 2)
    found = gate(ledger, run.run_id, gates(min_score=0.5, max_failed=0))
    assert (found.verdict, found.exit_status) == ("failed", 1)
    assert verdicts(found)[-1] == ("max_failed", "failed")


@pytest.mark.parametrize(("passed", "verdict"), [(95, "passed"), (84, "inconclusive"), (70, "failed")])
def test_by_interval_the_whole_interval_must_be_on_one_side(ledger: Ledger, passed: int, verdict: str) -> None:
    assert gate(ledger, judged(ledger, passed, 100), gates(min_score=0.8, decide_by="interval")).verdict == verdict


def test_limits_may_differ_by_judge(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked("a")], judges=("exact", "short"))
    answer(ledger, run.run_key, 1)
    judge(ledger, run.run_key, 1, True)
    judge(ledger, run.run_key, 1, judge_no=2, score=2.0)
    found = gate(ledger, run.run_id, gates(min_score={"short": 2.5, "exact": 1.0, "gone": 1}))
    assert [(line.judge, line.verdict.value) for line in found.lines if line.gate == "min_score"] == [
        ("short", "failed"), ("exact", "passed"), ("gone", "inconclusive"),
    ]  # fmt: skip


def test_a_regression_is_held_against_the_first_variant(ledger: Ledger) -> None:
    run = two_sided(ledger, [(True, True)] * 16 + [(True, False)] * 4)
    for limit, verdict in ((0.25, "passed"), (0.1, "failed")):
        found = gate(ledger, run, gates(max_regression=limit))
        assert found.verdict == verdict
        assert found.baseline == f"{run}:old"
        assert {line.variant for line in found.lines} == {"new"}
    assert gate(ledger, run, gates(max_regression=0.1, decide_by="interval")).verdict == "inconclusive"
    assert gate(ledger, run, gates(max_slowdown=2.5)).verdict == "passed"
    assert gate(ledger, run, gates(max_slowdown=1.5)).verdict == "failed"


def test_a_gain_and_no_change_are_told_with_the_interval_of_what_is_told(ledger: Ledger) -> None:
    better = gate(ledger, two_sided(ledger, [(True, True)] * 8 + [(False, True)] * 2), gates(max_regression=0.0))
    assert better.lines[-1].why.startswith("up by 0.2 (")
    low, high = (float(word.strip("()")) for word in better.lines[-1].why.split(" over")[0].split()[3:6:2])
    assert low < 0.2 < high
    alike = gate(ledger, two_sided(ledger, [(True, True)] * 8), gates(max_regression=0.0))
    assert alike.lines[-1].why.startswith("up by 0 (")


def test_a_baseline_may_be_another_run(ledger: Ledger) -> None:
    old, new = judged(ledger, 10, 10, name="old"), judged(ledger, 5, 10, name="new")
    assert gate(ledger, new, gates(max_regression=0.4), baseline=old).verdict == "failed"
    assert gate(ledger, new, gates(max_regression=0.5, baseline="old")).verdict == "passed"
    assert gate(ledger, new, gates(max_regression=0.5)).verdict == "inconclusive"  # there is none


def test_pairs_that_one_side_lacks_make_a_regression_inconclusive(ledger: Ledger) -> None:
    run = two_sided(ledger, [(True, True)] * 9 + [(None, True)])
    found = gate(ledger, run, gates(max_regression=0.5))
    assert found.lines[-1].verdict == "inconclusive"
    assert "9 of 10" in found.lines[-1].why


def test_costs_and_durations_have_limits(ledger: Ledger) -> None:
    run = judged(ledger, 10, 10)
    assert gate(ledger, run, gates(max_usd="1.00", max_median_seconds=0.5, max_p95_seconds=0.6)).verdict == "passed"
    dear = gate(ledger, run, gates(max_usd="0.99"))
    assert (dear.verdict, dear.lines[-1].why) == ("failed", "$1.00 of at most $0.99")
    assert gate(ledger, run, gates(max_median_seconds=0.4)).verdict == "failed"


def test_an_unknown_cost_is_never_within_a_limit(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked("a"), Asked("b")], judges=())
    answer(ledger, run.run_key, 1, cost_nanousd=2_000_000_000)
    answer(ledger, run.run_key, 2)
    found = gate(ledger, run.run_id, gates(max_usd="5.00"))
    assert found.verdict == "inconclusive"
    assert "did not say what they cost" in found.lines[-1].why
    assert gate(ledger, run.run_id, gates(max_usd="1.00")).verdict == "failed"


def test_an_unqualified_judge_decides_nothing_before_it_is_noted_and_at_the_event_before_it_was(ledger: Ledger) -> None:
    run = judged(ledger, 10, 10)
    ledger.write(lambda tx: tx.change("UPDATE evaluation_judges SET requirement = '{\"accuracy\":0.9}'", ()))
    with ledger.reading() as reader:
        row = find_evaluation(reader, 1, "1")
    early = gate(ledger, run, gates(min_score=0.1))
    assert (early.verdict, "not qualified" in early.lines[-1].why) == ("inconclusive", True)
    ledger.write(lambda tx: link_qualification(tx, row, 1, qualification_id=None, met=True, is_brought=False))
    assert gate(ledger, run, gates(min_score=0.1)).verdict == "passed"
    assert gate(ledger, run, gates(min_score=0.1), options=ReportOptions(at=early.event)) == early


def test_gates_of_a_slice_and_an_event(ledger: Ledger) -> None:
    run = judged(ledger, 5, 10)
    assert (
        gate(ledger, run, gates(min_score=0.6), options=ReportOptions(terms=(slice_term("k=0"),))).verdict == "passed"
    )
    assert (
        gate(ledger, run, gates(min_score=0.6), options=ReportOptions(terms=(slice_term("k=1"),))).verdict == "failed"
    )
    early = gate(ledger, run, gates(min_score=0.6), options=ReportOptions(at=2))
    assert (early.verdict, early.event) == ("inconclusive", 2)


def test_gates_are_read_from_the_settings_that_were_seen_last(ledger: Ledger) -> None:
    run = judged(ledger, 5, 10)
    with pytest.raises(UsageError, match="has no gates"):
        gate(ledger, run)
    settings = canonical_text({"gates": {"min_score": 0.4}})
    ledger.write(lambda tx: tx.change("UPDATE runs SET settings = ?", (settings,)))
    before = every_row(ledger)
    found = gate(ledger, run)
    assert found.verdict == "passed"
    assert every_row(ledger) == before
    schema = json.loads((generate_schemas.DOCS / "gate.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(json.dumps(found.model_dump(mode="python"))), schema)


def test_gates_survive_the_document_of_their_work_order() -> None:
    spec = gates(
        min_score={"exact": 0.5, "b": 1}, max_regression=0.1, max_usd="2.50", decide_by="interval", max_unknown=0,
        baseline="old", max_slowdown=1.5,
    )  # fmt: skip
    assert gates(**gates_table(spec)) == spec
    assert gates_table(spec)["max_usd"] == "2.50"


@pytest.mark.parametrize(
    "table",
    [
        {"min_scores": 1}, {"min_score": "high"}, {"min_score": {"exact": True}}, {"min_score": {"exat": 1}},
        {"variant": "nobody"}, {"max_usd": 2.5}, {"min_coverage": 2}, {"max_failed": -1}, {"max_slowdown": 0},
        {"decide_by": "luck"}, {"baseline": ""}, [], {"min_score": math.nan}, {"max_regression": {"exact": math.inf}},
    ],
)  # fmt: skip
def test_a_wrong_gate_is_named_with_its_place(table: Any) -> None:
    with pytest.raises(WorkOrderInvalid) as caught:
        read_gates(table, variants=["old"], judges=["exact"], place=Place("order.toml", ("gates",)))
    assert caught.value.place.startswith("order.toml")


@pytest.mark.parametrize("limits", [{"min_coverage": 1.0}, {"max_usd": "5.00", "min_score": 0.9}])
def test_gates_of_a_variant_that_is_not_there_are_refused(ledger: Ledger, limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"the variant nobody, and run .* has default"):
        gate(ledger, judged(ledger, 2, 2), gates(variant="nobody", **limits))


def test_what_would_be_compared_to_itself_is_refused(ledger: Ledger) -> None:
    run = judged(ledger, 8, 10)
    with pytest.raises(UsageError, match="to itself"):
        gate(ledger, run, gates(max_regression=0.1), baseline=run)
    sides = two_sided(ledger, [(True, False)] * 10, name="sides")
    with pytest.raises(UsageError, match="to itself"):
        gate(ledger, sides, gates(max_regression=0.1, variant="new", baseline="new"))
    assert gate(ledger, sides, gates(max_regression=0.1, variant="new")).verdict == "failed"


def test_a_regression_at_its_limit_is_within_it_whatever_binary_makes_of_it(ledger: Ledger) -> None:
    run = two_sided(ledger, [(True, True)] * 96 + [(True, False)] * 2 + [(False, False)] * 2)
    assert 98 / 100 - 96 / 100 > 0.02
    assert gate(ledger, run, gates(max_regression=0.02)).verdict == "passed"
    assert gate(ledger, run, gates(max_regression=0.0199)).verdict == "failed"


def test_nothing_planned_passes_no_gate(ledger: Ledger) -> None:
    run = judged(ledger, 10, 10)
    nothing = ReportOptions(terms=(slice_term("k=9"),))
    found = gate(ledger, run, gates(min_coverage=0, min_score=0, max_failed=0, max_unknown=0), options=nothing)
    assert found.verdict == "inconclusive"
    assert {line.verdict for line in found.lines} == {"inconclusive"}
