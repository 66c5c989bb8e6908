"""What the tables of the schema are written with: kinds of columns, and the reference tables of words."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ForeignKey, Integer, MetaData, PrimaryKeyConstraint, Table, Text
from sqlalchemy import text as sql_text

__all__ = ["integer", "metadata", "run_key", "state", "text", "transitions"]

metadata = MetaData()


def integer(name: str, *args: Any, null: bool = False, default: int | None = None) -> Column[int]:
    server_default = None if default is None else sql_text(str(default))
    return Column(name, Integer, *args, nullable=null, server_default=server_default)


def text(name: str, *args: Any, null: bool = False, default: str | None = None) -> Column[str]:
    return Column(name, Text, *args, nullable=null, server_default=default)


def state(machine: str) -> Column[str]:
    return Column("state", Text, ForeignKey(f"{machine}_states.state"), nullable=False)


def _vocabulary(name: str, column: str) -> Table:
    return Table(name, metadata, Column(column, Text, primary_key=True, nullable=False), sqlite_with_rowid=False)


def run_key() -> Column[int]:
    return Column("run_key", Integer, ForeignKey("runs.run_key"), nullable=False)


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
    text("machine"),
    text("from_state"),
    text("to_state"),
    PrimaryKeyConstraint("machine", "from_state", "to_state"),
    sqlite_with_rowid=False,
)
