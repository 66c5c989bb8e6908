"""What somebody has changed of a run, in a few words: every key that differs would fill a screen for a grid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ..ledger.errors import IdentityChanged
from .identity import Difference, Section, dotted

__all__ = ["CHANGES_SHOWN", "changes_of", "refuse_changes", "some_changes"]

CHANGES_SHOWN: Final = 3
_NAMES_SHOWN: Final = 3
_ABSENT: Final = "(absent)"
# Every variant of an identity document has this key, so a variant without it is not there.
_ALWAYS: Final = "if_unknown"
# What a digest is of, where its key does not tell a newcomer.
_MEANINGS: Final[dict[tuple[str, ...], str]] = {
    ("module_digest",): " (the file with its function was changed)",
    ("code_digest",): " (the code of its function was changed)",
}
_REMEDY: Final = (
    "change it back, or make a new run: `ts.fork` reuses what has not changed, another name or new=True pays for all"
)


def changes_of(differences: Iterable[Difference]) -> tuple[str, ...]:
    """One text for each thing of the identity that was changed, in the order of the document.

    What is the same change in several variants is one, and so are all variants that were added, or taken out.
    """
    found = [one for one in differences if one.section is Section.IDENTITY]
    texts = {"cases": _cases([one for one in found if one.keys[0] == "cases"])}
    gone, new = _variants(found, "now"), _variants(found, "then")
    alike: dict[tuple[tuple[str, ...], str, str], list[str]] = {}
    for one in found:
        match one.keys:
            case ("variants", name, *rest) if name not in (*gone, *new):
                alike.setdefault((tuple(rest), one.then, one.now), []).append(name)
            case ("cases", *_) | ("variants", *_):
                pass
            case _:
                texts[one.key] = str(one)
    told = [text for text in texts.values() if text]
    told += [_named(names, word) for names, word in ((gone, "not there any more"), (new, "new")) if names]
    for (way, then, now), names in alike.items():
        is_one = len(names) == 1
        of = "" if is_one else f" of {_some(names)}"
        where = dotted(("variants", names[0], *way) if is_one else way)
        told.append(f"{where}{of}: {then} -> {now}{_MEANINGS.get(way[-1:], '')}")
    return tuple(told)


def some_changes(changes: Sequence[str]) -> str:
    """The first of them in one line, and how many more there are."""
    more = f"; and {len(changes) - CHANGES_SHOWN} more" if changes[CHANGES_SHOWN:] else ""
    return "; ".join(changes[:CHANGES_SHOWN]) + more


def refuse_changes(run_id: str, differences: Iterable[Difference], *, remedy: str = _REMEDY) -> None:
    """Raise IdentityChanged when one of the differences is of the identity section."""
    found = [one for one in differences if one.section is Section.IDENTITY]
    if found:
        what = f"run {run_id} is not what it was: {some_changes(changes_of(found))}"
        raise IdentityChanged(what, remedy, run_id=run_id, differences=tuple(map(str, found)))


def _cases(differences: Sequence[Difference]) -> str:
    """The cases by their number where that changed; their digest tells nobody anything."""
    for one in differences:
        if one.keys == ("cases", "count"):
            return f"cases: {one.then} -> {one.now}"
    return "cases: others, or in another order" if differences else ""


def _variants(differences: Sequence[Difference], side: str) -> list[str]:
    """The variants that are absent on that side."""
    return [
        one.keys[1]
        for one in differences
        if one.keys[0] == "variants" and one.keys[2:] == (_ALWAYS,) and getattr(one, side) == _ABSENT
    ]


def _named(names: Sequence[str], word: str) -> str:
    return f"variant {dotted(names)} is {word}" if len(names) == 1 else f"{_some(names)} are {word}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if names[_NAMES_SHOWN:] else ""
    return f"{len(names)} variants ({', '.join(dotted((name,)) for name in names[:_NAMES_SHOWN])}{more})"
