"""The tables of what outlives a run: leases and fences of runs and devices, provisions, judges."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Integer, Table, Text
from sqlalchemy import text as sql_text

from .columns import integer, metadata, state, text

__all__ = ["devices", "fences", "leases", "provisions", "qualifications"]

leases = Table(
    "leases",
    metadata,
    Column("lease_id", Text, primary_key=True, nullable=False),
    text("set_id", null=True),
    text("resource"),
    state("lease"),
    text("worker_id", ForeignKey("workers.worker_id"), null=True),
    Column("run_key", Integer, ForeignKey("runs.run_key"), nullable=True),
    integer("fence"),
    integer("asked_us"),
    integer("since_us", null=True),
    integer("renewed_us", null=True),
    integer("ended_us", null=True),
    text("boot_id", null=True),
    integer("expires_boot_ns", null=True),
    integer("lease_ms", null=True),
    text("reason", null=True),
)
Index("leases_one_holder", leases.c.resource, unique=True, sqlite_where=sql_text("state = 'held'"))
Index("leases_waiting", leases.c.resource, leases.c.lease_id, sqlite_where=sql_text("state = 'waiting'"))

Index("leases_by_fence", leases.c.resource, leases.c.fence)
Index("leases_of_set", leases.c.set_id, sqlite_where=sql_text("set_id IS NOT NULL"))
Index("leases_quarantined", leases.c.resource, sqlite_where=sql_text("state = 'quarantined'"))

devices = Table(
    "devices",
    metadata,
    Column("resource", Text, primary_key=True, nullable=False),
    text("kind"),
    text("facts", default="{}"),
    integer("compares_fences"),
    integer("boot_count", null=True),
    integer("generation", default=1),
    integer("first_seen_us"),
    integer("last_seen_us"),
)
"""What each device said that it is when it was last looked at; ``generation`` rises with each accepted reboot."""

fences = Table(
    "fences",
    metadata,
    Column("resource", Text, primary_key=True, nullable=False),
    integer("high_water"),
    sqlite_with_rowid=False,
)

provisions = Table(
    "provisions",
    metadata,
    Column("provision_id", Text, primary_key=True, nullable=False),
    Column("run_key", Integer, ForeignKey("runs.run_key"), nullable=True),
    state("provision"),
    text("kind"),
    text("labels", default="{}"),
    text("handle", null=True),
    text("worker_id", ForeignKey("workers.worker_id"), null=True),
    integer("intended_us"),
    integer("ended_us", null=True),
    text("reason", null=True),
)

qualifications = Table(
    "qualifications",
    metadata,
    Column("qualification_id", Text, primary_key=True, nullable=False),
    text("judge_digest"),
    text("set_digest"),
    text("document"),
    integer("made_us"),
    Index("qualifications_by_judge", "judge_digest", "made_us"),
)
"""How a judge did on labelled observations; ``document`` holds its figures."""
