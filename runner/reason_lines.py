"""Why there is no observation: the reason, what was told, and what helps in general."""

from __future__ import annotations

from typing import Final

from .hints import with_ledger
from .report_models import ReasonLine

__all__ = ["REMEDIES", "reason_line", "remedy_of"]

_EXAMPLE_MAX: Final = 300

_CODE: Final = "correct the target's code; that makes another run, and a fork of this one reuses what was answered"

REMEDIES: Final = {
    "adapter.error": "what it says is a fault of tallystick or of a library that it uses: report it",
    "answer": "show a case to see what came, and correct the target's `answer`",
    "answer.too_large": "raise the target's `body_bytes_max`",
    "body.error": "the service answers with an error: see what it says",
    "budget": "raise the limit, or settle what is unknown and holds some of it",
    "chat.content_filter": "see the case; `accept` of the target takes filtered replies as answers with a flag",
    "chat.length": "raise the target's `max_tokens`, or let its `accept` take replies that were cut",
    "chat.refusal": "see the case; `accept` of the target takes refusals as answers with a flag",
    "connect": "see whether the service and the network are up",
    "connect.dns": "the host's name is not known: correct it, or see whether the network is up",
    "connect.proxy": "see what the proxy says, and whether it is the right one",
    "connect.refused": "nothing listens at the target's address: start the service, or correct host and port",
    "connect.timeout": "the target's address does not answer: see whether it is the right one, and the network up",
    "connect.tls": "see the certificate, and whether `url` begins with http or https as the service does",
    "deadline": "raise `deadline_seconds`, or lower `concurrency` where the service is slow under load",
    "device": "look at the device: `tallystick device list`",
    "http.redirect": "name the address that it redirects to as `url`",
    "http.status": "see what the service says, and correct the request",
    "http.status.401": "the service does not take the key: see the environment variable that is named for it",
    "http.status.402": "the account has no credit left: fund it",
    "http.status.403": "the key may not do this: see its rights, and whether it is for this model and project",
    "http.status.404": "nothing is there: see the path in `url`, and the model's name",
    "http.status.413": "the request is too large for the service: shorten the case or the template",
    "http.status.429": "the service wants fewer requests: lower `concurrency`, or set `rate_per_second`",
    "kills_the_runner": "see why its case ends the process that runs it",
    "output.too_large": "raise the target's `output_bytes_max`",
    "process.exit": "run the program by hand with the case, and correct it",
    "process.not_started": "see the target's `command`: the program is not there, or cannot be executed",
    "process.signal": "run the program by hand with the case, and see why it dies",
    "python.exception": _CODE,
    "python.threads": "raise `deadline_seconds`, or let the function end by itself when its time is over",
    "replay.diverged": _CODE,
    "request.invalid": "correct the case, or the target's templates",
    "request.not_prepared": "correct the case, or the target's templates",
    "target.failed": _CODE,
    "target.raised": _CODE,
    "wire": "the service breaks connections off: see its own log",
}
"""By a reason or its first parts."""

_SERVER_FAULT: Final = "the service failed by itself: see its own log, and try again later"


def reason_line(state: str, reason: str, count: int, example: str, *, ledger_option: str = "") -> ReasonLine:
    """The line of one reason; ``example`` is what the newest attempt of one of them was told.

    ``ledger_option`` is what a command has to say so that it means the same ledger.
    """
    cut = example if len(example) <= _EXAMPLE_MAX else f"{example[: _EXAMPLE_MAX - 1]}…"
    remedy = with_ledger(remedy_of(reason), ledger_option)
    return ReasonLine(state=state, reason=reason, count=count, example=cut, remedy=remedy)


def remedy_of(reason: str) -> str:
    """What helps, in a few words; empty where nothing general does."""
    parts = reason.split(".")
    if parts[:2] == ["http", "status"] and len(parts) == 3 and parts[2].startswith("5"):
        return _SERVER_FAULT
    for count in range(len(parts), 0, -1):
        if (found := REMEDIES.get(".".join(parts[:count]))) is not None:
            return found
    return ""
