"""The errors that only an adapter can meet; they hang below the tree in ``ledger/errors.py``.

UsageError                           what was asked cannot be done as written      exit 2
├── CaseUnfit (ValueError)           a case does not have what the target's template needs
├── KindUnknown (LookupError)        no adapter has the kind that the work order names
└── KindAmbiguous (LookupError)      several installed packages have the kind that the work order names
"""

from __future__ import annotations

from typing import ClassVar

from ..ledger.errors import UsageError, error

__all__ = ["CaseUnfit", "KindAmbiguous", "KindUnknown"]


@error
class CaseUnfit(UsageError):
    """A request cannot be built from a case; ``case_id`` says from which."""

    case_id: str = ""
    code: ClassVar[str] = "usage.case_unfit"


@error
class KindUnknown(UsageError, LookupError):
    """No built-in and no installed adapter has the ``kind`` that the work order names."""

    place: str = ""
    code: ClassVar[str] = "usage.kind_unknown"


@error
class KindAmbiguous(UsageError, LookupError):
    """Several installed packages claim the ``kind`` that the work order names."""

    place: str = ""
    code: ClassVar[str] = "usage.kind_ambiguous"
