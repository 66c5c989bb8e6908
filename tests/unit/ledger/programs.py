"""What the child processes of the tests do. Each is run by `children.Child`; a printed line is a sign to the test."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tallystick.ledger import artifacts, coordinators, lease_line, leases
from tallystick.ledger.canonical import digest_of_value
from tallystick.ledger.care import backup_ledger
from tallystick.ledger.errors import BudgetExhausted, LeaseLost, LedgerError, RefusedError, RunBusy
from tallystick.ledger.evaluation_holds import open_evaluation
from tallystick.ledger.evaluations import EvaluationPlan, create_evaluation
from tallystick.ledger.file_locks import LockFile, holder_pid
from tallystick.ledger.host_claims import Claimed, HostClaims
from tallystick.ledger.host_folder import host_folder
from tallystick.ledger.lease_records import Blocked, DeviceAsk, Granted
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.planning import JudgePlan
from tallystick.ledger.snapshot_import import import_snapshot
from tallystick.ledger.states import IfUnknown
from tallystick.ledger.turnstile import Turnstile
from tests.unit.ledger import factories
from tests.unit.ledger.children import Child


def tell(text: object) -> None:
    print(text, flush=True)


def hear() -> str:
    return sys.stdin.readline().strip()


def open_at_a_sign(path: str) -> None:
    """Open an absent or present ledger when told, become a worker, and tell how it went."""
    tell("ready")
    hear()
    with Ledger.open(path, create=True) as ledger:
        tell(ledger.worker_id)
        hear()


def create_ledger(path: str) -> None:
    Ledger.open(path, create=True).close()
    tell("created")


def tell_settings(path: str) -> None:
    """The settings of the writer and of a reader, as lines ``who name value``."""
    with Ledger.open(path) as ledger:
        for name in factories.SETTINGS:
            tell(f"writer {name} {ledger.write(lambda tx, name=name: tx.row(f'PRAGMA {name}')[0])}")  # type: ignore[misc]
        with ledger.reading() as reader:
            for name in factories.SETTINGS:
                tell(f"reader {name} {reader.row(f'PRAGMA {name}')[0]}")


def open_as_nobody(path: str) -> None:
    """Try to open a ledger as somebody who may not write its folder; tell the error's code and text."""
    Ledger.open(Path(path).with_name("warm.db"), create=True).close()  # everything is imported by this
    for name in ("warm.db", "warm.db-wal", "warm.db-shm"):
        Path(path).with_name(name).unlink(missing_ok=True)
    tell("ready")
    hear()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    for create in (False, True):
        try:
            with Ledger.open(path, create=create) as ledger:
                tell(f"worker {ledger.worker_id}")
        except Exception as problem:
            tell(f"{getattr(problem, 'code', type(problem).__name__)} {problem}")


def open_with_no_room(path: str) -> None:
    """As on a full disk: no file can grow. Tell the error's code and text."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try:
        Ledger.open(path).close()
    except (LedgerError, RefusedError) as problem:
        tell(f"{problem.code} {problem}")


def tell_lock_holder(path: str) -> None:
    tell(holder_pid(Path(path)))


def pass_again_and_again(folder: str, log: str, name: str, passages: str) -> None:
    """Pass the turnstile until the log has that many passages; write the name twice each time."""
    turnstile = Turnstile(Path(folder))
    tell("ready")
    hear()
    with Path(log).open("a") as file:
        while os.fstat(file.fileno()).st_size < 4 * int(passages):
            with turnstile:
                for _ in range(2):
                    file.write(f"{name} ")
                    file.flush()
                os.fsync(file.fileno())  # as long as a commit takes
    turnstile.close()


def write_until_told(path: str, run_key: str, kind: str) -> None:
    """Write events of that kind until there are 400 of all."""
    with Ledger.open(path) as ledger:
        tell("ready")
        hear()
        while ledger.write(lambda tx: tx.event(int(run_key), kind, {})) < 401:
            pass


def write_once(path: str, run_key: str) -> None:
    with Ledger.open(path) as ledger:
        ledger.write(lambda tx: tx.event(int(run_key), "theirs", {}))
        tell("written")


def write_and_wait(path: str, run_key: str) -> None:
    with Ledger.open(path) as ledger:
        ledger.write(lambda tx: tx.event(int(run_key), "theirs", {}))
        tell(ledger.worker_id)
        hear()


def fork_and_wait(path: str, run_key: str) -> None:
    """Fork while the ledger is open; both stay."""
    with Ledger.open(path) as ledger:
        ledger.write(lambda tx: tx.event(int(run_key), "theirs", {}))
        tell(ledger.worker_id)
        child = os.fork()
        if child == 0:
            signal.pause()
        tell(child)
        hear()


def judge_and_wait(path: str, run_id: str) -> None:
    """Hold an evaluation of the run."""
    with Ledger.open(path) as ledger:
        depends_on = digest_of_value({"judges": {"strict": [{}, 1]}})
        plan = EvaluationPlan("theirs", "{}", depends_on, "{}", (JudgePlan("strict", "exact", "{}"),))
        open_evaluation(ledger, ledger.write(lambda tx: create_evaluation(tx, run_id, plan)))
        tell("judging")
        hear()


def import_slowly(path: str, snapshot: str) -> None:
    with Ledger.open(path) as ledger:
        import_snapshot(ledger, Path(snapshot))


def back_up(path: str, target: str) -> None:
    with Ledger.open(path) as ledger:
        backup_ledger(ledger, Path(target))


def back_up_with_little_room(path: str, target: str) -> None:
    """As on a full disk: no file may become larger than that. Tell the error's code and text."""
    with Ledger.open(path) as ledger:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        try:
            backup_ledger(ledger, Path(target))
        except LedgerError as problem:
            tell(f"{problem.code} {problem}")


def hold_turnstile(folder: str) -> None:
    with Turnstile(Path(folder)):
        tell("inside")
        hear()


def hold_worker_lock(path: str) -> None:
    lock = LockFile(Path(path))
    lock.acquire()
    tell("held")
    hear()
    lock.close()


def hear_and_end() -> None:
    tell("ready")
    hear()


def take_in_turn(first: str, second: str) -> None:
    """Hold the first lock, then ask for the second; tell of the first report of a deadlock."""
    one, two = LockFile(Path(first)), LockFile(Path(second))
    one.acquire()
    tell("first")
    hear()
    pause = time.sleep  # noqa: TID251
    told: list[float] = []

    def tell_once(seconds: float) -> None:
        if not told:
            tell("told of a deadlock")
            told.append(seconds)
        pause(seconds)

    time.sleep = tell_once  # type: ignore[assignment]  # noqa: TID251
    two.acquire()
    tell("second")
    hear()
    one.release()


def fork_and_use(path: str, run_key: str) -> None:
    """Fork while the ledger is open and written to; the child tries it, opens its own, and ends as programs end."""
    ledger = Ledger.open(path)
    ledger.write(lambda tx: tx.event(int(run_key), "before", {}))
    with ledger.reading():
        child = os.fork()
        if child == 0:
            _in_the_child(ledger, path, int(run_key))
            sys.exit(0)
    _, status = os.waitpid(child, 0)
    tell(f"child ended {status}")
    asked = Child("tell_lock_holder", Path(path + ".d") / "workers" / f"{ledger.worker_id}.lock")
    if asked.lines() == [str(os.getpid())]:
        tell("parent is still the worker")
    ledger.write(lambda tx: tx.event(int(run_key), "from the parent", {}))
    tell("parent written")
    ledger.close()


def _in_the_child(ledger: Ledger, path: str, run_key: int) -> None:
    try:
        ledger.write(lambda tx: None)
    except LedgerError as problem:
        tell(f"child write {problem.code}")
    try:
        with ledger.reading():
            pass
    except LedgerError as problem:
        tell(f"child reading {problem.code}")
    with Ledger.open(path) as own:
        own.write(lambda tx: tx.event(run_key, "from the child", {}))
        tell("child opens its own")
    ledger.close()


def spend(path: str, run_key: str, first: str, threads: str) -> None:
    """One dispatch of a budget in each thread, all at once; tell what each was told."""
    with Ledger.open(path) as ledger:
        barrier = threading.Barrier(int(threads) + 1)

        def one(slot_no: int) -> None:
            barrier.wait()
            try:
                factories.begin(ledger, int(run_key), slot_no, holds=(factories.hold(),), call_id=f"call-{slot_no}")
            except BudgetExhausted as problem:
                told.append(problem.code)
            else:
                told.append("admitted")

        told: list[str] = []
        workers = [threading.Thread(target=one, args=(int(first) + n,)) for n in range(1, int(threads) + 1)]
        for worker in workers:
            worker.start()
        tell("ready")
        hear()
        barrier.wait()
        for worker in workers:
            worker.join()
        for line in told:
            tell(line)


def coordinate_and_wait(path: str, run_id: str, if_unknown: str, key_until_us: str, *slots: str) -> None:
    """Become the coordinator, begin an attempt at each slot (a negative number: in solitude), and wait."""
    with Ledger.open(path) as ledger:
        coordinator = coordinators.open_run(ledger, run_id)
        has_budget = factories.one(ledger, "SELECT count(*) FROM budgets WHERE run_key = ?", coordinator.run_key)[0]
        for slot in map(int, slots):
            factories.begin(
                ledger,
                coordinator.run_key,
                abs(slot),
                solitary=slot < 0,
                if_unknown=IfUnknown(if_unknown),
                key_until_us=int(key_until_us) or None,
                holds=(factories.hold(),) if has_budget else (),
                call_id=ledger.ids.next(),
            )
        tell(ledger.worker_id)
        hear()


def race_for_run(path: str, run_id: str) -> None:
    with Ledger.open(path) as ledger:
        tell("ready" if ledger.worker_id else "")
        hear()
        try:
            coordinators.open_run(ledger, run_id)
        except RunBusy as problem:
            tell(problem.code)
        else:
            tell("mine")
        hear()


def plan(path: str, cases: str) -> None:
    with Ledger.open(path) as ledger:
        tell(factories.new_run(ledger, int(cases)).run_id)
        hear()


def put_large(path: str) -> None:
    with Ledger.open(path) as ledger:
        artifacts.put(ledger, b"large" * 100_000)


def pass_when_told(folder: str, log: str) -> None:
    """Pass the turnstile once for each line and leave a mark."""
    turnstile = Turnstile(Path(folder))
    tell("ready")
    with Path(log).open("ab", buffering=0) as file:
        while hear():
            with turnstile:
                file.write(b"x")
            tell("passed")
    turnstile.close()


def tell_database_lock(path: str) -> None:
    """Who holds the lock by which SQLite knows that a database is open: 510 bytes beyond its first GiB."""
    with Path(path).open("rb+") as file:
        question = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0x40000002, 510, 0)
        kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, question))
    tell(pid if kind != fcntl.F_UNLCK else "nobody")


def hold_devices(path: str, *resources: str) -> None:
    """Take these devices as soon as they are free, tell the set's id, and hold them until told to give them back."""
    with Ledger.open(path) as ledger:
        asks = [DeviceAsk(one, "test", one.startswith("atlas:"), 60_000) for one in resources]
        set_id = asyncio.run(lease_line.stand_in_line(ledger, asks, run_key=None))
        while isinstance(asyncio.run(lease_line.poll(ledger, set_id)), Blocked):
            pass
        tell(set_id)
        hear()
        asyncio.run(lease_line.leave(ledger, set_id))
        tell("released")
        hear()


def claim_devices(path: str, folder: str, *resources: str) -> None:
    """Hold these devices and claim them on the host, tell the first one's fence, and wait."""
    factories.empty_file(Path(path).parent, Path(path).name)
    with Ledger.open(path) as ledger:
        tell(f"claimed {_claimed(ledger, folder, *resources)}")
        hear()


def claim_and_fork(path: str, folder: str, *resources: str) -> None:
    """The same, and fork: the child looks who has the first device, uses the folder itself, and ends."""
    factories.empty_file(Path(path).parent, Path(path).name)
    with Ledger.open(path) as ledger:
        tell(f"claimed {_claimed(ledger, folder, *resources)}")
        child = os.fork()
        if child == 0:
            mine = host_folder(Path(folder))
            with mine.gate():
                (found,) = mine.entries(mine.device(resources[0]) / "claims")
            is_strange = found.is_locked and mine.own(found.path) is None
            tell("the child saw a stranger" if is_strange else "the child took it for its own, or for free")
            os._exit(0)
        os.waitpid(child, 0)
        hear()


def _claimed(ledger: Ledger, folder: str, *resources: str) -> int:
    asks = [DeviceAsk(one, "test", one.startswith("atlas:"), 60_000) for one in resources]
    set_id = asyncio.run(lease_line.stand_in_line(ledger, asks, run_key=None))
    granted = asyncio.run(lease_line.poll(ledger, set_id))
    assert isinstance(granted, Granted)
    claimed = HostClaims(ledger, folder=Path(folder)).take(granted, asks)
    assert isinstance(claimed, Claimed)
    return claimed.fences[resources[0]]


def stand_in_gate(folder: str) -> None:
    with host_folder(Path(folder)).gate():
        tell("inside")
        hear()


def contend(path: str, folder: str, log: str, rounds: str, lease_ms: str, *resources: str) -> None:
    """Take these devices again and again, in the ledger and on the host, and write down when they are held.

    A line ``enter``, ``leave`` or ``lost``, a device and its fence each; appended at once, so that the order of the
    file is one in which it happened.
    """
    asks = [DeviceAsk(one, "test", one.startswith("atlas:"), int(lease_ms)) for one in resources]
    with Ledger.open(path) as ledger, Path(log).open("ab", buffering=0) as file:
        claims = HostClaims(ledger, folder=Path(folder))
        tell("ready")
        hear()
        for _ in range(int(rounds)):
            _one_tenure(ledger, claims, asks, lambda line: file.write(line.encode()))
        tell("done")
        hear()


def _one_tenure(ledger: Ledger, claims: HostClaims, asks: list[DeviceAsk], write: Callable[[str], object]) -> None:
    set_id = asyncio.run(lease_line.stand_in_line(ledger, asks, run_key=None))
    fences: dict[str, int] = {}

    def note(word: str) -> None:
        write("".join(f"{word} {name} {fence} {os.getpid()}\n" for name, fence in sorted(fences.items())))

    try:
        while isinstance(granted := asyncio.run(lease_line.poll(ledger, set_id)), Blocked):
            pass
        while not isinstance(claimed := claims.take(granted, asks), Claimed):
            ledger.write(lambda tx: leases.renew(tx, set_id))
        for lease in granted.leases:
            seen = claimed.fences[lease.resource] - 1
            fences[lease.resource] = ledger.write(
                lambda tx, i=lease.lease_id, s=seen: leases.raise_fence(tx, i, seen=s)  # type: ignore[misc]
            )
        ledger.write(lambda tx: leases.require(tx, [lease.lease_id for lease in granted.leases]))
        note("enter")
        ledger.write(lambda tx: leases.renew(tx, set_id))
        claims.renew(set_id)
        note("leave")
        asyncio.run(lease_line.leave(ledger, set_id))
    except LeaseLost:
        note("lost")
        ledger.write(lambda tx: leases.abandon(tx, set_id))
    finally:
        claims.release(set_id)
