"""How long a device stands idle when its holder is killed, stopped, or stopped inside a transaction.

Two runners and the simulated device are processes of their own. From the signal to the first request of a case that the
device takes from the next holder, by the device's own log; the new holder has fenced, asked and reset it by then. The
baseline is a holder that gives way in good order.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
from measure import Asked, Figures, Row, environment, run_script, scratch_folder, take_in_turns

if TYPE_CHECKING:
    from tests.fixtures.atlas_handle import AtlasDevice

_RESOURCE: Final = "atlas:SN-1"
_KILLED_MAX_SECONDS: Final = 1.0
_LEASE_SECONDS: Final = 3.0
_RENEWAL_SECONDS: Final = _LEASE_SECONDS / 3
_LONG_LEASE_SECONDS: Final = 600.0
_PATIENCE_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.002
_OUTSIDE_SECONDS: Final = 0.05
"""When a renewal is seen to be committed, its process leaves the transaction; stopped sooner it would stand inside."""

_INSIDE: Final = "dispatch.outcome.inside"


@attrs.define
class _Pair:
    """A holder whose request the device is at, and a runner that waits for the device."""

    device: AtlasDevice
    holder: subprocess.Popen[bytes]
    waiter: subprocess.Popen[bytes]
    ledger: Path
    reached: int


def killed(*, trials: int) -> Figures:
    """SIGKILL; the lease has minutes to run."""
    return _taken(trials, _kill, lease_seconds=_LONG_LEASE_SECONDS)


def killed_elsewhere(*, trials: int) -> Figures:
    """The same, where the next holder belongs to another ledger."""
    return _taken(trials, _kill, lease_seconds=_LONG_LEASE_SECONDS, has_two_ledgers=True)


def stopped(*, trials: int) -> Figures:
    """SIGSTOP just after a renewal, which is the worst moment."""
    return _taken(trials, _stop, lease_seconds=_LEASE_SECONDS)


def stopped_inside(*, trials: int) -> Figures:
    """SIGSTOP inside a write transaction, which nobody else can begin meanwhile."""
    return _taken(trials, _stop_inside, lease_seconds=_LEASE_SECONDS, pauses=True)


def gave_way(*, trials: int) -> Figures:
    """From the instant at which the device had answered the last request of the holder that gives way."""
    return _taken(trials, _let_go, lease_seconds=_LONG_LEASE_SECONDS)


def _kill(pair: _Pair) -> float:
    at = time.time()
    pair.holder.kill()
    pair.device.go("gate")  # what the device was at ends now, and nobody hears of it
    return at


def _stop(pair: _Pair) -> float:
    before = _renewed(pair)
    _until(lambda: _renewed(pair) != before)
    select.select([], [], [], _OUTSIDE_SECONDS)
    at = time.time()
    pair.holder.send_signal(signal.SIGSTOP)
    pair.device.go("gate")
    return at


def _stop_inside(pair: _Pair) -> float:
    pair.device.go("gate")
    assert os.read(pair.reached, 100).decode().strip() == _INSIDE
    at = time.time()
    pair.holder.send_signal(signal.SIGSTOP)
    return at


def _let_go(pair: _Pair) -> float:
    at = time.time()
    pair.device.go("gate")
    return at


def _taken(trials: int, act: Callable[[_Pair], float], **options: Any) -> Figures:
    seconds = [_once(act, **options) for _ in range(trials)]
    return {"median": statistics.median(seconds), "worst": max(seconds)}


def _once(act: Callable[[_Pair], float], **options: Any) -> float:
    with scratch_folder() as folder, _pair(folder, **options) as pair:
        at = act(pair)
        if pair.waiter.wait(_PATIENCE_SECONDS):
            raise SystemExit(f"the next holder did not come to its end\n{(folder / 'waiter.err').read_text()}")
        submits = pair.device.lines(role="submit", verdict="accepted")
        first = min(line["at"] for line in submits if line["fence"] > submits[0]["fence"])
        return float(first - at)


@contextlib.contextmanager
def _pair(
    folder: Path, *, lease_seconds: float, has_two_ledgers: bool = False, pauses: bool = False
) -> Iterator[_Pair]:
    from tests.fixtures.atlas_handle import AtlasDevice

    device, started = AtlasDevice.start(folder), list[subprocess.Popen[bytes]]()
    pipes = [*os.pipe(), *os.pipe()]
    try:
        more = {"TALLYSTICK_CRASHPOINT": _INSIDE, "TALLYSTICK_CRASHPOINT_PIPE": f"{pipes[0]},{pipes[3]}"}

        def start(name: str, ledger: str, cases: Sequence[dict[str, Any]], **variables: str) -> subprocess.Popen[bytes]:
            order = _order(name, device.url, cases, lease_seconds)
            (folder / f"{name}.json").write_text(json.dumps(order))
            command = [sys.executable, "-m", "tallystick", "run", f"{name}.json", "--ledger", ledger]
            with (folder / f"{name}.out").open("wb") as out, (folder / f"{name}.err").open("wb") as err:
                made = subprocess.Popen(
                    command, cwd=folder, stdout=out, stderr=err, pass_fds=pipes,
                    env={**environment(), "TALLYSTICK_DEVICE_LOCKS": str(folder / "locks"), **variables},
                )  # fmt: skip
            started.append(made)
            return made

        asked = {"id": "a", "input": {"answer": "a", "behave": {"wait": "gate"}}}
        holder = start("holder", "one.db", [asked, {"id": "b", "input": "b"}], **(more if pauses else {}))
        device.wait_until_waiting("gate")
        theirs = "two.db" if has_two_ledgers else "one.db"
        waiter = start("waiter", theirs, [{"id": "c", "input": "c"}])
        _until(lambda: _waits(folder / theirs, folder / "locks", has_two_ledgers=has_two_ledgers))
        yield _Pair(device, holder, waiter, folder / "one.db", pipes[2])
    finally:
        for process in started:
            process.kill()
            process.wait()
        device.stop()
        for descriptor in pipes:
            os.close(descriptor)


def _order(name: str, url: str, cases: Sequence[dict[str, Any]], lease_seconds: float) -> dict[str, Any]:
    target = {"kind": "atlas", "url": url, "serial": "SN-1"}
    device = {"lease_seconds": lease_seconds, "tenure_seconds": 0}
    return {"version": 1, "name": name, "cases": {"items": list(cases)}, "target": target, "device": device}


def _waits(ledger: Path, locks: Path, *, has_two_ledgers: bool) -> bool:
    """In its ledger, or on the host."""
    if has_two_ledgers:
        return any(locks.glob("*/line/*"))
    return bool(_read(ledger, "SELECT 1 FROM leases WHERE resource = ? AND state = 'waiting'"))


def _renewed(pair: _Pair) -> int:
    return int(_read(pair.ledger, "SELECT renewed_us FROM leases WHERE resource = ? AND state = 'held'")[0][0])


def _read(ledger: Path, sql: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(f"{ledger.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        return connection.execute(sql, (_RESOURCE,)).fetchall()


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("waited in vain for the other processes")
        select.select([], [], [], _LOOK_SECONDS)


_MEASUREMENTS: Final = {
    "killed": killed,
    "killed_elsewhere": killed_elsewhere,
    "stopped": stopped,
    "stopped_inside": stopped_inside,
    "gave_way": gave_way,
}
_CASES: Final = {
    "killed": (f"killed, lease {_LONG_LEASE_SECONDS:.0f} s", _KILLED_MAX_SECONDS),
    "killed_elsewhere": ("killed, the next of another ledger", _KILLED_MAX_SECONDS),
    "stopped": (f"stopped, lease {_LEASE_SECONDS:.0f} s", _LEASE_SECONDS + _RENEWAL_SECONDS),
    "stopped_inside": (f"stopped in a transaction, lease {_LEASE_SECONDS:.0f} s", _LEASE_SECONDS + _RENEWAL_SECONDS),
}


def rows(asked: Asked) -> Sequence[Row]:
    """One row for each way in which a holder can fail."""
    taken = take_in_turns(
        __file__, tuple(_MEASUREMENTS), repetitions=asked.repetitions, trials=asked.size(5, 1)
    )  # fmt: skip
    found = []
    for name, (case, most) in _CASES.items():
        worst = max(one["worst"] for one in taken.by_name[name])
        found.append(
            Row(
                case=f"taking over, {case}",
                ours=f"{taken.median(name, 'median'):.2f} s",
                baseline=f"gave way {taken.median('gave_way', 'median'):.2f} s",
                ratio=f"{taken.ratio(name, 'gave_way', 'median'):.1f}",
                must=f"< {most:g} s each time",
                reached=worst < most,
                more=f"worst {worst:.2f} s",
            )
        )
    return found


if __name__ == "__main__":
    run_script(__file__, "From a holder's failure to the next holder's first request", _MEASUREMENTS, rows)
