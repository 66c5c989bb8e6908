"""Cases: read one by one from a file or from Python, checked, and digested.

A case file is JSON lines: UTF-8 without BOM, one object a line with ``id``, ``input``, and perhaps ``expected`` and
``metadata``; blank lines are passed over. Every fault is a `CaseFileInvalid` that names the line. Only the ids are kept
while a file is read, so that its size is bounded by the disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Final, NoReturn, Protocol

import attrs

from ..ledger.canonical import JsonValue, digest_of_value, parse_json
from ..ledger.errors import CaseFileInvalid
from .protocols import MISSING, Case, Missing
from .words import nearest

__all__ = [
    "FORMATS",
    "LINE_BYTES_MAX",
    "CaseFile",
    "CaseList",
    "CaseSource",
    "CasesDigest",
    "CasesInLedger",
    "case_digest",
    "cases",
    "load_cases",
    "survey",
]

LINE_BYTES_MAX: Final = 64 * 2**20
ID_CHARACTERS_MAX: Final = 1000
_KEYS: Final = ("id", "input", "expected", "metadata")
_BOMS: Final = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


class CaseSource(Protocol):
    """Cases that can be gone through again and again, checked anew each time."""

    def __iter__(self) -> Iterator[Case]: ...

    def digested(self) -> Iterator[tuple[Case, str]]:
        """The same, each with its `case_digest`: cheaper than asking for it."""


@attrs.frozen
class CaseFile:
    """A case file; opened only when it is gone through. ``written`` is how people named it."""

    path: Path
    written: str
    format: str = "jsonl"

    def __iter__(self) -> Iterator[Case]:
        """Each case in the file's order; raises CaseFileInvalid at the first fault."""
        return (case for case, _ in self.digested())

    def digested(self) -> Iterator[tuple[Case, str]]:
        with _opened(self) as file:
            yield from _checked(FORMATS[self.format](file, self.written), at=partial(_at_line, self.written))


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
        yield from _checked(enumerate(self.rows, start=1), at=_at_item)


@attrs.frozen
class CasesInLedger:
    """Cases that were given from Python to a run that exists: its ledger has them, and nothing else."""

    def __iter__(self) -> Iterator[Case]:
        return (case for case, _ in self.digested())

    def digested(self) -> Iterator[tuple[Case, str]]:
        raise CaseFileInvalid(
            "the cases of this work order were given from Python", "Give them again, or resume the run that has them"
        )


def cases(source: str | Path | CaseSource | Iterable[Case | Mapping[str, JsonValue]]) -> CaseSource:
    """Cases from a case file (relative to the current folder), or from Case objects and dicts with the same keys.

    A file is not opened yet. An iterable is gone through once, now. Faults raise CaseFileInvalid when the cases are
    gone through.
    """
    if isinstance(source, str | Path):
        return load_cases(source)
    if isinstance(source, CaseFile | CaseList | CasesInLedger):
        return source
    return CaseList(tuple(source))


def load_cases(path: str | Path, *, folder: Path | None = None, format: str | None = None) -> CaseFile:  # noqa: A002 - the key's name
    """The case file at a path relative to the folder; its form is told from the suffix.

    Raises CaseFileInvalid when the form is not known. The file itself is opened when the cases are gone through.
    """
    found = format or _SUFFIXES.get(Path(path).suffix.lower(), "")
    if found not in FORMATS:
        what = f'{path}: the form of a case file cannot be told from "{Path(path).suffix}"'
        raise CaseFileInvalid(what, 'Name it .jsonl, or say format = "jsonl"', path=str(path))
    return CaseFile((folder or Path()) / path, str(path), found)


def case_digest(case: Case) -> str:
    """The digest of what the case is: id, input, metadata, and expected where it has one."""
    content: dict[str, JsonValue] = {"id": case.id, "input": case.input, "metadata": case.metadata}
    if not isinstance(case.expected, Missing):
        content["expected"] = case.expected
    return digest_of_value(content)


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


def survey(source: CaseSource) -> CasesDigest:
    """Go through all cases once: every fault is raised here, before anything is created; the count and digest stay.

    Whoever goes through them again compares digests, since a file may change in between.
    """
    found = CasesDigest()
    for _, digest in source.digested():
        found.add(digest)
    return found


Refusal = Callable[[int, str, str], CaseFileInvalid]


def _at_line(written: str, line: int, what: str, remedy: str) -> CaseFileInvalid:
    return CaseFileInvalid(f"{written}:{line}: {what}", remedy, path=written, line=line)


def _at_item(number: int, what: str, remedy: str) -> CaseFileInvalid:
    return CaseFileInvalid(f"case {number}: {what}", remedy, path="cases", line=number)


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


def _json_lines(file: IO[bytes], written: str) -> Iterator[tuple[int, JsonValue]]:
    """Line numbers from 1, and the value that stands there."""
    is_empty = True
    for number, line in enumerate(iter(partial(file.readline, LINE_BYTES_MAX + 1), b""), start=1):
        if number == 1 and line.startswith(_BOMS):
            raise _at_line(written, 1, "begins with a byte order mark", "Save it as UTF-8 without BOM")
        if len(line) > LINE_BYTES_MAX:
            raise _at_line(written, number, f"longer than {LINE_BYTES_MAX} bytes", "Write one case a line")
        if line.strip(b" \t\r\n"):
            is_empty = False
            yield number, _parsed(line, written, number)
    if is_empty:
        raise CaseFileInvalid(f"{written}: there are no cases in it", "Write one object a line", path=written)


def _parsed(line: bytes, written: str, number: int) -> JsonValue:
    try:
        return parse_json(line.decode("utf-8"))
    except UnicodeDecodeError as cause:
        what = f"not UTF-8 (byte {cause.start + 1} of the line)"
        raise _at_line(written, number, what, "Save the file as UTF-8") from cause
    except json.JSONDecodeError as cause:
        what = f"column {cause.colno}: not JSON ({cause.msg[:1].lower()}{cause.msg[1:]})"
        raise _at_line(written, number, what, "Write one JSON object a line") from cause
    except ValueError as cause:
        raise _at_line(written, number, f"not JSON ({cause})", "Write one JSON object a line") from cause


FORMATS: Final[Mapping[str, Callable[[IO[bytes], str], Iterator[tuple[int, JsonValue]]]]] = {"jsonl": _json_lines}
_SUFFIXES: Final = {".jsonl": "jsonl", ".ndjson": "jsonl"}


def _checked(rows: Iterable[tuple[int, object]], *, at: Refusal) -> Iterator[tuple[Case, str]]:
    # An id that was written as a number is remembered as minus its line: 1 and "1" deserve words of their own.
    seen: dict[str, int] = {}
    for line, row in rows:
        if isinstance(row, Case):
            row = _row_of(row)
        case, is_number = _case(row, line, at)
        digest = _digest(case, line, at)
        before = seen.setdefault(case.id, -line if is_number else line)
        if abs(before) != line:
            raise _twice(case.id, before, line, is_number=is_number, at=at)
        yield case, digest


def _row_of(case: Case) -> dict[str, object]:
    row: dict[str, object] = {"id": case.id, "input": case.input, "metadata": case.metadata}
    return row if case.expected is MISSING else row | {"expected": case.expected}


def _case(row: object, line: int, at: Refusal) -> tuple[Case, bool]:
    if not isinstance(row, Mapping):
        raise at(line, f"a case is an object, not {_kind(row)}", 'Write {"id": ..., "input": ...}')
    for key in row:
        if key not in _KEYS:
            remedy = f"{nearest(str(key), _KEYS)} More about a case belongs into metadata"
            raise at(line, f"there is no key {_shown(key)}", remedy)
    for key in ("id", "input"):
        if key not in row:
            raise at(line, f'"{key}" is missing', "Every case has an id and an input")
    identifier, metadata = row["id"], row.get("metadata", {})
    if not isinstance(metadata, Mapping):
        raise at(line, f'"metadata" is an object, not {_kind(metadata)}', 'Write "metadata": {...}')
    expected = row.get("expected", MISSING)
    case = Case(_identifier(identifier, line, at), row["input"], expected, metadata)
    return case, not isinstance(identifier, str)


def _digest(case: Case, line: int, at: Refusal) -> str:
    try:
        return case_digest(case)
    except (TypeError, ValueError, RecursionError) as cause:
        raise at(line, f"case {_shown(case.id)} cannot be kept ({cause})", "Write finite JSON values") from cause


def _identifier(value: object, line: int, at: Refusal) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise at(line, f"an id is text or a whole number, not {_kind(value)}", "Give every case an id of its own")
    is_long = abs(value) >= 10**ID_CHARACTERS_MAX if isinstance(value, int) else len(value) > ID_CHARACTERS_MAX
    if is_long:
        raise at(line, f"the id is longer than {ID_CHARACTERS_MAX} characters", "Put what it says into metadata")
    if not str(value).strip():
        raise at(line, "the id is empty", "Give every case an id of its own")
    return str(value)


def _twice(identifier: str, before: int, line: int, *, is_number: bool, at: Refusal) -> CaseFileInvalid:
    was_number, first = before < 0, abs(before)
    if was_number == is_number:
        return at(line, f"the id {_shown(identifier)} stands in {first} already", "Give every case an id of its own")
    now, then = (identifier, _shown(identifier)) if is_number else (_shown(identifier), identifier)
    return at(line, f"the id {now} and the id {then} in {first} would be one case", "Give every case an id of its own")


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return f"the number {value!r}"[:60]
        case str():
            return "text"
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


def _shown(value: object) -> str:
    text = json.dumps(value if isinstance(value, str) else repr(value))
    return text if len(text) <= 60 else text[:57] + '..."'
