"""The process: one line for every error, an exit status for every end."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from .settings import Settings

if TYPE_CHECKING:
    from ..ledger.errors import TallystickError, UsageError

__all__ = ["BROKEN_PIPE", "UNEXPECTED", "invoke", "main"]

INTERRUPTED: Final = 130
UNEXPECTED: Final = 70  # EX_SOFTWARE of sysexits.h; 1 would say that a gate failed
BROKEN_PIPE: Final = 141  # as a shell shows a death by SIGPIPE


def main() -> int:
    """Run the command of this process. Leaves at once where work is left that would keep the process for ever."""
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    settings = Settings()
    _keep_logs_for_debugging(settings)
    status = invoke(sys.argv[1:], settings)
    if settings.is_wedged or any(
        thread.is_alive() and not thread.daemon for thread in threading.enumerate() if thread is not _main_thread()
    ):
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    return status


def invoke(arguments: Sequence[str], settings: Settings | None = None) -> int:
    """Run one command in this process and return its exit status; what goes wrong is told on standard error."""
    from .commands import cli

    settings = settings or Settings()
    try:
        # Not by `cli.main`, which has statuses of its own for signals and for readers that go away.
        with cli.make_context("tallystick", list(arguments), obj=settings) as context:
            status = int(cli.invoke(context) or 0)
        sys.stdout.flush()
    except click.exceptions.Exit as asked:
        return asked.exit_code
    except BrokenPipeError:
        # Python flushes at exit, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        return _tell("interrupted", "stopped by a signal", INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as problem:
        problem.show()
        return problem.exit_code
    except click.ClickException as problem:
        return _tell_usage(problem)
    except UnicodeEncodeError as problem:
        if not any(_is_surrogate(sign) for argument in arguments for sign in argument):
            return _tell_error(problem, settings)
        return _tell_error(_not_utf8(), settings)
    except Exception as problem:  # noqa: BLE001 - the last place where an error can become a line
        return _tell_error(problem, settings)
    return status


def _open_standard_streams() -> None:
    """Where the caller closed one (``>&-``), the next file to be opened would take its number, and what is printed."""
    while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(lowest, True)
    os.close(lowest)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _keep_logs_for_debugging(settings: Settings) -> None:
    """Without a handler, Python would print warnings and errors of ours beside the one line that tells the same."""
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: settings.debug)
    logging.getLogger("tallystick").addHandler(handler)


def _main_thread() -> threading.Thread:
    return threading.main_thread()


def _tell(code: str, text: str, status: int) -> int:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # AttributeError: a target may have taken it away
        sys.stderr.write(f"tallystick: {code}: {_one_line(text)}\n")
    return status


def _tell_usage(problem: click.ClickException) -> int:
    context = getattr(problem, "ctx", None)
    help_of = "tallystick" if context is None else context.command_path
    told = problem.format_message().rstrip(".")
    return _tell("usage", f"{told}{'' if told.endswith('?') else '.'} See `{help_of} --help`", problem.exit_code)


def _tell_error(problem: Exception, settings: Settings) -> int:
    from ..ledger.errors import TallystickError

    if settings.debug:
        traceback.print_exception(problem)
    if isinstance(problem, TallystickError):
        if settings.json:
            _tell_in_json(problem, settings)
        remedy = settings.named(problem.remedy[:1].upper() + problem.remedy[1:])
        return _tell(problem.code, f"{problem.what}. {remedy}" if remedy else problem.what, problem.exit_status)
    remedy = "" if settings.debug else "; run it again with --debug for the traceback"
    return _tell("unexpected", f"{type(problem).__name__}: {problem}{remedy}", UNEXPECTED)


def _is_surrogate(sign: str) -> bool:
    """What Python makes of a byte of the command line that is no UTF-8."""
    return "\ud800" <= sign <= "\udfff"


def _not_utf8() -> UsageError:
    from ..ledger.errors import UsageError

    return UsageError("an argument is not UTF-8 text, and so can be no name and no reason", "write it in UTF-8")


def _tell_in_json(problem: TallystickError, settings: Settings) -> None:
    fields = {name: value for name, value in vars(problem).items() if not name.startswith("_")}
    fields["remedy"] = settings.named(problem.remedy)
    document = {"format": "tallystick.error/1", "code": problem.code, "exit_status": problem.exit_status, **fields}
    sys.stdout.write(json.dumps(document, indent=2, default=str) + "\n")
    sys.stdout.flush()


def _one_line(text: str) -> str:
    from ..ledger.canonical import printable

    return " ".join(printable(text).split())
