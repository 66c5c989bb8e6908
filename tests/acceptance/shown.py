"""Reading what a document shows, and comparing it with what is printed, whatever differs from run to run aside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

__all__ = ["ROOT", "Block", "assert_seen", "blocks_of", "environment_of", "run_shell"]

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"(?P<before>[^\n]*)\n+```(?P<language>\w+)\n(?P<text>.*?)\n```", re.DOTALL)
_FILE_NAME = re.compile(r"`(?P<name>[\w.-]+)`:$")
_VARYING = (
    (re.compile(r"\b[0-9a-hjkmnp-tv-z]{26}\b"), "ID"),
    (re.compile(r"sha256:[0-9a-f]+"), "DIGEST"),
    (re.compile(r"\d{4}-\d{2}-\d{2}T[\d:.]+Z"), "INSTANT"),
    (re.compile(r"(?<![\w.])/[\w./-]+"), "PATH"),
    (re.compile(r"\bprocess \d+"), "process PID"),
    (re.compile(r"\boperator:[^\s:]+"), "operator:NAME"),
    (re.compile(r"\d+\.\d{3} s\b"), "SECONDS"),
    (re.compile(r" +"), " "),
)
_NUMBER = re.compile(r"\d+(\.\d+)?")


@attrs.frozen
class Block:
    """A fenced block; ``file`` is the name that the line before it gives it."""

    language: str
    text: str
    file: str | None

    @property
    def is_make(self) -> bool:
        return self.language == "sh" and self.text.startswith("make ")


def blocks_of(path: Path) -> list[Block]:
    found = []
    for match in _FENCE.finditer(path.read_text(encoding="utf-8")):
        named = _FILE_NAME.search(match["before"].strip())
        found.append(Block(match["language"], match["text"], named["name"] if named else None))
    return found


def assert_seen(promised: str, seen: str, *, numbers_vary: bool = False) -> None:
    """Every promised line is printed; a line that is ``…`` stands for lines left out."""
    lines = _comparable(seen, numbers_vary=numbers_vary)
    missing = [line for line in _comparable(promised, numbers_vary=numbers_vary) if line != "…" and line not in lines]
    assert not missing, f"these lines are shown and not printed: {missing}\n\nprinted:\n{seen}"


def environment_of(folder: Path) -> dict[str, str]:
    """A shell's environment in which `tallystick` and `python` are this interpreter's."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, command in (("tallystick", "-m tallystick"), ("python", "")):
        script = programs / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        script.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TALLYSTICK_")}
    return {**kept, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "TERM": "dumb"}


def run_shell(
    command: str | Sequence[str], *, cwd: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
    return subprocess.run(argv, cwd=cwd, env=dict(environment), capture_output=True, text=True, timeout=240)


def _comparable(text: str, *, numbers_vary: bool) -> list[str]:
    for pattern, placeholder in _VARYING:
        text = pattern.sub(placeholder, text)
    if numbers_vary:
        text = _NUMBER.sub("N", text)
    return [line.strip() for line in text.splitlines() if line.strip()]
