"""Case files of comma-separated values, as RFC 4180 and spreadsheets write them: UTF-8, a header, quoted fields.

Every value is text; an empty field is no ``expected`` and no entry of ``metadata``. The mark that spreadsheets put
before UTF-8 is taken off.
"""

from __future__ import annotations

import csv
import threading
from collections.abc import Iterator
from functools import partial
from typing import IO, Final

import attrs

from ..ledger.canonical import JsonValue
from .case_checks import CaseOrigin
from .case_columns import CaseColumns, no_cases, row_maker

__all__ = ["ROW_BYTES_MAX", "csv_rows"]

ROW_BYTES_MAX: Final = 64 * 2**20
_BOM: Final = b"\xef\xbb\xbf"
_FOREIGN: Final = (b"\xff\xfe", b"\xfe\xff")
_QUOTE_REMEDY: Final = 'Quote a field that holds the delimiter, as in "a, b"'
_REMEDY: Final = "Write a header and one case a row"
_LIMIT: Final = threading.Lock()


def csv_rows(
    file: IO[bytes], written: str, *, columns: CaseColumns, delimiter: str = ","
) -> Iterator[tuple[int, JsonValue]]:
    """The line that each row begins in, from 1, and its case; raises CaseFileInvalid at the first fault."""
    origin = CaseOrigin(written, "line")
    lines = _Lines(file, origin)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    header = _next(reader, lines)
    if header is None:
        raise no_cases(written, _REMEDY)
    _refuse_other_delimiter(header, delimiter, origin)
    made = row_maker(columns, header, origin, line=lines.began, absent="")
    is_empty = True
    while (fields := _next(reader, lines)) is not None:
        if len(fields) != len(header):
            what = f"{_count(len(fields), 'field')}, and the header has {_count(len(header), 'column')}"
            is_short = len(fields) < len(header)
            remedy = "Leave an empty field for what is not there" if is_short else _QUOTE_REMEDY
            raise origin.fault(lines.began, what, remedy)
        is_empty = False
        yield lines.began, made(fields)
    if is_empty:
        raise no_cases(written, _REMEDY)


@attrs.define
class _Lines:
    """The file's lines as text, for the reader, and the number of the line that its present row began in."""

    _file: IO[bytes]
    _origin: CaseOrigin
    number: int = 0
    began: int = 0
    _size: int = 0

    def begin(self) -> None:
        self.began, self._size = self.number + 1, 0

    def __iter__(self) -> Iterator[str]:
        for line in iter(partial(self._file.readline, ROW_BYTES_MAX + 1), b""):
            self.number += 1
            if self.number == 1:
                if line.startswith(_FOREIGN):
                    raise self._origin.fault(1, "is UTF-16", "Save it as CSV UTF-8")
                line = line.removeprefix(_BOM)
            self._size += len(line)
            if self._size > ROW_BYTES_MAX:
                what = f"the row that begins here is longer than {ROW_BYTES_MAX} bytes"
                raise self._origin.fault(self.began, what, "Look for a quote that is opened and not closed")
            yield self._text(line)

    def _text(self, line: bytes) -> str:
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as cause:
            what, remedy = f"not UTF-8 (byte {cause.start + 1} of the line)", "Save the file as CSV UTF-8"
            raise self._origin.fault(self.number, what, remedy) from cause

    def fault(self, cause: csv.Error) -> Exception:
        told = str(cause)
        if "unexpected end of data" in told:
            what, remedy = "a quote in the row that begins here is never closed", "Close it, or write it twice"
        elif "new-line character" in told:
            what, remedy = "a carriage return stands outside of quotes", "Quote it, or save with usual line ends"
        elif "expected after" in told:
            what, remedy = "text follows a closing quote", 'Write a quote inside of quotes twice: "a ""b"" c"'
        else:
            what, remedy = f"not CSV ({told})", "Correct that row"
        return self._origin.fault(self.began, what, remedy)


def _next(reader: Iterator[list[str]], lines: _Lines) -> list[str] | None:
    """The next row that is not blank, None at the end. The module's limit of fields is one for the whole process."""
    while True:
        lines.begin()
        try:
            with _LIMIT:
                before = csv.field_size_limit(ROW_BYTES_MAX)
                try:
                    fields = next(reader, None)
                finally:
                    csv.field_size_limit(before)
        except csv.Error as cause:
            raise lines.fault(cause) from cause
        if fields is None or fields:
            return fields


def _refuse_other_delimiter(header: list[str], delimiter: str, origin: CaseOrigin) -> None:
    if len(header) == 1:
        for other, shown in ((";", ";"), ("\t", "\\t"), (",", ",")):
            if other != delimiter and other in header[0]:
                what = f'the header is one column, and "{shown}" stands in it'
                raise origin.fault(1, what, f'Say what parts its columns: [cases] delimiter = "{shown}"')


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
