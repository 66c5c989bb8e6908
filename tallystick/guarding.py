"""A guard around paid calls in a plain script: each key is called once, and its result kept.

with ts.guard("summaries", if_unknown="repeat", budget=ts.Budget(dispatches=500)) as guard:
    for doc in docs:
        print(guard.call(doc["id"], summarise, doc))
    print(guard.summary())
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import reprlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any, Final, Literal

from ._wiring import ADAPTERS
from .adapters.answers import current_dispatch
from .adapters.callables import is_async, name_of
from .adapters.key_meanings import meaning_of_call
from .adapters.python_outcomes import outcome_of_exception, outcome_of_value
from .guard_budget import Budget, Budgets, GuardSummary, budget_tables
from .guard_mapping import GuardMapping
from .guard_waits import LongWait, claim, inside, leave, refuse_own, waiting
from .held_up_loops import holding_up_the_loop
from .ledger.errors import LedgerClosed, UsageError
from .ledger.growing import newest_of_name
from .ledger.ledger import Ledger
from .ledger.location import default_path
from .ledger.run_reads import find_run
from .ledger.states import DispatchState, IfUnknown, SlotState
from .ledger.to_its_end import to_its_end
from .runner.descriptions import Description, describe
from .runner.guard_runs import GROWING, GuardRun, GuardTarget, KeyAsked, Known, Underway, broken_off
from .runner.identity import compare
from .runner.identity_changes import refuse_changes
from .runner.protocols import Case, Dispatching, Outcome, SlotView
from .runner.sessions import find_or_create, stored_identity
from .runner.work_order import WorkOrder

__all__ = ["Budget", "Guard", "GuardSummary", "guard"]

StrPath = str | os.PathLike[str]

_POLICIES: Final = (IfUnknown.KEEP, IfUnknown.REPEAT, IfUnknown.RESEND)
_CONCURRENCY: Final = 32
_LOOK_SECONDS: Final = 0.005


def guard(
    name: str,
    *,
    if_unknown: IfUnknown | str = IfUnknown.KEEP,
    budget: Budgets | None = None,
    ledger: StrPath | None = None,
    changed: Literal["refuse", "reuse"] = "refuse",
) -> Guard:
    """A guard of that name, to be used with ``with`` (or ``async with``); one process at a time is in it.

    ``if_unknown`` says what may follow a call whose outcome is not known: ``keep`` (it is never made again by itself),
    ``repeat`` (made again as a call of its own) or ``resend`` (made again under the same `request_id`). ``budget`` is
    a `Budget` or what a work order says, ``{"dispatches": 500}``; what is none is refused on entering. ``changed`` says
    what happens where a key stands for another function, other code or other arguments than before. The ledger is found
    as by `run`. Raises UsageError.
    """
    try:
        policy = IfUnknown(if_unknown)
    except ValueError:
        policy = IfUnknown.QUERY
    if policy not in _POLICIES:
        raise UsageError(f'a guard has no if_unknown = "{if_unknown}"', f"choose one of {', '.join(_POLICIES)}")
    if changed not in ("refuse", "reuse"):
        raise UsageError(f'a guard has no changed = "{changed}"', "choose refuse or reuse")
    return Guard(name, policy, budget or (), default_path() if ledger is None else Path(ledger), changed)


class Guard:
    """Calls each key once; made by `guard`. Safe for threads and for tasks of an event loop.

    Entering takes the guard's run (RunBusy while another process is in it), leaving gives it back.
    """

    def __init__(self, name: str, if_unknown: IfUnknown, budget: Budgets, path: Path, changed: str) -> None:
        self.name = name
        self._if_unknown = if_unknown
        self._budget = budget
        self._path = path
        self._reuses_changed = changed == "reuse"
        self._ledger: Ledger | None = None
        self._run: GuardRun | None = None

    def open(self) -> Guard:
        """What entering does, for a notebook. Raises RunBusy, IdentityChanged, UsageError and LedgerError."""
        if self._run is not None:
            raise UsageError(f"the guard {self.name} is entered already", "use the one that is open")
        target = GuardTarget(self._if_unknown)
        order = WorkOrder(self.name, target=target, cases=GROWING, budgets=budget_tables(self._budget))
        description = describe(order, ADAPTERS)
        ledger = Ledger.open(self._path, create=True)
        try:
            _refuse_other(ledger, description)
            run = find_or_create(ledger, description).run
            self._run = GuardRun(ledger, run.run_id, if_unknown=self._if_unknown, reuses_changed=self._reuses_changed)
        except BaseException:
            ledger.close()
            raise
        self._ledger = ledger
        return self

    def close(self) -> None:
        """What leaving does; idempotent. A call that another thread is still at has an unknown outcome."""
        run, self._run = self._run, None
        ledger, self._ledger = self._ledger, None
        if run is None or ledger is None:
            return
        try:
            if ledger.failure is None:
                run.close(reason="ended")
        finally:
            ledger.close()

    def __enter__(self) -> Guard:
        return self.open()

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Guard:
        return await asyncio.to_thread(self.open)

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.close)

    # One call.

    def call(self, key: str | int, function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Any:
        """Call the function, or return what it returned under this key before; await it where the function is async.

        What comes back is JSON, the first time too (tuples are lists); of an `Answer`, its value. What the function
        raises goes on to the caller and is recorded: a failure is called again the next time that its key comes.

        Raises GuardKeyChanged, EarlierCallUnknown and BudgetExhausted, and then nothing was called; UsageError for a
        result that is not JSON, which is paid for and recorded as failed.
        """
        asked = _asked(key, function, args, keywords)
        if is_async(function):
            return self._call_async(asked, function, args, keywords)
        run = self._entered()
        if not claim(run, asked.key):
            _wait_for(run, asked.key)
        try:
            done, known = run.look([asked])
            if asked.key in done:
                return self._reused(done[asked.key])
            return self._made(run, asked, run.begin(asked, known.get(asked.key)), function, args, keywords)
        finally:
            leave(run, asked.key)

    async def _call_async(
        self, asked: KeyAsked, function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        run = self._entered()
        if not claim(run, asked.key, is_async=True):
            await _wait_for_async(run, asked.key)
        try:
            done, known = run.look([asked])
            if asked.key in done:
                return self._reused(done[asked.key])
            underway = await run.begin_async(asked, known.get(asked.key))
            return await self._made_async(run, asked, underway, function, args, keywords)
        finally:
            leave(run, asked.key)

    def _made(
        self, run: GuardRun, asked: KeyAsked, underway: Underway, function: Callable[..., Any], args: Sequence[Any],
        keywords: Mapping[str, Any],
    ) -> Any:  # fmt: skip
        try:
            with _inside(run, underway):
                outcome, raised = outcome_of_value(function(*args, **keywords)), None
        except Exception as problem:  # noqa: BLE001 - it is what became of the call, and goes on to the caller
            outcome, raised = outcome_of_exception(problem), problem
        except BaseException as problem:
            run.end(underway, broken_off(problem))
            raise
        return _result(asked, run.end(underway, outcome), raised)

    async def _made_async(
        self, run: GuardRun, asked: KeyAsked, underway: Underway, function: Callable[..., Any], args: Sequence[Any],
        keywords: Mapping[str, Any],
    ) -> Any:  # fmt: skip
        try:
            with _inside(run, underway):
                outcome, raised = outcome_of_value(await function(*args, **keywords)), None
        except Exception as problem:  # noqa: BLE001 - it is what became of the call, and goes on to the caller
            outcome, raised = outcome_of_exception(problem), problem
        except BaseException as problem:
            await to_its_end(run.end_async(underway, broken_off(problem)))
            raise
        return _result(asked, await to_its_end(run.end_async(underway, outcome)), raised)

    def _reused(self, known: Known) -> Any:
        self._entered().counts["reused"] += 1
        return known.value

    def _entered(self) -> GuardRun:
        if self._run is None:
            raise LedgerClosed(f"the guard {self.name} is not entered", f'use it inside `with ts.guard("{self.name}")`')
        return self._run

    # Many calls.

    def map(
        self,
        function: Callable[[Any], Any],
        items: Iterable[Any],
        *,
        key: Callable[[Any], str | int] | None = None,
        concurrency: int = _CONCURRENCY,
        return_exceptions: bool = False,
    ) -> Any:
        """Call the function for each item, several at a time, and return the results as a list in the items' order.

        ``key`` says which key an item has; items that are texts or integers are their own. A blocking function runs on
        threads, an async one on the running loop: then await the list. At the first exception nothing more is begun,
        what is under way is waited for, and it is raised; with ``return_exceptions`` it stands in the list instead.
        Items of the same key are called once. Raises what `call` raises.
        """
        odd: object = concurrency
        if not isinstance(odd, int) or odd < 1:
            raise UsageError(f"map cannot go {concurrency} at a time", "give a whole number of 1 or more")
        told = [(_asked(_key_of(item, key), function, (item,), {}), item) for item in items]
        work = GuardMapping(self._entered(), told, return_exceptions=return_exceptions)
        if is_async(function):
            return self._map_async(work, function, concurrency)
        work.prepare_all()
        if work.left:
            with holding_up_the_loop():
                self._work_on_threads(work, function, min(concurrency, len(work.left)))
        return work.results()

    def _work_on_threads(self, work: GuardMapping, function: Callable[[Any], Any], count: int) -> None:
        others = [
            threading.Thread(
                target=copy_context().run, args=(self._work_beside, work, function), name="tallystick-guard"
            )
            for _ in range(count - 1)
        ]
        try:
            for thread in others:
                thread.start()
            self._work(work, function)
            _wait_for_all(others)
        except BaseException:
            # Also an interrupt of a start or of the wait: threads that are left behind would go on to pay.
            work.stop()
            _wait_for_all(others)
            raise

    def _work(self, work: GuardMapping, function: Callable[[Any], Any]) -> None:
        for asked, item, known in work:
            try:
                if not claim(work.run, asked.key):
                    work.put(asked, self.call(asked.key, function, item))  # somebody else of this script is at it
                    continue
                try:
                    underway = work.run.begin(asked, known)
                    work.put(asked, self._made(work.run, asked, underway, function, (item,), {}))
                finally:
                    leave(work.run, asked.key)
            except Exception as problem:  # noqa: BLE001 - raised by `results`, or given back
                work.fail(asked, problem)

    def _work_beside(self, work: GuardMapping, function: Callable[[Any], Any]) -> None:
        try:
            self._work(work, function)
        except BaseException as problem:  # noqa: BLE001 - SystemExit and its like: `results` raises it
            work.break_off(problem)

    async def _map_async(self, work: GuardMapping, function: Callable[[Any], Any], concurrency: int) -> list[Any]:
        await asyncio.to_thread(work.prepare_all)
        workers = [
            asyncio.ensure_future(self._work_async(work, function)) for _ in range(min(concurrency, len(work.left)))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            work.stop()
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return work.results()

    async def _work_async(self, work: GuardMapping, function: Callable[[Any], Any]) -> None:
        for asked, item, known in work:
            try:
                if not claim(work.run, asked.key, is_async=True):
                    work.put(asked, await self._call_async(asked, function, (item,), {}))
                    continue
                try:
                    underway = await work.run.begin_async(asked, known)
                    work.put(asked, await self._made_async(work.run, asked, underway, function, (item,), {}))
                finally:
                    leave(work.run, asked.key)
            except Exception as problem:  # noqa: BLE001 - raised by `results`, or given back
                work.fail(asked, problem)

    def summary(self) -> GuardSummary:
        """What was reused and called in this pass, and what the guard has spent and holds."""
        run = self._entered()
        states, budgets = run.standing()
        counts: Counter[str] = run.counts
        of_run = [one for one in budgets if one.plan.scope == "run"]
        return GuardSummary(
            self.name, run.coordinator.run_id, counts["reused"], counts["called"], counts["failed"], counts["refused"],
            counts["unknown"], states[SlotState.UNKNOWN], sum(states.values()),
            {one.plan.unit: one.settled for one in of_run}, {one.plan.unit: one.held for one in of_run},
        )  # fmt: skip


def _refuse_other(ledger: Ledger, description: Description) -> None:
    """A guard of that name that was something else: a changed promise would pay for everything again, unasked."""
    with ledger.reading() as reader:
        run_id = newest_of_name(reader, description.order.name)
        found = None if run_id is None else find_run(reader, run_id)
    if found is not None and found.work_order_digest != description.digest:
        changed = compare(stored_identity(found), description.identity)
        refuse_changes(found.run_id, changed, remedy="change it back, or give the guard another name")


def _asked(key: object, function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> KeyAsked:
    if isinstance(key, bool) or not isinstance(key, str | int) or key == "":
        raise UsageError(
            f"a key is a text or an integer, not {_shown(key)}", "give one that stays the same for the same call"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"{name_of(function)} is a generator, whose results cannot be kept", "let it return a list of them"
        )
    return KeyAsked(str(key), name_of(function), meaning_of_call(function, args, keywords))


def _shown(key: object) -> str:
    """Of a key that is none: it may be of any size, and of a class whose text cannot be had."""
    return reprlib.repr(key) if isinstance(key, str | bytes | float | bool | None) else f"a {type(key).__name__}"


def _key_of(item: Any, key: Callable[[Any], str | int] | None) -> str | int:
    if key is not None:
        return key(item)
    if isinstance(item, str | int) and not isinstance(item, bool):
        return item
    raise UsageError(
        f"an item of type {type(item).__name__} is no key", "say which: guard.map(function, items, key=...)"
    )


@contextmanager
def _inside(run: GuardRun, underway: Underway) -> Iterator[None]:
    """While the function is called: what `request_id` tells it, and that its key is being asked for."""
    dispatch = current_dispatch.set(_dispatching(run, underway))
    try:
        with inside(run, underway.key):
            yield
    finally:
        current_dispatch.reset(dispatch)


def _wait_for(run: GuardRun, key: str) -> None:
    """Until nobody else is at the key; a call takes as long as it takes, and one that waits for this one is refused."""
    refuse_own(run, key)
    with waiting(run, key):
        long = LongWait(run, key)
        while not claim(run, key):
            long.look()
            threading.Event().wait(_LOOK_SECONDS)


async def _wait_for_async(run: GuardRun, key: str) -> None:
    refuse_own(run, key)
    with waiting(run, key, is_async=True):
        long = LongWait(run, key)
        # Threads hold keys too, and no event of a loop may be set from one.
        while not claim(run, key, is_async=True):
            long.look()
            await asyncio.sleep(_LOOK_SECONDS)


def _wait_for_all(threads: Sequence[threading.Thread]) -> None:
    """Those that run; one whose start was interrupted and that runs later finds nothing more to do."""
    for thread in threads:
        if thread.is_alive():
            thread.join()


def _dispatching(run: GuardRun, underway: Underway) -> Dispatching:
    view = SlotView(run.coordinator.run_id, Case(underway.key, None), "default", 1)
    return Dispatching(underway.request_id, underway.dispatch.attempt_no, underway.dispatch.dispatch_no, view, math.inf)


def _result(asked: KeyAsked, outcome: Outcome, raised: Exception | None) -> Any:
    if raised is not None:
        raise raised
    if outcome.state is DispatchState.ANSWERED:
        return outcome.answer
    raise UsageError(
        f'the result of key "{asked.key}" cannot be kept: {outcome.message}',
        "let the function return text, numbers, lists or mappings of them; the call is paid for and recorded as failed",
    )
