"""httpx clients for the requests of a guarded target, to be given to it or to an SDK that takes one."""

from __future__ import annotations

import functools
import ssl
from typing import Any

import httpx

from .guarded_http import AsyncGuardedTransport, GuardedTransport
from .recorded_responses import UsageReader

__all__ = ["AsyncLent", "Http", "Lent", "SyncHttp", "httpx_async_client", "httpx_client", "shared_sender"]


class Http(httpx.AsyncClient):
    """What an async target is given for its parameter ``http``: each request is a call of its attempt."""


class SyncHttp(httpx.Client):
    """What a blocking target is given for its parameter ``http``: each request is a call of its attempt."""


def httpx_client(*, usage: UsageReader | None = None, **options: Any) -> httpx.Client:
    """An httpx client whose requests are calls of the attempt that is going on, for an SDK or for a target's own use.

    ``openai.OpenAI(http_client=ts.httpx_client(), max_retries=0)``. ``usage`` reads from a response's JSON what it
    used, where that does not stand where OpenAI and Anthropic put it. Other options are httpx's own; ``transport`` is
    what sends. The target has to be declared: ``@target(guarded=True)``.
    """
    sender = options.pop("transport", None) or httpx.HTTPTransport(**_sending(options))
    return SyncHttp(transport=GuardedTransport(sender, usage=usage), **_defaults(options))


def httpx_async_client(*, usage: UsageReader | None = None, **options: Any) -> httpx.AsyncClient:
    """`httpx_client` for an event loop; use it on one loop alone, as any httpx client."""
    sender = options.pop("transport", None) or httpx.AsyncHTTPTransport(**_sending(options))
    return Http(transport=AsyncGuardedTransport(sender, usage=usage), **_defaults(options))


def _sending(options: dict[str, Any]) -> dict[str, Any]:
    """The options that a transport takes, taken out of the client's."""
    names = ("cert", "http1", "http2", "limits", "proxy", "verify")
    taken = {name: options.pop(name) for name in names if name in options}
    taken.setdefault("verify", _context())
    return taken


def _defaults(options: dict[str, Any]) -> dict[str, Any]:
    # The attempt has a deadline; httpx's own five seconds would make unknown outcomes of slow answers.
    return {"timeout": httpx.Timeout(None, connect=10.0), "trust_env": False, **options}


@functools.cache
def _context() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # takes milliseconds, and is the same for all


def shared_sender(*, is_for_loop: bool) -> httpx.HTTPTransport | httpx.AsyncHTTPTransport:
    """What sends for all clients of one target; the caller closes it."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    kind = httpx.AsyncHTTPTransport if is_for_loop else httpx.HTTPTransport
    return kind(verify=_context(), limits=limits)


class Lent(httpx.BaseTransport):
    """A sender that its borrower cannot close."""

    def __init__(self, sender: httpx.BaseTransport) -> None:
        self.handle_request = sender.handle_request  # type: ignore[method-assign]


class AsyncLent(httpx.AsyncBaseTransport):
    """The same for an event loop."""

    def __init__(self, sender: httpx.AsyncBaseTransport) -> None:
        self.handle_async_request = sender.handle_async_request  # type: ignore[method-assign]
