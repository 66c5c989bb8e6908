"""Labelled observations: a file of answers that people have judged, one JSON object a line.

Each line has ``id``, ``input``, ``answer`` and ``label``, and perhaps ``expected``, ``metadata``, ``context`` and other
evidence. A label is ``true``, ``false``, ``"pass"``, ``"fail"`` or a score; an object gives one to each judge by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from ..ledger.canonical import JsonValue, digest_of_bytes, parse_json
from ..ledger.errors import CaseFileInvalid
from .case_checks import CaseOrigin
from .case_files import BOMS

__all__ = ["Labelled", "load_labelled"]

_CASE_KEYS: Final = ("id", "input", "expected", "metadata")
_WORDS: Final = {"pass": "pass", "passed": "pass", "fail": "fail", "failed": "fail"}


@attrs.frozen
class Labelled:
    """A labelled file. ``labels`` has, by case id, the label for each judge, ``""`` for every judge without its own."""

    path: Path
    digest: str
    cases: tuple[Mapping[str, JsonValue], ...]
    labels: Mapping[str, Mapping[str, str]]

    def label_of(self, case_id: str, judge: str) -> str | None:
        """``pass``, ``fail`` or a score as the ledger writes it; None where there is no label for that judge."""
        found = self.labels[case_id]
        return found.get(judge, found.get(""))

    def labels_of(self, judge: str) -> set[str]:
        """All labels that there are for that judge."""
        return {label for case_id in self.labels if (label := self.label_of(case_id, judge)) is not None}


def load_labelled(path: Path) -> Labelled:
    """Read and check the file; raises CaseFileInvalid with the line of the first fault."""
    source = CaseOrigin(str(path), "line")
    try:
        data = path.read_bytes()
    except OSError as cause:
        what = f"{path}: the labelled file cannot be read ({cause.strerror})"
        raise CaseFileInvalid(what, "Name a file of JSON lines", path=str(path)) from cause
    cases: list[Mapping[str, JsonValue]] = []
    labels: dict[str, Mapping[str, str]] = {}
    if data.startswith(BOMS):
        raise source.fault(1, "begins with a byte order mark", "Save it as UTF-8 without BOM")
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        row = _row(line, number, source)
        if str(row["id"]) in labels:
            raise source.fault(number, f'a second line has the id "{str(row["id"])[:80]}"', "Keep one of them")
        labels[str(row["id"])] = _labels(row["label"], number, source)
        cases.append({key: row[key] for key in _CASE_KEYS if key in row})
    if not cases:
        raise CaseFileInvalid(f"{path}: there is no labelled observation in it", "Write one a line", path=str(path))
    return Labelled(path, digest_of_bytes(data), tuple(cases), labels)


def _row(line: bytes, number: int, source: CaseOrigin) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as cause:
        raise source.fault(number, f"not JSON ({cause})"[:120], "Write one JSON object a line") from cause
    if not isinstance(row, dict):
        raise source.fault(number, "a labelled observation is an object", 'Write {"id": ..., "label": ...}')
    for key in ("id", "input", "answer", "label"):
        if key not in row:
            remedy = "A labelled observation has id, input, answer and label"
            raise source.fault(number, f'"{key}" is missing', remedy)
    return row


def _labels(given: JsonValue, number: int, source: CaseOrigin) -> dict[str, str]:
    if isinstance(given, Mapping):
        return {name: _label(one, number, source) for name, one in given.items()}
    return {"": _label(given, number, source)}


def _label(given: JsonValue, number: int, source: CaseOrigin) -> str:
    match given:
        case bool():
            return "pass" if given else "fail"
        case int() | float():
            return repr(float(given))
        case str() if given.strip().lower() in _WORDS:
            return _WORDS[given.strip().lower()]
    raise source.fault(number, "the label is no verdict", 'Write true, false, "pass", "fail" or a score')
