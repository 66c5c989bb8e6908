"""What every command is told: where the ledger lies, and how to answer."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

if TYPE_CHECKING:
    from .screen import Screen

__all__ = ["Settings", "common", "json_output"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


@attrs.define
class Settings:
    """The options that all commands share. ``is_wedged`` is set when work is left that will never end by itself."""

    ledger: Path | None = None
    debug: bool = False
    json: bool = False
    is_wedged: bool = False

    @property
    def ledger_path(self) -> Path:
        """The ledger that is meant."""
        from ..ledger.location import default_path

        return self.ledger or default_path()

    def ledger_for(self, order: Path) -> Path:
        """The ledger that is meant for a work order; raises UsageError where another one lies beside it."""
        from ..ledger.location import path_for_order

        return self.ledger or path_for_order(order.parent)

    @property
    def ledger_option(self) -> str:
        """What a command that we name must add to mean the same ledger."""
        return "" if self.ledger is None else f" --ledger {shlex.quote(str(self.ledger))}"

    def command(self, *words: str) -> str:
        """The command of ours with these words, to be pasted: it means the same ledger."""
        return f"tallystick {shlex.join(words)}{self.ledger_option}"

    def named(self, text: str) -> str:
        """The text whose commands of ours, in backticks, mean the same ledger; what raised it did not know of one."""
        from ..runner.hints import with_ledger

        return with_ledger(text, self.ledger_option)

    def aside(self) -> contextlib.AbstractContextManager[object]:
        """While users' code is loaded or runs: with ``--json``, what it prints goes to standard error.

        Standard output then holds one document and nothing else.
        """
        return contextlib.redirect_stdout(sys.stderr) if self.json else contextlib.nullcontext()

    def screen(self) -> Screen:
        """Where results are shown."""
        from .screen import screen_for

        return screen_for(sys.stdout, ledger_option=self.ledger_option)

    def progress_screen(self) -> Screen:
        """Where progress is shown, so that results can be piped."""
        from .screen import screen_for

        return screen_for(sys.stderr, ledger_option=self.ledger_option)


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value:
        setattr(context.ensure_object(Settings), str(parameter.name), value)


_LEDGER = click.option(
    "--ledger", type=click.Path(path_type=Path), metavar="PATH", expose_value=False, callback=_keep,
    help="The ledger's file; else $TALLYSTICK_LEDGER, else tallystick.db beside the project.",
)  # fmt: skip
_DEBUG = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_keep, is_eager=True, help="Show tracebacks."
)
_JSON = click.option(
    "--json", is_flag=True, expose_value=False, callback=_keep, is_eager=True,
    help="Answer with one JSON document.",
)  # fmt: skip


def common(command: _Command) -> _Command:
    """Give a command the options that all have."""
    return _LEDGER(_DEBUG(command))


def json_output(command: _Command) -> _Command:
    """Give a command ``--json``."""
    return _JSON(command)
