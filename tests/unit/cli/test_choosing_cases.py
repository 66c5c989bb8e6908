"""What is asked is said before a run, is what the run is, and holds for all that goes on with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.cli.project import Project


@pytest.fixture
def many(project: Project) -> Project:
    """1,200 cases, of which half are German."""
    rows: list[dict[str, Any]] = [
        {"id": f"c{n}", "input": n, "expected": n, "metadata": {"lang": ("de", "en")[n % 2], "level": n % 3}}
        for n in range(1200)
    ]
    project.write("cases.jsonl", *rows)
    return project


def cases_of(project: Project, run: str) -> set[str]:
    with project.opened() as ledger, ledger.reading() as reader:
        found = reader.rows("SELECT case_id FROM cases JOIN runs USING (run_key) WHERE run_id = ?", (run,))
    return {row[0] for row in found}


def test_the_preflight_says_from_how_many_the_cases_were_chosen_and_how(many: Project) -> None:
    arguments = ("run", "order.toml", "--dry-run", "--where", "lang=de", "--sample", "200", "--seed", "7")
    assert "200 of 1,200, where lang = de, a sample of 200 by seed 7" in many.give(*arguments).out
    found = many.give(*arguments, "--json").document
    assert (found["cases"], found["planned"]) == (200, 200)
    assert found["chosen"] == {
        "population": 1200, "where": {"lang": ["de"]}, "split": None, "sample": 200, "seed": 7,
        "told": "where lang = de, a sample of 200 by seed 7",
    }  # fmt: skip
    assert many.give("run", "order.toml", "--dry-run", "--json").document["chosen"] is None


def test_a_sample_is_what_the_run_is_and_goes_on_without_being_said_again(many: Project) -> None:
    sample = ("run", "order.toml", "--sample", "3", "--seed", "1", "--json")
    begun = many.give(*sample, "--limit", "1").document
    resumed = many.give("resume", "--json").document
    again = many.give(*sample).document
    assert (begun["run"] == resumed["run"] == again["run"], many.calls) == (True, 3)
    assert resumed["population"]["planned"] == resumed["population"]["selected"] == 3
    other = many.give("run", "order.toml", "--sample", "3", "--seed", "2", "--json").document
    assert other["run"] != begun["run"]
    assert cases_of(many, begun["run"]) != cases_of(many, other["run"])


def test_a_choice_of_the_command_line_narrows_that_of_the_work_order(many: Project) -> None:
    text = many.order().read_text().replace('file = "cases.jsonl"', 'file = "cases.jsonl"\nwhere = { lang = "de" }')
    many.write("order.toml", text)
    both = ("--where", "level=1", "--where", "level=2")
    found = many.give("run", "order.toml", "--dry-run", "--json", *both).document
    assert (found["cases"], found["chosen"]["told"]) == (400, "where lang = de and level = 1 or 2")
    contradiction = many.give("run", "order.toml", "--dry-run", "--json", "--where", "lang=en").document
    assert "cases.where.lang: the work order asks for this key itself" in contradiction["what"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--where", "lang"), "'lang' is no --where"),
        (("--where", "lang=fr"), "cases.jsonl: none of 1,200 cases has lang = fr"),
        (("--where", "lnag=de"), 'cases.jsonl: no case has "lnag" in its metadata. Did you mean "lang"?'),
        (("--sample", "1201"), "cases.jsonl: a sample of 1,201 is asked for, and there are 1,200 cases"),
        (("--seed", "3"), "cases.seed: there is no sample that it could decide on"),
    ],
)
def test_a_choice_that_cannot_be_is_refused_before_anything_is_there(
    many: Project, arguments: tuple[str, ...], told: str
) -> None:
    done = many.give("run", "order.toml", *arguments)
    assert (done.status, many.calls, many.ledger_path.exists()) == (2, 0, False)
    assert told in done.err
    assert done.err.count("\n") == 1


def test_a_table_is_asked_and_kept_as_it_was_chosen(project: Project) -> None:
    project.write("cases.csv", "nr;frage;land\n1;Wie?;de\n2;How?;uk\n3;Wo?;de\n")
    text = (
        project.order()
        .read_text()
        .replace(
            'file = "cases.jsonl"',
            'file = "cases.csv"\ndelimiter = ";"\ncolumns = { id = "nr", input = "frage" }\nwhere = { land = "de" }',
        )
    )
    project.write("order.toml", text)
    done = project.give("run", "order.toml", "--json").document
    (project.folder / "cases.csv").unlink()
    shown = project.give("show", done["run"], "3", "--json").document
    assert (shown["input"], shown["metadata"], project.calls) == ("Wo?", {"land": "de"}, 2)
    with project.opened() as ledger, ledger.reading() as reader:
        kept = json.loads(reader.row("SELECT work_order FROM runs")[0])
    assert kept["cases"]["where"] == {"land": ["de"]}


def test_a_larger_sample_is_a_fork_that_reuses_all_of_the_smaller_one(many: Project) -> None:
    text = many.order().read_text()
    many.write("order.toml", text.replace('file = "cases.jsonl"', 'file = "cases.jsonl"\nsample = 3'))
    run = many.give("run", "order.toml", "--json").document["run"]
    many.write("order.toml", text.replace('file = "cases.jsonl"', 'file = "cases.jsonl"\nsample = 8'))
    found = many.give("fork", run, "order.toml", "--dry-run", "--json").document
    assert (found["planned"], found["reused"], found["to_pay"]) == (8, 3, 5)
