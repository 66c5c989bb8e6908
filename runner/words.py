"""What to say about a word that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(word: str, known: Iterable[str]) -> str:
    """A remedy for an unknown word: the nearest known one, or all of them."""
    words = sorted(known)
    found = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f'Did you mean "{found[0]}"?' if found else f"Known here: {', '.join(words)}."
