"""Whether a judge is good enough for its verdicts to count: what the work order requires against what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..ledger.canonical import JsonValue, parse_json
from ..ledger.evaluations import EvaluationRow
from ..ledger.judging_reads import judge_rows
from ..ledger.ledger import Ledger
from ..ledger.qualifications import link_qualification, newest_qualification

__all__ = ["note_qualifications", "unmet"]

_TOLD: Final[Mapping[str, str]] = {
    "accuracy": "accuracy",
    "accuracy_low": "the lower end of its accuracy's interval",
    "kappa": "kappa",
    "coverage": "coverage",
    "labels": "the number of labelled observations",
}


def unmet(require: Mapping[str, float], measured: Mapping[str, JsonValue] | None) -> list[str]:
    """What of the requirement is not reached, one text each; empty: all of it is.

    ``measured`` is the document of a qualification, None where there is none. A figure that could not be measured
    (null) is not reached.
    """
    if measured is None:
        return ["it has no qualification"]
    lacking = []
    for name, least in require.items():
        found = measured.get(name)
        if isinstance(found, bool) or not isinstance(found, int | float):
            lacking.append(f"{_TOLD[name]} could not be measured, {least:g} is required")
        elif found < least:
            lacking.append(f"{_TOLD[name]} is {found:.4g}, {least:g} is required")
    return lacking


def note_qualifications(ledger: Ledger, evaluation: EvaluationRow) -> None:
    """Record of each judge that must be qualified whether it is, by its `newest_qualification`."""
    with ledger.reading() as reader:
        rows = [
            row for row in judge_rows(reader, evaluation.run_key, evaluation.evaluation_no)
            if row.requirement is not None
        ]  # fmt: skip
        found = {row.judge_no: newest_qualification(reader, row.identity_digest) for row in rows}
    for row in rows:
        assert row.requirement is not None
        require = parse_json(row.requirement)
        assert isinstance(require, dict)
        newest = found[row.judge_no]
        lacking = unmet(require, None if newest is None else newest.document)
        met, name = not lacking, None if newest is None else newest.qualification_id
        brought = newest is not None and newest.is_brought
        if (row.qualified, row.qualification_id) != (met, name):
            number = row.judge_no
            ledger.write(
                lambda tx, number=number, met=met, name=name, brought=brought: link_qualification(  # type: ignore[misc]
                    tx, evaluation, number, qualification_id=name, met=met, is_brought=brought
                )
            )
