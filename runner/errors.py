"""The errors that only a runner can meet; they hang below the tree in ``ledger/errors.py``.

    UsageError (ValueError)              what was asked cannot be done as written      exit 2
    └── AmountInvalid                    text or a number is not an amount of its unit
    RefusedError (RuntimeError)          it would break a promise                      exit 4
    ├── GuardDeadlock                    calls of a guard would wait for each other for ever
    └── IdentityNewer                    the run's identity document was written by a newer version

Each class has a permanent ``code``, as there.
"""

from __future__ import annotations

from typing import ClassVar

from ..ledger.errors import RefusedError, UsageError, error

__all__ = ["AmountInvalid", "GuardDeadlock", "IdentityNewer"]


@error
class AmountInvalid(UsageError):
    """A budget's amount is not written as its unit wants it."""

    code: ClassVar[str] = "usage.amount"


@error
class GuardDeadlock(RefusedError):
    """A key of a guard is waited for by a call that the key's own call waits for; nothing was called."""

    key: str = ""
    code: ClassVar[str] = "guard.deadlock"


@error
class IdentityNewer(RefusedError):
    """The run's identity document has a version that this tallystick does not know."""

    version: int = 0
    code: ClassVar[str] = "run.identity_newer"
