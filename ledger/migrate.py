"""Bringing a file to the newest schema: each migration one real transaction with its version stamp, a backup before it.

Everything here runs inside the turnstile, which is the exclusive lock of creation and upgrade: of ten processes that
open an absent or old ledger at once, one does the work and the others find it done.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from .crashpoints import crashpoint
from .driver import APPLICATION_ID, Connection, connect, sqlite
from .durable import sync, sync_folder
from .schema import SCHEMA_NUMBER

__all__ = ["apply_migration", "backup_to", "migrate", "newest_schema", "schema_number"]

_SCRIPTS: Final = Path(__file__).parent.parent / "migrations"


def schema_number(connection: Connection) -> int:
    """The number of the file's newest migration; 0 for an empty file."""
    number: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return number


def is_empty(connection: Connection) -> bool:
    """Whether the file has no schema at all: new, or left by a start that was killed."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return bool(application == 0 and tables == 0 and schema_number(connection) == 0)


def is_ledger(connection: Connection) -> bool:
    """Whether the file says that it is a ledger."""
    return bool(connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID)


def migrate(path: Path, *, backups: Path) -> tuple[int, int]:
    """Create or upgrade the schema and return its numbers before and after. The caller is inside the turnstile.

    A kill leaves the file at the schema before or after the migration under way; the next call goes on from there.
    """
    connection = connect(path, create=True)
    try:
        before = schema_number(connection)
        crashpoint("ledger.created.empty")
        connection.execute("PRAGMA journal_mode=WAL").fetchone()
        connection.execute("PRAGMA synchronous=FULL").fetchone()
        connection.execute("PRAGMA wal_autocheckpoint=0").fetchone()
        for number in range(before + 1, SCHEMA_NUMBER + 1):
            if number > 1:
                backup_to(connection, backups / f"before-{number:04d}.db")
            apply_migration(connection, number)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        crashpoint("ledger.migrated")
        return before, schema_number(connection)
    finally:
        connection.close()


def backup_to(connection: Connection, destination: Path) -> None:
    """Copy the whole file through SQLite, synced and renamed into place; replaces an older copy of that name.

    The caller is inside the turnstile, so that nobody else makes a copy of that name.
    """
    destination.parent.mkdir(exist_ok=True)
    temporary = destination.with_suffix(".part")
    temporary.unlink(missing_ok=True)
    try:
        with contextlib.closing(sqlite.connect(str(temporary))) as copy:
            connection.backup(copy)
        with temporary.open("rb") as file:
            sync(file.fileno())
        temporary.replace(destination)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    for folder in (destination.parent, destination.parent.parent):  # the folder itself may be new
        sync_folder(folder)


@functools.cache
def newest_schema() -> Mapping[str, str]:
    """The statements that make each table, index and trigger of the newest schema, by name."""
    with contextlib.closing(sqlite.connect(":memory:", isolation_level=None)) as connection:
        for number in range(1, SCHEMA_NUMBER + 1):
            apply_migration(connection, number)
        return dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())


def apply_migration(connection: Connection, number: int) -> None:
    """Run one migration, a transaction of its own with its version stamp."""
    # Alembic and the engine are needed for creation and upgrade only; opening a ledger must not pay for their import.
    import sqlalchemy
    from alembic import command
    from alembic.config import Config
    from sqlalchemy.pool import StaticPool

    engine = sqlalchemy.create_engine(
        "sqlite+pysqlite://", module=sqlite, creator=lambda: connection, poolclass=StaticPool
    )

    @sqlalchemy.event.listens_for(engine, "begin")
    def begin(started: Any) -> None:
        started.exec_driver_sql("BEGIN EXCLUSIVE")

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    with engine.begin() as transaction:
        config.attributes["connection"] = transaction
        command.upgrade(config, f"{number:04d}")
