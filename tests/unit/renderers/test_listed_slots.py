"""What the formats read of a planned observation is what the published model of it says."""

from __future__ import annotations

import json

import pytest

from tallystick.ledger.canonical import canonical_text
from tallystick.ledger.ledger import Ledger
from tallystick.renderers.json_report import slot_text
from tallystick.runner.report_document import SlotLine, VerdictLine
from tallystick.runner.report_models import as_json
from tallystick.runner.report_reading import open_report
from tallystick.runner.report_slots import ANSWER_CHARACTERS_MAX, ListedSlot
from tests.unit.renderers.made_runs import HOSTILE, answer, judge, troubled_run


def line_of(slot: ListedSlot) -> SlotLine:
    """The model of it, with every key that the model has."""
    found = {key: getattr(slot, key) for key in SlotLine.model_fields}
    return SlotLine(**{**found, "verdicts": [VerdictLine(**one._asdict()) for one in slot.verdicts]})


@pytest.mark.parametrize("hostile", ["", HOSTILE])
def test_the_text_of_each_planned_observation_is_that_of_its_model(ledger: Ledger, hostile: str) -> None:
    run = troubled_run(ledger, hostile=hostile)
    answer(ledger, run.run_key, 8, {"z": [1.0, -0.0, 1e300, 2**70, None, True], "a": f"é {hostile}"})
    answer(ledger, run.run_key, 9, "x" * ANSWER_CHARACTERS_MAX, tokens_in=7, flags=canonical_text(["truncated", "é"]))
    judge(ledger, run.run_key, 8, True, explanation="why é")
    with open_report(ledger, run.run_id) as report:
        slots = list(report.slots())
        texts = [slot_text(slot) for slot in slots]
        assert texts == [json.dumps(as_json(line_of(slot))) for slot in slots]
    states = {slot.state for slot in slots}
    assert {"selected", "failed", "unknown", "unavailable", "pending"} <= states
    assert [slot.answer_cut for slot in slots].count(True) == 1
    assert slots[8].flags == ["truncated", "é"]
