"""How a run is named to the library: by its id, the beginning of one, its name, or whatever carries its id."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from .ledger.errors import UsageError

__all__ = ["NamedRun", "RunName", "run_text"]


class NamedRun(Protocol):
    """What the library gives out for a run: `EmbeddedRun`, `RunOutcome`, a row of `OpenLedger.runs`."""

    @property
    def run_id(self) -> str:
        """The whole id."""


RunName: TypeAlias = str | NamedRun


def run_text(run: RunName) -> str:
    """The text that finds the run; raises UsageError for what names none."""
    text = run if isinstance(run, str) else getattr(run, "run_id", None)
    if isinstance(text, str) and text:
        return text
    what = "an empty text" if text == "" else f"an object of type {type(run).__name__}"
    raise UsageError(
        f"{what} names no run", "give its id, the beginning of one, its name, or the run that you were given"
    )
