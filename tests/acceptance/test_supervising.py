"""The supervisors of the documentation, tried: a loop of a shell through each of its branches, and a systemd unit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from .quick_shell import quick_environment
from .shown import ROOT, Block, blocks_of, run_shell

PAGE = ROOT / "docs" / "how-to" / "supervise-a-run.md"
STATUSES = ROOT / "docs" / "reference" / "exit-statuses.md"

# The first start is killed, the second stops before the end, the third gets there.
TALLYSTICK = """#!/bin/sh
echo start >> starts
case $(wc -l < starts) in
    *1) export TALLYSTICK_CRASHPOINT=dispatch.sent@3 ;;
    *2) set -- "$@" --limit 1 ;;
esac
exec {command} "$@" --concurrency 1
"""
SLEEP = "#!/bin/sh\necho $1 >> slept\n"


def block(language: str) -> Block:
    return next(one for one in blocks_of(PAGE) if one.language == language)


def test_the_loop_goes_on_after_a_death_and_a_limit_and_ends_where_somebody_has_to_decide(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    with quick_environment(tmp_path) as environment:
        assert run_shell("tallystick init nightly", cwd=tmp_path, environment=environment).returncode == 0
        before, folder = tmp_path / "before", tmp_path / "nightly"
        before.mkdir()
        for name, text in (("tallystick", TALLYSTICK), ("sleep", SLEEP), ("loop", block("sh").text)):
            (before / name).write_text(text.replace("{command}", str(tmp_path / "bin" / "tallystick")))
            (before / name).chmod(0o755)
        path = f"{before}{os.pathsep}{environment['PATH']}"
        done = run_shell([str(before / "loop")], cwd=folder, environment={**environment, "PATH": path})
    assert (folder / "slept").read_text().split() == ["5", "60"]
    assert done.returncode == 3, "a lost answer is kept, and somebody decides"
    assert "6 planned = 5 selected + 1 unknown" in done.stdout


def test_the_unit_restarts_after_the_one_status_that_resuming_helps_and_after_no_other() -> None:
    statuses = {int(found) for found in re.findall(r"^\| (\d+) \|", STATUSES.read_text(), re.MULTILINE)}
    (kept,) = re.findall(r"^RestartPreventExitStatus=(.*)$", block("ini").text, re.MULTILINE)
    assert statuses - {int(word) for word in kept.split()} == {0, 75, 141}  # a unit's output is not piped


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here to read a unit")
def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "nightly.service"
    text = block("ini").text.replace("/srv/evaluation/.venv/bin/tallystick", shutil.which("true") or "true")
    unit.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "nightly.service" in line]) == (0, [])
