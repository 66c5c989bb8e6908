"""Targets that stand for a program of a user's own, which alone makes their calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from ..ledger.canonical import JsonValue
from ..ledger.errors import UsageError
from ..ledger.states import DispatchState, IfUnknown
from .protocols import Outcome, Prepared, QueryAnswer, QueryState, SlotView

__all__ = ["GuardTarget", "HarnessTarget"]


class _Elsewhere:
    """What they have in common: nothing of them can be executed from here. ``executor`` says what can."""

    executor: ClassVar[str]

    def check(self) -> None:
        """There is nothing to look for."""

    def prepare(self, slot: SlotView) -> Prepared:
        raise UsageError(f"case {slot.case.id} is called by a {self.executor} alone", f"run that {self.executor} again")

    async def open(self) -> None:
        """There is nothing to open."""

    async def dispatch(self, prepared: Prepared, dispatching: Any) -> Outcome:  # noqa: ARG002 - it cannot be called
        return Outcome(DispatchState.REFUSED, "guard.elsewhere", f"run the {self.executor} again", bytes_sent=0)

    async def query(self, request_id: str, prepared: Prepared) -> QueryAnswer:  # noqa: ARG002 - nobody is asked
        return QueryAnswer(QueryState.NO_PROOF)

    async def close(self) -> None:
        """There is nothing to close."""


@attrs.define
class HarnessTarget(_Elsewhere):
    """Stands for a harness in what describes its run; ``config`` is what its answers depend on."""

    executor = "harness"

    config: Mapping[str, JsonValue]
    if_unknown: IfUnknown
    key_valid_seconds: float | None = None
    kind: str = "harness"
    is_wire_visible: bool = True

    def identity(self) -> Mapping[str, JsonValue]:
        return {"kind": self.kind, "config": dict(self.config)}


@attrs.define
class GuardTarget(_Elsewhere):
    """Stands for the script in what describes its run; nobody but the script itself can call it."""

    executor = "script"

    if_unknown: IfUnknown
    kind: str = "guard"
    key_valid_seconds: float | None = None
    is_wire_visible: bool = False

    def identity(self) -> Mapping[str, JsonValue]:
        return {"kind": self.kind}
