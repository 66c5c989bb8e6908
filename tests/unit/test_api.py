"""The Python API: what a script, a notebook and an embedding program see of it."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import tallystick as ts
from tallystick.ledger.states import SlotState


@ts.target(if_unknown="repeat", version="1")
async def echo(case: ts.Case, suffix: str = "") -> Any:
    if case.input == "fail":
        raise ts.Failed("it will not", reason="target.stubborn")
    return f"{case.input}{suffix}"


@ts.target(version="1")
def lost(case: ts.Case) -> Any:
    raise ts.OutcomeUnknown("sent, and nothing came back")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "evals.db"


def order(target: Any = echo, **options: Any) -> ts.WorkOrder:
    rows = [{"id": "a", "input": "x", "expected": "x"}, {"id": "b", "input": "fail"}]
    return ts.WorkOrder("api", cases=rows, target=target, judges=[ts.exact()], **options)


def test_every_public_name_is_there_and_documented() -> None:
    for name in ts.__all__:
        assert getattr(ts, name).__doc__, name


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import sys, tallystick; print([m for m in ('sqlalchemy', 'httpx', 'pydantic', 'rich') if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_a_run_tells_its_population_and_what_helps_next(path: Path) -> None:
    outcome = ts.run(order(), ledger=path)
    assert (outcome.planned, outcome.next, outcome.exit_status) == (2, ts.NextMove.DECIDE, ts.ExitStatus.DECIDE)
    with ts.open(path) as ledger:
        (score,) = ledger.scores(outcome.run_id)
        assert (score.passed, score.judged, score.planned) == (1, 1, 2)


def test_the_same_program_again_makes_no_call(path: Path) -> None:
    first = ts.run(order(), ledger=path)
    second = ts.run(order(), ledger=path)
    assert (second.run_id, second.dispatches, second.reused) == (first.run_id, 0, 1)


def test_it_runs_where_a_loop_is_running_already(path: Path) -> None:
    async def cell() -> ts.RunOutcome:
        return ts.run(order(), ledger=path)

    assert asyncio.run(cell()).planned == 2


def test_a_failed_case_can_be_let_wait_again_and_is_taken_up_by_the_next_run(path: Path) -> None:
    outcome = ts.run(order(), ledger=path)
    with ts.open(path) as ledger:
        assert ledger.retry(outcome.run_id, "failed", reason="target.stubborn") == 1
        with pytest.raises(ts.UsageError, match="reconcile"):
            ledger.retry(outcome.run_id, "unknown")
    assert ts.run(order(), ledger=path).dispatches == 1


def test_an_unknown_outcome_is_settled_by_whoever_says_why(path: Path) -> None:
    outcome = ts.run(order(lost), ledger=path)
    with ts.open(path) as ledger:
        first, second = ledger.unknown("api")
        assert ledger.give_up(first, reason="the log is gone", made_by="me") == "failed"
        assert ledger.not_landed(second, reason="not in the log", made_by="me") == "pending"
        page = ledger.case("api", first.case_id)[0]
        assert page.attempts[0].settlements[0][:3] == ("give_up", "me", "the log is gone")
        assert ledger.outcome(outcome.run_id).next is ts.NextMove.RESUME


def test_a_run_of_python_objects_is_resumed_with_the_same_objects(path: Path) -> None:
    first = ts.run(order(), ledger=path, limit=1)
    assert first.next is ts.NextMove.RESUME
    with pytest.raises(ts.WorkOrderInvalid, match="given from Python"):
        ts.resume(ledger=path)
    again = ts.resume(ledger=path, targets={"default": echo}, judges={"exact": ts.exact()})
    assert (again.run_id, again.reused + again.dispatches) == (first.run_id, 2)


def test_another_argument_is_another_identity(path: Path) -> None:
    ts.run(order(), ledger=path, limit=1)
    with pytest.raises(ts.IdentityChanged, match="suffix"):
        ts.run(order(echo.using(suffix="!")), ledger=path)


def test_as_a_library_it_says_nothing_and_takes_no_handler(path: Path) -> None:
    code = (
        "import json, logging, signal, sys, tallystick as ts\n"
        "before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]\n"
        "@ts.target(version='1')\n"
        "def one(case): return 1\n"
        "ts.run(ts.WorkOrder('quiet', cases=[{'id': 'a', 'input': 1}], target=one), ledger=sys.argv[1])\n"
        "after = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]\n"
        "json.dump([before == after, len(logging.getLogger().handlers), "
        "len(logging.getLogger('tallystick').handlers)], sys.stderr)\n"
    )
    told = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert told.stdout == ""
    assert json.loads(told.stderr) == [True, 0, 0]
    assert signal.getsignal(signal.SIGINT) is not None
    assert not logging.getLogger("tallystick").handlers


def test_a_ledger_that_is_not_there_is_not_made_by_looking(path: Path) -> None:
    with pytest.raises(ts.RefusedError, match="no ledger"), ts.open(path):
        pass
    assert not path.exists()


def test_the_end_of_a_session_waits_for_a_blocking_function_that_passed_its_deadline(path: Path) -> None:
    over = threading.Event()

    @ts.target(if_unknown="keep", version="1")
    def slow(case: ts.Case) -> Any:
        release.start()
        assert over.wait(30)
        return "late"

    rows = [{"id": "a", "input": "x"}]
    work = ts.WorkOrder("late", cases=rows, target=slow, deadline_seconds=0.2, grace_seconds=20)
    release = threading.Timer(0.6, over.set)
    outcome = ts.run(work, ledger=path)
    release.join()
    with ts.open(path) as ledger:
        (page,) = ledger.case(outcome.run_id, "a")
    assert [attempt.state for attempt in page.attempts] == ["late"]
    assert outcome.counts[SlotState.FAILED] == 1
    assert [attempt.answer for attempt in page.attempts] == ['"late"']


def test_the_end_of_a_session_waits_no_longer_for_a_late_function_that_raised(path: Path) -> None:
    over = threading.Event()

    @ts.target(if_unknown="keep", version="1")
    def slow(case: ts.Case) -> Any:
        release.start()
        assert over.wait(30)
        raise ValueError("late and wrong")

    work = ts.WorkOrder(
        "late", cases=[{"id": "a", "input": "x"}], target=slow,
        deadline_seconds=0.2, grace_seconds=3600,
    )  # fmt: skip
    release = threading.Timer(0.6, over.set)
    outcome = ts.run(work, ledger=path)  # for an hour, did nobody say that nothing will come
    release.join()
    assert (outcome.planned, outcome.next) == (1, ts.NextMove.DECIDE)


def test_the_end_of_a_session_waits_for_no_function_that_has_returned(path: Path) -> None:
    rows = [{"id": "a", "input": "x"}]
    outcome = ts.run(ts.WorkOrder("lost", cases=rows, target=lost, grace_seconds=3600), ledger=path)
    assert outcome.counts[SlotState.UNKNOWN] == 1  # after an hour, would it wait


def test_what_was_observed_is_judged_again_from_python(path: Path, tmp_path: Path) -> None:
    outcome = ts.run(order(), ledger=path)
    judges = ts.JudgeOrder("strict", judges=[ts.exact(), ts.similarity(at_least=0.5)])
    end = ts.evaluate(outcome.run_id, judges, ledger=path)
    assert [(line.judge, line.passed, line.judged) for line in end.judges] == [("exact", 1, 1), ("similarity", 1, 1)]
    assert ts.evaluate("api", judges, ledger=path) == end
    with pytest.raises(ts.UsageError, match="nothing to retry"):
        ts.evaluate("api", judges, ledger=path, new=True, retry=["timeout"])
    with pytest.raises(ts.UsageError, match="there is no reason bad"):
        ts.evaluate("api", judges, ledger=path, retry=["bad"])

    labelled = tmp_path / "labelled.jsonl"
    labelled.write_text('{"id": "a", "input": 1, "answer": "x", "expected": "x", "label": true}\n')
    assert [line.accuracy for line in ts.qualify(judges, labelled, ledger=path).judges] == [1.0, 1.0]
