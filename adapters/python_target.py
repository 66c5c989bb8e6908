"""Targets that are Python functions.

An async function runs on the loop, in a task of its own; a blocking one on a daemon thread. Neither can be stopped for
certain, so both are only waited for: when the deadline passes the outcome is unknown, the task is cancelled, the thread
goes on, and an answer that comes later is reported as late.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, overload

from pydantic import Field

from ..ledger.canonical import JsonValue, canonical_bytes, canonical_text
from ..ledger.errors import TargetNotFound, WorkOrderInvalid
from ..ledger.states import DispatchState, IfUnknown
from ..runner.protocols import (
    MISSING,
    Case,
    Dispatching,
    Exchange,
    Outcome,
    Prepared,
    QueryAnswer,
    QueryState,
    SlotView,
    Turn,
)
from .answers import current_dispatch
from .callables import code_identity, find_object, is_async, name_of, refuse_unfit
from .calls import Calls, TaskCalls, ThreadCalls, TooManyOverdue
from .client_parameters import client_parameter
from .clients_around import clients_around, retries_of
from .errors import CaseUnfit
from .outcomes import NotJson, as_json, one_line
from .prices import PriceTable
from .pricing import current_prices
from .python_outcomes import outcome_of_exception, outcome_of_value
from .tables import Table, nearest, read_table

__all__ = ["PythonTable", "PythonTarget", "from_work_order", "target"]

QueryFunction = Callable[[str], QueryAnswer | Awaitable[QueryAnswer]]


class PythonTable(Table):
    """The table of a target of kind ``python``."""

    function: str = Field(description="`module:name`, or a name in `file`.")
    file: str | None = Field(None, description="A Python file, relative to the work order's folder.")
    arguments: dict[str, Any] = Field({}, description="Passed to the function by name.")
    if_unknown: IfUnknown | None = Field(None, strict=False, description="What may follow an unknown outcome.")
    key_valid_seconds: float | None = Field(None, gt=0, description="How long the function honours a request id.")
    version: str | None = Field(None, description="Stands for the code in the run's identity, instead of its digest.")
    guarded: bool | None = Field(None, description="Whether the function's own requests are the calls, and it is none.")


def from_work_order(table: Mapping[str, Any], *, folder: Path, place: str) -> PythonTarget:
    """The target that a work order's table says; raises WorkOrderInvalid or TargetNotFound."""
    read = read_table(PythonTable, table, place=place)
    found, recorded = find_object(function=read.function, file=read.file, folder=folder, place=place)
    if not callable(found):
        raise TargetNotFound(f"{place}.function: {recorded} is not a function", "Name a function that takes a case")
    made = found if isinstance(found, PythonTarget) else PythonTarget(found)
    made = made.evolve(
        name=recorded,
        place=place,
        arguments={**made.arguments, **read.arguments},
        if_unknown=made.if_unknown if read.if_unknown is None else read.if_unknown,
        key_valid_seconds=made.key_valid_seconds if read.key_valid_seconds is None else read.key_valid_seconds,
        version=made.version if read.version is None else read.version,
        guarded=made.is_guarded if read.guarded is None else read.guarded,
    )
    made.check()
    return made


@overload
def target(function: Callable[..., Any], /) -> PythonTarget: ...
@overload
def target(
    *,
    if_unknown: IfUnknown | str = ...,
    version: str | None = ...,
    key_valid_seconds: float | None = ...,
    query: QueryFunction | None = ...,
    guarded: bool | None = ...,
) -> Callable[[Callable[..., Any]], PythonTarget]: ...
def target(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a target of a function that takes a case: ``@target`` or ``@target(if_unknown="repeat")``.

    ``version`` stands for the code in the run's identity, instead of the digest of its module. A target that is
    ``guarded`` is no call itself: its requests through `Http` and its steps are; one with a parameter ``http`` is.
    """
    if function is None:
        return functools.partial(PythonTarget, **options)
    return PythonTarget(function, **options)


class PythonTarget:
    """A function as a target; it can still be called as the function that it is. Serves one event loop at a time.

    The function gets the case without what is expected of it: an answer depends on nothing that its request does not
    hold. ``query`` takes a request id and says what became of it (with ``if_unknown="query"``).
    """

    kind = "python"

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        if_unknown: IfUnknown | str = IfUnknown.KEEP,
        version: str | None = None,
        arguments: Mapping[str, JsonValue] | None = None,
        key_valid_seconds: float | None = None,
        query: QueryFunction | None = None,
        guarded: bool | None = None,
        name: str | None = None,
        place: str | None = None,
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.name = name or name_of(function)
        self.version = version
        self.key_valid_seconds = key_valid_seconds
        self.prices: PriceTable | None = None
        self._place = place or self.name
        self.if_unknown = _known_policy(if_unknown, has_query=query is not None, place=self._place)
        self.arguments = _json_arguments(arguments or {}, self._place)
        self._query = query
        self._prefix = b'{"arguments":' + canonical_text(self.arguments).encode("ascii") + b',"case":'
        self._head: Mapping[str, JsonValue] = {"function": self.name}
        self._is_async = is_async(function)
        self.takes_turns, self.needs_turns = _turn_parameter(function)
        self._client = client_parameter(function, self.arguments)
        self.is_guarded = self._client is not None if guarded is None else guarded
        self.is_wire_visible = self.is_guarded
        self._refuse_turns()
        self._calls: Calls = TaskCalls() if self._is_async else ThreadCalls()
        self._work = self._call_async if self._is_async else self._call_blocking

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.function(*args, **{**self.arguments, **keywords})

    def __repr__(self) -> str:
        return f"<PythonTarget {self.name} {self.arguments or ''}>"

    def _refuse_turns(self) -> None:
        if self.is_guarded and self.needs_turns:
            raise WorkOrderInvalid(
                f"{self._place}: a guarded target cannot hold a conversation",
                "Let it make its own requests in one case, or let it be one call for each turn: @target(guarded=False)",
                place=self._place,
            )
        self.takes_turns = self.takes_turns and not self.is_guarded

    def using(self, **arguments: JsonValue) -> PythonTarget:
        """The same target with these arguments added: ``bot.using(model="a")``."""
        return self.evolve(arguments={**self.arguments, **arguments})

    def evolve(self, **changes: Any) -> PythonTarget:
        """The same target with other options."""
        options: dict[str, Any] = {
            "if_unknown": self.if_unknown,
            "version": self.version,
            "arguments": self.arguments,
            "key_valid_seconds": self.key_valid_seconds,
            "query": self._query,
            "guarded": self.is_guarded,
            "name": self.name,
            "place": self._place,
        }
        return PythonTarget(self.function, **{**options, **changes})

    def identity(self) -> Mapping[str, JsonValue]:
        """The function, its arguments, and its code: a digest, or the declared version in its place."""
        code = code_identity(self.function) if self.version is None else {"version": self.version}
        guarded = {"guarded": True} if self.is_guarded else {}
        return {"kind": self.kind, "function": self.name, "arguments": self.arguments, **guarded, **code}

    def check(self) -> None:
        """Raise WorkOrderInvalid where the function cannot be called with a case and the arguments."""
        known = {**self.arguments, "turn": None} if self.needs_turns else self.arguments
        if self._client is not None:
            known = {**known, self._client.name: None}
        refuse_unfit(self.function, known, place=self._place, name=self.name)

    def goes_around(self) -> tuple[str, ...]:
        """Under which names its code can send past the guarded client, as far as they tell."""
        return clients_around(self.function) if self.is_guarded else ()

    def client_retries(self) -> Mapping[str, int]:
        """How often each client library that its code uses retries by itself, by name, where it says so."""
        return retries_of(self.function)

    def prepare(self, slot: SlotView) -> Prepared:
        """The arguments and the case in canonical JSON; raises CaseUnfit for a case that has no JSON form."""
        case = slot.case
        try:
            told = canonical_text({"id": case.id, "input": case.input, "metadata": case.metadata})
        except (TypeError, ValueError, RecursionError) as fault:
            raise CaseUnfit(f'case "{one_line(case.id)}" has no JSON form ({fault})', case_id=case.id) from fault
        payload = self._prefix + told.encode("ascii")
        if slot.turn is not None:
            payload += b',"turn":' + canonical_bytes(_told_turn(slot.turn))
        return Prepared(payload=payload + b"}", head=self._head)

    @property
    def may_answer_late(self) -> bool:
        """Whether a blocking function goes on past its deadline: it cannot be stopped, and its answer is evidence."""
        return self._calls.overdue > 0 and not self.is_guarded

    async def open(self) -> None:
        self.check()

    def use_prices(self, prices: PriceTable) -> None:
        """Price what a guarded target's own requests use, by the model that each is answered by."""
        if self.is_guarded:
            self.prices = prices

    async def dispatch(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:
        case, more = _committed_case(prepared.payload)
        if self._client is not None:
            more = {**more, self._client.name: self._client.make()}
        dispatching.progress.bytes_sent = None
        dispatching.progress.wire_sends = 1
        token, priced = current_dispatch.set(dispatching), current_prices.set(self.prices)
        try:
            outcome = await self._calls.call(
                functools.partial(self._work, case, more),
                deadline_seconds=dispatching.deadline_seconds,
                late=dispatching.late,
            )
        except (TooManyOverdue, RuntimeError) as fault:
            return _not_begun(str(fault), dispatching)
        finally:
            current_dispatch.reset(token)
            current_prices.reset(priced)
        return _overdue(dispatching.deadline_seconds) if outcome is None else outcome

    async def _call_async(self, case: Case, more: Mapping[str, Any]) -> Outcome:
        try:
            return outcome_of_value(await self.function(case, **self.arguments, **more))
        except asyncio.CancelledError as raised:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return outcome_of_exception(raised)  # from a task of the function's own: nobody has cancelled this one
        except KeyboardInterrupt:
            raise
        # A SystemExit in a task would end the whole loop. What closes this coroutine finds nobody who waits for it.
        except BaseException as raised:  # noqa: BLE001
            return outcome_of_exception(raised)

    def _call_blocking(self, case: Case, more: Mapping[str, Any]) -> Outcome:
        try:
            return outcome_of_value(self.function(case, **self.arguments, **more))
        except BaseException as raised:  # noqa: BLE001 - there is nobody above a thread
            return outcome_of_exception(raised)

    async def query(self, request_id: str, prepared: Prepared) -> QueryAnswer:  # noqa: ARG002 - the id is enough
        if self._query is None:
            return QueryAnswer(QueryState.NO_PROOF, message=f"{self.name} cannot be asked by request id")
        try:
            answer = (
                self._query(request_id) if is_async(self._query) else await asyncio.to_thread(self._query, request_id)
            )
            return await answer if inspect.isawaitable(answer) else answer
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - a target's query may raise anything
            return QueryAnswer(QueryState.NO_PROOF, message=outcome_of_exception(raised).message)

    async def close(self) -> None:
        await self._calls.close()
        if self._client is not None:
            await self._client.close()


def _known_policy(if_unknown: IfUnknown | str, *, has_query: bool, place: str) -> IfUnknown:
    try:
        known = IfUnknown(if_unknown)
    except ValueError:
        remedy = nearest(str(if_unknown), [*IfUnknown])
        raise WorkOrderInvalid(f'{place}: if_unknown = "{if_unknown}" is not known', remedy, place=place) from None
    if known is IfUnknown.QUERY and not has_query:
        remedy = "Give one: @target(if_unknown='query', query=...)"
        raise WorkOrderInvalid(f'{place}: if_unknown = "query" needs a query function', remedy, place=place)
    return known


def _json_arguments(arguments: Mapping[str, JsonValue], place: str) -> Mapping[str, JsonValue]:
    try:
        return {name: as_json(value) for name, value in arguments.items()}
    except NotJson as fault:
        remedy = "Give text, numbers, lists or mappings"
        raise WorkOrderInvalid(f"{place}: an argument has no JSON form ({fault})", remedy, place=place) from fault


def _committed_case(payload: bytes) -> tuple[Case, dict[str, Any]]:
    # Read back from the committed bytes: the function sees what was stored, and whatever it does to its case changes
    # nobody else's.
    told = json.loads(payload)
    case, turn = told["case"], told.get("turn")
    more: dict[str, Any] = {}
    if turn is not None:
        history = tuple(Exchange(one["message"], one["answer"]) for one in turn["history"])
        more["turn"] = Turn(turn["session"], turn["number"], turn["message"], history)
    return Case(case["id"], case["input"], MISSING, case["metadata"]), more


def _told_turn(turn: Turn) -> JsonValue:
    history: list[JsonValue] = [{"message": one.message, "answer": one.answer} for one in turn.history]
    return {"session": turn.session, "number": turn.number, "message": turn.message, "history": history}


def _turn_parameter(function: Callable[..., Any]) -> tuple[bool, bool]:
    """Whether the function can be given the turn of a conversation, and whether it has to be."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True, False  # built in, without a signature: the first call tells
    named = next((one for one in parameters if one.name == "turn" and one.kind is not one.POSITIONAL_ONLY), None)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    return named is not None or takes_any, named is not None and named.default is named.empty


def _overdue(deadline_seconds: float) -> Outcome:
    told = f"no answer within {deadline_seconds:g} s; the function may still be going on"
    return Outcome(state=DispatchState.UNKNOWN, reason="deadline", message=told)


def _not_begun(why: str, dispatching: Dispatching) -> Outcome:
    dispatching.progress.bytes_sent = dispatching.progress.wire_sends = 0
    return Outcome(
        state=DispatchState.REFUSED, reason="python.threads", message=one_line(why), bytes_sent=0, wire_sends=0
    )
