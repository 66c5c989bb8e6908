"""Cases: read one by one from a file or from Python, checked, and digested.

A case file is JSON lines (UTF-8 without BOM, one object a line with ``id``, ``input``, and perhaps ``expected`` and
``metadata``; blank lines are passed over), CSV (`case_csv`) or Parquet (`case_parquet`). Every fault is a
`CaseFileInvalid` that names the line. Only the ids are kept while a file is read, so that its size is bounded by the
disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Final, NoReturn, Protocol

import attrs

from ..ledger.canonical import JsonValue, parse_json
from ..ledger.errors import CaseFileInvalid
from .case_checks import CaseOrigin, case_digest, checked
from .case_columns import CaseColumns
from .case_csv import csv_rows
from .case_parquet import parquet_rows
from .protocols import Case

__all__ = [
    "BOMS",
    "FORMATS",
    "LINE_BYTES_MAX",
    "CaseFile",
    "CaseList",
    "CaseMaker",
    "CaseSource",
    "CasesDigest",
    "CasesInLedger",
    "case_digest",
    "load_cases",
    "survey",
]

LINE_BYTES_MAX: Final = 64 * 2**20
BOMS: Final = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


class CaseSource(Protocol):
    """Cases that can be gone through again and again, checked anew each time."""

    def __iter__(self) -> Iterator[Case]: ...

    def digested(self) -> Iterator[tuple[Case, str]]:
        """The same, each with its `case_digest`: cheaper than asking for it."""


@attrs.frozen
class CaseFile:
    """A case file; opened only when it is gone through. ``written`` is how people named it.

    ``columns`` and ``delimiter`` are None where they were not said: the usual ones of its form.
    """

    path: Path
    written: str
    format: str = "jsonl"
    columns: CaseColumns | None = None
    delimiter: str | None = None

    def __iter__(self) -> Iterator[Case]:
        """Each case in the file's order; raises CaseFileInvalid at the first fault."""
        return (case for case, _ in self.digested())

    def digested(self) -> Iterator[tuple[Case, str]]:
        with _opened(self) as file:
            rows = FORMATS[self.format](file, self)
            yield from checked(rows, CaseOrigin(self.written, "row" if self.format == "parquet" else "line"))


@attrs.frozen
class CaseList:
    """Cases that were given, or that stand in the work order itself (``is_inline``)."""

    rows: tuple[Case | Mapping[str, JsonValue], ...]
    is_inline: bool = False

    def __iter__(self) -> Iterator[Case]:
        """Each case in the given order; raises CaseFileInvalid at the first fault."""
        return (case for case, _ in self.digested())

    def digested(self) -> Iterator[tuple[Case, str]]:
        if not self.rows:
            raise CaseFileInvalid("there are no cases", "Give at least one", path="cases")
        yield from checked(enumerate(self.rows, start=1), CaseOrigin("cases", "case"))


@attrs.frozen
class CaseMaker:
    """Cases that a function makes anew each time: as many as it likes, none of which is kept."""

    make: Callable[[], Iterable[Case | Mapping[str, JsonValue]]]

    def __iter__(self) -> Iterator[Case]:
        """Each case in the order in which it is made; raises CaseFileInvalid at the first fault."""
        return (case for case, _ in self.digested())

    def digested(self) -> Iterator[tuple[Case, str]]:
        made: object = self.make()
        if not isinstance(made, Iterable) or isinstance(made, str | bytes | Mapping):
            what = f"the function that makes the cases returned a {type(made).__name__}"
            raise CaseFileInvalid(what, "Let it yield cases, or return a list of them", path="cases")
        is_empty = True
        for found in checked(enumerate(made, start=1), CaseOrigin("cases", "case")):
            is_empty = False
            yield found
        if is_empty:
            raise CaseFileInvalid("there are no cases", "Let the function make at least one", path="cases")


@attrs.frozen
class CasesInLedger:
    """Cases that were given from Python to a run that exists: its ledger has them, and nothing else."""

    def __iter__(self) -> Iterator[Case]:
        return (case for case, _ in self.digested())

    def digested(self) -> Iterator[tuple[Case, str]]:
        raise CaseFileInvalid(
            "the cases of this work order were given from Python", "Give them again, or resume the run that has them"
        )


def load_cases(
    path: str | Path,
    *,
    folder: Path | None = None,
    format: str | None = None,  # noqa: A002 - the key's name
    columns: CaseColumns | None = None,
    delimiter: str | None = None,
) -> CaseFile:
    """The case file at a path relative to the folder; its form is told from the suffix.

    Raises CaseFileInvalid when the form is not known, or has no such columns or delimiter. The file itself is opened
    when the cases are gone through.
    """
    found = format or _SUFFIXES.get(Path(path).suffix.lower(), "")
    if found not in FORMATS:
        what = f'{path}: the form of a case file cannot be told from "{Path(path).suffix}"'
        raise CaseFileInvalid(what, f"Name it .jsonl, .csv or .parquet, or say format = {_FORMS}", path=str(path))
    if columns is not None and found == "jsonl":
        what = f"{path}: JSON lines have no columns"
        raise CaseFileInvalid(what, 'Leave columns out; each line has "id" and "input"', path=str(path))
    if delimiter is not None and found not in ("csv", "tsv"):
        raise CaseFileInvalid(f"{path}: nothing but CSV has a delimiter", "Leave delimiter out", path=str(path))
    return CaseFile((folder or Path()) / path, str(path), found, columns, delimiter)


@attrs.define
class CasesDigest:
    """One digest over many cases, in their order, made while they pass by."""

    count: int = 0
    _hash: hashlib._Hash = attrs.field(factory=lambda: hashlib.sha256(b"tallystick cases 1\n"), repr=False)

    def add(self, digest: str) -> None:
        """Take in the `case_digest` of the next case."""
        self._hash.update(digest.encode("ascii") + b"\n")
        self.count += 1

    def value(self) -> str:
        return "sha256:" + self._hash.hexdigest()


def survey(source: CaseSource, *, look: Callable[[Case], object] | None = None) -> CasesDigest:
    """Go through all cases once: every fault is raised here, before anything is created; the count and digest stay.

    ``look`` is shown each of them. Whoever goes through them again compares digests, since a file may change in
    between.
    """
    found = CasesDigest()
    for case, digest in source.digested():
        found.add(digest)
        if look is not None:
            look(case)
    return found


def _opened(source: CaseFile) -> IO[bytes]:
    def refuse(what: str, remedy: str, cause: OSError) -> NoReturn:
        raise CaseFileInvalid(f"{source.written}: {what}", remedy, path=source.written) from cause

    try:
        return source.path.open("rb")
    except FileNotFoundError as cause:
        refuse("there is no such case file", "Correct [cases] file; it is relative to the work order's folder", cause)
    except IsADirectoryError as cause:
        refuse("this is a folder, not a case file", "Name the file in it", cause)
    except OSError as cause:
        refuse(f"the case file cannot be read ({cause.strerror})", "Make it readable", cause)


def _json_lines(file: IO[bytes], of: CaseFile) -> Iterator[tuple[int, JsonValue]]:
    """Line numbers from 1, and the value that stands there."""
    written = of.written
    source, is_empty = CaseOrigin(written, "line"), True
    for number, line in enumerate(iter(partial(file.readline, LINE_BYTES_MAX + 1), b""), start=1):
        if number == 1 and line.startswith(BOMS):
            raise source.fault(1, "begins with a byte order mark", "Save it as UTF-8 without BOM")
        if len(line) > LINE_BYTES_MAX:
            raise source.fault(number, f"longer than {LINE_BYTES_MAX} bytes", "Write one case a line")
        if line.strip(b" \t\r\n"):
            is_empty = False
            yield number, _parsed(line, number, source)
    if is_empty:
        raise CaseFileInvalid(f"{written}: there are no cases in it", "Write one JSON object a line", path=written)


def _parsed(line: bytes, number: int, source: CaseOrigin) -> JsonValue:
    try:
        return parse_json(line.rstrip(b"\r\n").decode("utf-8"))
    except UnicodeDecodeError as cause:
        what, remedy = f"not UTF-8 (byte {cause.start + 1} of the line)", "Save the file as UTF-8"
        raise source.fault(number, what, remedy) from cause
    except json.JSONDecodeError as cause:
        reason = cause.msg[:1].lower() + cause.msg[1:].removesuffix(" at")
        what = f"column {cause.colno}: not JSON ({reason})"
        raise source.fault(number, what, "Write one JSON object a line") from cause
    except ValueError as cause:
        what = f"not JSON ({str(cause).partition(';')[0]})"
        raise source.fault(number, what, "Write one JSON object a line") from cause


def _csv(file: IO[bytes], of: CaseFile) -> Iterator[tuple[int, JsonValue]]:
    usual = "\t" if of.format == "tsv" else ","
    return csv_rows(file, of.written, columns=of.columns or CaseColumns(), delimiter=of.delimiter or usual)


def _parquet(file: IO[bytes], of: CaseFile) -> Iterator[tuple[int, JsonValue]]:
    return parquet_rows(file, of.written, columns=of.columns or CaseColumns())


FORMATS: Final[Mapping[str, Callable[[IO[bytes], CaseFile], Iterator[tuple[int, JsonValue]]]]] = {
    "jsonl": _json_lines,
    "csv": _csv,
    "tsv": _csv,
    "parquet": _parquet,
}
_FORMS: Final = ", ".join(f'"{form}"' for form in FORMATS)
_SUFFIXES: Final = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
