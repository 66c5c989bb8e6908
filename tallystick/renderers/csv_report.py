"""The planned observations as comma-separated values, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from ..runner.report_reading import Report
from .columns import column_names, row_of
from .safe_text import csv_cell

__all__ = ["csv_report"]


def csv_report(report: Report) -> Iterator[str]:
    """Its pieces, a line each: RFC 4180 with a head, UTF-8. A text that looks like a formula begins with a ``'``."""
    yield _line([csv_cell(name) for name in column_names(report.summary)])
    for slot in report.slots():
        yield _line([csv_cell(value) for value in row_of(report.summary, slot)])


def _line(cells: list[object]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()
