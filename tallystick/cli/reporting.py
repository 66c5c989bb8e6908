"""``report``: on the terminal, as JSON, or in a file."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from ..ledger.ledger import Ledger
from ..renderers.files import ReportForm, form_of, pieces_of, write_whole
from ..runner.report_options import ReportOptions, slice_term
from ..runner.report_reading import Report, open_report
from .choosing import named_or_newest
from .report_screen import show_report
from .screen import PlainScreen
from .settings import Settings

__all__ = ["ReportWish", "give_report"]


@attrs.frozen
class ReportWish:
    """What was asked for on the command line; ``form`` is None where only the file's name says it."""

    form: str | None = None
    output: Path | None = None
    slices: Sequence[str] = ()
    by: str | None = None
    at: int | None = None
    evaluation: str | None = None

    def options(self) -> ReportOptions:
        """The same for the report; raises UsageError."""
        return ReportOptions(self.at, tuple(map(slice_term, self.slices)), self.by, self.evaluation)


def give_report(settings: Settings, run: str | None, wish: ReportWish) -> int:
    """Make the report and put it where it is wanted; makes no call and changes nothing."""
    form, options = _form(settings, wish), wish.options()
    with Ledger.open(settings.ledger_path) as ledger:
        found = named_or_newest(ledger, run)
        with open_report(ledger, found.run_id, options, ledger_option=settings.ledger_option) as report:
            if form is None and wish.output is None:
                show_report(settings.screen(), report.summary)
            elif wish.output is None or str(wish.output) == "-":
                for piece in _pieces(report, form):
                    sys.stdout.write(piece)
                sys.stdout.flush()
            else:
                write_whole(wish.output, _pieces(report, form))
                with contextlib.suppress(OSError, ValueError):  # standard error may be closed
                    settings.progress_screen().line(f"wrote {wish.output}")
    return 0


def _pieces(report: Report, form: ReportForm | None) -> Iterator[str]:
    """The report in that form; without one, what a terminal shows, as plain lines."""
    if form is not None:
        return pieces_of(report, form)
    lines = io.StringIO()
    show_report(PlainScreen(lines), report.summary)
    return iter([lines.getvalue()])


def _form(settings: Settings, wish: ReportWish) -> ReportForm | None:
    if settings.json:
        return ReportForm.JSON
    if wish.form not in (None, "terminal"):
        return ReportForm(wish.form)
    return None if wish.output is None or wish.form == "terminal" else form_of(wish.output)
