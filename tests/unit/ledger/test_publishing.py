"""Publishing a file: the whole of it under its name, or what was there before, and nothing else is left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger.errors import LedgerFailed, UsageError
from tallystick.ledger.host_folder import host_folder
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.publishing import beside, published, refuse_taken


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("force", [False, True])
def test_a_file_that_came_meanwhile_is_replaced_only_where_that_was_asked_for(force: bool, tmp_path: Path) -> None:
    path = tmp_path / "s.zip"

    def publish() -> None:
        with published(path, force=force) as file:
            file.write(b"ours")
            path.write_bytes(b"theirs")

    if force:
        publish()
    else:
        with pytest.raises(UsageError, match="--force"):
            publish()
    assert path.read_bytes() == (b"ours" if force else b"theirs")
    assert names_in(tmp_path) == ["s.zip"]


def test_a_file_whose_writing_breaks_off_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "s.zip"
    path.write_bytes(b"before")

    def break_off() -> None:
        with published(path, force=True) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    assert path.read_bytes() == b"before"
    assert names_in(tmp_path) == ["s.zip"]


def test_it_is_told_when_it_is_durable_and_when_it_has_its_name(tmp_path: Path) -> None:
    path, told = tmp_path / "s.zip", list[tuple[str, bool]]()

    def tell(word: str) -> None:
        told.append((word, path.exists()))

    with published(path, force=False, written=lambda: tell("written"), renamed=lambda: tell("renamed")) as file:
        file.write(b"ours")
        assert not path.exists()
    assert told == [("written", False), ("renamed", True)]


def test_what_the_dead_left_is_cleared_and_what_the_living_write_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s[1]*.zip"
    left = [".s[1]*.zip.0123456789ab.part", ".other.0123456789ab.part", ".s[1]*.zip.short.part"]
    for name in (*left, ".s[1]*.zip.0123456789ab.part-journal"):
        (tmp_path / name).write_bytes(b"half")
    with beside(path) as living, published(path, force=False) as file:
        file.write(b"ours")
        assert living.exists()
    assert names_in(tmp_path) == sorted([*left[1:], path.name])


def test_a_folder_is_never_replaced_and_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a folder"), published(tmp_path, force=True):
        pass
    with pytest.raises(UsageError, match="does not exist"), published(tmp_path / "no" / "s.zip", force=True):
        pass


def published_as(path: Path, **options: Any) -> None:
    with published(path, force=True, **options) as file:
        file.write(b"new")


@pytest.mark.parametrize("name", ["l.db", "l.db-wal", "l.db.d/artifacts/s.zip", "link", "hard", "sub/../l.db"])
def test_nothing_is_written_over_the_ledger_that_it_comes_from(name: str, tmp_path: Path) -> None:
    ledger = tmp_path / "l.db"
    ledger.write_bytes(b"rows")
    (tmp_path / "l.db.d" / "artifacts").mkdir(parents=True)
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to("l.db")
    (tmp_path / "hard").hardlink_to(ledger)
    before = names_in(tmp_path)
    for is_database in (False, True):
        with pytest.raises(UsageError, match="belongs to the ledger"):
            published_as(tmp_path / name, ledger=ledger, is_database=is_database)
    assert (ledger.read_bytes(), names_in(tmp_path)) == (b"rows", before)


def test_a_database_is_replaced_by_nothing_but_a_database(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    path.write_bytes(b"SQLite format 3\0 and rows")
    with pytest.raises(UsageError, match="a database"):
        published_as(path)
    published_as(path, is_database=True)
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("log", ["b.db-wal", "b.db-journal"])
def test_a_database_is_not_put_beside_the_log_of_another_which_would_be_written_into_it(
    log: str, tmp_path: Path
) -> None:
    (tmp_path / log).write_bytes(b"pages")
    with pytest.raises(UsageError, match="belongs to a database that is, or was, at"):
        published_as(tmp_path / "b.db", is_database=True)
    assert names_in(tmp_path) == [log]


def test_a_pipe_or_a_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="no file"):
        published_as(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_link_stays_and_the_file_lies_where_it_leads_to(is_there: bool, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "s.zip").symlink_to("far/real.zip")
    if is_there:
        (tmp_path / "far" / "real.zip").write_bytes(b"old")
    published_as(tmp_path / "s.zip")
    assert (tmp_path / "s.zip").is_symlink()
    assert (tmp_path / "far" / "real.zip").read_bytes() == b"new"
    assert names_in(tmp_path / "far") == ["real.zip"]


def test_what_the_disk_does_is_told_with_the_path(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)  # the name that it has meanwhile is too long
    with pytest.raises(LedgerFailed, match="could not be written"), published(path, force=False):
        pass
    assert names_in(tmp_path) == []


def test_a_link_without_end_is_told_of_with_another_way(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(UsageError, match="leads nowhere"):
        refuse_taken(loop, force=True)
    with pytest.raises(UsageError, match="leads nowhere"):
        Ledger.open(loop)
    with pytest.raises(UsageError, match="leads nowhere"):
        host_folder(loop)
