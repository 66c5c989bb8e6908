"""Custody: who may go on with a run, through copies, moves, adoptions and copied files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger import budgets, coordinators, run_ends, settlements
from tallystick.ledger.canonical import digest_of_bytes
from tallystick.ledger.care import backup_ledger
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.custody_changes import adopt, begin_move
from tallystick.ledger.custody_moves import move_runs
from tallystick.ledger.errors import CustodyElsewhere, RunBusy, SnapshotDiverged, UsageError
from tallystick.ledger.evaluation_holds import leave_evaluation, open_evaluation
from tallystick.ledger.evaluations import EvaluationRow, create_evaluation, write_set
from tallystick.ledger.judgment_calls import JudgeIntent, begin_judgment, end_judgment_call
from tallystick.ledger.judgments import add_judgments
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.ledger_place import find_place
from tallystick.ledger.planning import JudgePlan
from tallystick.ledger.records import DispatchFacts, JudgmentKey, JudgmentRow
from tallystick.ledger.run_settings import change_settings
from tallystick.ledger.settlements import Decision, Settlement
from tallystick.ledger.snapshot_export import export_runs
from tallystick.ledger.snapshot_import import import_snapshot
from tallystick.ledger.states import DispatchState, IfUnknown
from tests.unit.ledger.factories import begin, evaluation_plan, every, hold, new_ledger, one
from tests.unit.ledger.snapshots import exported, full_run, go_on, rows_of


def carry(source: Ledger, target: Ledger, run_id: str, folder: Path) -> Any:
    exported(source, run_id, folder / "carried.zip")
    (told,) = import_snapshot(target, folder / "carried.zip").runs
    return told


def custody(ledger: Ledger, run_id: str) -> tuple[str, str, int]:
    row: tuple[str, str, int] = one(ledger, "SELECT state, custody, custody_epoch FROM runs WHERE run_id = ?", run_id)
    return row


def key_of(ledger: Ledger, run_id: str) -> int:
    return int(one(ledger, "SELECT run_key FROM runs WHERE run_id = ?", run_id)[0])


def sound(*ledgers: Ledger) -> None:
    for ledger in ledgers:
        assert [f"{one.code}: {one.what}" for one in check_ledger(ledger)] == []


def unknown_call(ledger: Ledger, run_key: int) -> str:
    return str(one(ledger, "SELECT call_id FROM dispatches WHERE state = 'unknown' AND run_key = ?", run_key)[0])


DECISIONS: dict[str, Callable[[Ledger, int], object]] = {
    "settle": lambda ledger, key: ledger.write(
        lambda tx: settlements.settle_unknown(
            tx, Settlement(unknown_call(ledger, key), 1, Decision.GIVE_UP, "me", "because")
        )
    ),
    "retry": lambda ledger, key: ledger.write(lambda tx: run_ends.retry(tx, key, state="failed", reason=None)),
    "abandon": lambda ledger, key: ledger.write(lambda tx: run_ends.abandon_run(tx, key, reason="r", made_by="me")),
    "stop": lambda ledger, key: ledger.write(lambda tx: run_ends.ask_to_stop(tx, key, reason="r")),
    "amend": lambda ledger, key: ledger.write(lambda tx: budgets.amend(tx, key, 1, limit=99, reason="r", made_by="me")),
    "settings": lambda ledger, key: ledger.write(lambda tx: change_settings(tx, key, "{}", [])),
}


@pytest.mark.parametrize("decision", DECISIONS)
def test_nothing_is_decided_on_a_copy(decision: str, ledger: Ledger, other: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    carry(ledger, other, run.run_id, tmp_path)
    before = rows_of(other, run.run_id)
    with pytest.raises(CustodyElsewhere, match="tallystick adopt"):
        DECISIONS[decision](other, key_of(other, run.run_id))
    assert rows_of(other, run.run_id) == before


def test_a_copy_is_gone_on_with_only_when_it_is_adopted_and_unknown_outcomes_stay_so(
    ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger, leave=False)
    carry(ledger, other, run.run_id, tmp_path)
    with pytest.raises(CustodyElsewhere):
        coordinators.open_run(other, run.run_id)
    with pytest.raises(UsageError, match="with a reason"):
        adopt(other, run.run_id, reason=" ", made_by="me")
    unknown = every(other, "SELECT call_id FROM dispatches WHERE state = 'unknown'")
    assert len(unknown) == 1
    adopted = adopt(other, run.run_id, reason="that machine burnt", made_by="me")
    assert (adopted.was, adopted.epoch, adopted.unknown) == ("copy", 2, 1)
    assert custody(other, run.run_id) == ("open", "held", 2)
    # What was in flight there is unknown here, and what was unknown still is.
    states = every(
        other, "SELECT state, count(*) FROM dispatches WHERE state IN ('unknown', 'intended') GROUP BY state"
    )
    assert states == [("unknown", 2)]
    assert one(other, "SELECT state FROM slots WHERE slot_no = 7") == ("unknown",)
    assert one(other, "SELECT solitary_deaths FROM slots WHERE slot_no = 7") == (0,)
    go_on(other, run.run_id)
    kinds = [kind for (kind,) in every(other, "SELECT kind FROM events ORDER BY event_no")]
    assert "run.adopted" in kinds
    sound(other)
    with pytest.raises(UsageError, match="already"):
        adopt(other, run.run_id, reason="again", made_by="me")


def test_fences_never_fall_from_ledger_to_ledger(ledger: Ledger, other: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    held = coordinators.open_run(ledger, run.run_id)
    for _ in range(3):
        ledger.write(lambda tx, held=held: coordinators.release_run(tx, held, reason="ended", active_us=0))  # type: ignore[misc]
        held = coordinators.open_run(ledger, run.run_id)
    carry(ledger, other, run.run_id, tmp_path)
    adopt(other, run.run_id, reason="r", made_by="me")
    assert coordinators.open_run(other, run.run_id).fence == held.fence + 1


def as_of_another_host(ledger: Ledger) -> None:
    """The workers so far are of a host that nothing can be proven of from here."""
    ledger.write(lambda tx: tx.change("UPDATE workers SET host = 'another' WHERE worker_id <> ?", (tx.worker_id,)))


def test_a_run_that_a_process_of_another_host_executes_is_adopted_by_word(tmp_path: Path) -> None:
    with new_ledger(tmp_path, "was.db") as ledger:
        run = full_run(ledger, leave=False)
    with Ledger.open(tmp_path / "was.db") as ledger:
        ledger.write(lambda tx: None)
        as_of_another_host(ledger)
        ledger.write(lambda tx: tx.change("UPDATE workers SET ended_us = NULL WHERE host = 'another'", ()))
        with pytest.raises(RunBusy):
            coordinators.open_run(ledger, run.run_id)
        adopted = adopt(ledger, run.run_id, reason="that container is gone", made_by="me")
        assert (adopted.was, adopted.epoch, adopted.unknown) == ("held", 2, 1)
        go_on(ledger, run.run_id)
        sound(ledger)


def test_a_run_that_a_process_of_this_host_executes_is_not_adopted(ledger: Ledger) -> None:
    run = full_run(ledger, leave=False)
    with pytest.raises(RunBusy):
        adopt(ledger, run.run_id, reason="r", made_by="me")


def test_a_moved_run_is_gone_on_with_where_it_was_taken_in_and_nowhere_else(
    ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    made = move_runs(ledger, [run.run_id], tmp_path / "m.zip")
    assert [(entry.custody, entry.epoch, entry.state) for entry in made.manifest.runs] == [("move", 2, "open")]
    assert custody(ledger, run.run_id) == ("moved", "moved", 2)
    with pytest.raises(CustodyElsewhere, match="was moved away"):
        coordinators.open_run(ledger, run.run_id)
    (told,) = import_snapshot(other, tmp_path / "m.zip").runs
    assert (told.became, told.custody, told.epoch) == ("new", "held", 2)
    assert not import_snapshot(other, tmp_path / "m.zip").changed
    go_on(other, run.run_id)
    sound(ledger, other)
    # The old ledger learns how it went on, and stays a copy.
    told = carry(other, ledger, run.run_id, tmp_path)
    assert (told.became, told.custody) == ("forward", "copy")
    assert custody(ledger, run.run_id) == ("open", "copy", 2)
    assert rows_of(ledger, run.run_id) == rows_of(other, run.run_id)
    sound(ledger)


def test_a_run_can_be_moved_there_and_back(ledger: Ledger, other: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    move_runs(ledger, [run.run_id], tmp_path / "there.zip")
    import_snapshot(other, tmp_path / "there.zip")
    move_runs(other, [run.run_id], tmp_path / "back.zip")
    (told,) = import_snapshot(ledger, tmp_path / "back.zip").runs
    assert (told.became, told.custody, told.epoch) == ("forward", "held", 3)
    go_on(ledger, run.run_id)
    with pytest.raises(CustodyElsewhere):
        coordinators.open_run(other, run.run_id)
    sound(ledger, other)


def test_a_move_that_was_never_imported_is_taken_back_with_a_reason(
    ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    move_runs(ledger, [run.run_id], tmp_path / "m.zip")
    adopted = adopt(ledger, run.run_id, reason="the file was deleted unread", made_by="me")
    assert (adopted.was, adopted.epoch) == ("moved", 3)
    assert custody(ledger, run.run_id) == ("open", "held", 3)
    body = json.loads(one(ledger, "SELECT body FROM events WHERE kind = 'run.adopted'")[0])
    assert (body["reason"], body["by"], body["was"]) == ("the file was deleted unread", "me", "moved")
    go_on(ledger, run.run_id)
    # If it was imported after all, the higher epoch wins as soon as that ledger learns of it.
    import_snapshot(other, tmp_path / "m.zip")
    with pytest.raises(SnapshotDiverged, match="goes on here no more"):
        carry(ledger, other, run.run_id, tmp_path)
    assert custody(other, run.run_id) == ("moved", "moved", 3)
    with pytest.raises(CustodyElsewhere):
        coordinators.open_run(other, run.run_id)
    sound(ledger, other)


def test_a_run_that_is_executed_is_not_moved(ledger: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger, leave=False)
    with pytest.raises(RunBusy):
        move_runs(ledger, [run.run_id], tmp_path / "m.zip")
    assert not (tmp_path / "m.zip").exists()
    assert custody(ledger, run.run_id) == ("open", "held", 1)


def test_a_move_that_died_before_it_could_say_that_it_was_done_is_done(ledger: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    made = move_runs(ledger, [run.run_id], tmp_path / "m.zip")
    data = (tmp_path / "m.zip").read_bytes()
    assert move_runs(ledger, [run.run_id], tmp_path / "m.zip") == made
    assert (tmp_path / "m.zip").read_bytes() == data
    with pytest.raises(CustodyElsewhere, match="was moved away"):
        move_runs(ledger, [run.run_id], tmp_path / "another.zip")
    adopt(ledger, run.run_id, reason="the file was deleted unread", made_by="me")
    move_runs(ledger, [run.run_id], tmp_path / "new.zip")
    with pytest.raises(CustodyElsewhere, match="was moved away"):
        move_runs(ledger, [run.run_id], tmp_path / "m.zip")  # of the move that was taken back


def test_a_move_that_broke_off_goes_on_and_replaces_only_its_own_file(ledger: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    begin_move(ledger, [run.run_id])
    assert custody(ledger, run.run_id) == ("moving", "moving", 2)
    with pytest.raises(CustodyElsewhere, match="being moved away"):
        coordinators.open_run(ledger, run.run_id)
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UsageError):
        move_runs(ledger, [run.run_id], tmp_path / "mine")
    # As if it had been killed between publishing and saying so.
    export_runs(ledger, [run.run_id], tmp_path / "m.zip", custody="move")
    move_runs(ledger, [run.run_id], tmp_path / "m.zip")
    assert custody(ledger, run.run_id) == ("moved", "moved", 2)


def test_a_ledger_that_went_on_all_the_same_learns_that_the_run_was_adopted(
    ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    carry(ledger, other, run.run_id, tmp_path)
    adopt(other, run.run_id, reason="that machine is gone", made_by="me")
    go_on(other, run.run_id)
    go_on(ledger, run.run_id)  # it was not
    before = rows_of(ledger, run.run_id)
    newest = one(ledger, "SELECT max(event_no) FROM events")[0]
    with pytest.raises(SnapshotDiverged, match="taken over there with epoch 2") as found:
        carry(other, ledger, run.run_id, tmp_path)
    shared = found.value.event_no - 1
    assert 0 < shared < newest
    instant = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    told = rf"event {shared + 1} is run\.opened at {instant} here and run\.adopted at {instant} there"
    assert re.search(told, str(found.value)), "at instants that people read"
    assert custody(ledger, run.run_id) == ("moved", "moved", 2)
    after = rows_of(ledger, run.run_id)
    assert after["observations"] == before["observations"], "what happened here stays"
    assert after["events"][: len(before["events"])] == before["events"]
    # And the one that adopted it is told of the difference, and changes nothing.
    with pytest.raises(SnapshotDiverged):
        carry(ledger, other, run.run_id, tmp_path)
    assert custody(other, run.run_id) == ("open", "held", 2)
    sound(ledger, other)


def test_a_ledger_that_holds_a_run_takes_no_steps_from_one_that_does_not(
    ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    carry(ledger, other, run.run_id, tmp_path)
    # As somebody would do it who writes to the file by hand.
    other.write(lambda tx: tx.change("UPDATE runs SET custody = 'held'", ()))
    go_on(other, run.run_id)
    with pytest.raises(SnapshotDiverged, match="this ledger's to continue"):
        carry(other, ledger, run.run_id, tmp_path)
    assert custody(ledger, run.run_id) == ("open", "held", 1)


# A ledger's file that was copied.


def closed_ledger_with_a_run(folder: Path) -> tuple[Path, str]:
    with new_ledger(folder, "was.db") as ledger:
        run = full_run(ledger)
    return folder / "was.db", run.run_id


def test_a_copied_file_is_noticed_and_its_runs_are_copies_until_they_are_adopted(tmp_path: Path) -> None:
    path, run_id = closed_ledger_with_a_run(tmp_path)
    shutil.copy(path, tmp_path / "copied.db")
    shutil.copytree(tmp_path / "was.db.d", tmp_path / "copied.db.d")
    with Ledger.open(tmp_path / "copied.db") as copied:
        with pytest.raises(CustodyElsewhere, match="copied, restored or moved to another disk"):
            coordinators.open_run(copied, run_id)
        assert custody(copied, run_id) == ("open", "copy", 1)
        adopt(copied, run_id, reason="the first one was deleted", made_by="me")
        go_on(copied, run_id)
        sound(copied)
    with Ledger.open(tmp_path / "copied.db") as again:
        assert custody(again, run_id) == ("open", "held", 2)
    with Ledger.open(path) as first:
        go_on(first, run_id)  # it was not touched, and knows nothing of the copy


def test_a_renamed_file_is_still_the_same_ledger(tmp_path: Path) -> None:
    path, run_id = closed_ledger_with_a_run(tmp_path)
    path.rename(tmp_path / "now.db")
    (tmp_path / "was.db.d").rename(tmp_path / "now.db.d")
    with Ledger.open(tmp_path / "now.db") as ledger:
        go_on(ledger, run_id)


def test_a_move_that_was_under_way_in_a_copied_file_is_not_finished_by_the_copy(tmp_path: Path) -> None:
    with new_ledger(tmp_path, "was.db") as ledger:
        run = full_run(ledger)
        begin_move(ledger, [run.run_id])
    shutil.copy(tmp_path / "was.db", tmp_path / "copied.db")
    with Ledger.open(tmp_path / "copied.db") as copied:
        with pytest.raises(CustodyElsewhere):
            move_runs(copied, [run.run_id], tmp_path / "m.zip")
        assert custody(copied, run.run_id) == ("moved", "moved", 2)


def test_looking_at_a_copied_file_changes_nothing_in_it(tmp_path: Path) -> None:
    path, run_id = closed_ledger_with_a_run(tmp_path)
    shutil.copy(path, tmp_path / "copied.db")
    before = (tmp_path / "copied.db").read_bytes()
    with Ledger.open(tmp_path / "copied.db") as copied:
        assert custody(copied, run_id) == ("open", "held", 1)
    assert (tmp_path / "copied.db").read_bytes() == before


def test_the_place_of_a_file_is_its_inode_and_its_volume(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    place = find_place(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    assert find_place(tmp_path / "b") == place
    shutil.copy(tmp_path / "b", tmp_path / "c")
    assert find_place(tmp_path / "c") != place


# What is judged in a copy.


def judge(ledger: Ledger, run_id: str, name: str, *, passed: bool = True) -> EvaluationRow:
    """A whole evaluation after the run."""
    plan = evaluation_plan(name, JudgePlan("strict", "exact", "{}"))
    row = ledger.write(lambda tx: create_evaluation(tx, run_id, plan))
    held = open_evaluation(ledger, row)
    while not ledger.write(lambda tx: write_set(tx, row)):
        pass
    waiting = every(
        ledger, "SELECT judge_no, slot_no, attempt_no FROM judgments WHERE run_key = ? AND evaluation_no = ?",
        row.run_key, row.evaluation_no,
    )  # fmt: skip
    found = [JudgmentRow(judge, slot, attempt, passed=passed) for judge, slot, attempt in waiting]
    ledger.write(lambda tx: add_judgments(tx, row.run_key, row.evaluation_no, found))
    assert ledger.write(lambda tx: leave_evaluation(tx, held, reason="ended"))
    return row


def verdicts(ledger: Ledger, name: str) -> list[Any]:
    return every(
        ledger, "SELECT j.slot_no, j.passed FROM judgments j JOIN evaluations e ON e.run_key = j.run_key"
        " AND e.evaluation_no = j.evaluation_no WHERE e.name = ? ORDER BY j.slot_no", name,
    )  # fmt: skip


def told_of_local(ledger: Ledger) -> list[Any]:
    """What the history tells of the evaluations that were made in a copy, but for where their sets end."""
    rows = every(ledger, "SELECT kind, body FROM events ORDER BY event_no")
    bodies = [(kind, json.loads(body)) for kind, body in rows]
    return [(kind, {**body, "set_at": None}) for kind, body in bodies if body.get("evaluation", 0) > 1000]


def test_evaluations_of_a_copy_stay_when_it_is_moved_forward(ledger: Ledger, other: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    judge(ledger, run.run_id, "first there")
    carry(ledger, other, run.run_id, tmp_path)
    assert judge(other, run.run_id, "here", passed=False).evaluation_no == 1001
    assert judge(other, run.run_id, "here again").evaluation_no == 1002
    mine, told_here = verdicts(other, "here"), told_of_local(other)
    assert len(mine) == 3
    assert [kind for kind, _ in told_here].count("evaluation.created") == 2
    go_on(ledger, run.run_id)
    judge(ledger, run.run_id, "second there")
    told = carry(ledger, other, run.run_id, tmp_path)
    assert told.became == "forward"
    assert verdicts(other, "here") == mine
    assert told_of_local(other) == told_here
    ends = every(other, "SELECT set_at_event, set_read_to FROM evaluations WHERE evaluation_no > 1000")
    last_shared = one(other, "SELECT max(event_no) FROM events WHERE kind = 'attempt.observed'")[0]
    assert [at == read_to and at < last_shared for at, read_to in ends] == [True, True], "the set stays what it was"
    assert len(verdicts(other, "first there")) == 3
    assert len(verdicts(other, "second there")) == 4
    assert one(other, "SELECT state FROM slots WHERE slot_no = 8") == ("selected",)
    sound(other)
    # What is local comes after what is shared, and the next snapshot moves it forward again.
    ledger.write(lambda tx: run_ends.retry(tx, run.run_key, state="failed", reason=None))
    assert carry(ledger, other, run.run_id, tmp_path).became == "forward"
    assert verdicts(other, "here") == mine
    assert not import_snapshot(other, tmp_path / "carried.zip").changed
    sound(other)


def test_what_a_copys_judge_has_spent_stays_spent_when_the_copy_is_moved_forward(
    ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    carry(ledger, other, run.run_id, tmp_path)
    plan = evaluation_plan("here", JudgePlan("strict", "model", "{}"))
    row = other.write(lambda tx: create_evaluation(tx, run.run_id, plan))
    held = open_evaluation(other, row)
    while not other.write(lambda tx: write_set(tx, row)):
        pass
    key = JudgmentKey(row.run_key, row.evaluation_no, 1, 1, 1, 1)
    asked = digest_of_bytes(b"ask")
    intent = JudgeIntent(key, "judges-1", "{}", b"ask", asked, 3, IfUnknown.KEEP, (hold(1),))
    sent = other.write(lambda tx: begin_judgment(tx, intent))
    verdict = JudgmentRow(1, 1, 1, passed=True, call_id=sent.call_id)
    facts = DispatchFacts(DispatchState.ANSWERED)
    other.write(lambda tx: end_judgment_call(tx, key, sent, facts, verdict))
    other.write(lambda tx: leave_evaluation(tx, held, reason="ended"))
    settled = (
        "SELECT settled FROM budgets WHERE run_key = (SELECT run_key FROM runs WHERE run_id = ?) AND budget_no = 1"
    )
    here, there = one(other, settled, run.run_id)[0], one(ledger, settled, run.run_id)[0]
    assert here == there + 1
    go_on(ledger, run.run_id)
    assert carry(ledger, other, run.run_id, tmp_path).became == "forward"
    assert one(other, settled, run.run_id)[0] == one(ledger, settled, run.run_id)[0] + 1
    sound(other)


def test_an_evaluation_that_came_with_a_copy_is_not_gone_on_with_there(
    ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    plan = evaluation_plan("there", JudgePlan("strict", "exact", "{}"))
    row = ledger.write(lambda tx: create_evaluation(tx, run.run_id, plan))
    carry(ledger, other, run.run_id, tmp_path)
    with pytest.raises(CustodyElsewhere):
        open_evaluation(other, row)


def test_what_was_judged_elsewhere_comes_back_to_the_ledger_that_holds_the_run(
    ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    carry(ledger, other, run.run_id, tmp_path)
    judge(other, run.run_id, "there")
    told = carry(other, ledger, run.run_id, tmp_path)
    assert (told.became, told.custody) == ("forward", "held")
    assert len(verdicts(ledger, "there")) == 3
    assert judge(ledger, run.run_id, "here").evaluation_no == 2
    go_on(ledger, run.run_id)
    sound(ledger)


def test_a_run_that_is_executed_here_is_not_moved_forward(ledger: Ledger, other: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    carry(ledger, other, run.run_id, tmp_path)
    adopt(other, run.run_id, reason="r", made_by="me")
    go_on(other, run.run_id)
    held = coordinators.open_run(ledger, run.run_id)
    begin(ledger, held.run_key, 8, holds=(hold(1),))
    with pytest.raises((RunBusy, SnapshotDiverged)):
        carry(other, ledger, run.run_id, tmp_path)
    assert custody(ledger, run.run_id)[1] == "held"


def test_no_snapshot_move_or_backup_is_written_over_the_ledger_itself(ledger: Ledger) -> None:
    run = full_run(ledger)
    before = rows_of(ledger, run.run_id)
    for write in (
        lambda: exported(ledger, run.run_id, ledger.path),
        lambda: move_runs(ledger, [run.run_id], ledger.path, force=True),
        lambda: backup_ledger(ledger, ledger.path, force=True),
    ):
        with pytest.raises(UsageError, match="belongs to the ledger"):
            write()
    assert rows_of(ledger, run.run_id) == before
    assert check_ledger(ledger) == []
