"""Giving the judgments of an evaluation that still wait: rules in batches, all others side by side, suspects alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import attrs

from ..ledger.asked_waits import judges_asked_to_wait_until
from ..ledger.canonical import parse_json, unescaped_text
from ..ledger.crashpoints import crashpoint
from ..ledger.evaluations import EvaluationRow
from ..ledger.judging_reads import (
    KeptVerdict,
    OpenJudgment,
    kept_reply,
    open_judgments,
    suspect_judgments,
    waiting_count,
)
from ..ledger.judgments import add_judgments, let_wait, mark_judging
from ..ledger.ledger import Ledger
from ..ledger.records import Hold, JudgmentKey, JudgmentRow
from ..ledger.verdicts import NoVerdictReason
from .judge_cache import VerdictCache, cache_key
from .judge_calls import Asked, JudgeCalls, read_safely
from .judge_protocols import CallingJudge, is_calling, lacking, needs_of
from .judging import ask, ask_now, evidence_digest_of, is_instant
from .pacing import Pace
from .protocols import Judge, NoVerdict, Observed, Verdict
from .request_bounds import RequestBounds
from .retry_policy import RetryPolicy
from .stopping import StopSwitch
from .stored_cases import case_of
from .tally import JudgingTally
from .verdict_rows import judgment_row

__all__ = ["JudgeSession", "JudgeSide", "Judging"]

_CHUNK: Final = 256
_BATCH: Final = 1024
_SUSPECTS_MAX: Final = 100
_LOOK_SECONDS: Final = 0.5


@attrs.frozen
class JudgeSide:
    """A judge as it is asked: under its number, with the digest of its identity and what each of its calls holds.

    ``bounds`` is set where the judge tells for each request what it can use at most.
    """

    judge_no: int
    judge: Judge
    digest: str
    holds: tuple[Hold, ...] = ()
    bounds: RequestBounds | None = None


@attrs.frozen
class Judging:
    """How to judge: the judges, the names of the variants, limits and throughput.

    With ``reparse_of``, the number of another evaluation, replies that were kept there are read again, and no judge is
    asked.
    """

    sides: Sequence[JudgeSide]
    variants: Mapping[int, str]
    policy: RetryPolicy
    concurrency: int
    deadline_seconds: float
    grace_seconds: float
    rate_per_second: float | None = None
    uses_cache: bool = True
    reparse_of: int | None = None


class JudgeSession:
    """Gives what waits in one evaluation. Make one for each session, on the loop that judges."""

    def __init__(
        self,
        ledger: Ledger,
        evaluation: EvaluationRow,
        judging: Judging,
        *,
        stop: StopSwitch,
        tally: JudgingTally,
    ) -> None:
        self._ledger = ledger
        self._row = evaluation
        self._judging = judging
        self._sides = {side.judge_no: side for side in judging.sides}
        self._stop = stop
        self._tally = tally
        self._cache = VerdictCache(ledger, is_used=judging.uses_cache)
        pace = Pace(judging.rate_per_second, stop)
        self._go_on_waiting(pace)
        self._calls = JudgeCalls(
            ledger,
            holds={side.judge_no: side.holds for side in judging.sides},
            bounds={side.judge_no: side.bounds for side in judging.sides if side.bounds is not None},
            policy=judging.policy,
            deadline_seconds=judging.deadline_seconds,
            pace=pace,
            stop=stop,
            tally=tally,
        )
        self._waiting: list[OpenJudgment] = []
        self._feeds = [_Cursor(side.judge_no) for side in judging.sides if not is_instant(side.judge)]
        self._failure: BaseException | None = None

    def _go_on_waiting(self, pace: Pace) -> None:
        """A judge that asked an earlier session to wait is left alone until then by this one too."""
        run_key, number, now_us = self._row.run_key, self._row.evaluation_no, self._ledger.clock.now_us()
        with self._ledger.reading() as reader:
            found = judges_asked_to_wait_until(reader, run_key, number, now_us=now_us)
        for judge_no, until_us in found.items():
            pace.hold(judge_no, (until_us - now_us) / 1e6)

    @property
    def dispatches(self) -> int:
        """How many dispatches this session has made."""
        return self._calls.dispatches

    async def judge(self) -> None:
        """Go on until nothing waits or somebody asks to stop. Raises the LedgerError that ended it."""
        opened: list[CallingJudge] = []
        try:
            for side in self._judging.sides:
                if is_calling(side.judge) and self._judging.reparse_of is None:
                    judge = cast("CallingJudge", side.judge)
                    await judge.open()
                    opened.append(judge)
            await self._judge_all()
        finally:
            for judge in opened:
                await judge.close()
        if self._failure is not None:
            raise self._failure

    async def _judge_all(self) -> None:
        await self._judge_suspects()
        for side in self._judging.sides:
            if is_instant(side.judge):
                await self._judge_at_once(side)
        if any(not is_instant(side.judge) for side in self._judging.sides):
            await self._side_by_side()

    # Rules, in batches.

    async def _judge_at_once(self, side: JudgeSide) -> None:
        after = (0, 0)
        while not self._stop.is_asked:
            found = self._open(side.judge_no, after, _BATCH)
            if not found:
                return
            after = (found[-1].slot_no, found[-1].sample_no)
            rows = [self._at_once(side, one) for one in found]
            crashpoint("judgment.before")
            await self._commit(rows)

    def _at_once(self, side: JudgeSide, one: OpenJudgment) -> JudgmentRow:
        observed = self._observed(one)
        return judgment_row(
            one.judge_no, one.slot_no, one.attempt_no, ask_now(side.judge, observed), side.judge.scale,
            sample_no=one.sample_no, evidence_digest=evidence_digest_of(observed.evidence),
        )  # fmt: skip

    # Everything else, side by side.

    async def _judge_suspects(self) -> None:
        """What was under way at a death, one at a time, so that nothing is blamed for bad company."""
        while not self._stop.is_asked:
            with self._ledger.reading() as reader:
                found = suspect_judgments(reader, self._row.run_key, self._row.evaluation_no, limit=_SUSPECTS_MAX)
            if not found:
                return
            for one in found:
                if not await self._alone(one):
                    return

    async def _side_by_side(self) -> None:
        with self._ledger.reading() as reader:
            waiting = waiting_count(reader, self._row.run_key, self._row.evaluation_no)
        # More workers than judgments would only cost memory.
        count = min(self._judging.concurrency, waiting)
        workers: set[asyncio.Future[Any]] = {asyncio.ensure_future(self._work()) for _ in range(count)}
        await self._until_done(workers)

    async def _alone(self, one: OpenJudgment) -> bool:
        """In a task of its own, so that a stop can break it off as it does with a worker; says whether it is given."""
        if self._stop.is_asked:
            return False
        task = asyncio.ensure_future(self._one(one, solitary=True))
        await self._until_done({task})
        return self._failure is None and task.done() and not task.cancelled() and task.result()

    async def _until_done(self, tasks: set[asyncio.Future[Any]]) -> None:
        """Wait for all; once asked to stop, for the grace time, and then break them off."""
        grace_ends: float | None = None
        loop = asyncio.get_running_loop()
        try:
            while waiting := {task for task in tasks if not task.done()}:
                await asyncio.wait(waiting, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                self._note_failures(tasks)
                if not self._stop.is_asked:
                    continue
                grace_ends = grace_ends or loop.time() + self._judging.grace_seconds
                if loop.time() >= grace_ends:
                    break
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._note_failures(tasks)

    def _note_failures(self, tasks: set[asyncio.Future[Any]]) -> None:
        for task in tasks:
            if task.done() and not task.cancelled() and (problem := task.exception()) is not None:
                self._fail(problem)

    def _fail(self, problem: BaseException) -> None:
        self._failure = self._failure or problem
        self._stop.ask("failure")

    async def _work(self) -> None:
        while not self._stop.is_asked and (one := self._next()) is not None:
            await self._one(one, solitary=False)

    def _next(self) -> OpenJudgment | None:
        while not self._waiting and self._feeds:
            feed = self._feeds[0]
            self._waiting = self._open(feed.judge_no, feed.after, _CHUNK)
            if not self._waiting:
                self._feeds.pop(0)
                continue
            feed.after = (self._waiting[-1].slot_no, self._waiting[-1].sample_no)
            self._waiting.reverse()
        return self._waiting.pop() if self._waiting else None

    async def _one(self, one: OpenJudgment, *, solitary: bool) -> bool:
        """Give one judgment; says whether it is given."""
        side, observed = self._sides[one.judge_no], self._observed(one)
        key = JudgmentKey(
            self._row.run_key, self._row.evaluation_no, one.judge_no, one.slot_no, one.attempt_no, one.sample_no
        )
        if is_calling(side.judge) and self._judging.reparse_of is not None:
            given = await self._read_again(key, cast("CallingJudge", side.judge), observed, self._judging.reparse_of)
        elif is_calling(side.judge):
            given = await self._call(key, side, one, observed, solitary=solitary)
        else:
            given = await self._ask(key, side, observed, solitary=solitary)
        if given:
            self._tally.given += 1
        return given

    async def _ask(self, key: JudgmentKey, side: JudgeSide, observed: Observed, *, solitary: bool) -> bool:
        """Code of a user on this machine: said to be under way before it is, because it may take the process down."""
        await self._ledger.write_async(
            lambda tx: mark_judging(tx, [key], solitary=solitary), undo=lambda tx, _: let_wait(tx, key)
        )
        crashpoint("judgment.before")
        try:
            said = await ask(side.judge, observed, self._judging.deadline_seconds)
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.ensure_future(self._ledger.write_async(lambda tx: let_wait(tx, key))))
            raise
        row = judgment_row(
            key.judge_no, key.slot_no, key.attempt_no, said, side.judge.scale, sample_no=key.sample_no,
            evidence_digest=evidence_digest_of(observed.evidence),
        )  # fmt: skip
        await self._ledger.write_async(lambda tx: add_judgments(tx, key.run_key, key.evaluation_no, [row]))
        crashpoint("judgment.committed")
        self._tally.judged(row.reason, row.explanation, self._ledger.clock.now_us())
        return True

    async def _call(
        self, key: JudgmentKey, side: JudgeSide, one: OpenJudgment, observed: Observed, *, solitary: bool
    ) -> bool:
        judge = cast("CallingJudge", side.judge)
        lack = lacking(needs_of(judge), observed)
        if lack is not None:
            return await self._given(key, judge, observed, lack)
        wanted = cache_key(
            side.digest, observed, answer_digest=one.answer_digest, sample_no=key.sample_no,
            is_blind=bool(getattr(judge, "is_blind", False)),
        )  # fmt: skip
        async with self._cache.one_asks(wanted) as kept:
            if kept is not None:
                return await self._given(key, judge, observed, kept)
            asked = Asked(
                key, judge, observed, self._row.run_id, evidence_digest_of(observed.evidence), wanted, solitary
            )
            return await self._calls.judge(asked)

    async def _read_again(self, key: JudgmentKey, judge: CallingJudge, observed: Observed, evaluation_no: int) -> bool:
        """The verdict in the reply that another evaluation has kept of the same judge on the same observation."""
        with self._ledger.reading() as reader:
            kept = kept_reply(
                reader, key.run_key, evaluation_no, judge.name, key.slot_no, key.attempt_no, key.sample_no
            )
        said: object
        if kept is None:
            told = f"evaluation {evaluation_no} has no judgment of it"
            said = NoVerdict(NoVerdictReason.JUDGE_UNAVAILABLE, told)
        elif kept.raw is None:
            said = NoVerdict(kept.reason or NoVerdictReason.JUDGE_UNAVAILABLE, kept.explanation)
        else:
            said = read_safely(judge, unescaped_text(kept.raw))
        row = judgment_row(
            key.judge_no, key.slot_no, key.attempt_no, said, judge.scale, sample_no=key.sample_no,
            parser=judge.parser, evidence_digest=evidence_digest_of(observed.evidence),
        )  # fmt: skip
        if kept is not None:
            row = attrs.evolve(row, raw=kept.raw, reused_from=kept.name)
        await self._ledger.write_async(lambda tx: add_judgments(tx, key.run_key, key.evaluation_no, [row]))
        crashpoint("judgment.committed")
        return True

    async def _given(
        self, key: JudgmentKey, judge: CallingJudge, observed: Observed, said: NoVerdict | KeptVerdict
    ) -> bool:
        """Commit what costs no call."""
        row = judgment_row(
            key.judge_no, key.slot_no, key.attempt_no,
            said if isinstance(said, NoVerdict) else Verdict(said.passed, _number(said.score), said.explanation),
            judge.scale, sample_no=key.sample_no, evidence_digest=evidence_digest_of(observed.evidence),
        )  # fmt: skip
        if isinstance(said, KeptVerdict):
            row = attrs.evolve(row, raw=said.raw, parser=said.parser, reused_from=said.name)
        await self._ledger.write_async(lambda tx: add_judgments(tx, key.run_key, key.evaluation_no, [row]))
        crashpoint("judgment.committed")
        return True

    # Reading and writing.

    def _open(self, judge_no: int, after: tuple[int, int], limit: int) -> list[OpenJudgment]:
        with self._ledger.reading() as reader:
            return open_judgments(
                reader, self._row.run_key, self._row.evaluation_no, judge_no, after=after, limit=limit
            )

    async def _commit(self, rows: Sequence[JudgmentRow]) -> None:
        run_key, number = self._row.run_key, self._row.evaluation_no
        await self._ledger.write_async(lambda tx: add_judgments(tx, run_key, number, rows))
        crashpoint("judgment.committed")
        self._tally.given += len(rows)

    def _observed(self, one: OpenJudgment) -> Observed:
        case = case_of(one.case_id, one.input, one.expected, one.metadata)
        evidence = {} if one.evidence == "{}" else parse_json(one.evidence)
        flags = [] if one.flags == "[]" else parse_json(one.flags)
        assert isinstance(evidence, dict)
        assert isinstance(flags, list)
        return Observed(
            case, self._judging.variants[one.variant_no], one.repetition, parse_json(one.answer), evidence, tuple(flags)
        )


@attrs.define
class _Cursor:
    """How far the waiting judgments of a judge have been read."""

    judge_no: int
    after: tuple[int, int] = (0, 0)


def _number(score: str | None) -> float | None:
    return None if score is None else float(score)
