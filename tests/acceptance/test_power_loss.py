"""Loss of power: what was not synced is lost, in many ways, at any moment of what the real process did.

The process is followed through the kernel (`tests/power`), so that it is the product's own writes and syncs that count,
whatever its driver. Its words (what it told a caller, what it is about to send) stand in the same order.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.power.rig import Recording, lose_power, record, why_not, workplace
from tests.power.stories import STORIES, Story, short
from tests.power.workload import PLANTS

SHORT = {"beginning": 40, "run": 70, "sessions": 50, "beside": 40, "snapshots": 50, "outside": 50}
LONG = 11  # times as many; the shortest story has not so many different states
RESUMED = 2
FOR_A_FAULT = 300
AT_A_TIME = 30  # spread over the whole recording, so that a fault that shows late is found soon
# The shortest story in which each fault shows.
FOR_A_PLANT = {
    "checkpoints-without-sync": STORIES["run"],
    "imported-artifacts-without-sync": STORIES["snapshots"],
    "imported-names-without-sync": STORIES["snapshots"],
    "backed-up-artifacts-without-sync": STORIES["snapshots"],
    "backed-up-names-without-sync": STORIES["snapshots"],
    "snapshots-without-sync": STORIES["snapshots"],
    "snapshot-names-without-sync": STORIES["snapshots"],
}

# As those of the same names for what a run writes itself.
SOAKED = {"imported-names-without-sync", "backed-up-names-without-sync"}


@pytest.fixture
def folder() -> Iterator[Path]:
    if reason := why_not():
        pytest.skip(reason)
    place = workplace()
    try:
        yield place
    finally:
        shutil.rmtree(place)


@contextlib.contextmanager
def recorded(folder: Path, story: Callable[[Path], Story], *, plant: str = "") -> Iterator[Recording]:
    told = story(folder)
    try:
        recording = record(folder, told, plant=plant)
        assert plant or recording.status == 0, recording.told
        yield recording
    finally:
        told.close()


@pytest.mark.parametrize("times", [1, pytest.param(LONG, marks=pytest.mark.soak)], ids=["short", "long"])
@pytest.mark.parametrize("story", SHORT)
def test_power_loss_takes_nothing_that_was_told_and_leaves_no_send_without_its_intent(
    folder: Path, story: str, times: int
) -> None:
    with recorded(folder, STORIES[story]) as recording:
        tried = lose_power(recording, states=SHORT[story] * times, seed=f"{story} {times}", resumed=RESUMED * times)
    assert tried.failures == [], "\n".join(map(str, tried.failures))
    assert tried.states == SHORT[story] * times


@pytest.mark.parametrize(
    "plant", [pytest.param(plant, marks=[pytest.mark.soak] * (plant in SOAKED)) for plant in sorted(PLANTS)]
)
def test_power_rig_finds_a_fault_that_was_put_into_the_product(folder: Path, plant: str) -> None:
    with recorded(folder, FOR_A_PLANT.get(plant, short), plant=plant) as recording:
        looks = (
            lose_power(recording, states=AT_A_TIME, seed=f"{plant} {number}", failures_max=1)
            for number in range(FOR_A_FAULT // AT_A_TIME)
        )
        assert any(tried.failures for tried in looks), f"about {FOR_A_FAULT} states, and nothing was found"


def test_power_is_lost_in_every_story() -> None:
    assert set(STORIES) == set(SHORT)
