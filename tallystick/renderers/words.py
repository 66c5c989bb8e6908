"""Plain words for what the ledger keeps as tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..ledger.settlements import Decision
from ..ledger.states import IfUnknown
from ..runner.evaluation_models import AgreementLine
from ..runner.report_models import BudgetLine, FlagLine, Population, PricesLine

__all__ = [
    "IF_UNKNOWN",
    "agreement_cells",
    "amount_words",
    "budget_name",
    "command_words",
    "decision_word",
    "duration",
    "flag_words",
    "in_words",
    "interval_words",
    "joined",
    "money_or_count",
    "people_line",
    "plural",
    "price_words",
    "rate_words",
    "seconds_words",
    "silent_words",
    "state_word",
]

IF_UNKNOWN: Final = {
    IfUnknown.KEEP: "a lost answer stays unknown until you settle it; the call is never sent again by itself",
    IfUnknown.RESEND: "a lost answer is asked for by sending the same bytes again under the same request id",
    IfUnknown.QUERY: "a lost answer is asked for by its request id; sent again only when proven not to have landed",
    IfUnknown.REPEAT: "after a lost answer the case is asked anew, which may cost again",
    IfUnknown.RESTART: "after a lost answer the whole session is started again, which may cost again",
}


def in_words(if_unknown: str) -> str:
    """What follows an unknown outcome by itself."""
    return IF_UNKNOWN[IfUnknown(if_unknown)]


def command_words(command: str) -> str:
    """The command that helps, or what helps where a run's targets were given from Python."""
    return f"`{command}`" if command else "run the Python program again that began it"


def decision_word(decision: str) -> str:
    """What an outcome was settled as."""
    return "given up" if decision == Decision.GIVE_UP else decision.replace("_", " ")


def flag_words(lines: Iterable[FlagLine]) -> str:
    """Each flag with how many answers have it: ``8 truncated (small 4, large 4)``, the most frequent first."""
    by_flag: dict[str, list[FlagLine]] = {}
    for line in lines:
        by_flag.setdefault(line.flag, []).append(line)
    told = []
    for flag, found in sorted(by_flag.items(), key=lambda item: -sum(line.count for line in item[1])):
        parts = ", ".join(f"{line.variant} {line.count}" for line in found)
        told.append(f"{sum(line.count for line in found)} {flag} ({parts})")
    return joined(told)


def plural(count: int, word: str, words: str = "") -> str:
    """``1 case``, ``2 cases``."""
    return f"{count} {word if count == 1 else words or word + 's'}"


def silent_words(line: BudgetLine) -> str:
    """That sends did not say what they used of a budget."""
    who, count = plural(line.unknown_uses, "dispatch", "dispatches"), line.unknown_uses
    them, each = ("it", "it") if count == 1 else ("they", "each")
    return f"{who} did not say how much {budget_name(line)} {them} used; {each} counts at its declared bound"


def price_words(one: PricesLine) -> str:
    """Which prices: their day, their file, and the beginning of the digest of what is in it."""
    place = one.file or "in the work order"
    return f"of {one.as_of or 'no stated day'}, {place} ({one.digest[:19]}…)"


def people_line(people: Population) -> str:
    """The whole population in one line; states that nobody is in are left out, except the selected."""
    others = [
        ("failed", people.failed), ("unknown", people.unknown), ("unavailable", people.unavailable),
        ("cancelled", people.cancelled), ("parked", people.parked), ("in flight", people.in_flight),
        ("pending", people.pending),
    ]  # fmt: skip
    shown = [f"{people.selected} selected", *(f"{count} {word}" for word, count in others if count)]
    return f"{people.planned} planned = {' + '.join(shown)}"


def budget_name(line: BudgetLine) -> str:
    """``dispatches``, or with what it is for: ``usd of variant old``."""
    return line.unit if line.scope == "run" else f"{line.unit} of {line.scope} {line.name}"


def money_or_count(unit: str, amount: object) -> str:
    """An amount with its unit where that is not in the name already."""
    return f"${amount}" if unit == "usd" else f"{amount} s" if unit == "seconds" else str(amount)


def amount_words(unit: str, amount: object) -> str:
    """An amount that stands alone: ``1 dispatch``, ``$0.01``, ``3 s``, ``12 tokens``."""
    if unit == "dispatches":
        return plural(int(str(amount)), "dispatch", "dispatches")
    shown = money_or_count(unit, amount)
    return f"{shown} {unit.replace('_', ' ')}" if unit.startswith("tokens") else shown


def duration(seconds: float) -> str:
    """``8 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def joined(parts: Iterable[str]) -> str:
    """The parts that are there, with dots between."""
    return " · ".join(part for part in parts if part)


def rate_words(rate: float | None) -> str:
    """``83.3%``; nothing where there is none."""
    return "" if rate is None else f"{rate:.1%}"


def interval_words(low: float | None, high: float | None, *, rate: bool = False) -> str:
    """``70.1% – 91.2%`` of a rate, ``3.1 – 3.9`` of a mean; nothing where there is none."""
    if low is None or high is None:
        return ""
    return f"{low:.1%} – {high:.1%}" if rate else f"{low:.4g} – {high:.4g}"


def seconds_words(seconds: float | None) -> str:
    """``850 µs``, ``12.3 ms``, ``1.25 s``, and beyond a minute as `duration`."""
    if seconds is None:
        return ""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 60 else duration(seconds)


def agreement_cells(line: AgreementLine) -> list[str]:
    """Two judges, how often they agree of how often both said something, and Cohen's kappa with its interval."""
    kappa = "" if line.kappa is None else f"{line.kappa:.3g}"
    around = interval_words(line.kappa_low, line.kappa_high)
    return [" and ".join(line.judges), f"{line.agreed} of {line.count}", rate_words(line.rate), kappa, around]


def state_word(token: str) -> str:
    """A token for people: ``in flight``, ``no verdict``."""
    return token.replace("_", " ")
