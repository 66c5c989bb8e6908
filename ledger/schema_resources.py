"""The tables of what outlives a run: leases and fences of runs and devices, provisions of stacks."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Integer, Table, Text
from sqlalchemy import text as sql_text

from .columns import integer, metadata, state, text

__all__ = ["fences", "leases", "provisions"]

leases = Table(
    "leases",
    metadata,
    Column("lease_id", Text, primary_key=True, nullable=False),
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
    text("reason", null=True),
)
Index("leases_one_holder", leases.c.resource, unique=True, sqlite_where=sql_text("state = 'held'"))
Index("leases_waiting", leases.c.resource, leases.c.lease_id, sqlite_where=sql_text("state = 'waiting'"))

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
