"""Taking custody of a run, and moving it away: each a transition of its own, told in the run's history."""

from __future__ import annotations

import json
from typing import Any

import attrs

from .coordinators import coordinator_of, open_run, recover_in_flight
from .crashpoints import crashpoint
from .custody import elsewhere
from .errors import ContentsLeftOut, RunBusy, RunNotFound, RunNotResumable, UsageError
from .ledger import Ledger
from .ledger_place import ledger_id
from .processes import host_id
from .states import CustodyState, RunState
from .transaction import Transaction

__all__ = ["Adopted", "adopt", "begin_move", "end_move", "lose_custody"]


@attrs.frozen
class Adopted:
    """A run that this ledger has taken custody of; ``was`` is its custody here before, ``unknown`` counts slots."""

    run_id: str
    was: CustodyState
    epoch: int
    unknown: int


def adopt(ledger: Ledger, run_id: str, *, reason: str, made_by: str) -> Adopted:
    """Take custody of a run that is a copy here, or take a move back; what was in flight is unknown then.

    Also of a run that is held here and executed by a process of another host, whose death nobody here can prove.
    Raises UsageError where the run is this ledger's already or no reason is given, RunBusy while a process of this host
    executes it, and ContentsLeftOut where it cannot go on.
    """
    if not reason.strip():
        raise UsageError("a run is adopted with a reason", "say with --reason how you know that nobody goes on with it")
    holder = coordinator_of(ledger, run_id)
    is_here = holder is not None and not holder.dead and holder.identity.host == host_id()
    if holder is not None and is_here:
        raise RunBusy(f"run {run_id} is being executed by process {holder.identity.pid}", "stop it first", run_id)
    is_elsewhere = holder is not None and not holder.dead
    adopted = ledger.write(lambda tx: _adopt(tx, run_id, reason, made_by, is_elsewhere=is_elsewhere))
    crashpoint("custody.adopted")
    return adopted


def begin_move(ledger: Ledger, run_id: str) -> bool:
    """Let nobody go on with the run here any more; says whether that had begun before. Durable when it returns.

    Raises RunBusy while somebody executes it, CustodyElsewhere where it is not this ledger's.
    """
    # In a transaction, though it only reads: who writes has noticed whether the file was copied.
    row = ledger.write(lambda tx: tx.row("SELECT state, custody FROM runs WHERE run_id = ?", (run_id,)))
    if row is None:
        raise RunNotFound(f"there is no run {run_id}", "list them with `tallystick runs`", run_id)
    if row[1] == CustodyState.MOVING:
        return True
    if row[0] in (RunState.OPEN, RunState.FINISHED):
        # To be its coordinator for an instant shows that nobody else is, and finds out what a dead one left.
        held = open_run(ledger, run_id)
        ledger.write(lambda tx: _begin_move(tx, run_id, held.lease_id))
    else:
        ledger.write(lambda tx: _begin_move(tx, run_id, None))
    crashpoint("custody.moving")
    return False


def end_move(ledger: Ledger, run_ids: list[str]) -> None:
    """The snapshot lies durably where it was wanted: it alone may go on with the runs."""

    def work(tx: Transaction) -> None:
        # No event: the snapshot already has the run's history, and must not fall behind it.
        for run_id in run_ids:
            tx.move("run", RunState.MOVED, "UPDATE runs SET state = 'moved', custody = 'moved'"
                    " WHERE run_id = ? AND state = 'moving'", (run_id,))  # fmt: skip

    ledger.write(work)
    crashpoint("custody.moved")


def lose_custody(ledger: Ledger, run_id: str, *, epoch: int, snapshot: str) -> bool:
    """Honour that somebody else has taken custody, with a higher epoch; says whether it was this ledger's.

    Raises RunBusy while somebody executes the run here.
    """

    def work(tx: Transaction) -> bool:
        row = tx.row(
            "SELECT run_key, state FROM runs WHERE run_id = ? AND custody = 'held' AND custody_epoch < ?",
            (run_id, epoch),
        )
        if row is None:
            return False
        run_key, state = row
        if tx.row("SELECT 1 FROM leases WHERE run_key = ? AND state IN ('held', 'waiting')", (run_key,)) is not None:
            raise RunBusy(f"something of run {run_id} is held here", "stop it, then import again", run_id)
        tx.event(run_key, "run.custody_lost", {"state": state, "epoch": epoch, "snapshot": snapshot})
        for new in (RunState.MOVING, RunState.MOVED):
            tx.change("UPDATE runs SET state = ?, custody = ?, custody_epoch = ? WHERE run_key = ?",
                      (new, new, epoch, run_key))  # fmt: skip
        return True

    return ledger.write(work)


def _state_before(tx: Transaction, run_key: int) -> str:
    """How the run stood when it was moved away, or when this ledger learned that it is another's."""
    body = tx.row(
        "SELECT body FROM events WHERE run_key = ? AND kind IN ('run.moving', 'run.custody_lost')"
        " ORDER BY event_no DESC LIMIT 1", (run_key,),
    )[0]  # fmt: skip
    said: dict[str, Any] = json.loads(body)
    return str(said["state"])


def _begin_move(tx: Transaction, run_id: str, lease_id: str | None) -> None:
    run_key, state, custody, epoch = tx.row(
        "SELECT run_key, state, custody, custody_epoch FROM runs WHERE run_id = ?", (run_id,)
    )
    if custody != CustodyState.HELD:
        raise elsewhere(tx, run_id, custody)
    if state not in (RunState.OPEN, RunState.FINISHED, RunState.CANCELLED):
        raise RunNotResumable(f"run {run_id} is {state}", "wait until it is shown", run_id)
    if lease_id is not None and not tx.change(
        "UPDATE leases SET state = 'released', ended_us = ?, reason = 'moving' WHERE lease_id = ? AND state = 'held'",
        (tx.now_us, lease_id),
    ):
        raise RunBusy(f"run {run_id} was taken over meanwhile", "try again", run_id)
    if tx.row("SELECT 1 FROM leases WHERE run_key = ? AND state IN ('held', 'waiting')", (run_key,)) is not None:
        raise RunBusy(f"something of run {run_id} is still held", "stop what judges it or holds its devices", run_id)
    if lease_id is not None:
        tx.event(run_key, "run.left", {"worker": tx.worker_id, "reason": "moving", "active_us": 0})
    tx.move("run", RunState.MOVING, "UPDATE runs SET state = 'moving', custody = 'moving', custody_epoch = ?"
            " WHERE run_key = ? AND custody = 'held' AND state IN ('open', 'finished', 'cancelled')",
            (epoch + 1, run_key))  # fmt: skip
    tx.event(run_key, "run.moving", {"state": state, "epoch": epoch + 1, "ledger": ledger_id(tx)})


def _adopt(tx: Transaction, run_id: str, reason: str, made_by: str, *, is_elsewhere: bool) -> Adopted:
    row = tx.row(
        "SELECT run_key, custody, custody_epoch, left_out FROM runs"
        " WHERE run_id = ? AND state NOT IN ('planning', 'importing')", (run_id,)
    )  # fmt: skip
    if row is None:
        raise RunNotFound(f"there is no run {run_id}", "list them with `tallystick runs`", run_id)
    run_key, custody, epoch, left_out = row
    if custody == CustodyState.HELD and not is_elsewhere:
        raise UsageError(f"run {run_id} is this ledger's already", "go on with it: `tallystick resume`")
    if left_out is not None:
        raise ContentsLeftOut(
            f"run {run_id} came without all of its contents, and cannot go on here",
            "import a snapshot that was exported without --slots and --redact", run_id,
        )  # fmt: skip
    if custody in (CustodyState.MOVING, CustodyState.MOVED):
        tx.change("UPDATE runs SET state = ? WHERE run_key = ?", (_state_before(tx, run_key), run_key))
    tx.change("UPDATE runs SET custody = 'held', custody_epoch = ? WHERE run_key = ?", (epoch + 1, run_key))
    # Whoever held something of it belongs to the past that the reason speaks of.
    tx.change("UPDATE leases SET state = 'lost', ended_us = ?, reason = 'the run was adopted'"
              " WHERE run_key = ? AND state IN ('held', 'waiting')", (tx.now_us, run_key))  # fmt: skip
    tx.event(run_key, "run.adopted", {
        "was": custody, "epoch": epoch + 1, "reason": reason, "by": made_by, "ledger": ledger_id(tx),
    })  # fmt: skip
    # Whoever was at it is not here, so its death is charged to no case.
    recovered = recover_in_flight(tx, run_key, None, solitary_deaths_max=0)
    return Adopted(run_id, CustodyState(custody), epoch + 1, recovered.unknown)
