"""``tallystick fork`` as it is given on a command line."""

from __future__ import annotations

import json

import pytest

from tests.unit.cli.project import Project, commands_in


def changed(project: Project) -> None:
    project.write("cases.jsonl", *({"id": f"c{n}", "input": n, "expected": n} for n in range(2, 6)))


def test_what_is_reused_and_what_will_be_paid_is_said_first_and_nothing_is_done_without_a_word(
    project: Project,
) -> None:
    project.give("run", "order.toml")
    changed(project)
    asked = project.give("fork", "asked", "order.toml")
    assert asked.status == 2
    assert "add --yes" in asked.err.lower()
    assert "2 the same · 2 new or changed · 1 of the earlier run left out" in asked.out
    assert "4 planned: 2 reused · 2 to pay" in asked.out
    assert "to pay are 2 if nothing is sent twice" in asked.out
    assert len(project.give("runs", "--json").document["runs"]) == 1
    looked = project.give("fork", "asked", "order.toml", "--dry-run", "--json")
    assert (looked.status, looked.document["run"], looked.document["to_pay"]) == (0, None, 2)
    assert len(project.give("runs", "--json").document["runs"]) == 1


def test_a_fork_is_made_and_gone_on_with_by_its_work_order(project: Project) -> None:
    project.give("run", "order.toml")
    changed(project)
    made = project.give("fork", "asked", "order.toml", "--yes", "--json").document
    assert project.calls == 3
    assert made["command"].startswith(f"tallystick resume {made['run']} --ledger ")
    assert project.give("run", "order.toml").status == 0
    assert project.calls == 5
    totals = project.give("status", made["run"], "--json").document["totals"]
    assert (totals["attempts"], totals["calls"], totals["wasted_dispatches"]) == (2, 2, 0)
    shown = project.give("status", made["run"])
    assert f"of run {made['forked_from']} at event" in shown.out
    assert "2 reused from it" in shown.out
    assert (
        f"taken over from run {made['forked_from']}, slot 2, attempt 1" in project.give("show", made["run"], "c2").out
    )


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_changed_work_order_names_the_fork_that_asks_for_the_same_cases_in_the_same_ledger(
    project: Project, is_finished: bool
) -> None:
    rows = ({"id": f"c{n}", "input": n, "metadata": {"lang": ["de", "fr"][n % 2]}} for n in range(6))
    project.write("cases.jsonl", *rows)
    order = project.order(name="two words").rename(project.folder / "an order.toml")
    choice = ("--where", "lang=de", "--sample", "2", "--seed", "5")
    project.give("run", order, *choice, *([] if is_finished else ["--limit", 1]))
    target = project.folder / "target.py"
    target.write_text(target.read_text().replace("return case.input", "return  case.input"))
    told = project.give("run", order, *choice, "--dry-run")
    assert told.status == (0 if is_finished else 4)
    commands = commands_in(told.out if is_finished else told.err)
    (fork,) = (one for one in commands if " fork " in one)
    new = [one for one in commands if " run " in one]
    assert [project.paste(one, "--dry-run").status for one in new] == ([] if is_finished else [0])
    assert project.paste(fork, "--yes", "--json").document["planned"] == 2
    assert project.give("fork", "two words", "--sample", 1).status == 2


def test_a_refused_resume_and_a_new_run_both_name_fork(project: Project) -> None:
    project.give("run", "order.toml", "--limit", 1)
    run = project.give("status", "--json").document["run"]
    target = project.folder / "target.py"
    target.write_text(target.read_text().replace("return case.input", "return  case.input"))
    refused = project.give("resume", "asked")
    assert refused.status == 4
    assert f"`tallystick fork {run} --ledger " in refused.err
    fork = project.paste(commands_in(refused.err)[0], "--yes", "--json").document
    assert (fork["reused"], fork["to_pay"]) == (0, 3)
    assert "target.module_digest" in json.dumps(fork["variants"][0]["changes"])


def test_an_unknown_outcome_of_a_fork_names_the_request_under_which_it_was_sent(project: Project) -> None:
    call = project.with_an_unknown()
    fork = project.give("fork", "asked", "--yes", "--json").document
    listed = project.give("reconcile", fork["run"])
    assert f"request {call} in run {fork['forked_from']}" in listed.out
    assert "nothing here; what it holds is held there" in listed.out
    settled = project.give("reconcile", fork["run"], "--not-landed", "--reason", "its log has it not", "--yes")
    assert settled.status == 0
    assert project.give("status", fork["forked_from"], "--json").document["unknown"]["count"] == 1
    assert project.give("resume", fork["run"]).status == 0
    totals = project.give("status", fork["run"], "--json").document["totals"]
    assert (totals["attempts"], totals["dispatches_by_state"]) == (1, {"answered": 1}), (
        "the lost one was sent elsewhere"
    )
    assert project.give("ledger", "check").status == 0
