"""I5 as queries: one holder a device, fences that only rise, nothing sent under a lease that was not held."""

from __future__ import annotations

from typing import Final

from .check_rules import RESTORE, Rule

__all__ = ["LEASE_RULES"]

# Every intent for a device, in the order of its run's history; what was intended under another lease of the set counts
# for the device of the first.
_INTENTS: Final = (
    "SELECT e.run_key, e.event_no, l.resource, json_extract(e.body, '$.fence') AS fence FROM events e JOIN leases l"
    " ON l.lease_id = coalesce(json_extract(e.body, '$.leases[0]'), json_extract(e.body, '$.lease'))"
    " WHERE e.kind IN ('dispatch.intended', 'lease.call_intended') AND instr(e.body, '\"fence\":')"
    " AND json_extract(e.body, '$.fence') IS NOT NULL"
)

LEASE_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "lease.two_holders",
        "devices or runs have two holders",
        "SELECT resource FROM leases WHERE state = 'held' GROUP BY resource HAVING count(*) > 1",
        RESTORE,
    ),
    Rule(
        "lease.fence_twice",
        "fences were given to two holders",
        # Leases that a snapshot brought (they have no boot) were given by another ledger.
        "SELECT resource || ' fence ' || fence FROM leases WHERE fence > 0"
        " GROUP BY resource, fence, CASE WHEN boot_id IS NULL THEN run_key END HAVING count(*) > 1",
        RESTORE,
    ),
    Rule(
        "lease.held_without_fence",
        "leases are held that were given no fence",
        "SELECT 'lease ' || lease_id FROM leases WHERE state = 'held' AND fence < 1",
        RESTORE,
    ),
    Rule(
        "lease.fence_falls",
        "requests went to a device under a lower fence than one before",
        "SELECT 'run ' || r.run_id || ' event ' || i.event_no FROM (SELECT run_key, event_no, fence,"
        " max(fence) OVER (PARTITION BY run_key, resource ORDER BY event_no"
        f" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest FROM ({_INTENTS})) i"
        " JOIN runs r ON r.run_key = i.run_key WHERE i.fence < i.highest",
        RESTORE,
    ),
    Rule(
        "call.fence_not_given",
        "requests carry a fence that their lease was not given",
        "SELECT 'call ' || c.call_id FROM calls c JOIN leases l ON l.lease_id = c.lease_id"
        " WHERE c.fence IS NULL OR c.fence > l.fence OR c.fence < 1 OR EXISTS (SELECT 1 FROM leases o"
        " WHERE o.resource = l.resource AND o.fence >= c.fence AND o.fence < l.fence"
        " AND (o.boot_id IS NULL) = (l.boot_id IS NULL))",
        RESTORE,
    ),
    Rule(
        "dispatch.without_lease",
        "dispatches are under way under leases that are not held",
        # The first condition on the state is that of the index, as everywhere.
        "SELECT 'call ' || d.call_id || ' dispatch ' || d.dispatch_no FROM dispatches d JOIN calls c"
        " ON c.call_id = d.call_id JOIN leases l ON l.lease_id = c.lease_id"
        " JOIN runs r ON r.run_key = c.run_key AND r.custody = 'held'"
        " WHERE d.state IN ('intended', 'unknown') AND d.state = 'intended' AND l.state <> 'held'",
        RESTORE,
    ),
)
