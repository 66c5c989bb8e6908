"""Usage as vendors report it, read into disjoint classes of tokens.

The shapes are those of OpenAI's chat completions and responses, of Anthropic's messages, and our own plain one. In
OpenAI's, details are parts of a total: ``cached_tokens`` are among ``prompt_tokens``, ``reasoning_tokens`` among
``completion_tokens``. In Anthropic's, ``input_tokens`` are what is left beside those that were read from a cache or
written to one. A total that is missing, is no count, or contradicts its parts is unknown, and why is said. A detail
that is absent or null is not told: its tokens stay in the class that has no name of its own, ``input`` or ``output``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, assert_never

import attrs

from ..ledger.canonical import JsonValue
from ..runner.protocols import MISSING, USAGE_MAX, Missing, Usage
from ..runner.token_classes import TokenClass
from .usage import count_of, shown, usage_of_counts

__all__ = ["UsageShape", "broken_off", "later_usage", "normalise", "usage_object", "usage_of_mapping"]

_PLAIN: Final = frozenset({"tokens_in", "tokens_out", "cost_usd"})
_CHAT: Final = frozenset({"prompt_tokens", "completion_tokens"})
_MESSAGES: Final = frozenset(
    {"cache_creation_input_tokens", "cache_read_input_tokens", "cache_creation", "server_tool_use"}
)
_RESPONSES: Final = frozenset({"input_tokens_details", "output_tokens_details", "total_tokens"})
_EITHER: Final = frozenset({"input_tokens", "output_tokens"})
_HOLDERS: Final = ("message", "response")  # an event that begins a message, one that ends a response


class UsageShape(StrEnum):
    """Whose form of usage it is."""

    AUTO = "auto"  # told by its keys
    OPENAI = "openai"  # chat completions
    OPENAI_RESPONSES = "openai_responses"  # responses
    ANTHROPIC = "anthropic"  # messages
    PLAIN = "plain"  # tokens_in, tokens_out, cost_usd


def normalise(raw: JsonValue | Missing, shape: UsageShape = UsageShape.AUTO) -> Usage | None:
    """The usage in disjoint classes; ``raw`` is the usage object itself. None where nothing was reported at all.

    Raises nothing: what is unfit becomes unknown, with a problem. Where the classes of a side add up to its total they
    are whole; else the side's total alone is known, or not even that.
    """
    if isinstance(raw, Missing):
        return None
    if not isinstance(raw, Mapping):
        return Usage(raw=raw, problems=(f"usage is {shown(raw)}, not a mapping",))
    match shape:
        case UsageShape.AUTO:
            found = _shapes_of(raw)
            return (
                normalise(raw, found[0]) if len(found) == 1 else Usage(raw=dict(raw), problems=(_untold(raw, found),))
            )
        case UsageShape.OPENAI:
            return _parts_of_totals(raw, "prompt_tokens", "completion_tokens")
        case UsageShape.OPENAI_RESPONSES:
            return _parts_of_totals(raw, "input_tokens", "output_tokens")
        case UsageShape.ANTHROPIC:
            return _messages(raw)
        case UsageShape.PLAIN:
            return _plain(raw)
    assert_never(shape)


def usage_object(document: JsonValue) -> JsonValue | Missing:
    """Where a body or an event of any of the shapes has its usage: at its top, in ``message`` or in ``response``.

    Null is as absent: an endpoint that streams says null in each event but the last.
    """
    if not isinstance(document, Mapping):
        return MISSING
    for holder in (document, *(document.get(name) for name in _HOLDERS)):
        found = holder.get("usage") if isinstance(holder, Mapping) else None
        if found is not None:
            return found
    return MISSING


def later_usage(earlier: JsonValue | Missing, later: JsonValue | Missing) -> JsonValue | Missing:
    """The usage object of a stream that tells it piece by piece: each count as it was told last.

    Counts of streams are of all that came so far, and are not to be added up (Anthropic: ``message_start`` has what
    went in, ``message_delta`` what came out).
    """
    if isinstance(later, Missing) or later is None:
        return earlier
    if not isinstance(earlier, Mapping) or not isinstance(later, Mapping):
        return later
    return {**earlier, **{key: value for key, value in later.items() if value is not None}}


def broken_off(usage: Usage | None) -> Usage | None:
    """The usage of a stream that stopped before its end: what went in is known, what came out is at least that."""
    if usage is None or usage.seen is not None:
        return usage
    seen = attrs.evolve(usage, raw=MISSING, problems=())
    inwards = {one: count for one, count in usage.classes.items() if not one.is_out}
    return attrs.evolve(usage, tokens_out=None, cost_nanousd=None, classes=inwards, seen=seen)


def usage_of_mapping(reported: Usage | Mapping[str, JsonValue] | None) -> Usage | None:
    """What a Python target reported, in any of the shapes; None where it reported nothing."""
    if reported is None:
        return None
    if isinstance(reported, Usage):
        return _read_again(reported)
    if not hasattr(reported, "items"):
        return Usage(problems=(f"usage is {shown(reported)}, not a mapping",))
    told = dict(reported)
    return _plain(told) if _PLAIN & told.keys() or not told else normalise(told)


def _read_again(reported: Usage) -> Usage:
    """A function can have put anything into its `Usage`."""
    counts = {"tokens_in": reported.tokens_in, "tokens_out": reported.tokens_out}
    read = usage_of_counts({**counts, "cost_nanousd": reported.cost_nanousd}, raw=reported.raw)
    return attrs.evolve(
        read, problems=(*reported.problems, *read.problems), classes=_classes_again(reported), seen=reported.seen,
        besides=tuple(map(str, reported.besides)),
    )  # fmt: skip


def _classes_again(reported: Usage) -> dict[TokenClass, int]:
    try:
        return {TokenClass(one): count_of(count) for one, count in reported.classes.items()}
    except (ValueError, AttributeError):
        return {}


def _shapes_of(raw: Mapping[str, JsonValue]) -> list[UsageShape]:
    """Every shape that it can be of. Where both fit, what has input_tokens alone is the same in either."""
    keys = raw.keys()
    has_either = bool(_EITHER & keys)
    is_messages, is_responses = bool(_MESSAGES & keys), has_either and bool(_RESPONSES & keys)
    marks = {
        UsageShape.PLAIN: bool(_PLAIN & keys),
        UsageShape.OPENAI: bool(_CHAT & keys),
        UsageShape.ANTHROPIC: is_messages or (has_either and not is_responses),
        UsageShape.OPENAI_RESPONSES: is_responses,
    }
    return [shape for shape, is_there in marks.items() if is_there]


def _untold(raw: Mapping[str, JsonValue], found: Sequence[UsageShape]) -> str:
    if found:
        return f"usage can be read as {' and as '.join(found)}; say its shape"
    return f"usage has no count that is known here, its keys are {shown(sorted(map(str, raw)))}"


def _plain(raw: Mapping[str, JsonValue]) -> Usage:
    read = usage_of_counts({name: raw.get(name, MISSING) for name in sorted(_PLAIN)}, raw=raw)
    sides = ((TokenClass.INPUT, read.tokens_in), (TokenClass.OUTPUT, read.tokens_out))
    return attrs.evolve(read, classes={one: count for one, count in sides if count is not None})


class _Side:
    """What went in, or what came out: its counts read one by one, with what was wrong.

    ``is_unfit``: something that tells how it is parted is there and cannot be read.
    """

    __slots__ = ("is_unfit", "problems", "raw")

    def __init__(self, raw: Mapping[str, JsonValue], problems: list[str]) -> None:
        self.raw = raw
        self.problems = problems
        self.is_unfit = False

    def total(self, key: str) -> int | None:
        """A count that has to be there."""
        value = self.raw.get(key)
        if value is None:
            self.add(f"{key} is {'null' if key in self.raw else 'missing'}")
            return None
        return self._count(key, value)

    def detail(self, key: str) -> int | None:
        """A count that need not be there."""
        value = self.raw.get(key)
        return None if value is None else self._detail(key, value)

    def details(self, holder: str, *keys: str) -> Sequence[int | None]:
        """Counts that need not be there, in a mapping that need not be there either."""
        held = self.raw.get(holder)
        if isinstance(held, dict | Mapping):
            return [None if (value := held.get(key)) is None else self._detail(f"{holder}.{key}", value)
                    for key in keys]  # fmt: skip
        if held is not None:
            self.add(f"{holder} is {shown(held)}, not a mapping")
            self.is_unfit = True
        return (None,) * len(keys)

    def _detail(self, name: str, value: JsonValue) -> int | None:
        count = self._count(name, value)
        self.is_unfit |= count is None
        return count

    def _count(self, name: str, value: JsonValue) -> int | None:
        if type(value) is int and 0 <= value <= USAGE_MAX:
            return value  # as nearly all are: each answer is read here
        try:
            return count_of(value)
        except ValueError as fault:
            self.add(f"{name} is {shown(value)}: {fault}")
            return None

    def add(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


@attrs.frozen
class _Parted:
    """A side's total, and its classes as far as they are whole."""

    total: int | None = None
    classes: Mapping[TokenClass, int] = attrs.field(factory=dict)


def _parts_of_totals(raw: Mapping[str, JsonValue], key_in: str, key_out: str) -> Usage:
    problems: list[str] = []
    inwards, outwards = _Side(raw, problems), _Side(raw, problems)
    total_in, total_out = inwards.total(key_in), outwards.total(key_out)
    in_details, out_details = f"{key_in}_details", f"{key_out}_details"
    cached, spoken, written = inwards.details(in_details, "cached_tokens", "audio_tokens", "cache_write_tokens")
    if cached is None:
        cached = inwards.detail("prompt_cache_hit_tokens")  # DeepSeek
    reasoning, sound = outwards.details(out_details, "reasoning_tokens", "audio_tokens")
    told = _Side(raw, problems).detail("total_tokens")
    if total_in is not None and total_out is not None and told is not None and told != total_in + total_out:
        if reasoning and told == total_in + total_out + reasoning:
            total_out += reasoning  # xAI: reasoning is counted beside what came out
        else:
            inwards.add(f"total_tokens is {told}, and {key_in} and {key_out} are {total_in} and {total_out}")
            total_in = total_out = None
    if cached and spoken:
        inwards.add(f"{in_details}: how much of the audio was cached is not told")
        inwards.is_unfit = True
    parts_in = {
        TokenClass.CACHE_READ: cached, TokenClass.AUDIO_INPUT: spoken, TokenClass.CACHE_WRITE: written,
    }  # fmt: skip
    parts_out = {TokenClass.REASONING: reasoning, TokenClass.AUDIO_OUTPUT: sound}
    return _usage(
        raw, problems, _rest(inwards, key_in, total_in, parts_in, TokenClass.INPUT),
        _rest(outwards, key_out, total_out, parts_out, TokenClass.OUTPUT),
    )  # fmt: skip


def _rest(
    side: _Side, key: str, total: int | None, parts: Mapping[TokenClass, int | None], rest: TokenClass
) -> _Parted:
    """What the parts leave of the total; a total that is less than its parts is not believed."""
    told = {one: count for one, count in parts.items() if count is not None}
    if total is None:
        return _Parted()
    for one, count in told.items():
        if count > total:
            side.add(f"{key} is {total}, and {count} of them are {one.value}")
            return _Parted()
    if side.is_unfit:
        return _Parted(total)
    left = total - sum(told.values())
    if left < 0:
        side.add(f"{key} is {total}, and its parts are {sum(told.values())}")
        return _Parted()
    return _Parted(total, {rest: left, **told})


def _messages(raw: Mapping[str, JsonValue]) -> Usage:
    problems: list[str] = []
    inwards, outwards = _Side(raw, problems), _Side(raw, problems)
    uncached, total_out = inwards.total("input_tokens"), outwards.total("output_tokens")
    read, written = inwards.detail("cache_read_input_tokens"), inwards.detail("cache_creation_input_tokens")
    classes: dict[TokenClass, int | None] = {TokenClass.INPUT: uncached, TokenClass.CACHE_READ: read}
    total_in = None
    if uncached is not None and not inwards.is_unfit:
        total_in = uncached + (read or 0) + (written or 0)
        if total_in > USAGE_MAX:
            inwards.add("what went in is beyond what can be counted")
            total_in = None
    classes |= _written(inwards, written)
    told = {one: count for one, count in classes.items() if count is not None}
    is_whole = total_in is not None and not inwards.is_unfit
    reasoning = outwards.details("output_tokens_details", "thinking_tokens")[0]
    out = _rest(outwards, "output_tokens", total_out, {TokenClass.REASONING: reasoning}, TokenClass.OUTPUT)
    usage = _usage(raw, problems, _Parted(total_in, told if is_whole else {}), out)
    return attrs.evolve(usage, besides=_tools(raw.get("server_tool_use")))


def _written(side: _Side, written: int | None) -> dict[TokenClass, int | None]:
    """What was written to a cache, by how long it lasts."""
    short, long = side.details("cache_creation", "ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
    if short is None and long is None:
        return {TokenClass.CACHE_WRITE: written}
    if (short or 0) + (long or 0) != (written or 0):
        side.add(f"cache_creation_input_tokens is {written}, and cache_creation says {short} and {long}")
        side.is_unfit = True
    return {TokenClass.CACHE_WRITE: short, TokenClass.CACHE_WRITE_LONG: long}


def _tools(told: JsonValue) -> tuple[str, ...]:
    """Tools of the vendor that were used, each at a price of its own."""
    if not isinstance(told, Mapping):
        return () if told is None else ("server_tool_use",)
    return tuple(sorted(f"server_tool_use.{name}" for name, count in told.items() if count not in (0, None)))


def _usage(raw: Mapping[str, JsonValue], problems: Sequence[str], inwards: _Parted, outwards: _Parted) -> Usage:
    return Usage(
        tokens_in=inwards.total, tokens_out=outwards.total, raw=dict(raw), problems=tuple(problems),
        classes={**inwards.classes, **outwards.classes},
    )  # fmt: skip
