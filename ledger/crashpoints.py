"""Named places where a test may kill this process.

Off, a point is one call of an empty function. On (``TALLYSTICK_CRASHPOINT=name`` or ``name@3`` for its third passage),
the process kills itself there by SIGKILL: no handler, no `finally`, no flush. With ``TALLYSTICK_CRASHPOINT_PIPE=R,W``
(two inherited descriptors) it writes the name to W instead and waits for a byte on R, so that a test can act while the
process stands exactly there, and kill it or let it go on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Final

from .errors import UsageError

__all__ = ["CRASHPOINTS", "crashpoint"]

CRASHPOINTS: Final[dict[str, str]] = {
    "ledger.created.empty": "the file of a new ledger exists, its schema does not",
    "ledger.migrated": "the schema is committed, nothing else is",
    "run.planning.batch": "some of a plan's slots are committed, the run is still hidden",
    "fork.batch": "some of what a fork takes over is committed, the run is still hidden",
    "run.planned": "the whole plan is committed",
    "run.opened": "this process has become the run's coordinator",
    "recovery.done": "what dead workers left has been classified",
    "lease.asked": "a set of devices is asked for, durably",
    "lease.takeover.inside": "inside the transaction that replaces a holder of a device",
    "lease.granted": "a set of devices is held, durably; nothing has been sent to any",
    "lease.claimed": "its devices are claimed on this host, too",
    "lease.released": "a set of devices is given back, durably",
    "lease.call.intent": "a call of a lease (reset, drain, …) is intended, durably; nothing has been sent",
    "lease.call.sent": "such a call has returned, nothing of it is committed",
    "device.taken_over": "the target has looked at its device, nothing of what it found is committed",
    "device.reconciled": "what it found, and what that settles, is durable",
    "dispatch.intent.before": "a request is prepared, nothing of it is committed",
    "dispatch.intent.inside": "inside the transaction that commits the intent",
    "dispatch.intent.committed": "the intent is durable, nothing has been sent",
    "dispatch.sent": "the target has returned, nothing of the answer is committed",
    "dispatch.outcome.inside": "inside the transaction that commits the outcome",
    "dispatch.outcome.committed": "the outcome is durable",
    "session.begun": "the session of a conversation is recorded, and its first turn's intent where its target keeps"
    " nothing",
    "session.restored": "the target has restored a session from its checkpoint, no turn has been asked in it",
    "turn.committed": "a turn of a conversation is durable, its next one is not thought of",
    "attempt.begun": "an attempt is durable whose target asks by itself, its code has not been called",
    "call.replayed": "a request of the target's own was answered from the ledger, nothing was sent",
    "attempt.returned": "such a target has returned, nothing of its answer is committed",
    "judgment.before": "the observation is durable, its judgment is not",
    "judgment.committed": "the judgment is durable",
    "judgment.intent.before": "a judge's request is prepared, nothing of it is committed",
    "judgment.intent.inside": "inside the transaction that commits the intent of a judge's call",
    "judgment.intent.committed": "the intent of a judge's call is durable, nothing has been sent",
    "judgment.sent": "the judge's call has returned, nothing of its reply is committed",
    "judgment.outcome.inside": "inside the transaction that commits what became of a judge's call",
    "judgment.outcome.committed": "what became of a judge's call is durable, with its verdict",
    "evaluation.created": "an evaluation is committed, its set is not written down yet",
    "evaluation.set.batch": "some of an evaluation's waiting judgments are committed",
    "evaluation.opened": "this process has become the evaluation's coordinator",
    "evaluation.finish.before": "nothing of the evaluation is under way, its end is not committed",
    "evaluation.finished": "the evaluation has been given back, and has ended if nothing waits",
    "query.answered": "a query by request id has been answered, nothing of it is committed",
    "query.settled": "what a query proved is durable",
    "reconcile.before": "a settlement is decided, nothing of it is committed",
    "reconcile.committed": "a settlement is durable",
    "scribe.commit.before": "a batch is complete, COMMIT has not been asked for",
    "scribe.commit.after": "COMMIT has returned, nobody has been told",
    "checkpoint.after": "the write-ahead log has been copied into the file",
    "export.written": "a snapshot is written and synced under another name, nothing lies at its own",
    "export.renamed": "the snapshot lies durably under its name, nobody has been told",
    "import.verified": "every member, row and promise of a snapshot is verified, nothing of it is written",
    "import.batch": "some of a snapshot's rows are committed, its runs are still hidden",
    "forward.prepared": "what is new of a run that is here lies aside, nothing of it is written",
    "forward.inside": "inside the transaction that moves a run forward",
    "import.flipped": "what a snapshot brought is shown, nobody has been told",
    "backup.written": "a backup is written and synced under another name, nothing lies at its own",
    "custody.moving": "a run is being moved away, its snapshot is not written",
    "custody.moved": "a run is moved away, and its snapshot is all that may go on with it",
    "custody.adopted": "this ledger has taken custody of a run",
    "run.finish.before": "every slot has ended, the run has not",
    "run.finished": "the run's end is durable",
}


def _off(name: str) -> None:
    """A crash point that is switched off."""


def _armed(wanted: str, passage: int) -> Callable[[str], None]:
    left = passage

    def reached(name: str) -> None:
        nonlocal left
        if name != wanted:
            return
        left -= 1
        if left == 0:
            _stop_here(name)

    return reached


def _stop_here(name: str) -> None:
    pipe = os.environ.get("TALLYSTICK_CRASHPOINT_PIPE")
    if pipe is None:
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()  # SIGKILL is on its way
        return
    read_end, write_end = (int(part) for part in pipe.split(","))
    os.write(write_end, name.encode() + b"\n")
    os.read(read_end, 1)


def _from_environment() -> Callable[[str], None]:
    setting = os.environ.get("TALLYSTICK_CRASHPOINT")
    if not setting:
        return _off
    name, _, passage = setting.partition("@")
    if name not in CRASHPOINTS or not (passage or "1").isdecimal():
        import difflib  # for this alone

        near = difflib.get_close_matches(name, CRASHPOINTS, n=1)
        raise UsageError(
            f"TALLYSTICK_CRASHPOINT={setting} names no crash point",
            f"write NAME or NAME@PASSAGE, such as {near[0] if near else 'dispatch.sent'}@3, or unset it",
        )
    return _armed(name, int(passage or "1"))


crashpoint: Callable[[str], None] = _from_environment()
"""``crashpoint("dispatch.intent.committed")``: stop here when a test asked for it."""
