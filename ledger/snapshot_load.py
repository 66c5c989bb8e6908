"""Putting the rows of a snapshot into its scratch database: each member as the manifest tells of it, and nothing else.

Where there is one run, its events are gone through by a thread as soon as they are there: that is Python's work, and
putting down the other rows is SQLite's.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from .checks import EventsRead, read_events
from .snapshot_format import MANIFEST, Manifest, MemberEntry, rows_member, table_of_member
from .snapshot_scratch import Scratch
from .snapshot_tables import TABLES_LEFT_OUT
from .zip_layout import Member
from .zip_reader import NotOurZip, ZipReader

__all__ = ["rows_loaded"]

_READ_WITH_EVENTS: Final = frozenset({"runs", "variants", "events"})


@contextlib.contextmanager
def rows_loaded(archive: ZipReader, manifest: Manifest, rows: Scratch) -> Iterator[Callable[[], EventsRead | None]]:
    """Put every row in, and bring the schema to the newest; raises NotOurZip and RowsUnfit.

    What is given waits for what the events of the only run tell; None where that is still to be found out.
    """
    loader = _Loader(archive, manifest, rows)
    early = _early(manifest, rows)
    told: Callable[[], EventsRead | None] = _not_yet
    with contextlib.ExitStack() as stack:
        for number, (entry, member) in enumerate(zip(manifest.members, archive.members, strict=False)):
            loader.load(entry, member)
            if number == early:
                reader = stack.enter_context(rows.another_reader())
                helper = stack.enter_context(ThreadPoolExecutor(1))  # ends before its reader does
                told = helper.submit(read_events, reader, 1).result
        loader.compare_counts()
        if rows.is_older:
            rows.look_at_kinds(rows.reader)
            rows.upgrade()
        yield told


def _not_yet() -> EventsRead | None:
    return None


def _early(manifest: Manifest, rows: Scratch) -> int | None:
    """The number of the member after which the events can be read: no later one has rows of what is read with them."""
    if len(manifest.runs) != 1 or rows.is_older:
        return None
    needed = [number for number, one in enumerate(manifest.members) if table_of_member(one.name) in _READ_WITH_EVENTS]
    there = {table_of_member(manifest.members[number].name) for number in needed}
    return needed[-1] if there == _READ_WITH_EVENTS else None


class _Loader:
    """Puts in one member after the other, and counts."""

    def __init__(self, archive: ZipReader, manifest: Manifest, rows: Scratch) -> None:
        self._archive = archive
        self._manifest = manifest
        self._rows = rows
        self._keys = {entry.run: key for key, entry in enumerate(manifest.runs, start=1)}
        self._found: dict[str, Counter[str]] = {run: Counter() for run in ("", *self._keys)}
        self._parts: Counter[tuple[str, str]] = Counter()

    def load(self, told: MemberEntry, member: Member) -> None:
        """Put a member's rows in, which are those that the manifest tells of."""
        run, table = self._place(told)
        columns, same = self._columns(run, table, told.name)
        hashed = hashlib.sha256()
        chunks = _hashed(self._archive.chunks(member, checked=False), hashed)
        key = self._keys.get(run)
        count = self._rows.load(
            table, columns, chunks, run_key=key, place=told.name, same=same, count_max=told.rows
        )  # fmt: skip
        if count != told.rows or f"sha256:{hashed.hexdigest()}" != told.digest:
            raise NotOurZip(f"{told.name} has other rows than {MANIFEST} says")
        self._found[run][table] += count
        if table == "runs" and key is not None:
            self._rows.add_run(key, epoch=self._manifest.runs[key - 1].epoch)

    def compare_counts(self) -> None:
        """All rows are there that the manifest counts."""
        for entry in self._manifest.runs:
            _compare_counts(entry.rows, self._found[entry.run], f"run {entry.run}")
            if strangers := [table for table in entry.same if not self._found[entry.run][table]]:
                raise NotOurZip(f"run {entry.run} has no rows of {strangers[0]}, and {MANIFEST} says what all hold")
        _compare_counts(self._manifest.shared, self._found[""], "what the runs share")

    def _place(self, told: MemberEntry) -> tuple[str, str]:
        """The run ("" for what they share) and the table."""
        folder, table = told.name.rpartition("/")[0], table_of_member(told.name)
        run = folder.removeprefix("runs/") if folder != "shared" else ""
        self._parts[run, table] += 1
        is_known = run in self._found and table in self._manifest.columns and table not in TABLES_LEFT_OUT
        if not is_known or table.startswith(("sqlite_", "alembic_")):  # of SQLite, or of the migrations
            raise NotOurZip(f"{told.name} is nothing that a snapshot holds")
        if told.name != rows_member(table, self._parts[run, table], run or None):
            raise NotOurZip(f"{told.name} is out of order")
        return run, table

    def _columns(self, run: str, table: str, place: str) -> tuple[list[str], dict[str, Any]]:
        """Those that stand in the rows, and what the others hold in each."""
        names = self._manifest.columns[table]
        same = dict(self._manifest.runs[self._keys[run] - 1].same.get(table, {})) if run else {}
        columns = [name for name in names if name not in same]
        if len(columns) + len(same) != len(names):
            raise NotOurZip(f"{MANIFEST} does not tell the columns of {place}")
        return columns, same


def _hashed(chunks: Iterable[bytes], hashed: Any) -> Iterator[bytes]:
    for chunk in chunks:
        hashed.update(chunk)
        yield chunk


def _compare_counts(told: dict[str, int], found: Counter[str], where: str) -> None:
    for table in sorted(told.keys() | found.keys()):
        if told.get(table, 0) != found[table]:
            raise NotOurZip(f"{where} has {found[table]} rows of {table}, and {MANIFEST} says {told.get(table, 0)}")
