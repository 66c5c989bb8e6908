"""Comparisons: pairs, what lacks one side, what chance explains, and what cannot be said."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from docs import generate_schemas
from tallystick.ledger.errors import RunNotFound, UsageError
from tallystick.ledger.evaluations import create_evaluation
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.planning import JudgePlan
from tallystick.ledger.report_sums import JudgeRow
from tallystick.renderers.comparison import comparison_markdown
from tallystick.runner.compare_document import Comparison, ComparisonLine, SidePart
from tallystick.runner.compare_lines import lines_of
from tallystick.runner.compare_sides import Cell, Side
from tallystick.runner.comparing import compare
from tallystick.runner.report_models import Population, as_json
from tallystick.runner.report_options import slice_term
from tests.unit.ledger.factories import evaluation_plan
from tests.unit.renderers.made_runs import HOSTILE, Asked, answer, every_row, judge, made_run

PAIR = ("old", "new")


def cases(count: int, **metadata: Any) -> list[Asked]:
    return [Asked(f"c{number:04d}", {"half": "a" if number % 2 else "b", **metadata}) for number in range(count)]


def two_sided(
    ledger: Ledger, verdicts: Sequence[tuple[bool | None, bool | None]], *, repetitions: int = 1, name: str = "made"
) -> str:
    """A run of two variants with these verdicts, in the order of cases and then repetitions; None is not observed."""
    count = len(verdicts) // repetitions
    run = made_run(ledger, cases(count), variants=PAIR, repetitions=repetitions, name=name)
    for number, sides in enumerate(verdicts):
        repetition, case = divmod(number, count)
        for side, passed in enumerate(sides):
            slot = repetition * count * 2 + case * 2 + side + 1
            if passed is not None:
                answer(ledger, run.run_key, slot, seconds=0.1 * (1 + side))
                judge(ledger, run.run_key, slot, passed, score=float(passed))
    return run.run_id


def line_of(found: Comparison, metric: str) -> ComparisonLine:
    return next(line for line in found.lines if line.metric == metric)


def test_pairs_are_counted_by_which_sides_have_them(ledger: Ledger) -> None:
    run = two_sided(ledger, [(True, True)] * 3 + [(True, None)] * 2 + [(None, False)] + [(None, None)] * 4)
    line = line_of(compare(ledger, run), "passed")
    assert (line.pairs, line.baseline_only, line.candidate_only, line.neither) == (3, 2, 1, 4)
    assert line.coverage == pytest.approx(0.3)
    assert (line.verdict, line.comparable) == ("inconclusive", False)
    assert "3 of 10" in line.why


def test_a_side_that_is_better_is_told_with_its_test_and_interval(ledger: Ledger) -> None:
    run = two_sided(ledger, [(True, True)] * 20 + [(False, True)] * 12 + [(True, False)] * 1)
    line = line_of(compare(ledger, run), "passed")
    assert (line.gained, line.lost, line.equal, line.pairs) == (12, 1, 20, 33)
    assert line.p == pytest.approx(2 * (1 + 13) / 2**13)
    assert line.difference == pytest.approx(11 / 33)
    assert line.low is not None
    assert line.high is not None
    assert line.low < 11 / 33 < line.high
    assert line.verdict == "better"
    worse = line_of(compare(ledger, f"{run}:new", f"{run}:old"), "passed")
    assert worse.verdict == "worse"
    assert worse.difference == pytest.approx(-11 / 33)


def test_alike_sides_are_tied(ledger: Ledger) -> None:
    run = two_sided(ledger, [(True, True)] * 10 + [(True, False), (False, True)])
    assert line_of(compare(ledger, run), "passed").verdict == "tied"
    assert line_of(compare(ledger, f"{run}:old", f"{run}:old"), "passed").p == 1.0


def test_five_pairs_are_too_few_to_say_tied(ledger: Ledger) -> None:
    run = two_sided(ledger, [(True, True)] * 5)
    line = line_of(compare(ledger, run), "passed")
    assert (line.verdict, line.comparable) == ("inconclusive", True)
    assert "too few" in line.why


def test_a_slower_side_is_worse_in_seconds(ledger: Ledger) -> None:
    run = two_sided(ledger, [(True, True)] * 12)
    line = line_of(compare(ledger, run), "seconds")
    assert line.ratio == pytest.approx(2.0)
    assert line.verdict == "worse"
    assert (line.gained, line.lost) == (0, 12)


def test_repetitions_of_a_case_are_no_further_evidence(ledger: Ledger) -> None:
    # Three cases that each go one way in all of ten repetitions: of chance, 1 in 4 would look like that.
    run = two_sided(ledger, [(False, True)] * 30, repetitions=10)
    line = line_of(compare(ledger, run), "passed")
    assert (line.pairs, line.gained) == (30, 30)
    assert line.p == pytest.approx(0.25)
    assert line.verdict == "inconclusive"
    assert "30 pairs of 3 cases are too few" in line.why


def test_the_way_is_that_of_the_cases_and_not_of_the_one_with_most_repetitions() -> None:
    first, second = side_of([True] * 10 + [False]), side_of([False] * 10 + [True])
    for repetition in range(2, 51):
        for side in (first, second):
            side.cells["c00010", repetition] = side.cells["c00010", 1]
    (line,) = (one for one in lines_of(first, second, [(None, None, sorted(first.cells))], min_coverage=0) if one.judge)
    assert (line.gained, line.lost) == (50, 10)
    assert line.p == pytest.approx(2 * 12 / 2**11)
    assert line.verdict == "worse"


def test_one_case_has_no_interval_of_its_mean(ledger: Ledger) -> None:
    run = two_sided(ledger, [(False, True)])
    for metric in ("score", "seconds"):
        line = line_of(compare(ledger, run), metric)
        assert (line.low, line.high, line.verdict) == (None, None, "inconclusive")


def test_a_judge_that_only_one_side_has_is_named(ledger: Ledger) -> None:
    for name, judges in (("one", ("exact", "polite")), ("two", ("exact", "short"))):
        run = made_run(ledger, cases(8), name=name, judges=judges)
        for slot in range(1, 9):
            answer(ledger, run.run_key, slot)
            judge(ledger, run.run_key, slot, True)
            judge(ledger, run.run_key, slot, True, judge_no=2)
    found = compare(ledger, "one", "two", by="half")
    assert [(line.judge, line.verdict, line.why) for line in found.lines if line.judge not in (None, "exact")] == [
        ("polite", "inconclusive", "only the baseline has a judge polite"),
        ("short", "inconclusive", "only the candidate has a judge short"),
    ]
    assert {line.judge for line in found.groups} == {"exact", None}


def side_of(verdicts: list[bool]) -> Side:
    """A side with these verdicts, one a case, that no ledger has."""
    people = Population(
        planned=len(verdicts), selected=len(verdicts), failed=0, unknown=0, unavailable=0, cancelled=0, parked=0,
        in_flight=0, pending=0,
    )  # fmt: skip
    part = SidePart(text="r", run="r", name="r", variant="v", event=1, evaluation=1, population=people)
    cells = {(f"c{n:05d}", 1): Cell("same", {"exact": passed}, {}, 0.1) for n, passed in enumerate(verdicts)}
    judges = {"exact": JudgeRow(1, "exact", "exact", "same", 1, None)}
    return Side(part, None, judges, cells, {})  # type: ignore[arg-type]


def test_two_hundred_comparisons_of_alike_sides_flag_no_more_than_the_nominal_rate() -> None:
    draw = random.Random(11).random
    first, second = (side_of([draw() < 0.7 for _ in range(16_000)]) for _ in range(2))
    keys = sorted(first.cells)
    groups = [("k", number, keys[number::200]) for number in range(200)]
    lines = [line for line in lines_of(first, second, groups, min_coverage=0.95) if line.metric == "passed"]
    assert len(lines) == 200
    flagged = sum(line.p is not None and line.p <= 0.05 for line in lines)
    assert 0 < flagged <= 10
    assert {line.verdict for line in lines} == {"tied"}
    (whole,) = (line for line in lines_of(first, second, [(None, None, keys)], min_coverage=1) if line.judge)
    assert whole.verdict == "tied"


def test_one_side_that_is_worse_in_one_group_is_found_among_two_hundred() -> None:
    draw = random.Random(12).random
    first, second = (side_of([draw() < 0.7 for _ in range(16_000)]) for _ in range(2))
    keys = sorted(first.cells)
    for key in keys[7::200]:
        first.cells[key].passed["exact"], second.cells[key].passed["exact"] = True, draw() < 0.6
    groups = [("k", number, keys[number::200]) for number in range(200)]
    lines = [line for line in lines_of(first, second, groups, min_coverage=0.95) if line.metric == "passed"]
    assert [line.group for line in lines if line.verdict != "tied"] == [7]
    assert lines[7].verdict == "worse"


def test_false_discoveries_are_held_down_over_all_groups(ledger: Ledger) -> None:
    run = two_sided(ledger, [(False, True)] * 12 + [(True, True)] * 28)
    found = compare(ledger, run, by="half")
    (a, b) = (line for line in found.groups if line.metric == "passed")
    assert [a.p, b.p] == [pytest.approx(2 / 2**6)] * 2
    assert a.p_adjusted is not None
    assert a.p is not None
    assert a.p_adjusted >= a.p
    assert {line.group for line in found.groups} == {"a", "b"}


def test_each_case_can_be_compared(ledger: Ledger) -> None:
    run = two_sided(ledger, [(True, True)] * 6)
    found = compare(ledger, run, per_case=True)
    assert sorted({line.group for line in found.groups}) == [f"c{number:04d}" for number in range(6)]
    assert {line.verdict for line in found.groups} == {"inconclusive"}
    with pytest.raises(UsageError, match="by one key"):
        compare(ledger, run, per_case=True, by="half")


def test_a_slice_is_compared_alone(ledger: Ledger) -> None:
    run = two_sided(ledger, [(True, True)] * 10)
    found = compare(ledger, run, terms=(slice_term("half=a"),))
    assert line_of(found, "passed").pairs == 5
    assert found.slice is not None
    assert (found.slice.planned, found.slice.of) == (5, 10)
    assert found.baseline.population.planned == 5


def test_runs_are_paired_by_case_and_content(ledger: Ledger) -> None:
    one = made_run(ledger, [Asked("a"), Asked("b"), Asked("c", input="then")], name="one")
    two = made_run(ledger, [Asked("b"), Asked("a"), Asked("c", input="now"), Asked("d")], name="two")
    for run, count in ((one, 3), (two, 4)):
        for slot in range(1, count + 1):
            answer(ledger, run.run_key, slot)
            judge(ledger, run.run_key, slot, True)
    line = line_of(compare(ledger, "one", "two"), "passed")
    assert (line.pairs, line.changed, line.candidate_only) == (2, 1, 1)


def test_another_judge_on_each_side_is_not_compared(ledger: Ledger) -> None:
    for name in ("one", "two"):
        run = made_run(ledger, cases(8), name=name)
        for slot in range(1, 9):
            answer(ledger, run.run_key, slot)
            judge(ledger, run.run_key, slot, True)
        ledger.write(
            lambda tx, key=run.run_key, name=name: tx.change(  # type: ignore[misc]
                "UPDATE evaluation_judges SET identity_digest = ? WHERE run_key = ?", (name, key)
            )
        )
    line = line_of(compare(ledger, "one", "two"), "passed")
    assert (line.verdict, line.comparable) == ("inconclusive", False)
    assert "not the same on both sides" in line.why


def test_two_evaluations_of_one_run_are_compared_though_their_judges_differ(ledger: Ledger) -> None:
    run = made_run(ledger, cases(8))
    for slot in range(1, 9):
        answer(ledger, run.run_key, slot)
        judge(ledger, run.run_key, slot, True)
    plan = evaluation_plan("again", JudgePlan("exact", "model", "{}"))
    ledger.write(lambda tx: create_evaluation(tx, run.run_id, plan))
    for slot in range(1, 9):
        judge(ledger, run.run_key, slot, slot > 1, evaluation_no=2)
    line = line_of(compare(ledger, "made#1", "made#again"), "passed")
    assert (line.comparable, line.pairs, line.gained, line.lost) == (True, 8, 0, 1)


@pytest.mark.parametrize(
    ("baseline", "candidate", "error"),
    [
        ("nobody", None, RunNotFound),
        ("made:nobody", "made:old", UsageError),
        ("made", "made", UsageError),
        ("made:old", None, UsageError),
        ("made@999", None, UsageError),
        ("made:old@1", "made:new@0", UsageError),
    ],
)
def test_sides_that_are_not_there_are_refused(ledger: Ledger, baseline: str, candidate: str | None, error: Any) -> None:
    two_sided(ledger, [(True, True)])
    with pytest.raises(error):
        compare(ledger, baseline, candidate)


def test_a_run_whose_name_has_a_colon_can_be_named(ledger: Ledger) -> None:
    two_sided(ledger, [(True, True)] * 6, name="my:run")
    assert compare(ledger, "my:run").baseline.variant == "old"
    assert compare(ledger, "my:run:new", "my:run:old").baseline.variant == "new"


def test_a_comparison_is_pinned_pure_and_as_its_schema_says(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked(f"c{n}{HOSTILE}", {"k": HOSTILE}) for n in range(8)], variants=PAIR)
    for slot in range(1, 13):
        answer(ledger, run.run_key, slot)
        judge(ledger, run.run_key, slot, slot % 3 > 0)
    found = compare(ledger, run.run_id, by="k")
    at = found.baseline.event
    before = every_row(ledger)
    texts = [json.dumps(as_json(found)), "".join(comparison_markdown(found))]
    again = compare(ledger, run.run_id, by="k")
    assert [json.dumps(as_json(again)), "".join(comparison_markdown(again))] == texts
    assert every_row(ledger) == before
    answer(ledger, run.run_key, 13)
    pinned = compare(ledger, f"{run.run_id}:old@{at}", f"{run.run_id}:new@{at}", by="k")
    assert [line.model_dump() for line in pinned.lines] == [line.model_dump() for line in found.lines]
    schema = json.loads((generate_schemas.DOCS / "comparison.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(texts[0]), schema)
    assert "<script" not in texts[1]
