"""What is asked of a ledger after the power has failed: whether what was told and sent is there, and is whole."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from tallystick.cli.entry import invoke
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.errors import LedgerMissing, TallystickError
from tallystick.ledger.ledger import Ledger, Reader
from tests.acceptance.invariants import check_invariants

__all__ = ["Promises", "Verdicts"]


@attrs.define
class Promises:
    """What the process had said before the power failed."""

    heads: dict[int, tuple[int, str]] = attrs.field(factory=dict)
    batches: dict[str, int] = attrs.field(factory=dict)
    sent: set[tuple[str, int]] = attrs.field(factory=set)
    files: dict[str, str] = attrs.field(factory=dict)

    @classmethod
    def of(cls, said: Sequence[str]) -> Promises:
        made = cls()
        for line in said:
            made.add(json.loads(line))
        return made

    def add(self, word: dict[str, Any]) -> None:
        for run_key, number, digest in word.get("told", ()):
            self.heads[run_key] = (number, digest)
        if "batch" in word:
            self.batches[word["worker"]] = word["batch"]
        if "sends" in word:
            self.sent.add((word["sends"], word["dispatch"]))
        if "wrote" in word:
            self.files[word["wrote"]] = word["digest"]

    def __bool__(self) -> bool:
        return bool(self.heads or self.batches or self.sent or self.files)


class Verdicts:
    """Looks at one state of the disk after another; remembers what each commit looked like."""

    def __init__(self) -> None:
        self._states: dict[tuple[Any, ...], str] = {}

    def broken(self, ledger: Path, promises: Promises) -> list[str]:
        """Every promise that is broken; the ledger is opened as the next command would open it."""
        try:
            with Ledger.open(ledger) as opened:
                return [*self._looked_into(opened, promises), *_files(ledger.parent, promises)]
        except LedgerMissing as problem:
            if promises:
                return [f"nothing is there: {problem}"]
            return list(_begun_again(ledger))
        except TallystickError as problem:
            return [f"it cannot be opened: {problem.code}: {problem}"]
        except Exception as problem:
            return [f"it cannot be read: {type(problem).__name__}: {problem}"]

    def goes_on(self, ledger: Path, promises: Promises) -> list[str]:
        """Every promise that is broken after the next commands: each unfinished run is gone on with to its end."""
        try:
            with Ledger.open(ledger) as opened, opened.reading() as reader:
                runs = [run_id for (run_id,) in reader.rows("SELECT run_id FROM runs WHERE state = 'open'")]
        except LedgerMissing:
            return []
        broken: list[str] = []
        for run_id in runs:
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                status = invoke(["resume", run_id, "--ledger", str(ledger)])
            if status not in (0, 3):
                broken.append(f"resume ended with {status}: {said.getvalue()}")
        return [*broken, *self.broken(ledger, promises), *_invariants(ledger)]

    def _looked_into(self, ledger: Ledger, promises: Promises) -> Iterator[str]:
        for finding in check_ledger(ledger):
            if finding.severity == "error":
                yield f"ledger check: {finding.code}: {finding.what}"
        with ledger.reading() as reader:
            yield from _promised(reader, promises)
            yield from self._same_as_before(reader)

    def _same_as_before(self, reader: Reader) -> Iterator[str]:
        """Between two commits there is nothing: two disks with the same commits hold the same rows."""
        commits = tuple(reader.rows("SELECT worker_id, last_batch, ended_us FROM workers ORDER BY worker_id"))
        facts = tuple(reader.rows("SELECT name, value FROM facts ORDER BY name"))
        key = (*commits, *facts, reader.row("SELECT count(*) FROM sqlite_master")[0])
        digest = _digest_of_rows(reader)
        if self._states.setdefault(key, digest) != digest:
            yield f"the rows are not what they are elsewhere after the same commits: {key}"


def _promised(reader: Reader, promises: Promises) -> Iterator[str]:
    for run_key, (number, digest) in promises.heads.items():
        found = reader.row("SELECT hash FROM events WHERE run_key = ? AND event_no = ?", (run_key, number))
        if found is None or bytes(found[0]).hex() != digest:
            yield f"told and lost: event {number} of run {run_key} ({found and 'another is there'})"
    for worker_id, number in promises.batches.items():
        found = reader.row("SELECT last_batch FROM workers WHERE worker_id = ?", (worker_id,))
        if found is None or found[0] < number:
            yield f"told and lost: batch {number} of worker {worker_id} ({found})"
    for call_id, number in promises.sent:
        found = reader.row(
            "SELECT 1 FROM dispatches d JOIN calls c ON c.call_id = d.call_id"
            " WHERE d.call_id = ? AND d.dispatch_no = ?",
            (call_id, number),
        )
        if found is None:
            yield f"sent without an intent: call {call_id} dispatch {number}"


def _digest_of_rows(reader: Reader) -> str:
    digest = hashlib.sha256()
    tables = reader.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    for (table,) in tables:
        digest.update(table.encode())
        for row in sorted(map(repr, reader.each(f'SELECT * FROM "{table}"'))):
            digest.update(row.encode())
    return digest.hexdigest()


def _files(folder: Path, promises: Promises) -> Iterator[str]:
    for name, digest in promises.files.items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            yield f"told and lost: the file {name}"


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
