"""Looking through a whole ledger for damage, broken invariants and what deaths have left. Changes nothing.

Costs by the size of the ledger: it reads every row and every artifact file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from .artifacts import file_of, files_in
from .canonical import digest_of_bytes
from .check_leases import LEASE_RULES
from .check_rules import RULES, Severity
from .errors import LedgerDamaged
from .history_check import differences
from .ledger import Ledger, Reader
from .processes import ProcessIdentity
from .schema_rules import transition_rows, triggers, vocabularies
from .transaction import chained_hash

__all__ = ["Finding", "Severity", "check_ledger", "check_rows", "require_sound"]

_EXAMPLES: Final = 3
_ROWS_MAX: Final = 10_000


@attrs.frozen
class Finding:
    """One thing that is not as it should be; ``what`` names the first places, ``remedy`` says what to do."""

    code: str
    severity: Severity
    what: str
    remedy: str


def check_ledger(ledger: Ledger) -> list[Finding]:
    """Everything that is found at one instant, errors first; empty: the ledger is sound."""
    with ledger.reading() as reader:
        found = [
            *_database(reader),
            *_rules(reader),
            *_events(reader),
            *_history(reader),
            *_digests(reader),
            *_artifacts(ledger, reader),
            *_dead_workers(ledger, reader),
        ]
    return sorted(found, key=lambda finding: finding.severity is not Severity.ERROR)


def check_rows(reader: Reader) -> Iterator[Finding]:
    """What the rows alone tell: references, rules, chains of events, histories and digests.

    For rows that are in no ledger yet; the file that holds them and the files beside it are not looked at.
    """
    broken = (f"{table} -> {parent}" for table, _, parent, _ in reader.each("PRAGMA foreign_key_check"))
    yield from _one("database.reference", "rows refer to rows that are not there", broken, _REBUILD)
    for look in (_rules, _events, _history, _digests):
        yield from look(reader)


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


def _one(
    code: str, what: str, places: Iterable[str], remedy: str, severity: Severity = Severity.ERROR
) -> Iterator[Finding]:
    """At most one finding: what it is, how often, and the first places."""
    listed = list(itertools.islice(places, _ROWS_MAX))
    if not listed:
        return
    more = f" and {len(listed) - _EXAMPLES} more" if len(listed) > _EXAMPLES else ""
    yield Finding(code, severity, f"{what}: {'; '.join(listed[:_EXAMPLES])}{more}", remedy)


_REBUILD: Final = "copy the file aside, restore the newest backup, and check the disk"


def _database(reader: Reader) -> Iterator[Finding]:
    problems = [row[0] for row in reader.rows("PRAGMA integrity_check(100)")]
    yield from _one("database.integrity", "the file is damaged", (text for text in problems if text != "ok"), _REBUILD)
    broken = (f"{table} -> {parent}" for table, _, parent, _ in reader.each("PRAGMA foreign_key_check"))
    yield from _one("database.reference", "rows refer to rows that are not there", broken, _REBUILD)
    yield from _one(
        "database.rules", "rules of the schema are missing or changed", _missing_rules(reader),
        "something else has changed the file: export what you need and start a new ledger",
    )  # fmt: skip


def _missing_rules(reader: Reader) -> Iterator[str]:
    there = {sql for (sql,) in reader.rows("SELECT sql FROM sqlite_master WHERE type = 'trigger'")}
    squeezed = {" ".join(sql.split()) for sql in there}
    for sql in triggers():
        if " ".join(sql.split()) not in squeezed:
            yield sql.split()[2]
    for table, words in vocabularies().items():
        if {row[0] for row in reader.rows(f"SELECT * FROM {table}")} != set(words):
            yield table
    rows = {tuple(row) for row in reader.rows("SELECT machine, from_state, to_state FROM transitions")}
    if rows != transition_rows():
        yield "transitions"


def _rules(reader: Reader) -> Iterator[Finding]:
    for rule in (*RULES, *LEASE_RULES):
        places = (str(row[0]) for row in reader.each(rule.sql))
        yield from _one(rule.code, rule.what, places, rule.remedy, rule.severity)


def _events(reader: Reader) -> Iterator[Finding]:
    yield from _one(
        "events.chain", "the history of runs is broken", _broken_chains(reader),
        "the history was changed: trust neither it nor a snapshot of it, and restore a backup",
    )  # fmt: skip
    uncounted = (
        f"run {run_id}: {told} told, {found} found"
        for run_id, told, found in reader.each(
            "SELECT r.run_id, (SELECT count(*) FROM events e WHERE e.run_key = r.run_key"
            " AND e.kind = 'dispatch.intended') AS told, (SELECT count(*) FROM dispatches d JOIN calls c"
            " ON c.call_id = d.call_id WHERE c.run_key = r.run_key AND c.owner = 'attempt') AS found"
            " FROM runs r WHERE r.state NOT IN ('planning', 'importing') AND told <> found"
        )
    )
    yield from _one(
        "events.dispatches", "the history tells of other dispatches than there are", uncounted,
        "events or dispatches were removed: restore a backup",
    )  # fmt: skip


def _history(reader: Reader) -> Iterator[Finding]:
    yield from _one(
        "events.history", "the history of runs tells otherwise than their rows", differences(reader),
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


def _digests(reader: Reader) -> Iterator[Finding]:
    answers = (
        f"slot {slot_no} attempt {attempt_no} of run {run_id}"
        for run_id, slot_no, attempt_no, answer, digest in reader.each(
            "SELECT r.run_id, o.slot_no, o.attempt_no, o.answer, o.answer_digest FROM observations o"
            " JOIN runs r ON r.run_key = o.run_key WHERE o.answer IS NOT NULL"
            " AND (r.left_out IS NULL OR instr(o.answer, '[left out]') = 0)"
        )
        if digest_of_bytes(answer.encode()) != digest
    )
    yield from _one("observation.digest", "answers are not what was observed", answers, _REBUILD)
    turns = (
        f"slot {slot_no} attempt {attempt_no} turn {turn} of run {run_id}"
        for run_id, slot_no, attempt_no, turn, answer, digest in reader.each(
            "SELECT r.run_id, t.slot_no, t.attempt_no, t.turn, t.answer, t.answer_digest FROM turns t"
            " JOIN runs r ON r.run_key = t.run_key WHERE t.answer IS NOT NULL"
            " AND (r.left_out IS NULL OR instr(t.answer, '[left out]') = 0)"
        )
        if digest_of_bytes(answer.encode()) != digest
    )
    yield from _one("turn.digest", "answers of turns are not what was committed", turns, _REBUILD)
    payloads = (
        f"call {call_id}"
        for call_id, payload, digest in reader.each(
            "SELECT call_id, payload, payload_digest FROM calls WHERE payload IS NOT NULL"
        )
        if digest_of_bytes(payload) != digest
    )
    yield from _one("call.digest", "requests are not what was sent", payloads, _REBUILD)


def _artifacts(ledger: Ledger, reader: Reader) -> Iterator[Finding]:
    wanted: set[str] = set()
    damaged = _damaged_artifacts(reader, wanted)
    yield from _one(
        "artifact.damaged", "artifacts are missing or are not what was kept", damaged,
        f"restore their files in {ledger.path.name}.d/artifacts from a backup",
    )  # fmt: skip
    yield from _one(
        "artifact.orphan", "files belong to no artifact: a process died before it recorded them",
        (path.name for path in files_in(reader.artifacts) if path.name not in wanted),
        "delete them while nothing runs", Severity.WARNING,
    )  # fmt: skip


def _damaged_artifacts(reader: Reader, wanted: set[str]) -> Iterator[str]:
    for digest, size, data in reader.each("SELECT digest, size, data FROM artifacts"):
        if data is None:
            path = file_of(reader.artifacts, digest)
            wanted.add(path.name)
            if not path.is_file():
                yield f"{digest} (missing)"
                continue
            data = path.read_bytes()
        if len(data) != size or digest_of_bytes(data) != digest:
            yield digest


def _dead_workers(ledger: Ledger, reader: Reader) -> Iterator[Finding]:
    dead = {
        worker_id
        for worker_id, pid, ticks, boot, host, ended in reader.each(
            "SELECT worker_id, pid, start_ticks, boot_id, host, ended_us FROM workers"
        )
        if ended is not None or ledger.is_dead(worker_id, ProcessIdentity(pid, ticks, boot, host))
    }
    leases = (
        resource
        for resource, worker_id in reader.each("SELECT resource, worker_id FROM leases WHERE state = 'held'")
        if worker_id in dead
    )
    yield from _one(
        "lease.dead_holder", "leases are held by processes that have died", leases,
        "go on with `tallystick resume`, which takes them over", Severity.WARNING,
    )  # fmt: skip
    plans = (
        f"run {run_id}"
        for run_id, worker_id in reader.each(
            "SELECT run_id, made_by FROM runs WHERE state IN ('planning', 'importing')"
        )
        if worker_id in dead
    )
    yield from _one(
        "run.half_planned", "runs were being written by processes that have died", plans,
        "the next `tallystick run` removes plans, the next `tallystick import` what an import left", Severity.WARNING,
    )  # fmt: skip
