"""The state machines, as data.

One `StrEnum` a machine, one comment a member, one `TRANSITIONS` table. The schema's reference tables and triggers, the
guarded updates, the diagrams in ``docs/architecture.md`` and the tests are all made from here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = [
    "INITIAL",
    "MACHINES",
    "TRANSITIONS",
    "AttemptState",
    "BudgetKind",
    "CallOwner",
    "CustodyState",
    "DispatchState",
    "IfUnknown",
    "ImportState",
    "JudgmentState",
    "LeaseState",
    "NextStep",
    "ProvisionState",
    "ReservationState",
    "RunState",
    "SlotState",
]


class RunState(StrEnum):
    PLANNING = "planning"  # its slots are being written; hidden from every list
    IMPORTING = "importing"  # a snapshot's rows are being written; hidden from every list
    OPEN = "open"  # may be executed; whether somebody does is told by its coordinator's lease
    FINISHED = "finished"  # every slot has an end; some may need a decision
    CANCELLED = "cancelled"  # given up by an operator; what had not begun never will
    MOVING = "moving"  # being moved to another ledger
    MOVED = "moved"  # another ledger has custody


class SlotState(StrEnum):
    PENDING = "pending"  # waits to be claimed, perhaps not before an instant
    IN_FLIGHT = "in_flight"  # its newest attempt is going on
    SELECTED = "selected"  # has its observation
    FAILED = "failed"  # every allowed attempt ended in an error
    UNKNOWN = "unknown"  # its newest attempt may have happened; an operator decides
    UNAVAILABLE = "unavailable"  # could not be attempted (budget, target gone)
    CANCELLED = "cancelled"  # given up before it was attempted
    PARKED = "parked"  # killed its runner too often when it was alone


class AttemptState(StrEnum):
    RUNNING = "running"  # begun, its end is not known
    OBSERVED = "observed"  # has a whole answer in time, or one that was fetched or settled later
    FAILED = "failed"  # the target answered with an error
    UNKNOWN = "unknown"  # something was or may have been sent, its outcome is not known
    LATE = "late"  # its answer came after its end; kept as evidence
    NOT_LANDED = "not_landed"  # proven not to have happened
    GIVEN_BACK = "given_back"  # ended with nothing sent, or refused; the slot waits again
    INTERRUPTED = "interrupted"  # broke off with nothing unknown: its coordinator died, or its session did not go on
    ABANDONED = "abandoned"  # unknown, and an operator gave it up


class DispatchState(StrEnum):
    INTENDED = "intended"  # committed, perhaps sent
    ANSWERED = "answered"  # a whole answer
    REFUSED = "refused"  # proven not to have been done
    FAILED = "failed"  # an answer that is an error
    UNKNOWN = "unknown"  # bytes may have left, no whole answer came
    LATE = "late"  # a whole answer, after its attempt had ended
    ABANDONED = "abandoned"  # unknown, given up by an operator and charged its bound


class ReservationState(StrEnum):
    HELD = "held"  # counts against the budget at its bound
    SETTLED = "settled"  # counts at what was used, or at its bound where use is unknown
    RELEASED = "released"  # counts nothing


class LeaseState(StrEnum):
    WAITING = "waiting"  # in the queue of its resource
    HELD = "held"  # has the resource
    RELEASED = "released"  # given back by its holder
    LOST = "lost"  # its holder died or its time ran out
    REVOKED = "revoked"  # taken by an operator's forced release
    QUARANTINED = "quarantined"  # an operator must look at the resource


class JudgmentState(StrEnum):
    PENDING = "pending"  # in the evaluation's set, not judged yet
    JUDGING = "judging"  # a judge is at it
    JUDGED = "judged"  # has a verdict
    NO_VERDICT = "no_verdict"  # has a reason why there is no verdict


class ProvisionState(StrEnum):
    INTENDED = "intended"  # committed, perhaps created
    PROVISIONED = "provisioned"  # exists at its provider
    READY = "ready"  # answers
    RELEASED = "released"  # gone, or proven never to have existed
    QUARANTINED = "quarantined"  # an operator must look


class ImportState(StrEnum):
    RECEIVING = "receiving"  # batches are being written
    COMPLETE = "complete"  # shown
    DISCARDED = "discarded"  # given up, its rows are gone


class CustodyState(StrEnum):
    HELD = "held"  # this ledger may continue the run
    COPY = "copy"  # may be read, judged and forked here, not continued
    MOVING = "moving"  # an export with --move is under way
    MOVED = "moved"  # another ledger has it


class IfUnknown(StrEnum):
    KEEP = "keep"  # never again by itself; an operator settles it
    RESEND = "resend"  # the stored bytes again under the same request id
    QUERY = "query"  # ask the target by request id
    REPEAT = "repeat"  # a new attempt under a new request id
    RESTART = "restart"  # the whole session again, as a new attempt


class NextStep(StrEnum):
    NEW = "new"  # a new attempt
    RESEND = "resend"  # the newest attempt's call again, its next dispatch
    QUERY = "query"  # ask for the newest attempt's call by its id


class CallOwner(StrEnum):
    ATTEMPT = "attempt"  # a request of a slot's attempt
    SUITE = "suite"  # one request that yields the observations of many slots
    JUDGMENT = "judgment"  # a judge's request
    STACK = "stack"  # a provider's request
    LEASE = "lease"  # a device's reset, query or reconciliation


class BudgetKind(StrEnum):
    HARD = "hard"  # reserved at a declared bound before each dispatch, never passed
    SOFT = "soft"  # estimated; stops new work once reached, and may be overrun


TRANSITIONS: Final[dict[str, dict[str, frozenset[str]]]] = {
    "run": {
        "planning": frozenset({"open"}),
        "importing": frozenset({"open", "finished", "cancelled"}),
        "open": frozenset({"finished", "cancelled", "moving", "importing"}),
        "finished": frozenset({"open", "moving", "importing"}),
        "cancelled": frozenset({"open", "moving", "importing"}),
        "moving": frozenset({"open", "finished", "cancelled", "moved", "importing"}),
        "moved": frozenset({"open", "finished", "cancelled", "importing"}),
    },
    "slot": {
        "pending": frozenset({"in_flight", "selected", "unavailable", "cancelled", "parked", "unknown", "failed"}),
        "in_flight": frozenset({"pending", "selected", "failed", "unknown", "unavailable", "parked"}),
        "selected": frozenset(),
        "failed": frozenset({"pending"}),
        "unknown": frozenset({"pending", "selected", "failed", "cancelled"}),
        "unavailable": frozenset({"pending", "cancelled"}),
        "cancelled": frozenset({"pending"}),
        "parked": frozenset({"pending", "cancelled"}),
    },
    "attempt": {
        "running": frozenset({"observed", "failed", "unknown", "given_back", "interrupted"}),
        "observed": frozenset(),
        "failed": frozenset(),
        "unknown": frozenset({"running", "observed", "late", "failed", "not_landed", "abandoned", "interrupted"}),
        "late": frozenset({"observed"}),
        "not_landed": frozenset(),
        "given_back": frozenset(),
        "interrupted": frozenset(),
        "abandoned": frozenset(),
    },
    "dispatch": {
        "intended": frozenset({"answered", "refused", "failed", "unknown"}),
        "answered": frozenset(),
        "refused": frozenset(),
        "failed": frozenset(),
        "unknown": frozenset({"answered", "late", "refused", "failed", "abandoned"}),
        "late": frozenset(),
        "abandoned": frozenset(),
    },
    "reservation": {
        "held": frozenset({"settled", "released"}),
        "settled": frozenset(),
        "released": frozenset(),
    },
    "lease": {
        "waiting": frozenset({"held", "released", "lost"}),
        "held": frozenset({"released", "lost", "revoked", "quarantined"}),
        "released": frozenset(),
        "lost": frozenset({"quarantined"}),
        "revoked": frozenset({"quarantined"}),
        "quarantined": frozenset({"released"}),
    },
    "judgment": {
        "pending": frozenset({"judging", "judged", "no_verdict"}),
        "judging": frozenset({"pending", "judged", "no_verdict"}),
        "judged": frozenset(),
        "no_verdict": frozenset({"pending"}),
    },
    "provision": {
        "intended": frozenset({"provisioned", "released", "quarantined"}),
        "provisioned": frozenset({"ready", "released", "quarantined"}),
        "ready": frozenset({"released", "quarantined"}),
        "released": frozenset(),
        "quarantined": frozenset({"released"}),
    },
    "import": {
        "receiving": frozenset({"complete", "discarded"}),
        "complete": frozenset(),
        "discarded": frozenset(),
    },
}

MACHINES: Final[dict[str, type[StrEnum]]] = {
    "run": RunState,
    "slot": SlotState,
    "attempt": AttemptState,
    "dispatch": DispatchState,
    "reservation": ReservationState,
    "lease": LeaseState,
    "judgment": JudgmentState,
    "provision": ProvisionState,
    "import": ImportState,
}

INITIAL: Final[dict[str, str]] = {
    "run": "planning",
    "slot": "pending",
    "attempt": "running",
    "dispatch": "intended",
    "reservation": "held",
    "lease": "waiting",
    "judgment": "pending",
    "provision": "intended",
    "import": "receiving",
}
