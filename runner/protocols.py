"""What the executor and the adapters say to each other.

A target prepares a request without any I/O, the executor commits it, and only then the target dispatches it and says
what became of it. Everything here is plain data, so that an adapter needs no access to the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import attrs

from ..ledger.canonical import JsonValue
from ..ledger.states import DispatchState, IfUnknown
from .token_classes import TokenClass

if TYPE_CHECKING:
    from .inner_protocols import InnerCalls

__all__ = [
    "EVIDENCE_LEFT_OUT",
    "GIVEN",
    "MISSING",
    "USAGE_MAX",
    "Case",
    "Dispatching",
    "Exchange",
    "Judge",
    "Missing",
    "NoVerdict",
    "Observed",
    "Outcome",
    "Prepared",
    "QueryAnswer",
    "QueryState",
    "SlotView",
    "Target",
    "Turn",
    "Usage",
    "User",
    "Verdict",
    "WireProgress",
    "told_evidence",
    "told_flags",
]


class Missing:
    """The one value that says *there is none*, where ``None`` would be JSON null."""

    _only: Missing | None = None

    def __new__(cls) -> Missing:
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __repr__(self) -> str:
        return "MISSING"

    def __reduce__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        raise TypeError("MISSING has no truth value; ask `is MISSING`")


MISSING: Final = Missing()
GIVEN: Final = "given"
"""The kind, in a work order's document, of a target or a judge that was an object in Python."""


@attrs.frozen
class Case:
    """One input with what is expected of it. ``expected`` is MISSING where the case file has none."""

    id: str
    input: JsonValue
    expected: JsonValue | Missing = MISSING
    metadata: Mapping[str, JsonValue] = attrs.field(factory=dict)


@attrs.frozen
class Exchange:
    """One committed turn of a conversation: what was said to the target, and what it answered."""

    message: JsonValue
    answer: JsonValue


@attrs.frozen
class Turn:
    """Where in its conversation a request stands. ``number`` counts from 1; ``history`` holds committed turns alone.

    ``session`` is the id of the session on the target: another attempt has another, also where it goes on from a
    checkpoint of an earlier one.
    """

    session: str
    number: int
    message: JsonValue
    history: tuple[Exchange, ...] = ()


@attrs.frozen
class SlotView:
    """Which planned observation a request is for; ``repetition`` counts from 1.

    ``turn`` is set in a conversation only; a request outside of one is its case's only request.
    """

    run_id: str
    case: Case
    variant: str
    repetition: int
    turn: Turn | None = None


@attrs.frozen
class Prepared:
    """The request that will be sent, complete before its intent is committed.

    ``payload`` is the exact bytes (HTTP body, standard input, canonical JSON of a function's arguments). ``head`` is
    canonical-JSON-able and says the rest (method, address, header names, argv) without any secret; head and payload
    together are all that `Target.dispatch` needs to send the same again after a restart. With ``keep=False`` only the
    payload's digest is stored, and such a request can not be resent.
    """

    payload: bytes
    head: Mapping[str, JsonValue] = attrs.field(factory=dict)
    keep: bool = True


USAGE_MAX: Final = 10**15
"""The most that one dispatch can have used, a million dollars or 10**15 tokens: the sum of thousands fits 64 bits."""


@attrs.frozen
class Usage:
    """What an answer says that it used; ``None`` is unknown and never zero. ``raw`` is what the target reported.

    ``classes`` part the tokens into disjoint ones; a class that was not told is absent. ``besides`` names what was used
    and is no token (searches, say): its cost is in no price of tokens. ``seen`` is set where a stream broke off: what
    had been told until then, each a lower bound of what the fields above do not know.
    """

    tokens_in: int | None = None
    tokens_out: int | None = None
    cost_nanousd: int | None = None
    raw: JsonValue | Missing = MISSING
    problems: tuple[str, ...] = ()
    classes: Mapping[TokenClass, int] = attrs.field(factory=dict)
    besides: tuple[str, ...] = ()
    seen: Usage | None = None


@attrs.define
class WireProgress:
    """How far a dispatch has come, kept up to date by the target, so that an interrupted one can be told apart.

    ``bytes_sent`` is 0 while it is certain that nothing left, a count once something did or may have, and None where
    that cannot be known. ``partial`` is what came back so far, bounded by the target.
    """

    bytes_sent: int | None = 0
    partial: bytearray = attrs.field(factory=bytearray)
    wire_sends: int = 0


EVIDENCE_LEFT_OUT: Final = "evidence_left_out"
"""The flag of an answer some of whose evidence has no JSON form and was left out: the answer itself is paid for."""


def told_evidence(given: Mapping[str, JsonValue] | None) -> Mapping[str, JsonValue]:
    """Evidence as a mapping: a target's code may give something else, and no paid answer is lost for it."""
    odd: object = given
    if isinstance(odd, Mapping):
        return odd
    return {} if odd is None else {"evidence": odd}  # type: ignore[dict-item]  # whether it is JSON is asked later


def told_flags(given: Iterable[str] | None) -> tuple[str, ...]:
    """Flags as texts, for the same reason; a text is one flag, and not its letters."""
    odd: object = given
    if odd is None:
        return ()
    try:
        many = [odd] if isinstance(odd, str | bytes) or not isinstance(odd, Iterable) else list(odd)
        return tuple(one if isinstance(one, str) else str(one) for one in many)
    except Exception:  # noqa: BLE001 - whatever a target's own objects raise, its answer is paid for
        return (type(odd).__name__,)


@attrs.frozen
class Outcome:
    """What became of one dispatch.

    ``state`` is ANSWERED, REFUSED, FAILED or UNKNOWN. ``reason`` is a stable dotted token (``wire.reset``,
    ``deadline``, ``connect.refused``), ``message`` one line for people without secrets. ``answer`` is the value that
    judges see, MISSING where there is none; ``raw`` the bounded bytes that came back. ``status`` is an HTTP status or
    an exit status. ``retry_after_seconds`` is what the target asked for. ``flags`` are facts about a whole answer
    (``truncated``, ``filtered``). ``bytes_sent`` is as in `WireProgress`. ``checkpoint`` is the target's own opaque
    bytes from which its session can be restored as it stands after this turn. ``quarantine`` says, in one line, why
    nothing more may be sent to the device before an operator has looked at it.
    """

    state: DispatchState
    reason: str = ""
    message: str = ""
    answer: JsonValue | Missing = MISSING
    raw: bytes | None = None
    raw_cut: bool = False
    usage: Usage | None = None
    evidence: Mapping[str, JsonValue] = attrs.field(factory=dict, converter=told_evidence)
    flags: tuple[str, ...] = attrs.field(default=(), converter=told_flags)
    status: int | None = None
    retry_after_seconds: float | None = None
    bytes_sent: int | None = None
    wire_sends: int = 1
    checkpoint: bytes | None = None
    quarantine: str | None = None


@attrs.frozen
class Dispatching:
    """What a target is told about the dispatch that it makes.

    ``request_id`` is durable before the target is called and goes on the wire as ``Idempotency-Key``. The target must
    return within ``deadline_seconds`` (the executor cancels it soon after). ``late`` may be called from any thread
    when a whole answer arrives after the target had returned UNKNOWN; nothing happens when nobody listens any more.
    ``inner`` is set for a target that is guarded: then this is no dispatch by itself, has no ``request_id``, and what
    the target sends goes through there.
    """

    request_id: str
    attempt: int
    dispatch: int
    slot: SlotView
    deadline_seconds: float
    progress: WireProgress = attrs.field(factory=WireProgress)
    fence: int | None = None
    late: Callable[[Outcome], None] = lambda outcome: None
    inner: InnerCalls | None = None


@runtime_checkable
class User(Protocol):
    """What says the next message of a conversation, from what was answered: a simulated user."""

    kind: str

    def identity(self) -> Mapping[str, JsonValue]:
        """What its messages depend on: canonical JSON, no secret, no path of the machine."""

    def check(self) -> None:
        """Raise WorkOrderInvalid or TargetNotFound where it cannot be asked; asks nothing."""

    async def say(self, case: Case, history: Sequence[Exchange], *, deadline_seconds: float) -> JsonValue | Missing:
        """The next message, MISSING where the conversation is over; may raise anything, TimeoutError where it is slow.

        ``case`` comes without what is expected of it. The same history may be asked for again after a death.
        """


class QueryState:
    """The four answers to *what became of this request id?*"""

    LANDED: Final = "landed"  # it was done; the outcome is attached
    NEVER: Final = "never"  # it was not done and never will be: the target has tombstoned the id
    PENDING: Final = "pending"  # it is being done
    NO_PROOF: Final = "no_proof"  # the target does not know the id, or could not be asked


@attrs.frozen
class QueryAnswer:
    """One of `QueryState`, and the outcome where it landed."""

    state: str
    outcome: Outcome | None = None
    message: str = ""


@runtime_checkable
class Target(Protocol):
    """What answers. Made from a work order's table by its adapter's factory (entry point ``tallystick.targets``)."""

    kind: str
    if_unknown: IfUnknown
    key_valid_seconds: float | None  # how long an Idempotency-Key holds; None: for ever
    is_wire_visible: bool  # whether every paid send is one dispatch (False for a callable that may send on its own)

    def identity(self) -> Mapping[str, JsonValue]:
        """What an answer depends on: canonical JSON, no secret, no path of the machine."""

    def prepare(self, slot: SlotView) -> Prepared:
        """Build the request; no I/O. Raises a TallystickError or any exception that names the fault in the case."""

    def check(self) -> None:
        """Look that everything is there that the target names; makes no call and changes nothing.

        Raises TargetNotFound or SecretMissing. Asked before a run is created or taken over.
        """

    async def open(self) -> None:
        """Get ready to dispatch on the running loop; raises what `check` raises."""

    async def dispatch(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:
        """Send once and say what became of it; raises nothing but CancelledError."""

    async def query(self, request_id: str, prepared: Prepared) -> QueryAnswer:
        """Ask by request id (only called when ``if_unknown`` is QUERY)."""

    async def close(self) -> None:
        """Give everything back; idempotent."""


@attrs.frozen
class Observed:
    """What a judge sees of one committed observation."""

    case: Case
    variant: str
    repetition: int
    answer: JsonValue
    evidence: Mapping[str, JsonValue] = attrs.field(factory=dict)
    flags: tuple[str, ...] = ()


@attrs.frozen
class Verdict:
    """``passed`` or a ``score`` on the judge's declared scale, never both unset."""

    passed: bool | None = None
    score: float | None = None
    explanation: str = ""


@attrs.frozen
class NoVerdict:
    """Why there is no verdict: ``missing_expected``, ``missing_context``, ``judge_error``, ``malformed_verdict``, …"""

    reason: str
    explanation: str = ""


@runtime_checkable
class Judge(Protocol):
    """What gives a verdict on an observation, without a call of its own (judges that call come with evaluations)."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def scale(self) -> tuple[float, float] | None: ...  # None: pass or fail

    def identity(self) -> Mapping[str, JsonValue]:
        """What a verdict depends on: canonical JSON."""

    def judge(self, observed: Observed) -> Any:
        """A `Verdict` or a `NoVerdict`; may raise, which becomes ``judge_error``."""
