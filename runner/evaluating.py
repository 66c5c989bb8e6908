"""The judges of a run's own evaluation: those that it was planned with, in their order, or none."""

from __future__ import annotations

import attrs

from ..ledger.canonical import parse_json
from ..ledger.errors import IdentityChanged
from ..ledger.judgments import judges_of
from ..ledger.ledger import Ledger
from ..ledger.run_reads import RunRow
from .descriptions import Description
from .identity import IDENTITY_VERSION, Section, compare, evaluation_document

__all__ = ["with_judges_of"]


def with_judges_of(ledger: Ledger, run: RunRow, description: Description) -> Description:
    """The description with its judges in the order of the run's evaluation, which is that of their numbers there.

    Raises IdentityChanged where they are others: their verdicts would stand under the names of the old ones.
    """
    with ledger.reading() as reader:
        stored = judges_of(reader, run.run_key)
    then = {name: parse_json(identity) for name, identity in stored.items()}
    now = evaluation_document(description.judges)["judges"]
    lines = tuple(str(found) for found in compare(_document(then), _document(now)))
    if lines:
        raise IdentityChanged(
            f"the judges of run {run.run_id} are not what they were: {'; '.join(lines[:3])}",
            "Change them back, or start a new run with `tallystick run ORDER --new`",
            run.run_id, lines,
        )  # fmt: skip
    places = {name: place for place, name in enumerate(stored)}
    return attrs.evolve(description, judges=sorted(description.judges, key=lambda judge: places[judge.name]))


def _document(judges: object) -> dict[str, object]:
    return {"identity_version": IDENTITY_VERSION, Section.IDENTITY.value: {"judges": judges}}
