"""The errors that only a runner can meet; they hang below the tree in ``ledger/errors.py``.

    RefusedError                         it would break a promise                      exit 4
    └── IdentityNewer                    the run's identity document was written by a newer version

Each class has a permanent ``code``, as there.
"""

from __future__ import annotations

from typing import ClassVar

from ..ledger.errors import RefusedError, error

__all__ = ["IdentityNewer"]


@error
class IdentityNewer(RefusedError):
    """The run's identity document has a version that this tallystick does not know."""

    version: int = 0
    code: ClassVar[str] = "run.identity_newer"
