"""How a run stands after a session, and what helps next: the one place where exit statuses come from."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, StrEnum

import attrs

from ..ledger.coordinators import Recovered
from ..ledger.custody import as_found
from ..ledger.device_looks import quarantined_for
from ..ledger.judging_reads import is_out_of_budget
from ..ledger.ledger import Ledger, Reader
from ..ledger.run_reads import RunRow, find_run, is_part, slot_counts, slot_reasons
from ..ledger.slot_reads import goes_on_at_us, scores_of
from ..ledger.states import SlotState
from .tally import PassedOver

__all__ = ["ExitStatus", "NextMove", "RunOutcome", "exit_status_of", "next_move", "outcome_of"]


class ExitStatus(IntEnum):
    """What a command ends with."""

    DONE = 0  # done; for a gate also passed
    GATE_FAILED = 1  # a gate failed
    USAGE = 2  # what was asked cannot be done as written
    DECIDE = 3  # finished, but something needs a decision
    REFUSED = 4  # identity, custody, version or environment
    LEDGER = 5  # the ledger or the disk failed
    BUDGET = 6  # out of budget
    RESUME = 75  # not finished, resume helps
    INTERRUPTED = 130  # stopped by a signal or by cancel


class NextMove(StrEnum):
    """What helps next, as ``--json`` says it."""

    NOTHING = "nothing"  # the run is complete, or a part that came without its contents
    RESUME = "resume"  # slots wait; resume goes on
    DECIDE = "decide"  # unknown, failed, parked, unavailable, unjudged, or a device in quarantine: look, then settle it
    FUND = "fund"  # a budget has no room
    ADOPT = "adopt"  # another ledger has custody


@attrs.frozen
class RunOutcome:
    """A run after a session. ``counts`` covers the whole population, ``reused`` what was selected before.

    ``passed_over`` names devices that the session did without.
    """

    run_id: str
    name: str
    state: str
    counts: dict[SlotState, int]
    next: NextMove
    exit_status: ExitStatus
    reused: int = 0
    dispatches: int = 0
    not_before_us: int | None = None
    stopped: str | None = None
    recovered: Recovered | None = None
    passed_over: tuple[PassedOver, ...] = ()

    @property
    def planned(self) -> int:
        """The population."""
        return sum(self.counts.values())

    def __str__(self) -> str:
        selected = self.counts.get(SlotState.SELECTED, 0)
        stands = f"{self.state}, {selected} of {self.planned} selected, next: {self.next}"
        return f"run {self.run_id} ({self.name}): {stands}"


_EXIT = {
    NextMove.NOTHING: ExitStatus.DONE,
    NextMove.RESUME: ExitStatus.RESUME,
    NextMove.DECIDE: ExitStatus.DECIDE,
    NextMove.FUND: ExitStatus.BUDGET,
    NextMove.ADOPT: ExitStatus.REFUSED,
}
_NEEDS_DECISION = (SlotState.UNKNOWN, SlotState.FAILED, SlotState.PARKED, SlotState.UNAVAILABLE)


def exit_status_of(move: NextMove) -> ExitStatus:
    """What a command that executed a run ends with when this helps next."""
    return _EXIT[move]


def next_move(reader: Reader, run: RunRow, counts: dict[SlotState, int]) -> NextMove:
    """What helps next, told from the ledger alone."""
    if run.custody in ("moving", "moved"):
        return NextMove.ADOPT
    move = _next_where_held(reader, run, counts)
    if run.custody != "copy" or move is NextMove.NOTHING:
        return move
    return NextMove.NOTHING if is_part(reader, run.run_key) else NextMove.ADOPT


def _next_where_held(reader: Reader, run: RunRow, counts: dict[SlotState, int]) -> NextMove:
    if run.state == "cancelled":
        return NextMove.NOTHING
    if any(reason == "budget" for _, reason, _ in slot_reasons(reader, run.run_key)):
        return NextMove.FUND
    if run.state == "open" or counts[SlotState.PENDING] or counts[SlotState.IN_FLIGHT]:
        # Resuming would meet the same device again.
        is_kept_off = counts[SlotState.PENDING] and quarantined_for(reader, run.run_key)
        return NextMove.DECIDE if is_kept_off else NextMove.RESUME
    if is_out_of_budget(reader, run.run_key):
        return NextMove.FUND
    if any(counts[state] for state in _NEEDS_DECISION) or _has_no_verdict(reader, run):
        return NextMove.DECIDE
    return NextMove.NOTHING


def outcome_of(
    ledger: Ledger,
    run_id: str,
    *,
    reused: int = 0,
    dispatches: int = 0,
    stopped: str | None = None,
    recovered: Recovered | None = None,
    passed_over: Iterable[PassedOver] = (),
) -> RunOutcome:
    """The outcome as the ledger has it now; ``stopped`` is why the session ended early, if it did."""
    with ledger.reading() as reader:
        run = as_found(ledger, reader, find_run(reader, run_id))
        counts = slot_counts(reader, run.run_key)
        move = next_move(reader, run, counts)
        until = goes_on_at_us(reader, run.run_key, now_us=ledger.clock.now_us())
    kept_off = tuple(passed_over)
    if move is NextMove.RESUME and any(one.is_for_operator for one in kept_off):
        move = NextMove.DECIDE  # by another ledger of this host, which this one knows nothing of
    status = ExitStatus.INTERRUPTED if stopped else exit_status_of(move)
    return RunOutcome(
        run.run_id, run.name, run.state, counts, move, status, reused, dispatches, until or None, stopped, recovered,
        kept_off,
    )  # fmt: skip


def _has_no_verdict(reader: Reader, run: RunRow) -> bool:
    return any(score.no_verdict for score in scores_of(reader, run.run_key))
