"""What the runner and judges say to each other beyond `protocols.Judge`: needs, and judges that call.

A judge that calls prepares its request without any I/O, the runner commits it, and only then the judge dispatches it.
What it answered is first brought into one text, which is kept, and the verdict is read from that text alone: so it can
be read again, by a later parser, without a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from ..ledger.canonical import JsonValue
from ..ledger.states import IfUnknown
from ..ledger.verdicts import NoVerdictReason
from .protocols import Dispatching, Missing, NoVerdict, Observed, Outcome, Prepared, Verdict

__all__ = [
    "NEEDS",
    "NEEDS_MEANING",
    "CallingJudge",
    "gives_pass",
    "is_calling",
    "is_known_need",
    "lacking",
    "needs_of",
]

NEEDS: Final = ("expected", "context", "retrieval", "tool_calls")
"""What a judge can need by name; ``evidence.NAME`` is any other evidence of that name."""

NEEDS_MEANING: Final = (
    "What must be there for a verdict: `expected`, `context`, `retrieval`, `tool_calls`, or `evidence.NAME`."
)
_EVIDENCE: Final = "evidence."
_RETRIEVED: Final = ("context", "retrieval")


@runtime_checkable
class CallingJudge(Protocol):
    """A judge whose verdict costs a call. Made by its adapter's factory (entry point ``tallystick.judges``).

    Serves one event loop at a time, between `open` and `close`. ``parser`` is the name and version of what reads its
    replies (``json_verdict/1``), and part of its identity. ``wire_sends_max`` is how many wire requests one dispatch
    may be. A judge that gives scores alone may say so by ``gives_pass = False``: what wants passes of it is then
    refused before it is asked.
    """

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def scale(self) -> tuple[float, float] | None: ...
    @property
    def needs(self) -> Sequence[str]: ...
    @property
    def parser(self) -> str: ...
    @property
    def if_unknown(self) -> IfUnknown: ...
    @property
    def wire_sends_max(self) -> int: ...
    @property
    def reasks(self) -> int: ...  # how many further calls a reply that is no verdict gets

    def identity(self) -> Mapping[str, JsonValue]:
        """What a verdict depends on: canonical JSON, no secret, no path of the machine."""

    def check(self) -> None:
        """Look that everything is there that the judge names; makes no call. Raises TargetNotFound or SecretMissing."""

    async def open(self) -> None:
        """Get ready to dispatch on the running loop; raises what `check` raises."""

    def prepare(self, observed: Observed) -> Prepared:
        """Build the request; no I/O. May raise, which becomes ``judge_error``."""

    async def dispatch(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:
        """Send once, never again by itself, and say what became of it; raises nothing but CancelledError."""

    def reply_of(self, outcome: Outcome) -> str | NoVerdict:
        """The text that holds the verdict, from an answered outcome; or why there is none (refused, filtered)."""

    def failed(self, outcome: Outcome) -> NoVerdict:
        """Why a failed outcome gives no verdict: ``judge_error``, or what its error says (``filtered``)."""

    def read(self, reply: str) -> Verdict | NoVerdict:
        """The verdict in the text: pure, and the same each time."""

    async def close(self) -> None:
        """Give everything back; idempotent."""


def is_calling(judge: object) -> bool:
    """Whether the judge's verdicts cost calls that the ledger records."""
    return callable(getattr(judge, "dispatch", None))


def gives_pass(judge: object) -> bool:
    """Whether a verdict of the judge can be pass or fail; a judge that only gives scores says so (``gives_pass``)."""
    return bool(getattr(judge, "gives_pass", True))


def is_known_need(need: str) -> bool:
    """Whether a judge can need that."""
    return need in NEEDS or (need.startswith(_EVIDENCE) and len(need) > len(_EVIDENCE))


def needs_of(judge: object) -> tuple[str, ...]:
    """What the judge says that it needs; a judge that does not say needs nothing."""
    return tuple(getattr(judge, "needs", ()))


def lacking(needs: Sequence[str], observed: Observed) -> NoVerdict | None:
    """Why the observation cannot be judged for want of what the judge needs; None: everything is there."""
    for need in needs:
        if need == "expected":
            if isinstance(observed.case.expected, Missing):
                return NoVerdict(NoVerdictReason.MISSING_EXPECTED, "the case says nothing of what is expected")
            continue
        name = need.removeprefix(_EVIDENCE)
        if observed.evidence.get(name) is None and not (name in observed.evidence and name in _RETRIEVED):
            is_context = need == "context"
            reason = NoVerdictReason.MISSING_CONTEXT if is_context else NoVerdictReason.MISSING_EVIDENCE
            return NoVerdict(reason, f"the observation has no {name}")
        if need in _RETRIEVED and _is_empty(observed.evidence[name]):
            return NoVerdict(NoVerdictReason.EMPTY_RETRIEVAL, "nothing was retrieved")
    return None


def _is_empty(value: JsonValue) -> bool:
    """Nothing, or a list of nothings; 0 and false are something."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, list | tuple):
        return all(_is_empty(one) for one in value)
    return value is None or value == {}
