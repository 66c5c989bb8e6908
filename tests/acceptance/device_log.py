"""What must hold of a device's own log, and of that log and the ledgers of everybody who used the device together.

The log is the independent witness: one line for each request with a fence, written by the device before anything is
done for it (`tests/fixtures/atlas_device.py`). Everything here is plain SQL and counting, and asks nothing of the
product.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from .invariants import rows

__all__ = ["Line", "check_device_log", "findings_of"]

Line = Mapping[str, Any]

_CALLS: Final = (
    "SELECT c.call_id, c.owner, c.if_unknown, c.fence, c.payload_digest, l.set_id, d.state,"
    " (SELECT count(*) FROM dispatches WHERE call_id = c.call_id), c.intended_us, coalesce(o.answer, t.answer)"
    " FROM calls c JOIN leases l ON l.lease_id = c.lease_id AND l.resource = ?"
    " JOIN dispatches d ON d.call_id = c.call_id"
    " AND d.dispatch_no = (SELECT max(dispatch_no) FROM dispatches WHERE call_id = c.call_id)"
    " LEFT JOIN observations o ON o.call_id = c.call_id LEFT JOIN turns t ON t.call_id = c.call_id"
)


@attrs.frozen
class _Call:
    """A call to the device as its ledger has it; ``state`` is its newest dispatch's, ``holder`` who made it."""

    owner: str
    if_unknown: str
    fence: int
    payload_digest: str
    holder: tuple[Path, str]
    state: str
    dispatches: int
    intended_us: int
    answer: str | None


@attrs.frozen
class _Seen:
    """The log, taken apart: lines of requests in the order of arrival, and what became of each id."""

    lines: Sequence[Line]
    ended: Mapping[str, Line]

    @property
    def done(self) -> list[Line]:
        """What was not rejected."""
        return [line for line in self.lines if line["verdict"] in ("accepted", "repeated")]

    @property
    def own(self) -> list[Line]:
        """Requests with an id of their own; a query has none, it is about another."""
        return [line for line in self.done if line["request_id"] is not None]


def check_device_log(ledgers: Sequence[Path], log: Path, *, resource: str, stale_max: int = 0) -> None:
    """Raise an AssertionError that names everything that does not hold.

    ``stale_max`` bounds the requests that the device refused for their fence: a holder that was frozen between its last
    look at the clock and its send may make one, and nobody else.
    """
    findings = list(findings_of(ledgers, log, resource=resource, stale_max=stale_max))
    assert not findings, "\n".join(findings)


def findings_of(ledgers: Sequence[Path], log: Path, *, resource: str, stale_max: int = 0) -> Iterator[str]:
    """Everything that does not hold."""
    # A half-written line is left out.
    told = [json.loads(line) for line in log.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()]
    ended = {line["request_id"]: line for line in told if line["event"] == "ended"}
    seen = _Seen([line for line in told if line["event"] == "request"], ended)
    calls: dict[str, _Call] = {}
    for ledger in ledgers:
        for call_id, owner, if_unknown, fence, digest, set_id, *more in rows(ledger, _CALLS, resource):
            calls[call_id] = _Call(owner, if_unknown, fence, digest, (ledger, set_id), *more)
    yield from _of_the_log_alone(seen, stale_max)
    strangers = sorted({line["request_id"] or line["about"] for line in seen.done} - calls.keys())
    if strangers:
        yield f"I1: the device did what no ledger had intended: {strangers[:5]}"
        return
    yield from _of_requests(seen, calls)
    yield from _of_holders(seen, calls)
    yield from _of_outcomes(seen, calls)


def _of_the_log_alone(seen: _Seen, stale_max: int) -> Iterator[str]:
    fences = [line["fence"] for line in seen.done]
    if fences != sorted(fences):
        yield "I5: the device did something under an older fence after a newer one"
    stale = [line for line in seen.lines if line["verdict"] == "fence.stale"]
    if len(stale) > stale_max:
        yield f"I5: {len(stale)} requests came under an older fence than one before: {stale[:2]}"
    begun = Counter(line["request_id"] for line in seen.own if line["verdict"] == "accepted")
    if twice := [request_id for request_id, count in begun.items() if count > 1]:
        yield f"I3: requests that were begun twice: {twice[:5]}"
    roles: dict[int, list[str]] = defaultdict(list)
    for line in seen.done:
        roles[line["fence"]].append(line["role"])
    for fence, told in roles.items():
        before = told[: told.index("submit")] if "submit" in told else told
        if told[0] != "fence" or ("submit" in told and "reset" not in before):
            yield f"I5: the holder of fence {fence} did not look at the device before its first request: {told[:5]}"


def _of_requests(seen: _Seen, calls: Mapping[str, _Call]) -> Iterator[str]:
    for line in seen.own:
        call = calls[line["request_id"]]
        # What is sent again under a later lease goes out under that one's fence.
        if line["fence"] > call.fence or (call.dispatches == 1 and line["fence"] != call.fence):
            name, fence = line["request_id"], line["fence"]
            yield f"I5: request {name} came under fence {fence} and was intended under {call.fence}"
        if line["at"] * 1e6 < call.intended_us:
            yield f"I1: request {line['request_id']} came before it was intended"
        if line["role"] == "submit" and line["payload_digest"] != call.payload_digest:
            yield f"I1: request {line['request_id']} came with other bytes than were committed"
    arrived = Counter(line["request_id"] for line in seen.own)
    for request_id, count in arrived.items():
        call = calls[request_id]
        if count > 1 and call.if_unknown != "resend":
            yield f"I3: request {request_id} ({call.if_unknown}) was sent {count} times and not refused"
        if count > call.dispatches:
            yield f"I1: request {request_id} was intended {call.dispatches} times and came {count} times"


def _of_holders(seen: _Seen, calls: Mapping[str, _Call]) -> Iterator[str]:
    holders: dict[int, set[tuple[Path, str]]] = defaultdict(set)
    for line in seen.own:
        call = calls[line["request_id"]]
        if call.dispatches == 1:
            holders[line["fence"]].add(call.holder)
    for fence, found in holders.items():
        if len(found) > 1:
            yield f"I5: fence {fence} was used by more than one holder: {sorted(found)}"


def _of_outcomes(seen: _Seen, calls: Mapping[str, _Call]) -> Iterator[str]:
    for request_id, call in calls.items():
        end = seen.ended.get(request_id)
        outcome = "nothing" if end is None else end["outcome"]
        if outcome == "landed" and call.state == "refused":
            yield f"request {request_id} was done, and its ledger says that it was not"
        if call.owner != "attempt":
            continue
        if call.state in ("answered", "late") and outcome != "landed":
            yield f"request {request_id} is {call.state} in its ledger, and at the device {outcome}"
        if call.answer is not None and end is not None and end["reply"] is not None:
            told = end["reply"].get("answer")
            if call.state in ("answered", "late") and json.loads(call.answer) != told:
                yield f"request {request_id} was answered {told!r}, and its ledger has {call.answer}"
