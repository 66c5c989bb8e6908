"""The judges of a run's own evaluation: those that it was planned with, in their order, or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from ..ledger.canonical import parse_json
from ..ledger.errors import IdentityChanged
from ..ledger.evaluations import INLINE
from ..ledger.judging_reads import judge_rows
from ..ledger.ledger import Ledger
from ..ledger.run_reads import RunRow
from .descriptions import Description
from .identity import IDENTITY_VERSION, Section, compare, evaluation_document
from .work_order_judges import settings_of_judges

__all__ = ["is_of_judges", "with_judges_of"]

_JUDGES: Final = "judges"


def with_judges_of(ledger: Ledger, run: RunRow, description: Description) -> Description:
    """The description with its judges in the order of the run's evaluation, which is that of their numbers there.

    Raises IdentityChanged where they are others: their verdicts would stand under the names of the old ones.
    """
    with ledger.reading() as reader:
        stored = judge_rows(reader, run.run_key, INLINE)
    settings = settings_of_judges(description.order.judges)
    then = {row.name: _judge(parse_json(row.identity), row.samples) for row in stored}
    identities = evaluation_document(description.judges)["judges"]
    assert isinstance(identities, Mapping)
    now = {name: _judge(identity, settings[name].samples) for name, identity in identities.items()}
    lines = tuple(str(found) for found in compare(_document(then), _document(now)))
    if lines:
        raise IdentityChanged(
            f"the judges of run {run.run_id} are not what they were: {'; '.join(lines[:3])}",
            "change them back; or judge what is observed by the new ones, with `tallystick judge RUN JUDGE_ORDER`",
            run.run_id, lines,
        )  # fmt: skip
    places = {row.name: place for place, row in enumerate(stored)}
    return attrs.evolve(description, judges=sorted(description.judges, key=lambda judge: places[judge.name]))


def is_of_judges(changed: IdentityChanged) -> bool:
    """Whether it was raised for other judges, so that what is observed can be judged by these all the same."""
    return all(line.startswith(f"{_JUDGES}.") for line in changed.differences)


def _judge(identity: object, samples: int) -> dict[str, object]:
    assert isinstance(identity, Mapping)
    return {**identity, "samples": samples}


def _document(judges: object) -> dict[str, object]:
    return {"identity_version": IDENTITY_VERSION, Section.IDENTITY.value: {_JUDGES: judges}}
