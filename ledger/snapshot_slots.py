"""Which planned observations are meant by ``KEY=VALUE``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from .canonical import canonical_text
from .errors import UsageError
from .ledger import Reader
from .states import SlotState

__all__ = ["chosen_slots"]

_SLOTS: Final = (
    "SELECT s.slot_no, s.case_no, s.state, s.reason, s.repetition, v.name, c.case_id, c.metadata FROM slots s"
    " JOIN variants v ON v.run_key = s.run_key AND v.variant_no = s.variant_no"
    " JOIN cases c ON c.run_key = s.run_key AND c.case_no = s.case_no WHERE s.run_key = ? ORDER BY s.slot_no"
)
_KEYS: Final = ("state", "reason", "repetition", "variant", "case")


def chosen_slots(reader: Reader, run_key: int, terms: Sequence[str]) -> tuple[frozenset[int], frozenset[int]]:
    """The numbers of the slots that fit, and of their cases.

    A term is ``KEY=VALUE`` with one of state, reason, variant, repetition, case or ``metadata.NAME``. Terms of one key
    are alternatives, all keys must fit. Raises UsageError for another key, and for a state that there is not.
    """
    wanted: dict[str, set[str]] = {}
    for term in terms:
        key, found, value = term.partition("=")
        if not found or (key not in _KEYS and not key.startswith("metadata.")):
            raise UsageError(f"{term} chooses nothing", f"name KEY=VALUE with {', '.join(_KEYS)} or metadata.NAME")
        if key == "state" and value not in tuple(SlotState):
            raise UsageError(f"{term} chooses nothing: there is no such state", f"name one of {', '.join(SlotState)}")
        wanted.setdefault(key, set()).add(value)
    slots, cases = set(), set()
    for slot_no, case_no, state, reason, repetition, variant, case_id, metadata in reader.each(_SLOTS, (run_key,)):
        facts = {"state": state, "reason": reason or "", "repetition": str(repetition), "variant": variant,
                 "case": case_id}  # fmt: skip
        if all(_fits(key, values, facts, metadata) for key, values in wanted.items()):
            slots.add(slot_no)
            cases.add(case_no)
    return frozenset(slots), frozenset(cases)


def _fits(key: str, values: set[str], facts: Mapping[str, str], metadata: str) -> bool:
    if key in facts:
        return facts[key] in values
    found = json.loads(metadata).get(key.removeprefix("metadata."))
    inner = found if isinstance(found, list) else [found]
    return any((one if isinstance(one, str) else canonical_text(one)) in values for one in inner)
