"""Whether every target could be dispatched to: its secrets are set, its program is there. Asks nobody."""

from __future__ import annotations

from collections.abc import Iterable

from .protocols import Target

__all__ = ["check_ready"]


async def check_ready(targets: Iterable[Target]) -> None:
    """Open and close each target, before a run of it is written down; raises SecretMissing and TargetNotFound."""
    for target in targets:
        try:
            await target.open()
        finally:
            await target.close()
