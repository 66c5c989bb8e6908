"""What became of a call of a Python function, told from what it returned or raised."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from collections.abc import Mapping
from typing import Final

from ..ledger.canonical import JsonValue
from ..ledger.states import DispatchState
from ..runner.protocols import EVIDENCE_LEFT_OUT, MISSING, Outcome
from .answers import Answer, Failed, OutcomeUnknown, Refused
from .outcomes import NotJson, as_json, one_line
from .secrets import environment_redactor
from .usage_shapes import usage_of_mapping

__all__ = ["outcome_of_exception", "outcome_of_value"]

_WAIT_MAX: Final = 366 * 24 * 3600.0  # as over HTTP

# A time-out or a broken connection means that something may have been sent, and that its outcome is not known. What
# could not be connected is not in here: it did not send, and whether the function had sent before is its own to say.
_BROKEN_OFF: Final = (
    TimeoutError,
    ConnectionResetError,
    ConnectionAbortedError,
    BrokenPipeError,
    asyncio.IncompleteReadError,
)
_BROKEN_OFF_NAMES: Final = frozenset(
    {
        *(
            "httpx.ReadTimeout",
            "httpx.WriteTimeout",
            "httpx.ReadError",
            "httpx.WriteError",
            "httpx.RemoteProtocolError",
        ),
        *("httpcore.ReadTimeout", "httpcore.WriteTimeout", "httpcore.ReadError", "httpcore.RemoteProtocolError"),
        *("requests.ReadTimeout", "requests.ChunkedEncodingError", "http.IncompleteRead"),
        *("urllib3.ReadTimeoutError", "urllib3.ProtocolError", "urllib3.IncompleteRead"),
        *("aiohttp.ServerDisconnectedError", "aiohttp.ClientPayloadError"),
        *("openai.APITimeoutError", "anthropic.APITimeoutError"),
    }
)


def outcome_of_value(value: object) -> Outcome:
    """Answered, or failed where the value has no JSON form."""
    try:
        if not isinstance(value, Answer):
            return Outcome(state=DispatchState.ANSWERED, answer=as_json(value))
        evidence, is_whole = _evidence_of(value)
        return Outcome(
            state=DispatchState.ANSWERED,
            answer=as_json(value.value),
            usage=usage_of_mapping(value.usage),
            evidence=evidence,
            flags=tuple(value.flags) if is_whole else (*value.flags, EVIDENCE_LEFT_OUT),
        )
    except NotJson as fault:
        if inspect.iscoroutine(value):
            value.close()  # never awaited on purpose; said once, here
        told = one_line(f"the function returned a {type(value).__name__}, which has no JSON form ({fault})")
        return Outcome(state=DispatchState.FAILED, reason="answer.not_json", message=told)


def _evidence_of(answer: Answer) -> tuple[Mapping[str, JsonValue], bool]:
    """What of it has a JSON form, and whether all has: no paid answer is lost for the rest."""
    more = (("context", answer.context), ("tool_calls", answer.tool_calls))
    given: list[tuple[object, object]] = [*answer.evidence.items(), *(one for one in more if one[1] is not MISSING)]
    found: dict[str, JsonValue] = {}
    for name, value in given:
        with contextlib.suppress(NotJson):
            if isinstance(name, str):
                found[name] = as_json(value)
    return found, len(found) == len(dict(given))


def outcome_of_exception(raised: BaseException) -> Outcome:
    """What the exception says; secrets of the environment are taken out of its message."""
    match raised:
        case Refused():
            told = _told(_text_of(raised) or "the target says that nothing was done")
            wait = _wait_of(raised)
            return Outcome(state=DispatchState.REFUSED, reason="target.refused", message=told, retry_after_seconds=wait)
        case Failed():
            told = _told(_text_of(raised) or raised.reason)
            usage = usage_of_mapping(raised.usage)
            return Outcome(state=DispatchState.FAILED, reason=raised.reason, message=told, usage=usage)
        case OutcomeUnknown():
            told = _told(_text_of(raised) or "the target does not know what became of it")
            return Outcome(state=DispatchState.UNKNOWN, reason="target.unknown", message=told)
    text = _text_of(raised)
    told = _told(f"{type(raised).__name__}: {text}" if text else type(raised).__name__)
    if _has_broken_off(raised):
        return Outcome(state=DispatchState.UNKNOWN, reason="python.broken_off", message=told)
    return Outcome(state=DispatchState.FAILED, reason="python.exception", message=told)


def _text_of(raised: BaseException) -> str:
    try:
        return str(raised)
    except Exception:  # noqa: BLE001 - an exception's text is the target's code, and must not hide what became of it
        return ""


def _wait_of(raised: Refused) -> float | None:
    wait: object = raised.retry_after_seconds
    is_number = isinstance(wait, int | float) and not isinstance(wait, bool) and math.isfinite(wait)
    return min(max(0.0, float(wait)), _WAIT_MAX) if is_number else None  # type: ignore[arg-type]


def _has_broken_off(raised: BaseException) -> bool:
    if isinstance(raised, _BROKEN_OFF):
        return True
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(raised).__mro__}
    return not names.isdisjoint(_BROKEN_OFF_NAMES)


def _told(text: str) -> str:
    return one_line(environment_redactor().text(text))
