"""Backing a ledger up while it is written to, and giving space back."""

from __future__ import annotations

import contextlib
import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger import artifacts, coordinators, driver
from tallystick.ledger.care import backup_ledger, compact_ledger
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.custody_changes import adopt
from tallystick.ledger.errors import CustodyElsewhere, LedgerBusy, LedgerDamaged, LedgerFailed, UsageError
from tallystick.ledger.import_care import remove_left_folders
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.snapshot_import import import_snapshot
from tests.unit.ledger.children import Child
from tests.unit.ledger.factories import every, new_ledger, one, raw
from tests.unit.ledger.snapshots import LARGE, exported, full_run, go_on, rows_of


def test_a_backup_is_a_whole_ledger_with_its_artifacts(ledger: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    made = backup_ledger(ledger, tmp_path / "backup.db")
    go_on(ledger, run.run_id)
    assert made.size == (tmp_path / "backup.db").stat().st_size
    assert made.artifacts == 2
    with Ledger.open(tmp_path / "backup.db") as backup:
        assert check_ledger(backup) == []
        before = rows_of(backup, run.run_id)
        assert len(before["events"]) < len(rows_of(ledger, run.run_id)["events"])
        digest = one(backup, "SELECT raw_artifact FROM dispatches WHERE raw_artifact IS NOT NULL")[0]
        with backup.reading() as reader:
            assert artifacts.get(reader, digest) == LARGE


def test_who_goes_on_with_a_backup_adopts_its_runs(ledger: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    backup_ledger(ledger, tmp_path / "backup.db")
    with Ledger.open(tmp_path / "backup.db") as backup:
        with pytest.raises(CustodyElsewhere):
            coordinators.open_run(backup, run.run_id)
        adopt(backup, run.run_id, reason="the disk of the other one died", made_by="me")
        go_on(backup, run.run_id)
    go_on(ledger, run.run_id)  # the ledger itself knows nothing of it


def test_a_second_backup_copies_only_the_artifacts_that_are_new(ledger: Ledger, tmp_path: Path) -> None:
    full_run(ledger)
    backup_ledger(ledger, tmp_path / "backup.db")
    kept = {path: path.stat().st_ino for path in artifacts.files_in(tmp_path / "backup.db.d" / "artifacts")}
    with pytest.raises(UsageError, match="--force"):
        backup_ledger(ledger, tmp_path / "backup.db")
    artifacts.put(ledger, LARGE + b"more")
    made = backup_ledger(ledger, tmp_path / "backup.db", force=True)
    assert made.artifacts == 3
    now = {path: path.stat().st_ino for path in artifacts.files_in(tmp_path / "backup.db.d" / "artifacts")}
    assert len(now) == 3
    assert {path: now[path] for path in kept} == kept


def test_a_backup_without_an_artifact_is_none(ledger: Ledger, tmp_path: Path) -> None:
    full_run(ledger)
    next(iter(artifacts.files_in(ledger.artifacts))).unlink()
    with pytest.raises(LedgerDamaged, match="is missing"):
        backup_ledger(ledger, tmp_path / "backup.db")
    assert not (tmp_path / "backup.db").exists()


def whole_backup(path: Path) -> dict[str, int]:
    """Look through a backup and beside it, and return the names of its artifacts' files with their inodes."""
    with Ledger.open(path) as backup:
        assert check_ledger(backup) == []
        files = list(artifacts.files_in(backup.artifacts))
    assert [one.name for one in path.parent.iterdir() if one.name.startswith(f".{path.name}")] == []
    return {file.name: file.stat().st_ino for file in files}


def names_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("force", [False, True])
def test_of_two_backups_to_one_path_at_once_the_second_is_refused_and_the_first_is_whole(
    force: bool, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_run(ledger)
    path = tmp_path / "copies" / "backup.db"
    path.parent.mkdir()
    copy, refused = shutil.copyfileobj, list[str]()

    def interrupted(read: Any, written: Any, length: int) -> None:
        """The other one comes in the middle of a file."""
        written.write(read.read(10))
        with pytest.raises(LedgerBusy, match="another backup is being made") as caught:
            backup_ledger(ledger, path, force=force)
        refused.append(caught.value.remedy)
        copy(read, written, length)

    monkeypatch.setattr("tallystick.ledger.care.shutil.copyfileobj", interrupted)
    made = backup_ledger(ledger, path, force=force)
    assert refused == ["wait until it has ended, or name another path"] * made.artifacts
    assert made.artifacts == len(whole_backup(path)) == 2


def test_a_lock_that_cannot_be_removed_fails_no_backup_and_keeps_nobody_out(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that became read-only."""
    path = tmp_path / "backup.db"
    full_run(ledger)
    unlink = Path.unlink

    def read_only(file: Path, *, missing_ok: bool = False) -> None:
        if file.suffix == ".lock":
            raise OSError(errno.EROFS, "Read-only file system", str(file))
        unlink(file, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", read_only)
        backup_ledger(ledger, path)
    assert (tmp_path / ".backup.db.lock").exists()
    backup_ledger(ledger, path, force=True)
    assert not (tmp_path / ".backup.db.lock").exists()


def test_a_backup_is_made_where_that_of_another_process_was_killed(ledger: Ledger, tmp_path: Path) -> None:
    full_run(ledger)
    path = tmp_path / "copies" / "backup.db"
    path.parent.mkdir()
    with Child("back_up", ledger.path, path, pause_at="backup.written") as other:
        other.wait_until_there()
        with pytest.raises(LedgerBusy, match="another backup is being made"):
            backup_ledger(ledger, path)
    left = {file.name: file.stat().st_ino for file in artifacts.files_in(tmp_path / "copies/backup.db.d/artifacts")}
    half = artifacts.file_of(tmp_path / "copies/backup.db.d/artifacts", f"sha256:{next(iter(left))[:2]:0<64}.part")
    half.write_bytes(b"half")
    backup_ledger(ledger, path)
    assert whole_backup(path) == left, "what was copied is used"


@pytest.mark.parametrize("is_first", [True, False])
def test_a_backup_that_fails_among_its_artifacts_takes_back_what_it_made_and_the_next_one_succeeds(
    is_first: bool, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_run(ledger)
    path = tmp_path / "copies" / "backup.db"
    path.parent.mkdir()
    if not is_first:
        backup_ledger(ledger, path)
        go_on(ledger, run.run_id)
        for number in range(3):
            artifacts.put(ledger, LARGE + bytes([number]))
    before, copy, left = names_below(path.parent), shutil.copyfileobj, [1]

    def full_after_one(read: Any, written: Any, length: int) -> None:
        if not left:
            written.write(read.read(10))
            raise OSError(errno.ENOSPC, "No space left on device")
        left.pop()
        copy(read, written, length)

    with monkeypatch.context() as patched:
        patched.setattr("tallystick.ledger.care.shutil.copyfileobj", full_after_one)
        with pytest.raises(LedgerFailed, match="No space left") as caught:
            backup_ledger(ledger, path, force=True)
    assert "free space" in caught.value.remedy
    assert names_below(path.parent) == before
    if not is_first:
        assert len(whole_backup(path)) == 2
    backup_ledger(ledger, path, force=True)
    assert len(whole_backup(path)) == (2 if is_first else 5)


def test_a_backup_that_has_its_name_keeps_its_artifacts_whatever_the_disk_says(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_run(ledger)

    def fail(folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("tallystick.ledger.publishing.sync_folder", fail)
    with pytest.raises(LedgerFailed, match="Input/output"):
        backup_ledger(ledger, tmp_path / "backup.db")
    assert len(whole_backup(tmp_path / "backup.db")) == 2


def test_a_name_that_a_dead_backup_may_not_have_made_durable_is_made_so(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_run(ledger)
    backup_ledger(ledger, tmp_path / "backup.db")
    synced = list[Path]()
    monkeypatch.setattr("tallystick.ledger.care.sync_folder", synced.append)
    backup_ledger(ledger, tmp_path / "backup.db", force=True)
    side = tmp_path / "backup.db.d"
    assert {tmp_path, side, side / "artifacts", *(side / "artifacts").iterdir()} == set(synced)


def test_compacting_gives_back_what_is_free_and_what_belongs_to_nothing(ledger: Ledger) -> None:
    run = full_run(ledger)
    before = rows_of(ledger, run.run_id)
    ledger.write(lambda tx: tx.execute("INSERT INTO facts (name, value) VALUES ('large', ?)", ("x" * 3_000_000,)))
    ledger.write(lambda tx: tx.execute("DELETE FROM facts WHERE name = 'large'"))
    ledger.write(lambda tx: tx.execute("INSERT INTO facts (name, value) VALUES ('late', ?)", ("x" * 3_000_000,)))
    ledger.write(lambda tx: tx.execute("DELETE FROM facts WHERE name = 'late'"))
    with ledger.alone() as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    artifacts.prepare(ledger, LARGE + b"nobody's")
    made = compact_ledger(ledger)
    assert made.size < made.size_before - 2_000_000
    assert (made.orphans, made.orphan_bytes) == (1, len(LARGE) + 8)
    assert ledger.path.stat().st_size == made.size
    assert rows_of(ledger, run.run_id) == before
    go_on(ledger, run.run_id)
    assert check_ledger(ledger) == []
    assert every(ledger, "SELECT custody FROM runs") == [("held",)], "its file is still the same"


@pytest.mark.parametrize(("point", "hidden"), [("import.verified", 0), ("import.batch@6", 1)])
def test_what_a_killed_import_has_left_is_told_and_compacting_removes_it(
    point: str, hidden: int, ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    with Child("import_slowly", other.path, tmp_path / "s.zip", crashpoint=point) as importing:
        assert importing.end() == -9
    told = {finding.code: finding for finding in check_ledger(other)}
    assert told.keys() - {"artifact.orphan"} == {"import.unpacked", "run.half_planned"} - {hidden or "run.half_planned"}
    (left,) = Path(f"{other.path}.d", "imports").iterdir()
    assert left.name in told["import.unpacked"].what
    assert all("`tallystick ledger compact` removes them" in one.remedy for one in told.values())
    made = compact_ledger(other)
    assert (made.hidden_runs, made.unpacked) == (hidden, 1)
    assert made.unpacked_bytes
    assert not left.exists()
    assert every(other, "SELECT * FROM runs") == []
    assert {finding.code for finding in check_ledger(other)} <= {"worker.dead"}


def test_compacting_removes_a_plan_whose_process_died(ledger: Ledger) -> None:
    with Child("plan", ledger.path, 3, crashpoint="run.planning.batch") as planning:
        assert planning.end() == -9
    assert compact_ledger(ledger).hidden_runs == 1
    assert [finding.code for finding in check_ledger(ledger)] == ["worker.dead"]


def test_what_a_living_import_has_unpacked_is_its_own(ledger: Ledger, other: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    with Child("import_slowly", other.path, tmp_path / "s.zip", pause_at="import.verified") as importing:
        importing.wait_until_there()
        assert check_ledger(other) == []
        with pytest.raises(LedgerBusy, match=str(importing.pid)):
            compact_ledger(other)
        assert remove_left_folders(other) == (0, 0)
        importing.let_go()
        assert importing.end() == 0
    assert rows_of(other, run.run_id) == rows_of(ledger, run.run_id)


def test_a_ledger_that_somebody_uses_is_not_compacted(ledger: Ledger) -> None:
    run = full_run(ledger)
    with Child("write_and_wait", ledger.path, run.run_key) as other:
        assert other.line()
        with pytest.raises(LedgerBusy, match=str(other.pid)):
            compact_ledger(ledger)
    compact_ledger(ledger)  # it is dead now


def test_a_ledger_that_somebody_begins_to_use_is_not_compacted(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    run = full_run(ledger)
    with contextlib.ExitStack() as stack:

        def begin_to_use(folder: object) -> Any:
            """Between the first look and the turnstile."""
            other = stack.enter_context(Child("write_and_wait", ledger.path, run.run_key))
            assert other.line()
            return shutil._ntuple_diskusage(10**12, 0, 10**12)

        monkeypatch.setattr("tallystick.ledger.care.shutil.disk_usage", begin_to_use)
        with pytest.raises(LedgerBusy, match="process"):
            compact_ledger(ledger)


def test_a_ledger_that_took_a_run_of_a_living_process_in_is_compacted(ledger: Ledger, tmp_path: Path) -> None:
    """The worker that the snapshot told of has not ended, and is none of this ledger's."""
    run = full_run(ledger, leave=False)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    (tmp_path / "other").mkdir()
    with new_ledger(tmp_path / "other") as other:
        import_snapshot(other, tmp_path / "s.zip")
        compact_ledger(other)
        assert [one.code for one in check_ledger(other)] == []


def test_a_damaged_ledger_is_not_compacted(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        full_run(ledger)
        with ledger.alone() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    with contextlib.closing(raw(ledger.path)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'dispatches_open'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    data = bytearray(ledger.path.read_bytes())
    data[(root - 1) * size : root * size] = bytes(size)
    ledger.path.write_bytes(data)
    with Ledger.open(ledger.path) as ledger, pytest.raises(LedgerDamaged, match="is damaged"):
        compact_ledger(ledger)
    assert ledger.path.stat().st_size == len(data)


def test_a_ledger_that_somebody_reads_is_not_said_to_be_compacted(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_BUSY_MILLISECONDS", 1)
    run = full_run(ledger)
    before = rows_of(ledger, run.run_id)
    with contextlib.closing(raw(ledger.path)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM runs").fetchone()
        go_on(ledger, run.run_id)  # what it does not see is in the log
        with pytest.raises(LedgerBusy, match="a program reads"):
            compact_ledger(ledger)
        connection.execute("ROLLBACK")
    assert len(rows_of(ledger, run.run_id)["events"]) > len(before["events"])
    compact_ledger(ledger)


def test_a_backup_that_the_disk_does_not_take_says_so_and_leaves_nothing(ledger: Ledger, tmp_path: Path) -> None:
    full_run(ledger)
    (tmp_path / "small").mkdir()
    with Child("back_up_with_little_room", ledger.path, tmp_path / "small" / "b.db") as other:
        (said,) = other.lines()
    assert said.startswith("ledger.failed ")
    assert "could not be copied to" in said
    assert not [path for path in (tmp_path / "small").rglob("*") if path.is_file()]


def test_a_ledger_is_not_compacted_where_the_disk_is_too_full(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    full_run(ledger)

    class Full:
        free = 1000

    monkeypatch.setattr("tallystick.ledger.care.shutil.disk_usage", lambda folder: Full)
    with pytest.raises(LedgerFailed, match="free space"):
        compact_ledger(ledger)
