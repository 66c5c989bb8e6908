"""httpx clients for the requests of a guarded target, to be given to it or to an SDK that takes one.

httpx2, to which SDKs of models have gone over, is no dependency: who asks for a client of it has an SDK that needs it.
"""

from __future__ import annotations

import functools
import importlib
import ssl
from typing import TYPE_CHECKING, Any, cast

import httpx

from ..ledger.errors import UsageError
from .guarded_http import AsyncGuardedTransport, GuardedTransport
from .recorded_responses import UsageReader

if TYPE_CHECKING:
    import httpx2

__all__ = [
    "AsyncLent",
    "Http",
    "Lent",
    "SyncHttp",
    "httpx2_async_client",
    "httpx2_client",
    "httpx_async_client",
    "httpx_client",
    "shared_sender",
]


class Http(httpx.AsyncClient):
    """What an async target is given for its parameter ``http``: each request is a call of its attempt."""


class SyncHttp(httpx.Client):
    """What a blocking target is given for its parameter ``http``: each request is a call of its attempt."""


def httpx_client(*, usage: UsageReader | None = None, **options: Any) -> httpx.Client:
    """An httpx client whose requests are calls of the attempt that is going on, for an SDK or for a target's own use.

    Given to an SDK, ``SDK(http_client=ts.httpx_client(), max_retries=0)``; one that has gone over to httpx2 takes
    `httpx2_client`. ``usage`` reads from a response's JSON what it used, where that does not stand where OpenAI and
    Anthropic put it. Other options are httpx's own; ``transport`` is what sends. The target has to be declared:
    ``@target(guarded=True)``.
    """
    sender = options.pop("transport", None) or httpx.HTTPTransport(**_sending(httpx, options))
    return SyncHttp(transport=GuardedTransport(sender, usage=usage), **_defaults(httpx, options))


def httpx_async_client(*, usage: UsageReader | None = None, **options: Any) -> httpx.AsyncClient:
    """`httpx_client` for an event loop; use it on one loop alone, as any httpx client."""
    sender = options.pop("transport", None) or httpx.AsyncHTTPTransport(**_sending(httpx, options))
    return Http(transport=AsyncGuardedTransport(sender, usage=usage), **_defaults(httpx, options))


def httpx2_client(*, usage: UsageReader | None = None, **options: Any) -> httpx2.Client:
    """`httpx_client` for an SDK that has gone over to httpx2 (OpenAI's 3 and Anthropic's 2 have); raises UsageError."""
    library = _httpx2()
    sender = options.pop("transport", None) or library.HTTPTransport(**_sending(library, options))
    client = library.Client(transport=GuardedTransport(sender, usage=usage), **_defaults(library, options))
    return cast("httpx2.Client", client)


def httpx2_async_client(*, usage: UsageReader | None = None, **options: Any) -> httpx2.AsyncClient:
    """`httpx2_client` for an event loop; use it on one loop alone."""
    library = _httpx2()
    sender = options.pop("transport", None) or library.AsyncHTTPTransport(**_sending(library, options))
    client = library.AsyncClient(transport=AsyncGuardedTransport(sender, usage=usage), **_defaults(library, options))
    return cast("httpx2.AsyncClient", client)


def _httpx2() -> Any:
    try:
        return importlib.import_module("httpx2")
    except ImportError as missing:
        raise UsageError(
            "httpx2 is not installed",
            "install tallystick[httpx2], or give an SDK that takes a client of httpx ts.httpx_client()",
        ) from missing


def _sending(library: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options that a transport takes, taken out of the client's."""
    names = ("cert", "http1", "http2", "limits", "proxy", "verify")
    taken = {name: options.pop(name) for name in names if name in options}
    taken.setdefault("verify", _context(library))
    return taken


def _defaults(library: Any, options: dict[str, Any]) -> dict[str, Any]:
    # The attempt has a deadline; httpx's own five seconds would make unknown outcomes of slow answers.
    return {"timeout": library.Timeout(None, connect=10.0), "trust_env": False, **options}


@functools.cache
def _context(library: Any) -> ssl.SSLContext:
    context: ssl.SSLContext = library.create_ssl_context()  # takes milliseconds, and is the same for all
    return context


def shared_sender(*, is_for_loop: bool) -> httpx.HTTPTransport | httpx.AsyncHTTPTransport:
    """What sends for all clients of one target; the caller closes it."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    kind = httpx.AsyncHTTPTransport if is_for_loop else httpx.HTTPTransport
    return kind(verify=_context(httpx), limits=limits)


class Lent(httpx.BaseTransport):
    """A sender that its borrower cannot close."""

    def __init__(self, sender: httpx.BaseTransport) -> None:
        self.handle_request = sender.handle_request  # type: ignore[method-assign]


class AsyncLent(httpx.AsyncBaseTransport):
    """The same for an event loop."""

    def __init__(self, sender: httpx.AsyncBaseTransport) -> None:
        self.handle_async_request = sender.handle_async_request  # type: ignore[method-assign]
