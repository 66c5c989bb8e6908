"""Opening: what may lie at a path, and that whatever is refused is refused before anything is changed."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tallystick.ledger import driver, location, migrate, opening
from tallystick.ledger.errors import (
    LedgerDamaged,
    LedgerError,
    LedgerFailed,
    LedgerMissing,
    LedgerNewer,
    LedgerOnNetwork,
    LedgerOutdated,
    LedgerReadOnly,
    NotALedger,
    RefusedError,
    TallystickError,
    UsageError,
)
from tallystick.ledger.file_locks import holder_pid
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.location import default_path, filesystem_of, path_for_order, side_folder
from tests.unit.ledger.children import Child
from tests.unit.ledger.factories import empty_file, every, new_ledger, new_run, one, raw


class Partition(NamedTuple):
    device: str
    mountpoint: str
    fstype: str
    opts: str


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file below the folder with its bytes; a folder is None."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def refused(path: Path, kind: type[RefusedError], *, create: bool) -> RefusedError:
    """Opening raises that error and leaves every byte of the folder as it was."""
    before = contents(path.parent)
    with pytest.raises(kind) as caught:
        Ledger.open(path, create=create)
    assert contents(path.parent) == before
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.remedy
    return caught.value


def works(path: Path, *, create: bool = False) -> None:
    with Ledger.open(path, create=create) as ledger:
        run_key = new_run(ledger).run_key
        assert one(ledger, "SELECT count(*) FROM slots WHERE run_key = ?", run_key)[0] == 3


def test_an_absent_ledger_is_created_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    refused(path, LedgerMissing, create=False)
    works(path, create=True)
    works(path)


def test_an_empty_file_is_completed_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    path.touch()
    refused(path, LedgerMissing, create=False)
    works(path, create=True)


def test_a_start_that_was_killed_before_its_schema_is_completed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with Child("create_ledger", path, crashpoint="ledger.created.empty") as child:
        assert child.end() == -9
    assert path.exists()
    with pytest.raises(LedgerMissing, match="killed"):
        Ledger.open(path)
    works(path, create=True)


def test_a_start_that_was_killed_after_its_schema_left_a_whole_ledger(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    with Child("create_ledger", path, crashpoint="ledger.migrated") as child:
        assert child.end() == -9
    works(path)


def test_a_start_that_was_killed_while_its_schema_was_written_is_completed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    connection = driver.connect(path, create=True)
    connection.execute("PRAGMA journal_mode=WAL").fetchone()
    connection.close()
    assert path.stat().st_size > 0
    works(path, create=True)


def torn_beginning(path: Path, page: bytes) -> None:
    """As a loss of power leaves it: a first page that never came, and the journal that takes it back."""
    path.write_bytes(page)
    header = bytes.fromhex("d9d505f920a163d7") + bytes(4) + b"once" + bytes(4) + struct.pack(">II", 512, 4096)
    path.with_name(path.name + "-journal").write_bytes(header.ljust(512, b"\0"))


@pytest.mark.parametrize("page", [bytes(4096), b"\xa5" * 4096], ids=["zeros", "junk"])
def test_a_start_that_lost_power_before_its_first_page_came_is_completed_by_the_next(
    tmp_path: Path, page: bytes
) -> None:
    path = tmp_path / "l.db"
    torn_beginning(path, page)
    with pytest.raises(LedgerMissing, match="killed"):
        Ledger.open(path)
    assert path.read_bytes() == page
    works(path, create=True)


def test_a_foreign_file_beside_a_journal_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    torn_beginning(path, b"\xa5" * 4096)
    journal = path.with_name(path.name + "-journal")
    journal.write_bytes(journal.read_bytes()[:16] + struct.pack(">I", 7) + journal.read_bytes()[20:])
    refused(path, NotALedger, create=True)


class Wrapped(Exception):
    """An error of the driver as SQLAlchemy passes it on."""

    def __init__(self, text: str) -> None:
        super().__init__(f"(driver) {text} (Background on this error at: …)")
        self.orig = driver.sqlite.OperationalError(text)


@pytest.mark.parametrize(
    ("text", "kind", "word"),
    [
        ("disk I/O error", LedgerFailed, "look after the ledger's disk"),
        ("database or disk is full", LedgerFailed, "free space"),
        ("attempt to write a readonly database", LedgerReadOnly, "writable"),
    ],
)
def test_a_disk_that_fails_while_a_ledger_is_made_is_told_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, kind: type[TallystickError], word: str
) -> None:
    path = tmp_path / "l.db"

    def fails(*_: object, **__: object) -> None:
        raise Wrapped(text)

    with monkeypatch.context() as patch:
        patch.setattr(migrate, "migrate", fails)
        with pytest.raises(kind) as caught:
            Ledger.open(path, create=True)
    assert text in str(caught.value)
    assert "Background" not in str(caught.value)
    assert word in caught.value.remedy
    works(path, create=True)


def text_file(path: Path) -> None:
    path.write_text("expense,amount\nlunch,12\n" * 50)


def short_file(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0")


def picture(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20)


def foreign_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE photos (id INTEGER)")
    connection.commit()
    connection.close()


def foreign_database_with_an_id(path: Path) -> None:
    foreign_database(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA application_id = 42")
    connection.close()


def foreign_database_with_a_log(path: Path) -> None:
    """As a killed program leaves it: what it committed last is in its write-ahead log."""
    other = path.parent / "other"
    other.mkdir()
    connection = sqlite3.connect(other / path.name)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE photos (id INTEGER)")
    connection.execute("PRAGMA wal_checkpoint")
    connection.execute("INSERT INTO photos VALUES (1)")
    connection.commit()
    for name in (path.name, path.name + "-wal"):
        shutil.copyfile(other / name, path.with_name(name))
    connection.close()
    shutil.rmtree(other)


FOREIGN = [
    text_file,
    short_file,
    picture,
    foreign_database,
    foreign_database_with_an_id,
    foreign_database_with_a_log,
    Path.mkdir,
]


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("make", FOREIGN)
def test_what_is_not_a_ledger_is_refused_and_not_touched(
    make: Callable[[Path], None], create: bool, tmp_path: Path
) -> None:
    path = tmp_path / "l.db"
    make(path)
    refused(path, NotALedger, create=create)


@pytest.mark.parametrize("create", [False, True])
def test_a_ledger_of_a_newer_version_is_refused_and_not_touched(create: bool, tmp_path: Path) -> None:
    path = empty_file(tmp_path)
    connection = raw(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert "99" in str(refused(path, LedgerNewer, create=create))


def test_a_ledger_whose_newest_schema_is_still_in_its_log_is_refused_too(tmp_path: Path) -> None:
    connection = raw(empty_file(tmp_path, "was.db"))
    connection.execute("PRAGMA wal_autocheckpoint=0").fetchone()
    connection.execute("PRAGMA user_version = 99")
    path = tmp_path / "l.db"
    for suffix in ("", "-wal"):
        shutil.copyfile(tmp_path / f"was.db{suffix}", tmp_path / f"l.db{suffix}")
    connection.close()
    with pytest.raises(LedgerNewer, match="99"):
        Ledger.open(path)
    assert not side_folder(path).exists()


def test_a_ledger_of_an_older_schema_is_refused_unless_an_upgrade_is_asked_for(tmp_path: Path) -> None:
    path = empty_file(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "SCHEMA_NUMBER", 2)
        refused(path, LedgerOutdated, create=True)


@pytest.mark.parametrize("kind", ["nfs4", "NFS", "cifs", "9p", "virtiofs", "fuse.sshfs"])
@pytest.mark.parametrize("create", [False, True])
def test_a_ledger_on_a_network_file_system_is_refused_before_anything_is_written(
    kind: str, create: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Partition("/dev/sda", "/", "ext4", "")
    share = Partition("host:/share", str(tmp_path.resolve()), kind, "")
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: [share, local])
    path = tmp_path / "l.db"
    assert kind in str(refused(path, LedgerOnNetwork, create=create))
    path.touch()
    refused(path, LedgerOnNetwork, create=create)


def test_a_link_into_a_network_file_system_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share = tmp_path / "share"
    share.mkdir()
    (tmp_path / "l.db").symlink_to(share / "l.db")
    mounts = [Partition("/dev/sda", "/", "ext4", ""), Partition("host:/", str(share.resolve()), "nfs", "")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    with pytest.raises(LedgerOnNetwork):
        Ledger.open(tmp_path / "l.db", create=True)
    assert list(share.iterdir()) == []


def test_the_innermost_mount_tells_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path.resolve()
    mounts = [
        Partition("a", "/", "nfs", ""),
        Partition("b", str(here), "xfs", ""),
        Partition("c", str(here) + "2", "cifs", ""),
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    assert filesystem_of(here / "x") == "xfs"
    assert filesystem_of(here.parent / "y") == "nfs"


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that everybody can reach: those of pytest are for their owner alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


def as_nobody(path: Path) -> list[str]:
    """What a process is told that may read the folder and not write it."""
    with Child("open_as_nobody", path) as child:
        assert child.line() == "ready"
        shutil.rmtree(side_folder(path.with_name("warm.db")))
        path.parent.chmod(0o555)
        child.say()
        return child.lines()


def test_a_disk_without_room_for_what_opening_needs_is_not_said_to_be_forbidden(tmp_path: Path) -> None:
    path = empty_file(tmp_path)
    with Child("open_with_no_room", path) as other:
        (said,) = other.lines()
    assert said.startswith("ledger.unreadable ")
    assert "disk" in said
    assert "permission" not in said


def test_a_ledger_in_a_folder_that_cannot_be_written_is_refused(public_folder: Path) -> None:
    path = public_folder / "l.db"
    shutil.copyfile(empty_file(public_folder, "made.db"), path)
    (public_folder / "made.db").unlink()
    (public_folder.parent / "template.db").unlink()
    path.chmod(0o444)
    before = path.read_bytes()
    told = as_nobody(path)
    assert [line.split()[0] for line in told] == ["ledger.read_only", "ledger.read_only"]
    assert all(str(path) in line for line in told)
    assert path.read_bytes() == before
    assert [entry.name for entry in public_folder.iterdir()] == ["l.db"]


def test_a_ledger_cannot_be_created_in_a_folder_that_cannot_be_written(public_folder: Path) -> None:
    path = public_folder / "l.db"
    told = as_nobody(path)
    assert [line.split()[0] for line in told] == ["ledger.missing", "ledger.read_only"]
    assert list(public_folder.iterdir()) == []


def test_a_ledger_cannot_be_created_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    refused(tmp_path / "absent" / "l.db", LedgerReadOnly, create=True)
    refused(tmp_path / "absent" / "l.db", LedgerMissing, create=False)


def test_ten_processes_that_open_an_absent_ledger_at_once_all_succeed(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    children = [Child("open_at_a_sign", path) for _ in range(10)]
    try:
        assert [child.line() for child in children] == ["ready"] * 10
        for child in children:
            child.say()
        workers = {child.line() for child in children}
        assert len(workers) == 10
        assert "" not in workers
        for child in children:
            child.say()
        assert [child.end() for child in children] == [0] * 10
    finally:
        for child in children:
            child.__exit__(None, None, None)
    with Ledger.open(path) as ledger:
        assert {row[0] for row in every(ledger, "SELECT worker_id FROM workers")} == workers


def test_a_file_that_is_opened_twice_has_one_worker_whose_locks_outlive_the_first_closing(tmp_path: Path) -> None:
    first = new_ledger(tmp_path)
    second = Ledger.open(tmp_path / "." / "t.db")
    assert first.worker_id == second.worker_id
    lock = side_folder(first.path) / "workers" / f"{first.worker_id}.lock"
    first.close()
    first.close()
    with Child("tell_lock_holder", lock) as child:
        assert child.lines() == [str(os.getpid())]
    new_run(second)
    second.close()
    assert not lock.exists()
    with Ledger.open(tmp_path / "t.db") as third:
        assert one(third, "SELECT end_reason FROM workers")[0] == "closed"


def test_opening_and_closing_it_again_takes_nothing_from_the_locks_of_the_database(tmp_path: Path) -> None:
    """Closing any other descriptor of the file would: then another process could take itself for the only one."""
    with new_ledger(tmp_path) as ledger:
        new_run(ledger)
        Ledger.open(ledger.path).close()
        with ledger.reading():
            pass
        with Child("tell_database_lock", ledger.path) as child:
            assert child.lines() == [str(os.getpid())]


def test_a_ledger_that_is_closed_is_refused_with_its_remedy(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    ledger.close()
    with pytest.raises(LedgerError, match=r"[Oo]pen it again"):
        ledger.write(lambda tx: None)
    with pytest.raises(LedgerError, match=r"[Oo]pen it again"), ledger.reading():
        pass


def test_a_ledger_behind_a_link_is_the_same_ledger(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    real = new_ledger(tmp_path)
    link = tmp_path / "elsewhere" / "link.db"
    link.symlink_to(real.path)
    with Child("open_at_a_sign", link) as child:
        child.line()
        child.say()
        worker = child.line()
        assert holder_pid(side_folder(real.path) / "workers" / f"{worker}.lock") == child.pid
    assert not side_folder(link).exists()
    real.close()


def test_a_ledger_with_two_hard_links_is_refused_under_both_names(tmp_path: Path) -> None:
    new_ledger(tmp_path).close()
    (tmp_path / "other.db").hardlink_to(tmp_path / "t.db")
    for name in ("t.db", "other.db"):
        refused(tmp_path / name, NotALedger, create=False)
        refused(tmp_path / name, NotALedger, create=True)
    (tmp_path / "other.db").unlink()
    works(tmp_path / "t.db")


def test_only_reading_makes_no_worker_and_writes_nothing(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        new_run(ledger)
    before = contents(tmp_path)
    with Ledger.open(tmp_path / "t.db") as ledger:
        assert one(ledger, "SELECT count(*) FROM runs")[0] == 1
    assert contents(tmp_path) == before


def test_the_default_path_follows_the_environment_then_the_project_then_the_folder(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert default_path({"TALLYSTICK_LEDGER": "x/y.db"}, inner) == Path("x/y.db")
    assert default_path({}, inner).name == "tallystick.db"
    (tmp_path / "a" / "pyproject.toml").touch()
    assert default_path({}, inner) == tmp_path.resolve() / "a" / "tallystick.db"
    (inner / "tallystick.db").touch()
    assert default_path({}, inner) == inner.resolve() / "tallystick.db"
    (inner / ".git").mkdir()
    assert default_path({"TALLYSTICK_LEDGER": ""}, inner) == inner.resolve() / "tallystick.db"


def test_a_work_order_beside_which_a_ledger_lies_begins_no_other_one_unasked(tmp_path: Path) -> None:
    inner = tmp_path / "a b"
    inner.mkdir()
    (tmp_path / "pyproject.toml").touch()
    here = tmp_path.resolve() / "tallystick.db"
    assert path_for_order(inner, {}, tmp_path) == here
    (inner / "tallystick.db").touch()
    assert path_for_order(inner, {}, inner) == inner.resolve() / "tallystick.db"
    with pytest.raises(
        UsageError, match=rf"no ledger at {here}.*--ledger '{inner.resolve()}/tallystick.db' \(in Python"
    ):
        path_for_order(inner, {}, tmp_path)
    assert path_for_order(inner, {"TALLYSTICK_LEDGER": "x.db"}, tmp_path) == Path("x.db")
    here.touch()
    assert path_for_order(inner, {}, tmp_path) == here


def test_the_file_system_of_a_real_path_is_known() -> None:
    assert location.filesystem_of(Path("/proc")) == "proc"


def test_a_ledger_whose_damage_is_no_text_is_said_to_be_damaged(tmp_path: Path) -> None:
    path = empty_file(tmp_path, "torn.db")
    content = path.read_bytes()
    assert b"CREATE TABLE runs" in content
    path.write_bytes(content.replace(b"CREATE TABLE runs", b"CREATE TAB\xc2E runs"))
    with pytest.raises(LedgerDamaged):
        Ledger.open(path)


def test_a_backup_is_a_whole_ledger_and_replaces_an_older_one(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        new_run(ledger)
    connection = raw(tmp_path / "t.db")
    destination = tmp_path / "backups" / "before-0002.db"
    for _ in range(2):
        migrate.backup_to(connection, destination)
    connection.close()
    assert [path.name for path in destination.parent.iterdir()] == ["before-0002.db"]
    works_as_copy = Ledger.open(destination)
    assert one(works_as_copy, "SELECT count(*) FROM slots")[0] == 3
    works_as_copy.close()
