"""What must hold of every ledger after everything, and of a ledger and an independent counter together.

Plain SQL on the file, so that it does not ask the product whether the product is right. Each rule names the invariant
of the design that it checks.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tallystick.ledger.checks import Severity, check_ledger
from tallystick.ledger.ledger import Ledger

from .harness import Request

__all__ = ["check_invariants", "rows"]

_ENDED: Final = ("selected", "failed", "unknown", "unavailable", "cancelled", "parked")

# Each finds rows that must not be there.
_FORBIDDEN: Final = {
    "I1: a dispatch without its call's bytes or their digest": (
        "SELECT d.call_id FROM dispatches d LEFT JOIN calls c ON c.call_id = d.call_id"
        " WHERE c.call_id IS NULL OR c.payload_digest NOT LIKE 'sha256:%'"
    ),
    "I1: a dispatch that a budget of the whole run does not know of": (
        "SELECT d.call_id, d.dispatch_no, b.budget_no FROM dispatches d JOIN budgets b ON b.run_key = d.run_key"
        " WHERE b.scope = 'run' AND NOT EXISTS (SELECT 1 FROM reservations r WHERE r.call_id = d.call_id"
        " AND r.dispatch_no = d.dispatch_no AND r.budget_no = b.budget_no)"
        # A reset counts in budgets of the device alone; what a fork took over counts in the run that sent it.
        " AND NOT EXISTS (SELECT 1 FROM calls c WHERE c.call_id = d.call_id"
        " AND (c.owner = 'lease' OR c.reused_from IS NOT NULL))"
    ),
    "I2: a dispatch that was intended after its slot had its observation": (
        "SELECT d.call_id FROM dispatches d JOIN calls c ON c.call_id = d.call_id"
        " JOIN slots s ON s.run_key = c.run_key AND s.slot_no = c.slot_no"
        " JOIN observations o ON o.run_key = s.run_key AND o.slot_no = s.slot_no AND o.attempt_no = s.selected_attempt"
        " WHERE c.owner = 'attempt' AND d.intended_us > o.observed_us"
    ),
    "I3: an unknown outcome whose reservation is not held": (
        "SELECT d.call_id, r.state FROM dispatches d JOIN reservations r"
        " ON r.call_id = d.call_id AND r.dispatch_no = d.dispatch_no"
        " WHERE d.state IN ('unknown', 'intended') AND r.state <> 'held'"
    ),
    "I3: a known outcome whose reservation is still held": (
        "SELECT d.call_id, d.state FROM dispatches d JOIN reservations r"
        " ON r.call_id = d.call_id AND r.dispatch_no = d.dispatch_no"
        " WHERE d.state NOT IN ('unknown', 'intended') AND r.state = 'held'"
    ),
    "I3: an attempt that has ended in knowledge of a dispatch that is unknown": (
        "SELECT a.slot_no, a.attempt_no, a.state FROM attempts a JOIN calls c"
        " ON c.run_key = a.run_key AND c.slot_no = a.slot_no AND c.attempt_no = a.attempt_no"
        " JOIN dispatches d ON d.call_id = c.call_id"
        " WHERE d.state = 'unknown' AND a.state IN ('given_back', 'not_landed', 'interrupted')"
    ),
    "I4: a slot that selected another attempt than its newest, or one without an observation": (
        "SELECT s.slot_no FROM slots s LEFT JOIN observations o ON o.run_key = s.run_key AND o.slot_no = s.slot_no"
        " AND o.attempt_no = s.selected_attempt WHERE s.state = 'selected'"
        " AND (s.selected_attempt <> s.attempts OR o.attempt_no IS NULL OR o.source = 'late')"
    ),
    "I4: attempts that are not numbered from 1 without gaps": (
        "SELECT s.slot_no FROM slots s WHERE s.attempts <> (SELECT count(*) FROM attempts a"
        " WHERE a.run_key = s.run_key AND a.slot_no = s.slot_no AND a.attempt_no BETWEEN 1 AND s.attempts)"
    ),
    "I4: an observation that belongs to a call of another attempt": (
        "SELECT o.slot_no FROM observations o JOIN calls c ON c.call_id = o.call_id"
        " WHERE (o.run_key, o.slot_no, o.attempt_no) <> (c.run_key, c.slot_no, c.attempt_no)"
    ),
    "I5: two holders of one thing": (
        "SELECT resource FROM leases WHERE state = 'held' GROUP BY resource HAVING count(*) > 1"
    ),
    "I5: a fence that did not rise": (
        "SELECT a.resource FROM leases a JOIN leases b ON b.resource = a.resource"
        # Of those that were granted; a quarantine without a holder has a row of its own, and no fence.
        " WHERE a.since_us < b.since_us AND a.fence >= b.fence AND (a.set_id IS NOT NULL OR a.resource LIKE 'run:%')"
        " AND (b.set_id IS NOT NULL OR b.resource LIKE 'run:%')"
    ),
    "I5: a holder that had it before the one before had lost it or given it back": (
        "SELECT a.resource, a.fence, b.fence FROM leases a JOIN leases b ON b.resource = a.resource"
        " WHERE a.fence > 0 AND a.fence < b.fence AND (a.ended_us IS NULL OR a.ended_us > b.since_us)"
    ),
    "I5: something that was intended under a lease that was over": (
        "SELECT d.call_id, l.fence FROM calls c JOIN leases l ON l.lease_id = c.lease_id"
        " JOIN dispatches d ON d.call_id = c.call_id"
        " AND d.dispatch_no = (SELECT max(dispatch_no) FROM dispatches WHERE call_id = c.call_id)"
        " WHERE d.intended_us < l.since_us OR d.intended_us > l.ended_us"
    ),
    "I6: a budget that does not add up to its reservations": (
        "SELECT b.budget_no, b.held, b.settled FROM budgets b WHERE b.held <> (SELECT coalesce(sum(r.held), 0)"
        " FROM reservations r WHERE r.run_key = b.run_key AND r.budget_no = b.budget_no AND r.state = 'held')"
        " OR b.settled <> (SELECT coalesce(sum(r.settled), 0)"
        " FROM reservations r WHERE r.run_key = b.run_key AND r.budget_no = b.budget_no AND r.state = 'settled')"
    ),
    "I6: a hard budget that was passed": (
        "SELECT budget_no FROM budgets WHERE kind = 'hard' AND held + settled > limit_amount + overrun"
    ),
    "I6: a hard budget of dispatches that was overrun": (
        "SELECT budget_no FROM budgets WHERE kind = 'hard' AND unit = 'dispatches' AND held + settled > limit_amount"
    ),
    "I8: a run whose slots are not its plan": (
        "SELECT r.run_id FROM runs r WHERE r.state NOT IN ('planning', 'importing')"
        " AND r.planned <> (SELECT count(*) FROM slots s WHERE s.run_key = r.run_key)"
    ),
    "I8: a finished run with a slot that has no end": (
        "SELECT s.slot_no, s.state FROM runs r JOIN slots s ON s.run_key = r.run_key"
        f" WHERE r.state = 'finished' AND s.state NOT IN {_ENDED}"
    ),
    "I9: a judgment of an observation that is not there": (
        "SELECT j.slot_no FROM judgments j LEFT JOIN observations o ON o.run_key = j.run_key"
        " AND o.slot_no = j.slot_no AND o.attempt_no = j.attempt_no WHERE o.slot_no IS NULL"
    ),
    "events: numbers with a gap": (
        "SELECT run_key FROM events GROUP BY run_key HAVING min(event_no) <> 1 OR max(event_no) <> count(*)"
    ),
    "rows that point nowhere": "PRAGMA foreign_key_check",
    "the file": "SELECT integrity_check FROM pragma_integrity_check WHERE integrity_check <> 'ok'",
}

# Where nobody executes, nothing is under way.
_FORBIDDEN_AT_REST: Final = {
    "I3: a dispatch under way in a run that nobody executes": (
        "SELECT d.call_id FROM dispatches d JOIN runs r ON r.run_key = d.run_key WHERE d.state = 'intended'"
    ),
    "I8: a judgment that somebody is at in an evaluation that nobody makes": (
        "SELECT evaluation_no, slot_no FROM judgments WHERE state = 'judging'"
    ),
    "I8: a slot in flight in a run that nobody executes": "SELECT slot_no FROM slots WHERE state = 'in_flight'",
    "I5: a run that is held and executed by nobody": (
        "SELECT resource FROM leases WHERE state = 'held' AND (resource LIKE 'run:%' OR resource LIKE 'evaluation:%')"
    ),
}

_CALLS: Final = (
    # A Python function never sees the committed bytes, only what was made of them.
    "SELECT c.call_id, CASE WHEN instr(c.head, 'function') = 0 AND instr(c.head, '\"step\"') = 0"
    " THEN c.payload_digest END, c.if_unknown, c.slot_no,"
    " min(d.intended_us), count(*),"
    " count(*) FILTER (WHERE d.state IN ('answered', 'failed', 'late') OR (d.state = 'refused' AND d.status > 0)),"
    " count(*) FILTER (WHERE d.state = 'refused')"
    " FROM calls c JOIN dispatches d ON d.call_id = c.call_id WHERE c.owner = ? GROUP BY c.call_id"
)


@contextlib.contextmanager
def _reading(ledger: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(f"{ledger.resolve().as_uri()}?mode=ro", uri=True)
    try:
        yield connection
    finally:
        connection.close()


def rows(ledger: Path, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """The answer to a question to the file itself."""
    with _reading(ledger) as connection:
        return connection.execute(sql, parameters).fetchall()


def check_invariants(
    ledger: Path,
    requests: Sequence[Request] | None,
    *,
    at_rest: bool = True,
    judged: Sequence[Request] | None = None,
) -> None:
    """Raise an AssertionError that names everything that does not hold.

    ``requests`` is what the independent counter saw, None where there is none, ``judged`` what that of a judge's
    endpoint saw; ``at_rest`` says that no coordinator is alive and the last one left in good order.
    """
    findings: list[str] = []
    with _reading(ledger) as connection:
        for rule, query in {**_FORBIDDEN, **(_FORBIDDEN_AT_REST if at_rest else {})}.items():
            found = connection.execute(query).fetchall()
            if found:
                findings.append(f"{rule}: {found[:5]}")
        if requests is not None:
            findings += _compare(connection.execute(_CALLS, ("attempt",)).fetchall(), requests)
        if judged is not None:
            findings += _compare(connection.execute(_CALLS, ("judgment",)).fetchall(), judged)
    findings += _checked(ledger)
    assert not findings, "\n".join(findings)


def _checked(ledger: Path) -> list[str]:
    """What the product's own check calls damage; what deaths leave is none."""
    with Ledger.open(ledger) as opened:
        found = check_ledger(opened)
    return [f"ledger check: {one.code}: {one.what}" for one in found if one.severity is Severity.ERROR]


def _compare(calls: Sequence[tuple[Any, ...]], requests: Sequence[Request]) -> list[str]:
    findings = []
    seen = Counter(request.request_id for request in requests)
    first: dict[str, Request] = {}
    for request in requests:
        first.setdefault(request.request_id, request)
    if strangers := sorted(seen.keys() - {call[0] for call in calls}):
        findings.append(f"I1: requests that the ledger does not know: {strangers[:5]}")
    sent: dict[int, int] = defaultdict(int)
    for call_id, digest, if_unknown, slot_no, intended_us, dispatches, certain, refused in calls:
        arrived = seen[call_id]
        sent[slot_no] += arrived
        if arrived > dispatches:
            findings.append(f"I1: call {call_id} was intended {dispatches} times and arrived {arrived} times")
        if arrived < certain:
            findings.append(f"call {call_id} has {certain} known outcomes and arrived {arrived} times")
        if if_unknown != "resend" and arrived > 1 + refused:
            findings.append(f"I3: call {call_id} ({if_unknown}) was sent {arrived} times after {refused} refusals")
        if arrived and intended_us > first[call_id].at * 1e6:
            findings.append(f"I1: call {call_id} arrived before it was intended")
        told = {request.payload_digest for request in requests if request.request_id == call_id}
        if digest and told - {digest}:
            findings.append(f"I1: call {call_id} arrived with other bytes than were committed")
    return findings
