"""Help is quick because nothing is loaded for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tallystick.cli import invoke
from tests.unit.cli.project import ROOT

HEAVY = ("sqlalchemy", "alembic", "pydantic", "httpx", "rich", "psutil", "asyncio", "sqlite3", "pysqlite3")


def _loaded(*arguments: str) -> set[str]:
    program = f"""
import sys
from tallystick.cli import invoke
invoke({list(arguments)!r})
print(*sorted({{name.partition(".")[0] for name in sys.modules}}), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help"), ("reconcile", "-h"), ("--version",), ()])
def test_help_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    loaded = _loaded(*arguments)
    assert "click" in loaded
    assert sorted(loaded & set(HEAVY)) == []


def test_a_command_loads_what_it_needs() -> None:
    assert "pydantic" in _loaded("runs", "--ledger", "/nowhere/at/all.db")


def test_no_command_is_summed_up_by_half_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--help"]) == 0
    assert "..." not in capsys.readouterr().out.partition("Commands:")[2]
