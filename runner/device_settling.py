"""From what a device answered about earlier requests to what the ledger settles by it."""

from __future__ import annotations

from collections.abc import Mapping

from ..ledger.lease_calls import OpenCall
from ..ledger.ledger import Ledger
from ..ledger.records import DispatchFacts
from ..ledger.settlements import Decision, Settlement
from ..ledger.states import DispatchState
from .answer_texts import settlement_by
from .outcome_facts import facts_of
from .protocols import QueryAnswer, QueryState

__all__ = ["lease_call_facts", "settlements_of"]

_BY = "query"
_FETCHED = "fetched by its request id when the device was taken over"
_NEVER = "the device says that it never will be done"


async def settlements_of(ledger: Ledger, calls: list[OpenCall], settled: Mapping[str, QueryAnswer]) -> list[Settlement]:
    """Settlements of the attempts' requests that the device told of; what is pending or unproven stays unknown."""
    found: list[Settlement] = []
    for call in calls:
        answer = settled.get(call.call_id)
        if call.slot_no is None or answer is None:
            continue
        if answer.state == QueryState.NEVER:
            why = answer.message or _NEVER
            found.append(Settlement(call.call_id, call.dispatch_no, Decision.NOT_LANDED, _BY, why))
        elif answer.state == QueryState.LANDED and answer.outcome is not None:
            settlement = await settlement_by(
                ledger, call.call_id, call.dispatch_no, answer.outcome, made_by=_BY, reason=_FETCHED
            )
            found.append(settlement)
    return found


def lease_call_facts(calls: list[OpenCall], settled: Mapping[str, QueryAnswer]) -> dict[str, DispatchFacts]:
    """The same for calls of earlier leases, by request id."""
    found: dict[str, DispatchFacts] = {}
    for call in calls:
        answer = settled.get(call.call_id)
        if call.slot_no is not None or answer is None:
            continue
        if answer.state == QueryState.NEVER:
            found[call.call_id] = DispatchFacts(
                DispatchState.REFUSED, "query.never", answer.message or _NEVER, settled_by=_BY, charged=False
            )
        elif answer.state == QueryState.LANDED and answer.outcome is not None:
            found[call.call_id] = facts_of(answer.outcome, duration_us=None, settled_by=_BY)
    return found
