"""Moves that are refused, broken off or taken back, and what else a snapshot must not take from a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger import (
    coordinators,
    custody_changes,
    evaluation_holds,
    run_ends,
    snapshot_export,
    snapshot_import,
    snapshot_shared,
)
from tallystick.ledger.canonical import digest_of_bytes
from tallystick.ledger.check_rules import Severity
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.custody_changes import adopt
from tallystick.ledger.custody_moves import move_runs
from tallystick.ledger.errors import (
    RefusedError,
    RunBusy,
    RunNotFound,
    SnapshotDiverged,
    UsageError,
)
from tallystick.ledger.evaluations import create_evaluation, write_set
from tallystick.ledger.judgment_calls import JudgeIntent, begin_judgment, end_judgment_call
from tallystick.ledger.judgments import mark_judging
from tallystick.ledger.lease_calls import LeaseCall, begin_lease_call
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.planning import JudgePlan, PlannedRun
from tallystick.ledger.records import DispatchFacts, JudgmentKey, JudgmentRow
from tallystick.ledger.snapshot_import import import_snapshot
from tallystick.ledger.states import DispatchState, IfUnknown
from tests.unit.ledger.children import Child
from tests.unit.ledger.devices import device, granted_to, held_under, other_worker, write_as
from tests.unit.ledger.factories import evaluation_plan, every, hold, new_ledger, one
from tests.unit.ledger.snapshots import exported, full_run, go_on, rows_of
from tests.unit.ledger.test_custody import as_of_another_host, carry, custody, sound


def test_several_runs_are_moved_together_or_none_of_them(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, busy = full_run(ledger, name="free"), full_run(ledger, name="busy")
    held = coordinators.open_run(ledger, busy.run_id)
    monkeypatch.setattr(snapshot_export, "RUNS_MAX", 2)
    refusals: list[tuple[type[Exception], str, list[str]]] = [
        (RunBusy, "executed by", [busy.run_id]),
        (RunNotFound, "no run", ["nothing"]),
        (UsageError, "holds 1 to 2 runs", [busy.run_id, "more"]),
    ]
    for refused, why, others in refusals:
        with pytest.raises(refused, match=why):
            move_runs(ledger, [free.run_id, *others], tmp_path / "m.zip")
        assert custody(ledger, free.run_id) == ("open", "held", 1)
    ledger.write(lambda tx: coordinators.release_run(tx, held, reason="ended", active_us=0))
    move_runs(ledger, [free.run_id, busy.run_id], tmp_path / "m.zip")
    assert {custody(ledger, run.run_id)[0] for run in (free, busy)} == {"moved"}


def test_a_move_that_is_refused_in_its_middle_holds_nothing_afterwards(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [full_run(ledger, name=name).run_id for name in ("first", "second")]
    opened = coordinators.open_run

    def busy_at_the_second(ledger: Ledger, run_id: str) -> Any:
        """As if somebody had taken it just now."""
        if run_id == sorted(runs)[1]:
            raise RunBusy("it is busy", "wait", run_id)
        return opened(ledger, run_id)

    monkeypatch.setattr("tallystick.ledger.custody_changes.open_run", busy_at_the_second)
    with pytest.raises(RunBusy, match="it is busy"):
        move_runs(ledger, runs, tmp_path / "m.zip")
    for run_id in runs:
        assert custody(ledger, run_id) == ("open", "held", 1)
        go_on(ledger, run_id)
    sound(ledger)


def test_a_run_that_was_given_up_is_so_when_its_move_is_taken_back(ledger: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    ledger.write(lambda tx: run_ends.abandon_run(tx, run.run_key, reason="r", made_by="me"))
    made = move_runs(ledger, [run.run_id], tmp_path / "m.zip")
    assert [entry.state for entry in made.manifest.runs] == ["cancelled"]
    adopt(ledger, run.run_id, reason="the file was deleted unread", made_by="me")
    assert custody(ledger, run.run_id) == ("cancelled", "held", 3)
    sound(ledger)


def test_what_the_dead_held_keeps_no_run_from_being_moved(ledger: Ledger, other: Ledger, tmp_path: Path) -> None:
    run = full_run(ledger)
    with Child("judge_and_wait", ledger.path, run.run_id) as judge:
        assert judge.line() == "judging"
        with pytest.raises(RunBusy, match=f"process {judge.pid} "):
            move_runs(ledger, [run.run_id], tmp_path / "m.zip")
        assert custody(ledger, run.run_id) == ("open", "held", 1)
        go_on(ledger, run.run_id)
    move_runs(ledger, [run.run_id], tmp_path / "m.zip")
    import_snapshot(other, tmp_path / "m.zip")
    sound(ledger, other)


@pytest.mark.parametrize("way", ["move", "adopt"])
def test_what_a_dead_process_had_asked_of_a_device_is_unknown_where_the_run_goes_on(
    way: str, ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    dead = other_worker(ledger, "dead")
    held = granted_to(ledger, device(), run_key=run.run_key, worker=dead)
    call = LeaseCall("reset-1", run.run_key, "reset", "{}", b"reset", held_under(held))
    write_as(ledger, dead, lambda tx: begin_lease_call(tx, call))
    if way == "move":
        move_runs(ledger, [run.run_id], tmp_path / "m.zip")
        import_snapshot(other, tmp_path / "m.zip")
    else:
        carry(ledger, other, run.run_id, tmp_path)
        adopt(other, run.run_id, reason="that machine is gone", made_by="me")
    assert one(other, "SELECT state FROM dispatches WHERE call_id = 'reset-1'") == ("unknown",)
    sound(other)


def judged_by_the_dead(ledger: Ledger, run: PlannedRun) -> None:
    """A dead process was at three judgments of an evaluation, two of them by calls, and at one of the run's own."""
    dead = other_worker(ledger, "dead")
    plan = evaluation_plan("theirs", JudgePlan("strict", "model", "{}"))
    row = ledger.write(lambda tx: create_evaluation(tx, run.run_id, plan))
    write_as(ledger, dead, lambda tx: evaluation_holds._take(tx, row, None, 3))
    assert ledger.write(lambda tx: write_set(tx, row))
    for slot_no, attempt_no, if_unknown in ((1, 1, IfUnknown.KEEP), (4, 2, IfUnknown.REPEAT)):
        key = JudgmentKey(row.run_key, row.evaluation_no, 1, slot_no, attempt_no, 1)
        asked = digest_of_bytes(b"ask")
        intent = JudgeIntent(key, f"judges-{slot_no}", "{}", b"ask", asked, 3, if_unknown, (hold(1),))
        write_as(ledger, dead, lambda tx, intent=intent: begin_judgment(tx, intent))  # type: ignore[misc]
    at_once = [JudgmentKey(row.run_key, row.evaluation_no, 1, 6, 1, 1), JudgmentKey(row.run_key, 1, 1, 6, 1, 1)]
    write_as(ledger, dead, lambda tx: mark_judging(tx, at_once))


@pytest.mark.parametrize("way", ["move", "adopt", "lose"])
def test_what_a_dead_process_was_judging_is_under_way_nowhere_once_the_run_is_anothers(
    way: str, ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    if way == "lose":
        carry(ledger, other, run.run_id, tmp_path)
        adopt(other, run.run_id, reason="that machine is gone", made_by="me")
        judged_by_the_dead(ledger, run)
        with pytest.raises(SnapshotDiverged, match="goes on here no more"):
            carry(other, ledger, run.run_id, tmp_path)
    elif way == "move":
        judged_by_the_dead(ledger, run)
        move_runs(ledger, [run.run_id], tmp_path / "m.zip")
        import_snapshot(other, tmp_path / "m.zip")
    else:
        judged_by_the_dead(ledger, run)
        carry(ledger, other, run.run_id, tmp_path)
        adopt(other, run.run_id, reason="that machine is gone", made_by="me")
    for found in {"move": (ledger, other), "adopt": (other,), "lose": (ledger,)}[way]:
        calls = "SELECT d.state, r.state FROM dispatches d JOIN reservations r USING (call_id, dispatch_no)"
        assert every(found, f"{calls} WHERE call_id LIKE 'judges-%'") == 2 * [("unknown", "held")]
        judged = "SELECT evaluation_no, slot_no, state, reason, solitary_deaths FROM judgments WHERE slot_no <> 1"
        assert every(found, f"{judged} ORDER BY evaluation_no, slot_no") == [
            (1, 6, "pending", None, 0), (2, 4, "pending", None, 0), (2, 6, "pending", None, 0)
        ]  # fmt: skip
        undecided = "SELECT state, reason FROM judgments WHERE evaluation_no = 2 AND slot_no = 1"
        assert one(found, undecided) == ("no_verdict", "unknown_outcome")
        assert [one for one in check_ledger(found) if one.severity is Severity.ERROR] == []
        assert every(found, "SELECT 1 FROM leases WHERE state = 'held'") == []


def test_what_is_judged_in_a_copy_while_it_is_adopted_gets_its_answer(
    ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    carry(ledger, other, run.run_id, tmp_path)
    plan = evaluation_plan("here", JudgePlan("strict", "model", "{}"))
    row = other.write(lambda tx: create_evaluation(tx, run.run_id, plan))
    evaluation_holds.open_evaluation(other, row)
    assert other.write(lambda tx: write_set(tx, row))
    key = JudgmentKey(row.run_key, row.evaluation_no, 1, 1, 1, 1)
    intent = JudgeIntent(key, "judges-1", "{}", b"ask", digest_of_bytes(b"ask"), 3, IfUnknown.KEEP, ())
    sent = other.write(lambda tx: begin_judgment(tx, intent))
    adopt(other, run.run_id, reason="that machine is gone", made_by="me")
    verdict = JudgmentRow(1, 1, 1, passed=True, call_id=sent.call_id)
    other.write(lambda tx: end_judgment_call(tx, key, sent, DispatchFacts(DispatchState.ANSWERED), verdict))
    sound(other)


def test_what_the_dead_held_keeps_no_ledger_from_learning_that_a_run_was_adopted(
    ledger: Ledger, other: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_run(ledger)
    carry(ledger, other, run.run_id, tmp_path)
    adopt(other, run.run_id, reason="that machine is gone", made_by="me")
    go_on(other, run.run_id)
    with Child("coordinate_and_wait", ledger.path, run.run_id, "keep", 0, 8) as alive:  # it was not
        assert alive.line()
        with pytest.raises(RunBusy, match=f"process {alive.pid} "):
            carry(other, ledger, run.run_id, tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(custody_changes, "dead_leases", lambda *_, **__: ())  # it came just after the look
            with pytest.raises(RunBusy, match="another process"):
                import_snapshot(ledger, tmp_path / "carried.zip")
        assert custody(ledger, run.run_id) == ("open", "held", 1)
    with pytest.raises(SnapshotDiverged, match="goes on here no more"):
        carry(other, ledger, run.run_id, tmp_path)
    assert custody(ledger, run.run_id) == ("moved", "moved", 2)
    sound(ledger)


def test_the_file_of_a_move_gives_nothing_to_a_copy_that_knows_how_it_went_on(
    ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    move_runs(ledger, [run.run_id], tmp_path / "m.zip")
    import_snapshot(other, tmp_path / "m.zip")
    go_on(other, run.run_id)
    (tmp_path / "third").mkdir()
    with new_ledger(tmp_path / "third") as third:
        carry(other, third, run.run_id, tmp_path)
        (told,) = import_snapshot(third, tmp_path / "m.zip").runs
        assert (told.became, told.custody) == ("unchanged", "copy")
        assert custody(third, run.run_id) == ("open", "copy", 2)


def test_of_two_that_adopt_a_run_from_another_host_the_second_takes_nothing_from_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_ledger(tmp_path, "was.db") as ledger:
        run = full_run(ledger, leave=False)
    with Ledger.open(tmp_path / "was.db") as ledger:
        ledger.write(lambda tx: None)
        as_of_another_host(ledger)
        ledger.write(lambda tx: tx.change("UPDATE workers SET ended_us = NULL WHERE host = 'another'", ()))
        seen = coordinators.coordinator_of(ledger, run.run_id)
        adopt(ledger, run.run_id, reason="that container is gone", made_by="me")
        held = coordinators.open_run(ledger, run.run_id)
        monkeypatch.setattr(custody_changes, "coordinator_of", lambda *_: seen)  # as the second had looked before
        with pytest.raises(RunBusy, match="taken over meanwhile"):
            adopt(ledger, run.run_id, reason="that container is gone", made_by="somebody else")
        assert custody(ledger, run.run_id) == ("open", "held", 2)
        assert one(ledger, "SELECT state FROM leases WHERE lease_id = ?", held.lease_id) == ("held",)


@pytest.mark.parametrize("here", ["nothing", "an early copy", "a copy that knows of the move"])
def test_whoever_takes_a_moved_run_in_says_so_in_its_history(
    here: str, ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    if here == "an early copy":
        carry(ledger, other, run.run_id, tmp_path)
        go_on(ledger, run.run_id)
    move_runs(ledger, [run.run_id], tmp_path / "m.zip")
    if here == "a copy that knows of the move":
        carry(ledger, other, run.run_id, tmp_path)
    (told,) = import_snapshot(other, tmp_path / "m.zip").runs
    assert told.became == {"nothing": "new", "an early copy": "forward"}.get(here, "held")
    assert (told.custody, told.epoch) == ("held", 2)
    assert custody(other, run.run_id) == ("open", "held", 2)
    newest = every(other, "SELECT kind, json_extract(body, '$.epoch') FROM events ORDER BY event_no DESC LIMIT 1")
    assert newest == [("run.taken_over", 2)]
    assert not import_snapshot(other, tmp_path / "m.zip").changed
    coordinators.open_run(other, run.run_id)
    sound(other)


def test_a_snapshot_tells_how_workers_of_others_have_ended_and_nothing_of_those_of_this_ledger(
    ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    (tmp_path / "third").mkdir()
    exported(ledger, run.run_id, tmp_path / "early.zip")
    worker = "SELECT host <> '', ended_us, end_reason FROM workers WHERE worker_id = ?"
    move_runs(ledger, [run.run_id], tmp_path / "there.zip")
    import_snapshot(other, tmp_path / "there.zip")
    assert one(other, worker, ledger.worker_id) == (0, None, None)
    # As somebody says it who takes a living process for a dead one.
    other.write(lambda tx: tx.change("UPDATE workers SET ended_us = 5, end_reason = 'died' WHERE host = ''", ()))
    move_runs(other, [run.run_id], tmp_path / "back.zip")
    import_snapshot(ledger, tmp_path / "back.zip")
    assert one(ledger, worker, ledger.worker_id) == (1, None, None)
    with new_ledger(tmp_path / "third") as third:
        import_snapshot(third, tmp_path / "early.zip")
        assert one(third, worker, ledger.worker_id) == (0, None, None)
        carry(other, third, run.run_id, tmp_path)
        assert one(third, worker, ledger.worker_id) == (0, 5, "died")


def test_the_mark_of_a_fence_that_is_higher_here_than_in_a_snapshot_does_not_fall(
    ledger: Ledger, other: Ledger, tmp_path: Path
) -> None:
    run = full_run(ledger)
    mark = (f"run:{run.run_id}", 90)
    other.write(lambda tx: tx.change("INSERT INTO fences (resource, high_water) VALUES (?, ?)", mark))
    carry(ledger, other, run.run_id, tmp_path)
    adopt(other, run.run_id, reason="r", made_by="me")
    assert coordinators.open_run(other, run.run_id).fence == 91


@pytest.mark.parametrize("what", ["another file", "a copy", "a move of another run"])
def test_a_move_does_not_begin_where_something_else_lies_at_its_path(what: str, ledger: Ledger, tmp_path: Path) -> None:
    run, another = full_run(ledger), full_run(ledger, name="another")
    file = tmp_path / "m.zip"
    if what == "another file":
        file.write_text("mine")
    elif what == "a copy":
        exported(ledger, run.run_id, file)
    else:
        move_runs(ledger, [another.run_id], file)
    before = file.read_bytes()
    with pytest.raises(UsageError, match="--force"):
        move_runs(ledger, [run.run_id], file)
    assert file.read_bytes() == before
    assert custody(ledger, run.run_id) == ("open", "held", 1)


def test_a_run_that_was_taken_back_while_its_file_was_written_is_not_moved(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_run(ledger)

    def take_back(point: str) -> None:
        if point == "export.renamed":
            adopt(ledger, run.run_id, reason="it was a mistake", made_by="me")

    monkeypatch.setattr(snapshot_export, "crashpoint", take_back)
    (tmp_path / "link.zip").symlink_to(tmp_path / "m.zip")
    with pytest.raises(RunBusy, match="was taken back while"):
        move_runs(ledger, [run.run_id], tmp_path / "link.zip")
    assert not (tmp_path / "m.zip").exists(), "who imported it would go on, too"
    assert custody(ledger, run.run_id) == ("open", "held", 3)
    go_on(ledger, run.run_id)
    sound(ledger)


def test_of_two_that_move_a_run_at_once_one_makes_a_file_and_the_other_is_told(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_run(ledger)
    told: list[str] = []

    def move_too(point: str) -> None:
        if point == "export.written" and not told:
            told.append("")
            with pytest.raises(RunBusy, match="another process is moving runs") as refused:
                move_runs(ledger, [run.run_id], tmp_path / "second.zip")
            told.append(refused.value.what)

    monkeypatch.setattr(snapshot_export, "crashpoint", move_too)
    move_runs(ledger, [run.run_id], tmp_path / "first.zip")
    assert len(told) == 2
    assert [path.name for path in tmp_path.glob("*.zip")] == ["first.zip"]
    assert custody(ledger, run.run_id) == ("moved", "moved", 2)


def test_of_two_imports_of_one_snapshot_at_once_one_is_told_of_the_other(
    ledger: Ledger, other: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    inner: list[bool] = []

    def import_it_too(point: str) -> None:
        """After the first one has found out that the run is new here."""
        if point == "import.batch" and not inner:
            inner.append(False)
            inner[0] = import_snapshot(other, tmp_path / "s.zip").changed

    monkeypatch.setattr(snapshot_shared, "crashpoint", import_it_too)
    with pytest.raises(RunBusy, match="taken in by another process"):
        import_snapshot(other, tmp_path / "s.zip")
    assert inner == [True]
    assert rows_of(other, run.run_id) == rows_of(ledger, run.run_id)
    sound(other)


def test_a_run_that_is_being_taken_in_is_neither_exported_nor_adopted_nor_moved(
    ledger: Ledger, other: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = full_run(ledger)
    exported(ledger, run.run_id, tmp_path / "s.zip")
    hidden: list[tuple[Any, ...]] = []

    def look(point: str) -> None:
        if point != "import.batch" or not every(other, "SELECT * FROM runs"):
            return
        with pytest.raises(RunNotFound):
            exported(other, run.run_id, tmp_path / "hidden.zip")
        with pytest.raises(RunNotFound):
            adopt(other, run.run_id, reason="it is hidden", made_by="me")
        with pytest.raises(RefusedError):
            move_runs(other, [run.run_id], tmp_path / "hidden.zip")
        hidden.append(custody(other, run.run_id))

    monkeypatch.setattr(snapshot_import, "crashpoint", look)
    import_snapshot(other, tmp_path / "s.zip")
    assert len(hidden) > 10
    assert set(hidden) == {("importing", "copy", 1)}
    assert custody(other, run.run_id) == ("open", "copy", 1)
    assert not (tmp_path / "hidden.zip").exists()
