"""Clients that a guarded target's code reaches beside its guarded one, as far as its names tell.

What a function sends through one of these is seen by nobody: no budget counts it, and no replay gives it back. Looked
for are the module's names that the function's own code uses; what it imports inside, or hides, is not found.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any, Final

__all__ = ["clients_around", "retries_of"]

_MODULES: Final = frozenset({"requests", "urllib3", "aiohttp"})


def clients_around(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names under which the function can send past its guarded client, sorted."""
    return tuple(sorted({name for name, value in _reached(function) if _goes_around(value)}))


def retries_of(function: Callable[..., Any]) -> dict[str, int]:
    """How often each SDK client that the function uses retries by itself, by name, where it says so."""
    found: dict[str, int] = {}
    for name, value in _reached(function):
        retries = getattr(value, "max_retries", None)
        if isinstance(retries, int) and not isinstance(retries, bool) and retries > 0 and _client_of(value) is not None:
            found[name] = retries
    return found


def _reached(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """The module's names that the function's own code uses; what it defines inside may be a step, and is left out."""
    while isinstance(function, functools.partial):
        function = function.func
    code, known = getattr(function, "__code__", None), getattr(function, "__globals__", None)
    if not isinstance(code, CodeType) or known is None:
        return
    for name in code.co_names:
        if (value := known.get(name)) is not None:
            yield name, value


def _goes_around(value: Any) -> bool:
    if isinstance(value, ModuleType):
        return value.__name__ in _MODULES
    client = _client_of(value)
    return client is not None and not _is_guarded(client)


def _client_of(value: Any) -> Any:
    """The httpx client that a name is, or that an SDK's client has inside; None where it is neither."""
    if isinstance(value, type):
        return None
    found = [sys.modules.get(name) for name in ("httpx", "httpx2")]
    kinds = tuple(kind for library in found if library for kind in (library.Client, library.AsyncClient))
    client = value if isinstance(value, kinds) else getattr(value, "_client", None)
    return client if isinstance(client, kinds) else None


def _is_guarded(client: Any) -> bool:
    from .guarded_http import AsyncGuardedTransport, GuardedTransport

    return isinstance(getattr(client, "_transport", None), GuardedTransport | AsyncGuardedTransport)
