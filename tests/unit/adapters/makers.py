"""Makers of what targets are given, and the services that they are tested against, each a process of its own."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import attrs

from tallystick.ledger.canonical import JsonValue
from tallystick.runner.protocols import MISSING, Case, Dispatching, Missing, Outcome, SlotView, Target

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
T = TypeVar("T")
_ids = itertools.count(1)


def make_case(
    input: JsonValue = "hello",  # noqa: A002 - the field's own name
    *,
    id: str = "case-1",  # noqa: A002
    expected: JsonValue | Missing = MISSING,
    **metadata: JsonValue,
) -> Case:
    return Case(id, input, expected, metadata)


def make_slot(case: Case | None = None, *, variant: str = "default", repetition: int = 1) -> SlotView:
    return SlotView("run-1", case or make_case(), variant, repetition)


def make_dispatching(
    slot: SlotView | None = None, *, deadline_seconds: float = 30.0, request_id: str | None = None, **more: Any
) -> Dispatching:
    made = request_id or f"request-{next(_ids):018d}"
    return Dispatching(made, 1, 1, slot or make_slot(), deadline_seconds, **more)


async def dispatch_case(target: Target, case: Case, **more: Any) -> tuple[Outcome, Dispatching]:
    """Prepare and dispatch one case on an open target."""
    slot = make_slot(case)
    dispatching = make_dispatching(slot, **more)
    return await target.dispatch(target.prepare(slot), dispatching), dispatching


def run_case(target: Target, case: Case, **more: Any) -> Outcome:
    """Open, dispatch one case, close."""
    return run_cases(target, [case], **more)[0]


def run_cases(target: Target, cases: list[Case], **more: Any) -> list[Outcome]:
    """Open, dispatch the cases one after the other, close."""

    async def all_of_them() -> list[Outcome]:
        await target.open()
        try:
            return [(await dispatch_case(target, case, **more))[0] for case in cases]
        finally:
            await target.close()

    return run(all_of_them())


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; a wedged test fails instead of hanging."""

    async def bounded() -> T:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(bounded())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a counter's log."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@attrs.define
class Service:
    """A running ``http_server.py``, or another program of its kind."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    @classmethod
    def start(cls, folder: Path, program: str = "http_server.py") -> Service:
        log = folder / "requests.jsonl"
        process = subprocess.Popen(
            [sys.executable, str(FIXTURES / program), "--log", str(log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return cls(process, int(cast("IO[str]", process.stdout).readline()), log)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lines(self) -> list[dict[str, Any]]:
        return read_lines(self.log)

    def wait_until_waiting(self, name: str) -> None:
        assert cast("IO[str]", self.process.stdout).readline().strip() == f"waiting {name}"

    def go(self, name: str) -> None:
        stdin = cast("IO[str]", self.process.stdin)
        stdin.write(f"go {name}\n")
        stdin.flush()

    def stop(self) -> None:
        with self.process as process:
            process.kill()
