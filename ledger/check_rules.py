"""The invariants of the ledger as queries: each finds the rows that break it, as one text a row.

I3: unknown is a state, and holds what it reserved. I4: one selected attempt a slot, the newest. I6: a budget is the sum
of its reservations, and a hard one holds. I8: the population is whole. What a death leaves is no damage: a warning.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import attrs

from .schema import IN_TROUBLE_OF_S

__all__ = ["RESTORE", "RULES", "Rule", "Severity"]


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"  # an invariant is broken: something was changed behind the ledger's back, or a defect of ours
    WARNING = "warning"  # something was left behind; it does no harm and the remedy clears it


@attrs.frozen
class Rule:
    """One invariant. ``sql`` gives one text for each row that breaks it, which is an error always."""

    code: str
    what: str
    sql: str
    remedy: str


RESTORE: Final = "restore the newest backup, and report this as a defect if nothing else wrote to the file"
"""What helps where an invariant is broken."""
_SLOT: Final = "'run ' || r.run_id || ' slot ' || s.slot_no"
_OF_RUN: Final = "JOIN runs r ON r.run_key = s.run_key AND r.state NOT IN ('planning', 'importing')"
_CALL: Final = "'call ' || d.call_id || ' dispatch ' || d.dispatch_no"
_NEWEST: Final = "LEFT JOIN attempts a ON a.run_key = s.run_key AND a.slot_no = s.slot_no AND a.attempt_no = s.attempts"
_OF_CALL: Final = (
    "FROM dispatches d JOIN calls c ON c.call_id = d.call_id AND c.owner = 'attempt'"
    " JOIN attempts a ON a.run_key = c.run_key AND a.slot_no = c.slot_no AND a.attempt_no = c.attempt_no"
)
_SUMS: Final = (
    "FROM budgets b JOIN runs r ON r.run_key = b.run_key AND r.state NOT IN ('planning', 'importing')"
    " LEFT JOIN (SELECT run_key, budget_no,"
    " sum(CASE state WHEN 'held' THEN held ELSE 0 END) AS held, sum(coalesce(settled, 0)) AS settled"
    " FROM reservations GROUP BY run_key, budget_no) t ON t.run_key = b.run_key AND t.budget_no = b.budget_no"
)
# RUN/SLOT/ATTEMPT without the first part; a cast to a number ends at the next stroke.
_AFTER_RUN: Final = "substr(a.reused_from, instr(a.reused_from, '/') + 1)"
_BUDGET: Final = "'run ' || r.run_id || ' budget ' || b.budget_no"

RULES: Final[tuple[Rule, ...]] = (
    # I3
    Rule(
        "attempt.unknown_without_dispatch",
        "attempts are unknown of which no dispatch is",
        "SELECT 'run ' || r.run_id || ' slot ' || s.slot_no || ' attempt ' || s.attempt_no FROM attempts s "
        f"{_OF_RUN} WHERE s.state = 'unknown' AND NOT EXISTS (SELECT 1 FROM calls c JOIN dispatches d"
        " ON d.call_id = c.call_id WHERE c.run_key = s.run_key AND c.slot_no = s.slot_no"
        " AND c.attempt_no = s.attempt_no AND d.state = 'unknown')",
        RESTORE,
    ),
    Rule(
        "slot.unknown_without_attempt",
        "slots are unknown whose newest attempt is not",
        f"SELECT {_SLOT} FROM slots s {_OF_RUN} {_NEWEST} WHERE s.state = 'unknown'"
        f" AND {IN_TROUBLE_OF_S} AND coalesce(a.state, '') <> 'unknown'",
        RESTORE,
    ),
    Rule(
        "dispatch.intended_without_attempt",
        "dispatches are under way whose attempt is not",
        # Both words: SQLite finds these few by the index that knows both.
        f"SELECT {_CALL} {_OF_CALL} WHERE d.state IN ('intended', 'unknown') AND d.state = 'intended'"
        " AND a.state <> 'running'",
        RESTORE,
    ),
    Rule(
        "reservation.not_held",
        "dispatches without a known outcome have given their reservation back",
        f"SELECT {_CALL} FROM dispatches d JOIN reservations v ON v.call_id = d.call_id"
        " AND v.dispatch_no = d.dispatch_no WHERE d.state IN ('intended', 'unknown') AND v.state <> 'held'",
        RESTORE,
    ),
    Rule(
        "reservation.left_held",
        "dispatches with a known outcome still hold their reservation",
        f"SELECT {_CALL} FROM reservations v JOIN dispatches d ON d.call_id = v.call_id"
        " AND d.dispatch_no = v.dispatch_no WHERE v.state = 'held' AND d.state NOT IN ('intended', 'unknown')",
        RESTORE,
    ),
    Rule(
        "settlement.of_unknown",
        "dispatches were settled and are unknown all the same",
        f"SELECT {_CALL} FROM settlements t JOIN dispatches d ON d.call_id = t.call_id"
        " AND d.dispatch_no = t.dispatch_no WHERE d.state = 'unknown'",
        RESTORE,
    ),
    # I4
    Rule(
        "slot.selected_not_newest",
        "slots have selected an attempt that is not their newest",
        f"SELECT {_SLOT} FROM slots s {_OF_RUN} WHERE (s.state = 'selected') <> (s.selected_attempt IS NOT NULL)"
        " OR s.selected_attempt <> s.attempts",
        RESTORE,
    ),
    Rule(
        "slot.selected_not_observed",
        "slots have selected an attempt that has no observation",
        f"SELECT {_SLOT} FROM slots s {_OF_RUN} {_NEWEST} LEFT JOIN observations o ON o.run_key = s.run_key"
        " AND o.slot_no = s.slot_no AND o.attempt_no = s.selected_attempt"
        " WHERE s.state = 'selected' AND (o.run_key IS NULL OR coalesce(a.state, '') <> 'observed')",
        RESTORE,
    ),
    Rule(
        "attempt.observed_not_selected",
        "attempts are observed that their slot has not selected",
        "SELECT 'run ' || r.run_id || ' slot ' || s.slot_no || ' attempt ' || a.attempt_no FROM attempts a"
        f" JOIN slots s ON s.run_key = a.run_key AND s.slot_no = a.slot_no {_OF_RUN}"
        " WHERE a.state = 'observed' AND s.selected_attempt IS NOT a.attempt_no",
        RESTORE,
    ),
    Rule(
        "observation.of_another_call",
        "observations have an answer that is not their own call's",
        "SELECT 'run ' || r.run_id || ' slot ' || s.slot_no || ' attempt ' || s.attempt_no FROM observations s"
        f" {_OF_RUN} LEFT JOIN calls c ON c.call_id = s.call_id AND c.owner = 'attempt' AND c.run_key = s.run_key"
        " AND c.slot_no = s.slot_no AND c.attempt_no = s.attempt_no LEFT JOIN dispatches d ON d.call_id = s.call_id"
        " AND d.dispatch_no = s.dispatch_no WHERE s.call_id IS NOT NULL"
        " AND (c.call_id IS NULL OR coalesce(d.state, '') NOT IN ('answered', 'late'))",
        RESTORE,
    ),
    # Conversations: a committed turn is the answer of its own call, in its own attempt, once.
    Rule(
        "session.turns",
        "sessions have a gap in their turns",
        "SELECT 'run ' || r.run_id || ' slot ' || s.slot_no || ' attempt ' || s.attempt_no FROM (SELECT run_key,"
        " slot_no, attempt_no, count(*) AS n, max(turn) AS newest FROM turns GROUP BY run_key, slot_no, attempt_no,"
        f" session_no) s {_OF_RUN} WHERE s.n <> s.newest",
        RESTORE,
    ),
    Rule(
        "turn.of_another_call",
        "turns have an answer that is not their own call's",
        "SELECT 'run ' || r.run_id || ' slot ' || s.slot_no || ' attempt ' || s.attempt_no || ' turn ' || s.turn"
        f" FROM turns s {_OF_RUN} LEFT JOIN calls c ON c.call_id = s.call_id AND c.run_key = s.run_key"
        " AND c.slot_no = s.slot_no AND c.attempt_no = s.attempt_no LEFT JOIN dispatches d ON d.call_id = s.call_id"
        " AND d.dispatch_no = s.dispatch_no WHERE s.source <> 'carried'"
        " AND (c.call_id IS NULL OR coalesce(d.state, '') <> 'answered')",
        RESTORE,
    ),
    Rule(
        "turn.carried_from_nowhere",
        "turns were carried over from an attempt that has not asked them, or was answered otherwise",
        "SELECT 'run ' || r.run_id || ' slot ' || s.slot_no || ' attempt ' || s.attempt_no || ' turn ' || s.turn"
        f" FROM turns s {_OF_RUN} LEFT JOIN turns o ON o.run_key = s.run_key AND o.slot_no = s.slot_no"
        " AND o.attempt_no = s.carried_from AND o.session_no = s.session_no AND o.turn = s.turn"
        " WHERE s.source = 'carried' AND (o.call_id IS NULL OR o.answer_digest <> s.answer_digest"
        " OR s.carried_from >= s.attempt_no)",
        RESTORE,
    ),
    # Forks: what was taken over is marked, was not sent here, and is what was observed there.
    Rule(
        "fork.not_marked",
        "attempts, calls or observations are another run's, and are not marked so, or their run is no fork",
        "SELECT 'run ' || r.run_id || ' slot ' || s.slot_no || ' attempt ' || s.attempt_no FROM attempts s"
        f" {_OF_RUN} WHERE s.reused_from IS NOT NULL AND (r.forked_from IS NULL OR s.attempt_no <> 1)"
        " UNION ALL SELECT 'run ' || r.run_id || ' slot ' || s.slot_no || ' call ' || s.call_id FROM calls s"
        f" {_OF_RUN} LEFT JOIN attempts a ON a.run_key = s.run_key AND a.slot_no = s.slot_no"
        " AND a.attempt_no = s.attempt_no WHERE s.owner = 'attempt'"
        " AND (s.reused_from IS NULL) <> (a.reused_from IS NULL)"
        " UNION ALL SELECT 'run ' || r.run_id || ' slot ' || s.slot_no || ' observation' FROM observations s"
        f" {_OF_RUN} JOIN attempts a ON a.run_key = s.run_key AND a.slot_no = s.slot_no"
        " AND a.attempt_no = s.attempt_no WHERE s.source = 'reused' AND (a.reused_from IS NULL"
        " OR s.call_id IS NOT NULL)",
        RESTORE,
    ),
    Rule(
        "fork.reserved",
        "budgets of a fork hold or count what was sent in another run",
        f"SELECT {_CALL} FROM calls c JOIN reservations d ON d.call_id = c.call_id WHERE c.reused_from IS NOT NULL",
        RESTORE,
    ),
    Rule(
        "fork.another_answer",
        "reused answers are not what the run has that they come from",
        "SELECT 'run ' || r.run_id || ' slot ' || s.slot_no FROM observations s"
        f" {_OF_RUN} AND r.forked_from IS NOT NULL JOIN attempts a ON a.run_key = s.run_key AND a.slot_no = s.slot_no"
        " AND a.attempt_no = s.attempt_no AND a.reused_from IS NOT NULL"
        " JOIN runs p ON p.run_id = substr(a.reused_from, 1, instr(a.reused_from, '/') - 1)"
        f" JOIN observations o ON o.run_key = p.run_key AND o.slot_no = CAST({_AFTER_RUN} AS INTEGER)"
        f" AND o.attempt_no = CAST(substr({_AFTER_RUN}, instr({_AFTER_RUN}, '/') + 1) AS INTEGER)"
        " WHERE s.source = 'reused' AND o.answer_digest <> s.answer_digest",
        RESTORE,
    ),
    # I6
    Rule(
        "budget.sum",
        "budgets are not the sum of their reservations",
        f"SELECT {_BUDGET} || ': held ' || b.held || ' of ' || coalesce(t.held, 0) || ', settled ' || b.settled"
        f" || ' of ' || coalesce(t.settled, 0) {_SUMS}"
        " WHERE b.held <> coalesce(t.held, 0) OR b.settled <> coalesce(t.settled, 0)",
        RESTORE,
    ),
    Rule(
        "budget.passed",
        "hard budgets were passed",
        f"SELECT {_BUDGET} || ': limit ' || b.limit_amount || ', held ' || b.held || ', settled ' || b.settled"
        " FROM budgets b JOIN runs r ON r.run_key = b.run_key"
        " WHERE b.kind = 'hard' AND b.held + b.settled > b.limit_amount + b.overrun",
        RESTORE,
    ),
    # I8
    Rule(
        "run.population",
        "runs have other slots than were planned",
        "SELECT 'run ' || r.run_id || ': ' || count(s.slot_no) || ' of ' || r.planned FROM runs r"
        " LEFT JOIN slots s ON s.run_key = r.run_key WHERE r.state NOT IN ('planning', 'importing')"
        " GROUP BY r.run_key HAVING count(s.slot_no) <> r.planned"
        " OR (r.planned > 0 AND (min(s.slot_no) <> 1 OR max(s.slot_no) <> r.planned))",
        RESTORE,
    ),
    Rule(
        "slot.plan",
        "slots are of another case, variant or repetition than were planned in their place",
        f"SELECT {_SLOT} FROM slots s {_OF_RUN} JOIN (SELECT c.run_key, count(*) AS cases, (SELECT count(*) FROM"
        " variants v WHERE v.run_key = c.run_key) AS variants FROM cases c GROUP BY c.run_key) p"
        " ON p.run_key = s.run_key WHERE s.slot_no"
        " <> ((s.repetition - 1) * p.cases + s.case_no - 1) * p.variants + s.variant_no",
        RESTORE,
    ),
    Rule(
        "slot.attempts",
        "slots have another number of attempts than they count",
        f"SELECT {_SLOT} FROM slots s {_OF_RUN} LEFT JOIN (SELECT run_key, slot_no, count(*) AS n,"
        " max(attempt_no) AS newest FROM attempts GROUP BY run_key, slot_no) a"
        " ON a.run_key = s.run_key AND a.slot_no = s.slot_no"
        " WHERE s.attempts <> coalesce(a.n, 0) OR s.attempts <> coalesce(a.newest, 0)",
        RESTORE,
    ),
    Rule(
        "slot.in_flight",
        "slots are in flight without a running attempt, or the other way about",
        f"SELECT {_SLOT} FROM slots s {_OF_RUN} {_NEWEST}"
        " WHERE (s.state = 'in_flight') <> (coalesce(a.state, '') = 'running')",
        RESTORE,
    ),
    Rule(
        "attempt.runs_beside",
        "older attempts still run",
        "SELECT 'run ' || r.run_id || ' slot ' || s.slot_no || ' attempt ' || a.attempt_no FROM attempts a"
        f" JOIN slots s ON s.run_key = a.run_key AND s.slot_no = a.slot_no {_OF_RUN}"
        " WHERE a.state = 'running' AND a.attempt_no <> s.attempts",
        RESTORE,
    ),
    Rule(
        "run.finished_early",
        "runs are finished in which something waits or is in flight",
        f"SELECT {_SLOT} FROM slots s {_OF_RUN} WHERE r.state = 'finished' AND s.state IN ('pending', 'in_flight')",
        "go on with `tallystick resume RUN`",
    ),
    # Around them.
    Rule(
        "call.without_dispatch",
        "calls were recorded and have no dispatch",
        "SELECT 'call ' || c.call_id FROM calls c LEFT JOIN runs r ON r.run_key = c.run_key"
        " WHERE coalesce(r.state, '') <> 'importing'"
        " AND NOT EXISTS (SELECT 1 FROM dispatches d WHERE d.call_id = c.call_id)",
        RESTORE,
    ),
    Rule(
        "judgment.without_observation",
        "judgments speak of attempts that have no observation",
        "SELECT 'run ' || r.run_id || ' slot ' || s.slot_no || ' attempt ' || s.attempt_no FROM judgments s "
        f"{_OF_RUN} LEFT JOIN observations o ON o.run_key = s.run_key AND o.slot_no = s.slot_no"
        " AND o.attempt_no = s.attempt_no WHERE o.run_key IS NULL AND s.state = 'judged'",
        RESTORE,
    ),
    Rule(
        "fence.behind",
        "leases have a higher fence than their resource's mark",
        "SELECT 'lease ' || l.lease_id FROM leases l LEFT JOIN fences f ON f.resource = l.resource"
        " WHERE l.fence > coalesce(f.high_water, 0)",
        RESTORE,
    ),
)
