"""HTTP requests made from a work order's templates: what can be prepared without I/O, and what is added at dispatch."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote

import attrs

from ..ledger.canonical import JsonValue
from ..ledger.errors import WorkOrderInvalid
from ..runner.protocols import Case, Dispatching, Prepared, SlotView
from .errors import CaseUnfit
from .http_table import HttpTable, Origin, read_origin
from .outcomes import one_line
from .secrets import SecretTable
from .templates import TextTemplate, TurnNeeds, read_json_template, read_text_template, text_of
from .wire import WireRequest
from .wire_body import ENCODINGS

__all__ = ["Headers", "HttpRequests", "read_requests"]

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_OURS: Final = frozenset({"connection", "content-encoding", "content-length", "transfer-encoding", "te", "upgrade"})
_SECRET: Final = frozenset({"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"})
_RESERVED: Final = "%/:?#[]@!$&'()*+,;=~"  # RFC 3986: what stands in a URL as it is
NO_SLOT: Final = SlotView("", Case("", None), "", 0)  # for templates without placeholders

Headers = list[tuple[bytes, bytes]]


@attrs.frozen
class HttpRequests:
    """Makes the requests of one target. Secrets are not in it; they come with `wire_request`."""

    origin: Origin
    _method: bytes
    _url: TextTemplate
    _params: Mapping[str, TextTemplate]
    _body: Callable[[SlotView], bytes] | None
    _fixed: Headers
    _rendered: Mapping[str, TextTemplate]
    _idempotency_header: bytes
    turn_needs: TurnNeeds = TurnNeeds()
    _static_head: Mapping[str, JsonValue] | None = None

    def with_static_head(self) -> HttpRequests:
        """The same, with the head made once where it is the same for every slot."""
        templates = [self._url, *self._params.values(), *self._rendered.values()]
        is_static = all(template.is_static for template in templates)
        return attrs.evolve(self, static_head=self._head(NO_SLOT) if is_static else None)

    def with_body(self, body: Callable[[SlotView], bytes], turn_needs: TurnNeeds) -> HttpRequests:
        """The same with another maker of bodies, which asks this of a conversation."""
        return attrs.evolve(self, body=body, turn_needs=turn_needs)

    def prepare(self, slot: SlotView) -> Prepared:
        """Body and head; raises CaseUnfit where the case lacks what a template asks for."""
        payload = b"" if self._body is None else self._body(slot)
        return Prepared(payload=payload, head=self._static_head or self._head(slot))

    def _head(self, slot: SlotView) -> Mapping[str, JsonValue]:
        target = quote(self._url.render(slot, escape=_quoted), safe=_RESERVED)
        if self._params:
            target += ("&" if "?" in target else "?") + _pairs(self._params, slot)
        head: dict[str, JsonValue] = {"method": self._method.decode(), "url": self.origin.text + target}
        if self._rendered:
            head["headers"] = {name: _header_text(name, text, slot) for name, text in self._rendered.items()}
        return head

    def wire_request(
        self, prepared: Prepared, dispatching: Dispatching, *, secret_headers: Headers, secret_params: str
    ) -> WireRequest:
        """What goes out: the prepared request, the request id, the fence and the secrets."""
        url = prepared.head["url"]
        assert isinstance(url, str)
        target = url[len(self.origin.text) :]
        if secret_params:
            target += ("&" if "?" in target else "?") + secret_params
        headers = [*self._fixed, *secret_headers, (self._idempotency_header, dispatching.request_id.encode())]
        if dispatching.fence is not None:
            headers.append((b"Tallystick-Fence", b"%d" % dispatching.fence))
        rendered = prepared.head.get("headers")
        if isinstance(rendered, Mapping):
            headers.extend((name.encode("ascii"), str(text).encode()) for name, text in rendered.items())
        if self._body is not None or self._method != b"GET":
            headers.append((b"Content-Length", b"%d" % len(prepared.payload)))
        return WireRequest(self._method, target.encode("ascii"), headers, prepared.payload)


def read_requests(table: HttpTable, *, place: str) -> HttpRequests:
    """Compile the templates of a table; raises WorkOrderInvalid."""
    origin, rest = read_origin(table.url, place=f"{place}.url")
    _refuse_headers(table, place)
    body, content_type, needs = _read_body(table, place)
    headers = {
        name: read_text_template(text, place=f"{place}.headers.{name}")
        for name, text in table.headers.items()
        if isinstance(text, str)
    }
    url = read_text_template(rest, place=f"{place}.url")
    params = {
        name: read_text_template(text_of(value), place=f"{place}.params.{name}")
        for name, value in table.params.items()
        if not isinstance(value, SecretTable)
    }
    for template in (url, *params.values(), *headers.values()):
        needs |= template.turn_needs
    made = HttpRequests(
        origin=origin,
        method=table.method.encode(),
        url=url,
        params=params,
        body=body,
        fixed=_fixed_headers(origin, content_type, headers),
        rendered={name: template for name, template in headers.items() if not template.is_static},
        idempotency_header=table.idempotency_header.encode("ascii"),
        turn_needs=needs,
    )
    return made.with_static_head()


def _read_body(table: HttpTable, place: str) -> tuple[Callable[[SlotView], bytes] | None, str | None, TurnNeeds]:
    if table.has_json:
        document = read_json_template(table.json_body, place=f"{place}.json")
        return document.render, "application/json", document.turn_needs
    if table.text is not None:
        text = read_text_template(table.text, place=f"{place}.text")

        def encoded(slot: SlotView) -> bytes:
            return text.render(slot).encode("utf-8", "surrogatepass")

        return encoded, "text/plain; charset=utf-8", text.turn_needs
    if table.form is not None:
        fields = {name: read_text_template(text, place=f"{place}.form.{name}") for name, text in table.form.items()}
        needs = functools.reduce(operator.or_, (field.turn_needs for field in fields.values()), TurnNeeds())
        return lambda slot: _pairs(fields, slot).encode("ascii"), "application/x-www-form-urlencoded", needs
    return None, None, TurnNeeds()


def _fixed_headers(origin: Origin, content_type: str | None, headers: Mapping[str, TextTemplate]) -> Headers:
    told = {name: template.render(NO_SLOT) for name, template in headers.items() if template.is_static}
    names = {name.lower() for name in headers}
    usual = {
        "Host": origin.host_header,
        "User-Agent": "tallystick",
        "Accept": "*/*",
        "Accept-Encoding": ENCODINGS,
        "Content-Type": content_type,
    }
    ours = {name: value for name, value in usual.items() if value is not None and name.lower() not in names}
    return [(name.encode("ascii"), value.encode()) for name, value in {**ours, **told}.items()]


def _refuse_headers(table: HttpTable, place: str) -> None:
    for name, value in table.headers.items():
        where, lower = f"{place}.headers.{name}", name.lower()
        if not _TOKEN.fullmatch(name):
            raise WorkOrderInvalid(f"{where}: this is no name of a header", "Correct it", place=where)
        if lower in _OURS or lower == table.idempotency_header.lower():
            raise WorkOrderInvalid(f"{where}: tallystick sets this header itself", "Leave it out", place=where)
        if isinstance(value, str) and lower in _SECRET:
            remedy = f'Name an environment variable: {name} = {{ env = "API_KEY" }}'
            raise WorkOrderInvalid(f"{where}: a secret would be stored", remedy, place=where)
        if isinstance(value, str) and (not _VALUE.fullmatch(value) or value != value.strip()):
            raise WorkOrderInvalid(f"{where}: a header holds one line without spaces at its ends", place=where)
    where = f"{place}.idempotency_header"
    if not _TOKEN.fullmatch(table.idempotency_header):
        raise WorkOrderInvalid(f"{where}: this is no name of a header", "Correct it", place=where)


def _header_text(name: str, template: TextTemplate, slot: SlotView) -> str:
    text = template.render(slot).strip()
    if not _VALUE.fullmatch(text):
        case_id = slot.case.id
        what = f'case "{one_line(case_id)}" has control characters for the header {name}, which holds one line'
        raise CaseUnfit(what, "Take them out of the case, or send the value in the body", case_id=case_id)
    return text


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def _pairs(fields: Mapping[str, TextTemplate], slot: SlotView) -> str:
    return "&".join(f"{_quoted(name)}={_quoted(text.render(slot))}" for name, text in fields.items())
