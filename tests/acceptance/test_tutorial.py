"""What a newcomer types: each command of the pages in its order, kills too, and what they say that one sees is seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .quick_shell import quick_environment
from .shown import ROOT, Block, assert_seen, blocks_of, run_shell
from .test_first_project import stand_in

TUTORIAL = ROOT / "docs" / "tutorial.md"
QUESTIONS = ROOT / "docs" / "how-to" / "unknowns-and-budgets.md"


def typed(folder: Path, command: str, environment: dict[str, str]) -> str:
    done = run_shell(command, cwd=folder, environment=environment)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def follow(folder: Path, blocks: Sequence[Block], environment: dict[str, str]) -> int:
    """Type every block of a shell, and compare every text with what was printed before it; how many were compared."""
    seen, compared = "", 0
    for block in blocks:
        if block.language == "sh":
            seen = typed(folder, block.text, environment)
        elif block.language == "text":
            assert_seen(block.text, seen)
            compared += 1
    return compared


def test_tutorial_does_what_it_says(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()  # the ledger's default place is beside the nearest project upwards
    install, begin, shown, serve, *rest = blocks_of(TUTORIAL)
    assert "pip install ." in install.text, "it is installed from a clone, as these tests have it installed"
    assert serve.text == "python3 server.py"
    with quick_environment(tmp_path) as environment:
        assert_seen(shown.text, typed(tmp_path, begin.text, environment))
        with stand_in(tmp_path / "support"):  # in the other terminal
            assert follow(tmp_path / "support", rest, environment) == 10


def test_questions_about_unknowns_and_budgets_are_answered_as_they_say(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    begin, *rest = blocks_of(QUESTIONS)
    with quick_environment(tmp_path) as environment:
        typed(tmp_path, begin.text, environment)
        assert follow(tmp_path / "triage", rest, environment) == 7
