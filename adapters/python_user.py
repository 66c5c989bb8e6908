"""A Python function as the user of a conversation: it says the next message from what was answered so far."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, overload

from pydantic import Field

from ..ledger.canonical import JsonValue
from ..ledger.errors import TargetNotFound, WorkOrderInvalid
from ..runner.protocols import MISSING, Case, Exchange, Missing
from .callables import code_identity, find_object, is_async, name_of
from .outcomes import NotJson, as_json
from .tables import Table, read_table
from .threads import Threads

__all__ = ["PythonUser", "from_work_order", "user"]

_OVERDUE_MAX: Final = 256
_Told: TypeAlias = tuple[Any, BaseException | None]


class _Options(Table):
    file: str | None = Field(None)
    arguments: dict[str, Any] = Field({})
    version: str | None = Field(None)


def from_work_order(function: str, options: Mapping[str, Any], *, folder: Path, place: str) -> PythonUser:
    """The user that a work order names; raises WorkOrderInvalid or TargetNotFound."""
    read = read_table(_Options, options, place=place)
    found, recorded = find_object(function=function, file=read.file, folder=folder, place=place)
    if not callable(found):
        raise TargetNotFound(
            f"{place}: {recorded} is not a function", "Name a function that takes a case and a history"
        )
    made = found if isinstance(found, PythonUser) else PythonUser(found)
    return made.evolve(
        name=recorded,
        place=place,
        arguments={**made.arguments, **read.arguments},
        version=made.version if read.version is None else read.version,
    )


@overload
def user(function: Callable[..., Any], /) -> PythonUser: ...
@overload
def user(*, version: str | None = ...) -> Callable[[Callable[..., Any]], PythonUser]: ...
def user(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make the user of a conversation of a function ``f(case, history)``: ``@user`` or ``@user(version="3")``.

    It returns the next message, any JSON value, or None where the conversation is over. ``history`` has an `Exchange`
    for each turn: its ``message`` and its ``answer``. ``version`` stands for the code in the run's identity, instead of
    the digest of its module.
    """
    if function is None:
        return functools.partial(PythonUser, **options)
    return PythonUser(function, **options)


class PythonUser:
    """A function as a user; it can still be called as the function that it is.

    After a death it is asked again for the message of a turn that was not intended yet, and for those of turns that are
    asked again where other answers came: it should depend on what it is given alone.
    """

    kind = "python"

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        version: str | None = None,
        arguments: Mapping[str, JsonValue] | None = None,
        name: str | None = None,
        place: str | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name or name_of(function)
        self.version = version
        self.arguments = dict(arguments or {})
        self._place = place or self.name
        self._is_async = is_async(function)
        self._threads = Threads("tallystick-user")
        self._overdue = 0

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.function(*args, **{**self.arguments, **keywords})

    def __repr__(self) -> str:
        return f"<PythonUser {self.name} {self.arguments or ''}>"

    def using(self, **arguments: JsonValue) -> PythonUser:
        """The same user with these arguments added: ``customer.using(mood="angry")``."""
        return self.evolve(arguments={**self.arguments, **arguments})

    def evolve(self, **changes: Any) -> PythonUser:
        """The same user with other options."""
        options = {"version": self.version, "arguments": self.arguments, "name": self.name, "place": self._place}
        return PythonUser(self.function, **{**options, **changes})

    def identity(self) -> Mapping[str, JsonValue]:
        """The function, its arguments, and its code: a digest, or the declared version in its place."""
        code = code_identity(self.function) if self.version is None else {"version": self.version}
        try:
            arguments = {name: as_json(value) for name, value in self.arguments.items()}
        except NotJson as fault:
            raise WorkOrderInvalid(
                f"{self._place}: an argument has no JSON form ({fault})", "Give text, numbers, lists or mappings",
                place=self._place,
            ) from fault  # fmt: skip
        return {"kind": self.kind, "function": self.name, "arguments": arguments, **code}

    def check(self) -> None:
        """Raise WorkOrderInvalid where the function cannot be called with a case, a history and the arguments."""
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):
            return  # built in, without a signature: the first call tells
        try:
            signature.bind(object(), (), **self.arguments)
        except TypeError as fault:
            raise WorkOrderInvalid(
                f"{self._place}: {self.name}{signature} cannot be called with a case and a history ({fault})",
                "Give it two parameters, case and history, and those that its arguments name", place=self._place,
            ) from None  # fmt: skip

    async def say(self, case: Case, history: Sequence[Exchange], *, deadline_seconds: float) -> JsonValue | Missing:
        """The function's next message; raises what it raises, and TimeoutError where it takes too long."""
        if self._overdue >= _OVERDUE_MAX:
            raise RuntimeError(f"{self._overdue} calls of it that passed their deadline are still going on")
        told = await (self._on_the_loop if self._is_async else self._on_a_thread)(case, list(history), deadline_seconds)
        if told is None:
            raise TimeoutError
        said, raised = told
        match raised:
            case None:
                return MISSING if said is None else as_json(said)
            case Exception() if not isinstance(raised, TimeoutError | StopIteration):
                raise raised
            case _:
                # A time-out of its own is not our deadline, and an exit must not end the run.
                raise RuntimeError(f"{type(raised).__name__}: {raised}") from raised

    async def _on_the_loop(self, case: Case, history: list[Exchange], seconds: float) -> _Told | None:
        async def work() -> _Told:
            try:
                return await self.function(case, history, **self.arguments), None
            except asyncio.CancelledError:
                raise
            except BaseException as problem:  # noqa: BLE001 - a SystemExit in a task would end the whole loop
                return None, problem

        task = asyncio.get_running_loop().create_task(work())
        try:
            await asyncio.wait({task}, timeout=seconds)
            return task.result() if task.done() else None
        finally:
            if not task.done():
                self._overdue += 1
                task.add_done_callback(lambda ended: self._ended())
                task.cancel()

    async def _on_a_thread(self, case: Case, history: list[Exchange], seconds: float) -> _Told | None:
        loop = asyncio.get_running_loop()
        over: asyncio.Future[_Told] = loop.create_future()

        def arrive(told: _Told) -> None:
            if over.done():
                self._ended()
            else:
                over.set_result(told)

        def job() -> None:
            told: _Told
            try:
                told = self.function(case, history, **self.arguments), None
            except BaseException as problem:  # noqa: BLE001 - there is nobody above a thread
                told = None, problem
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits for it any more
                loop.call_soon_threadsafe(arrive, told)

        self._threads.submit(job)
        try:
            await asyncio.wait({over}, timeout=seconds)
            return over.result() if over.done() else None
        finally:
            if not over.done():
                self._overdue += 1
                over.cancel()

    def _ended(self) -> None:
        self._overdue -= 1
