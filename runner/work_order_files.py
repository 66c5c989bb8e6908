"""The text of a work order: read, parsed, and a place for every fault, with its line where that can be told."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import attrs

from ..ledger.canonical import parse_json
from ..ledger.errors import WorkOrderInvalid

__all__ = ["BYTES_MAX", "Key", "Place", "parse_work_order", "read_text"]

BYTES_MAX: Final = 16 * 2**20
_PROBES_MAX: Final = 64
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_AT: Final = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")

Key = str | int


@attrs.frozen
class Place:
    """Where something stands: the file (or ``WorkOrder("name")``), and the keys that lead to it."""

    source: str
    keys: tuple[Key, ...] = ()
    text: str = attrs.field(default="", repr=False)  # TOML, to find lines in; empty where there is none

    def at(self, *keys: Key) -> Place:
        return attrs.evolve(self, keys=self.keys + keys)

    def __str__(self) -> str:
        line = _line_of(self.text, self.keys) if self.text else 0
        return self.source + (f":{line}" if line else "") + (f": {dotted(self.keys)}" if self.keys else "")

    def refuse(self, what: str, remedy: str = "", *, cause: BaseException | None = None) -> NoReturn:
        """Raise WorkOrderInvalid for what stands here."""
        place = str(self)
        raise WorkOrderInvalid(f"{place}: {what}", remedy, place=place) from cause


def dotted(keys: Sequence[Key]) -> str:
    """``judges[0].kind``; a key that TOML would quote is quoted."""
    shown = "".join(f"[{key}]" if isinstance(key, int) else "." + _quoted(key) for key in keys)
    return shown.removeprefix(".")


def _quoted(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key[:60])


def read_text(path: Path, *, source: str) -> str:
    """The file as text; raises WorkOrderInvalid when it is missing, no file, too large or not plain UTF-8."""
    place = Place(source)
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except FileNotFoundError as cause:
        place.refuse("there is no such work order", "Name one that is, or write it as the README shows", cause=cause)
    except IsADirectoryError as cause:
        place.refuse("this is a folder", "Name the work order in it", cause=cause)
    except OSError as cause:
        place.refuse(f"cannot be read ({cause.strerror})", "Name a file that can be read", cause=cause)
    if len(data) > BYTES_MAX:
        place.refuse(f"larger than {BYTES_MAX} bytes", "Put the cases into a file of their own: [cases] file")
    return decode(data, place=place)


def decode(data: bytes, *, place: Place) -> str:
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        place.refuse("begins with a byte order mark", "Save it as UTF-8 without BOM")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as cause:
        line = data.count(b"\n", 0, cause.start) + 1
        Place(f"{place.source}:{line}").refuse("not UTF-8", "Save it as UTF-8", cause=cause)


def parse_work_order(text: str, *, source: str) -> tuple[dict[str, Any], Place]:
    """The document, JSON values only, and its root place. JSON where the source ends so, else TOML."""
    is_json = source.lower().endswith(".json")
    raw = _parse_json(text, Place(source)) if is_json else _parse_toml(text, Place(source))
    root = Place(source, text="" if is_json else text)
    if not isinstance(raw, dict):
        root.refuse("a work order is a table of keys", "Begin with version = 1")
    refuse_foreign(raw, place=root)
    return raw, root


def _parse_toml(text: str, place: Place) -> Any:
    try:
        return tomllib.loads(text)
    except RecursionError as cause:
        place.refuse("nested too deeply", "Flatten it", cause=cause)
    except ValueError as cause:
        found = _AT.search(str(cause))
        line, column = (found[1], found[2]) if found and found[1] else (text.count("\n") + 1, 0)
        what = _one_line(_AT.sub("", str(cause)))
        at = f"column {column}: " if column else "at the end: "
        Place(f"{place.source}:{line}").refuse(f"{at}not TOML ({what})", "Correct that line", cause=cause)


def _parse_json(text: str, place: Place) -> Any:
    try:
        return parse_json(text)
    except json.JSONDecodeError as cause:
        what = _one_line(cause.msg)
        Place(f"{place.source}:{cause.lineno}").refuse(
            f"column {cause.colno}: not JSON ({what})", "Correct that line", cause=cause
        )
    except ValueError as cause:
        place.refuse(f"not JSON ({_one_line(str(cause))})", "Correct it", cause=cause)


def _one_line(text: str) -> str:
    shown = " ".join(text.split())
    first = shown.partition(" ")[0]
    return (shown[:1].lower() if first[1:].islower() else shown[:1]) + shown[1:200]


def refuse_foreign(value: object, *, place: Place) -> None:
    """Raise WorkOrderInvalid for a value that JSON has no form for (dates, NaN, infinities, foreign keys)."""
    match value:
        case None | bool() | int() | str():
            return
        case float():
            if not math.isfinite(value):
                place.refuse(f"{value} is not a number that can be kept", "Write a finite number, or text in quotes")
        case dt.date() | dt.time():
            place.refuse("a date or time without quotes", f'Write it in quotes: "{value}"')
        case Mapping():
            for key, inner in value.items():
                if not isinstance(key, str):
                    place.refuse(f"the key {key!r} is not text", "Use text for every key")
                refuse_foreign(inner, place=place.at(key))
        case list() | tuple():
            for index, inner in enumerate(value):
                refuse_foreign(inner, place=place.at(index))
        case _:
            place.refuse(f"a {type(value).__name__} has no JSON form", "Give text, numbers, lists or tables")


def _line_of(text: str, keys: Sequence[Key]) -> int:
    """The line that the keys, or the longest part of them that is there, begin at; 0 where it cannot be told.

    Found by bisection: the shortest beginning of the text that parses and has the keys ends with their value.
    """
    while keys and not _has(_parsed(text), keys):
        keys = keys[:-1]
    if not keys:
        return 0
    lines = text.split("\n")
    low, high, probes = 0, len(lines), 0
    while low < high - 1:
        middle = probe = (low + high) // 2
        # A value of several lines does not parse until its last one.
        while probe < high and (document := _parsed("\n".join(lines[:probe]))) is None:
            probe, probes = probe + 1, probes + 1
            if probes > _PROBES_MAX:
                return 0
        if probe >= high:
            high = middle
        elif _has(document, keys):
            high = probe
        else:
            low = probe
    return high


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return None


def _has(document: Any, keys: Sequence[Key]) -> bool:
    for key in keys:
        try:
            document = document[key]
        except (KeyError, IndexError, TypeError):
            return False
    return True
