"""Why there is no verdict."""

from __future__ import annotations

import pytest

from tallystick.ledger.states import SlotState
from tallystick.ledger.verdicts import MEANINGS, NoVerdictReason, reason_without_observation


def test_every_reason_has_one_meaning_of_its_own() -> None:
    assert list(MEANINGS) == list(NoVerdictReason)
    assert len(set(MEANINGS.values())) == len(NoVerdictReason)


@pytest.mark.parametrize("state", [state for state in SlotState if state is not SlotState.SELECTED])
def test_what_was_not_observed_has_a_reason_that_tells_unreached_from_not_begun(state: SlotState) -> None:
    not_begun = state in {SlotState.PENDING, SlotState.IN_FLIGHT, SlotState.CANCELLED}
    expected = NoVerdictReason.NOT_ATTEMPTED if not_begun else NoVerdictReason.TARGET_UNAVAILABLE
    assert reason_without_observation(state) is expected


def test_a_selected_slot_has_an_observation_and_no_such_reason() -> None:
    with pytest.raises(ValueError, match="has an observation"):
        reason_without_observation(SlotState.SELECTED)
