"""What the README tells a reader to do is done here in its order, and what it says that they see is seen."""

from __future__ import annotations

import sys
from pathlib import Path

from .shown import ROOT, assert_seen, blocks_of, environment_of, run_shell

README = ROOT / "README.md"
DEMO = ROOT / "examples" / "language-id" / "demo.py"


def test_readme_opens_with_the_two_commands() -> None:
    first = blocks_of(README)[0]
    assert [line.split("#")[0].strip() for line in first.text.splitlines()] == ["make demo", "make test"]


def test_demo_prints_what_the_readme_shows(tmp_path: Path) -> None:
    shown = next(block for block in blocks_of(README) if block.language == "text")
    done = run_shell([sys.executable, str(DEMO)], cwd=tmp_path, environment=environment_of(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert_seen(shown.text, done.stdout, numbers_vary=True)


def test_walk_through_does_what_it_says(tmp_path: Path) -> None:
    folder, environment = tmp_path / "walk-through", environment_of(tmp_path)
    folder.mkdir()
    (folder / ".git").mkdir()  # a project of its own: the ledger's default place is beside the nearest one upwards
    seen, ran = "", 0
    for block in blocks_of(README):
        if block.file is not None:
            (folder / block.file).write_text(block.text + "\n", encoding="utf-8")
        elif block.is_make:
            seen = ""
        elif block.language == "sh":
            done = run_shell(block.text, cwd=folder, environment=environment)
            seen, ran = done.stdout + done.stderr, ran + 1
            assert "Traceback" not in seen, seen
        elif block.language == "text" and seen:
            assert_seen(block.text, seen)
            seen = ""
    assert ran >= 6
