"""What real processes write down while they share devices can be put in one order: one holder, rising fences."""

from __future__ import annotations

import signal
from collections import defaultdict
from pathlib import Path

import attrs
import pytest

from tests.unit.ledger.children import Child
from tests.unit.ledger.factories import empty_file

SETS = (("atlas:A", "atlas:B"), ("atlas:B", "line:C"), ("atlas:A", "line:C"), ("atlas:B", "atlas:A"))


@attrs.define
class Tenure:
    fence: int
    pid: int
    end: str | None = None


def history(log: Path) -> dict[str, list[Tenure]]:
    """The tenures of each device in the order of the file; fails where that is not one of single holders."""
    found: dict[str, list[Tenure]] = defaultdict(list)
    for line in log.read_text().splitlines():
        word, name, fence, pid = line.split()
        if word == "enter":
            found[name].append(Tenure(int(fence), int(pid)))
            continue
        tenure = next((one for one in found[name] if one.fence == int(fence)), None)
        if word == "lost" and tenure is None:
            continue  # lost before it was entered
        assert tenure is not None, line
        assert tenure.pid == int(pid), line
        assert word == "lost" or tenure is found[name][-1], f"it was left after the next had entered: {line}"
        tenure.end = word
    return found


def check(found: dict[str, list[Tenure]], *, gone: set[int]) -> None:
    """At no instant two holders but where the one before is gone or stood still, and fences that only rise."""
    for name, tenures in found.items():
        fences = [one.fence for one in tenures]
        assert fences == sorted(set(fences)), name
        for one in tenures:
            assert one.end == "leave" or one.pid in gone, (name, one)


@pytest.mark.parametrize("ledgers", [1, 2])
def test_processes_that_share_devices_hold_them_one_at_a_time(ledgers: int, tmp_path: Path) -> None:
    files = [empty_file(tmp_path, f"{number}.db") for number in range(ledgers)]
    log, rounds = tmp_path / "log", 4
    children = [
        Child("contend", files[number % ledgers], tmp_path / "host", log, rounds, 60_000, *names)
        for number, names in enumerate(SETS)
    ]
    try:
        assert [child.line() for child in children] == ["ready"] * 4
        for child in children:
            child.say()
        assert [child.line() for child in children] == ["done"] * 4
    finally:
        for child in children:
            child.__exit__(None, None, None)
    found = history(log)
    check(found, gone=set())
    assert {name: len(tenures) for name, tenures in found.items()} == {
        "atlas:A": 3 * rounds,
        "atlas:B": 3 * rounds,
        "line:C": 2 * rounds,
    }


@pytest.mark.parametrize("ledgers", [1, 2])
def test_a_killed_and_a_stopped_holder_are_replaced_and_the_history_stays_one(ledgers: int, tmp_path: Path) -> None:
    files = [empty_file(tmp_path, f"{number}.db") for number in range(ledgers)]
    log, host = tmp_path / "log", tmp_path / "host"
    killed = Child("contend", files[0], host, log, 9, 60_000, "line:C", "atlas:A", pause_at="lease.claimed@2")
    frozen = Child("contend", files[0], host, log, 9, 500, "atlas:B", pause_at="lease.claimed@3")
    others = [Child("contend", files[-1], host, log, 4, 500, *names) for names in (("atlas:B", "line:C"), ("atlas:A",))]
    children = [killed, frozen, *others]
    try:
        for child in (killed, frozen):
            assert child.line() == "ready"
            child.say()
            child.wait_until_there()  # it holds its devices and has not entered them
        frozen.stop()
        for child in others:
            assert child.line() == "ready"
            child.say()
        killed.kill()
        assert [child.line() for child in others] == ["done"] * 2
        frozen.let_go()
        frozen.process.send_signal(signal.SIGCONT)
        assert frozen.line() == "done"
    finally:
        for child in children:
            child.__exit__(None, None, None)
    found = history(log)
    check(found, gone={killed.pid})
    assert [one.end for one in found["atlas:B"] if one.pid == frozen.pid].count("leave") == 8
    assert [one.pid for one in found["line:C"]].count(others[0].pid) == 4
