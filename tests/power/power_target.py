"""What the recorded runs measure: a target and a judge that treat each case as its input says."""

from __future__ import annotations

import os
from typing import Any

from tallystick.adapters.answers import Answer, Failed, OutcomeUnknown, Refused
from tallystick.ledger.verdicts import NoVerdictReason
from tallystick.runner.protocols import Case, NoVerdict, Verdict


def inputs(case: Case) -> dict[str, Any]:
    assert isinstance(case.input, dict)
    return dict(case.input)


def asked(case: Case) -> Any:
    """Answers with so many bytes (``size``), or fails, refuses or breaks off in the words of ``does``."""
    behave = inputs(case)
    match behave.get("does"):
        case "fail":
            raise Failed("as asked")
        case "refuse" if os.urandom(1)[0] < 128:
            raise Refused("as asked", retry_after_seconds=0.01)
        case "lose":
            raise OutcomeUnknown("as asked")
    text = f"{case.id} " * (int(behave.get("size", 20)) // (len(case.id) + 1))
    return Answer(text, usage={"tokens_in": 7, "tokens_out": 3}, context=[case.id])


def judged(answer: Any, case: Case) -> Verdict | NoVerdict:
    """Passes what names its case; has no verdict for what is to have none."""
    if inputs(case).get("does") == "puzzle":
        return NoVerdict(NoVerdictReason.AMBIGUOUS_VERDICT, "as asked")
    return Verdict(passed=case.id in str(answer))
