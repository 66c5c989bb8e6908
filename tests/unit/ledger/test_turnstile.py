"""One writer at a time, fairly; and a stopped one that blocks the others is removed only when it surely is a worker."""

from __future__ import annotations

import collections
import errno
import fcntl
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import attrs
import pytest

from tallystick.ledger import file_locks
from tallystick.ledger.errors import LedgerFailed
from tallystick.ledger.file_locks import LockFile
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.location import side_folder
from tallystick.ledger.processes import ProcessIdentity, boot_id, host_id, this_process
from tallystick.ledger.turnstile import Turnstile
from tallystick.ledger.workers import WorkerFolder
from tests.unit.ledger.children import Child
from tests.unit.ledger.factories import every, new_ledger, new_run, one

PASSAGES = 2_000


@pytest.mark.parametrize("processes", [2, 4])
def test_saturated_processes_pass_evenly_and_one_at_a_time(processes: int, disk_path: Path) -> None:
    log = disk_path / "log"
    log.touch()
    children = [Child("pass_again_and_again", disk_path, log, name, PASSAGES) for name in range(processes)]
    try:
        for child in children:
            assert child.line() == "ready"
        for child in children:
            child.say()
        assert [child.end() for child in children] == [0] * processes
    finally:
        for child in children:
            child.__exit__(None, None, None)
    words = log.read_text().split()
    # Each passage writes its name twice: two processes inside at once would mix them.
    assert words[::2] == words[1::2]
    shares = collections.Counter(words[: 2 * PASSAGES])
    assert set(shares) == {str(name) for name in range(processes)}
    assert min(shares.values()) >= 2 * PASSAGES / processes / 5


def test_who_leaves_cannot_enter_again_before_the_one_who_waits(tmp_path: Path) -> None:
    turnstile, log = Turnstile(tmp_path), tmp_path / "log"
    log.touch()
    with Child("pass_when_told", tmp_path, log) as child:
        assert child.line() == "ready"
        for passages in range(1, 31):
            with turnstile:
                child.say()
                wait_until_blocked(child.pid)
            with turnstile:
                assert len(log.read_bytes()) == passages
            assert child.line() == "passed"
    turnstile.close()


def test_two_saturated_ledger_writers_both_get_on(disk_path: Path) -> None:
    with new_ledger(disk_path) as ledger:
        run_key = new_run(ledger).run_key
    children = [Child("write_until_told", ledger.path, run_key, name) for name in "ab"]
    try:
        for child in children:
            assert child.line() == "ready"
        for child in children:
            child.say()
        assert [child.end() for child in children] == [0, 0]
    finally:
        for child in children:
            child.__exit__(None, None, None)
    with Ledger.open(ledger.path) as again:
        rows = every(again, "SELECT kind FROM events WHERE run_key = ? ORDER BY event_no", run_key)
    kinds = [kind for (kind,) in rows]
    written = [kind for kind in kinds if kind in "ab"][:400]
    assert min(written.count("a"), written.count("b")) >= 200 / 5


def test_a_worker_that_is_stopped_inside_a_transaction_is_killed_by_the_next_in_line(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        run_key = new_run(ledger).run_key
        ledger._shared.turnstile.stall_seconds = 0.2
        # Its first commit records it as a worker; it stands in its second.
        with Child("write_once", ledger.path, run_key, pause_at="scribe.commit.before@2") as child:
            assert child.wait_until_there() == "scribe.commit.before"
            child.stop()
            ledger.write(lambda tx: tx.event(run_key, "mine", {}))
            assert child.end() == -9
        kinds = [kind for (kind,) in every(ledger, "SELECT kind FROM events WHERE run_key = ?", run_key)]
        assert kinds == ["run.planned", "mine"]


def test_a_worker_that_is_slow_inside_a_transaction_and_not_stopped_is_waited_for(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        run_key = new_run(ledger).run_key
        asked, removed = watched(ledger)
        with Child("write_once", ledger.path, run_key, pause_at="scribe.commit.before@2") as child:
            child.wait_until_there()
            writing = threading.Thread(target=ledger.write, args=(lambda tx: tx.event(run_key, "mine", {}),))
            writing.start()
            assert asked.wait(30)
            child.let_go()
            writing.join()
            assert child.lines() == ["written"]
        assert removed == [False]
        kinds = [kind for (kind,) in every(ledger, "SELECT kind FROM events WHERE run_key = ?", run_key)]
        assert kinds == ["run.planned", "theirs", "mine"]


def watched(ledger: Ledger) -> tuple[threading.Event, list[bool]]:
    """Make the ledger's turnstile lose patience soon, once; says when it has asked for a removal and how that went."""
    turnstile = ledger._shared.turnstile
    remove, asked, removed = turnstile.remove_stalled, threading.Event(), list[bool]()

    def remove_once(pid: int) -> bool:
        if not removed:
            removed.append(remove(pid))
            asked.set()
        return removed[-1]

    turnstile.remove_stalled = remove_once
    turnstile.stall_seconds = 0.2
    return asked, removed


def test_a_stopped_holder_that_is_no_worker_is_not_killed(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        new_run(ledger)
        asked, removed = watched(ledger)
        with Child("hold_turnstile", side_folder(ledger.path)) as child:
            assert child.line() == "inside"
            child.stop()
            writing = threading.Thread(target=ledger.write, args=(lambda tx: None,))
            writing.start()
            assert asked.wait(30)
            assert child.process.poll() is None
            child.kill()
            writing.join()
        assert removed == [False]


def test_who_is_in_a_hurry_waits_for_a_stopped_holder_no_longer_than_it_says(tmp_path: Path) -> None:
    killed: list[int] = []
    with Child("hold_turnstile", tmp_path) as child:

        def kill(pid: int) -> bool:
            killed.append(pid)
            child.kill()
            return True

        turnstile = Turnstile(tmp_path, remove_stalled=kill, stall_seconds=10_000)
        assert child.line() == "inside"
        child.stop()
        with turnstile.hurried(30_000), turnstile.hurried(0.1), turnstile:
            pass
        assert killed == [child.pid]
        assert turnstile._stall_seconds() == 10_000
    turnstile.close()


@pytest.mark.parametrize("change", ["start_ticks", "boot_id", "host"])
def test_a_stopped_holder_whose_pid_was_a_workers_is_not_killed(change: str, tmp_path: Path) -> None:
    """A worker's file that names the pid of another process, which even holds the file's lock."""
    folder = WorkerFolder(tmp_path / "workers")
    with Child("hold_worker_lock", tmp_path / "workers" / "w1.lock") as child:
        assert child.line() == "held"
        identity = ProcessIdentity(child.pid, start_ticks(child.pid), boot_id(), host_id())
        truth: dict[str, Any] = attrs.asdict(identity)
        lie = truth | {change: truth[change] - 1 if change == "start_ticks" else "another"}
        (tmp_path / "workers" / "w1.lock").write_text(json.dumps(lie))
        child.stop()
        assert not folder.remove_stalled(child.pid)
        assert child.process.poll() is None
        (tmp_path / "workers" / "w1.lock").write_text(json.dumps(attrs.asdict(identity)))
        assert folder.remove_stalled(child.pid)
        assert child.end() == -9


def test_a_stopped_process_that_a_stale_worker_file_names_is_not_killed_without_its_lock(tmp_path: Path) -> None:
    folder = WorkerFolder(tmp_path / "workers")
    with Child("hear_and_end") as child:
        assert child.line() == "ready"
        identity = ProcessIdentity(child.pid, start_ticks(child.pid), boot_id(), host_id())
        (tmp_path / "workers" / "w1.lock").write_text(json.dumps(attrs.asdict(identity)))
        child.stop()
        assert not folder.remove_stalled(child.pid)
        assert child.process.poll() is None


def test_a_stopped_holder_is_found_behind_the_files_of_dead_workers_that_had_its_pid(tmp_path: Path) -> None:
    folder = WorkerFolder(tmp_path / "workers")
    with Child("hold_worker_lock", tmp_path / "workers" / "m.lock") as child:
        assert child.line() == "held"
        identity = ProcessIdentity(child.pid, start_ticks(child.pid), boot_id(), host_id())
        for name in ("a", "m", "z"):  # before and after it, in whatever order the folder is read
            (tmp_path / "workers" / f"{name}.lock").write_text(json.dumps(attrs.asdict(identity)))
        child.stop()
        assert folder.remove_stalled(child.pid)
        assert child.end() == -9


def test_a_stopped_holder_of_another_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_permitted(handle: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(signal, "pidfd_send_signal", not_permitted)
    folder = WorkerFolder(tmp_path / "workers")
    with Child("hold_worker_lock", tmp_path / "workers" / "w1.lock") as child:
        assert child.line() == "held"
        identity = ProcessIdentity(child.pid, start_ticks(child.pid), boot_id(), host_id())
        (tmp_path / "workers" / "w1.lock").write_text(json.dumps(attrs.asdict(identity)))
        child.stop()
        assert not folder.remove_stalled(child.pid)


def start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_a_broken_worker_file_stops_nobody_from_looking_further(tmp_path: Path) -> None:
    folder = WorkerFolder(tmp_path / "workers")
    for name, text in {"a": "", "b": "{", "c": "[]", "d": '{"pid": 1}'}.items():
        (tmp_path / "workers" / f"{name}.lock").write_text(text)
    with Child("hear_and_end") as child:
        child.line()
        child.stop()
        assert not folder.remove_stalled(child.pid)


def test_a_false_report_of_a_deadlock_is_not_believed(tmp_path: Path) -> None:
    """We hold A and another thread of ours waits for B; a process that holds B asks for A and is told EDEADLK."""
    mine, theirs = LockFile(tmp_path / "a"), LockFile(tmp_path / "b")
    mine.acquire()
    with Child("take_in_turn", tmp_path / "b", tmp_path / "a") as child:
        assert child.line() == "first"
        waiting = threading.Thread(target=theirs.acquire)
        waiting.start()
        wait_until_blocked(os.getpid())
        child.say()
        assert child.line() == "told of a deadlock"
        mine.release()
        assert child.line() == "second"
        child.say()
        waiting.join()
        assert child.end() == 0
    mine.close()
    theirs.close()


def wait_until_blocked(pid: int) -> None:
    """Until the kernel lists a lock request of the process as waiting."""
    while not any("->" in line and f" {pid} " in line for line in Path("/proc/locks").read_text().splitlines()):
        os.sched_yield()


def test_a_deadlock_that_stays_is_reported_after_a_bounded_number_of_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def always(*_: object) -> None:
        raise OSError(errno.EDEADLK, "deadlock")

    lock = LockFile(tmp_path / "a")
    monkeypatch.setattr(file_locks, "_DEADLOCK_RETRIES_MAX", 3)
    monkeypatch.setattr(fcntl, "lockf", always)
    with pytest.raises(OSError, match="could not be had"):
        lock.acquire()
    monkeypatch.undo()
    lock.close()


def test_the_turnstile_names_its_holder(tmp_path: Path) -> None:
    turnstile = Turnstile(tmp_path)
    assert turnstile.holder_pid() is None
    with Child("hold_turnstile", tmp_path) as child:
        child.line()
        assert turnstile.holder_pid() == child.pid
        child.kill()
        assert turnstile.holder_pid() is None
    turnstile.close()


def test_threads_of_one_process_pass_one_at_a_time(tmp_path: Path) -> None:
    turnstile, inside, seen = Turnstile(tmp_path), [0], list[int]()

    def pass_through() -> None:
        for _ in range(50):
            with turnstile:
                inside[0] += 1
                seen.append(inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=pass_through) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    turnstile.close()
    assert seen == [1] * 400


def test_what_is_raised_inside_leaves_the_turnstile_open_for_the_next(tmp_path: Path) -> None:
    turnstile = Turnstile(tmp_path)
    with pytest.raises(LookupError), turnstile:
        raise LookupError
    with turnstile:
        pass
    turnstile.close()


# Workers.


def test_a_killed_worker_is_proven_dead_and_a_stopped_one_is_not(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    with Child("write_and_wait", ledger.path, run_key) as child:
        worker_id = child.line()
        identity = identity_of(ledger, worker_id)
        assert identity.pid == child.pid
        assert not ledger.is_dead(worker_id, identity)
        child.stop()
        assert not ledger.is_dead(worker_id, identity)
        child.kill()
        assert ledger.is_dead(worker_id, identity)


def test_a_worker_whose_lock_file_is_gone_is_looked_for_in_the_process_table(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    with Child("write_and_wait", ledger.path, run_key) as child:
        worker_id = child.line()
        identity = identity_of(ledger, worker_id)
        (side_folder(ledger.path) / "workers" / f"{worker_id}.lock").unlink()
        assert not ledger.is_dead(worker_id, identity)
        assert ledger.is_dead(worker_id, attrs.evolve(identity, start_ticks=identity.start_ticks - 1))
        child.kill()
        assert ledger.is_dead(worker_id, identity)


def test_a_worker_of_another_host_is_never_proven_dead(ledger: Ledger) -> None:
    identity = attrs.evolve(this_process(), host="elsewhere", pid=1, start_ticks=1)
    assert not ledger.is_dead("gone", identity)


def test_this_process_is_alive_to_itself(ledger: Ledger) -> None:
    worker_id = ledger.worker_id
    assert not ledger.is_dead(worker_id, this_process())
    assert WorkerFolder(side_folder(ledger.path) / "workers")._own == {}


def test_a_forked_child_does_not_keep_its_dead_parent_alive(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    with Child("fork_and_wait", ledger.path, run_key) as child:
        worker_id = child.line()
        fork = int(child.line())
        identity = identity_of(ledger, worker_id)
        child.kill()
        try:
            os.kill(fork, 0)  # it is there, with every descriptor of its parent
            assert ledger.is_dead(worker_id, identity)
        finally:
            os.kill(fork, 9)


def test_a_lock_that_is_taken_is_no_workers(tmp_path: Path) -> None:
    with Child("hold_worker_lock", tmp_path / "w1.lock") as child:
        child.line()
        with pytest.raises(LedgerFailed, match="w1"):
            WorkerFolder(tmp_path).enter("w1")


def identity_of(ledger: Ledger, worker_id: str) -> ProcessIdentity:
    return ProcessIdentity(
        *one(ledger, "SELECT pid, start_ticks, boot_id, host FROM workers WHERE worker_id = ?", worker_id)
    )
