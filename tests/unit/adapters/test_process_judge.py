"""A program as a judge."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tallystick.adapters.process_judge import ProcessJudge, from_work_order, process_judge
from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.ledger.states import DispatchState
from tallystick.runner.judge_protocols import CallingJudge
from tallystick.runner.protocols import NoVerdict, Observed, Outcome, Verdict

from .makers import make_case, make_dispatching


def write(folder: Path, text: str) -> None:
    (folder / "judge.py").write_text(text, encoding="utf-8")


def make(folder: Path, text: str, **options: Any) -> ProcessJudge:
    write(folder, text)
    return process_judge([sys.executable, "judge.py"], folder=folder, **options)


def asked(judge: ProcessJudge, *, deadline_seconds: float = 30.0, answer: Any = "a") -> tuple[Outcome, Any]:
    async def dispatched() -> Outcome:
        await judge.open()
        try:
            seen = Observed(make_case("asked", expected="e"), "default", 1, answer, {"context": "c"}, ("truncated",))
            return await judge.dispatch(judge.prepare(seen), make_dispatching(deadline_seconds=deadline_seconds))
        finally:
            await judge.close()

    outcome = asyncio.run(dispatched())
    if outcome.state is not DispatchState.ANSWERED:
        return outcome, judge.failed(outcome)
    reply = judge.reply_of(outcome)
    return outcome, judge.read(reply) if isinstance(reply, str) else reply


def test_it_reads_json_and_answers_json(tmp_path: Path) -> None:
    judge = make(
        tmp_path,
        "import json, sys\n"
        "seen = json.load(sys.stdin)\n"
        "assert list(sorted(seen)) == ['answer', 'evidence', 'expected', 'flags', 'input', 'metadata'], seen\n"
        "passed = seen['answer'] == seen['expected']\n"
        "print(json.dumps({'passed': passed, 'explanation': seen['evidence']['context']}))\n",
    )
    assert isinstance(judge, CallingJudge)
    assert asked(judge)[1] == Verdict(passed=False, explanation="c")
    assert asked(judge, answer="e")[1] == Verdict(passed=True, explanation="c")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print('passed')", "malformed_verdict"),
        ('print(\'{"passed": true}\\n{"passed": true}\')', "ambiguous_verdict"),
        ("pass", "malformed_verdict"),
        ('print(\'{"no_verdict": "too_short"}\')', "too_short"),
        ("raise SystemExit(3)", "judge_error"),
        ("import os; os.kill(os.getpid(), 9)", "judge_error"),
        ("print('x' * 10_000_000)", "judge_error"),
    ],
)
def test_what_it_does_wrong_is_a_reason(tmp_path: Path, program: str, reason: str) -> None:
    said = asked(make(tmp_path, program))[1]
    assert isinstance(said, NoVerdict)
    assert said.reason == reason


def test_e10_it_is_ended_as_a_whole_at_its_deadline_and_its_outcome_is_unknown(tmp_path: Path) -> None:
    judge = make(tmp_path, "import signal, subprocess\nsubprocess.Popen(['sleep', '600'])\nsignal.pause()\n")
    outcome, _ = asked(judge, deadline_seconds=0.3)
    assert (outcome.state, outcome.reason) == (DispatchState.UNKNOWN, "deadline")


def test_a_program_that_is_not_there_is_told_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no-such-program"):
        process_judge(["no-such-program"], folder=tmp_path).check()


def test_c44_its_files_and_its_arguments_are_its_identity(tmp_path: Path) -> None:
    one = make(tmp_path, "print(1)").identity()
    assert make(tmp_path, "print(1)").identity() == one
    assert make(tmp_path, "print(2)").identity() != one
    write(tmp_path, "print(1)")
    assert process_judge([sys.executable, "judge.py", "--strict"], folder=tmp_path).identity() != one
    assert process_judge([sys.executable, "judge.py"], folder=tmp_path, pass_at=0.5, scale=(0, 1)).identity() != one
    declared = process_judge([sys.executable, "judge.py"], folder=tmp_path, version="1").identity()
    write(tmp_path, "print(3)")
    assert process_judge([sys.executable, "judge.py"], folder=tmp_path, version="1").identity() == declared


def test_arguments_are_what_they_are_and_no_templates(tmp_path: Path) -> None:
    write(tmp_path, "import json, sys\nprint(json.dumps({'passed': sys.argv[1] == '{{input}}'}))\n")
    judge = process_judge([sys.executable, "judge.py", "{{input}}"], folder=tmp_path)
    assert asked(judge)[1] == Verdict(passed=True)


def test_a_table_without_a_program_is_refused() -> None:
    with pytest.raises(WorkOrderInvalid, match="argv"):
        from_work_order({"argv": []}, folder=Path(), place="judges[0]")
