"""What a key of a guard stands for: which function, with which code, on which arguments."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, Final

import attrs

from ..ledger.canonical import JsonValue, canonical_text, digest_of_bytes, digest_of_value
from ..ledger.errors import UsageError
from .callables import code_digest, name_of
from .outcomes import NotJson, as_json

__all__ = ["meaning_of_call"]

_DEPTH_MAX: Final = 8


def meaning_of_call(function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> str:
    """Canonical JSON text of the call: a changed function, changed code of it or a changed argument changes the text.

    Of an argument, or a part of one, that has no JSON form and is no bytes, dataclass, attrs class or pydantic model,
    only the type counts. Of the code, only the function's own, with the defaults of its parameters. Raises UsageError
    for what cannot be called.
    """
    while isinstance(function, functools.partial):
        args, keywords = (*function.args, *args), {**function.keywords, **keywords}
        function = function.func
    if not callable(function):
        raise UsageError(
            f"what is to be called is no function, but of type {type(function).__name__}",
            "give the function itself, and its arguments after it: guard.call(key, function, argument)",
        )
    told: dict[str, JsonValue] = {
        "function": name_of(function),
        "code": _code_of(function),
        "args": [_told(value) for value in args],
    }
    if keywords:
        told["keywords"] = {name: _told(value) for name, value in keywords.items()}
    return canonical_text(told)


def _code_of(function: Callable[..., Any]) -> JsonValue:
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return None
    defaults = [*(getattr(function, "__defaults__", None) or ()), getattr(function, "__kwdefaults__", None)]
    told: JsonValue = [_told(value) for value in defaults]
    # Whether there are any, not whether they are true: a default may be an array, and 0 is not None.
    has_any = any(one is not None for one in defaults)
    return digest_of_value([code_digest(code), told]) if has_any else code_digest(code)


def _told(value: Any, around: tuple[int, ...] = ()) -> JsonValue:
    """JSON of the value; what of it has none is told by itself, so that it does not hide a change of its neighbours.

    ``around`` are the containers that it stands in.
    """
    plain = value
    try:
        plain = _plain(value)
        return as_json(plain)
    except (NotJson, ValueError, TypeError, RecursionError):
        inside = (*around, id(plain))
        if isinstance(plain, bytes | bytearray):
            return {"bytes": digest_of_bytes(bytes(plain))}
        if id(plain) not in around and len(around) < _DEPTH_MAX:
            if isinstance(plain, dict):
                pairs = [[_told(name, inside), _told(part, inside)] for name, part in plain.items()]
                return {"mapping": sorted(pairs, key=canonical_text)}
            if isinstance(plain, list | tuple):
                return [_told(part, inside) for part in plain]
        return {"type": f"{type(value).__module__}.{type(value).__qualname__}"}


def _plain(value: Any) -> Any:
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if dataclasses.is_dataclass(value):
        return dataclasses.asdict(value)  # type: ignore[arg-type]  # classes were asked for
    if attrs.has(type(value)):
        return attrs.asdict(value)
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else value
