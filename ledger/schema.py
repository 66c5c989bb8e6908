"""The tables of the ledger; what the database itself holds beyond them is in `schema_rules`.

Rows of a run are found by ``run_key``, a small integer of this file; everything else in a key (slot, attempt, call,
event numbers) means the same in every ledger, so a snapshot renames nothing but ``run_key``. Instants are microseconds
since the epoch (``_us``), money is nano-USD, JSON is canonical text (`canonical`), digests are ``sha256:<hex>``.
The schema is made by the migrations; a test holds these two modules and them together.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy import text as sql_text

from .columns import integer, metadata, run_key, state, text, transitions
from .schema_evaluations import evaluation_judges, evaluations, judgments
from .schema_resources import devices, fences, leases, provisions, qualifications
from .schema_sessions import sessions, turns

__all__ = [
    "IN_TROUBLE",
    "IN_TROUBLE_OF_S",
    "SCHEMA_NUMBER",
    "artifacts",
    "attempts",
    "budget_amendments",
    "budgets",
    "call_attempts",
    "calls",
    "cases",
    "devices",
    "dispatches",
    "evaluation_judges",
    "evaluations",
    "events",
    "facts",
    "fences",
    "imports",
    "judgments",
    "leases",
    "metadata",
    "observations",
    "provisions",
    "qualifications",
    "reservations",
    "runs",
    "sessions",
    "settlements",
    "slots",
    "transitions",
    "turns",
    "variants",
    "workers",
]

SCHEMA_NUMBER: Final = 1
"""The newest migration; stands in the file as ``PRAGMA user_version``."""

IN_TROUBLE: Final = "state <> 'pending' AND state <> 'in_flight' AND state <> 'selected'"
"""Of slots; a query that uses their index has to say it in these words. As a NOT IN list it would be built anew, as a
table of its own, twice for each slot that changes."""
IN_TROUBLE_OF_S: Final = IN_TROUBLE.replace("state", "s.state")

_SLOT_KEY = ("run_key", "slot_no")
_ATTEMPT_KEY = ("run_key", "slot_no", "attempt_no")

facts = Table("facts", metadata, Column("name", Text, primary_key=True, nullable=False), text("value"))

workers = Table(
    "workers",
    metadata,
    Column("worker_id", Text, primary_key=True, nullable=False),
    integer("pid"),
    integer("start_ticks"),
    text("boot_id"),
    text("host"),
    text("version"),
    integer("began_us"),
    integer("ended_us", null=True),
    text("end_reason", null=True),
    integer("last_batch", default=0),
)

runs = Table(
    "runs",
    metadata,
    Column("run_key", Integer, primary_key=True, nullable=False),
    Column("run_id", Text, nullable=False, unique=True),
    text("name"),
    state("run"),
    text("work_order"),
    text("work_order_digest"),
    text("identity"),
    text("identity_digest"),
    text("settings", default="{}"),
    integer("planned", default=0),
    text("made_by", ForeignKey("workers.worker_id"), null=True),
    integer("created_us"),
    integer("started_us", null=True),
    integer("ended_us", null=True),
    integer("active_us", default=0),
    integer("stop_asked_us", null=True),
    text("stop_reason", null=True),
    text("custody", ForeignKey("custody_states.state"), default="held"),
    integer("custody_epoch", default=1),
    text("forked_from", null=True),
    integer("forked_at_event", null=True),
    text("left_out", null=True),
    Index("runs_by_digest", "work_order_digest", "run_key"),
)
"""``left_out`` is NULL, or what the snapshot that brought the run had been asked to leave out (canonical JSON)."""

variants = Table(
    "variants",
    metadata,
    run_key(),
    integer("variant_no"),
    text("name"),
    text("target", default="{}"),
    text("if_unknown", ForeignKey("if_unknown_values.value")),
    PrimaryKeyConstraint("run_key", "variant_no"),
    UniqueConstraint("run_key", "name"),
    sqlite_with_rowid=False,
)

cases = Table(
    "cases",
    metadata,
    run_key(),
    integer("case_no"),
    text("case_id"),
    text("digest"),
    text("input"),
    text("expected", null=True),
    text("metadata", default="{}"),
    PrimaryKeyConstraint("run_key", "case_no"),
    UniqueConstraint("run_key", "case_id"),
)

slots = Table(
    "slots",
    metadata,
    run_key(),
    integer("slot_no"),
    state("slot"),
    integer("case_no"),
    integer("variant_no"),
    integer("repetition"),
    integer("attempts", default=0),
    integer("selected_attempt", null=True),
    text("next_step", ForeignKey("next_steps.step"), default="new"),
    integer("not_before_us", default=0),
    integer("suspect", default=0),
    integer("solitary_deaths", default=0),
    text("reason", null=True),
    PrimaryKeyConstraint(*_SLOT_KEY),
    ForeignKeyConstraint(["run_key", "case_no"], ["cases.run_key", "cases.case_no"]),
    ForeignKeyConstraint(["run_key", "variant_no"], ["variants.run_key", "variants.variant_no"]),
    CheckConstraint("(state = 'selected') = (selected_attempt IS NOT NULL)", name="selected_has_attempt"),
    CheckConstraint("selected_attempt IS NULL OR selected_attempt = attempts", name="newest_is_selected"),
    sqlite_with_rowid=False,
)
Index(
    "slots_pending", slots.c.run_key, slots.c.not_before_us, slots.c.slot_no, sqlite_where=sql_text("state = 'pending'")
)
Index("slots_in_flight", slots.c.run_key, slots.c.slot_no, sqlite_where=sql_text("state = 'in_flight'"))
Index(
    "slots_suspect",
    slots.c.run_key,
    slots.c.solitary_deaths,
    slots.c.slot_no,
    sqlite_where=sql_text("suspect = 1 AND state = 'pending'"),
)
Index(
    "slots_in_trouble",
    slots.c.run_key,
    slots.c.state,
    slots.c.slot_no,
    sqlite_where=sql_text(IN_TROUBLE),
)

attempts = Table(
    "attempts",
    metadata,
    run_key(),
    integer("slot_no"),
    integer("attempt_no"),
    state("attempt"),
    text("worker_id", ForeignKey("workers.worker_id"), null=True),
    text("fingerprint"),
    integer("custody_epoch", default=1),
    integer("solitary", default=0),
    integer("contaminated", default=0),
    integer("began_us"),
    integer("ended_us", null=True),
    text("reason", null=True),
    text("message", null=True),
    text("reused_from", null=True),
    PrimaryKeyConstraint(*_ATTEMPT_KEY),
    ForeignKeyConstraint(_SLOT_KEY, ["slots.run_key", "slots.slot_no"]),
    sqlite_with_rowid=False,
)
"""``reused_from`` names the attempt of another run that a fork took over (`forks.name_of`). It was not made in this
run, and neither were its calls, whose own ``reused_from`` is the request id under which they were sent.
"""
Index(
    "attempts_contaminated",
    attempts.c.run_key,
    attempts.c.slot_no,
    attempts.c.attempt_no,
    sqlite_where=sql_text("contaminated = 1"),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("digest", Text, primary_key=True, nullable=False),
    integer("size"),
    text("media_type", null=True),
    Column("data", LargeBinary, nullable=True),
    integer("created_us"),
)
"""``data`` is NULL where the bytes lie in a file of the artifact folder, named by the digest."""

calls = Table(
    "calls",
    metadata,
    Column("call_id", Text, primary_key=True, nullable=False),
    Column("run_key", Integer, ForeignKey("runs.run_key"), nullable=True),
    text("owner", ForeignKey("call_owners.owner")),
    integer("slot_no", null=True),
    integer("attempt_no", null=True),
    integer("evaluation_no", null=True),
    integer("judge_no", null=True),
    integer("sample_no", null=True),
    text("provision_id", ForeignKey("provisions.provision_id"), null=True),
    text("lease_id", ForeignKey("leases.lease_id"), null=True),
    integer("session_no", default=1),
    integer("position", default=1),
    text("role", default="target"),
    text("head", default="{}"),
    Column("payload", LargeBinary, nullable=True),
    text("payload_digest"),
    integer("payload_size"),
    text("payload_artifact", ForeignKey("artifacts.digest"), null=True),
    text("if_unknown", ForeignKey("if_unknown_values.value")),
    integer("key_until_us", null=True),
    integer("fence", null=True),
    text("reused_from", null=True),
    integer("intended_us"),
    ForeignKeyConstraint(_ATTEMPT_KEY, ["attempts.run_key", "attempts.slot_no", "attempts.attempt_no"]),
    CheckConstraint(
        "CASE owner WHEN 'attempt' THEN run_key IS NOT NULL AND slot_no IS NOT NULL AND attempt_no IS NOT NULL"
        " WHEN 'judgment' THEN run_key IS NOT NULL AND evaluation_no IS NOT NULL AND judge_no IS NOT NULL"
        " AND slot_no IS NOT NULL AND attempt_no IS NOT NULL AND sample_no IS NOT NULL"
        " WHEN 'stack' THEN provision_id IS NOT NULL"
        " WHEN 'lease' THEN lease_id IS NOT NULL ELSE 1 END",
        name="owner_is_named",
    ),
)
Index(
    "calls_of_attempt",
    calls.c.run_key,
    calls.c.slot_no,
    calls.c.attempt_no,
    calls.c.position,
    unique=True,
    sqlite_where=sql_text("owner = 'attempt'"),
)
Index(
    "calls_of_judgment",
    calls.c.run_key,
    calls.c.evaluation_no,
    calls.c.judge_no,
    calls.c.slot_no,
    calls.c.attempt_no,
    calls.c.sample_no,
    calls.c.position,
    unique=True,
    sqlite_where=sql_text("owner = 'judgment'"),
)
Index("calls_of_lease", calls.c.lease_id, calls.c.call_id, sqlite_where=sql_text("lease_id IS NOT NULL"))

call_attempts = Table(
    "call_attempts",
    metadata,
    text("call_id", ForeignKey("calls.call_id")),
    run_key(),
    integer("slot_no"),
    integer("attempt_no"),
    PrimaryKeyConstraint("call_id", "run_key", "slot_no", "attempt_no"),
    ForeignKeyConstraint(_ATTEMPT_KEY, ["attempts.run_key", "attempts.slot_no", "attempts.attempt_no"]),
    sqlite_with_rowid=False,
)
"""The attempts that one suite-level call serves."""

dispatches = Table(
    "dispatches",
    metadata,
    text("call_id", ForeignKey("calls.call_id")),
    integer("dispatch_no"),
    Column("run_key", Integer, ForeignKey("runs.run_key"), nullable=True),
    state("dispatch"),
    text("worker_id", ForeignKey("workers.worker_id"), null=True),
    integer("intended_us"),
    integer("ended_us", null=True),
    integer("duration_us", null=True),
    integer("bytes_sent", null=True),
    integer("wire_sends", null=True),
    integer("status", null=True),
    text("reason", null=True),
    text("message", null=True),
    text("settled_by", null=True),
    Column("raw", LargeBinary, nullable=True),
    text("raw_artifact", ForeignKey("artifacts.digest"), null=True),
    integer("raw_cut", default=0),
    integer("retry_after_us", null=True),
    integer("tokens_in", null=True),
    integer("tokens_out", null=True),
    integer("cost_nanousd", null=True),
    text("usage", null=True),
    integer("replay", default=0),
    PrimaryKeyConstraint("call_id", "dispatch_no"),
)
# A query that uses these indexes has to say their condition in these words, beside its own.
_ASKED, _OPEN = sql_text("retry_after_us IS NOT NULL"), sql_text("state IN ('intended', 'unknown')")
Index("dispatches_asked_to_wait", dispatches.c.run_key, dispatches.c.ended_us, sqlite_where=_ASKED)
Index("dispatches_open", dispatches.c.run_key, dispatches.c.call_id, sqlite_where=_OPEN)

budgets = Table(
    "budgets",
    metadata,
    run_key(),
    integer("budget_no"),
    text("scope"),
    text("scope_value", default=""),
    text("unit"),
    text("kind", ForeignKey("budget_kinds.kind")),
    integer("limit_amount"),
    integer("bound_amount", null=True),
    integer("held", default=0),
    integer("settled", default=0),
    integer("overrun", default=0),
    integer("unknown_uses", default=0),
    integer("carried", default=0),
    PrimaryKeyConstraint("run_key", "budget_no"),
    UniqueConstraint("run_key", "scope", "scope_value", "unit"),
    CheckConstraint("held >= 0 AND settled >= 0 AND overrun >= 0 AND limit_amount >= 0", name="amounts_not_negative"),
    CheckConstraint("kind <> 'hard' OR held + settled <= limit_amount + overrun", name="hard_budget_holds"),
    sqlite_with_rowid=False,
)
"""``carried`` is what the runs had used or held that a fork goes on from; its limit is what that leaves of the work
order's.
"""

budget_amendments = Table(
    "budget_amendments",
    metadata,
    run_key(),
    integer("budget_no"),
    integer("amendment_no"),
    integer("old_limit"),
    integer("new_limit"),
    text("reason"),
    text("made_by"),
    integer("made_us"),
    PrimaryKeyConstraint("run_key", "budget_no", "amendment_no"),
    ForeignKeyConstraint(["run_key", "budget_no"], ["budgets.run_key", "budgets.budget_no"]),
)

reservations = Table(
    "reservations",
    metadata,
    text("call_id"),
    integer("dispatch_no"),
    integer("budget_no"),
    run_key(),
    state("reservation"),
    integer("held"),
    integer("settled", null=True),
    PrimaryKeyConstraint("call_id", "dispatch_no", "budget_no"),
    ForeignKeyConstraint(["call_id", "dispatch_no"], ["dispatches.call_id", "dispatches.dispatch_no"]),
    ForeignKeyConstraint(["run_key", "budget_no"], ["budgets.run_key", "budgets.budget_no"]),
    CheckConstraint("held >= 0 AND (settled IS NULL OR settled >= 0)", name="amounts_not_negative"),
    CheckConstraint("(state = 'settled') = (settled IS NOT NULL)", name="settled_has_amount"),
    sqlite_with_rowid=False,
)

observations = Table(
    "observations",
    metadata,
    run_key(),
    integer("slot_no"),
    integer("attempt_no"),
    text("call_id", ForeignKey("calls.call_id"), null=True),
    integer("dispatch_no", null=True),
    text("answer", null=True),
    text("answer_artifact", ForeignKey("artifacts.digest"), null=True),
    text("answer_digest"),
    text("evidence", default="{}"),
    text("flags", default="[]"),
    text("source", default="wire"),
    integer("observed_us"),
    PrimaryKeyConstraint(*_ATTEMPT_KEY),
    ForeignKeyConstraint(_ATTEMPT_KEY, ["attempts.run_key", "attempts.slot_no", "attempts.attempt_no"]),
    CheckConstraint("(answer IS NULL) <> (answer_artifact IS NULL)", name="one_answer"),
)

settlements = Table(
    "settlements",
    metadata,
    text("call_id"),
    integer("dispatch_no"),
    Column("run_key", Integer, ForeignKey("runs.run_key"), nullable=True),
    text("decision"),
    text("made_by"),
    text("reason"),
    integer("made_us"),
    PrimaryKeyConstraint("call_id", "dispatch_no", "made_us"),
    ForeignKeyConstraint(["call_id", "dispatch_no"], ["dispatches.call_id", "dispatches.dispatch_no"]),
)
"""Who settled an unknown outcome, how and why."""

imports = Table(
    "imports",
    metadata,
    Column("import_id", Text, primary_key=True, nullable=False),
    state("import"),
    text("snapshot_digest"),
    Column("run_key", Integer, ForeignKey("runs.run_key"), nullable=True),
    text("worker_id", ForeignKey("workers.worker_id"), null=True),
    integer("began_us"),
    integer("ended_us", null=True),
)

events = Table(
    "events",
    metadata,
    run_key(),
    integer("event_no"),
    text("kind"),
    integer("at_us"),
    text("body", default="{}"),
    Column("hash", LargeBinary, nullable=False),
    PrimaryKeyConstraint("run_key", "event_no"),
    sqlite_with_rowid=False,
)
