"""A disk that is full, or becomes so meanwhile, under a snapshot that is written or taken in.

It is told in one line with what to do, nothing half is shown, and the same command does it when there is room. Every
kind of fault at many more places is tried by `tests/acceptance/test_disk_faults.py`.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger import snapshot_import, snapshot_verify
from tests.fixtures.small_disk import SmallDisk, small_disk
from tests.unit.cli.project import Done, Project
from tests.unit.cli.test_snapshots import give

SIZE = 8 * 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", size=SIZE) as made:
        yield made


@pytest.fixture
def partial(project: Project) -> Project:
    """A run of which two of four are answered; what is asked and answered is large, and cannot be compressed."""
    texts = [random.Random(number).randbytes(50_000).hex() for number in range(4)]
    rows: list[dict[str, Any]] = [{"id": f"c{n}", "input": text} for n, text in enumerate(texts)]
    project.write("cases.jsonl", *rows)
    assert project.give("run", "order.toml", "--limit", 2).status == 75
    return project


def is_told_in_one_line(done: Done, where: str = "") -> None:
    assert done.status == 5, (where, done)
    assert len(done.err.splitlines()) == 1, (where, done)
    assert done.err.startswith("tallystick: ledger."), (where, done)
    assert "ree space on" in done.err, (where, done)


def answered(project: Project, ledger: Path) -> list[int]:
    """How many are answered of each run that is shown."""
    runs = give(project, str(ledger), "runs", "--json").document["runs"]
    return sorted(run["selected"] for run in runs)


@pytest.mark.parametrize(
    ("tenths", "options"), [(0, ()), (1, ("--move",)), (9, ())], ids=["at-once", "among-rows", "among-artifacts"]
)
def test_an_export_for_which_the_disk_is_too_full_leaves_the_older_file_and_is_done_when_there_is_room(
    tenths: int, options: tuple[str, ...], partial: Project, disk: SmallDisk
) -> None:
    """``tenths`` of the older file's size are free."""
    file = disk.folder / "s.zip"
    export = ("export", "asked", "-o", file, "--force", *options)
    assert partial.give("export", "asked", "-o", file).status == 0
    older = file.read_bytes()
    assert partial.give("run", "order.toml", "--limit", 1).status == 75
    disk.fill(leaving=len(older) * tenths // 10)
    is_told_in_one_line(partial.give(*export))
    assert sorted(path.name for path in disk.folder.iterdir()) == ["filler", "s.zip"]
    assert file.read_bytes() == older
    disk.free()
    done = partial.give(*export)
    assert done.status == 0, done.err
    assert give(partial, "new.db", "import", file).status == 0
    assert answered(partial, Path("new.db")) == [3]
    assert "the ledger is sound" in give(partial, "new.db", "ledger", "check").out


class Filling:
    """Fills the disk when an import comes to a point, for the so many-th time."""

    def __init__(self, disk: SmallDisk, point: str) -> None:
        self._disk = disk
        self._point, _, passage = point.partition("@")
        self._left = int(passage or 1)

    def reached(self, point: str) -> None:
        self._left -= point == self._point
        if point == self._point and not self._left:
            self._disk.fill()

    def let_pass(self, *arguments: Any) -> None:
        """When there was found to be enough room."""
        ENOUGH(*arguments)
        self.reached("import.unpacking")


ENOUGH = snapshot_verify._refuse_too_large
FULL_AT_ONCE = {"nothing is free": 0, "a little is free": 100_000}
POINTS = {
    "new": [*FULL_AT_ONCE, "import.unpacking", "import.verified", "import.batch", "import.batch@9"],
    "forward": ["nothing is free", "import.unpacking", "import.verified", "forward.prepared"],
}


@pytest.mark.parametrize("becomes", POINTS)
def test_an_import_for_which_the_disk_is_or_becomes_too_full_shows_nothing_and_is_done_when_there_is_room(
    becomes: str, partial: Project, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial.give("export", "asked", "-o", "before.zip")
    partial.give("run", "order.toml", "--limit", 1)
    partial.give("export", "asked", "-o", "s.zip")
    partial.order(name="other")
    partial.give("run", "order.toml", "--limit", 1)
    partial.give("export", "other", "-o", "other.zip")
    for point in POINTS[becomes]:
        ledger = disk.folder / "l.db"
        there = "other.zip" if becomes == "new" else "before.zip"
        assert give(partial, str(ledger), "import", there).status == 0
        shown = answered(partial, ledger)
        filling = Filling(disk, point)
        if point in FULL_AT_ONCE:
            disk.fill(leaving=FULL_AT_ONCE[point])
        with monkeypatch.context() as patched:
            patched.setattr(snapshot_verify, "_refuse_too_large", filling.let_pass)
            patched.setattr(snapshot_verify, "crashpoint", filling.reached)
            patched.setattr(snapshot_import, "crashpoint", filling.reached)
            is_told_in_one_line(give(partial, str(ledger), "import", "s.zip"), point)
        is_told_in_one_line(give(partial, str(ledger), "import", "s.zip"), f"{point}, while the disk stays full")
        disk.free()
        assert answered(partial, ledger) == shown, point
        done = give(partial, str(ledger), "import", "s.zip")
        assert done.status == 0, (point, done.err)
        assert answered(partial, ledger) == ([3] if becomes == "forward" else [*shown, 3]), point
        assert "the ledger is sound" in give(partial, str(ledger), "ledger", "check").out, point
        assert list(Path(f"{ledger}.d", "imports").iterdir()) == [], point
        shutil.rmtree(f"{ledger}.d")
        ledger.unlink()
