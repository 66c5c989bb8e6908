"""Copies that are judged: while somebody is at it, beside other copies, and with their qualifications."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger import snapshot_import
from tallystick.ledger.custody_changes import begin_move
from tallystick.ledger.custody_moves import move_runs
from tallystick.ledger.errors import (
    RunBusy,
    SnapshotDiverged,
    SnapshotInvalid,
)
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.qualifications import add_qualification, link_qualification
from tallystick.ledger.snapshot_import import import_snapshot
from tests.unit.ledger.children import Child
from tests.unit.ledger.factories import every, new_ledger, one
from tests.unit.ledger.snapshots import exported, full_run, go_on, rows_of
from tests.unit.ledger.test_custody import carry, custody, judge, sound, verdicts


def test_of_two_copies_that_were_judged_none_takes_the_place_of_the_other(
    ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    (tmp_path / "third").mkdir()
    with new_ledger(tmp_path / "third") as third:
        for copy, name in ((other, "here"), (third, "there")):
            carry(ledger, copy, run.run_id, tmp_path)
            assert judge(copy, run.run_id, name).evaluation_no == 1001
        before = rows_of(other, run.run_id)
        with pytest.raises(SnapshotDiverged, match="judged in this copy and in another one"):
            carry(third, other, run.run_id, tmp_path)
        assert rows_of(other, run.run_id) == before
        # And what the run itself did since still comes.
        go_on(ledger, run.run_id)
        assert carry(ledger, other, run.run_id, tmp_path).became == "forward"
        assert len(verdicts(other, "here")) == 3
        sound(other)


def test_a_move_that_was_judged_while_it_was_broken_off_is_taken_in_where_a_copy_of_it_is(
    ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    begin_move(ledger, [run.run_id])
    carry(ledger, other, run.run_id, tmp_path)
    assert custody(other, run.run_id) == ("open", "copy", 2)
    judge(ledger, run.run_id, "meanwhile")
    move_runs(ledger, [run.run_id], tmp_path / "m.zip")
    (told,) = import_snapshot(other, tmp_path / "m.zip").runs
    assert (told.became, told.custody) == ("forward", "held")
    assert not import_snapshot(other, tmp_path / "m.zip").changed
    go_on(other, run.run_id)
    sound(ledger, other)


def test_a_copy_that_somebody_judges_is_not_moved_forward_until_that_process_has_ended(
    ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    carry(ledger, other, run.run_id, tmp_path)
    go_on(ledger, run.run_id)
    with Child("judge_and_wait", other.path, run.run_id) as judging:
        assert judging.line() == "judging"
        before = rows_of(other, run.run_id)
        with pytest.raises(RunBusy, match=f"process {judging.pid} "):
            carry(ledger, other, run.run_id, tmp_path)
        assert rows_of(other, run.run_id) == before
    assert carry(ledger, other, run.run_id, tmp_path).became == "forward"
    assert every(other, "SELECT state, reason FROM leases WHERE resource LIKE 'evaluation:%'") == [
        ("lost", "its process died")
    ]
    sound(other)


@pytest.mark.parametrize("meanwhile", ["judged", "moved forward"])
def test_a_copy_that_changes_while_it_is_compared_is_let_be(
    meanwhile: str, ledger: Ledger, other: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_run(ledger)
    carry(ledger, other, run.run_id, tmp_path)
    go_on(ledger, run.run_id)
    exported(ledger, run.run_id, tmp_path / "later.zip")
    after: list[Any] = []

    def change(point: str) -> None:
        if point == "forward.prepared" and not after:
            after.append({})
            if meanwhile == "judged":
                judge(other, run.run_id, "here")
            else:
                import_snapshot(other, tmp_path / "later.zip")
            after[0] = rows_of(other, run.run_id)

    monkeypatch.setattr(snapshot_import, "crashpoint", change)
    with pytest.raises(RunBusy, match="has changed while"):
        import_snapshot(other, tmp_path / "later.zip")
    assert rows_of(other, run.run_id) == after[0]
    (told,) = import_snapshot(other, tmp_path / "later.zip").runs
    assert told.became == ("forward" if meanwhile == "judged" else "unchanged")
    sound(other)


def test_a_qualification_travels_with_what_it_qualifies_and_is_never_exchanged(
    ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    row = judge(ledger, run.run_id, "qualified")
    added = ledger.write(lambda tx: add_qualification(tx, judge_digest="d", set_digest="s", document={"n": 1}))
    ledger.write(lambda tx: link_qualification(tx, row, 1, qualification_id=added, met=True, is_brought=False))
    carry(ledger, other, run.run_id, tmp_path)
    kept = "SELECT qualification_id, judge_digest, set_digest, document, made_us FROM qualifications"
    assert every(other, kept) == every(ledger, kept)
    assert one(other, "SELECT qualification_id FROM evaluation_judges WHERE evaluation_no = 2") == (added,)
    other.write(lambda tx: tx.change("UPDATE qualifications SET document = ?", ('{"n":2}',)))
    go_on(ledger, run.run_id)
    before = rows_of(other, run.run_id)
    with pytest.raises(SnapshotInvalid, match=f"another qualification {added}"):
        carry(ledger, other, run.run_id, tmp_path)
    assert rows_of(other, run.run_id) == before
    assert [document for *_, document, _ in every(other, kept)] == ['{"n":2}']
