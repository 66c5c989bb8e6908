"""Every error that tallystick raises on purpose.

    TallystickError
    ├── UsageError (ValueError)          what was asked cannot be done as written     exit 2
    │   ├── WorkOrderInvalid             a work order key, value or file is wrong
    │   ├── CaseFileInvalid              a line of a case file is wrong
    │   ├── SecretMissing                an environment variable that is named is not set
    │   ├── TargetNotFound               a target, judge or function that is named is not there
    │   ├── RunNotFound                  no run has that id or name
    │   ├── RunAmbiguous                 several runs have that prefix
    │   ├── EvaluationNotFound           no evaluation of the run has that number, id or name
    │   ├── DeviceNotFound               the ledger has never had that device
    │   └── NothingToSettle              reconcile found no unknown outcome to settle
    ├── RefusedError (RuntimeError)      it would break a promise                      exit 4
    │   ├── RunBusy                      another live coordinator has the run
    │   ├── EvaluationBusy               another live process has the evaluation
    │   ├── RunNotResumable              the run's state does not allow it
    │   ├── IdentityChanged              what an answer depends on is not what it was
    │   ├── GuardKeyChanged              a key of a guard stands for another call than before
    │   ├── CustodyElsewhere             the run is not this ledger's to continue
    │   ├── ContentsLeftOut              a snapshot brought the run without all of its contents
    │   ├── SnapshotInvalid              the file is no sound snapshot
    │   ├── SnapshotNewer                made by a newer version
    │   ├── SnapshotDiverged             the run went on here and there
    │   ├── DeviceBusy                   somebody who may be alive holds the device
    │   ├── DeviceQuarantined            an operator must look at the device first
    │   ├── DeviceLocksUnusable          the folder by which ledgers of a host exclude each other cannot be used
    │   ├── NotALedger                   the file is something else
    │   ├── LedgerMissing                there is no ledger at that path
    │   ├── LedgerBusy                   another process uses the ledger
    │   ├── LedgerNewer                  made by a newer version
    │   ├── LedgerOutdated               made by an older version and not upgraded
    │   ├── LedgerReadOnly               the file or its folder cannot be written
    │   └── LedgerOnNetwork              the file lies on a network file system
    ├── LedgerError (RuntimeError)       the ledger could not do what it promises      exit 5
    │   ├── LedgerFailed                 a write failed and was not committed
    │   ├── CommitUnknown                a commit failed and its outcome could not be read
    │   ├── LedgerClosed                 used after close, or after a failure closed it
    │   ├── LedgerForked                 used in a forked child
    │   ├── LedgerUnreadable             the file cannot be read now
    │   ├── ReadingEnded                 a reading was in the way of writers for too long
    │   ├── LedgerDamaged                an integrity check or an invariant failed
    │   ├── TransitionRefused            a guarded state change found another state
    │   └── LeaseLost                    the holder's lease is no longer its own
    ├── InnerCallRefused (RuntimeError)  a target's own request is not made            exit 4
    │   ├── ReplayDiverged               it is not the request that was made at this place before
    │   ├── EarlierCallUnknown           an earlier request of the attempt may have happened, and nothing may follow it
    │   └── AttemptOver                  the attempt that it belongs to has ended
    └── BudgetExhausted (RuntimeError)   a hard budget has no room                     exit 6

Each class has a permanent ``code``; its text says what happened, to what, and what to do. The fields survive pickling.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar, dataclass_transform

import attrs

__all__ = [
    "AttemptOver",
    "BudgetExhausted",
    "CaseFileInvalid",
    "CommitUnknown",
    "ContentsLeftOut",
    "CustodyElsewhere",
    "DeviceBusy",
    "DeviceLocksUnusable",
    "DeviceNotFound",
    "DeviceQuarantined",
    "EarlierCallUnknown",
    "EvaluationBusy",
    "EvaluationNotFound",
    "GuardKeyChanged",
    "IdentityChanged",
    "InnerCallRefused",
    "LeaseLost",
    "LedgerBusy",
    "LedgerClosed",
    "LedgerDamaged",
    "LedgerError",
    "LedgerFailed",
    "LedgerForked",
    "LedgerMissing",
    "LedgerNewer",
    "LedgerOnNetwork",
    "LedgerOutdated",
    "LedgerReadOnly",
    "LedgerUnreadable",
    "NotALedger",
    "NothingToSettle",
    "ReadingEnded",
    "RefusedError",
    "ReplayDiverged",
    "RunAmbiguous",
    "RunBusy",
    "RunNotFound",
    "RunNotResumable",
    "SecretMissing",
    "SnapshotDiverged",
    "SnapshotInvalid",
    "SnapshotNewer",
    "TallystickError",
    "TargetNotFound",
    "TransitionRefused",
    "UsageError",
    "WorkOrderInvalid",
]

_Class = TypeVar("_Class", bound=type)


@dataclass_transform(eq_default=False, field_specifiers=(attrs.field,))
def error(cls: _Class) -> _Class:
    """Make an error class of annotated fields; also for the errors of the layers above."""
    # An alias of attrs.define would hide the fields from type checkers.
    return attrs.define(auto_exc=True, slots=False, eq=False, str=False, repr=False)(cls)


@error
class TallystickError(Exception):
    """The base: ``what`` happened (with the id or place) and the ``remedy``, both one line, no secret in either."""

    what: str
    remedy: str = ""
    code: ClassVar[str] = "tallystick"
    exit_status: ClassVar[int] = 1

    def __str__(self) -> str:
        return f"{self.what}. {self.remedy[:1].upper()}{self.remedy[1:]}" if self.remedy else self.what


@error
class UsageError(TallystickError, ValueError):
    """What was asked cannot be done as it is written."""

    code: ClassVar[str] = "usage"
    exit_status: ClassVar[int] = 2


@error
class WorkOrderInvalid(UsageError):
    """A work order has a wrong key, value or reference; ``place`` is the file and key path."""

    place: str = ""
    code: ClassVar[str] = "usage.work_order"


@error
class CaseFileInvalid(UsageError):
    """A case file cannot be read; ``line`` counts from 1, 0 means the whole file."""

    path: str = ""
    line: int = 0
    code: ClassVar[str] = "usage.case_file"


@error
class SecretMissing(UsageError, LookupError):
    """An environment variable that the work order names is not set, or cannot be what it is named for."""

    variable: str = ""
    code: ClassVar[str] = "usage.secret_missing"


@error
class TargetNotFound(UsageError, LookupError):
    """A target, judge, module, function, program or address that the work order names is not there."""

    code: ClassVar[str] = "usage.target_not_found"


@error
class RunNotFound(UsageError, LookupError):
    """No run of this ledger has that id, prefix or name."""

    run: str = ""
    code: ClassVar[str] = "usage.run_not_found"


@error
class RunAmbiguous(UsageError, LookupError):
    """Several runs of this ledger have that prefix."""

    run: str = ""
    code: ClassVar[str] = "usage.run_ambiguous"


@error
class DeviceNotFound(UsageError, LookupError):
    """This ledger has never had a device of that name."""

    resource: str = ""
    code: ClassVar[str] = "usage.device_not_found"


@error
class EvaluationNotFound(UsageError, LookupError):
    """No evaluation of the run has that number, id, beginning of an id, or name."""

    evaluation: str = ""
    code: ClassVar[str] = "usage.evaluation_not_found"


@error
class NothingToSettle(UsageError):
    """``reconcile`` was asked to settle outcomes, and none that is unknown fits."""

    code: ClassVar[str] = "usage.nothing_to_settle"


@error
class RefusedError(TallystickError, RuntimeError):
    """Going on would break a promise that the ledger makes."""

    code: ClassVar[str] = "refused"
    exit_status: ClassVar[int] = 4


@error
class RunBusy(RefusedError):
    """Another live coordinator holds the run; ``holder`` says which process."""

    run_id: str = ""
    holder: str = ""
    code: ClassVar[str] = "run.busy"


@error
class EvaluationBusy(RefusedError):
    """Another live process has the evaluation; ``holder`` says which."""

    evaluation_id: str = ""
    holder: str = ""
    code: ClassVar[str] = "evaluation.busy"


@error
class RunNotResumable(RefusedError):
    """The run's state does not allow it to go on."""

    run_id: str = ""
    code: ClassVar[str] = "run.not_resumable"


@error
class IdentityChanged(RefusedError):
    """What an answer depends on is not what it was; ``differences`` has lines ``key: then -> now``."""

    run_id: str = ""
    differences: tuple[str, ...] = ()
    code: ClassVar[str] = "run.identity_changed"


@error
class GuardKeyChanged(RefusedError):
    """A key of a guard stands for another function, other code or other arguments than what was called under it."""

    key: str = ""
    code: ClassVar[str] = "guard.key_changed"


@error
class CustodyElsewhere(RefusedError):
    """The run was moved or copied and is not this ledger's to continue."""

    run_id: str = ""
    code: ClassVar[str] = "run.custody_elsewhere"


@error
class ContentsLeftOut(RefusedError):
    """A snapshot brought the run without all of its contents: it can be read here and neither judged nor continued."""

    run_id: str = ""
    code: ClassVar[str] = "run.contents_left_out"


@error
class SnapshotInvalid(RefusedError):
    """The file is no sound snapshot; ``place`` says where it is not. Nothing was taken from it."""

    path: str = ""
    place: str = ""
    code: ClassVar[str] = "snapshot.invalid"


@error
class SnapshotNewer(RefusedError):
    """The snapshot was made by a newer version."""

    path: str = ""
    code: ClassVar[str] = "snapshot.newer"


@error
class SnapshotDiverged(RefusedError):
    """The run went on here and in the snapshot, each in its own way from event ``event_no`` on."""

    run_id: str = ""
    event_no: int = 0
    code: ClassVar[str] = "snapshot.diverged"


@error
class DeviceBusy(RefusedError):
    """Somebody who is not proven dead holds the device; ``holder`` says who."""

    resource: str = ""
    holder: str = ""
    code: ClassVar[str] = "device.busy"


@error
class DeviceQuarantined(RefusedError):
    """The device is in quarantine: an operator has to look at it before anything is sent to it."""

    resource: str = ""
    code: ClassVar[str] = "device.quarantined"


@error
class DeviceLocksUnusable(RefusedError):
    """The folder by which the ledgers of this host keep each other from a device cannot be used."""

    path: str = ""
    code: ClassVar[str] = "device.locks_unusable"


@error
class NotALedger(RefusedError):
    """The file is not a tallystick ledger."""

    path: str = ""
    code: ClassVar[str] = "ledger.not_a_ledger"


@error
class LedgerMissing(RefusedError, FileNotFoundError):
    """There is no ledger at that path, and the command does not create one."""

    path: str = ""
    code: ClassVar[str] = "ledger.missing"


@error
class LedgerBusy(RefusedError):
    """Another process uses the ledger, and what was asked needs it alone."""

    path: str = ""
    code: ClassVar[str] = "ledger.busy"


@error
class LedgerNewer(RefusedError):
    """The ledger was made by a newer version."""

    path: str = ""
    code: ClassVar[str] = "ledger.newer"


@error
class LedgerOutdated(RefusedError):
    """The ledger has an older schema, and an upgrade was not asked for."""

    path: str = ""
    code: ClassVar[str] = "ledger.outdated"


@error
class LedgerReadOnly(RefusedError, PermissionError):
    """The ledger or its folder cannot be written."""

    path: str = ""
    code: ClassVar[str] = "ledger.read_only"


@error
class LedgerOnNetwork(RefusedError):
    """The ledger lies on a network file system, where write-ahead logging loses data."""

    path: str = ""
    filesystem: str = ""
    code: ClassVar[str] = "ledger.on_network"


@error
class LedgerError(TallystickError, RuntimeError):
    """The ledger could not do what it promises."""

    code: ClassVar[str] = "ledger"
    exit_status: ClassVar[int] = 5


@error
class LedgerFailed(LedgerError):
    """A write failed (disk full, I/O error) and is known not to have been committed."""

    code: ClassVar[str] = "ledger.failed"


@error
class CommitUnknown(LedgerError):
    """A COMMIT failed, and whether it is durable could not be read."""

    code: ClassVar[str] = "ledger.commit_unknown"


@error
class LedgerClosed(LedgerError):
    """The ledger was closed, by its owner or after a failed write."""

    code: ClassVar[str] = "ledger.closed"


@error
class LedgerForked(LedgerError):
    """A forked child used the ledger that its parent opened."""

    code: ClassVar[str] = "ledger.forked"


@error
class LedgerUnreadable(LedgerError):
    """The ledger's file cannot be read (I/O error, no more open files, locked); what is in it is not touched."""

    path: str = ""
    code: ClassVar[str] = "ledger.unreadable"


@error
class ReadingEnded(LedgerError):
    """A reading that lasted long was ended, because it kept the write-ahead log growing while much was written."""

    code: ClassVar[str] = "ledger.reading_ended"


@error
class LedgerDamaged(LedgerError):
    """An integrity check or an invariant failed; ``findings`` names each."""

    path: str = ""
    findings: tuple[str, ...] = ()
    code: ClassVar[str] = "ledger.damaged"


@error
class TransitionRefused(LedgerError):
    """A guarded state change found another state than it needs; nothing was changed."""

    machine: str = ""
    wanted: str = ""
    code: ClassVar[str] = "ledger.transition_refused"


@error
class LeaseLost(LedgerError):
    """The lease that this work needs is held by somebody else now."""

    resource: str = ""
    code: ClassVar[str] = "ledger.lease_lost"


@error
class InnerCallRefused(TallystickError, RuntimeError):
    """A request or a step of a target's own is not made, because that would break a promise."""

    code: ClassVar[str] = "attempt.call_refused"
    exit_status: ClassVar[int] = 4


@error
class ReplayDiverged(InnerCallRefused):
    """After a death the target asks for something else than it asked for at this place before; both are shown."""

    code: ClassVar[str] = "attempt.replay_diverged"


@error
class EarlierCallUnknown(InnerCallRefused):
    """An earlier request of the attempt may have happened; what its target declares lets nothing follow it now."""

    code: ClassVar[str] = "attempt.call_unknown"


@error
class AttemptOver(InnerCallRefused):
    """A request that comes when the attempt which it belongs to has ended, or when none is going on."""

    code: ClassVar[str] = "attempt.over"


@error
class BudgetExhausted(TallystickError, RuntimeError):
    """A hard budget has no room for the declared bound of the next dispatch."""

    budget: str = ""
    code: ClassVar[str] = "budget.exhausted"
    exit_status: ClassVar[int] = 6
