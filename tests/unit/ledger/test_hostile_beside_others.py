"""Snapshots that are harmful beside other runs: of the same file, or of the ledger that is to take them in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tallystick.ledger.errors import SnapshotInvalid
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.snapshot_export import export_runs
from tallystick.ledger.snapshot_import import import_snapshot
from tallystick.ledger.stored_digests import digest_of_case
from tests.unit.ledger.factories import every, new_ledger
from tests.unit.ledger.forged import taken_apart
from tests.unit.ledger.snapshots import exported, full_run, rows_of
from tests.unit.ledger.test_hostile_snapshots import contents, rewrite_event


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot of a full run."""
    folder = tmp_path_factory.mktemp("sound")
    with new_ledger(folder) as ledger:
        exported(ledger, full_run(ledger).run_id, folder / "s.zip")
    return folder / "s.zip"


def test_runs_that_are_not_in_the_order_of_their_ids_are_refused(ledger: Ledger, tmp_path: Path) -> None:
    runs = [full_run(ledger, name=name).run_id for name in ("a", "b")]
    export_runs(ledger, runs, tmp_path / "s.zip")
    forgery = taken_apart(tmp_path / "s.zip")
    forgery.honest = False
    with new_ledger(tmp_path, "target.db") as target:
        assert import_snapshot(target, forgery.write(tmp_path / "f.zip")).changed
        forgery.manifest["runs"].reverse()
        forgery.seal()
        with pytest.raises(SnapshotInvalid, match="once and in order"):
            import_snapshot(target, forgery.write(tmp_path / "h.zip"))


def test_a_snapshot_that_uses_an_id_of_another_run_is_refused(sound: Path, tmp_path: Path) -> None:
    with new_ledger(tmp_path, "target.db") as target:
        import_snapshot(target, sound)
        (run_id,) = every(target, "SELECT run_id FROM runs")[0]
        before = contents(target), rows_of(target, run_id)
        forgery = taken_apart(sound)
        other = run_id[:-1] + ("0" if run_id[-1] != "0" else "1")
        forgery.rows = {name.replace(run_id, other): rows for name, rows in forgery.rows.items()}
        forgery.manifest["runs"][0]["run"] = other
        forgery.set("runs", "run_id", other)
        forgery.set("leases", "resource", f"run:{other}")
        forgery.set("fences", "resource", f"run:{other}")
        body = json.loads(forgery.table("events")[0][3])
        rewrite_event(forgery, 1, body=json.dumps({**body, "run": other}, sort_keys=True, separators=(",", ":")))
        with pytest.raises(SnapshotInvalid, match="does not go with what this ledger holds"):
            import_snapshot(target, forgery.write(tmp_path / "h.zip"))
        after = contents(target), rows_of(target, run_id)
        changed = [name for name in before[0] if before[0][name] != after[0][name]]
        assert changed == ["fences", "imports"], "a mark that is too high harms nobody, and the attempt is kept"
        assert before[1] == after[1]


def test_a_later_snapshot_that_changes_what_never_changes_is_refused(sound: Path, tmp_path: Path) -> None:
    with new_ledger(tmp_path, "target.db") as target:
        import_snapshot(target, sound)
        forgery = taken_apart(sound)
        number = forgery.table("events")[-1][0] + 1
        forgery.table("events").append([number, "run.stop_asked", 5, '{"reason":""}', ""])
        rewrite_event(forgery, 0)
        forgery.set("cases", "input", '"something else"')
        forgery.set("cases", "digest", digest_of_case("c1", '"something else"', '"yes"', "{}"))
        before = contents(target)
        with pytest.raises(SnapshotInvalid, match="tells otherwise of cases 1"):
            import_snapshot(target, forgery.write(tmp_path / "h.zip"))
        assert contents(target) == before
