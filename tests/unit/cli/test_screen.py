"""Where text goes, and what can never get there."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tallystick.cli.screen import PlainScreen, RichScreen, Screen, Tone, is_terminal, safe, screen_for

EVIL = "[red]x[/red] \x1b[31m \u202e \x07 a\nb\tc"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _rich(stream: io.StringIO) -> RichScreen:
    return RichScreen(Console(file=stream, force_terminal=True, color_system="standard", markup=False, width=100))


def _everything(screen: Screen) -> None:
    screen.line(EVIL, tone=Tone.BAD)
    screen.pairs([("label", EVIL)])
    screen.table(["name", ">number"], [(EVIL, 1)], title=EVIL)


def test_nothing_dangerous_passes_a_plain_screen() -> None:
    stream = io.StringIO()
    _everything(PlainScreen(stream))
    shown = stream.getvalue()
    assert not {"\x1b", "\u202e", "\x07"} & set(shown)
    assert shown.count("[red]x[/red] \\x1b[31m \\u202e \\x07 a\\nb\\tc") == 4


def test_nothing_of_the_data_is_obeyed_by_a_terminal() -> None:
    stream = io.StringIO()
    _everything(_rich(stream))
    shown = stream.getvalue()
    assert "\u202e" not in shown
    assert "\x1b[31m \\u202e" not in shown
    assert shown.count("[red]x[/red] \\x1b[31m \\u202e") == 4


def test_a_terminal_has_colours_and_a_pipe_has_none() -> None:
    stream = io.StringIO()
    _rich(stream).line("bad", tone=Tone.BAD)
    assert "\x1b[31mbad" in stream.getvalue()
    assert isinstance(screen_for(io.StringIO()), PlainScreen)


def test_no_color_takes_the_colours_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = _Terminal()
    screen_for(stream).line("bad", tone=Tone.BAD)
    assert "31m" not in stream.getvalue()


@pytest.mark.parametrize(("term", "expected"), [("xterm", True), ("dumb", False), ("", False)])
def test_only_a_terminal_that_can_do_more_than_lines_counts(
    monkeypatch: pytest.MonkeyPatch, term: str, *, expected: bool
) -> None:
    monkeypatch.setenv("TERM", term)
    assert is_terminal(_Terminal()) is expected


def test_a_closed_stream_is_no_terminal() -> None:
    stream = io.StringIO()
    stream.close()
    assert is_terminal(stream) is False


def test_long_values_are_cut_and_said_to_be() -> None:
    assert safe("x" * 1000) == "x" * 399 + "…"


def test_plain_tables_are_aligned() -> None:
    stream = io.StringIO()
    PlainScreen(stream).table(["name", ">n"], [("a", 1), ("bcd", 100)])
    assert stream.getvalue() == "  name    n\n  a       1\n  bcd   100\n"


def test_columns_with_nothing_in_them_are_left_out() -> None:
    stream = io.StringIO()
    PlainScreen(stream).table(["name", ">mean", "why"], [("a", "", "x"), ("b", "", "")])
    assert stream.getvalue() == "  name  why\n  a     x\n  b\n"


def test_groups_of_labels_stand_below_each_other() -> None:
    stream = io.StringIO()
    for label in ("calls", "population"):
        PlainScreen(stream).pairs([(label, 1)])
    assert [line.index("1") for line in stream.getvalue().splitlines()] == [12, 12]


@pytest.mark.parametrize("width", [30, 36, 44, 100])
def test_a_narrow_terminal_breaks_no_short_word_and_cuts_no_number(width: int) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system=None, markup=False, width=width)
    run = "0123456789" * 3
    RichScreen(console).table(["run", "state", ">left", ">held by unknown"], [(run, "finished", "$1.4896", "$0.00")])
    shown = stream.getvalue()
    assert {"finished", "$1.4896", "$0.00", "held", "unknown"} <= set(shown.split())
    assert max(map(len, shown.splitlines())) <= width
    assert "".join(character for character in shown.replace("$1.4896", "").replace("$0.00", "") if
                   character.isdigit()) == run  # fmt: skip
