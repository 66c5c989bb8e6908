"""Targets that speak the Atlas protocol (docs/atlas-protocol.md): one physical device, opened by its serial.

Every request carries the fence of the lease, an answer is taken only under the id and the fence of its own request,
and nothing is sent to a device that may still be at something else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import attrs
from pydantic import Field

from ..ledger.canonical import JsonValue
from ..ledger.states import DispatchState, IfUnknown
from ..runner.device_protocols import REBOOTED, SESSION_LOST, Resuming, TakenOver, Tenure
from ..runner.protocols import Dispatching, Outcome, Prepared, QueryAnswer, QueryState, Turn, WireProgress
from .atlas_driver import AtlasDriver
from .atlas_link import Asked, AtlasLink, BadReply
from .atlas_messages import ErrorReply, Identity, SubmitReply
from .atlas_outcomes import outcome_of_bad_reply, outcome_of_error, outcome_of_reply
from .http_table import read_origin
from .lab import LabTable, LabTarget, NotInStep
from .paths import read_path
from .secrets import Redactor, SecretTable, header_value, secret_value
from .tables import read_table
from .wire_tls import tls_context

__all__ = ["AtlasTable", "AtlasTarget", "from_work_order"]

_NOT_IDENTITY: Final = frozenset(
    {"url", "boot", "headers", "ca_file", "connect_seconds", "call_seconds", "body_bytes_max"}
)
_OUT_OF_STEP: Final = frozenset({"device.busy", "device.faulted", REBOOTED})


class AtlasTable(LabTable):
    """The table of a target of kind ``atlas``."""

    url: str = Field(description="Where the device is reached, up to `/v1`; not part of what it is.")
    answer: str = Field("$", description="JSONPath or JSON pointer of the answer in what the device answers.")
    boot: Literal["same", "any"] = Field(
        "same", description="Whether a device that has rebooted is taken over anew before it is used further."
    )
    if_unknown: IfUnknown = Field(IfUnknown.QUERY, strict=False, description="What may follow an unknown outcome.")
    headers: dict[str, SecretTable] = Field({}, description="Secrets for what stands before the device.")
    ca_file: str | None = Field(None, description="Certificates to trust, relative to the work order's folder.")
    connect_seconds: float = Field(5.0, gt=0, description="Bound of connecting, TLS included.")
    call_seconds: float = Field(10.0, gt=0, description="Bound of each question, reset, cancel and restore.")
    body_bytes_max: int = Field(8 * 1024 * 1024, ge=1, le=2**30, description="Bound of a reply.")


def from_work_order(table: Mapping[str, Any], *, folder: Path, place: str) -> AtlasTarget:
    """The target that a work order's table says; raises WorkOrderInvalid."""
    return AtlasTarget(read_table(AtlasTable, table, place=place), folder=folder, place=place)


class AtlasTarget(LabTarget):
    """One Atlas device. Serves one event loop at a time, between `open` and `close`."""

    kind = "atlas"
    compares_fences = True
    can_be_queried = True
    has_one_connection = False
    not_identity: ClassVar[frozenset[str]] = _NOT_IDENTITY
    table: AtlasTable

    def __init__(self, table: AtlasTable, *, folder: Path, place: str) -> None:
        super().__init__(table, place=place)
        self._origin, self._base = read_origin(table.url, place=f"{place}.url")
        self._answer = read_path(table.answer, place=f"{place}.answer")
        self._ca_file = None if table.ca_file is None else folder / table.ca_file
        self._redactor = Redactor.of(())
        self._driver: AtlasDriver | None = None
        self._highest_fence = 0
        self.resuming = Resuming.CHECKPOINT

    def check(self) -> None:
        self._secret_headers()
        if self._origin.scheme == "https":
            tls_context(self._ca_file, place=self.place)

    def _secret_headers(self) -> list[tuple[bytes, bytes]]:
        headers = self.table.headers
        values = {name: header_value(value, place=f"{self.place}.headers.{name}") for name, value in headers.items()}
        bare = [secret_value(SecretTable(env=value.env), place=self.place) for value in headers.values()]
        self._redactor = Redactor.of(bare)
        return [(name.encode("ascii"), value) for name, value in values.items()]

    # What the base asks of a device.

    async def connect(self) -> None:
        """Make the link; the first question shows whether anybody is there."""
        is_tls = self._origin.scheme == "https"
        link = AtlasLink(
            self._origin,
            self._base,
            serial=self.table.serial,
            headers=self._secret_headers(),
            redactor=self._redactor,
            connect_seconds=self.table.connect_seconds,
            body_bytes_max=self.table.body_bytes_max,
            ssl_context=tls_context(self._ca_file, place=self.place) if is_tls else None,
        )
        self._driver = AtlasDriver(
            link,
            self.table.serial,
            self.lease_call,
            self._answer,
            self.table.call_seconds,
        )

    async def disconnect(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.link.close()

    async def identify(self) -> Mapping[str, JsonValue]:
        told = await self.driver.look("identity", Identity)
        self.resuming = Resuming.CHECKPOINT if told.checkpoints else Resuming.RESTART
        self._highest_fence = told.highest_fence
        return told.model_dump(mode="json", exclude={"highest_fence"})

    @property
    def driver(self) -> AtlasDriver:
        assert self._driver is not None, "connect() comes before everything else"
        return self._driver

    @property
    def can_resynchronise(self) -> bool:
        return True

    def is_in_step_after(self, outcome: Outcome) -> bool:
        return outcome.state is not DispatchState.UNKNOWN and outcome.reason not in _OUT_OF_STEP

    @property
    def _wait_seconds(self) -> float:
        return self._standing.left(self.table.drain_seconds)

    async def settle(self) -> None:
        await self.driver.settle(self._wait_seconds, is_reset=self._standing.is_to_be_reset)
        self._standing.is_to_be_reset = False

    async def taken_over(self, tenure: Tenure) -> TakenOver:
        """Identify, fence, drain, ask for what is open, reset: nothing is dispatched before all of it is done."""
        await self.connect()
        self._is_connected = True
        self.facts = await self.identify()
        self.compare(self.facts)
        boot_count = self.facts["boot_count"]
        assert isinstance(boot_count, int)
        if self._highest_fence >= tenure.fence(self.resource):
            await tenure.raise_fence(self.resource, self._highest_fence)
        if self.table.boot == "same":
            self.driver.boot_count = boot_count
        await self.driver.fence()
        await self.driver.settle(self._wait_seconds, is_reset=False)
        settled = await self.driver.ask_about(tenure.open_requests(self.resource))
        await self.driver.reset()
        self._standing.regain_step()
        self._standing.is_to_be_reset = False
        return TakenOver(self.facts, boot_count, settled)

    # One request.

    async def get_ready(self, prepared: Prepared) -> None:
        await super().get_ready(prepared)
        session, turn = prepared.head.get("session"), prepared.head.get("turn")
        if not isinstance(session, str) or not isinstance(turn, int) or turn == 1 or session in self.driver.sessions:
            return
        known, checkpoint = self.driver.checkpoints.get(session, (0, b""))
        lost = NotInStep(SESSION_LOST, f"the device has forgotten session {session}", state=DispatchState.FAILED)
        if known != turn - 1:
            raise lost
        restored = await self.driver.restore(session, known, checkpoint)
        if restored.state is not DispatchState.ANSWERED:
            raise lost

    async def exchange(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:
        progress, session = dispatching.progress, prepared.head.get("session")
        asked = self._asked(prepared, dispatching)
        try:
            reply = await self.driver.link.tell(asked, SubmitReply, progress)
        except BadReply as fault:
            if fault.reason == "reply.mismatched":
                self._quarantine(session)
            outcome = outcome_of_bad_reply(fault, bytes(progress.partial))
        else:
            outcome = self._read(reply, bytes(progress.partial))
            if outcome.state is DispatchState.ANSWERED:
                self._remember(prepared.head, outcome)
        return self._redactor.outcome(outcome)

    def _asked(self, prepared: Prepared, dispatching: Dispatching) -> Asked:
        assert self._tenure is not None
        fence = dispatching.fence or self._tenure.fence(self.resource)
        document: dict[str, JsonValue] = {
            "serial": self.table.serial,
            "fence": fence,
            "request_id": dispatching.request_id,
        }
        if self.driver.boot_count is not None:
            document["boot_count"] = self.driver.boot_count
        if "session" in prepared.head:
            document |= {"session": prepared.head["session"], "turn": prepared.head["turn"]}
            document["checkpoint"] = self.resuming is Resuming.CHECKPOINT
        return Asked("submit", document, prepared.payload)

    def _read(self, reply: SubmitReply | ErrorReply, body: bytes) -> Outcome:
        if isinstance(reply, ErrorReply):
            return attrs.evolve(outcome_of_error(reply), raw=body)
        return attrs.evolve(outcome_of_reply(reply, answer=self._answer), raw=body)

    def _remember(self, head: Mapping[str, JsonValue], outcome: Outcome) -> None:
        session, turn = head.get("session"), head.get("turn")
        if isinstance(session, str) and isinstance(turn, int):
            self.driver.sessions[session] = turn
            if outcome.checkpoint is not None:
                self.driver.checkpoints[session] = (turn, outcome.checkpoint)

    def _quarantine(self, session: JsonValue) -> None:
        # Whose answer that was is not known, and so neither is what the session holds: it is used no further as it is.
        self._standing.is_to_be_reset = True
        if isinstance(session, str):
            self.driver.sessions.pop(session, None)

    async def query(self, request_id: str, prepared: Prepared) -> QueryAnswer:
        """Ask; a request that is still going on is waited for and then cancelled, in bounds."""
        if self._tenure is None:
            return QueryAnswer(QueryState.NO_PROOF, message="the device is not held")
        try:
            async with self._standing.lock:
                if not self._is_connected:
                    await super().get_ready(prepared)
                found = await self.driver.ask(request_id, self._tenure.fence(self.resource))
                if found.state == QueryState.PENDING:
                    self._standing.lose_step()
                    await self.driver.end(request_id, self._wait_seconds)
                    found = await self.driver.ask(request_id, self._tenure.fence(self.resource))
        except (NotInStep, OSError) as fault:
            return QueryAnswer(QueryState.NO_PROOF, message=self._redactor.text(str(fault)))
        if found.outcome is not None and found.state == QueryState.LANDED:
            self._remember(prepared.head, found.outcome)
            return attrs.evolve(found, outcome=self._redactor.outcome(found.outcome))
        return attrs.evolve(found, outcome=None, message=self._redactor.text(found.message))

    # Sessions.

    async def begin_session(self, turn: Turn, checkpoint: bytes | None) -> Outcome:
        """A session begins with its first turn; one that goes on is restored from its checkpoint first."""
        return await self.guarded(WireProgress(), self._session_seconds, lambda: self._begin(turn, checkpoint))

    @property
    def _session_seconds(self) -> float:
        return self.table.drain_seconds + 4 * self.table.call_seconds

    async def _begin(self, turn: Turn, checkpoint: bytes | None) -> Outcome:
        await super().get_ready(Prepared(b""))
        if checkpoint is None:
            return Outcome(DispatchState.ANSWERED, answer=None)
        return await self.driver.restore(turn.session, turn.number - 1, checkpoint)

    async def end_session(self, session: str) -> None:
        async with self._standing.lock:
            if self._driver is None or self._tenure is None or self._tenure.is_lost:
                return
            self.driver.checkpoints.pop(session, None)
            if session in self.driver.sessions and self._standing.is_in_step:
                with contextlib.suppress(NotInStep):  # in vain: what takes the device over next resets it
                    await self.driver.forget(session)
