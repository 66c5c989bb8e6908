"""Ledgers and snapshots of every schema that there was are upgraded and taken in."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from tallystick.ledger.checks import Severity, check_ledger
from tallystick.ledger.custody_changes import adopt
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.run_reads import slot_counts
from tallystick.ledger.schema import SCHEMA_NUMBER
from tallystick.ledger.snapshot_import import import_snapshot
from tests.unit.ledger.children import ROOT
from tests.unit.ledger.factories import empty_file, every, new_ledger, raw
from tests.unit.ledger.snapshots import go_on, rows_of

KEPT = ROOT / "tests" / "fixtures" / "ledgers"
NUMBERS = [int(re.sub(r"\D", "", path.name)) for path in sorted(KEPT.glob("schema-*.db.gz"))]


def unpacked(number: int, folder: Path) -> Path:
    path = folder / "kept.db"
    path.write_bytes(gzip.decompress((KEPT / f"schema-{number}.db.gz").read_bytes()))
    return path


def schema_of(path: Path) -> list[str]:
    connection = raw(path)
    rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type, name").fetchall()
    connection.close()
    return [" ".join(sql.split()) for (sql,) in rows]


def test_there_is_one_of_every_schema() -> None:
    assert sorted(NUMBERS) == list(range(1, SCHEMA_NUMBER + 1)), f"run {KEPT}/make.py"
    assert [(KEPT / f"schema-{number}.zip").exists() for number in NUMBERS] == [True] * len(NUMBERS)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_kept_ledger_is_upgraded_to_what_a_new_one_is_and_goes_on(number: int, tmp_path: Path) -> None:
    path = unpacked(number, tmp_path)
    with Ledger.open(path, upgrade=True) as ledger:
        hint = "as long as its schema is not released: python tests/fixtures/ledgers/make.py"
        assert schema_of(path) == schema_of(empty_file(tmp_path)), hint
        assert [one.what for one in check_ledger(ledger) if one.severity is Severity.ERROR] == []
        ((run_id, run_key),) = every(ledger, "SELECT run_id, run_key FROM runs")
        with ledger.reading() as reader:
            counts = {state: count for state, count in slot_counts(reader, run_key).items() if count}
        assert counts == {"selected": 2, "failed": 1, "unknown": 1, "pending": 1}
        adopt(ledger, run_id, reason="it was copied out of the repository", made_by="a test")
        go_on(ledger, run_id, 5)
        assert [one.what for one in check_ledger(ledger) if one.severity is Severity.ERROR] == []


@pytest.mark.parametrize("number", NUMBERS)
def test_a_kept_snapshot_is_taken_in_and_is_what_the_ledger_holds(number: int, tmp_path: Path) -> None:
    with new_ledger(tmp_path, "new.db") as ledger:
        (told,) = import_snapshot(ledger, KEPT / f"schema-{number}.zip").runs
        here = rows_of(ledger, told.run_id)
        assert check_ledger(ledger) == []
    with Ledger.open(unpacked(number, tmp_path), upgrade=True) as kept:
        assert rows_of(kept, told.run_id) == here


def test_nothing_that_is_kept_names_a_folder_of_a_machine() -> None:
    for path in KEPT.iterdir():
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert re.findall(rb"/(?:root|home|tmp|Users|work)/", data) == [], path.name
