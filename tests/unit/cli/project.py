"""A folder with a work order, a target and a ledger, and the commands given in it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from tallystick.cli import invoke
from tallystick.ledger.ledger import Ledger

ROOT = Path(__file__).resolve().parents[3]

TARGET = """
import os
from pathlib import Path

HERE = Path(__file__).parent


def answer(case):
    with (HERE / "calls").open("a") as calls:
        calls.write("x")
    if (HERE / "fail").exists():
        raise ValueError("it does not know")
    if (HERE / "die").exists():
        os.kill(os.getpid(), 9)
    return case.input
"""

ORDER = """
version = 1
name = "{name}"

[cases]
file = "cases.jsonl"

[target]
kind = "python"
file = "target.py"
function = "answer"
{target}
[[judges]]
kind = "exact"

[budgets]
{budgets}

[execution]
concurrency = 1
{execution}
"""


def commands_in(text: str) -> list[str]:
    """The commands of ours that a text tells, in its order."""
    return re.findall(r"`(tallystick [^`]*)`", text)


@attrs.frozen
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


class Project:
    """The ledger of the commands is ``ledger.db`` in the folder."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capture = capture
        self.ledger_path = folder / "ledger.db"
        self.write("target.py", TARGET)
        self.write("cases.jsonl", *({"id": f"c{n}", "input": n, "expected": n} for n in range(1, 4)))
        self.order()

    def write(self, name: str, *rows: str | dict[str, Any]) -> Path:
        path = self.folder / name
        texts = (row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
        path.write_text("".join(texts), encoding="utf-8")
        return path

    def order(
        self, *, name: str = "asked", target: str = "", budgets: str = "dispatches = 10", execution: str = ""
    ) -> Path:
        return self.write("order.toml", ORDER.format(name=name, target=target, budgets=budgets, execution=execution))

    def touch(self, name: str) -> Path:
        return self.write(name, "")

    @property
    def calls(self) -> int:
        """How often the target was called, as it says itself."""
        path = self.folder / "calls"
        return len(path.read_text()) if path.exists() else 0

    def give(self, *arguments: object) -> Done:
        """Give a command in this process."""
        self.capture.readouterr()
        status = invoke([*map(str, arguments), "--ledger", str(self.ledger_path)])
        found = self.capture.readouterr()
        return Done(status, found.out, found.err)

    def paste(self, command: str, *more: str) -> Done:
        """Give a command that was told, as it was told."""
        first, *words = shlex.split(command)
        assert first == "tallystick"
        self.capture.readouterr()
        status = invoke([*words, *more])
        found = self.capture.readouterr()
        return Done(status, found.out, found.err)

    def started(self, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        """Give a command in a process of its own."""
        command = [sys.executable, "-m", "tallystick", *map(str, arguments), "--ledger", str(self.ledger_path)]
        known = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        return subprocess.Popen(
            command, cwd=self.folder, env=known, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def finished(self, *arguments: object, **environment: str) -> Done:
        process = self.started(*arguments, **environment)
        try:
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
        return Done(process.returncode, out, err)

    def killed_in_flight(self) -> None:
        """A run whose coordinator was killed while its first case was being asked."""
        die = self.touch("die")
        assert self.finished("run", "order.toml").status == -signal.SIGKILL
        die.unlink()

    def with_an_unknown(self) -> str:
        """The same, resumed to the end: one outcome is unknown. Its call's id."""
        self.killed_in_flight()
        assert self.give("resume").status == 3
        call: str = self.give("reconcile", "asked", "--json").document["unknown"][0]["call"]
        return call

    def opened(self) -> Ledger:
        return Ledger.open(self.ledger_path)

    def bytes_of_ledger(self) -> dict[str, bytes]:
        """The ledger's file and everything beside it, without what SQLite keeps for readers."""
        found = [path for path in self.folder.rglob("ledger.db*") if path.is_file()]
        side = self.folder / "ledger.db.d"
        found += [path for path in side.rglob("*") if path.is_file()] if side.exists() else []
        return {str(path): path.read_bytes() for path in found if not path.name.endswith("-shm")}
