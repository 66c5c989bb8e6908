"""Which form a report has, and how it gets into a file: whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

from ..ledger.errors import UsageError
from ..runner.report_reading import Report

__all__ = ["ReportForm", "form_of", "pieces_of", "write_whole"]


class ReportForm(StrEnum):
    """The forms of a report that go into files."""

    JSON = "json"
    HTML = "html"
    MARKDOWN = "md"
    CSV = "csv"
    JUNIT = "junit"


_BY_SUFFIX: Final = {
    ".json": ReportForm.JSON,
    ".html": ReportForm.HTML,
    ".htm": ReportForm.HTML,
    ".md": ReportForm.MARKDOWN,
    ".csv": ReportForm.CSV,
    ".xml": ReportForm.JUNIT,
}


def form_of(path: Path) -> ReportForm:
    """The form that a file's name says; raises UsageError where it says none."""
    form = _BY_SUFFIX.get(path.suffix.lower())
    if form is None:
        raise UsageError(f"{path} does not say in which form it is wanted", "add --format html, md, json, csv or junit")
    return form


def pieces_of(report: Report, form: ReportForm) -> Iterator[str]:
    """The report in that form, piece by piece."""
    return _renderer(form)(report)


def _renderer(form: ReportForm) -> Callable[[Report], Iterator[str]]:
    match form:
        case ReportForm.JSON:
            from .json_report import json_report

            return json_report
        case ReportForm.HTML:
            from .html_report import html_report

            return html_report
        case ReportForm.MARKDOWN:
            from .markdown_report import markdown_report

            return markdown_report
        case ReportForm.CSV:
            from .csv_report import csv_report

            return csv_report
        case ReportForm.JUNIT:
            from .junit_report import junit_report

            return junit_report


def write_whole(path: Path, pieces: Iterable[str]) -> None:
    """Write the pieces as UTF-8 under another name and give the file its own when it is whole.

    Raises UsageError when it cannot be written; then nothing is there that was not there before.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.writelines(pieces)
        part.replace(path)
    except OSError as problem:
        part.unlink(missing_ok=True)
        what = f"{path} cannot be written ({problem.strerror})"
        raise UsageError(what, "name a file in a folder that you may write") from problem
    except BaseException:
        part.unlink(missing_ok=True)
        raise
