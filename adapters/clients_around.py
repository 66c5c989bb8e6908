"""Clients that a guarded target's code reaches beside its guarded one, as far as its names tell.

What a function sends through one of these is seen by nobody: no budget counts it, and no replay gives it back. Looked
for are the module's names that the function's own code uses, and what it calls of httpx and urllib; what it imports
inside, or hides, is not found.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

__all__ = ["clients_around", "retries_of"]

_MODULES: Final = frozenset({"requests", "urllib3", "aiohttp"})
_SENDING: Final = {
    "httpx": frozenset({"get", "post", "put", "patch", "delete", "head", "options", "request", "stream"}),
    "httpx2": frozenset({"get", "post", "put", "patch", "delete", "head", "options", "query", "request", "stream"}),
    "urllib.request": frozenset({"urlopen", "urlretrieve"}),
}
"""Functions that send at once, by the module that has them; the rest of these modules sends nothing by itself."""


def clients_around(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names under which the function can send past its guarded client, sorted."""
    found = {name for name, value in _reached(function) if _goes_around(value)}
    return tuple(sorted(found | set(_called(function))))


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
    code, known = _code_of(function)
    for one in dis.get_instructions(code) if code is not None else ():
        if one.opname == "LOAD_GLOBAL" and (value := known.get(one.argval)) is not None:
            yield str(one.argval), value


def _called(function: Callable[..., Any]) -> Iterator[str]:
    """What the function's own code takes from a module to send with, as it is written there: ``httpx.post``."""
    code, known = _code_of(function)
    written, value = "", None
    for one in dis.get_instructions(code) if code is not None else ():
        if one.opname == "LOAD_GLOBAL":
            written, value = str(one.argval), known.get(one.argval)
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, ModuleType):
            if one.argval in _SENDING.get(value.__name__, ()):
                yield f"{written}.{one.argval}"
            written, value = f"{written}.{one.argval}", getattr(value, str(one.argval), None)
        else:
            value = None


def _code_of(function: Callable[..., Any]) -> tuple[CodeType | None, Mapping[str, Any]]:
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    return (code if isinstance(code, CodeType) else None), getattr(function, "__globals__", {})


def _goes_around(value: Any) -> bool:
    if isinstance(value, ModuleType):
        return value.__name__ in _MODULES
    if isinstance(value, FunctionType):
        home = value.__module__
        return home.partition(".")[0] in _MODULES or _sends_at_once(value.__name__, home)
    client = _client_of(value)
    return client is not None and not _is_guarded(client)


def _sends_at_once(name: str, home: str) -> bool:
    return any(name in names and (home == module or home == f"{module}._api") for module, names in _SENDING.items())


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
