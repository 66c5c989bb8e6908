"""Asking an HTTP target by request id what became of a request."""

from __future__ import annotations

from typing import Final

import attrs

from ..ledger.canonical import JsonValue, parse_json
from ..ledger.errors import WorkOrderInvalid
from ..runner.protocols import Missing, Outcome, QueryAnswer, QueryState
from .bodies import BodyRules
from .http_table import Origin, QueryRuleTable, QueryTable, read_origin
from .outcomes import one_line
from .paths import Path, read_path
from .wire import Reply

__all__ = ["HttpQuery", "read_query"]

_ID: Final = "{{request_id}}"


@attrs.frozen
class QueryRule:
    """A reply has this meaning where its status is one of these and the value at the path is this one."""

    statuses: frozenset[int]
    path: Path | None
    value: JsonValue

    def holds(self, status: int, document: JsonValue | Missing) -> bool:
        if self.statuses and status not in self.statuses:
            return False
        if self.path is None:
            return True
        found = document if isinstance(document, Missing) else self.path.find(document)
        return not isinstance(found, Missing) and type(found) is type(self.value) and found == self.value


@attrs.frozen
class HttpQuery:
    """How one target is asked. Only a reply that the work order has declared to say so is proof of *never*."""

    method: bytes
    deadline_seconds: float
    bodies: BodyRules
    _target: str
    _never: QueryRule | None
    _pending: QueryRule
    _landed: QueryRule

    def target(self, request_id: str) -> bytes:
        """The origin-form target for a request id."""
        return self._target.replace(_ID, request_id).encode("ascii")

    def read(self, reply: Reply, body: bytes) -> QueryAnswer:
        """What the reply says; a status that no rule knows (404 is the usual one) proves nothing."""
        told = f"{reply.status}: {one_line(body[:400].decode('utf-8', 'replace'), length_max=200)}"
        document: JsonValue | Missing
        try:
            document = parse_json(body)
        except (ValueError, RecursionError):
            document = None
        if self._never is not None and self._never.holds(reply.status, document):
            return QueryAnswer(QueryState.NEVER, message=told)
        if self._pending.holds(reply.status, document):
            return QueryAnswer(QueryState.PENDING, message=told)
        if self._landed.holds(reply.status, document) and reply.fault is None:
            return QueryAnswer(QueryState.LANDED, self._outcome(reply, body), message=told)
        return QueryAnswer(QueryState.NO_PROOF, message=told)

    def _outcome(self, reply: Reply, body: bytes) -> Outcome:
        outcome = self.bodies.outcome(body, told=str(reply.status))
        return attrs.evolve(outcome, raw=body, status=reply.status, wire_sends=0, bytes_sent=None)


def read_query(table: QueryTable, *, origin: Origin, bodies: BodyRules, place: str) -> HttpQuery:
    """Compile the table; raises WorkOrderInvalid."""
    asked, target = read_origin(table.url, place=f"{place}.url")
    if asked != origin:
        remedy = f"Ask {origin.text}"
        raise WorkOrderInvalid(
            f"{place}.url: {asked.text} is not the target's own origin", remedy, place=f"{place}.url"
        )
    if "{{" in target.replace(_ID, "") or not target.isascii():
        remedy = f"Only {_ID} can be put in"
        raise WorkOrderInvalid(f"{place}.url: this is no URL for a request id", remedy, place=f"{place}.url")
    if table.answer is not None:
        answer = None if table.answer == "text" else read_path(table.answer, place=f"{place}.answer")
        bodies = attrs.evolve(bodies, answer=answer)
    return HttpQuery(
        method=table.method.encode(),
        deadline_seconds=table.deadline_seconds,
        bodies=bodies,
        target=target,
        never=None if table.never is None else _rule(table.never, f"{place}.never"),
        pending=_rule(table.pending or QueryRuleTable(status=[202]), f"{place}.pending"),
        landed=_rule(table.landed or QueryRuleTable(status=[*range(200, 300)]), f"{place}.landed"),
    )


def _rule(table: QueryRuleTable, place: str) -> QueryRule:
    path = None if table.path is None else read_path(table.path, place=f"{place}.path")
    return QueryRule(frozenset(table.status), path, table.equals)
