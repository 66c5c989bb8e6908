"""Canonical JSON, version 1, and digests.

One value has one byte form: UTF-8, object keys sorted by code point, no white space, every character outside ASCII
escaped, integers of any size written out, floats as Python's shortest repr. Lone surrogates and NUL survive as escapes.
NaN and infinities are refused, and so are keys that are not strings. ``1`` and ``1.0`` differ; ``true`` is not ``1``.
A digest is ``sha256:`` and 64 lower-case hex digits over those bytes. A later version gets another function; stored
digests keep the version that they were made with.
"""

from __future__ import annotations

import hashlib
import json
import json.encoder
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

__all__ = [
    "CANONICAL_VERSION",
    "NESTING_MAX",
    "JsonValue",
    "canonical_bytes",
    "canonical_text",
    "digest_of_bytes",
    "digest_of_value",
    "escaped_text",
    "parse_json",
    "printable",
    "stored_json",
    "unescaped_text",
]

CANONICAL_VERSION: Final = 1
NESTING_MAX: Final = 500  # a number of its own, so that what can be stored does not depend on the caller's stack

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"

_ENCODER: Final = json.JSONEncoder(
    skipkeys=False, ensure_ascii=True, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
)


def _make_encode() -> Callable[[object], str]:
    # JSONEncoder makes its C half anew for each value, which is a third of the cost of a small one. A cycle needs no
    # markers: it is refused as nested too deeply.
    make = getattr(json.encoder, "c_make_encoder", None)  # absent where there is no C half
    if make is None:
        return _ENCODER.encode
    parts = make(
        None, _ENCODER.default, json.encoder.encode_basestring_ascii, None, _ENCODER.key_separator,
        _ENCODER.item_separator, _ENCODER.sort_keys, _ENCODER.skipkeys, _ENCODER.allow_nan,
    )  # fmt: skip
    return lambda value: "".join(parts(value, 0))


_encode: Final = _make_encode()


def canonical_text(value: JsonValue) -> str:
    """The canonical form as ASCII text.

    Raises TypeError for what is not JSON (a non-string key included) and ValueError for NaN, infinities, cycles,
    integers beyond Python's digit limit and more than `NESTING_MAX` levels.
    """
    try:
        _refuse_foreign_keys(value)
        return _encode(value)
    except RecursionError as cause:
        raise ValueError("nested too deeply") from cause


def canonical_bytes(value: JsonValue) -> bytes:
    """The canonical form as bytes; raises as `canonical_text` does."""
    return canonical_text(value).encode("ascii")


def digest_of_bytes(data: bytes | bytearray | memoryview) -> str:
    """``sha256:<64 hex>`` of the bytes as they are."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_of_value(value: JsonValue) -> str:
    """``sha256:<64 hex>`` of the canonical form of the value."""
    return digest_of_bytes(canonical_bytes(value))


def parse_json(data: bytes | str) -> JsonValue:
    """Parse JSON strictly: no NaN or infinity, no duplicate object key; integers of up to the digit limit are exact.

    Raises ValueError (json.JSONDecodeError included).
    """
    if isinstance(data, bytes | bytearray):
        data = data.decode("utf-8", "surrogatepass")
    try:
        value: JsonValue = _decode(data)
    except RecursionError as cause:
        raise ValueError("nested too deeply") from cause
    return value


def stored_json(text: str) -> Any:
    """The value of a text that the ledger has stored in canonical form: quicker than `json.loads`.

    Raises ValueError where it is no such text.
    """
    try:
        value, end = _scan(text, 0)
    except RecursionError as cause:
        raise ValueError("nested too deeply") from cause
    except StopIteration as cause:
        raise ValueError("no value stands there") from cause
    if end != len(text):
        raise ValueError("something stands behind the value")
    return value


def escaped_text(text: str) -> str:
    """Any text as one that a database can hold: backslashes doubled, NUL and lone surrogates as JSON escapes them."""
    return _UNSTORABLE.sub(lambda found: "\\\\" if found[0] == "\\" else f"\\u{ord(found[0]):04x}", text)


def unescaped_text(stored: str) -> str:
    """What `escaped_text` was made from."""
    return _ESCAPED.sub(lambda found: "\\" if found[1] is None else chr(int(found[1], base=16)), stored)


_decoder: Final[Any] = json.JSONDecoder()
_scan: Final[Callable[[str, int], tuple[Any, int]]] = _decoder.scan_once
_UNSTORABLE: Final = re.compile("[\x00\\\\\ud800-\udfff]")
_ESCAPED: Final = re.compile(r"\\\\|\\u([0-9a-f]{4})")


def printable(text: str) -> str:
    """The text for people: lone surrogates become U+FFFD and control characters become visible escapes."""
    if text.isascii() and text.isprintable():
        return text
    shown = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return "".join(character if _harmless(character) else _escape(character) for character in shown)


def _harmless(character: str) -> bool:
    return character in "\n\t" or (character.isprintable() or character == "�")


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _refuse_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is not JSON")


def _unique_object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the object key {key!r} stands twice")
            seen.add(key)
    return found


def _finite(text: str) -> float:
    # json would read 1e999 as an infinity.
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is beyond the range of a float")
    return value


def _refuse_foreign_keys(value: object, depth: int = 0) -> None:
    # json.dumps would write 1 and "1" as the same key.
    if depth > NESTING_MAX:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        for key, inner in value.items():
            if type(key) is not str:
                raise TypeError(f"a JSON object key must be a string, not {type(key).__name__}")
            if isinstance(inner, _CONTAINERS):
                _refuse_foreign_keys(inner, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            if isinstance(inner, _CONTAINERS):
                _refuse_foreign_keys(inner, depth + 1)


_CONTAINERS: Final = (dict, list, tuple)
_decode: Final = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique_object
).decode
