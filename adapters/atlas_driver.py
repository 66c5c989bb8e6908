"""What is done to an Atlas device for its own sake: looking, fencing, draining, cancelling, resetting, restoring.

What changes the device is a call of the lease, and so in the ledger before it is sent.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import attrs

from ..ledger.canonical import JsonValue
from ..ledger.states import DispatchState
from ..runner.device_protocols import CHECKPOINT_REFUSED, LEASE_LOST, REBOOTED, OpenRequest
from ..runner.protocols import Outcome, Prepared, QueryAnswer, QueryState, WireProgress
from .atlas_link import Asked, AtlasLink, BadReply
from .atlas_messages import (
    CancelReply,
    Envelope,
    ErrorReply,
    FencedReply,
    QueryReply,
    ResetReply,
    RestoreReply,
    State,
)
from .atlas_outcomes import answer_of_query, outcome_of_bad_reply, outcome_of_error
from .lab import NotInStep, broken_off
from .paths import Path
from .wire import WireCut
from .wire_stream import NotConnected

__all__ = ["AtlasDriver", "LeaseCaller"]

E = TypeVar("E", bound=Envelope)
_LOOK_FIRST_SECONDS: Final = 0.01
_LOOK_MAX_SECONDS: Final = 0.5
_ASKED_MAX: Final = 256
"""How many open requests one taking over asks for; the rest stays unknown until the next."""


class LeaseCaller(Protocol):
    """`LabTarget.lease_call`."""

    def __call__(
        self, role: str, prepared: Prepared, send: Callable[[str, int], Awaitable[Outcome]]
    ) -> Awaitable[Outcome]: ...


@attrs.define
class AtlasDriver:
    """One device behind its link. Whatever it cannot do raises NotInStep; nothing here is a request of an attempt.

    ``boot_count`` is the boot that the requests are for, None for any. ``sessions`` are those that are known to be on
    the device, with the last turn of each; ``checkpoints`` what they can be restored from, with the turn.
    """

    link: AtlasLink
    serial: str
    lease_call: LeaseCaller
    answer: Path
    call_seconds: float
    boot_count: int | None = None
    sessions: dict[str, int] = attrs.field(factory=dict)
    checkpoints: dict[str, tuple[int, bytes]] = attrs.field(factory=dict)

    async def look(self, name: str, model: type[E]) -> E:
        """A question that changes nothing."""
        try:
            async with asyncio.timeout(self.call_seconds):
                return await self.link.look(name, model)
        except (WireCut, BadReply) as fault:
            raise NotInStep("device.silent", f"it gave no sound reply to {name}: {fault}") from None
        except TimeoutError:
            raise NotInStep("device.silent", f"no reply to {name} within {self.call_seconds:g} s") from None

    async def state(self) -> State:
        """What the device is doing, if it is the one that was taken over."""
        state = await self.look("state", State)
        if state.serial != self.serial:
            told = f"another device answers: {state.serial} in place of {self.serial}"
            raise NotInStep("device.other", told, quarantine=True)
        if self.boot_count not in (None, state.boot_count):
            raise NotInStep(REBOOTED, f"it has rebooted: boot {state.boot_count}, and it was {self.boot_count}")
        return state

    async def settle(self, wait_seconds: float, *, is_reset: bool) -> None:
        """Bring it to where nothing of an earlier request goes on: wait, cancel, reset, in this order and in bounds."""
        state = await self.state()
        if state.request is not None:
            await self.end(state.request.request_id, wait_seconds)
        if is_reset or state.state == "faulted":
            await self.reset()

    async def end(self, request_id: str, wait_seconds: float) -> None:
        """Have the device be idle that is busy with this request."""
        if await self._is_idle_within(wait_seconds):
            return
        await self.call("cancel", "cancel", CancelReply, about=request_id)
        if await self._is_idle_within(self.call_seconds):
            return
        self.sessions.clear()
        await self.call("reset", "reset", ResetReply, force=True)
        if not await self._is_idle_within(self.call_seconds):
            told = f"it is busy with {request_id}, which neither ends nor can be stopped"
            raise NotInStep("device.busy", told, quarantine=True)

    async def _is_idle_within(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        end, wait = loop.time() + seconds, _LOOK_FIRST_SECONDS
        while (await self.state()).state == "busy":
            left = end - loop.time()
            if left <= 0:
                return False
            await asyncio.sleep(min(wait, left))
            wait = min(2 * wait, _LOOK_MAX_SECONDS)
        return True

    async def fence(self) -> None:
        """Have the device know the fence: from then on it refuses what an earlier holder still sends."""
        await self._done(await self.call("reconcile", "fence", FencedReply))

    async def reset(self) -> None:
        """Forget every session and clear a fault."""
        self.sessions.clear()
        await self._done(await self.call("reset", "reset", ResetReply))
        state = await self.state()
        if state.state == "faulted":
            told = f"it is faulted, also after a reset: {state.fault or 'it does not say why'}"
            raise NotInStep("device.faulted", told, quarantine=True)

    async def forget(self, session: str) -> None:
        """One session is over."""
        self.sessions.pop(session, None)
        self.checkpoints.pop(session, None)
        await self._done(await self.call("reset", "reset", ResetReply, session=session))

    async def restore(self, session: str, turn: int, checkpoint: bytes) -> Outcome:
        """Begin a session as it stood after ``turn``; FAILED with ``checkpoint.refused`` where that cannot be done."""
        text = base64.b64encode(checkpoint).decode("ascii")
        outcome, reply = await self._called(
            "restore", "restore", RestoreReply, {"session": session, "checkpoint": text}
        )
        if reply is None:
            return outcome
        if reply.turn != turn:
            await self.forget(session)
            told = f"the checkpoint is of turn {reply.turn}, and turn {turn} was to be restored"
            return Outcome(DispatchState.FAILED, CHECKPOINT_REFUSED, told)
        self.sessions[session] = turn
        self.checkpoints[session] = (turn, checkpoint)
        return outcome

    async def ask(self, about: str, fence: int) -> QueryAnswer:
        """What became of a request; an id that the device has never seen is tombstoned by it. No call of the lease."""
        asked = Asked("query", {"serial": self.serial, "fence": fence, "about": about})
        try:
            async with asyncio.timeout(self.call_seconds):
                reply = await self.link.tell(asked, QueryReply)
            if isinstance(reply, ErrorReply):
                return QueryAnswer(QueryState.NO_PROOF, outcome_of_error(reply), f"{reply.error}: {reply.message}")
            return answer_of_query(reply, answer=self.answer)
        except TimeoutError:
            return QueryAnswer(QueryState.NO_PROOF, message=f"no reply to the query within {self.call_seconds:g} s")
        except (NotConnected, WireCut, BadReply) as fault:
            return QueryAnswer(QueryState.NO_PROOF, message=str(fault))

    async def ask_about(self, requests: Sequence[OpenRequest]) -> dict[str, QueryAnswer]:
        """What became of what earlier holders left, each question a call of the lease."""
        found: dict[str, QueryAnswer] = {}
        for request in requests[:_ASKED_MAX]:

            async def send(_: str, fence: int, about: str = request.request_id) -> Outcome:
                answer = found[about] = await self.ask(about, fence)
                state = DispatchState.UNKNOWN if answer.state == QueryState.NO_PROOF else DispatchState.ANSWERED
                reason = "query.no_proof" if state is DispatchState.UNKNOWN else ""
                return Outcome(state, reason, answer.message, answer={"about": about, "outcome": answer.state})

            head = {"device": self.serial, "request": "query", "about": request.request_id}
            await self.lease_call("reconcile", Prepared(b"", head), send)
        return found

    async def call(self, role: str, name: str, model: type[E], **more: JsonValue) -> Outcome:
        """A call of the lease, and what became of it."""
        return (await self._called(role, name, model, more))[0]

    async def _called(
        self, role: str, name: str, model: type[E], more: Mapping[str, JsonValue]
    ) -> tuple[Outcome, E | None]:
        replies: list[E] = []

        async def send(request_id: str, fence: int) -> Outcome:
            asked = Asked(name, {"serial": self.serial, "fence": fence, "request_id": request_id, **more})
            progress = WireProgress()
            try:
                async with asyncio.timeout(self.call_seconds):
                    reply = await self.link.tell(asked, model, progress)
            except TimeoutError:
                return broken_off(progress, "deadline", f"no reply to {name} within {self.call_seconds:g} s")
            except (NotConnected, WireCut) as fault:
                return broken_off(progress, fault.reason, str(fault))
            except BadReply as fault:
                return outcome_of_bad_reply(fault, bytes(progress.partial))
            if isinstance(reply, ErrorReply):
                return outcome_of_error(reply)
            replies.append(reply)
            return Outcome(DispatchState.ANSWERED, answer=reply.model_dump(mode="json", exclude={"checkpoint"}))

        shown = {name: value for name, value in more.items() if name != "checkpoint"}
        told = more.get("checkpoint")
        payload = told.encode("ascii") if isinstance(told, str) else b""
        prepared = Prepared(payload, {"device": self.serial, "request": name, **shown}, keep=False)
        outcome = await self.lease_call(role, prepared, send)
        if outcome.reason == LEASE_LOST:
            raise NotInStep(LEASE_LOST, outcome.message)
        return outcome, replies[0] if replies else None

    async def _done(self, outcome: Outcome) -> None:
        if outcome.state is not DispatchState.ANSWERED:
            raise NotInStep(outcome.reason, outcome.message, quarantine=outcome.quarantine is not None)
