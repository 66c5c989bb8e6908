"""C05: every kind of disk fault at every kind of place, in the real process, and the loss of power after it."""

from __future__ import annotations

import functools
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.power.disk import Disk, Loss
from tests.power.records import Failed
from tests.power.rig import Recording, lay_out, lose_power, record, why_not, workplace
from tests.power.stories import Story, short, snapshots
from tests.power.verdict import Promises, Verdicts

FAULTS = {
    "a-full-disk": "write:ENOSPC:{}-",
    "a-write-that-fails-once": "write:EIO:{}",
    "a-sync-that-fails-once": "sync:EIO:{}",
    "syncs-that-fail-from-now-on": "sync:EIO:{}-",
    "a-disk-that-becomes-read-only": "any:EROFS:{}-",
    "a-name-that-cannot-be-given": "name:EIO:{}",
    "a-file-that-cannot-be-made": "make:ENOSPC:{}-",
}
SHORT, LONG, OF_SNAPSHOTS = 2, 30, 6
LOSSES_AFTER = 8
END_OF_TIME = 10**12


@pytest.fixture
def folder() -> Iterator[Path]:
    if reason := why_not():
        pytest.skip(reason)
    place = workplace()
    try:
        yield place
    finally:
        shutil.rmtree(place)


@functools.cache
def calls(story: Callable[[Path], Story]) -> dict[str, int]:
    """How many calls of each kind the story makes where nothing fails."""
    place = workplace()
    try:
        recording = record(place, story(place))
    finally:
        shutil.rmtree(place)
    assert recording.status == 0, recording.told
    return recording.counts


@pytest.mark.parametrize(
    ("story", "places"),
    [
        pytest.param(short, SHORT, id="short"),
        pytest.param(short, LONG, id="long", marks=pytest.mark.soak),
        pytest.param(snapshots, OF_SNAPSHOTS, id="snapshots", marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("fault", FAULTS)
def test_disk_c05_fault_is_told_in_one_line_loses_nothing_and_is_gone_on_from(
    folder: Path, fault: str, story: Callable[[Path], Story], places: int
) -> None:
    text = FAULTS[fault]
    count = calls(story)[text.partition(":")[0]]
    chance = random.Random(fault)
    hits = 0
    # Not from the last ones: another time it may make fewer calls.
    for number in sorted(chance.sample(range(1, count * 9 // 10 + 1), min(places, count * 9 // 10))):
        place = folder / str(number)
        place.mkdir()
        recording = record(place, story(place), fault=text.format(number))
        hits += _look_at(recording, f"{fault} at {number} of {count}")
        shutil.rmtree(place)
    assert hits, "nothing failed"


def _look_at(recording: Recording, what: str) -> bool:
    """Whether a call failed, after which everything was as it should be."""
    hit = [one for one in recording.records if isinstance(one, Failed)]
    if not hit:
        return False
    lines = [line for line in recording.told.splitlines() if line.startswith("tallystick:")]
    ended = [int(found[1]) for found in re.finditer(r"^(\d+) \[", recording.told, re.MULTILINE)]
    # 2 and 4 are of later commands, which miss what the one that failed was to bring.
    assert recording.status in (0, 4, 5), f"{what}: {recording.status} {recording.told}"
    assert len(lines) == len([status for status in ended if status not in (0, 3, 75)]), f"{what}: {recording.told}"
    assert "tallystick: unexpected" not in recording.told, f"{what}: {recording.told}"
    assert "Traceback" not in recording.told, f"{what}: {recording.told}"
    disk = Disk(recording.records, recording.root)
    disk.advance(END_OF_TIME)
    promises, verdicts = Promises.of(disk.said), Verdicts()
    tried = lose_power(recording, states=LOSSES_AFTER, seed=what, after=hit[0].begun)
    assert tried.failures == [], f"{what}, then a loss of power: {tried.failures}"
    # What every send needs, an intent that was durable before, is asked by the verdict.
    lay_out(disk, Loss.NOTHING, random.Random(what), recording.root)
    assert verdicts.broken(recording.root, promises) == [], what
    assert verdicts.goes_on(recording.root, promises) == [], what
    return True
