"""Looking through a whole ledger for damage, broken invariants and what deaths have left. Changes nothing.

Costs by the size of the ledger: it reads every row and every artifact file.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Final

import attrs
from sqlalchemy import Text

from .artifacts import file_of, measured
from .canonical import digest_of_bytes
from .check_digests import digests
from .check_judgments import JUDGMENT_RULES
from .check_leases import LEASE_RULES
from .check_leftovers import leftovers
from .check_rules import RULES, Severity
from .driver import SqliteError
from .errors import LedgerDamaged
from .failures import first_line, is_damage, is_of_file
from .findings import Finding, finding_of
from .history import EventRow
from .history_check import MAKES_NO_SENSE, Known, differences, known_of
from .ledger import Ledger, Reader
from .migrate import newest_schema
from .schema import metadata
from .schema_rules import transition_rows, vocabularies
from .snapshot_values import no_json
from .transaction import chained_hash

__all__ = [
    "EventsRead",
    "Finding",
    "Severity",
    "check_histories",
    "check_ledger",
    "check_references",
    "check_rows",
    "read_events",
    "require_sound",
]


def check_ledger(ledger: Ledger) -> list[Finding]:
    """Everything that is found at one instant, errors first; empty: the ledger is sound.

    Where the file is so damaged that a part of it cannot be read, that is a finding, and the rest is looked at.
    """
    strange: dict[Finding, Exception] = {}
    with ledger.reading() as reader:
        parts = (
            _integrity(reader), _schema(_missing_statements(reader)), _schema(_missing_words(reader)),
            check_references(reader), _texts(reader, strange), _rules(reader, strange), _events(reader),
            _history(reader), digests(reader), _artifacts(ledger, reader), leftovers(ledger, reader),
        )  # fmt: skip
        found = [finding for part in parts for finding in _readable(part, strange)]
    if strange and not {one for one in found if one.severity is Severity.ERROR} - strange.keys():
        raise next(iter(strange.values()))  # nothing else is wrong with the file, so a statement of ours is
    return sorted(set(found), key=lambda finding: (finding.severity is not Severity.ERROR, found.index(finding)))


def _readable(part: Iterator[Finding], strange: dict[Finding, Exception]) -> Iterator[Finding]:
    """The part as far as it can be read; what neither the disk nor damage explains is put to what is ``strange``."""
    try:
        yield from part
    except (SqliteError, UnicodeDecodeError) as problem:
        what = f"a part of the file cannot be read: {first_line(problem)}"
        finding = Finding("database.unreadable", Severity.ERROR, what, _REBUILD)
        if not (is_damage(problem) or is_of_file(problem)):
            strange[finding] = problem
        yield finding


def check_rows(reader: Reader) -> Iterator[Finding]:
    """What the rows alone tell, but for references.

    For rows that are in no ledger yet; the file that holds them and the files beside it are not looked at.
    """
    for rule in (*RULES, *LEASE_RULES, *JUDGMENT_RULES):
        yield from finding_of(rule.code, rule.what, (str(row[0]) for row in reader.each(rule.sql)), rule.remedy)


def check_histories(reader: Reader, events: EventsRead | None = None) -> Iterator[Finding]:
    """What events and digests tell: each event is bound to all before it, and rows and bytes are as they say.

    ``events`` is what `read_events` gave for the only run that there is.
    """
    yield from _events(reader, None if events is None else events.broken)
    yield from _history(reader, None if events is None else events.known)
    yield from digests(reader)


@attrs.frozen
class EventsRead:
    """The events of a run, gone through before its other rows are there; where they make no sense, nothing is known."""

    broken: tuple[str, ...]
    known: Known | None


def read_events(reader: Reader, run_key: int) -> EventsRead:
    """Go through the events of the only run, once; needs its own row and its variants, and nothing else.

    Where more is said to be planned than can be believed before its rows are there, nothing is known.
    """
    bound: list[int] = []
    known: Known | None = None
    if reader.row("SELECT total(planned) FROM runs WHERE run_key = ?", (run_key,))[0] <= _PLANNED_EARLY_MAX:
        # `differences` says what is wrong with events that make no sense.
        with contextlib.suppress(*MAKES_NO_SENSE):
            known = known_of(reader, run_key, _bound_events(reader, run_key, bound))
    count, others = reader.row("SELECT count(*), coalesce(sum(run_key <> ?), 0) FROM events", (run_key,))
    is_whole = known is not None and bound == [count] and not others
    return EventsRead(() if is_whole else tuple(_broken_chains(reader)), known)


def _bound_events(reader: Reader, run_key: int, bound: list[int]) -> Iterator[EventRow]:
    """A run's events; their number is put into ``bound`` at the end if each follows from the one before."""
    previous, number, is_bound = b"", 0, True
    for row in reader.each(
        "SELECT event_no, kind, at_us, body, hash FROM events WHERE run_key = ? ORDER BY event_no", (run_key,)
    ):
        number += 1
        event_no, kind, at_us, body, digest = row
        is_bound = is_bound and event_no == number and chained_hash(previous, event_no, kind, at_us, body) == digest
        previous = digest
        yield row[:4]
    if is_bound:
        bound.append(number)


def require_sound(ledger: Ledger) -> None:
    """Raise LedgerDamaged when something is broken; what deaths have left is no damage."""
    errors = [finding for finding in check_ledger(ledger) if finding.severity is Severity.ERROR]
    if errors:
        raise LedgerDamaged(
            f"the ledger {ledger.path} is damaged: {errors[0].what}",
            errors[0].remedy,
            str(ledger.path),
            tuple(f"{finding.code}: {finding.what}" for finding in errors),
        )


_PLANNED_EARLY_MAX: Final = 2_000_000  # 34 MB
_SPACES: Final = re.compile(r"[ \t\r\n]+")
_REBUILD: Final = "copy the file aside, restore the newest backup, and check the disk"


def _integrity(reader: Reader) -> Iterator[Finding]:
    problems = [row[0] for row in reader.rows("PRAGMA integrity_check(100)")]
    yield from finding_of(
        "database.integrity", "the file is damaged", (text for text in problems if text != "ok"), _REBUILD
    )


def _schema(missing: Iterator[str]) -> Iterator[Finding]:
    yield from finding_of(
        "database.rules", "rules of the schema are missing or changed", missing,
        "something else has changed the file: export what you need and start a new ledger",
    )  # fmt: skip


def check_references(reader: Reader) -> Iterator[Finding]:
    broken = (f"{table} -> {parent}" for table, _, parent, _ in reader.each("PRAGMA foreign_key_check"))
    yield from finding_of("database.reference", "rows refer to rows that are not there", broken, _REBUILD)


def _texts(reader: Reader, strange: dict[Finding, Exception]) -> Iterator[Finding]:
    """Whether every text is one, also those that nothing else here reads, and every JSON text is JSON."""
    for one in metadata.sorted_tables:
        table, names = one.name, ", ".join(column.name for column in one.columns if isinstance(column.type, Text))
        if names:
            yield from _readable(_nothing_of(reader.each(f"SELECT {names} FROM {table}")), strange)
    yield from finding_of("database.json", "texts that were JSON are none", no_json(reader), _REBUILD)


def _nothing_of(rows: Iterator[object]) -> Iterator[Finding]:
    """Goes through them, so that what cannot be read is come upon."""
    nothing: tuple[Finding, ...] = ()
    return (finding for _ in rows for finding in nothing)


def _missing_statements(reader: Reader) -> Iterator[str]:
    """The tables, indexes and triggers that are not made as they should be."""
    there = dict(reader.rows("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    for name, sql in newest_schema().items():
        if _SPACES.sub(" ", there.get(name, "")) != _SPACES.sub(" ", sql):
            yield name


def _missing_words(reader: Reader) -> Iterator[str]:
    """The tables of states and transitions that say something else."""
    for table, words in vocabularies().items():
        if {row[0] for row in reader.rows(f"SELECT * FROM {table}")} != set(words):
            yield table
    rows = {tuple(row) for row in reader.rows("SELECT machine, from_state, to_state FROM transitions")}
    if rows != transition_rows():
        yield "transitions"


def _rules(reader: Reader, strange: dict[Finding, Exception]) -> Iterator[Finding]:
    for rule in (*RULES, *LEASE_RULES, *JUDGMENT_RULES):
        places = (str(row[0]) for row in reader.each(rule.sql))
        yield from _readable(finding_of(rule.code, rule.what, places, rule.remedy), strange)


def _events(reader: Reader, broken: Iterable[str] | None = None) -> Iterator[Finding]:
    yield from finding_of(
        "events.chain", "the history of runs is broken", _broken_chains(reader) if broken is None else iter(broken),
        "the history was changed: trust neither it nor a snapshot of it, and restore a backup",
    )  # fmt: skip
    uncounted = (
        f"run {run_id}: {told} told, {found} found"
        for run_id, told, found in reader.each(
            "SELECT r.run_id, (SELECT count(*) FROM events e WHERE e.run_key = r.run_key"
            " AND e.kind = 'dispatch.intended') AS told, (SELECT count(*) FROM dispatches d JOIN calls c"
            " ON c.call_id = d.call_id WHERE c.run_key = r.run_key AND c.owner = 'attempt'"
            " AND c.reused_from IS NULL) AS found"
            " FROM runs r WHERE r.state NOT IN ('planning', 'importing') AND told <> found"
        )
    )
    yield from finding_of(
        "events.dispatches", "the history tells of other dispatches than there are", uncounted,
        "events or dispatches were removed: restore a backup",
    )  # fmt: skip


def _history(reader: Reader, known: Known | None = None) -> Iterator[Finding]:
    yield from finding_of(
        "events.history", "the history of runs tells otherwise than their rows", differences(reader, known),
        "rows were changed behind the ledger's back, or this is a defect of ours: restore a backup, and report it",
    )  # fmt: skip


def _broken_chains(reader: Reader) -> Iterator[str]:
    """At most one place a run: the first event that does not follow from the one before."""
    rows = reader.each(
        # Of an event from which a snapshot left text out, the hash is all that is left of the rest.
        "SELECT e.run_key, r.run_id, e.event_no, e.kind, e.at_us, e.body, e.hash,"
        " r.left_out IS NOT NULL AND instr(e.body, '\"left_out\":true') > 0 FROM events e"
        " LEFT JOIN runs r ON r.run_key = e.run_key ORDER BY e.run_key, e.event_no"
    )
    for _, events in itertools.groupby(rows, key=lambda row: row[0]):
        previous, number = b"", 0
        for _, run_id, event_no, kind, at_us, body, digest, is_part in events:
            is_bound = is_part or chained_hash(previous, event_no, kind, at_us, body) == digest
            if event_no != number + 1 or not is_bound:
                yield f"run {run_id} event {event_no}"
                break
            previous, number = digest, event_no


def _artifacts(ledger: Ledger, reader: Reader) -> Iterator[Finding]:
    yield from finding_of(
        "artifact.damaged", "artifacts are missing or are not what was kept", _damaged_artifacts(reader),
        f"restore their files in {ledger.path.name}.d/artifacts from a backup",
    )  # fmt: skip


def _damaged_artifacts(reader: Reader) -> Iterator[str]:
    for digest, size, data in reader.each("SELECT digest, size, data FROM artifacts"):
        try:
            found = measured(file_of(reader.artifacts, digest)) if data is None else (len(data), digest_of_bytes(data))
        except FileNotFoundError:
            yield f"{digest} (missing)"
        except OSError as problem:
            yield f"{digest} ({problem.strerror})"
        else:
            if found != (size, digest):
                yield digest
