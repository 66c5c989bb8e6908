"""What is asked of ledgers after the power has failed: whether what was told and sent is there, and is whole."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from tallystick.ledger.checks import check_ledger
from tallystick.ledger.errors import LedgerMissing, TallystickError
from tallystick.ledger.ledger import Ledger, Reader
from tests.acceptance.invariants import check_invariants

__all__ = ["Promises", "Verdicts"]

_PATIENCE_SECONDS: Final = 120.0
_HIDDEN: Final = "SELECT run_id FROM runs WHERE state = 'importing'"
_HEADS: Final = (
    "SELECT r.run_id, max(e.event_no) FROM runs r LEFT JOIN events e ON e.run_key = r.run_key"
    " WHERE r.state NOT IN ('planning', 'importing') GROUP BY r.run_id ORDER BY r.run_id"
)
_SHOWN: Final = (
    " WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.run_key = t.run_key AND r.state IN ('planning', 'importing'))"
)


@attrs.define
class _OfLedger:
    """What was told of one ledger: heads of histories, batches of workers, and what was sent."""

    heads: dict[int, tuple[int, str]] = attrs.field(factory=dict)
    batches: dict[str, int] = attrs.field(factory=dict)
    sent: set[tuple[str, int]] = attrs.field(factory=set)


@attrs.define
class Promises:
    """What the processes had said before the power failed."""

    ledgers: defaultdict[str, _OfLedger] = attrs.field(factory=lambda: defaultdict(_OfLedger))
    files: dict[str, str] = attrs.field(factory=dict)

    @classmethod
    def of(cls, said: Sequence[str]) -> Promises:
        made = cls()
        for line in said:
            made._add(json.loads(line))
        return made

    def _add(self, word: dict[str, Any]) -> None:
        if "wrote" in word:
            self.files[word["wrote"]] = word["digest"]
        if "ledger" not in word:
            return
        told = self.ledgers[word["ledger"]]
        for run_key, number, digest in word.get("told", ()):
            told.heads[run_key] = (number, digest)
        if "batch" in word:
            told.batches[word["worker"]] = word["batch"]
        if "sends" in word:
            told.sent.add((word["sends"], word["dispatch"]))


class Verdicts:
    """Looks at one state of the disk after another; remembers what each commit looked like.

    ``wholes`` has, for each file that is published under its name, the digests that it may have.
    """

    def __init__(self, said: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self._states: dict[tuple[Any, ...], str] = {}
        self._environment = {**os.environ, **(environment or {})}
        self._wholes: defaultdict[str, set[str]] = defaultdict(set)
        for word in map(json.loads, said):
            if "wrote" in word:
                self._wholes[word["wrote"]].add(word["digest"])

    def broken(self, root: Path, promises: Promises) -> list[str]:
        """Every promise that is broken; each ledger is opened as the next command would open it."""
        names = {*promises.ledgers, *(path.name for path in (*root.glob("*.db"), *root.glob("*.sqlite")))}
        holders: defaultdict[str, list[str]] = defaultdict(list)
        found = [f"{name}: {one}" for name in sorted(names) for one in self._ledger(root / name, promises, holders)]
        twice = [f"run {run_id} is held by {ledgers}" for run_id, ledgers in holders.items() if len(ledgers) > 1]
        return [*found, *twice, *self._files(root, promises)]

    def goes_on(self, root: Path, promises: Promises) -> list[str]:
        """Every promise that is broken after the next commands.

        Each snapshot that was being taken in is taken in again, and each unfinished run is gone on with to its end.
        """
        broken: list[str] = []
        for ledger in sorted(root.glob("*.db")):
            broken += self._done_again(ledger)
            if not _asked(ledger, _HIDDEN) and ledger.stat().st_size:
                broken += _invariants(ledger)
        return [*broken, *self.broken(root, promises)]

    def _done_again(self, ledger: Path) -> Iterator[str]:
        if _asked(ledger, _HIDDEN):
            for snapshot in sorted(ledger.parent.glob("*.zip")):
                yield from self._command("import", snapshot, ledger)
        for (run_id,) in _asked(ledger, "SELECT run_id FROM runs WHERE state = 'open' AND custody = 'held'"):
            yield from self._command("resume", run_id, ledger)

    def _command(self, name: str, what: object, ledger: Path) -> Iterator[str]:
        done = subprocess.run(
            [sys.executable, "-m", "tallystick", name, str(what), "--ledger", str(ledger)],
            capture_output=True, text=True, timeout=_PATIENCE_SECONDS, env=self._environment, check=False,
            cwd=ledger.parent.parent,  # where the work orders' files lie, also for a ledger that took a run over
        )  # fmt: skip
        if done.returncode not in (0, 3):
            yield f"{name} ended with {done.returncode}: {done.stderr}"

    def _ledger(self, ledger: Path, promises: Promises, holders: dict[str, list[str]]) -> list[str]:
        told = promises.ledgers.get(ledger.name)
        try:
            with Ledger.open(ledger) as opened:
                broken = list(self._looked_into(opened, told or _OfLedger()))
                with opened.reading() as reader:
                    for (run_id,) in reader.rows("SELECT run_id FROM runs WHERE custody = 'held'"):
                        if ledger.suffix == ".db":  # a backup is another ledger as soon as somebody writes to it
                            holders[run_id].append(ledger.name)
                return broken
        except LedgerMissing as problem:
            if told is not None:
                return [f"nothing is there: {problem}"]
            return list(_begun_again(ledger))
        except TallystickError as problem:
            return [f"it cannot be opened: {problem.code}: {problem}"]
        except Exception as problem:
            return [f"it cannot be read: {type(problem).__name__}: {problem}"]

    def _looked_into(self, ledger: Ledger, told: _OfLedger) -> Iterator[str]:
        for finding in check_ledger(ledger):
            if finding.severity == "error":
                yield f"ledger check: {finding.code}: {finding.what}"
        with ledger.reading() as reader:
            yield from _promised(reader, told)
            yield from self._same_as_before(ledger, reader)

    def _same_as_before(self, ledger: Ledger, reader: Reader) -> Iterator[str]:
        """Between two commits there is nothing: two disks with the same commits hold the same rows.

        Workers number their commits, but for those that take a snapshot in: these lengthen a history, or show one.
        """
        commits = tuple(reader.rows("SELECT worker_id, last_batch, ended_us FROM workers ORDER BY worker_id"))
        facts = tuple(reader.rows("SELECT name, value FROM facts ORDER BY name"))
        heads = tuple(reader.rows(_HEADS))
        key = (ledger.path.name, *commits, *facts, *heads, reader.row("SELECT count(*) FROM sqlite_master")[0])
        digest = _digest_of_rows(reader)
        if self._states.setdefault(key, digest) != digest:
            yield f"the rows are not what they are elsewhere after the same commits: {key}"

    def _files(self, root: Path, promises: Promises) -> Iterator[str]:
        for name, allowed in self._wholes.items():
            path = root / name
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
            if digest is None and name in promises.files:
                yield f"told and lost: the file {name}"
            elif digest is not None and digest not in allowed:
                yield f"a part of a file under its final name: {name}"


def _asked(ledger: Path, sql: str) -> list[Any]:
    try:
        with Ledger.open(ledger) as opened, opened.reading() as reader:
            return reader.rows(sql)
    except LedgerMissing:
        return []


def _promised(reader: Reader, told: _OfLedger) -> Iterator[str]:
    for run_key, (number, digest) in told.heads.items():
        found = reader.row("SELECT hash FROM events WHERE run_key = ? AND event_no = ?", (run_key, number))
        if found is None or bytes(found[0]).hex() != digest:
            yield f"told and lost: event {number} of run {run_key} ({found and 'another is there'})"
    for worker_id, number in told.batches.items():
        found = reader.row("SELECT last_batch FROM workers WHERE worker_id = ?", (worker_id,))
        if found is None or found[0] < number:
            yield f"told and lost: batch {number} of worker {worker_id} ({found})"
    for call_id, number in told.sent:
        found = reader.row(
            "SELECT 1 FROM dispatches d JOIN calls c ON c.call_id = d.call_id"
            " WHERE d.call_id = ? AND d.dispatch_no = ?",
            (call_id, number),
        )
        if found is None:
            yield f"sent without an intent: call {call_id} dispatch {number}"


def _digest_of_rows(reader: Reader) -> str:
    """Of every row that anybody may see: those of a run that is still hidden come in commits that nobody counts."""
    digest = hashlib.sha256()
    for (table,) in reader.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"):
        digest.update(table.encode())
        columns = [row[1] for row in reader.rows(f'PRAGMA table_info("{table}")')]
        shown = _SHOWN if "run_key" in columns else ""
        for row in sorted(map(repr, reader.each(f'SELECT * FROM "{table}" t{shown}'))):
            digest.update(row.encode())
    return digest.hexdigest()


def _begun_again(ledger: Path) -> Iterator[str]:
    """Where nothing was promised, the next start makes the ledger."""
    try:
        with Ledger.open(ledger, create=True) as opened:
            for finding in check_ledger(opened):
                yield f"ledger check after a new start: {finding.code}: {finding.what}"
    except TallystickError as problem:
        yield f"it cannot be begun again: {problem.code}: {problem}"


def _invariants(ledger: Path) -> list[str]:
    """What does not hold by plain SQL, a second dispatch for what had its answer included."""
    try:
        check_invariants(ledger, None, at_rest=False)
    except AssertionError as problem:
        return str(problem).splitlines()
    return []
