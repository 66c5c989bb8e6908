"""Taking custody of a run, and moving it away: each a transition of its own, told in the run's history."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from .coordinators import Coordinator, coordinator_of, open_run, recover_in_flight, refuse_busy, release_run
from .crashpoints import crashpoint
from .custody import elsewhere
from .errors import ContentsLeftOut, LedgerError, RunBusy, RunNotFound, RunNotResumable, UsageError
from .evaluation_holds import SOLITARY_DEATHS_MAX, left_under_way, recover_judgments
from .holders import dead_leases, let_go_of_run
from .lease_takeover import end_in_flight
from .ledger import Ledger
from .ledger_place import ledger_id
from .processes import host_id
from .states import CustodyState, RunState
from .transaction import Transaction

__all__ = ["Adopted", "adopt", "begin_move", "end_move", "lose_custody"]


_MOVING: Final = "moving"
_MOVE_AGAIN: Final = "move it again"
_IMPORT_AGAIN: Final = "import again"
_HELD_BELOW: Final = "SELECT run_key, state FROM runs WHERE run_id = ? AND custody = 'held' AND custody_epoch < ?"


@attrs.frozen
class _Standing:
    """A run that is to be moved."""

    run_id: str
    run_key: int
    state: str
    custody: str
    epoch: int


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
    elsewhere_held = holder.lease_id if holder is not None and not holder.dead else None
    adopted = ledger.write(lambda tx: _adopt(tx, run_id, reason, made_by, elsewhere_held=elsewhere_held))
    crashpoint("custody.adopted")
    return adopted


def begin_move(ledger: Ledger, run_ids: Sequence[str]) -> None:
    """Let nobody go on with the runs here any more: with all of them, or with none. Durable when it returns.

    One whose move has begun before stays as it is; what a process that died held of one is lost. Raises RunNotFound,
    RunBusy while somebody executes one or holds something of it, CustodyElsewhere where one is not this ledger's.
    """
    # In a transaction, though it only reads: who writes has noticed whether the file was copied.
    found = ledger.write(lambda tx: [_standing(tx, run_id) for run_id in run_ids])
    leaving = [one for one in found if one.custody != CustodyState.MOVING]
    for one in leaving:  # before anything is changed of any
        refuse_busy(ledger, one.run_id)
    dead = {one.run_key: dead_leases(ledger, one.run_key, then=_MOVE_AGAIN) for one in leaving}
    held: dict[int, Coordinator] = {}
    try:
        for one in leaving:
            if one.state in (RunState.OPEN, RunState.FINISHED):
                # To be its coordinator for an instant shows that nobody else is, and finds out what a dead one left.
                held[one.run_key] = open_run(ledger, one.run_id)
        ledger.write(lambda tx: _begin_moves(tx, leaving, held, dead))
    except BaseException:
        if ledger.failure is None:
            with contextlib.suppress(LedgerError):  # what stood in the way is what its caller hears of
                ledger.write(lambda tx: _give_back(tx, held.values()))
        raise
    crashpoint("custody.moving")


def _give_back(tx: Transaction, held: Iterable[Coordinator]) -> None:
    for one in held:
        release_run(tx, one, reason=_MOVING, active_us=0)


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

    What a process that died held of the run is lost. Raises RunBusy while a living one executes it or holds something
    of it here.
    """
    with ledger.reading() as reader:
        before = reader.row(_HELD_BELOW, (run_id, epoch))
    if before is None:
        return False
    dead = dead_leases(ledger, before[0], then=_IMPORT_AGAIN)

    def work(tx: Transaction) -> bool:
        row = tx.row(_HELD_BELOW, (run_id, epoch))
        if row is None:
            return False
        run_key, state = row
        recover_in_flight(tx, run_key, None, solitary_deaths_max=0)
        _leave_device_calls(tx, run_key)
        let_go_of_run(tx, run_key, dead, then=_IMPORT_AGAIN)
        _leave_judgments(tx, run_key, left_under_way(tx, run_key))
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


def _standing(tx: Transaction, run_id: str) -> _Standing:
    """How a run stands that is to be moved; raises where it cannot be."""
    row = tx.row("SELECT run_key, state, custody, custody_epoch FROM runs WHERE run_id = ?", (run_id,))
    if row is None:
        raise RunNotFound(f"there is no run {run_id}", "list them with `tallystick runs`", run_id)
    found = _Standing(run_id, *row)
    if found.custody not in (CustodyState.HELD, CustodyState.MOVING):
        raise elsewhere(tx, run_id, found.custody)
    if found.state not in (RunState.OPEN, RunState.FINISHED, RunState.CANCELLED, RunState.MOVING):
        raise RunNotResumable(f"run {run_id} is {found.state}", "wait until it is shown", run_id)
    return found


def _begin_moves(
    tx: Transaction,
    leaving: Sequence[_Standing],
    held: Mapping[int, Coordinator],
    dead: Mapping[int, Sequence[str]],
) -> None:
    for run in leaving:
        _begin_move(tx, run, held.get(run.run_key), dead[run.run_key])


def _begin_move(tx: Transaction, run: _Standing, hold: Coordinator | None, dead: Sequence[str]) -> None:
    now = _standing(tx, run.run_id)
    if now.custody != CustodyState.HELD:
        raise elsewhere(tx, run.run_id, now.custody)  # another process moves it
    if hold is not None and not tx.change(
        "UPDATE leases SET state = 'released', ended_us = ?, reason = ? WHERE lease_id = ? AND state = 'held'",
        (tx.now_us, _MOVING, hold.lease_id),
    ):
        raise RunBusy(f"run {run.run_id} was taken over meanwhile", "try again", run.run_id)
    _leave_device_calls(tx, run.run_key)
    let_go_of_run(tx, run.run_key, dead, then=_MOVE_AGAIN)
    # As for attempts, which `open_run` has found: whoever was at them is proven dead, which is charged where it is due.
    _leave_judgments(tx, run.run_key, left_under_way(tx, run.run_key), solitary_deaths_max=SOLITARY_DEATHS_MAX)
    if hold is not None:
        tx.event(run.run_key, "run.left", {"worker": tx.worker_id, "reason": _MOVING, "active_us": 0})
    tx.move("run", RunState.MOVING, "UPDATE runs SET state = 'moving', custody = 'moving', custody_epoch = ?"
            " WHERE run_key = ? AND custody = 'held' AND state IN ('open', 'finished', 'cancelled')",
            (now.epoch + 1, run.run_key))  # fmt: skip
    tx.event(run.run_key, "run.moving", {"state": now.state, "epoch": now.epoch + 1, "ledger": ledger_id(tx)})


def _leave_device_calls(tx: Transaction, run_key: int) -> None:
    """What a device was asked for under leases of the run, which have ended or end now, is unknown."""
    sets = tx.rows(
        "SELECT DISTINCT l.set_id FROM dispatches d INDEXED BY dispatches_open JOIN calls c ON c.call_id = d.call_id"
        " JOIN leases l ON l.lease_id = c.lease_id WHERE d.run_key = ? AND d.state IN ('intended', 'unknown')"
        " AND d.state = 'intended' AND l.set_id IS NOT NULL ORDER BY l.set_id",
        (run_key,),
    )
    for (set_id,) in sets:
        end_in_flight(tx, set_id, is_dead=False, message="its holder is gone")


def _leave_judgments(
    tx: Transaction, run_key: int, evaluations: Iterable[int], *, solitary_deaths_max: int = 0
) -> None:
    """What judges were at waits again or has no verdict, as where an evaluation is gone on with after a death."""
    for number in evaluations:
        recover_judgments(tx, run_key, number, dead_worker="", solitary_deaths_max=solitary_deaths_max)


def _adopt(tx: Transaction, run_id: str, reason: str, made_by: str, *, elsewhere_held: str | None) -> Adopted:
    """``elsewhere_held`` is the lease by which a process of another host was seen to execute the run."""
    row = tx.row(
        "SELECT run_key, custody, custody_epoch, left_out FROM runs"
        " WHERE run_id = ? AND state NOT IN ('planning', 'importing')", (run_id,)
    )  # fmt: skip
    if row is None:
        raise RunNotFound(f"there is no run {run_id}", "list them with `tallystick runs`", run_id)
    run_key, custody, epoch, left_out = row
    if custody == CustodyState.HELD and elsewhere_held is None:
        raise UsageError(f"run {run_id} is this ledger's already", f"go on with it: `tallystick resume {run_id}`")
    if custody == CustodyState.HELD and not tx.row(
        "SELECT 1 FROM leases WHERE lease_id = ? AND state = 'held'", (elsewhere_held,)
    ):
        raise RunBusy(
            f"run {run_id} was taken over meanwhile", f"look who has it: `tallystick status {run_id}`", run_id
        )
    if left_out is not None:
        raise ContentsLeftOut(
            f"run {run_id} came without all of its contents, and cannot go on here",
            "import a snapshot that was exported without --slots and --redact", run_id,
        )  # fmt: skip
    if custody in (CustodyState.MOVING, CustodyState.MOVED):
        tx.change("UPDATE runs SET state = ? WHERE run_key = ?", (_state_before(tx, run_key), run_key))
    tx.change("UPDATE runs SET custody = 'held', custody_epoch = ? WHERE run_key = ?", (epoch + 1, run_key))
    # Before leases are lost: what a process of this host judges in the copy is answered yet.
    judged = left_under_way(tx, run_key)
    # Whoever held something of it belongs to the past that the reason speaks of.
    _leave_device_calls(tx, run_key)
    tx.change("UPDATE leases SET state = 'lost', ended_us = ?, reason = 'the run was adopted'"
              " WHERE run_key = ? AND state IN ('held', 'waiting')", (tx.now_us, run_key))  # fmt: skip
    tx.event(run_key, "run.adopted", {
        "was": custody, "epoch": epoch + 1, "reason": reason, "by": made_by, "ledger": ledger_id(tx),
    })  # fmt: skip
    # Whoever was at it is not here, so its death is charged to no case.
    recovered = recover_in_flight(tx, run_key, None, solitary_deaths_max=0)
    _leave_judgments(tx, run_key, judged)
    return Adopted(run_id, CustodyState(custody), epoch + 1, recovered.unknown)
