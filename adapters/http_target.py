"""Targets that answer over HTTP.

One dispatch is one send; nothing is sent again by itself. What the outcome is depends on how far the exchange came: no
byte left, refused; a reply that says so, refused or failed; bytes left and no whole reply, unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urljoin

import attrs

from ..ledger.canonical import JsonValue
from ..ledger.states import DispatchState
from ..runner.protocols import Dispatching, Outcome, Prepared, QueryAnswer, QueryState, SlotView, WireProgress
from .bodies import BodyReader, read_body_rules
from .event_stream import read_event_rules
from .http_outcomes import StatusRules, outcome_of_cut, outcome_of_reply
from .http_query import read_query
from .http_request import Headers, read_requests
from .http_table import HttpTable
from .outcomes import one_line
from .priced_target import PRICING_KEYS, PricedTarget
from .secrets import Redactor, SecretTable, header_value, secret_value
from .tables import read_table
from .wire import Reply, Wire, WireCut, WireRequest
from .wire_stream import NotConnected
from .wire_tls import tls_context

__all__ = ["HttpTarget", "from_work_order"]

_HOPS_MAX: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_NOT_IDENTITY: Final = frozenset(
    {
        *("connections", "connect_seconds", "keepalive_seconds", "proxy", "ca_file", "body_bytes_max"),
        *("if_unknown", "key_valid_seconds", "query", "idempotency_header"),
        *PRICING_KEYS,
    }
)


def from_work_order(table: Mapping[str, Any], *, folder: Path, place: str) -> HttpTarget:
    """The target that a work order's table says; raises WorkOrderInvalid."""
    return HttpTarget(read_table(HttpTable, table, place=place), folder=folder, place=place)


class HttpTarget(PricedTarget):
    """A service behind a URL. Serves one event loop at a time, between `open` and `close`."""

    kind = "http"
    is_wire_visible = True

    def __init__(self, table: HttpTable, *, folder: Path, place: str, replies: BodyReader | None = None) -> None:
        """``replies`` reads the bodies where the table does not say how."""
        PricedTarget.__init__(self, table, folder=folder, place=place)
        self.if_unknown = table.if_unknown
        self.key_valid_seconds = table.key_valid_seconds
        # A dispatch may be as many requests as hops; a hard budget of dispatches sets all of them aside.
        self.wire_sends_max = _HOPS_MAX + 1 if table.follow_redirects else 1
        self._table = table
        self._place = place
        self._ca_file = None if table.ca_file is None else folder / table.ca_file
        self._requests = read_requests(table, place=place)
        self.takes_turns, self.needs_turns = self._requests.turn_needs.hears, self._requests.turn_needs.needs
        bodies = read_body_rules(table, place=place)
        self._bodies: BodyReader = bodies if replies is None else replies
        if table.events is not None:
            self._bodies = read_event_rules(table.events, bodies, place=f"{place}.events")
        refused = None if table.refused_statuses is None else frozenset(table.refused_statuses)
        self._statuses = StatusRules(refused=refused, unknown=frozenset(table.unknown_statuses))
        self._query = None
        if table.query is not None:
            origin = self._requests.origin
            self._query = read_query(table.query, origin=origin, bodies=bodies, place=f"{place}.query")
        self._wire: Wire | None = None
        self._secret_headers: Headers = []
        self._secret_params = ""
        self._redactor = Redactor.of(())

    def identity(self) -> Mapping[str, JsonValue]:
        """The table without what only says how fast and how often, and without what is at its default."""
        told = self._table.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=set(_NOT_IDENTITY))
        return {"kind": self.kind, **told}

    def prepare(self, slot: SlotView) -> Prepared:
        return self._requests.prepare(slot)

    def check(self) -> None:
        self._resolve_secrets()
        if self._requests.origin.scheme == "https":
            tls_context(self._ca_file, place=self._place)

    def _resolve_secrets(self) -> None:
        table = self._table
        headers = {name: value for name, value in table.headers.items() if isinstance(value, SecretTable)}
        params = {name: value for name, value in table.params.items() if isinstance(value, SecretTable)}
        values = {name: header_value(value, place=f"{self._place}.headers.{name}") for name, value in headers.items()}
        texts = {name: secret_value(value, place=f"{self._place}.params.{name}") for name, value in params.items()}
        self._secret_headers = [(name.encode("ascii"), value) for name, value in values.items()]
        self._secret_params = "&".join(f"{quote(name, safe='')}={quote(text, safe='')}" for name, text in texts.items())
        named = [*headers.values(), *params.values()]
        bare = [secret_value(SecretTable(env=secret.env), place=self._place) for secret in named]
        self._redactor = Redactor.of([*bare, *(quote(value, safe="") for value in bare)])

    async def open(self) -> None:
        self._resolve_secrets()
        table, origin = self._table, self._requests.origin
        self._wire = Wire(
            scheme=origin.scheme,
            host=origin.host,
            port=origin.port,
            connect_seconds=table.connect_seconds,
            keepalive_seconds=table.keepalive_seconds,
            connections=table.connections,
            ssl_context=tls_context(self._ca_file, place=self._place) if origin.scheme == "https" else None,
            proxy=table.proxy,
        )

    async def dispatch(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:
        progress = dispatching.progress
        reply = Reply()
        try:
            request = self._requests.wire_request(
                prepared, dispatching, secret_headers=self._secret_headers, secret_params=self._secret_params
            )
            async with asyncio.timeout(dispatching.deadline_seconds):
                outcome = await self._exchange(request, reply, progress)
        except NotConnected as fault:
            outcome = _not_sent(fault.reason, str(fault))
        except WireCut as fault:
            outcome = self._cut(reply, progress, fault.reason, str(fault))
        except TimeoutError:
            told = f"no whole reply within {dispatching.deadline_seconds:g} s"
            if progress.bytes_sent == 0:
                outcome = _not_sent("connect.timeout", f"no connection within {dispatching.deadline_seconds:g} s")
            else:
                outcome = self._cut(reply, progress, "deadline", told)
        except Exception as fault:  # noqa: BLE001 - a dispatch says what became of it, whatever happens
            told = self._redactor.text(f"{type(fault).__name__}: {fault}")
            if progress.bytes_sent == 0:
                outcome = attrs.evolve(_not_sent("adapter.error", told), state=DispatchState.FAILED)
            else:
                outcome = self._cut(reply, progress, "adapter.error", told)
        finally:
            self._redactor.clean(progress.partial)
        return self._redacted(self.priced(outcome), progress)

    async def _exchange(self, request: WireRequest, reply: Reply, progress: WireProgress) -> Outcome:
        assert self._wire is not None, "open() comes before dispatch()"
        redirected = 0
        for _ in range(_HOPS_MAX + 1):
            bytes_max = self._table.body_bytes_max
            await self._wire.send(request, reply, progress=progress, body_bytes_max=bytes_max)
            self._redactor.clean(progress.partial)
            if reply.status not in _REDIRECTS or reply.header(b"location") is None:
                return outcome_of_reply(reply, bytes(progress.partial), statuses=self._statuses, bodies=self._bodies)
            followed = self._next_hop(request, reply)
            if isinstance(followed, str):
                return _redirect(reply, followed)
            request, redirected = followed, reply.status
            reply.status, reply.headers = 0, ()
            progress.partial.clear()
        reply.status = redirected
        return _redirect(reply, f"more than {_HOPS_MAX} redirects")

    def _next_hop(self, request: WireRequest, reply: Reply) -> WireRequest | str:
        """The request of the next hop, or why there is none."""
        origin = self._requests.origin.text
        location = urljoin(origin + request.target.decode("ascii"), reply.header(b"location") or "")
        shown = one_line(self._redactor.text(location.partition("?")[0]))
        if not self._table.follow_redirects:
            return f"a redirect to {shown}, which is not followed"
        if not location.startswith((origin + "/", origin + "?")) and location != origin:
            return f"a redirect to another origin, {shown}, is never followed"
        target = location.partition("#")[0][len(origin) :]
        target = quote(target if target.startswith("/") else f"/{target}", safe="%/:?[]@!$&'()*+,;=~")
        if reply.status == 303:
            headers = [(name, value) for name, value in request.headers if not name.lower().startswith(b"content-")]
            return WireRequest(b"GET", target.encode("ascii"), headers, b"")
        if reply.status in {301, 302} and request.method != b"GET":
            return f"{reply.status} does not say whether {request.method.decode()} may be sent again"
        return attrs.evolve(request, target=target.encode("ascii"))

    def _cut(self, reply: Reply, progress: WireProgress, reason: str, message: str) -> Outcome:
        body = self._redactor.without_tail(bytes(progress.partial))
        return outcome_of_cut(reply, body, reason=reason, message=message, statuses=self._statuses, bodies=self._bodies)

    def _redacted(self, outcome: Outcome, progress: WireProgress) -> Outcome:
        outcome = self._redactor.outcome(outcome)
        if outcome.bytes_sent == 0 and not progress.wire_sends:
            return outcome
        return attrs.evolve(outcome, bytes_sent=progress.bytes_sent, wire_sends=progress.wire_sends)

    async def query(self, request_id: str, prepared: Prepared) -> QueryAnswer:  # noqa: ARG002 - the id is enough
        assert self._wire is not None, "open() comes before query()"
        if self._query is None:
            return QueryAnswer(QueryState.NO_PROOF, message="the work order does not say how to ask")
        reply, progress = Reply(), WireProgress()
        host = self._requests.origin.host_header.encode("ascii")
        headers = [(b"Host", host), (b"Accept", b"*/*"), (b"User-Agent", b"tallystick"), *self._secret_headers]
        if self._query.method == b"POST":
            headers.append((b"Content-Length", b"0"))
        request = WireRequest(self._query.method, self._query.target(request_id), headers, b"")
        try:
            async with asyncio.timeout(self._query.deadline_seconds):
                bytes_max = self._table.body_bytes_max
                await self._wire.send(request, reply, progress=progress, body_bytes_max=bytes_max)
            found = self._query.read(reply, self._redactor.bytes(bytes(progress.partial)))
            outcome = None if found.outcome is None else self._redactor.outcome(found.outcome)
            return attrs.evolve(found, outcome=outcome, message=self._redactor.text(found.message))
        except TimeoutError:
            return QueryAnswer(QueryState.NO_PROOF, message="no whole reply to the query in time")
        except (NotConnected, WireCut) as fault:
            return QueryAnswer(QueryState.NO_PROOF, message=one_line(self._redactor.text(str(fault))))

    async def close(self) -> None:
        wire, self._wire = self._wire, None
        self._secret_headers, self._secret_params = [], ""
        if wire is not None:
            await wire.close()


def _not_sent(reason: str, message: str) -> Outcome:
    state = DispatchState.FAILED if reason == "request.invalid" else DispatchState.REFUSED
    return Outcome(state=state, reason=reason, message=one_line(message), bytes_sent=0, wire_sends=0)


def _redirect(reply: Reply, why: str) -> Outcome:
    message = f"{reply.status}: {why}"
    return Outcome(state=DispatchState.FAILED, reason="http.redirect", message=message, status=reply.status)
