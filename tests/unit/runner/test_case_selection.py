"""Which cases are asked is said by metadata, split and sample, and hangs on nothing but the case and the seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger.errors import CaseFileInvalid, UsageError, WorkOrderInvalid
from tallystick.runner import case_selection
from tallystick.runner.case_files import survey
from tallystick.runner.case_selection import ChosenCases
from tallystick.runner.protocols import Case
from tallystick.runner.work_order import WorkOrder
from tallystick.runner.work_order_cases import cases

PARTS = {"test": 20, "train": 80}


def population(count: int = 1000) -> list[Case]:
    return [
        Case(f"c{n}", n, metadata={"lang": ("de", "en")[n % 2], "level": n % 3, "tags": [n % 5]}) for n in range(count)
    ]


def ids(rows: Any, **options: Any) -> list[str]:
    return [case.id for case in cases(rows, **options)]


def told(source: Any, kind: type[UsageError] = CaseFileInvalid, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        survey(cases(source, **options))
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return str(caught.value)


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ({"lang": "de"}, 15),
        ({"lang": ["de", "en"]}, 30),
        ({"lang": "de", "level": 2}, 5),
        ({"level": "2"}, 10),
        ({"level": [0, 1]}, 20),
        ({"tags": 3}, 6),
    ],
)
def test_where_takes_the_cases_whose_metadata_has_a_value(where: dict[str, Any], count: int) -> None:
    assert len(ids(population(30), where=where)) == count


def test_true_is_no_1_and_1_0_is_no_1() -> None:
    rows = [Case("a", 0, metadata={"x": True}), Case("b", 0, metadata={"x": 1}), Case("c", 0, metadata={"x": 1.0})]
    assert [ids(rows, where={"x": value}) for value in (True, 1, 1.0, "true", "1")] == [
        ["a"], ["b"], ["c"], ["a"], ["b"],
    ]  # fmt: skip


def test_a_sample_is_the_same_in_any_order_of_the_file_and_comes_in_that_order() -> None:
    rows = population()
    chosen = ids(rows, sample=100, seed=7)
    assert len(chosen) == 100
    assert chosen == [case.id for case in rows if case.id in set(chosen)]
    mixed = random.Random(1).sample(rows, len(rows))
    assert ids(mixed, sample=100, seed=7) == [case.id for case in mixed if case.id in set(chosen)]


def test_a_sample_hangs_on_ids_and_seed_alone_and_a_larger_one_contains_it() -> None:
    rows = population()
    chosen = set(ids(rows, sample=100, seed=7))
    assert set(ids([Case(case.id, "other") for case in rows], sample=100, seed=7)) == chosen
    assert chosen < set(ids(rows, sample=200, seed=7))
    assert len(chosen & set(ids(rows, sample=100, seed=8))) < 30
    assert ids(rows, sample=100) == ids(rows, sample=100, seed=0)


def test_a_sample_is_what_it_was_when_this_was_written() -> None:
    # Another rule would silently be another run for everybody who samples.
    assert ids(population(50), sample=5, seed=7) == ["c12", "c17", "c18", "c30", "c39"]
    assert ids(population(20), split={"name": "test", "of": PARTS}) == ["c0", "c2", "c8", "c15"]


def test_parts_of_a_split_hold_every_case_once_and_as_many_as_their_weights_say() -> None:
    rows = population()
    parts = {name: ids(rows, split={"name": name, "of": {"a": 0.1, "b": 0.2, "c": 0.7}}) for name in "abc"}
    assert sorted(itertools.chain(*parts.values())) == sorted(case.id for case in rows)
    assert [round(len(part) / 100) for part in parts.values()] == [1, 2, 7]


def test_a_case_keeps_its_part_whatever_else_is_in_the_file_and_however_parts_are_written() -> None:
    of_all = set(ids(population(), split={"name": "test", "of": PARTS}))
    of_some = set(ids(population()[::3], split={"name": "test", "of": {"train": 0.8, "test": 0.2}}))
    assert of_some == of_all & {case.id for case in population()[::3]}
    assert of_all != set(ids(population(), split={"name": "test", "of": PARTS, "seed": 1}))


def test_a_split_by_a_key_of_the_metadata_keeps_every_group_in_one_part() -> None:
    rows = [Case(f"c{n}", n, metadata={"patient": n // 4}) for n in range(2000)]
    groups = {
        name: {case.metadata["patient"] for case in cases(rows, split={"name": name, "of": PARTS, "by": "patient"})}
        for name in PARTS
    }
    assert groups["test"] & groups["train"] == set()
    assert len(groups["test"] | groups["train"]) == 500
    assert 70 < len(groups["test"]) < 130
    by_id = {case.metadata["patient"] for case in cases(rows, split={"name": "test", "of": PARTS})}
    assert len(by_id) > 250, "by id, most groups fall apart"


def test_a_group_keeps_its_part_whatever_its_cases_are_called_and_is_one_for_1_and_the_text_1() -> None:
    split = {"name": "a", "of": {"a": 1, "b": 1}, "by": "x", "seed": 3}
    values: list[Any] = [*range(40), True, 2.5, "kiel"]
    numbers = [case.metadata["x"] for case in cases([Case(f"n{v}", 0, metadata={"x": v}) for v in values], split=split)]
    texts = [Case(f"other{v}", 0, metadata={"x": str(v).lower()}) for v in values]
    assert [case.metadata["x"] for case in cases(texts, split=split)] == [str(v).lower() for v in numbers]
    assert 10 < len(numbers) < 33


def test_a_split_by_a_key_is_what_it_was_when_this_was_written() -> None:
    rows = [Case(f"c{n}", n, metadata={"x": f"g{n}"}) for n in range(16)]
    assert ids(rows, split={"name": "test", "of": PARTS, "by": "x"}) == ["c7", "c8", "c9", "c12", "c13", "c14"]


def test_a_split_by_what_a_case_does_not_have_is_refused_by_that_case() -> None:
    split = {"name": "a", "of": {"a": 1, "b": 1}, "by": "patient"}
    rows = [Case("one", 1, metadata={"patient": 1}), Case("two", 2, metadata={"patint": 1})]
    fault = told(rows, split=split)
    assert 'case "two" has no "patient" in its metadata, which its part is chosen by' in fault
    assert 'Did you mean "patint"?' in fault
    assert "Give each case one" in told([Case("one", 1)], split=split)
    assert ids(rows, split=split, where={"patient": 1}) in (["one"], []), "what is not asked need not have it"
    for odd in ([1], {"a": 1}, None):
        assert "is a list, an object or null" in told([Case("one", 1, metadata={"patient": odd})], split=split)


def test_a_sample_of_a_split_is_not_drawn_by_what_drew_the_split() -> None:
    # With one draw for both, the sample of a part would be its lower corner and the same for every seed of samples.
    part = set(ids(population(), split={"name": "train", "of": PARTS}))
    sample = set(ids(population(), sample=500))
    assert 0.7 < len(part & sample) / 500 < 0.9


def test_they_are_applied_as_where_then_split_then_sample() -> None:
    options: dict[str, Any] = {"where": {"lang": "de"}, "split": {"name": "test", "of": PARTS}}
    left = ids(population(), **options)
    chosen = ids(population(), **options, sample=20, seed=3)
    assert len(chosen) == 20
    assert set(chosen) < set(left)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (
            {"where": {"lang": "fr"}},
            "cases: none of 6 cases has lang = fr. Ask for values that are there: lang is de, en",
        ),
        ({"where": {"lnag": "de"}}, 'cases: no case has "lnag" in its metadata. Did you mean "lang"?'),
        ({"where": {"lang": "de", "level": 9}}, "cases: none of 6 cases has lang = de and level = 9"),
        ({"sample": 7}, "cases: a sample of 7 is asked for, and there are 6 cases. Write sample = 6 or less"),
        (
            {"sample": 4, "where": {"lang": "de"}},
            "cases: a sample of 4 is asked for, and there are 3 cases (where lang = de)",
        ),
        (
            {"split": {"name": "a", "of": {"a": 1e-9, "b": 1}}},
            "cases: no case is in split a of a 1e-09, b 1: there are 6",
        ),
    ],
)
def test_a_choice_that_takes_too_little_is_refused_with_what_there_is(options: dict[str, Any], fault: str) -> None:
    assert told(population(6), **options).startswith(fault)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"where": {"lang": []}}, "cases: where.lang: no value fits an empty list"),
        ({"where": {"lang": {"a": 1}}}, 'cases: where.lang: {"a": 1} is no value to look for'),
        ({"seed": 3}, "cases: seed: there is no sample that it could decide on"),
        ({"sample": 0}, "cases: sample: 0 is too small. Write 1 or more"),
        ({"sample": 0.5}, "cases: sample: 0.5 is no whole number"),
        ({"sample": 5, "seed": -1}, "cases: seed: -1 is too small"),
        ({"sample": 5, "seed": 2**63}, "cases: seed: 9223372036854775808 is too large"),
        ({"split": {"name": "dev", "of": PARTS}}, 'cases: split.name: there is no part "dev". Parts: test, train'),
        ({"split": {"name": "test", "of": {"test": 0}}}, "cases: split.of.test: 0 is no weight"),
        ({"split": {"name": "test", "of": {"test": True}}}, "cases: split.of.test: true is no weight"),
        ({"split": {"of": PARTS}}, "cases: split.name: this key is missing"),
        ({"split": {"name": "test", "of": PARTS, "by": 7}}, "cases: split.by: 7 is no text"),
        ({"split": {"name": "test", "of": PARTS, "by": ""}}, "cases: split.by: "),
        ({"columns": {"id": "x"}}, "cases: columns: these cases come from no file"),
        ({"format": "csv"}, "cases: format: these cases come from no file"),
    ],
)
def test_a_wrong_choice_is_refused_by_its_key(options: dict[str, Any], fault: str) -> None:
    assert told(population(6), WorkOrderInvalid, **options).startswith(fault)


def test_counts_are_those_of_the_last_time_through() -> None:
    source = cases(population(30), where={"lang": "de"}, sample=4)
    assert isinstance(source, ChosenCases)
    for _ in range(2):
        assert survey(source).count == source.counts.chosen == 4
        assert source.counts.population == 30


def test_a_fault_in_a_case_that_is_not_asked_is_told_all_the_same() -> None:
    rows = [*population(5), {"id": "c0", "input": 1}]
    assert told(rows, where={"lang": "de"}).startswith('case 6: the id "c0" stands in case 1 already')


def test_a_choice_is_part_of_the_work_order_that_a_ledger_keeps(tmp_path: Path) -> None:
    table = {"file": "q.csv", "columns": {"id": "n", "input": ["a", "b"], "metadata": ["m"]}, "delimiter": ";",
             "where": {"m": "1", "k": [1, True]}, "split": {"name": "z", "of": {"z": 0.1, "a": 3}, "by": "m"},
             "sample": 5, "seed": 9}  # fmt: skip
    raw = {"version": 1, "name": "x", "cases": table, "target": {"kind": "http", "url": "http://x/"}}
    order = WorkOrder.from_document(raw, folder=tmp_path)
    again = WorkOrder.from_document(order.to_document(), folder=tmp_path)
    assert again == order
    assert isinstance(again.cases, ChosenCases)
    assert str(again.cases.selection) == (
        "where m = 1 and k = 1 or true, split z of a 3, z 0.1 by m, a sample of 5 by seed 9"
    )


def test_cases_from_python_are_only_said_to_be_given_when_they_were_chosen() -> None:
    order = WorkOrder("x", cases=cases(population(9), sample=2), target={"kind": "http", "url": "http://x/"})
    again = WorkOrder.from_document(order.to_document())
    assert order.to_document()["cases"] == {"given": True, "sample": 2, "seed": 0, "repetitions": 1}
    assert "were given from Python" in told(again.cases)


@pytest.mark.parametrize(("limit", "times"), [("_KEPT_MAX", 2), ("_KEPT_BYTES_MAX", 2), ("_SEEN_MAX", 1)])
def test_a_small_sample_goes_through_its_source_once_and_one_that_is_too_large_to_keep_twice(
    monkeypatch: pytest.MonkeyPatch, limit: str, times: int
) -> None:
    rows, gone_through = population(300), []
    random.Random(1).shuffle(rows)

    def made() -> Iterator[Case]:
        gone_through.append(1)
        yield from rows

    drawn = list(cases(made, sample=40, seed=7))
    assert len(gone_through) == 1
    monkeypatch.setattr(case_selection, limit, 39)
    assert list(cases(made, sample=40, seed=7)) == drawn == [case for case in rows if case in drawn]
    assert len(gone_through) == 1 + times


def test_a_function_makes_its_cases_anew_each_time() -> None:
    calls = []

    def made() -> Iterator[Case]:
        calls.append(1)
        yield from population(4)

    source = cases(made)
    assert calls == []
    assert [case.id for case in source] == [case.id for case in source] == ["c0", "c1", "c2", "c3"]
    assert len(calls) == 2
    assert len(ids(made, sample=2)) == 2


async def _asynchronous() -> Any:
    yield Case("a", 1)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (lambda: None, "the function that makes the cases returned a NoneType"),
        (lambda: iter(()), "there are no cases. Let the function make at least one"),
        (lambda: [{"id": "a"}], 'case 1: "input" is missing'),
        (_asynchronous, "an asynchronous generator cannot be gone through here"),
        ({"id": "a", "input": 1}, "a dict is no cases. Give a path, a list of cases, or a function"),
        (5, "a int is no cases"),
    ],
)
def test_what_makes_no_cases_is_refused(source: Any, fault: str) -> None:
    assert told(source).startswith(fault)
