"""The program whose writes are recorded: commands of tallystick, and a word of each thing that it tells or sends.

    python -m tests.power.workload --said FILE [--plant FAULT] COMMANDS [COMMANDS]

COMMANDS is a JSON list of lists of arguments; the second are those of another process, at the same time.

One JSON line is appended to the file ``said``

* before a call is sent: ``{"sends": request id, "dispatch": number}``,
* before a caller is told that its transaction is durable: ``{"told": [[run key, event number, hash], …],
  "worker": id, "batch": number}``,
* when a snapshot or a backup has been written: ``{"wrote": name, "digest": sha256}``,
* when a command has returned: ``{"returned": status, "command": …}``;

and with each the ``ledger`` that it is about, by its file's name.

``--plant`` puts one of the faults of `PLANTS` into the product, so that it can be seen whether it is found.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tallystick.cli.entry import invoke
from tallystick.ledger import artifacts, care, desk, driver, publishing, scribe, snapshot_artifacts
from tallystick.ledger.transaction import Transaction
from tallystick.runner.call_steps import CallSteps
from tallystick.runner.inner_calls import AttemptInnerCalls
from tallystick.runner.judge_calls import JudgeCalls

# Small, so that a short recording has many.
CHECKPOINT_PAGES: Final = 96

_said = -1


def say(**what: object) -> None:
    """Append one line; read from the trace, in the order of everything else that was done."""
    os.write(_said, json.dumps(what).encode() + b"\n")


def bear_witness() -> None:
    """Say what is told and what is sent."""
    heads: dict[int, tuple[int, str]] = {}
    marked: list[dict[str, object]] = []
    tell, mark, events, forget = scribe._tell, desk.Desk.mark, Transaction.events, Transaction.forget_heads
    send, judge, begin = CallSteps._send, JudgeCalls._one_call, AttemptInnerCalls._began

    def telling(batch: list[Any]) -> None:
        if marked and any(item.error is None for item in batch):
            say(told=[[key, *head] for key, head in heads.items()], **marked[-1])
        heads.clear()
        tell(batch)

    def marking(self: desk.Desk, transaction: Transaction) -> int:
        number = mark(self, transaction)
        marked[:] = [{"worker": transaction.worker_id, "batch": number, "ledger": self._ledger.path.name}]
        return number

    def adding(self: Transaction, run_key: int, kind: str, bodies: Any) -> int:
        number = events(self, run_key, kind, bodies)
        heads[run_key] = (number, self._heads[run_key][1].hex())
        return number

    def forgetting(self: Transaction) -> None:
        heads.clear()
        forget(self)

    async def sending(self: CallSteps, asking: Any, prepared: Any, key: Any, deadline: float) -> Any:
        say(sends=key.call_id, dispatch=key.dispatch_no, ledger=self._ledger.path.name)
        return await send(self, asking, prepared, key, deadline)

    async def judging(self: JudgeCalls, asked: Any, prepared: Any, key: Any) -> bool:
        say(sends=key.call_id, dispatch=key.dispatch_no, ledger=self._ledger.path.name)
        return await judge(self, asked, prepared, key)

    def beginning(self: AttemptInnerCalls, asked: Any, begun: Any) -> Any:
        say(sends=begun.key.call_id, dispatch=begun.key.dispatch_no, ledger=self._ledger.path.name)
        return begin(self, asked, begun)

    scribe._tell = telling
    changed: list[tuple[type, str, Callable[..., Any]]] = [
        (desk.Desk, "mark", marking), (Transaction, "events", adding), (Transaction, "forget_heads", forgetting),
        (CallSteps, "_send", sending), (JudgeCalls, "_one_call", judging), (AttemptInnerCalls, "_began", beginning),
    ]  # fmt: skip
    for owner, name, function in changed:
        setattr(owner, name, function)


# Faults, each of which a product could have.


def _commits_without_sync() -> None:
    harden = driver.harden

    def weakened(connection: Any, *, query_only: bool = False) -> Any:
        found = harden(connection, query_only=query_only)
        connection.execute("PRAGMA synchronous=NORMAL").fetchone()
        return found

    driver.harden = weakened


def _checkpoints_without_sync() -> None:
    checkpoint = desk.Desk.checkpoint

    def weakened(self: desk.Desk) -> None:
        self.connection().execute("PRAGMA synchronous=OFF").fetchone()
        checkpoint(self)
        self.connection().execute("PRAGMA synchronous=FULL").fetchone()

    desk.Desk.checkpoint = weakened  # type: ignore[method-assign]


def _splits_transactions() -> None:
    events = Transaction.events

    def splitting(self: Transaction, run_key: int, kind: str, bodies: Any) -> int:
        statements = ["COMMIT", "BEGIN IMMEDIATE"]
        try:
            self.execute("RELEASE work")
        except driver.SqliteError:
            pass  # it runs alone, without a savepoint
        else:
            statements.append("SAVEPOINT work")
        for statement in statements:
            self.execute(statement)
        return events(self, run_key, kind, bodies)

    Transaction.events = splitting  # type: ignore[method-assign]


def _tells_before_the_commit() -> None:
    run_all = scribe.Scribe._run_all

    def hasty(self: Any, transaction: Transaction, batch: list[Any]) -> bool:
        stop = run_all(self, transaction, batch)
        self._desk.mark(transaction)
        scribe._tell(batch)
        batch.clear()
        return stop

    scribe.Scribe._run_all = hasty  # type: ignore[method-assign]


def _syncs_nothing(_: object) -> None:
    """Stands where something is synced."""


PLANTS: Final[dict[str, Callable[[], None]]] = {
    "commits-without-sync": _commits_without_sync,
    "checkpoints-without-sync": _checkpoints_without_sync,
    "splits-transactions": _splits_transactions,
    "tells-before-the-commit": _tells_before_the_commit,
    "artifacts-without-sync": lambda: setattr(artifacts, "sync", _syncs_nothing),
    "artifact-names-without-sync": lambda: setattr(artifacts, "sync_folder", _syncs_nothing),
    "imported-artifacts-without-sync": lambda: setattr(snapshot_artifacts, "sync", _syncs_nothing),
    "imported-names-without-sync": lambda: setattr(snapshot_artifacts, "sync_folder", _syncs_nothing),
    "backed-up-artifacts-without-sync": lambda: setattr(care, "sync", _syncs_nothing),
    "backed-up-names-without-sync": lambda: setattr(care, "sync_folder", _syncs_nothing),
    "snapshots-without-sync": lambda: setattr(publishing, "sync", _syncs_nothing),
    "snapshot-names-without-sync": lambda: setattr(publishing, "sync_folder", _syncs_nothing),
}


def written_by(command: list[str]) -> Path | None:
    """The file that a command publishes, if it does."""
    if command[0] == "export":
        return Path(command[command.index("-o") + 1])
    return Path(command[2]) if command[:2] == ["ledger", "backup"] else None


def main() -> int:
    global _said
    parser = argparse.ArgumentParser()
    parser.add_argument("--said", required=True)
    parser.add_argument("--plant", choices=sorted(PLANTS))
    parser.add_argument("commands")
    parser.add_argument("beside", nargs="?")
    asked = parser.parse_args()
    other = None
    if asked.beside:
        mine = [sys.executable, "-m", "tests.power.workload", "--said", asked.said]
        other = subprocess.Popen([*mine, *(["--plant", asked.plant] if asked.plant else []), asked.beside])
    _said = os.open(asked.said, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    desk._PAGES_PER_CHECKPOINT = CHECKPOINT_PAGES  # type: ignore[misc]
    if asked.plant:
        PLANTS[asked.plant]()
    bear_witness()
    statuses = []
    for command in json.loads(asked.commands):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            statuses.append(invoke(command))
        print(statuses[-1], command, printed.getvalue(), file=sys.stderr)
        wrote = written_by(command)
        if wrote is not None and statuses[-1] == 0:
            say(wrote=wrote.name, digest=hashlib.sha256(wrote.read_bytes()).hexdigest())
        say(returned=statuses[-1], command=command)
    if other is not None:
        statuses.append(other.wait())
    # 3 and 75 are ends of commands that did what was asked.
    return max((status for status in statuses if status not in (3, 75)), default=0)


if __name__ == "__main__":
    sys.exit(main())
