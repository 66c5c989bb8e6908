"""Beginning and leaving a session on a target that keeps something of a conversation between two turns."""

from __future__ import annotations

import asyncio
import logging

from ..ledger import artifacts
from ..ledger.canonical import JsonValue
from ..ledger.crashpoints import crashpoint
from ..ledger.errors import LedgerError
from ..ledger.ledger import Ledger
from ..ledger.states import DispatchState
from .device_protocols import CHECKPOINT_REFUSED, ConversationTarget
from .ended import Ended
from .protocols import Outcome
from .talks import Talk
from .thrown import go_if_closed
from .turn_ends import TurnEnds
from .work_order_conversation import ResumeAt

__all__ = ["SessionSteps"]

logger = logging.getLogger(__name__)


class SessionSteps:
    """Sessions of one session of a run, on its loop."""

    def __init__(
        self, ledger: Ledger, ends: TurnEnds, resume: ResumeAt, *, deadline_seconds: float, grace_seconds: float
    ) -> None:
        self._ledger = ledger
        self._ends = ends
        self._resume = resume
        self._deadline_seconds = deadline_seconds
        self._grace_seconds = grace_seconds

    async def begin(self, talk: Talk, message: JsonValue) -> Ended | None:
        """Have the target ready for the attempt's first turn; or how the attempt ended.

        Raises LeaseLost, and the LedgerError that ended the session; then the attempt runs, and is between two turns.
        """
        outcome = await self._asked(talk, message)
        if talk.asking.side.tenure is not None:
            talk.asking.side.tenure.saw(outcome)
        match outcome.state:
            case DispatchState.ANSWERED:
                talk.is_live = True
                if talk.start.checkpoint is not None:
                    crashpoint("session.restored")
                return None
            case DispatchState.FAILED if outcome.reason == CHECKPOINT_REFUSED:
                if self._resume is ResumeAt.CHECKPOINT:
                    return await self._ends.fail(talk, outcome.reason, outcome.message)
                return await self._ends.break_off(talk, outcome.reason, outcome.message)
            case DispatchState.FAILED:
                return await self._ends.fail(talk, outcome.reason or "session.failed", outcome.message)
            case _:
                # Whatever became of it belongs to a session that no turn will ever be asked in.
                return await self._ends.give_back(talk, outcome)

    async def _asked(self, talk: Talk, message: JsonValue) -> Outcome:
        target = talk.asking.side.target
        assert isinstance(target, ConversationTarget)
        turn = talk.asking_now(message).view.turn
        assert turn is not None
        checkpoint = None
        if talk.start.checkpoint is not None:
            with self._ledger.reading() as reader:
                checkpoint = artifacts.get(reader, talk.start.checkpoint)
        task = asyncio.current_task()
        try:
            async with asyncio.timeout(self._deadline_seconds):
                return await target.begin_session(turn, checkpoint)
        except TimeoutError:
            told = f"the session was not ready within {self._deadline_seconds:g} s"
            return Outcome(DispatchState.UNKNOWN, "session.deadline", told)
        except LedgerError:
            raise
        except (Exception, GeneratorExit) as problem:  # noqa: BLE001 - an adapter's own fault is an outcome too
            go_if_closed(problem, task)
            return Outcome(DispatchState.FAILED, "target.raised", f"{type(problem).__name__}: {problem}")

    async def leave(self, talk: Talk) -> None:
        """The session is over, in whatever way; what the target makes of that changes nothing."""
        target, tenure = talk.asking.side.target, talk.asking.side.tenure
        if not talk.is_live or (tenure is not None and tenure.is_lost):
            return
        talk.is_live = False
        assert isinstance(target, ConversationTarget)
        try:
            async with asyncio.timeout(self._grace_seconds):
                await target.end_session(talk.session)
        except Exception:
            logger.exception("a session could not be ended", extra={"event": "session.end_failed"})
