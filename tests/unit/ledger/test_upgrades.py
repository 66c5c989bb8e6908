"""Between schemas: migrations killed at their statements, ten processes at once, and snapshots of an older schema."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger import migrate, opening, snapshot_scratch
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.errors import LedgerFailed, LedgerOutdated
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.snapshot_import import import_snapshot
from tallystick.ledger.snapshot_scratch import Scratch
from tests.fixtures import migration_walk
from tests.unit.ledger.children import ROOT
from tests.unit.ledger.factories import every, new_ledger, one
from tests.unit.ledger.forged import taken_apart
from tests.unit.ledger.snapshots import exported, full_run, rows_of

WALK = ROOT / "tests" / "fixtures" / "migration_walk.py"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of schema 1 with a run, which nobody has open."""
    folder = tmp_path_factory.mktemp("old")
    with new_ledger(folder, "old.db") as ledger:
        full_run(ledger)
    return folder / "old.db"


def walk(folder: Path, stride: int, *more: object) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(WALK), str(folder), str(stride), *map(str, more)], cwd=ROOT, capture_output=True,
        text=True, env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.soak), 9])
def test_a_creation_that_is_killed_at_any_statement_is_completed_by_the_next_opening(
    stride: int, tmp_path: Path
) -> None:
    deaths = walk(tmp_path / "walk", stride)
    assert len(deaths) * stride > 100
    assert {death["signal"] for death in deaths[:-1]} == {9}
    assert deaths[-1]["signal"] == 0
    assert {(death["status"], death["schema"], death["sound"]) for death in deaths} == {(0, 1, "ok")}


def test_an_upgrade_that_is_killed_at_any_statement_is_finished_by_the_next_opening(old: Path, tmp_path: Path) -> None:
    deaths = walk(tmp_path / "walk", 1, old)
    assert len(deaths) > 10
    assert {death["signal"] for death in deaths[:-1]} == {9}
    assert {(death["status"], death["schema"], death["sound"], death["runs"]) for death in deaths} == {(0, 2, "ok", 1)}


UPGRADER = """
import sys
from pathlib import Path
from tests.fixtures import migration_walk
migration_walk.use(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
migration_walk.open_ledger(Path(sys.argv[2]))
"""


def test_ten_processes_that_upgrade_a_ledger_at_once_all_succeed(old: Path, tmp_path: Path) -> None:
    scripts = migration_walk.made_up_scripts(tmp_path)
    path = Path(shutil.copy(old, tmp_path / "l.db"))
    started = [
        subprocess.Popen([sys.executable, "-c", UPGRADER, str(scripts), str(path)], cwd=ROOT, stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True)
        for _ in range(10)
    ]  # fmt: skip
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in started:
        process.communicate()
    assert [process.returncode for process in started] == [0] * 10
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        assert connection.execute("SELECT text FROM notes").fetchall() == [("FULL",)], "it was migrated once"
    assert [backup.name for backup in (tmp_path / "l.db.d" / "backups").iterdir()] == ["before-0002.db"]


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is of a version with one more schema."""
    monkeypatch.setattr(migrate, "_SCRIPTS", migration_walk.made_up_scripts(tmp_path))
    for module in (migrate, opening, snapshot_scratch):
        monkeypatch.setattr(module, "SCHEMA_NUMBER", 2)


def test_an_older_ledger_is_upgraded_only_when_it_is_asked_for_and_after_a_backup(
    newer: None, old: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(old, tmp_path / "l.db"))
    with pytest.raises(LedgerOutdated):
        Ledger.open(path)
    Ledger.open(path, upgrade=True).close()
    backup = tmp_path / "l.db.d" / "backups" / "before-0002.db"
    with contextlib.closing(sqlite3.connect(backup)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (1,)


def test_an_upgrade_whose_backup_the_disk_does_not_take_leaves_no_half_of_one_and_is_made_later(
    newer: None, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copy(old, tmp_path / "l.db"))
    backups = tmp_path / "l.db.d" / "backups"

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(migrate, "sync", fail)
        with pytest.raises(LedgerFailed, match="upgraded: No space left"):
            Ledger.open(path, upgrade=True)
    assert list(backups.iterdir()) == []
    Ledger.open(path, upgrade=True).close()
    assert [backup.name for backup in backups.iterdir()] == ["before-0002.db"]


def test_the_rows_of_a_snapshot_of_an_older_schema_are_brought_to_the_newest_by_the_migrations(
    newer: None, tmp_path: Path
) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    lines = b'["r","name","open","{}","d","{}","d","{}",1,null,1]\n'
    columns = ["run_id", "name", "state", "work_order", "work_order_digest", "identity", "identity_digest", "settings",
               "planned", "made_by", "created_us"]  # fmt: skip
    with Scratch(folder, schema_number=1) as scratch:
        scratch.load("runs", columns, [lines], run_key=1, place="runs")
        scratch.load("variants", ["variant_no", "name", "if_unknown"], [b'[1,"v","keep"]\n'], run_key=1, place="v")
        scratch.load("cases", ["case_no", "case_id", "digest", "input"], [b'[1,"c","d","1"]\n'], run_key=1, place="c")
        slots = ["slot_no", "state", "case_no", "variant_no", "repetition"]
        scratch.load("slots", slots, [b'[1,"pending",1,1,1]\n'], run_key=1, place="slots")
        scratch.look_at_kinds(scratch.reader)
        scratch.upgrade()
        assert scratch.reader.rows("SELECT text FROM notes") == [("NAME",)]
        assert scratch.reader.rows("SELECT slot_no, weight FROM slots") == [(1, 7)]
        rules = scratch.reader.rows("SELECT name FROM sqlite_master WHERE name = 'events_without_gaps'")
        assert rules == [("events_without_gaps",)]  # it is left out while rows are put down, and migrations may know it


def test_a_snapshot_from_before_a_column_gets_what_the_column_stands_at_for_old_rows(old: Path, tmp_path: Path) -> None:
    """As one of an older schema would be: its manifest does not know the column."""
    with Ledger.open(old) as ledger:
        run_id = one(ledger, "SELECT run_id FROM runs")[0]
        exported(ledger, run_id, tmp_path / "s.zip")
        before = rows_of(ledger, run_id)
    forgery = taken_apart(tmp_path / "s.zip")
    for table, column in (("runs", "left_out"), ("attempts", "contaminated"), ("judgments", "tries")):
        place = forgery.manifest["columns"][table].index(column)
        del forgery.manifest["columns"][table][place]
        for row in forgery.table(table):
            del row[place]
    with new_ledger(tmp_path, "target.db") as target:
        import_snapshot(target, forgery.write(tmp_path / "older.zip"))
        assert rows_of(target, run_id) == before
        assert check_ledger(target) == []
        assert len(every(target, "SELECT * FROM runs")) == 1
