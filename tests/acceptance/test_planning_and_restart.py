"""E01, E02, E06: what is planned is durable, what is answered is never asked again, and each question is its own."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from .harness import Site
from .invariants import check_invariants, rows
from .orders import case, http_order, python_target, work_order

ANSWERS = (
    "SELECT c.case_id, o.answer, o.answer_digest, o.call_id, o.evidence, o.observed_us FROM observations o"
    " JOIN slots s ON s.run_key = o.run_key AND s.slot_no = o.slot_no AND s.selected_attempt = o.attempt_no"
    " JOIN cases c ON c.run_key = s.run_key AND c.case_no = s.case_no ORDER BY o.slot_no"
)


@pytest.mark.parametrize("point", ["run.planned", "run.opened"])
def test_e01_plan_and_configuration_outlive_a_death_before_the_first_dispatch(site: Site, point: str) -> None:
    cases = [{"id": name, "input": name} for name in "abc"]
    order = work_order(python_target(site.folder), cases, repetitions=2, judges=[], budgets={"dispatches": 6})
    site.order(order)

    site.run(crashpoint=point).died_at_its_point()

    assert site.requests() == []
    assert site.counts() == {"pending": 6}
    ((state, planned, document, identity),) = rows(site.ledger, "SELECT state, planned, work_order, identity FROM runs")
    assert (state, planned) == ("open", 6)
    assert json.loads(document)["target" if "target" in json.loads(document) else "variants"]
    assert json.loads(identity)["identity"]["repetitions"] == 2
    assert [budget.plan.limit_amount for budget in site.budgets()] == [6]
    check_invariants(site.ledger, site.requests(), at_rest=point == "run.planned")

    # What it resumes from is the ledger, and the target's own file; the work order's file may be gone.
    site.order_file.unlink()
    assert site.resume().ended() == 0
    assert site.counts() == {"selected": 6}
    assert len(site.requests()) == 6
    check_invariants(site.ledger, site.requests())


def test_e01_same_work_order_again_goes_on_with_the_planned_run(site: Site) -> None:
    site.order(http_order(site.service, [case("a"), case("b")]))
    site.run(crashpoint="run.planned").died_at_its_point()
    assert site.run().ended() == 0
    with site.opened() as ledger:
        assert [run.planned for run in ledger.runs()] == [2]
    assert site.service.received() == 2
    check_invariants(site.ledger, site.requests())


def test_e02_committed_answer_is_reused_and_the_interrupted_case_is_tried_again(site: Site) -> None:
    waiting: dict[str, Any] = {"sequence": [{"wait": "never"}, {}]}
    order = http_order(site.service, [case("a"), case("b", **waiting), case("c")], if_unknown="repeat")
    site.order(order)
    first = site.run()
    site.wait_for("never")
    first.dies()
    committed = rows(site.ledger, ANSWERS)
    assert [row[0] for row in committed] == ["a"]

    assert site.resume().ended() == 0

    assert rows(site.ledger, ANSWERS)[:1] == committed, "the committed answer is the same, byte for byte"
    assert site.counts() == {"selected": 3}
    attempts = [(attempt.attempt_no, attempt.state, attempt.reason) for attempt in site.only("b").attempts]
    assert attempts[0] == (1, "unknown", "coordinator.died")
    assert attempts[1][:2] == (2, "observed")
    assert len({attempt.worker_id for attempt in site.only("b").attempts}) == 2
    asked = [attempt.dispatches[0].call_id for name in "abc" for attempt in site.only(name).attempts]
    assert site.seen() == dict.fromkeys(asked, 1)
    assert len(asked) == 4
    check_invariants(site.ledger, site.requests())


def test_e02_a_finished_run_makes_no_call(site: Site) -> None:
    site.order(http_order(site.service, [case("a"), case("b")]))
    assert site.run().ended() == 0
    before = rows(site.ledger, ANSWERS), rows(site.ledger, "SELECT count(*) FROM dispatches")
    assert site.run().ended() == 0
    assert (rows(site.ledger, ANSWERS), rows(site.ledger, "SELECT count(*) FROM dispatches")) == before
    assert site.service.received() == 2


@pytest.mark.parametrize("point", ["dispatch.sent", "dispatch.outcome.committed", "dispatch.intent.committed"])
def test_e06_same_question_in_repetitions_and_cases_is_asked_each_time(site: Site, point: str) -> None:
    same = [case("a", text="what?"), case("b", text="what?")]
    site.order(http_order(site.service, same, repetitions=2, if_unknown="repeat"))
    site.run(crashpoint=f"{point}@2").died_at_its_point()

    assert site.resume().ended() == 0

    found = rows(
        site.ledger,
        "SELECT s.case_no, s.repetition, o.call_id, c.payload_digest FROM slots s JOIN observations o"
        " ON o.run_key = s.run_key AND o.slot_no = s.slot_no AND o.attempt_no = s.selected_attempt"
        " JOIN calls c ON c.call_id = o.call_id ORDER BY s.slot_no",
    )
    assert {row[:2] for row in found} == {(1, 1), (2, 1), (1, 2), (2, 2)}
    assert len({row[2] for row in found}) == 4, "four observations of four requests"
    assert len({row[3] for row in found}) == 1, "of the same bytes"
    assert {row[2] for row in found} <= set(site.seen())
    check_invariants(site.ledger, site.requests())


def test_c45_repetitions_are_rows_of_their_own_also_where_two_answers_are_equal(site: Site) -> None:
    answers: dict[str, Any] = {"sequence": [{"answer": "X"}, {"answer": "X"}, {"answer": "Y"}]}
    site.order(http_order(site.service, [case("a", "X", **answers)], repetitions=3))
    site.run(crashpoint="dispatch.outcome.committed@2").died_at_its_point()
    assert site.resume().ended() == 0
    found = [(slot.repetition, slot.attempts[-1].answer) for slot in site.case("a")]
    assert found == [(1, '"X"'), (2, '"X"'), (3, '"Y"')]
    assert [judgment.passed for slot in site.case("a") for judgment in slot.judgments] == [1, 1, 0]
    assert site.service.received() == 3
    check_invariants(site.ledger, site.requests())


def test_e06_answer_left_over_from_another_call_is_never_taken(site: Site) -> None:
    """A program dies with its answer written where the next one runs; the next call's answer is its own."""
    program = site.folder / "program.py"
    program.write_text(
        "import json, os, pathlib, sys\n"
        "asked = json.load(sys.stdin)\n"
        "left = pathlib.Path('answer.json')\n"
        "print(json.dumps({'answer': asked['input'], 'id': os.environ['TALLYSTICK_REQUEST_ID']}), flush=True)\n"
        "left.write_text(json.dumps({'answer': 'old'}))\n"
    )
    target = {"kind": "process", "argv": [sys.executable, "program.py"], "answer": "$", "if_unknown": "repeat"}
    cases = [{"id": name, "input": "the same"} for name in "ab"]
    site.order(work_order(target, cases, repetitions=2, judges=[]))
    site.run(crashpoint="dispatch.sent@2").died_at_its_point()
    assert (site.folder / "answer.json").exists()
    assert site.resume().ended() == 0
    newest = [slot.attempts[-1] for name in "ab" for slot in site.case(name)]
    answers = [json.loads(attempt.answer) for attempt in newest]
    calls = [attempt.dispatches[0].call_id for attempt in newest]
    assert [answer["answer"] for answer in answers] == ["the same"] * 4
    assert [answer["id"] for answer in answers] == calls, "each is the answer to its own request"
    assert len(set(calls)) == 4
    check_invariants(site.ledger, None)
