"""Signals and ``cancel`` while a run is executed, in processes of their own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys

import pytest

from tests.unit.cli.project import Project

HOLDING = """
import os
from pathlib import Path

HERE = Path(__file__).parent


def answer(case):
    with (HERE / "begun").open("w") as begun:
        begun.write("x")
    with (HERE / "gate").open() as gate:
        gate.read()
    return case.input
"""
WEDGED = """
import asyncio
from pathlib import Path

HERE = Path(__file__).parent


async def answer(case):
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""


REFUSING = """
from pathlib import Path

import tallystick as ts

HERE = Path(__file__).parent


def answer(case):
    if (HERE / "begun").exists():
        with (HERE / "begun").open("w") as begun:
            begun.write("x")
    raise ts.Refused("too many", retry_after_seconds=SECONDS)
"""


class Holding:
    """A run whose target stands at a gate."""

    def __init__(self, project: Project, *options: str, execution: str = "grace_seconds = 0.2") -> None:
        self.project = project
        project.write("target.py", HOLDING)
        project.order(execution=execution)
        for name in ("begun", "gate"):
            os.mkfifo(project.folder / name)
        self.process = project.started("run", "order.toml", *options)
        # Opening waits for the other side: the target is being asked now.
        with (project.folder / "begun").open() as begun:
            assert begun.read() == "x"

    def open_gate(self) -> None:
        with (self.project.folder / "gate").open("w"):
            pass

    def ended(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


def _said(process: subprocess.Popen[str], words: str) -> None:
    """Until the process has said that on standard error."""
    assert process.stderr is not None
    said = ""
    while words not in said:
        ready, _, _ = select.select([process.stderr], [], [], 60)
        assert ready, said
        more = os.read(process.stderr.fileno(), 4096).decode()
        assert more, said
        said += more


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_gives_grace_and_ends_with_130_and_the_command_that_goes_on(
    project: Project, number: signal.Signals
) -> None:
    held = Holding(project)
    held.process.send_signal(number)
    status, out, _ = held.ended()
    assert status == 130
    assert "1 unknown" in out
    assert "tallystick resume" in out
    found = project.give("status", "--json").document
    assert (found["executing"], found["population"]["pending"]) == (None, 2)


def test_what_ends_within_the_grace_time_is_kept(project: Project) -> None:
    held = Holding(project, execution="grace_seconds = 60")
    held.process.send_signal(signal.SIGINT)
    _said(held.process, "1 in flight, given 1 min 0 s to end")
    held.open_gate()
    status, out, _ = held.ended()
    assert status == 130
    assert "3 planned = 1 selected + 2 pending" in out


def test_second_signal_leaves_at_once_and_resume_finds_what_was_in_flight(project: Project) -> None:
    held = Holding(project, execution="grace_seconds = 600")
    held.process.send_signal(signal.SIGINT)
    _said(held.process, "Ctrl-C again leaves at once")
    held.process.send_signal(signal.SIGINT)
    status, _, err = held.ended()
    assert status == 130
    assert "left at once. Go on with: tallystick resume" in err
    check = project.give("resume", "--check", "--json").document
    assert [one["becomes"] for one in check["in_flight"]] == ["unknown"]


def test_a_second_signal_when_the_first_has_ended_the_session_ends_with_the_same_status() -> None:
    code = (
        "import signal; from tallystick.cli.interrupts import Interrupts; "
        "from tallystick.runner.stopping import StopSwitch\n"
        "with Interrupts(StopSwitch(), last_words='Go on with: it'): signal.raise_signal(signal.SIGINT)\n"
        "signal.raise_signal(signal.SIGINT)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, "tallystick: left at once. Go on with: it")


def test_cancel_from_another_process_stops_as_a_first_signal_does(project: Project) -> None:
    held = Holding(project)
    asked = project.give("cancel", "asked", "--reason", "too dear", "--json").document
    assert asked["asked"]["pid"] == held.process.pid
    status, out, _ = held.ended()
    assert status == 130
    assert "too dear" in out
    assert "tallystick resume" in out


def test_a_run_that_is_executed_is_refused_to_others(project: Project) -> None:
    held = Holding(project)
    try:
        for command in (("run", "order.toml"), ("resume",), ("resume", "--check"),
                        ("cancel", "asked", "--abandon", "--reason", "x")):  # fmt: skip
            done = project.give(*command)
            assert done.status == 4, command
            assert done.err.startswith("tallystick: run.busy: ")
            assert str(held.process.pid) in done.err
        assert project.give("status", "--json").document["executing"]["alive"] is True
        assert f"process {held.process.pid}" in project.give("status").out
    finally:
        held.process.kill()
        held.ended()


def test_in_json_a_stopped_run_still_ends_with_one_document(project: Project) -> None:
    held = Holding(project, "--json")
    held.process.send_signal(signal.SIGINT)
    status, out, err = held.ended()
    found = json.loads(out)
    assert status == found["exit_status"] == 130
    assert (found["session"]["stopped"], found["next"], err) == ("interrupted", "resume", "")


def test_tasks_that_swallow_every_cancellation_do_not_keep_the_process(project: Project) -> None:
    project.write("target.py", WEDGED)
    project.order(execution="deadline_seconds = 0.2\ngrace_seconds = 0.2")
    done = project.finished("run", "order.toml", "--limit", 1)
    assert done.status == 75
    assert "1 unknown" in done.out
    assert [line for line in done.err.splitlines() if "of 3 done" not in line] == [], "nothing but how far it is"


def test_a_signal_wakes_a_run_that_only_waits(project: Project) -> None:
    project.write("target.py", REFUSING.replace("SECONDS", "200"))
    project.order(execution="dispatches_max = 1")
    os.mkfifo(project.folder / "begun")
    process = project.started("run", "order.toml")
    with (project.folder / "begun").open() as begun:
        assert begun.read() == "x"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "3 planned = 0 selected + 3 pending" in out


def test_a_run_that_would_wait_too_long_ends_with_75_and_says_until_when(project: Project) -> None:
    project.write("target.py", REFUSING.replace("SECONDS", "100000"))
    project.write("cases.jsonl", {"id": "c1", "input": 1})
    done = project.finished("run", "order.toml", "--json")
    assert (done.status, done.document["next"]) == (75, "resume")
    assert done.document["not_before"].endswith("Z")
    assert f"(not before {done.document['not_before']})" in project.give("status").out
