"""Loss of power: what was not synced is lost, in many ways, at any moment of what the real process did.

The process is followed through the kernel (`tests/power`), so that it is the product's own writes and syncs that count,
whatever its driver. Its words (what it told a caller, what it is about to send) stand in the same order.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.power.rig import Recording, lose_power, record, why_not, workplace
from tests.power.stories import STORIES
from tests.power.workload import PLANTS

SHORT = {"beginning": 50, "run": 100, "sessions": 75, "beside": 75}
LONG = 10  # times as many
RESUMED = 3
FOR_A_FAULT = 300


@pytest.fixture
def folder() -> Iterator[Path]:
    if reason := why_not():
        pytest.skip(reason)
    place = workplace()
    try:
        yield place
    finally:
        shutil.rmtree(place)


def recorded(folder: Path, story: str, *, plant: str = "") -> Recording:
    recording = record(folder, STORIES[story](folder), plant=plant)
    assert plant or recording.status == 0, recording.told
    return recording


@pytest.mark.parametrize("times", [1, pytest.param(LONG, marks=pytest.mark.soak)], ids=["short", "long"])
@pytest.mark.parametrize("story", SHORT)
def test_power_loss_takes_nothing_that_was_told_and_leaves_no_send_without_its_intent(
    folder: Path, story: str, times: int
) -> None:
    recording = recorded(folder, story)
    tried = lose_power(recording, states=SHORT[story] * times, seed=f"{story} {times}", resumed=RESUMED * times)
    assert tried.failures == [], "\n".join(map(str, tried.failures))
    assert tried.states == SHORT[story] * times


@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_power_rig_finds_a_fault_that_was_put_into_the_product(folder: Path, plant: str) -> None:
    recording = recorded(folder, "run", plant=plant)
    tried = lose_power(recording, states=FOR_A_FAULT, seed=plant, failures_max=1)
    assert tried.failures, f"{tried.states} states, and nothing was found"


def test_power_is_lost_in_every_story() -> None:
    assert set(STORIES) == set(SHORT)
