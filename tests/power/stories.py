"""What is recorded: stories of commands on one ledger, each with the work orders that it needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from tests.acceptance.harness import FIXTURES, Service
from tests.acceptance.judging import Endpoint
from tests.fixtures.atlas_handle import AtlasDevice

__all__ = ["LEDGER", "STORIES", "Story", "short"]

LEDGER: Final = "evals.db"
_TARGET: Final = Path(__file__).with_name("power_target.py")
_AGENT: Final = FIXTURES / "agent_target.py"
_LARGE: Final = 100_000  # more than is kept in a row


@attrs.frozen
class Story:
    """Commands one after the other, and those of a second process at the same time.

    ``ends`` ends what runs outside of the recording (services, devices).
    """

    commands: Sequence[Sequence[object]]
    beside: Sequence[Sequence[object]] = ()
    environment: Mapping[str, str] = attrs.field(factory=dict)
    ends: Sequence[Callable[[], None]] = ()

    def close(self) -> None:
        """End what runs outside; when nothing is to be gone on with any more."""
        for end in self.ends:
            end()


def _cases(count: int, *, does: Sequence[str] = ("",), large: int = 0) -> list[dict[str, Any]]:
    """``large``: every so many-th case has a large answer, and the one after it a large request."""
    found = []
    for number in range(count):
        asked: dict[str, Any] = {"does": does[number % len(does)]}
        if large and number % large == 0:
            asked["size"] = _LARGE
        if large and number % large == 1:
            asked["pad"] = f"{number} " * (_LARGE // 3)
        found.append({"id": f"c{number}", "input": asked})
    return found


def _order(name: str, cases: Sequence[Mapping[str, Any]], **execution: Any) -> dict[str, Any]:
    python = {"kind": "python", "file": _TARGET.name}
    return {
        "version": 1,
        "name": name,
        "cases": {"items": list(cases)},
        "target": {**python, "function": "asked", "if_unknown": "keep"},
        "judges": [{**python, "function": "judged", "name": "own"}],
        "budgets": {"dispatches": 1000, "tokens": {"limit": 20_000, "bound_per_dispatch": 20}},
        "execution": {
            "concurrency": 4,
            "grace_seconds": 0.1,
            "backoff": {"first_seconds": 0.01, "max_seconds": 0.05},
            **execution,
        },
    }


def _write(folder: Path, name: str, document: Mapping[str, Any]) -> Path:
    shutil.copy(_TARGET, folder / _TARGET.name)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def _at(folder: Path) -> tuple[object, ...]:
    return "--ledger", folder / "disk" / LEDGER


def beginning(folder: Path) -> Story:
    """A ledger is made, and a run of two cases."""
    order = _write(folder, "first", _order("first", _cases(2)))
    return Story([["run", order, *_at(folder)]])


def run(folder: Path) -> Story:
    """Every kind of outcome, large requests and answers in files, group commits, checkpoints."""
    does = ("", "", "fail", "refuse", "lose", "puzzle")
    order = _write(folder, "run", _order("run", _cases(36, does=does, large=5)))
    return Story([["run", order, *_at(folder)]])


def sessions(folder: Path) -> Story:
    """A run in two sessions, its unknown outcomes settled, judged once more, a second run, all by one process."""
    at = _at(folder)
    order = _write(folder, "one", _order("one", _cases(16, does=("", "lose", "fail"), large=6)))
    other = _write(folder, "two", _order("two", _cases(6), concurrency=2))
    judges = {"version": 1, "name": "again", "judges": _order("", [])["judges"]}
    again = _write(folder, "again", judges)
    return Story([
        ["run", order, "--limit", 7, *at],
        ["resume", *at],
        ["reconcile", "one", "--give-up", "--reason", "nobody knows", "--yes", *at],
        ["resume", "one", "--retry", "failed", *at],
        ["judge", "one", again, "--new", *at],
        ["run", other, *at],
    ])  # fmt: skip


def beside(folder: Path) -> Story:
    """Two processes write into one ledger at the same time."""
    left = _write(folder, "left", _order("left", _cases(16, does=("", "fail"), large=8)))
    right = _write(folder, "right", _order("right", _cases(16, does=("", "lose"), large=8)))
    return Story([["run", left, *_at(folder)]], [["run", right, *_at(folder)]])


def snapshots(folder: Path) -> Story:
    """A snapshot is written, replaced by a later one, taken in elsewhere and moved forward; a second is moved away.

    Meanwhile the ledger is backed up twice, and compacted in the end.
    """
    at, other = _at(folder), ("--ledger", folder / "disk" / "other.db")
    copy, moved = folder / "disk" / "copy.zip", folder / "disk" / "moved.zip"
    backup = folder / "disk" / "backup.sqlite"
    order = _write(folder, "one", _order("one", _cases(8, does=("", "lose"), large=4)))
    return Story([
        ["run", order, "--limit", 3, *at],
        ["export", "one", "-o", copy, *at],
        ["ledger", "backup", backup, *at],
        ["import", copy, *other],
        ["resume", *at],
        ["ledger", "backup", backup, "--force", *at],
        ["export", "one", "-o", copy, "--force", *at],
        ["import", copy, *other],
        ["export", "one", "--move", "-o", moved, *at],
        ["import", moved, *other],
        ["reconcile", "one", "--give-up", "--reason", "nobody knows", "--yes", *other],
        ["ledger", "compact", *at],
    ])  # fmt: skip


def outside(folder: Path) -> Story:
    """Conversations, a device under lease, an agent of several requests, a judge that calls.

    Service, device and model have power of their own.
    """
    place = folder / "outside"
    place.mkdir()
    device, service, model = AtlasDevice.start(place), Service(place), Endpoint(place)
    at, talks = _at(folder), _order("talks", _cases(4))
    said: list[dict[str, Any]] = [{"say": word, "behave": {}} for word in ("a", "b", "c")]
    talks["cases"] = {"items": [{"id": f"t{number}", "input": {"turns": said}} for number in range(3)]}
    talks["conversation"] = {"turns": "$.turns"}
    talks["target"] = {
        "kind": "http", "url": f"{service.url}/ask", "json": {"input": "{{message.say}}", "history": "{{history}}"},
        "answer": "$.answer", "if_unknown": "repeat",
    }  # fmt: skip
    measured = _order("measured", [{"id": f"d{n}", "input": {"answer": f"d{n}"}} for n in range(5)], concurrency=1)
    measured["target"] = {"kind": "atlas", "url": device.url, "serial": "SN-1", "drain_seconds": 2.0}
    measured["device"] = {"lease_seconds": 600, "tenure_seconds": 0}
    asks = [{"say": word} for word in ("a", "b", "c")]
    agents = _order("agents", [{"id": f"g{n}", "input": {"url": f"{service.url}/ask", "asks": asks}} for n in range(3)])
    agents["target"] = {"kind": "python", "file": _AGENT.name, "function": "agent", "if_unknown": "repeat"}
    shutil.copy(_AGENT, folder / _AGENT.name)
    table = {"kind": "llm", "name": "model", "model": "small", "rubric": "It is what is expected."}
    for order in (talks, measured, agents):
        order["judges"] = [{"kind": "exact"}]
    again = {"version": 1, "name": "again", "judges": [{**table, "url": f"{model.url}/v1/chat/completions"}]}
    return Story(
        [
            ["run", _write(folder, "talks", talks), *at],
            ["run", _write(folder, "measured", measured), *at],
            ["run", _write(folder, "agents", agents), *at],
            ["judge", "talks", _write(folder, "again", again), *at],
        ],
        environment={"TALLYSTICK_DEVICE_LOCKS": str(folder / "disk" / "locks")},
        ends=[device.stop, service.close, model.close],
    )


def short(folder: Path) -> Story:
    """As `run`, for what has to be done very often."""
    order = _write(folder, "short", _order("short", _cases(8, does=("", "", "fail", "lose"), large=4)))
    return Story([["run", order, *_at(folder)]])


STORIES: Final[dict[str, Callable[[Path], Story]]] = {
    "beginning": beginning,
    "run": run,
    "sessions": sessions,
    "beside": beside,
    "snapshots": snapshots,
    "outside": outside,
}
