"""The parameter by which a Python target asks for a client whose requests are calls of its attempt.

httpx is imported only where a target asks: it takes longer than everything else here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from .callables import is_async

if TYPE_CHECKING:
    import httpx

__all__ = ["ClientParameter", "client_parameter"]

_NAME: Final = "http"
_TYPES: Final = {"Http": True, "SyncHttp": False}


class ClientParameter:
    """Makes a client for each attempt; all of a target's share one pool of connections, until `close`."""

    def __init__(self, name: str, *, is_for_loop: bool) -> None:
        self.name = name
        self._is_for_loop = is_for_loop
        self._sender: Any = None

    def make(self) -> httpx.Client | httpx.AsyncClient:
        """A client of its own, so that a target that closes it closes nobody else's."""
        from . import guarded_clients

        if self._sender is None:
            self._sender = guarded_clients.shared_sender(is_for_loop=self._is_for_loop)
        if self._is_for_loop:
            return guarded_clients.httpx_async_client(transport=guarded_clients.AsyncLent(self._sender))
        return guarded_clients.httpx_client(transport=guarded_clients.Lent(self._sender))

    async def close(self) -> None:
        """Close the connections; idempotent."""
        sender, self._sender = self._sender, None
        if sender is not None and self._is_for_loop:
            await sender.aclose()
        elif sender is not None:
            sender.close()


def client_parameter(function: Callable[..., Any], arguments: Mapping[str, Any]) -> ClientParameter | None:
    """The parameter that is annotated with `Http` or `SyncHttp`, or named ``http`` and not given by the arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None  # built in, without a signature
    for one in parameters:
        if one.name in arguments or one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        told = _type_name(one.annotation)
        if told in _TYPES:
            return ClientParameter(one.name, is_for_loop=_TYPES[told])
        if one.name == _NAME:
            return ClientParameter(one.name, is_for_loop=is_async(function))
    return None


def _type_name(annotation: Any) -> str:
    """The last part of the annotation's name, also where it is a text (``from __future__ import annotations``)."""
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.rpartition(".")[2]
