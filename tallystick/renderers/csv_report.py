"""The planned observations as comma-separated values, safe to open in a spreadsheet."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Final

from ..runner.report_reading import Report
from .columns import column_names, row_of
from .safe_text import csv_cell

__all__ = ["csv_report"]

_AS_THEY_ARE: Final = frozenset({int, float, type(None)})


def csv_report(report: Report) -> Iterator[str]:
    """Its pieces, a line each: RFC 4180 with a head, UTF-8. A text that looks like a formula begins with a ``'``."""
    line = csv.writer(_Given()).writerow  # returns what its file's write does
    yield str(line([csv_cell(name) for name in column_names(report.summary)]))
    for slot in report.slots():
        row = row_of(report.summary, slot)
        yield str(line([value if type(value) in _AS_THEY_ARE else csv_cell(value) for value in row]))


class _Given:
    """A file that gives back what is written."""

    def write(self, text: str) -> str:
        return text
