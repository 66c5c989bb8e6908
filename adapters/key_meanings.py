"""What a key of a guard stands for: which function, with which code, on which arguments."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import attrs

from ..ledger.canonical import JsonValue, canonical_text, digest_of_value
from .callables import code_digest, name_of
from .outcomes import NotJson, as_json

__all__ = ["meaning_of_call"]


def meaning_of_call(function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> str:
    """Canonical JSON text of the call: a changed function, changed code of it or a changed argument changes the text.

    Of an argument that has no JSON form, and is no dataclass, attrs class or pydantic model of such, only the type
    counts. Of the code, only the function's own, with the defaults of its parameters.
    """
    while isinstance(function, functools.partial):
        args, keywords = (*function.args, *args), {**function.keywords, **keywords}
        function = function.func
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


def _told(value: Any) -> JsonValue:
    try:
        return as_json(_plain(value))
    except (NotJson, ValueError, TypeError, RecursionError):
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
