"""Answers that an operator knows of: one in a JSON file, or several in a file of JSON Lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from ..ledger.canonical import JsonValue, canonical_text, parse_json
from ..ledger.errors import UsageError
from ..ledger.records import DispatchFacts
from ..ledger.slot_reads import Unknown
from ..ledger.states import DispatchState
from ..runner.amounts import nanousd
from ..runner.errors import AmountInvalid
from ..runner.protocols import USAGE_MAX

__all__ = ["Landed", "read_landed"]

_KEYS = frozenset({"call", "answer", "usage", "dispatch"})
_USAGE = frozenset({"tokens_in", "tokens_out", "cost_usd"})


@attrs.frozen
class Landed:
    """One unknown outcome with the answer that it had."""

    unknown: Unknown
    answer: JsonValue
    facts: DispatchFacts


def read_landed(path: Path, chosen: Sequence[Unknown]) -> list[Landed]:
    """What the file says of the chosen outcomes; raises UsageError with the line.

    A file that is one JSON value is the answer of the only one that is chosen. Otherwise each line is an object with
    ``call``, ``answer`` and, where it is known, ``usage``; chosen outcomes that no line names stay unknown.
    """
    text = _text(path)
    whole = _parsed_or_none(text)
    if len(chosen) == 1 and whole is not _NONE and not _names(whole, chosen[0]):
        return [Landed(chosen[0], whole, _facts(None, str(path)))]
    found: dict[tuple[str, int], Landed] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            one = _record(line, chosen, place=f"{path}, line {number}")
            key = (one.unknown.call_id, one.unknown.dispatch_no)
            if key in found:
                raise UsageError(f"{path}, line {number}: call {key[0]} is there a second time", "keep one line of it")
            found[key] = one
    return list(found.values())


class _None:
    """The file is not one JSON value."""


_NONE: Any = _None()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as cause:
        why = cause.strerror if isinstance(cause, OSError) else "it is not UTF-8"
        raise UsageError(f"--landed {path}: {why}", "name a JSON file with the answer") from cause


def _parsed_or_none(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return _NONE


def _names(value: object, unknown: Unknown) -> bool:
    is_record = isinstance(value, Mapping) and "answer" in value and value.keys() <= _KEYS
    return is_record and isinstance(value, Mapping) and value.get("call") == unknown.call_id


def _record(line: str, chosen: Sequence[Unknown], *, place: str) -> Landed:
    try:
        value = parse_json(line)
    except ValueError as cause:
        raise UsageError(f"{place}: this is not JSON ({cause})", 'write {"call": ID, "answer": VALUE}') from cause
    if not isinstance(value, Mapping) or not {"call", "answer"} <= value.keys() <= _KEYS:
        raise UsageError(
            f"{place}: this does not say which call it answers", 'write {"call": ID, "answer": VALUE, "usage": {}}'
        )
    fitting = [
        one
        for one in chosen
        if one.call_id == value["call"] and value.get("dispatch", one.dispatch_no) == one.dispatch_no
    ]
    if not fitting:
        raise UsageError(
            f"{place}: {value['call']} is not among the chosen unknown outcomes",
            "list them with `tallystick reconcile RUN`",
        )
    newest = max(fitting, key=lambda one: one.dispatch_no)
    return Landed(newest, value["answer"], _facts(value.get("usage"), place))


def _facts(usage: object, place: str) -> DispatchFacts:
    if usage is None:
        return DispatchFacts(DispatchState.ANSWERED)
    if not isinstance(usage, Mapping) or not usage.keys() <= _USAGE:
        raise UsageError(f"{place}: usage is not known like this", f"write any of {', '.join(sorted(_USAGE))}")
    cost = usage.get("cost_usd")
    try:
        nano = None if cost is None else nanousd(cost)
    except AmountInvalid as cause:
        raise UsageError(f"{place}: cost_usd: {cause.what}", cause.remedy) from cause
    if nano is not None and nano > USAGE_MAX:
        raise UsageError(f"{place}: cost_usd is more than a call can cost", "write dollars, not their billionths")
    return DispatchFacts(
        DispatchState.ANSWERED,
        tokens_in=_tokens(usage, "tokens_in", place),
        tokens_out=_tokens(usage, "tokens_out", place),
        cost_nanousd=nano,
        usage=canonical_text({"raw": dict(usage), "problems": []}),
    )


def _tokens(usage: Mapping[str, object], key: str, place: str) -> int | None:
    value = usage.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= USAGE_MAX:
        raise UsageError(f"{place}: {key} is no count of tokens", "write a whole number, 0 to 10**15")
    return value
