"""Paid work of a target that is no HTTP request: a tool, a database write, another library."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, overload

import attrs

from ..ledger.canonical import JsonValue, canonical_bytes, canonical_text
from ..ledger.errors import UsageError
from ..ledger.states import DispatchState
from ..runner.inner_protocols import InnerCalls, InnerRequest, InnerSend, Replayed
from ..runner.protocols import MISSING, Dispatching, Outcome
from .answers import Failed, OutcomeUnknown, Refused, current_dispatch
from .callables import is_async
from .guarded_http import current_inner_calls
from .outcomes import NotJson, as_json, one_line
from .python_outcomes import outcome_of_exception, outcome_of_value

__all__ = ["StepFailed", "step"]

T = TypeVar("T")


class StepFailed(Failed):
    """What a step raises where its function did, at first and in each replay; the first time, that is its cause."""


@overload
def step(name: str, function: Callable[..., Awaitable[T]], /, *args: Any, **keywords: Any) -> Awaitable[T]: ...
@overload
def step(name: str, function: Callable[..., T], /, *args: Any, **keywords: Any) -> T: ...
def step(name: str, function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Any:
    """Call the function as a call of the attempt that is going on, and return what it returned, or had returned before.

    After a death the same step (name and arguments) comes back from the ledger. Arguments and result are JSON; give
    what is not by a closure. Inside, `request_id` is the step's own. Await it where the function is async. Raises
    StepFailed where the function raised or its result is not JSON, Refused and OutcomeUnknown as they are.
    """
    request = _request(name, function, args, keywords)
    calls = current_inner_calls()
    if is_async(function):
        return _step_async(calls, request, function, args, keywords)
    begun = calls.begin(request)
    if isinstance(begun, Replayed):
        return _result(_again(begun))
    token = current_dispatch.set(_as(begun))
    try:
        outcome, cause = outcome_of_value(function(*args, **keywords)), None
    except Exception as raised:  # noqa: BLE001 - it is what became of the step
        outcome, cause = outcome_of_exception(raised), raised
    except BaseException as raised:
        calls.end(begun, _broken_off(raised))
        raise
    finally:
        current_dispatch.reset(token)
    calls.end(begun, _kept(outcome))
    return _result(outcome, cause)


async def _step_async(
    calls: InnerCalls, request: InnerRequest, function: Callable[..., Any], args: Any, keywords: Mapping[str, Any]
) -> Any:
    begun = await calls.begin_async(request)
    if isinstance(begun, Replayed):
        return _result(_again(begun))
    token = current_dispatch.set(_as(begun))
    try:
        outcome, cause = outcome_of_value(await function(*args, **keywords)), None
    except Exception as raised:  # noqa: BLE001 - it is what became of the step
        outcome, cause = outcome_of_exception(raised), raised
    except BaseException as raised:
        await calls.end_async(begun, _broken_off(raised))
        raise
    finally:
        current_dispatch.reset(token)
    await calls.end_async(begun, _kept(outcome))
    return _result(outcome, cause)


def _request(name: object, function: object, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> InnerRequest:
    if not isinstance(name, str) or not callable(function):
        given = f"{type(name).__name__} and {type(function).__name__}"
        raise UsageError(f"a step takes its name and a function, not {given}", 'write step("charge", charge, argument)')
    try:
        payload = canonical_bytes({"args": as_json(list(args)), "keywords": as_json(dict(keywords))})
    except NotJson as fault:
        raise UsageError(
            f"the arguments of step {name} have no JSON form ({fault})",
            "pass what tells one step from another, and the rest by a closure or functools.partial",
        ) from fault
    return InnerRequest(canonical_text({"step": name}), payload, f"step {name}")


def _as(begun: InnerSend) -> Dispatching:
    return attrs.evolve(current_dispatch.get(), request_id=begun.request_id)


def _kept(outcome: Outcome) -> Outcome:
    """With the result as the bytes that a replay reads."""
    if outcome.answer is MISSING:
        return outcome
    answer: JsonValue = outcome.answer  # type: ignore[assignment]
    return attrs.evolve(outcome, raw=canonical_bytes(answer))


def _again(known: Replayed) -> Outcome:
    if known.state is DispatchState.ANSWERED:
        answer = MISSING if known.raw is None else _parsed(known.raw)
        return Outcome(DispatchState.ANSWERED, answer=answer)
    return Outcome(known.state, known.reason, known.message)


def _parsed(raw: bytes) -> JsonValue:
    value: JsonValue = json.loads(raw)
    return value


def _result(outcome: Outcome, cause: BaseException | None = None) -> Any:
    match outcome.state:
        case DispatchState.ANSWERED:
            return outcome.answer
        case DispatchState.REFUSED:
            raise Refused(outcome.message, retry_after_seconds=outcome.retry_after_seconds) from cause
        case DispatchState.UNKNOWN:
            raise OutcomeUnknown(outcome.message) from cause
    raise StepFailed(outcome.message, reason=outcome.reason or "step.failed") from cause


def _broken_off(raised: BaseException) -> Outcome:
    return Outcome(DispatchState.UNKNOWN, "step.broken_off", one_line(f"{type(raised).__name__}: {raised}"))
