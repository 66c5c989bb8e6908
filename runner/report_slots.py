"""A planned observation as a line of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ..ledger.canonical import printable, stored_json
from ..ledger.report_rows import DispatchRow, SlotRow
from ..ledger.states import DispatchState
from .amounts import usd_text
from .instants import instant

__all__ = [
    "ANSWER_CHARACTERS_MAX",
    "ListedSlot",
    "ListedVerdict",
    "flags_of",
    "metadata_of",
    "seconds_in",
    "seconds_of",
    "useful_dispatches",
]

ANSWER_CHARACTERS_MAX: Final = 2_000
_ANSWERED: Final = DispatchState.ANSWERED.value


class ListedVerdict(NamedTuple):
    """What a judge said, with the keys of `VerdictLine`."""

    judge: str
    sample: int
    passed: bool | None
    score: float | None
    reason: str | None
    explanation: str | None
    reused: bool


class ListedSlot:
    """One planned observation as the formats read it: what `SlotLine` says of each key, made when it is asked for.

    A large report lists a hundred thousand, and each form needs only some of the keys. ``metadata`` is that of its
    case, ``judges`` are names by number.
    """

    __slots__ = ("judges", "metadata", "newest", "observed", "row", "variant")

    def __init__(self, row: SlotRow, variant: str, judges: Mapping[int, str], metadata: dict[str, Any]) -> None:
        self.row = row
        self.variant = variant
        self.judges = judges
        self.metadata = metadata
        self.newest = row.attempts[-1] if row.attempts else None
        self.observed = self.newest.observation if self.newest is not None and row.selected_at else None

    @property
    def slot(self) -> int:
        return self.row.slot_no

    @property
    def case(self) -> str:
        return self.row.case_id

    @property
    def repetition(self) -> int:
        return self.row.repetition

    @property
    def state(self) -> str:
        return self.row.state

    @property
    def reason(self) -> str | None:
        return self.row.reason

    @property
    def message(self) -> str | None:
        return None if self.newest is None else self.newest.message

    @property
    def attempts(self) -> int:
        return len(self.row.attempts)

    @property
    def dispatches(self) -> int:
        return len(self.row.dispatches)

    @property
    def replays(self) -> int:
        return sum([one.replay for one in self.row.dispatches])

    @property
    def contaminated(self) -> bool:
        return self.newest is not None and self.newest.contaminated

    @property
    def source(self) -> str | None:
        return None if self.observed is None else self.observed.source

    @property
    def reused_from(self) -> str | None:
        return None if self.newest is None else self.newest.reused_from

    @property
    def has_answer(self) -> bool:
        return self.observed is not None

    @property
    def answer(self) -> Any:
        if self.observed is None:
            return None
        text = self.observed.answer
        return printable(text[:ANSWER_CHARACTERS_MAX]) if self.answer_cut else stored_json(text)

    @property
    def answer_cut(self) -> bool:
        return self.observed is not None and len(self.observed.answer) > ANSWER_CHARACTERS_MAX

    @property
    def flags(self) -> list[str]:
        return [] if self.observed is None else flags_of(self.observed.flags)

    @property
    def seconds(self) -> float | None:
        return seconds_of(self.row)

    @property
    def began_at(self) -> str | None:
        return instant(self.row.attempts[0].began_us) if self.row.attempts else None

    @property
    def ended_at(self) -> str | None:
        return None if self.newest is None or self.newest.ended_us is None else instant(self.newest.ended_us)

    @property
    def tokens_in(self) -> int | None:
        return _sum_of_known([one.tokens_in for one in self.row.dispatches])

    @property
    def tokens_out(self) -> int | None:
        return _sum_of_known([one.tokens_out for one in self.row.dispatches])

    @property
    def cost_usd(self) -> str | None:
        cost = _sum_of_known([one.cost_nanousd for one in self.row.dispatches])
        return None if cost is None else usd_text(cost)

    @property
    def verdicts(self) -> list[ListedVerdict]:
        return [
            ListedVerdict(
                self.judges[judge_no], sample_no, passed, None if score is None else float(score), reason,
                explanation or None, reused,
            )
            for judge_no, sample_no, passed, score, reason, explanation, reused in self.row.judgments
        ]  # fmt: skip


@lru_cache(maxsize=512)
def metadata_of(text: str) -> dict[str, Any]:
    """A case's metadata, to be read only: cases with the same share one."""
    found = stored_json(text)
    return found if isinstance(found, dict) else {}


def useful_dispatches(row: SlotRow) -> list[DispatchRow]:
    """The sends that the selected observation came of; in a conversation also those of turns that it carried over."""
    if not row.selected_at:
        return []
    newest, carried = len(row.attempts), row.carried
    return [
        one
        for one in row.dispatches
        if one.state == _ANSWERED
        and (one.attempt_no == newest or (carried and (one.call_id, one.dispatch_no) in carried))
    ]


def seconds_of(row: SlotRow) -> float | None:
    """How long the selected observation took on the wire, all its calls together; None where that is not known."""
    return seconds_in(useful_dispatches(row))


def seconds_in(useful: Sequence[DispatchRow]) -> float | None:
    """The same of its useful sends."""
    took = 0
    for one in useful:
        # What was settled later has the time of the send that was lost, which is not that of its answer.
        if one.duration_us is None or one.settled_by != "wire":
            return None
        took += one.duration_us
    return took / 1e6 if useful else None


def flags_of(text: str) -> list[str]:
    """The flags in a stored list of them."""
    if text == "[]":
        return []
    found = stored_json(text)
    assert isinstance(found, list)
    return [str(flag) for flag in found]


def _sum_of_known(amounts: list[int | None]) -> int | None:
    if len(amounts) == 1:
        return amounts[0]
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None
