"""The table of a target of kind ``http``, and what it is compiled to."""

from __future__ import annotations

from typing import Any, Final, Literal
from urllib.parse import SplitResult, urlsplit

import attrs
from pydantic import Field, model_validator

from ..ledger.errors import WorkOrderInvalid
from ..ledger.states import IfUnknown
from .event_stream import EventsTable
from .priced_target import PricedTable
from .secrets import SecretTable
from .tables import Table

__all__ = ["HttpTable", "Origin", "QueryRuleTable", "QueryTable", "read_origin"]

_PORTS: Final = {"http": 80, "https": 443}


class QueryRuleTable(Table):
    """When a reply to a query has a meaning: by its status, or by a value in its body."""

    status: list[int] = Field([], description="The statuses that have this meaning.")
    path: str | None = Field(None, description="Where the value stands that has this meaning.")
    equals: Any = Field(None, description="The value.")

    @model_validator(mode="after")
    def _says_something(self) -> QueryRuleTable:
        if not self.status and self.path is None:
            raise ValueError("a rule needs status, or path and equals")
        return self


class QueryTable(Table):
    """How the target is asked what became of a request id (``if_unknown = "query"``)."""

    url: str = Field(description='Where to ask, with "{{request_id}}" in it; of the same origin as the target.')
    method: Literal["GET", "POST"] = Field("GET", description="How it is asked.")
    answer: str | None = Field(None, description="Where the answer stands in the reply; as in the target if absent.")
    landed: QueryRuleTable | None = Field(None, description="It was done; 200 to 299 if absent.")
    pending: QueryRuleTable | None = Field(None, description="It is being done; 202 if absent.")
    never: QueryRuleTable | None = Field(
        None, description="It was not done and never will be. No reply says so if absent."
    )
    deadline_seconds: float = Field(30.0, gt=0, description="Total time of a query.")


class HttpTable(PricedTable):
    """The table of a target of kind ``http``."""

    url: str = Field(description="Where requests go; placeholders may stand after the origin.")
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = Field("POST", description="The method of the request.")
    headers: dict[str, str | SecretTable] = Field({}, description="Text, or `{ env = NAME, prefix = … }` for a secret.")
    params: dict[str, str | int | float | bool | SecretTable] = Field({}, description="Query parameters of the URL.")
    json_body: Any = Field(None, alias="json", description="Template of a JSON body.")
    form: dict[str, str] | None = Field(None, description="Template of a form body.")
    text: str | None = Field(None, description="Template of a text body.")
    refused_statuses: list[int] | None = Field(
        None, description="Statuses that say: not done. If absent, 429, and 503 where it has Retry-After."
    )
    unknown_statuses: list[int] = Field([502, 504], description="Statuses that do not say whether it was done.")
    follow_redirects: bool = Field(False, description="Follow redirects within the same origin, 5 at most.")
    body_bytes_max: int = Field(8 * 1024 * 1024, ge=1, le=2**30, description="Bound of a decoded body.")
    connect_seconds: float = Field(10.0, gt=0, description="Bound of connecting, TLS included.")
    keepalive_seconds: float = Field(1.0, ge=0, description="How long an unused connection is used again.")
    events: EventsTable | None = Field(None, description="How an event stream is read; instead of answer.")
    connections: int | None = Field(None, ge=1, description="Bound of connections; the concurrency if absent.")
    idempotency_header: str = Field("Idempotency-Key", description="The header that carries the request id.")
    key_valid_seconds: float | None = Field(None, gt=0, description="How long the target honours a request id.")
    if_unknown: IfUnknown = Field(IfUnknown.KEEP, strict=False, description="What may follow an unknown outcome.")
    query: QueryTable | None = Field(None, description='How to ask by request id, for if_unknown = "query".')
    proxy: str | None = Field(None, description="URL of an HTTP proxy; the environment's is never used.")
    ca_file: str | None = Field(None, description="Certificates to trust, relative to the work order's folder.")
    version: str | None = Field(None, description="Version of what answers; counts in the run's identity.")

    @model_validator(mode="after")
    def _is_of_one_mind(self) -> HttpTable:
        bodies = [name for name in ("json", "form", "text") if name in self._told()]
        if len(bodies) > 1:
            raise ValueError(f"{' and '.join(bodies)} both make the body; give one")
        if bodies and self.method == "GET":
            raise ValueError(f'{bodies[0]} makes a body, and method = "GET" has none')
        if self.events is not None and "answer" in self.model_fields_set:
            raise ValueError("answer and events both say where the answer stands; give one")
        if (self.if_unknown is IfUnknown.QUERY) != (self.query is not None):
            raise ValueError('if_unknown = "query" and the table query go together')
        return self

    def _told(self) -> set[str]:
        return {"json" if name == "json_body" else name for name in self.model_fields_set}

    @property
    def has_json(self) -> bool:
        return "json_body" in self.model_fields_set


@attrs.frozen
class Origin:
    """Scheme, host and port, which no case can change."""

    scheme: str
    host: str
    port: int
    text: str  # as it is written in the URL, "http://127.0.0.1:8080"

    @property
    def host_header(self) -> str:
        return self.text.partition("://")[2]


def read_origin(url: str, *, place: str) -> tuple[Origin, str]:
    """The origin of a URL, and what stands after it; raises WorkOrderInvalid."""
    parts = _split(url, place)
    if parts.scheme not in _PORTS or not parts.hostname:
        remedy = 'Begin it with "http://" or "https://" and a host'
        raise WorkOrderInvalid(f'{place}: "{url}" is no address of a service', remedy, place=place)
    if parts.username is not None or parts.password is not None:
        remedy = "Name an environment variable in headers instead"
        raise WorkOrderInvalid(f"{place}: a URL with a user or password would be stored", remedy, place=place)
    if "{{" in parts.netloc:
        remedy = "Use one target for each host"
        raise WorkOrderInvalid(f"{place}: a placeholder cannot choose the host", remedy, place=place)
    host = parts.hostname.encode("idna").decode("ascii") if not parts.hostname.isascii() else parts.hostname
    port = parts.port or _PORTS[parts.scheme]
    shown = f"[{host}]" if ":" in host else host
    text = f"{parts.scheme}://{shown}" + (f":{parts.port}" if parts.port else "")
    rest = url.partition("#")[0].partition("://")[2][len(parts.netloc) :]
    return Origin(parts.scheme, host, port, text), rest if rest.startswith("/") else f"/{rest}"


def _split(url: str, place: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as fault:
        raise WorkOrderInvalid(f'{place}: "{url}" is no URL ({fault})', "Correct it", place=place) from None
    return parts
