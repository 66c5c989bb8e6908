"""Commands of ours that a text names in backticks, as they are to be pasted."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["with_ledger"]

_NAMED: Final = re.compile(r"`(tallystick [^`]*)`")


def with_ledger(text: str, ledger_option: str) -> str:
    """The text with the option (`` --ledger FILE``, or nothing) in each of its commands that names no ledger."""
    return _NAMED.sub(lambda found: f"`{found[1]}{'' if '--ledger' in found[1] else ledger_option}`", text)
