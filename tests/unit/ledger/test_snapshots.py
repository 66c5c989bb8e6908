"""Snapshots: what travels, that the same runs give the same bytes, and what importing makes of a run."""

from __future__ import annotations

import errno
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger import (
    artifacts,
    driver,
    durable,
    snapshot_artifacts,
    snapshot_export,
    snapshot_forward,
    snapshot_import,
    snapshot_scratch,
    snapshot_shared,
    snapshot_writer,
)
from tallystick.ledger.canonical import canonical_text
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.errors import LedgerDamaged, LedgerFailed, RunBusy, RunNotFound, UsageError
from tallystick.ledger.import_care import discard_run
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.planning import create_run
from tallystick.ledger.publishing import beside
from tallystick.ledger.schema import metadata
from tallystick.ledger.snapshot_export import export_runs
from tallystick.ledger.snapshot_format import table_of_member
from tallystick.ledger.snapshot_import import import_snapshot
from tallystick.ledger.snapshot_tables import (
    COLUMNS_LEFT_OUT,
    RUN_TABLES,
    SHARED_TABLES,
    TABLES_LEFT_OUT,
    columns_of,
    key_of,
)
from tests.unit.ledger.children import Child
from tests.unit.ledger.factories import case_plan, every, new_ledger, one, run_plan
from tests.unit.ledger.forged import taken_apart
from tests.unit.ledger.snapshots import LARGE, exported, full_run, go_on, rows_of


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Ledger]:
    """Another ledger in another folder."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with new_ledger(folder) as opened:
        yield opened


def findings(ledger: Ledger) -> list[str]:
    return [f"{one.code}: {one.what}" for one in check_ledger(ledger)]


def test_every_table_and_column_travels_or_is_named_with_a_reason() -> None:
    carried = {table.name for table in (*RUN_TABLES, *SHARED_TABLES)}
    assert carried.isdisjoint(TABLES_LEFT_OUT)
    assert carried | TABLES_LEFT_OUT.keys() == set(metadata.tables)
    for table in (*RUN_TABLES, *SHARED_TABLES):
        missing = {column.name for column in table.columns} - {"run_key"} - set(columns_of(table))
        assert missing == set(COLUMNS_LEFT_OUT.get(table.name, {}))


def test_a_run_comes_out_of_a_snapshot_as_it_went_in(ledger: Ledger, elsewhere: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    made = exported(ledger, run.run_id, tmp_path / "s.zip")
    told = import_snapshot(elsewhere, tmp_path / "s.zip")
    assert rows_of(elsewhere, run.run_id) == rows_of(ledger, run.run_id)
    assert [(one.run_id, one.became, one.custody) for one in told.runs] == [(run.run_id, "new", "copy")]
    assert told.digest == made.digest
    assert findings(elsewhere) == []


@pytest.mark.parametrize("by_sqlite", [True, False], ids=["by SQLite", "by Python"])
def test_text_of_every_kind_comes_out_as_it_went_in(
    by_sqlite: bool, ledger: Ledger, elsewhere: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_scratch, "READS_JSON", by_sqlite and snapshot_scratch.READS_JSON)
    texts = [
        "",
        " ",
        "\u00e9\u20ac\U0001f600",
        '"\\\\"',
        "\n\r\t\x01\x7f",
        "\\u0000 \\ud800",
        "{'}",
        "null",
        "1e5",
        "\u2028",
    ]
    rows = [
        case_plan(f"c{number}{text}", canonical_text(text), canonical_text(text)) for number, text in enumerate(texts)
    ]
    run = create_run(ledger, run_plan(name="\U0001f600"), rows)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    import_snapshot(elsewhere, tmp_path / "s.zip")
    assert [row[1][2:] for row in rows_of(elsewhere, run.run_id)["cases"]] == texts
    assert rows_of(elsewhere, run.run_id) == rows_of(ledger, run.run_id)


def test_the_same_run_gives_the_same_bytes_also_from_the_ledger_that_took_it_in(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "one.zip")
    exported(ledger, run.run_id, tmp_path / "two.zip")
    import_snapshot(elsewhere, tmp_path / "one.zip")
    exported(elsewhere, run.run_id, tmp_path / "three.zip")
    first = (tmp_path / "one.zip").read_bytes()
    assert (tmp_path / "two.zip").read_bytes() == first
    assert (tmp_path / "three.zip").read_bytes() == first


def test_rows_stand_in_the_order_of_their_keys(ledger: Ledger, tmp_path: Path) -> None:
    runs = [full_run(ledger, name=name).run_id for name in ("a", "b")]
    export_runs(ledger, runs, tmp_path / "s.zip")
    forgery = taken_apart(tmp_path / "s.zip")
    tables = {table.name: table for table in (*RUN_TABLES, *SHARED_TABLES)}
    for member, rows in forgery.rows.items():
        table = tables[table_of_member(member)]
        places = [forgery.manifest["columns"][table.name].index(name) for name in key_of(table)]
        keys = [[row[place] for place in places] for row in rows]
        assert keys == sorted(keys), member


def test_a_second_import_changes_nothing(ledger: Ledger, elsewhere: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    assert import_snapshot(elsewhere, tmp_path / "s.zip").changed
    before = every(elsewhere, "SELECT * FROM imports"), rows_of(elsewhere, run.run_id)
    again = import_snapshot(elsewhere, tmp_path / "s.zip")
    assert not again.changed
    assert (every(elsewhere, "SELECT * FROM imports"), rows_of(elsewhere, run.run_id)) == before


def test_a_snapshot_of_a_run_that_is_executed_is_of_one_instant(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger, leave=False)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    import_snapshot(elsewhere, tmp_path / "s.zip")
    assert one(elsewhere, "SELECT state FROM slots WHERE slot_no = 7") == ("in_flight",)
    assert every(elsewhere, "SELECT state, reason FROM leases") == [("lost", "left behind by a snapshot")]
    assert findings(elsewhere) == []


def test_several_runs_travel_together_with_what_they_share(ledger: Ledger, elsewhere: Ledger, tmp_path: Path) -> None:
    runs = [full_run(ledger, name=name).run_id for name in ("a", "b")]
    made = export_runs(ledger, [*runs, *runs], tmp_path / "s.zip")
    assert [entry.run for entry in made.manifest.runs] == sorted(runs)
    assert len(import_snapshot(elsewhere, tmp_path / "s.zip").runs) == 2
    for run_id in runs:
        assert rows_of(elsewhere, run_id) == rows_of(ledger, run_id)
    digest = one(ledger, "SELECT raw_artifact FROM dispatches WHERE raw_artifact IS NOT NULL")[0]
    with elsewhere.reading() as reader:
        assert artifacts.get(reader, digest) == LARGE


def test_a_snapshot_is_an_ordinary_zip_file_and_names_no_folder_and_no_machine(ledger: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    with zipfile.ZipFile(tmp_path / "s.zip") as archive:
        assert archive.testzip() is None
        contents = b"\n".join(archive.read(name) for name in archive.namelist())
    boot, host = one(ledger, "SELECT boot_id, host FROM workers")
    for secret in (str(tmp_path), boot, host):
        assert secret.encode() not in contents
    assert str(tmp_path).encode() not in (tmp_path / "s.zip").read_bytes()


@pytest.mark.parametrize("rows_per_view", [1, 2, 20_000])
def test_a_later_snapshot_moves_a_copy_forward_whatever_is_looked_at_in_one_view(
    rows_per_view: int, ledger: Ledger, elsewhere: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_forward, "_ROWS_PER_VIEW", rows_per_view)
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    import_snapshot(elsewhere, tmp_path / "s.zip")
    go_on(ledger, run.run_id)
    exported(ledger, run.run_id, tmp_path / "later.zip")
    (told,) = import_snapshot(elsewhere, tmp_path / "later.zip").runs
    assert (told.became, told.event_before < told.event_no) == ("forward", True)
    assert rows_of(elsewhere, run.run_id) == rows_of(ledger, run.run_id)
    assert findings(elsewhere) == []
    assert not import_snapshot(elsewhere, tmp_path / "later.zip").changed
    (told,) = import_snapshot(elsewhere, tmp_path / "s.zip").runs
    assert told.became == "unchanged"


def test_nothing_is_written_to_a_path_that_is_taken(ledger: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    (tmp_path / "s.zip").write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        export_runs(ledger, [run.run_id], tmp_path / "s.zip")
    with pytest.raises(UsageError, match="does not exist"):
        export_runs(ledger, [run.run_id], tmp_path / "no" / "s.zip")
    with pytest.raises(RunNotFound):
        export_runs(ledger, ["nothing"], tmp_path / "other.zip")
    assert (tmp_path / "s.zip").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir() if "zip" in path.name) == ["s.zip"]


@pytest.mark.parametrize(("bound", "value", "why"), [("LINE_MAX", 500, "a row of"), ("MEMBERS_MAX", 3, "members")])
def test_what_no_import_would_read_is_not_written(
    bound: str, value: int, why: str, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_run(ledger)
    monkeypatch.setattr(snapshot_writer, bound, value)
    with pytest.raises(UsageError, match=why):
        export_runs(ledger, [run.run_id], tmp_path / "s.zip")
    assert not list(tmp_path.glob("*zip*"))


def test_large_tables_are_written_in_parts_that_are_read_as_one(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_run(ledger)
    monkeypatch.setattr(snapshot_writer, "PART_BYTES", 200)
    monkeypatch.setattr(snapshot_writer, "_CHUNK", 100)
    made = exported(ledger, run.run_id, tmp_path / "s.zip")
    parts = [member.rows for member in made.manifest.members if "/events-" in member.name]
    assert len(parts) > 5
    assert sum(parts) == made.manifest.runs[0].rows["events"]
    import_snapshot(elsewhere, tmp_path / "s.zip")
    assert rows_of(elsewhere, run.run_id) == rows_of(ledger, run.run_id)


def test_a_damaged_artifact_is_not_exported(ledger: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    (path, *_) = artifacts.files_in(ledger.artifacts)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(LedgerDamaged, match="its bytes have changed"):
        export_runs(ledger, [run.run_id], tmp_path / "s.zip")
    assert not list(tmp_path.glob("*zip*"))


def test_an_export_whose_view_is_ended_reads_a_copy_of_the_ledger(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "wanted.zip")
    write, readers = snapshot_export._write_rows, []

    def end_the_first(file: Any, reader: Any, what: Any) -> Any:
        readers.append(reader)
        made = write(file, reader, what)
        if len(readers) == 1:
            reader.end()
            reader.row("SELECT 1")
        return made

    monkeypatch.setattr(snapshot_export, "_write_rows", end_the_first)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    assert len(readers) == 2
    assert (tmp_path / "s.zip").read_bytes() == (tmp_path / "wanted.zip").read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_a_killed_export_left_is_cleared_by_the_next_and_a_living_one_is_let_be(
    ledger: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    dead = tmp_path / ".s.zip.0123456789ab.part"
    dead.write_bytes(b"half")
    with beside(tmp_path / "s.zip") as alive:
        exported(ledger, run.run_id, tmp_path / "s.zip")
        assert alive.exists()
    assert not dead.exists()


def test_an_import_that_finds_one_under_way_says_so_and_takes_its_place_once_it_is_dead(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    with Child("import_slowly", elsewhere.path, tmp_path / "s.zip", pause_at="import.batch@6") as other:
        other.wait_until_there()
        with pytest.raises(RunBusy, match="another process"):
            import_snapshot(elsewhere, tmp_path / "s.zip")
        assert every(elsewhere, "SELECT state FROM runs") == [("importing",)]
    assert import_snapshot(elsewhere, tmp_path / "s.zip").changed
    assert rows_of(elsewhere, run.run_id) == rows_of(ledger, run.run_id)
    assert every(elsewhere, "SELECT state FROM imports ORDER BY import_id") == [("discarded",), ("complete",)]
    # As a third process does that found the dead one at the same time, and is slower: its number is another run's now.
    dead, key = one(elsewhere, "SELECT min(import_id), (SELECT run_key FROM runs) FROM imports")
    discard_run(elsewhere, dead, key)
    assert rows_of(elsewhere, run.run_id) == rows_of(ledger, run.run_id)
    assert findings(elsewhere) == []


@pytest.mark.parametrize("pages", [3, 300])
def test_a_disk_that_is_full_while_a_snapshot_is_unpacked_is_no_fault_of_the_snapshot(
    pages: int, ledger: Ledger, elsewhere: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the tables of the scratch database are there, and among their rows."""
    run = create_run(ledger, run_plan(), [case_plan("large", canonical_text("x" * 2_000_000))])
    exported(ledger, run.run_id, tmp_path / "s.zip")
    settings = (*snapshot_scratch._SETTINGS[1:], f"max_page_count={pages}")
    monkeypatch.setattr(snapshot_scratch, "_SETTINGS", settings)
    with pytest.raises(LedgerFailed, match=r"could not be unpacked .*full"):
        import_snapshot(elsewhere, tmp_path / "s.zip")
    assert every(elsewhere, "SELECT * FROM runs") == []
    assert list(Path(f"{elsewhere.path}.d", "imports").iterdir()) == []


def test_a_disk_that_does_not_keep_an_unpacked_artifact_is_no_fault_of_the_snapshot(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip")

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(snapshot_artifacts, "sync", fail)
        with pytest.raises(LedgerFailed, match=r"could not be unpacked \(Input/output error\)"):
            import_snapshot(elsewhere, tmp_path / "s.zip")
    assert every(elsewhere, "SELECT * FROM artifacts") == []
    assert import_snapshot(elsewhere, tmp_path / "s.zip").changed


def test_rows_are_written_while_files_come_to_their_places_and_none_refers_to_one_that_is_not_there_yet(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    has_events, early = threading.Event(), []

    def sync_late(folder: Path) -> None:
        early.append(not has_events.wait(30))
        durable.sync_folder(folder)

    def look(point: str) -> None:
        if not has_events.is_set():
            assert every(elsewhere, "SELECT * FROM artifacts") == []
        if every(elsewhere, "SELECT * FROM events"):
            has_events.set()

    monkeypatch.setattr(snapshot_artifacts, "sync_folder", sync_late)
    monkeypatch.setattr(snapshot_import, "crashpoint", look)
    monkeypatch.setattr(snapshot_shared, "crashpoint", look)
    import_snapshot(elsewhere, tmp_path / "s.zip")
    assert len(early) > 2
    assert not any(early)
    assert rows_of(elsewhere, run.run_id) == rows_of(ledger, run.run_id)
    assert findings(elsewhere) == []


def test_no_row_refers_to_files_that_the_disk_does_not_keep(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip")

    def fail(folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(snapshot_artifacts, "sync_folder", fail)
        with pytest.raises(LedgerFailed, match="could not be unpacked"):
            import_snapshot(elsewhere, tmp_path / "s.zip")
    assert every(elsewhere, "SELECT * FROM artifacts") == []
    assert every(elsewhere, "SELECT * FROM runs") == []
    assert import_snapshot(elsewhere, tmp_path / "s.zip").changed
    assert findings(elsewhere) == []


def test_an_import_for_which_the_disk_is_too_small_leaves_nothing_and_goes_again_when_there_is_room(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = case_plan("large", canonical_text("x" * 200_000))
    run = create_run(ledger, run_plan(), [large])
    exported(ledger, run.run_id, tmp_path / "s.zip")
    harden = driver.harden

    def with_a_full_disk(connection: Any, **options: Any) -> Any:
        made = harden(connection, **options)
        pages = made.execute("PRAGMA page_count").fetchone()[0]
        made.execute(f"PRAGMA max_page_count={pages + 2}").fetchone()
        return made

    elsewhere.write(lambda tx: None)
    with monkeypatch.context() as patched:
        patched.setattr(driver, "harden", with_a_full_disk)
        with pytest.raises(LedgerFailed, match=r"[Ff]ree space"):
            import_snapshot(elsewhere, tmp_path / "s.zip")
    assert every(elsewhere, "SELECT * FROM runs") == []
    assert every(elsewhere, "SELECT state FROM imports") == [("discarded",)]
    assert elsewhere.failure is None
    assert import_snapshot(elsewhere, tmp_path / "s.zip").changed
    assert rows_of(elsewhere, run.run_id) == rows_of(ledger, run.run_id)
    assert findings(elsewhere) == []
