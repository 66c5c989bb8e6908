"""The run's own evaluation: rules and functions judge an observation once it is durable, the rest waits for the end.

Judges that call, and repeats, come when nothing else waits, so that no target and no device is held for a judge. What a
death left unjudged comes then, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..ledger.crashpoints import crashpoint
from ..ledger.evaluation_holds import SOLITARY_DEATHS_MAX, recover_judgments
from ..ledger.evaluations import INLINE, EvaluationRow, evaluations_of, write_rest
from ..ledger.judging_reads import first_unjudged, judge_rows
from ..ledger.judgments import add_judgments
from ..ledger.ledger import Ledger
from ..ledger.run_reads import budgets_of
from .holds import holds_of_judge
from .judge_protocols import is_calling
from .judge_session import JudgeSession, JudgeSide, Judging
from .judging import judge_all
from .protocols import Judge, Missing, Observed, Outcome, SlotView
from .qualification import note_qualifications
from .request_bounds import bounded_units_of, request_bounds
from .stopping import StopSwitch
from .stored_cases import case_of
from .tally import JudgingTally

if TYPE_CHECKING:
    from .executor import Execution, VariantSide

__all__ = ["InlineJudging", "case_of"]


class InlineJudging:
    """Judges what one run observes."""

    def __init__(self, ledger: Ledger, run_key: int, execution: Execution, *, tally: JudgingTally) -> None:
        self._ledger = ledger
        self._tally = tally
        self._run_key = run_key
        self._execution = execution
        self._judges: Sequence[Judge] = execution.judges
        self._at_once = self._judges_at_once()

    def _judges_at_once(self) -> list[tuple[int, Judge]]:
        """Those whose judgment is one, and no call, by their numbers."""
        if not self._judges:
            return []
        with self._ledger.reading() as reader:
            samples = {row.judge_no: row.samples for row in judge_rows(reader, self._run_key, INLINE)}
        numbered = enumerate(self._judges, start=1)
        return [(number, judge) for number, judge in numbered if samples[number] == 1 and not is_calling(judge)]

    async def judge(self, view: SlotView, slot_no: int, attempt_no: int, outcome: Outcome) -> None:
        """Judge an observation that has just been committed."""
        if not self._at_once or isinstance(outcome.answer, Missing):
            return
        crashpoint("judgment.before")
        observed = Observed(
            view.case,
            view.variant,
            view.repetition,
            outcome.answer,
            outcome.evidence,
            outcome.flags,
        )
        rows = await judge_all(
            self._at_once, observed, slot_no=slot_no, attempt_no=attempt_no,
            deadline_seconds=self._execution.deadline_seconds,
        )  # fmt: skip
        await self._ledger.write_async(lambda tx: add_judgments(tx, self._run_key, INLINE, rows))
        crashpoint("judgment.committed")

    async def judge_rest(self, stop: StopSwitch) -> bool:
        """Judge what was observed and not judged: by calls, and after a death or an operator's settlement.

        Says whether nothing is left to judge; when asked to stop it leaves the rest to the next session.
        """
        if not self._judges:
            return True
        with self._ledger.reading() as reader:
            first = first_unjudged(reader, self._run_key)
            (row,) = [one for one in evaluations_of(reader, self._run_key) if one.evaluation_no == INLINE]
        if first is not None and not stop.is_asked:
            await self._give_rest(first, row, stop)
        note_qualifications(self._ledger, row)
        with self._ledger.reading() as reader:
            return first_unjudged(reader, self._run_key) is None

    async def _give_rest(self, first: int, row: EvaluationRow, stop: StopSwitch) -> None:
        after: int | None = first - 1
        while after is not None:
            after = await self._written(after)
        # Nobody else is at this run, and this session is at nothing any more.
        await self._ledger.write_async(
            lambda tx: recover_judgments(
                tx, self._run_key, INLINE, dead_worker="", solitary_deaths_max=SOLITARY_DEATHS_MAX
            )
        )
        execution = self._execution
        judging = Judging(
            self._sides(), _names(execution.sides), execution.policy, execution.concurrency,
            execution.deadline_seconds, execution.grace_seconds, execution.rate_per_second,
        )  # fmt: skip
        await JudgeSession(self._ledger, row, judging, stop=stop, tally=self._tally).judge()

    async def _written(self, after: int) -> int | None:
        return await self._ledger.write_async(lambda tx: write_rest(tx, self._run_key, after_slot=after))

    def _sides(self) -> list[JudgeSide]:
        with self._ledger.reading() as reader:
            rows = judge_rows(reader, self._run_key, INLINE)
            plans = [state.plan for state in budgets_of(reader, self._run_key)]
        sides = []
        for row, judge in zip(rows, self._judges, strict=True):
            sends = int(getattr(judge, "wire_sends_max", 1))
            if not is_calling(judge):
                sides.append(JudgeSide(row.judge_no, judge, row.identity_digest))
                continue
            told = bounded_units_of(judge)
            holds = holds_of_judge(plans, None, wire_sends_max=sends, told=told)
            bounds = request_bounds(judge, plans)
            sides.append(JudgeSide(row.judge_no, judge, row.identity_digest, holds, bounds))
        return sides


def _names(sides: Mapping[int, VariantSide]) -> dict[int, str]:
    return {number: side.name for number, side in sides.items()}
