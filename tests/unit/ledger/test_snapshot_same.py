"""Columns that say the same in every row of a run travel once, and come out in every row."""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger import snapshot_load, snapshot_same, snapshot_scratch
from tallystick.ledger.checks import EventsRead, check_ledger
from tallystick.ledger.errors import SnapshotInvalid
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.snapshot_export import export_runs
from tallystick.ledger.snapshot_format import SAME_MAX
from tallystick.ledger.snapshot_import import import_snapshot
from tests.unit.ledger.factories import every, new_ledger, new_run
from tests.unit.ledger.forged import Forgery, taken_apart
from tests.unit.ledger.snapshots import exported, full_run, go_on, rows_of


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Ledger]:
    """Another ledger in another folder."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with new_ledger(folder) as opened:
        yield opened


@pytest.fixture
def squeezed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of two rows are large ones."""
    monkeypatch.setattr(snapshot_same, "ROWS_MIN", 2)


def manifest_of(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        found: dict[str, Any] = json.loads(archive.read("manifest.json"))
        return found


@pytest.mark.parametrize("by_sqlite", [True, False], ids=["by SQLite", "by Python"])
def test_a_run_comes_out_as_it_went_in_and_gives_the_same_bytes(
    by_sqlite: bool, squeezed: None, ledger: Ledger, elsewhere: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_scratch, "READS_JSON", by_sqlite and snapshot_scratch.READS_JSON)
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    same = manifest_of(tmp_path / "s.zip")["runs"][0]["same"]
    assert same["attempts"]["custody_epoch"] == 1
    assert same["calls"]["evaluation_no"] is None
    assert "state" not in same["slots"]
    import_snapshot(elsewhere, tmp_path / "s.zip")
    assert rows_of(elsewhere, run.run_id) == rows_of(ledger, run.run_id)
    assert check_ledger(elsewhere) == []
    exported(elsewhere, run.run_id, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == (tmp_path / "s.zip").read_bytes()


def test_what_differs_in_one_row_beyond_the_first_ones_stands_in_every_row(ledger: Ledger, tmp_path: Path) -> None:
    run = new_run(ledger, 101)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    assert manifest_of(tmp_path / "s.zip")["runs"][0]["same"]["slots"]["suspect"] == 0
    ledger.write(lambda tx: tx.change("UPDATE slots SET suspect = 1 WHERE slot_no = 101", ()))
    exported(ledger, run.run_id, tmp_path / "s.zip")
    same = manifest_of(tmp_path / "s.zip")["runs"][0]["same"]["slots"]
    assert same["state"] == "pending"
    assert "suspect" not in same


def test_small_tables_and_parts_of_runs_are_written_whole(
    squeezed: None, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_run(ledger)
    export_runs(ledger, [run.run_id], tmp_path / "part.zip", redact=("messages",))
    assert manifest_of(tmp_path / "part.zip")["runs"][0]["same"] == {}
    monkeypatch.setattr(snapshot_same, "ROWS_MIN", 1_000)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    assert manifest_of(tmp_path / "s.zip")["runs"][0]["same"] == {}


def test_a_copy_is_moved_forward_by_it(squeezed: None, ledger: Ledger, elsewhere: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    import_snapshot(elsewhere, tmp_path / "s.zip")
    go_on(ledger, run.run_id)
    exported(ledger, run.run_id, tmp_path / "later.zip")
    assert import_snapshot(elsewhere, tmp_path / "later.zip").runs[0].became == "forward"
    assert rows_of(elsewhere, run.run_id) == rows_of(ledger, run.run_id)


def events_read(monkeypatch: pytest.MonkeyPatch) -> list[EventsRead | None]:
    """What was told of the events before the other rows were there, of each import from here on."""
    found: list[EventsRead | None] = []

    @contextlib.contextmanager
    def noted(*arguments: Any) -> Iterator[Callable[[], EventsRead | None]]:
        with snapshot_load.rows_loaded(*arguments) as told:
            found.append(told())
            yield told

    monkeypatch.setattr("tallystick.ledger.snapshot_verify.rows_loaded", noted)
    return found


def test_the_events_of_one_run_are_read_early_and_those_of_two_with_their_rows(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = events_read(monkeypatch)
    runs = [full_run(ledger).run_id, full_run(ledger, name="other").run_id]
    export_runs(ledger, runs[:1], tmp_path / "one.zip")
    export_runs(ledger, runs, tmp_path / "two.zip")
    import_snapshot(elsewhere, tmp_path / "one.zip")
    import_snapshot(elsewhere, tmp_path / "two.zip")
    first, second = found
    assert first is not None
    assert first.broken == ()
    assert first.known is not None
    assert first.known.history.event_no == every(ledger, "SELECT max(event_no) FROM events WHERE run_key = 1")[0][0]
    assert second is None


def test_events_that_make_no_sense_are_refused_though_they_were_read_early(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = events_read(monkeypatch)
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    forgery = taken_apart(tmp_path / "s.zip")
    forgery.set("events", "body", '{"slot":"one"}', where=lambda row: row["kind"] == "attempt.observed")
    with pytest.raises(SnapshotInvalid):
        import_snapshot(elsewhere, forgery.write(tmp_path / "f.zip"))
    assert found[0] is not None
    assert found[0].known is None
    assert found[0].broken != ()


def say(table: str, **values: Any) -> Any:
    """Take the columns out of the rows and say once what they hold."""

    def spoil(forgery: Forgery) -> None:
        names = forgery.manifest["columns"][table]
        places = [place for place, name in enumerate(names) if name not in values]
        rows = forgery.table(table)
        rows[:] = [[row[place] for place in places] for row in rows]
        forgery.manifest["runs"][0]["same"] = {table: values}

    return spoil


def keep(table: str, **values: Any) -> Any:
    """Say it of columns that the rows have, too."""

    def spoil(forgery: Forgery) -> None:
        forgery.manifest["runs"][0]["same"] = {table: values}

    return spoil


HARM = {
    "what is not the same": say("slots", state="selected"),
    "text where a number belongs": say("slots", suspect="no"),
    "a number that is too large": say("slots", suspect=2**63),
    "half a number": say("slots", suspect=0.5),
    "a truth": say("slots", suspect=False),
    "a text that is too long": say("slots", reason="x" * (SAME_MAX + 1)),
    "bytes": say("dispatches", raw="00ff"),
    "a column that rows have": keep("slots", suspect=0),
    "a column that is not there": keep("slots", nothing=0),
    "the number of the run": keep("slots", run_key=2),
    "a table that is not there": keep("nothing", suspect=0),
    "a table without rows": keep("turns", turn=1),
    "a shared table": keep("workers", version="1"),
    "no column": keep("slots"),
}


@pytest.mark.parametrize("by_sqlite", [True, False], ids=["by SQLite", "by Python"])
@pytest.mark.parametrize("harm", HARM)
def test_what_cannot_be_the_same_is_refused(
    harm: str, by_sqlite: bool, ledger: Ledger, elsewhere: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_scratch, "READS_JSON", by_sqlite and snapshot_scratch.READS_JSON)
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    forgery = taken_apart(tmp_path / "s.zip")
    HARM[harm](forgery)
    with pytest.raises(SnapshotInvalid):
        import_snapshot(elsewhere, forgery.write(tmp_path / "f.zip"))
    assert every(elsewhere, "SELECT count(*) FROM runs") == [(0,)]


def test_a_member_with_more_rows_than_it_is_said_to_have_is_stopped_at_that(
    ledger: Ledger, elsewhere: Ledger, tmp_path: Path
) -> None:
    # A short row may stand for a long one: only the number that the manifest says bounds what they take.
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    forgery = taken_apart(tmp_path / "s.zip")
    forgery.write(tmp_path / "f.zip")
    member = next(one for one in forgery.manifest["members"] if "slots" in one["name"])
    member["rows"] -= 1
    forgery.honest = False
    forgery.seal()
    with pytest.raises(SnapshotInvalid, match="more rows than it is said to have"):
        import_snapshot(elsewhere, forgery.write(tmp_path / "f.zip"))
