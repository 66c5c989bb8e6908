"""What of a run is not as it should be: each kind once, with what it means and the command that helps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from ..ledger.states import SlotState
from ..ledger.verdicts import MEANINGS, NoVerdictReason
from .report_document import OpenPoint, ScoreInterval

__all__ = ["STATE_MEANINGS", "open_points"]

STATE_MEANINGS: Final[dict[SlotState, str]] = {
    SlotState.FAILED: "every allowed attempt ended in an error: it is no score of 0, it was not measured",
    SlotState.UNKNOWN: "the call may have been done, and no answer came: it is neither failed nor passed until somebody"
    " settles it",
    SlotState.UNAVAILABLE: "it could not be attempted: it counts neither as passed nor as failed",
    SlotState.PARKED: "it killed its process whenever it was alone, and is left out so that the others go on",
    SlotState.CANCELLED: "it was given up before it was attempted",
    SlotState.IN_FLIGHT: "it was being asked at this moment",
    SlotState.PENDING: "it has not been asked yet",
    SlotState.SELECTED: "it has its observation",
}
_CONTAMINATED: Final = "an earlier holder of its device touched it meanwhile, or may have: it counts, and may be wrong"
_WAITING: Final = "it was observed, and its judge has not been asked yet"
_UNQUALIFIED: Final = "the judge is not qualified as it must be: its verdicts are shown, and nothing is decided by them"
_BROUGHT: Final = (
    "its judge is qualified by figures that a snapshot brought, none were measured here: its verdicts count"
)
_ORDER: Final = (
    SlotState.UNKNOWN,
    SlotState.FAILED,
    SlotState.PARKED,
    SlotState.UNAVAILABLE,
    SlotState.CANCELLED,
    SlotState.IN_FLIGHT,
    SlotState.PENDING,
)


def open_points(
    run_id: str,
    counts: Counter[str],
    reasons: Counter[tuple[str, str]],
    scores: Sequence[ScoreInterval],
    *,
    contaminated: int,
    ledger_option: str,
    is_from_python: bool,
) -> list[OpenPoint]:
    """The points in the order in which they need somebody."""
    points = []
    for state in _ORDER:
        if counts[state.value]:
            why = {reason: count for (of, reason), count in sorted(reasons.items()) if of == state.value}
            command = _command(state, run_id, why, is_from_python=is_from_python)
            points.append(
                OpenPoint(
                    what=state.value, count=counts[state.value], reasons=why, meaning=STATE_MEANINGS[state],
                    command=f"tallystick {command}{ledger_option}" if command else "",
                )
            )  # fmt: skip
    if contaminated:
        points.append(
            OpenPoint(
                what="contaminated", count=contaminated, reasons={}, meaning=_CONTAMINATED,
                command=f"tallystick show {run_id} CASE{ledger_option}",
            )
        )  # fmt: skip
    return [*points, *_of_judges(run_id, scores, ledger_option)]


def _command(state: SlotState, run_id: str, reasons: dict[str, int], *, is_from_python: bool) -> str:
    if state is SlotState.UNKNOWN:
        return f"reconcile {run_id}"
    if is_from_python:
        return ""  # only its own program can go on with it
    if state is SlotState.UNAVAILABLE and "budget" in reasons:
        return f"resume {run_id} --amend UNIT=LIMIT --reason TEXT"
    if state in (SlotState.FAILED, SlotState.PARKED, SlotState.UNAVAILABLE, SlotState.CANCELLED):
        return f"resume {run_id} --retry {state.value}"
    return f"resume {run_id}"


def _of_judges(run_id: str, scores: Sequence[ScoreInterval], ledger_option: str) -> list[OpenPoint]:
    missing: Counter[str] = Counter()
    for score in scores:
        missing.update(score.no_verdict)
    points = [
        OpenPoint(
            what="no_verdict", count=count, reasons={reason: count}, meaning=_meaning(reason),
            command=f"tallystick show {run_id} CASE{ledger_option}",
        )
        for reason, count in sorted(missing.items())
    ]  # fmt: skip
    if waiting := sum(score.waiting for score in scores):
        points.append(
            OpenPoint(
                what="waiting", count=waiting, reasons={}, meaning=_WAITING,
                command=f"tallystick resume {run_id}{ledger_option}",
            )
        )  # fmt: skip
    for name in sorted({score.judge for score in scores if not score.counts}):
        judged = sum(score.judged for score in scores if score.judge == name)
        points.append(
            OpenPoint(
                what="unqualified", count=judged, reasons={name: judged},
                meaning=_UNQUALIFIED,
                command=f"tallystick qualify ORDER LABELLED{ledger_option}",
            )
        )  # fmt: skip
    for name in sorted({score.judge for score in scores if score.qualified_elsewhere}):
        judged = sum(score.judged for score in scores if score.judge == name)
        points.append(
            OpenPoint(
                what="qualified_elsewhere", count=judged, reasons={name: judged}, meaning=_BROUGHT,
                command=f"tallystick qualify ORDER LABELLED{ledger_option}",
            )
        )  # fmt: skip
    return points


def _meaning(reason: str) -> str:
    try:
        return MEANINGS[NoVerdictReason(reason)]
    except ValueError:
        return "the judge gave no verdict, for a reason of its own"
