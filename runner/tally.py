"""How a session of a run stands, kept in memory for displays; the ledger stays the authority."""

from __future__ import annotations

import attrs

from ..ledger.states import SlotState

__all__ = ["PassedOver", "Tally"]


@attrs.frozen
class PassedOver:
    """A device that this session did without, and why; ``is_for_operator``: nobody gets it before somebody looks."""

    resource: str
    why: str
    is_for_operator: bool = False


@attrs.define
class Tally:
    """Slots by state, and what this session did. ``waits_for`` says of which devices it waits, and who has them."""

    by_state: dict[SlotState, int]
    reused: int = 0
    dispatches: int = 0
    refused: int = 0
    late: int = 0
    waits_until_us: int | None = None
    waits_for: dict[str, str] = attrs.field(factory=dict)
    passed_over: list[PassedOver] = attrs.field(factory=list)

    @property
    def planned(self) -> int:
        """The whole population."""
        return sum(self.by_state.values())

    def move(self, old: SlotState, new: SlotState, count: int = 1) -> None:
        """Count slots that changed their state."""
        self.by_state[old] -= count
        self.by_state[new] += count
