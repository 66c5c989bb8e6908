"""Why there is no verdict, as a closed vocabulary: the same words in the ledger, in every report and in ``--json``.

A judgment has a verdict or one of these reasons. Two of them are never stored: what was not observed has no judgment,
and reports say so by `reason_without_observation`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, assert_never

from .states import SlotState

__all__ = ["MEANINGS", "NoVerdictReason", "reason_without_observation"]


class NoVerdictReason(StrEnum):
    """Why a judgment has no verdict; `MEANINGS` says it for people."""

    MISSING_EXPECTED = "missing_expected"  # the case says nothing of what is expected
    MISSING_CONTEXT = "missing_context"  # the judge needs the context, and the observation has none
    MISSING_EVIDENCE = "missing_evidence"  # the judge needs other evidence that the observation does not have
    EMPTY_RETRIEVAL = "empty_retrieval"  # the context is there, and nothing was retrieved
    ANSWER_UNFIT = "answer_unfit"  # the judge cannot compare an answer of this kind
    EXPECTED_UNFIT = "expected_unfit"  # the judge cannot compare with what is expected
    MALFORMED_VERDICT = "malformed_verdict"  # the reply is no verdict, or off the declared scale
    AMBIGUOUS_VERDICT = "ambiguous_verdict"  # the reply can be read as several verdicts
    CONFLICTING_VERDICT = "conflicting_verdict"  # the parts of the reply contradict each other
    TIMEOUT = "timeout"  # no verdict within the deadline
    REFUSED = "refused"  # the judge's model refused to judge
    FILTERED = "filtered"  # a content filter kept the verdict back
    ABSTAINED = "abstained"  # the judge itself says that it gives no verdict
    JUDGE_ERROR = "judge_error"  # the judge raised, failed or killed its process
    JUDGE_UNAVAILABLE = "judge_unavailable"  # the judge could not be reached, or turned every request away
    UNKNOWN_OUTCOME = "unknown_outcome"  # the judge's call may have happened, and may not be repeated by itself
    OUT_OF_BUDGET = "out_of_budget"  # a budget had no room for the judge's call
    TARGET_UNAVAILABLE = "target_unavailable"  # there is no observation: the target failed, is unknown or unavailable
    NOT_ATTEMPTED = "not_attempted"  # there is no observation yet, or it was given up before it was attempted


MEANINGS: Final[dict[NoVerdictReason, str]] = {
    NoVerdictReason.MISSING_EXPECTED: "the case says nothing of what is expected",
    NoVerdictReason.MISSING_CONTEXT: "the judge needs the context, and the observation has none",
    NoVerdictReason.MISSING_EVIDENCE: "the judge needs evidence that the observation does not have",
    NoVerdictReason.EMPTY_RETRIEVAL: "the context is there, and nothing was retrieved",
    NoVerdictReason.ANSWER_UNFIT: "the judge cannot compare an answer of this kind",
    NoVerdictReason.EXPECTED_UNFIT: "the judge cannot compare with what is expected",
    NoVerdictReason.MALFORMED_VERDICT: "the reply is no verdict, or off the declared scale",
    NoVerdictReason.AMBIGUOUS_VERDICT: "the reply can be read as several verdicts",
    NoVerdictReason.CONFLICTING_VERDICT: "the parts of the reply contradict each other",
    NoVerdictReason.TIMEOUT: "no verdict within the deadline",
    NoVerdictReason.REFUSED: "the judge's model refused to judge",
    NoVerdictReason.FILTERED: "a content filter kept the verdict back",
    NoVerdictReason.ABSTAINED: "the judge itself says that it gives no verdict",
    NoVerdictReason.JUDGE_ERROR: "the judge raised, failed or killed its process",
    NoVerdictReason.JUDGE_UNAVAILABLE: "the judge could not be reached, or turned every request away",
    NoVerdictReason.UNKNOWN_OUTCOME: "the judge's call may have happened, and may not be repeated by itself",
    NoVerdictReason.OUT_OF_BUDGET: "a budget had no room for the judge's call",
    NoVerdictReason.TARGET_UNAVAILABLE: "there is no observation: the target failed, is unknown or unavailable",
    NoVerdictReason.NOT_ATTEMPTED: "there is no observation yet, or it was given up before it was attempted",
}
"""One line for people, by reason; reports and ``docs/reference/outcomes.md`` show it."""


def reason_without_observation(state: SlotState) -> NoVerdictReason:
    """Why a planned observation that there is none of has no verdict; raises ValueError for a selected one."""
    match state:
        case SlotState.FAILED | SlotState.UNKNOWN | SlotState.UNAVAILABLE | SlotState.PARKED:
            return NoVerdictReason.TARGET_UNAVAILABLE
        case SlotState.PENDING | SlotState.IN_FLIGHT | SlotState.CANCELLED:
            return NoVerdictReason.NOT_ATTEMPTED
        case SlotState.SELECTED:
            raise ValueError("a selected slot has an observation")
    assert_never(state)
