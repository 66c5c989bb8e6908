"""Plain words for what the ledger keeps as tokens; the same as in every other form of a report."""

from __future__ import annotations

from ..renderers.words import (
    IF_UNKNOWN,
    amount_words,
    budget_name,
    command_words,
    decision_word,
    duration,
    flag_words,
    in_words,
    joined,
    money_or_count,
    people_line,
    plural,
    price_words,
    silent_words,
)

__all__ = [
    "IF_UNKNOWN",
    "amount_words",
    "budget_name",
    "command_words",
    "decision_word",
    "duration",
    "flag_words",
    "in_words",
    "joined",
    "money_or_count",
    "people_line",
    "plural",
    "price_words",
    "silent_words",
]
