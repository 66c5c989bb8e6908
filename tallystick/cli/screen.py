"""Where text goes: with colour and tables on a terminal, as plain lines elsewhere.

Everything that is shown passes here, and here alone it is made harmless: control characters, terminal escapes and
direction marks become visible escapes, and nothing is taken for markup.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from ..ledger.canonical import printable

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["PlainScreen", "RichScreen", "Screen", "Tone", "is_terminal", "safe", "screen_for"]

_CELL_MAX: Final = 400
_LABEL_MIN: Final = len("population")  # so that the groups of one screen stand below each other
_WHOLE_MAX: Final = 12  # what a narrow terminal never breaks


class Tone(StrEnum):
    """How a line is meant; the value is its style on a terminal."""

    PLAIN = "default"
    STRONG = "bold"
    GOOD = "green"
    WARNING = "yellow"
    BAD = "red"
    DIM = "dim"


class Screen(Protocol):
    """What a command shows things on."""

    def line(self, text: object = "", *, tone: Tone = Tone.PLAIN) -> None:
        """One line."""

    def pairs(self, rows: Sequence[tuple[str, object]]) -> None:
        """Labels and what belongs to them; nothing where there are none."""

    def named(self, command: str) -> str:
        """The command of ours as it is to be typed here: it means the same ledger."""

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
        """A table; columns whose heading begins with ``>`` are numbers, and those with nothing in them are left out."""


def screen_for(stream: IO[str], *, ledger_option: str = "") -> Screen:
    """The screen for that stream; ``ledger_option`` is what the commands that it names need to mean this ledger."""
    if not is_terminal(stream):
        return PlainScreen(stream, ledger_option)
    from rich.console import Console

    return RichScreen(Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True), ledger_option)


def is_terminal(stream: IO[str]) -> bool:
    """Whether somebody looks at it on a terminal that knows more than lines."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    except ValueError:
        return False  # closed


def safe(value: object, *, length_max: int = _CELL_MAX) -> str:
    """The value in one harmless line."""
    text = printable(str(value)).replace("\n", "\\n").replace("\t", "\\t")
    return text if len(text) <= length_max else text[: length_max - 1] + "…"


def _filled(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> tuple[list[str], list[list[str]]]:
    """The columns that have something in them, and their cells made harmless."""
    body = [[safe(cell) for cell in row] for row in rows]
    kept = [at for at in range(len(columns)) if not body or any(row[at] for row in body)]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in body]


def _widths(names: Sequence[str], body: Sequence[Sequence[str]], *, room: int) -> list[int] | None:
    """How wide each column is; None where the room is too narrow without breaking a number or a short word."""
    from rich.cells import cell_len

    wanted = [max(map(cell_len, (name, *cells))) for name, *cells in zip(names, *body, strict=True)]
    least = [
        max(cell_len(word) for word in (*name.split(), *(cell[:_WHOLE_MAX] for cell in cells)))
        for name, *cells in zip(names, *body, strict=True)
    ]
    while sum(wanted) > room:
        spare = [now - floor for now, floor in zip(wanted, least, strict=True)]
        if max(spare, default=0) == 0:
            return None
        wanted[spare.index(max(spare))] -= 1
    return wanted


class PlainScreen:
    """Lines of text without any escape sequence."""

    def __init__(self, stream: IO[str] | None = None, ledger_option: str = "") -> None:
        self._stream = stream or sys.stdout
        self._ledger_option = ledger_option

    def named(self, command: str) -> str:
        return command + self._ledger_option

    def line(self, text: object = "", *, tone: Tone = Tone.PLAIN) -> None:  # noqa: ARG002
        self._stream.write(safe(text, length_max=10_000) + "\n")
        self._stream.flush()

    def pairs(self, rows: Sequence[tuple[str, object]]) -> None:
        width = max((_LABEL_MIN, *(len(label) for label, _ in rows)))
        for label, value in rows:
            self.line(f"{label:<{width}}  {safe(value)}".rstrip())

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
        if title:
            self.line(title)
        columns, body = _filled(columns, rows)
        cells = [[column.lstrip(">") for column in columns], *body]
        widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
        for row in cells:
            padded = (
                f"{cell:>{width}}" if column.startswith(">") else f"{cell:<{width}}"
                for cell, column, width in zip(row, columns, widths, strict=True)
            )
            self.line(("  " + "  ".join(padded)).rstrip())


class RichScreen:
    """A terminal."""

    def __init__(self, console: Console, ledger_option: str = "") -> None:
        self.console = console
        self._ledger_option = ledger_option

    def named(self, command: str) -> str:
        return command + self._ledger_option

    def line(self, text: object = "", *, tone: Tone = Tone.PLAIN) -> None:
        self.console.print(self._text(safe(text, length_max=10_000), tone))

    def pairs(self, rows: Sequence[tuple[str, object]]) -> None:
        from rich.table import Table

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True, min_width=_LABEL_MIN)
        grid.add_column(overflow="fold")
        for label, value in rows:
            grid.add_row(self._text(safe(label)), self._text(safe(value)))
        self.console.print(grid)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
        from rich import box
        from rich.table import Table

        if title:
            self.line(title, tone=Tone.STRONG)
        columns, body = _filled(columns, rows)
        names = [column.lstrip(">") for column in columns]
        widths = _widths(names, body, room=self.console.width - 3 * len(columns) + 1)  # what the rules and gaps leave
        if widths is None:
            for row in body:
                self.pairs([("  " + name, cell) for name, cell in zip(names, row, strict=True) if cell])
                self.line()
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name, column, width in zip(names, columns, widths, strict=True):
            table.add_column(name, justify="right" if column.startswith(">") else "left", overflow="fold", width=width)
        for row in body:
            table.add_row(*(self._text(cell) for cell in row))
        self.console.print(table)

    def _text(self, text: str, tone: Tone = Tone.PLAIN) -> Any:
        from rich.text import Text

        return Text(text, style=tone.value)
