"""Records a run, then loses power at its moments again and again and looks at what is left."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from .disk import Disk, Loss
from .kernel import is_supported
from .records import Made, Record, Removed, Renamed, Said, Synced, read_records
from .stories import Story
from .verdict import Promises, Verdicts

__all__ = ["Failure", "Recording", "Tried", "lay_out", "lose_power", "record", "why_not", "workplace"]

_RECORDER: Final = Path(__file__).with_name("recorder.py")
_PATIENCE_SECONDS: Final = 240.0
_FORBIDDEN: Final = ("PermissionError", "Operation not permitted", "not implemented", "cannot be filtered")
_PASSES_MAX: Final = 12  # a state that was seen is replaced in the next pass


@attrs.frozen
class Recording:
    """What a process did to a folder, and how it ended."""

    records: Sequence[Record]
    root: Path
    status: int
    told: str
    counts: dict[str, int]
    environment: Mapping[str, str]

    @property
    def said(self) -> list[str]:
        """All that the processes said."""
        return [record.text for record in self.records if isinstance(record, Said)]


@attrs.frozen
class Failure:
    """A state of the disk in which something that was promised does not hold."""

    moment: float
    loss: Loss
    seed: str
    broken: list[str]

    def __str__(self) -> str:
        return f"at {self.moment:g}, losing {self.loss} ({self.seed}): {'; '.join(self.broken[:3])}"


@attrs.frozen
class Tried:
    """How many different states were looked at, and in which something was broken."""

    states: int
    failures: list[Failure]


@functools.cache
def why_not() -> str:
    """Why nothing can be recorded here, empty where it can."""
    if not is_supported():
        return "the recorder knows the system calls of Linux on x86-64 only"
    place = workplace()
    try:
        said = ["--root", str(place), "--said", str(place / "said"), "--log", str(place / "log")]
        tried = subprocess.run(
            [sys.executable, str(_RECORDER), *said, "--", sys.executable, "-c", ""], capture_output=True, text=True
        )
    finally:
        shutil.rmtree(place)
    if not tried.returncode:
        return ""
    assert any(word in tried.stderr for word in _FORBIDDEN), f"the recorder is broken: {tried.stderr}"
    return f"no process may be followed here: {tried.stderr.strip().splitlines()[-1]}"


def workplace() -> Path:
    """An empty folder for a recording or a state, in memory where there is a place: what is synced there is nothing."""
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="tallystick-power-", dir=place))


def record(folder: Path, story: Story, *, plant: str = "", fault: str = "") -> Recording:
    """Run the story's commands; everything below ``folder/disk`` is recorded."""
    root, said, log = folder / "disk", folder / "said", folder / "log"
    root.mkdir(exist_ok=True)
    program = [sys.executable, "-m", "tests.power.workload", "--said", str(said)]
    program += ["--plant", plant] if plant else []
    for commands in filter(None, (story.commands, story.beside)):
        program.append(json.dumps([[str(word) for word in command] for command in commands]))
    tool = [sys.executable, str(_RECORDER), "--root", str(root), "--said", str(said), "--log", str(log), "--count"]
    tool += ["--fail", fault] if fault else []
    done = subprocess.run(
        [*tool, "--", *program], capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False,
        cwd=Path(__file__).resolve().parents[2], env={**os.environ, **story.environment},
    )  # fmt: skip
    assert done.stdout, f"there is no recording: {done.stderr}"
    counts = json.loads(done.stdout.splitlines()[-1])
    return Recording(read_records(log), root, done.returncode, done.stderr, counts, story.environment)


def lose_power(
    recording: Recording,
    *,
    states: int,
    seed: str,
    resumed: int = 0,
    after: int = 0,
    losses: Sequence[Loss] = tuple(Loss),
    failures_max: int = 10,
) -> Tried:
    """Look at so many different states of the disk, spread over the whole recording, and go on from some of them.

    Only moments after ``after`` count. Every pass goes from the first moment to the last, since a disk only goes
    forward: to stop in the middle of one would leave the end of the recording out. Ends early when so many failures are
    found.
    """
    chance, verdicts = random.Random(seed), Verdicts(recording.said, recording.environment)
    seen: set[bytes] = set()
    failures: list[Failure] = []
    for _ in range(_PASSES_MAX):
        if len(seen) == states:
            break
        disk = Disk(recording.records, recording.root)
        for moment, loss in _moments(recording.records, states - len(seen), chance, losses, after):
            disk.advance(moment)
            one = f"{seed} {moment:g} {loss}"
            state = lay_out(disk, loss, random.Random(one), recording.root)
            if state in seen:
                continue
            seen.add(state)
            broken = verdicts.broken(recording.root, Promises.of(disk.said))
            if not broken and resumed and len(seen) % max(1, states // resumed) == 0:
                broken = verdicts.goes_on(recording.root, Promises.of(disk.said))
            if broken:
                failures.append(Failure(moment, loss, one, broken))
            if len(failures) >= failures_max:
                return Tried(len(seen), failures)
    return Tried(len(seen), failures)


def lay_out(disk: Disk, loss: Loss, chance: random.Random, root: Path) -> bytes:
    """Let the recorded folder hold what is left after that loss, and return a digest of it.

    A ledger's file stays the same file: by its inode a ledger knows whether it was copied.
    """
    parked = root.with_name("parked")
    parked.mkdir(exist_ok=True)
    for ledger in root.glob("*.db"):
        ledger.rename(parked / ledger.name)
    shutil.rmtree(root)
    root.mkdir()
    digest = hashlib.sha256(repr(len(disk.said)).encode())
    for path, data in disk.left(loss, chance):
        digest.update(path.encode() + b"\0" + (b"" if data is None else hashlib.sha256(data).digest()))
        target = root / path
        if (parked / path).is_file():
            (parked / path).rename(target)
        if data is None:
            target.mkdir()
        else:
            target.write_bytes(data)
    return digest.digest()


def _moments(
    records: Sequence[Record], count: int, chance: random.Random, losses: Sequence[Loss], after: int
) -> Iterator[tuple[float, Loss]]:
    """In their order: half of them just before and after syncs, names and words, half of them anywhere."""
    edges = sorted({at for record in records for at in (record.begun, record.ended) if at and at >= after})
    turning = sorted({
        at
        for record in records
        if isinstance(record, Synced | Made | Renamed | Removed | Said)
        for at in (record.begun - 1, record.begun, record.ended)
        if at and at >= after
    })  # fmt: skip
    chosen = [(chance.choice(turning if at % 2 else edges), chance.choice(losses)) for at in range(count)]
    return iter(sorted(chosen, key=lambda one: one[0]))
