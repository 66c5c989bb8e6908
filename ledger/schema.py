"""The tables of the ledger, and the rules that the database itself holds.

Rows of a run are found by ``run_key``, a small integer of this file; everything else in a key (slot, attempt, call,
event numbers) means the same in every ledger, so a snapshot renames nothing but ``run_key``. Instants are microseconds
since the epoch (``_us``), money is nano-USD, JSON is canonical text (`canonical`), digests are ``sha256:<hex>``.
The schema is made by the migrations; a test holds this module and them together.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

__all__ = ["SCHEMA_NUMBER", "metadata", "triggers"]

SCHEMA_NUMBER: Final = 1
"""The newest migration; stands in the file as ``PRAGMA user_version``."""

metadata = MetaData()


def _integer(name: str, *args: Any, null: bool = False, default: int | None = None) -> Column[int]:
    server_default = None if default is None else text(str(default))
    return Column(name, Integer, *args, nullable=null, server_default=server_default)


def _text(name: str, *args: Any, null: bool = False, default: str | None = None) -> Column[str]:
    return Column(name, Text, *args, nullable=null, server_default=default)


def _state(machine: str) -> Column[str]:
    return Column("state", Text, ForeignKey(f"{machine}_states.state"), nullable=False)


def _vocabulary(name: str, column: str) -> Table:
    return Table(name, metadata, Column(column, Text, primary_key=True, nullable=False), sqlite_with_rowid=False)


def _run_key() -> Column[int]:
    return Column("run_key", Integer, ForeignKey("runs.run_key"), nullable=False)


_SLOT_KEY = ("run_key", "slot_no")
_ATTEMPT_KEY = ("run_key", "slot_no", "attempt_no")

# Vocabularies: reference tables, so that a later migration adds a word without rebuilding a table.
for _machine in ("run", "slot", "attempt", "dispatch", "reservation", "lease", "judgment", "provision", "import"):
    _vocabulary(f"{_machine}_states", "state")
_vocabulary("custody_states", "state")
_vocabulary("if_unknown_values", "value")
_vocabulary("next_steps", "step")
_vocabulary("call_owners", "owner")
_vocabulary("budget_kinds", "kind")

transitions = Table(
    "transitions",
    metadata,
    _text("machine"),
    _text("from_state"),
    _text("to_state"),
    PrimaryKeyConstraint("machine", "from_state", "to_state"),
    sqlite_with_rowid=False,
)

facts = Table("facts", metadata, Column("name", Text, primary_key=True, nullable=False), _text("value"))

workers = Table(
    "workers",
    metadata,
    Column("worker_id", Text, primary_key=True, nullable=False),
    _integer("pid"),
    _integer("start_ticks"),
    _text("boot_id"),
    _text("host"),
    _text("version"),
    _integer("began_us"),
    _integer("ended_us", null=True),
    _text("end_reason", null=True),
    _integer("last_batch", default=0),
)

runs = Table(
    "runs",
    metadata,
    Column("run_key", Integer, primary_key=True, nullable=False),
    Column("run_id", Text, nullable=False, unique=True),
    _text("name"),
    _state("run"),
    _text("work_order"),
    _text("work_order_digest"),
    _text("identity"),
    _text("identity_digest"),
    _text("settings", default="{}"),
    _integer("planned", default=0),
    _text("made_by", ForeignKey("workers.worker_id"), null=True),
    _integer("created_us"),
    _integer("started_us", null=True),
    _integer("ended_us", null=True),
    _integer("active_us", default=0),
    _integer("stop_asked_us", null=True),
    _text("stop_reason", null=True),
    _text("custody", ForeignKey("custody_states.state"), default="held"),
    _integer("custody_epoch", default=1),
    _text("forked_from", null=True),
    _integer("forked_at_event", null=True),
    Index("runs_by_digest", "work_order_digest", "run_key"),
)

variants = Table(
    "variants",
    metadata,
    _run_key(),
    _integer("variant_no"),
    _text("name"),
    _text("target", default="{}"),
    _text("if_unknown", ForeignKey("if_unknown_values.value")),
    PrimaryKeyConstraint("run_key", "variant_no"),
    UniqueConstraint("run_key", "name"),
    sqlite_with_rowid=False,
)

cases = Table(
    "cases",
    metadata,
    _run_key(),
    _integer("case_no"),
    _text("case_id"),
    _text("digest"),
    _text("input"),
    _text("expected", null=True),
    _text("metadata", default="{}"),
    PrimaryKeyConstraint("run_key", "case_no"),
    UniqueConstraint("run_key", "case_id"),
)

slots = Table(
    "slots",
    metadata,
    _run_key(),
    _integer("slot_no"),
    _state("slot"),
    _integer("case_no"),
    _integer("variant_no"),
    _integer("repetition"),
    _integer("attempts", default=0),
    _integer("selected_attempt", null=True),
    _text("next_step", ForeignKey("next_steps.step"), default="new"),
    _integer("not_before_us", default=0),
    _integer("suspect", default=0),
    _integer("solitary_deaths", default=0),
    _text("reason", null=True),
    PrimaryKeyConstraint(*_SLOT_KEY),
    ForeignKeyConstraint(["run_key", "case_no"], ["cases.run_key", "cases.case_no"]),
    ForeignKeyConstraint(["run_key", "variant_no"], ["variants.run_key", "variants.variant_no"]),
    CheckConstraint("(state = 'selected') = (selected_attempt IS NOT NULL)", name="selected_has_attempt"),
    CheckConstraint("selected_attempt IS NULL OR selected_attempt = attempts", name="newest_is_selected"),
    sqlite_with_rowid=False,
)
Index(
    "slots_pending",
    slots.c.run_key,
    slots.c.not_before_us,
    slots.c.slot_no,
    sqlite_where=text("state = 'pending'"),
)
Index("slots_in_flight", slots.c.run_key, slots.c.slot_no, sqlite_where=text("state = 'in_flight'"))
Index(
    "slots_suspect",
    slots.c.run_key,
    slots.c.solitary_deaths,
    slots.c.slot_no,
    sqlite_where=text("suspect = 1 AND state = 'pending'"),
)
Index(
    "slots_in_trouble",
    slots.c.run_key,
    slots.c.state,
    slots.c.slot_no,
    sqlite_where=text("state NOT IN ('pending', 'in_flight', 'selected')"),
)

attempts = Table(
    "attempts",
    metadata,
    _run_key(),
    _integer("slot_no"),
    _integer("attempt_no"),
    _state("attempt"),
    _text("worker_id", ForeignKey("workers.worker_id"), null=True),
    _text("fingerprint"),
    _integer("custody_epoch", default=1),
    _integer("solitary", default=0),
    _integer("contaminated", default=0),
    _integer("began_us"),
    _integer("ended_us", null=True),
    _text("reason", null=True),
    _text("message", null=True),
    PrimaryKeyConstraint(*_ATTEMPT_KEY),
    ForeignKeyConstraint(_SLOT_KEY, ["slots.run_key", "slots.slot_no"]),
    sqlite_with_rowid=False,
)

leases = Table(
    "leases",
    metadata,
    Column("lease_id", Text, primary_key=True, nullable=False),
    _text("resource"),
    _state("lease"),
    _text("worker_id", ForeignKey("workers.worker_id"), null=True),
    Column("run_key", Integer, ForeignKey("runs.run_key"), nullable=True),
    _integer("fence"),
    _integer("asked_us"),
    _integer("since_us", null=True),
    _integer("renewed_us", null=True),
    _integer("ended_us", null=True),
    _text("boot_id", null=True),
    _integer("expires_boot_ns", null=True),
    _text("reason", null=True),
)
Index("leases_one_holder", leases.c.resource, unique=True, sqlite_where=text("state = 'held'"))
Index("leases_waiting", leases.c.resource, leases.c.lease_id, sqlite_where=text("state = 'waiting'"))

fences = Table(
    "fences",
    metadata,
    Column("resource", Text, primary_key=True, nullable=False),
    _integer("high_water"),
    sqlite_with_rowid=False,
)

provisions = Table(
    "provisions",
    metadata,
    Column("provision_id", Text, primary_key=True, nullable=False),
    Column("run_key", Integer, ForeignKey("runs.run_key"), nullable=True),
    _state("provision"),
    _text("kind"),
    _text("labels", default="{}"),
    _text("handle", null=True),
    _text("worker_id", ForeignKey("workers.worker_id"), null=True),
    _integer("intended_us"),
    _integer("ended_us", null=True),
    _text("reason", null=True),
)

evaluations = Table(
    "evaluations",
    metadata,
    _run_key(),
    _integer("evaluation_no"),
    _text("evaluation_id"),
    _text("name"),
    _text("document", default="{}"),
    _text("document_digest"),
    _integer("set_at_event", null=True),
    _integer("created_us"),
    _integer("ended_us", null=True),
    PrimaryKeyConstraint("run_key", "evaluation_no"),
    UniqueConstraint("evaluation_id"),
)

evaluation_judges = Table(
    "evaluation_judges",
    metadata,
    _run_key(),
    _integer("evaluation_no"),
    _integer("judge_no"),
    _text("name"),
    _text("kind"),
    _text("identity", default="{}"),
    _text("identity_digest"),
    PrimaryKeyConstraint("run_key", "evaluation_no", "judge_no"),
    ForeignKeyConstraint(["run_key", "evaluation_no"], ["evaluations.run_key", "evaluations.evaluation_no"]),
)

_JUDGMENT_KEY = ("run_key", "evaluation_no", "judge_no", "slot_no", "attempt_no", "sample_no")
judgments = Table(
    "judgments",
    metadata,
    _run_key(),
    _integer("evaluation_no"),
    _integer("judge_no"),
    _integer("slot_no"),
    _integer("attempt_no"),
    _integer("sample_no", default=1),
    _state("judgment"),
    _integer("passed", null=True),
    Column("score", Text, nullable=True),
    _text("reason", null=True),
    _text("explanation", null=True),
    _text("raw", null=True),
    _text("parser", null=True),
    _text("evidence_digest", null=True),
    _text("reused_from", null=True),
    _text("worker_id", ForeignKey("workers.worker_id"), null=True),
    _integer("judged_us", null=True),
    PrimaryKeyConstraint(*_JUDGMENT_KEY),
    ForeignKeyConstraint(
        ["run_key", "evaluation_no", "judge_no"],
        ["evaluation_judges.run_key", "evaluation_judges.evaluation_no", "evaluation_judges.judge_no"],
    ),
    ForeignKeyConstraint(_ATTEMPT_KEY, ["attempts.run_key", "attempts.slot_no", "attempts.attempt_no"]),
    CheckConstraint("state <> 'judged' OR passed IS NOT NULL OR score IS NOT NULL", name="judged_has_verdict"),
    CheckConstraint("state <> 'no_verdict' OR reason IS NOT NULL", name="no_verdict_has_reason"),
    CheckConstraint("state = 'judged' OR (passed IS NULL AND score IS NULL)", name="verdict_only_when_judged"),
    sqlite_with_rowid=False,
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("digest", Text, primary_key=True, nullable=False),
    _integer("size"),
    _text("media_type", null=True),
    Column("data", LargeBinary, nullable=True),
    _integer("created_us"),
)
"""``data`` is NULL where the bytes lie in a file of the artifact folder, named by the digest."""

calls = Table(
    "calls",
    metadata,
    Column("call_id", Text, primary_key=True, nullable=False),
    Column("run_key", Integer, ForeignKey("runs.run_key"), nullable=True),
    _text("owner", ForeignKey("call_owners.owner")),
    _integer("slot_no", null=True),
    _integer("attempt_no", null=True),
    _integer("evaluation_no", null=True),
    _integer("judge_no", null=True),
    _integer("sample_no", null=True),
    _text("provision_id", ForeignKey("provisions.provision_id"), null=True),
    _text("lease_id", ForeignKey("leases.lease_id"), null=True),
    _integer("session_no", default=1),
    _integer("position", default=1),
    _text("role", default="target"),
    _text("head", default="{}"),
    Column("payload", LargeBinary, nullable=True),
    _text("payload_digest"),
    _integer("payload_size"),
    _text("payload_artifact", ForeignKey("artifacts.digest"), null=True),
    _text("if_unknown", ForeignKey("if_unknown_values.value")),
    _integer("key_until_us", null=True),
    _integer("fence", null=True),
    _integer("intended_us"),
    ForeignKeyConstraint(_ATTEMPT_KEY, ["attempts.run_key", "attempts.slot_no", "attempts.attempt_no"]),
    CheckConstraint(
        "CASE owner WHEN 'attempt' THEN run_key IS NOT NULL AND slot_no IS NOT NULL AND attempt_no IS NOT NULL"
        " WHEN 'judgment' THEN run_key IS NOT NULL AND evaluation_no IS NOT NULL AND slot_no IS NOT NULL"
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
    sqlite_where=text("owner = 'attempt'"),
)

call_attempts = Table(
    "call_attempts",
    metadata,
    _text("call_id", ForeignKey("calls.call_id")),
    _run_key(),
    _integer("slot_no"),
    _integer("attempt_no"),
    PrimaryKeyConstraint("call_id", "run_key", "slot_no", "attempt_no"),
    ForeignKeyConstraint(_ATTEMPT_KEY, ["attempts.run_key", "attempts.slot_no", "attempts.attempt_no"]),
    sqlite_with_rowid=False,
)
"""The attempts that one suite-level call serves."""

dispatches = Table(
    "dispatches",
    metadata,
    _text("call_id", ForeignKey("calls.call_id")),
    _integer("dispatch_no"),
    Column("run_key", Integer, ForeignKey("runs.run_key"), nullable=True),
    _state("dispatch"),
    _text("worker_id", ForeignKey("workers.worker_id"), null=True),
    _integer("intended_us"),
    _integer("ended_us", null=True),
    _integer("duration_us", null=True),
    _integer("bytes_sent", null=True),
    _integer("wire_sends", null=True),
    _integer("status", null=True),
    _text("reason", null=True),
    _text("message", null=True),
    _text("settled_by", null=True),
    Column("raw", LargeBinary, nullable=True),
    _text("raw_artifact", ForeignKey("artifacts.digest"), null=True),
    _integer("raw_cut", default=0),
    _integer("retry_after_us", null=True),
    _integer("tokens_in", null=True),
    _integer("tokens_out", null=True),
    _integer("cost_nanousd", null=True),
    _text("usage", null=True),
    _integer("replay", default=0),
    PrimaryKeyConstraint("call_id", "dispatch_no"),
)
Index(
    "dispatches_open",
    dispatches.c.run_key,
    dispatches.c.call_id,
    sqlite_where=text("state IN ('intended', 'unknown')"),
)

budgets = Table(
    "budgets",
    metadata,
    _run_key(),
    _integer("budget_no"),
    _text("scope"),
    _text("scope_value", default=""),
    _text("unit"),
    _text("kind", ForeignKey("budget_kinds.kind")),
    _integer("limit_amount"),
    _integer("bound_amount", null=True),
    _integer("held", default=0),
    _integer("settled", default=0),
    _integer("overrun", default=0),
    _integer("unknown_uses", default=0),
    PrimaryKeyConstraint("run_key", "budget_no"),
    UniqueConstraint("run_key", "scope", "scope_value", "unit"),
    CheckConstraint("held >= 0 AND settled >= 0 AND overrun >= 0 AND limit_amount >= 0", name="amounts_not_negative"),
    CheckConstraint("kind <> 'hard' OR held + settled <= limit_amount + overrun", name="hard_budget_holds"),
    sqlite_with_rowid=False,
)

budget_amendments = Table(
    "budget_amendments",
    metadata,
    _run_key(),
    _integer("budget_no"),
    _integer("amendment_no"),
    _integer("old_limit"),
    _integer("new_limit"),
    _text("reason"),
    _text("made_by"),
    _integer("made_us"),
    PrimaryKeyConstraint("run_key", "budget_no", "amendment_no"),
    ForeignKeyConstraint(["run_key", "budget_no"], ["budgets.run_key", "budgets.budget_no"]),
)

reservations = Table(
    "reservations",
    metadata,
    _text("call_id"),
    _integer("dispatch_no"),
    _integer("budget_no"),
    _run_key(),
    _state("reservation"),
    _integer("held"),
    _integer("settled", null=True),
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
    _run_key(),
    _integer("slot_no"),
    _integer("attempt_no"),
    _text("call_id", ForeignKey("calls.call_id"), null=True),
    _integer("dispatch_no", null=True),
    _text("answer", null=True),
    _text("answer_artifact", ForeignKey("artifacts.digest"), null=True),
    _text("answer_digest"),
    _text("evidence", default="{}"),
    _text("flags", default="[]"),
    _text("source", default="wire"),
    _integer("observed_us"),
    PrimaryKeyConstraint(*_ATTEMPT_KEY),
    ForeignKeyConstraint(_ATTEMPT_KEY, ["attempts.run_key", "attempts.slot_no", "attempts.attempt_no"]),
    CheckConstraint("(answer IS NULL) <> (answer_artifact IS NULL)", name="one_answer"),
)

sessions = Table(
    "sessions",
    metadata,
    _run_key(),
    _integer("slot_no"),
    _integer("attempt_no"),
    _integer("session_no"),
    _integer("turn", default=0),
    _text("lease_id", ForeignKey("leases.lease_id"), null=True),
    _text("checkpoint_artifact", ForeignKey("artifacts.digest"), null=True),
    _integer("began_us"),
    _integer("ended_us", null=True),
    PrimaryKeyConstraint("run_key", "slot_no", "attempt_no", "session_no"),
    ForeignKeyConstraint(_ATTEMPT_KEY, ["attempts.run_key", "attempts.slot_no", "attempts.attempt_no"]),
)

settlements = Table(
    "settlements",
    metadata,
    _text("call_id"),
    _integer("dispatch_no"),
    Column("run_key", Integer, ForeignKey("runs.run_key"), nullable=True),
    _text("decision"),
    _text("made_by"),
    _text("reason"),
    _integer("made_us"),
    PrimaryKeyConstraint("call_id", "dispatch_no", "made_us"),
    ForeignKeyConstraint(["call_id", "dispatch_no"], ["dispatches.call_id", "dispatches.dispatch_no"]),
)
"""Who settled an unknown outcome, how and why."""

imports = Table(
    "imports",
    metadata,
    Column("import_id", Text, primary_key=True, nullable=False),
    _state("import"),
    _text("snapshot_digest"),
    Column("run_key", Integer, ForeignKey("runs.run_key"), nullable=True),
    _text("worker_id", ForeignKey("workers.worker_id"), null=True),
    _integer("began_us"),
    _integer("ended_us", null=True),
)

events = Table(
    "events",
    metadata,
    _run_key(),
    _integer("event_no"),
    _text("kind"),
    _integer("at_us"),
    _text("body", default="{}"),
    Column("hash", LargeBinary, nullable=False),
    PrimaryKeyConstraint("run_key", "event_no"),
    sqlite_with_rowid=False,
)

_MACHINE_TABLES: Final = {
    "run": "runs",
    "slot": "slots",
    "attempt": "attempts",
    "dispatch": "dispatches",
    "reservation": "reservations",
    "lease": "leases",
    "judgment": "judgments",
    "provision": "provisions",
    "import": "imports",
}
_NEVER_DELETED: Final = ("attempts", "calls", "dispatches", "observations", "events", "settlements")
_NEVER_CHANGED: Final = ("events", "observations", "settlements", "cases", "variants", "budget_amendments")


def triggers() -> list[str]:
    """The rules that need a trigger: legal transitions, history that stays, events without gaps."""
    return [
        *(_transition_trigger(machine, table) for machine, table in _MACHINE_TABLES.items()),
        *(_stays_trigger(table) for table in _NEVER_DELETED),
        *(_unchanged_trigger(table) for table in _NEVER_CHANGED),
        "CREATE TRIGGER events_without_gaps BEFORE INSERT ON events"
        " WHEN NEW.event_no <> (SELECT coalesce(max(event_no), 0) + 1 FROM events WHERE run_key = NEW.run_key)"
        " BEGIN SELECT RAISE(ABORT, 'an event number is out of order'); END",
    ]


def _transition_trigger(machine: str, table: str) -> str:
    return (
        f"CREATE TRIGGER {table}_transition BEFORE UPDATE OF state ON {table}"
        " WHEN OLD.state <> NEW.state AND NOT EXISTS (SELECT 1 FROM transitions WHERE"
        f" machine = '{machine}' AND from_state = OLD.state AND to_state = NEW.state)"
        f" BEGIN SELECT RAISE(ABORT, 'the {machine} may not change its state so'); END"
    )


def _stays_trigger(table: str) -> str:
    return (
        f"CREATE TRIGGER {table}_stay BEFORE DELETE ON {table}"
        " WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')"
        f" BEGIN SELECT RAISE(ABORT, 'rows of {table} are never deleted'); END"
    )


def _unchanged_trigger(table: str) -> str:
    return (
        f"CREATE TRIGGER {table}_unchanged BEFORE UPDATE ON {table}"
        f" BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed'); END"
    )
