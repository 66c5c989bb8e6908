"""The run's own evaluation: each observation is judged once it is durable, and after a death the rest is caught up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..ledger.canonical import parse_json, unescaped_text
from ..ledger.crashpoints import crashpoint
from ..ledger.judgments import add_judgments
from ..ledger.ledger import Ledger
from ..ledger.slot_reads import unjudged
from .judging import judge_all
from .protocols import MISSING, Case, Judge, Missing, Observed, Outcome, SlotView
from .stopping import StopSwitch

if TYPE_CHECKING:
    from .executor import VariantSide

__all__ = ["InlineJudging", "case_of"]

_EVALUATION: Final = 1
_CHUNK: Final = 256
_EVER_SECONDS: Final = 1e6


class InlineJudging:
    """Judges what one run observes."""

    def __init__(
        self,
        ledger: Ledger,
        run_key: int,
        judges: Sequence[Judge],
        sides: Mapping[int, VariantSide],
        *,
        deadline_seconds: float,
    ) -> None:
        self._ledger = ledger
        self._run_key = run_key
        self._judges = judges
        self._numbered = list(enumerate(judges, start=1))
        self._deadline_seconds = deadline_seconds
        self._names = {number: side.name for number, side in sides.items()}

    async def judge(self, view: SlotView, slot_no: int, attempt_no: int, outcome: Outcome) -> None:
        """Judge an observation that has just been committed."""
        if not self._judges or isinstance(outcome.answer, Missing):
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
        await self._commit(observed, slot_no, attempt_no)

    async def judge_rest(self, stop: StopSwitch) -> bool:
        """Judge what was observed and not judged: by a process that died in between, or by an operator's settlement.

        Says whether nothing is left to judge; when asked to stop it leaves the rest to the next session.
        """
        after = 0
        while self._judges:
            with self._ledger.reading() as reader:
                rows = unjudged(
                    reader, self._run_key, evaluation_no=_EVALUATION, judges=len(self._judges), after_slot=after,
                    limit=_CHUNK,
                )  # fmt: skip
            if not rows:
                break
            for row in rows:
                if stop.is_asked:
                    return False
                case = case_of(row.case_id, row.input, row.expected, row.metadata)
                evidence, flags = parse_json(row.evidence), parse_json(row.flags)
                assert isinstance(evidence, dict)
                assert isinstance(flags, list)
                observed = Observed(
                    case, self._names[row.variant_no], row.repetition, parse_json(row.answer), evidence, tuple(flags)
                )
                if not await _unless_stopped(self._commit(observed, row.slot_no, row.attempt_no), stop):
                    return False
            after = rows[-1].slot_no
        return True

    async def _commit(self, observed: Observed, slot_no: int, attempt_no: int) -> None:
        rows = await judge_all(
            self._numbered, observed, slot_no=slot_no, attempt_no=attempt_no, deadline_seconds=self._deadline_seconds
        )
        await self._ledger.write_async(lambda tx: add_judgments(tx, self._run_key, _EVALUATION, rows))
        crashpoint("judgment.committed")


async def _unless_stopped(work: Coroutine[Any, Any, None], stop: StopSwitch) -> bool:
    """Do it, or leave it when asked to stop: a judge may be at it for long. Says whether it was done."""
    loop = asyncio.get_running_loop()
    done, watch = loop.create_task(work), loop.create_task(stop.sleep(_EVER_SECONDS))
    try:
        await asyncio.wait({done, watch}, return_when=asyncio.FIRST_COMPLETED)
        if done.done():
            done.result()
        return done.done()
    finally:
        for task in (done, watch):
            task.cancel()
        await asyncio.gather(done, watch, return_exceptions=True)


def case_of(case_id: str, case_input: str, expected: str | None, metadata: str) -> Case:
    """A case from its stored texts."""
    found = {} if metadata == "{}" else parse_json(metadata)
    assert isinstance(found, dict)
    wanted = MISSING if expected is None else parse_json(expected)
    return Case(unescaped_text(case_id), parse_json(case_input), wanted, found)
