"""Tokens in disjoint classes, as vendors price them: each token of a dispatch is in one class and no other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

__all__ = ["TOKENS_IN", "TOKENS_OUT", "TokenClass", "known_classes"]


class TokenClass(StrEnum):
    INPUT = "input"  # went in, and was neither read from a cache nor written to one, nor audio
    CACHE_READ = "cache_read"  # went in, and the endpoint had it in its cache
    CACHE_WRITE = "cache_write"  # went in, and was written to a cache that lasts minutes
    CACHE_WRITE_LONG = "cache_write_long"  # went in, and was written to a cache that lasts an hour
    AUDIO_INPUT = "audio_input"  # went in as sound
    OUTPUT = "output"  # came out, and is neither reasoning nor audio
    REASONING = "reasoning"  # came out of the model, and is not part of what it says
    AUDIO_OUTPUT = "audio_output"  # came out as sound

    @property
    def is_out(self) -> bool:
        return self in TOKENS_OUT


TOKENS_IN: Final = (
    TokenClass.INPUT,
    TokenClass.CACHE_READ,
    TokenClass.CACHE_WRITE,
    TokenClass.CACHE_WRITE_LONG,
    TokenClass.AUDIO_INPUT,
)
TOKENS_OUT: Final = (TokenClass.OUTPUT, TokenClass.REASONING, TokenClass.AUDIO_OUTPUT)


def known_classes(classes: Mapping[TokenClass, int], side: Iterable[TokenClass], total: int | None) -> bool:
    """Whether the classes of one side (`TOKENS_IN` or `TOKENS_OUT`) are all of its tokens."""
    return total is not None and sum(classes.get(one, 0) for one in side) == total
