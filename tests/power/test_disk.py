"""The disk of the power-loss tests keeps what was synced, may lose what was not, and makes nothing up."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from .disk import Disk, Loss
from .records import Made, Record, Removed, Renamed, Sized, Synced, Wrote

ROOT, LEFT, RIGHT, FILE, OTHER = 1, 2, 3, 4, 5
SEEDS = 200
Tree = dict[str, bytes | None]


def disk_of(*records: Record) -> Disk:
    """A disk with an empty root, after records of which each begins when the one before has ended."""
    made = Disk([Made(0, 0, "/d", ROOT, True), *records], Path("/d"))
    made.advance(1_000)
    return made


def after(disk: Disk, loss: Loss, seed: int = 0) -> Tree:
    return dict(disk.left(loss, random.Random(seed)))


def ever(disk: Disk, *losses: Loss) -> Iterator[Tree]:
    for seed in range(SEEDS):
        for loss in losses or tuple(Loss):
            yield after(disk, loss, seed)


def new_file(path: str = "/d/f", file: int = FILE) -> Made:
    return Made(1, 2, path, file, False)


NAMED: Sequence[Record] = (new_file(), Synced(3, 4, ROOT, False))


def test_what_was_synced_is_there_after_every_loss() -> None:
    disk = disk_of(*NAMED, Wrote(5, 6, FILE, 0, b"kept"), Synced(7, 8, FILE, False))
    assert all(tree == {"f": b"kept"} for tree in ever(disk))


def test_what_was_not_synced_is_there_or_not() -> None:
    disk = disk_of(*NAMED, Wrote(5, 6, FILE, 0, b"lost"))
    assert after(disk, Loss.ALL) == {"f": b""}
    assert after(disk, Loss.NOTHING) == {"f": b"lost"}
    assert after(disk, Loss.DATA) == {"f": bytes(4)}, "its size came, its bytes did not"


def test_a_write_that_ended_after_a_sync_began_is_not_covered_by_it() -> None:
    disk = disk_of(*NAMED, Wrote(5, 8, FILE, 0, b"lost"), Synced(7, 9, FILE, False))
    assert after(disk, Loss.ALL) == {"f": b""}


def test_a_write_under_way_may_have_been_done_in_part() -> None:
    disk = Disk([Made(0, 0, "/d", ROOT, True), *NAMED, Wrote(5, 9, FILE, 0, b"new")], Path("/d"))
    disk.advance(6)
    assert {tree["f"] for tree in ever(disk, Loss.NOTHING)} == {b"", b"new"}


def test_a_sync_of_a_file_is_none_of_its_name() -> None:
    disk = disk_of(new_file(), Wrote(3, 4, FILE, 0, b"kept"), Synced(5, 6, FILE, False))
    assert after(disk, Loss.ALL) == {}
    assert after(disk, Loss.NAMES) == {}
    assert after(disk, Loss.DATA) == {"f": b"kept"}


def test_sectors_are_old_or_new_each_for_itself() -> None:
    old, new = b"o" * 2048, b"n" * 2048
    disk = disk_of(*NAMED, Wrote(5, 6, FILE, 0, old), Synced(7, 8, FILE, False), Wrote(9, 10, FILE, 0, new))
    seen = {tree["f"] for tree in ever(disk, Loss.TORN)}
    assert {old, new} < seen
    for data in seen:
        assert data is not None
        assert {data[at : at + 512] for at in range(0, 2048, 512)} <= {old[:512], new[:512]}


def test_where_a_file_grew_without_its_bytes_anything_may_be() -> None:
    disk = disk_of(*NAMED, Wrote(5, 6, FILE, 0, b"n" * 512))
    assert len({tree["f"] for tree in ever(disk, Loss.STALE)}) > 10


def test_a_rename_gives_the_old_file_or_the_new_one_and_never_a_mixture() -> None:
    disk = disk_of(
        *NAMED, Wrote(5, 6, FILE, 0, b"old"), Synced(7, 8, FILE, False),
        Made(9, 10, "/d/t", OTHER, False), Wrote(11, 12, OTHER, 0, b"new"), Synced(13, 14, OTHER, False),
        Renamed(15, 16, "/d/t", "/d/f"),
    )  # fmt: skip
    assert {tree["f"] for tree in ever(disk)} == {b"old", b"new"}


def test_a_rename_of_what_was_not_synced_may_leave_nothing_in_the_file() -> None:
    disk = disk_of(*NAMED, Made(9, 10, "/d/t", OTHER, False), Wrote(11, 12, OTHER, 0, b"new"),
                   Renamed(15, 16, "/d/t", "/d/f"))  # fmt: skip
    assert after(disk, Loss.DATA) == {"f": bytes(3)}


def test_a_move_between_folders_is_seen_in_both_or_in_none() -> None:
    folders = (Made(1, 2, "/d/l", LEFT, True), Made(1, 2, "/d/r", RIGHT, True), Synced(3, 4, ROOT, False))
    file = (Made(5, 6, "/d/l/f", FILE, False), Synced(7, 8, LEFT, False))
    disk = disk_of(*folders, *file, Renamed(9, 10, "/d/l/f", "/d/r/f"))
    assert {("l/f" in tree, "r/f" in tree) for tree in ever(disk)} == {(True, False), (False, True)}
    synced = disk_of(*folders, *file, Renamed(9, 10, "/d/l/f", "/d/r/f"), Synced(11, 12, LEFT, False))
    assert all("r/f" in tree for tree in ever(synced))


def test_names_of_one_folder_come_in_their_order() -> None:
    disk = disk_of(new_file("/d/a"), Made(3, 4, "/d/b", OTHER, False), Removed(5, 6, "/d/a"))
    assert {tuple(tree) for tree in ever(disk)} == {(), ("a",), ("a", "b"), ("b",)}


def test_after_a_failed_sync_no_later_one_keeps_what_it_was_for() -> None:
    failed = (*NAMED, Wrote(5, 6, FILE, 0, b"doomed"), Synced(7, 8, FILE, True))
    assert after(disk_of(*failed, Synced(9, 10, FILE, False)), Loss.ALL)["f"] == bytes(6)
    again = disk_of(*failed, Wrote(9, 10, FILE, 6, b" and kept"), Synced(11, 12, FILE, False))
    assert after(again, Loss.ALL)["f"] == b"doomed and kept", "its page was written to again"


def test_a_file_that_was_cut_and_written_again_has_nothing_of_before() -> None:
    disk = disk_of(
        *NAMED, Wrote(5, 6, FILE, 0, b"x" * 600), Synced(7, 8, FILE, False), Sized(9, 10, FILE, 0),
        Wrote(11, 12, FILE, 500, b"y"),
    )  # fmt: skip
    assert after(disk, Loss.NOTHING)["f"] == bytes(500) + b"y"
    assert after(disk, Loss.ALL)["f"] == b"x" * 600


@pytest.mark.parametrize("loss", list(Loss))
def test_the_same_seed_gives_the_same_disk(loss: Loss) -> None:
    disk = disk_of(*NAMED, Wrote(5, 6, FILE, 0, b"n" * 5000), Made(7, 8, "/d/g", OTHER, False))
    assert after(disk, loss, 3) == after(disk, loss, 3)
