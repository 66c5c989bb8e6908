"""What a guarded target's client and the runner say to each other about the requests that the target makes itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from ..ledger.records import DispatchKey
from ..ledger.states import DispatchState
from .protocols import Outcome

__all__ = ["InnerCalls", "InnerRequest", "InnerSend", "Replayed"]


@attrs.frozen
class InnerRequest:
    """One request or step, complete before its intent is committed.

    ``head`` (canonical JSON text, without any secret) and ``payload`` are what it is known by in a replay. ``shown`` is
    one line for people. ``bounds`` has what it may use at most, by unit, where that is not what its budgets declare.
    """

    head: str
    payload: bytes
    shown: str
    bounds: Mapping[str, int] = attrs.field(factory=dict)


@attrs.frozen
class InnerSend:
    """A request whose intent is durable: send it now, once. ``request_id`` goes on the wire."""

    request_id: str
    key: DispatchKey
    known_by: tuple[str, str]
    began: float


@attrs.frozen
class Replayed:
    """What became of the same request before: nothing is sent. ``raw`` is what came back, None where nothing did."""

    state: DispatchState
    raw: bytes | None
    status: int | None
    reason: str
    message: str


class InnerCalls(Protocol):
    """The requests of one attempt. Safe for threads; the async forms are for an event loop.

    Each `begin` that returns an `InnerSend` is followed by one `end`. `begin` raises BudgetExhausted, ReplayDiverged,
    EarlierCallUnknown, AttemptOver and LedgerError, and then nothing may be sent. `end_async` commits whoever is
    cancelled meanwhile, and then the cancellation goes on.
    """

    def begin(self, request: InnerRequest) -> InnerSend | Replayed: ...

    async def begin_async(self, request: InnerRequest) -> InnerSend | Replayed: ...

    def end(self, send: InnerSend, outcome: Outcome) -> None:
        """Commit what became of it; ``outcome.raw`` is what a replay gives back. Raises AttemptOver and LedgerError."""

    async def end_async(self, send: InnerSend, outcome: Outcome) -> None: ...
