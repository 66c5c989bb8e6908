"""How a session of a run stands, kept in memory for displays; the ledger stays the authority."""

from __future__ import annotations

import attrs

from ..ledger.states import SlotState

__all__ = ["JudgingTally", "PassedOver", "Tally"]


@attrs.frozen
class PassedOver:
    """A device that this session did without, and why; ``is_for_operator``: nobody gets it before somebody looks."""

    resource: str
    why: str
    is_for_operator: bool = False


@attrs.define
class JudgingTally:
    """The judgments that waited when judging began, how many were given since, and why the newest has no verdict.

    ``trouble`` is ``reason: message`` (no secret), ``trouble_since_us`` the instant of the first one since the last
    verdict, None where there was none.
    """

    waiting: int = 0
    given: int = 0
    trouble: str = ""
    trouble_since_us: int | None = None

    def judged(self, reason: str | None, explanation: str, at_us: int) -> None:
        """A judge was asked, and gave a verdict or the reason why there is none."""
        if reason is None:
            self.trouble_since_us = None
        else:
            self.fail(f"{reason}: {explanation}" if explanation else reason, at_us)

    def fail(self, said: str, at_us: int) -> None:
        """Remember why there is no verdict."""
        self.trouble = said
        self.trouble_since_us = at_us if self.trouble_since_us is None else self.trouble_since_us


@attrs.define
class Tally:
    """Slots by state, and what this session did. ``waits_for`` says of which devices it waits, and who has them.

    ``trouble`` is what the newest send without an answer said (``reason: message``; no secret), ``trouble_since_us``
    the instant of the first one since the last answer, None where there was none.
    """

    by_state: dict[SlotState, int]
    reused: int = 0
    dispatches: int = 0
    refused: int = 0
    trouble: str = ""
    trouble_since_us: int | None = None
    late: int = 0
    waits_until_us: int | None = None
    waits_for: dict[str, str] = attrs.field(factory=dict)
    passed_over: list[PassedOver] = attrs.field(factory=list)
    judging: JudgingTally = attrs.field(factory=JudgingTally)

    @property
    def planned(self) -> int:
        """The whole population."""
        return sum(self.by_state.values())

    def move(self, old: SlotState, new: SlotState, count: int = 1) -> None:
        """Count slots that changed their state."""
        self.by_state[old] -= count
        self.by_state[new] += count
        if new is SlotState.SELECTED:
            self.trouble_since_us = None

    def refuse(self, said: str, at_us: int) -> None:
        """Count a send that was refused, and remember why."""
        self.refused += 1
        self.fail(said, at_us)

    def fail(self, said: str, at_us: int) -> None:
        """Remember why a send has no answer."""
        self.trouble = said
        self.trouble_since_us = at_us if self.trouble_since_us is None else self.trouble_since_us
