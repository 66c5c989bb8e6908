"""Several processes that write to one ledger as fast as they can: is it shared evenly, and how long does anybody wait?

Each process has a run of its own and 64 callers. They begin together and stop at the same instant; what each got done
is its share. The baseline is one process alone on the same ledger.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from measure import Asked, Figures, Row, child, environment, run_script, scratch_folder
from scratch_runs import ANSWER, ANSWER_DIGEST, FACTS, holds_of, intent_of, plan_run

from tallystick.ledger.attempt_groups import Beginning, Observing
from tallystick.ledger.coordinators import open_run
from tallystick.ledger.ledger import Ledger

_CALLERS = 64
_PLANNED_PER_SECOND = 12_000  # more than one process gets done
_UNEVEN_MAX = 1.2
_WAIT_MAX_SECONDS = 0.25


def together(*, processes: int, seconds: float) -> Figures:
    """Let that many processes write to a new ledger at once."""
    with scratch_folder() as folder:
        path = folder / "ledger.db"
        slots = int(_PLANNED_PER_SECOND * seconds)
        with Ledger.open(path, create=True) as ledger:
            runs = [plan_run(ledger, slots, budgets=1, name=f"run-{number}").run_id for number in range(processes)]
        writers = [_start(path, run_id, slots, seconds) for run_id in runs]
        for writer in writers:
            _line(writer)  # each is ready
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        done = [json.loads(_line(writer)) for writer in writers]
        for writer in writers:
            writer.communicate()
        shares = [one["calls"] for one in done]
        return {
            "calls_per_second": sum(one["calls"] / one["took"] for one in done),
            "most_to_least": max(shares) / max(1, min(shares)),
            "longest_wait_seconds": max(one["longest_wait_seconds"] for one in done),
        }


def writer(*, path: str, run_id: str, slots: int, seconds: float) -> Figures:
    """One of the processes: says that it is ready, waits for the word, writes until its time is over."""
    with Ledger.open(path) as ledger:
        coordinator = open_run(ledger, run_id)
        print("ready", flush=True)
        sys.stdin.readline()
        return asyncio.run(_write(ledger, coordinator.run_key, slots, seconds))


async def _write(ledger: Ledger, run_key: int, slots: int, seconds: float) -> Figures:
    numbers, holds, done = iter(range(1, slots + 1)), holds_of(1), 0
    began = time.perf_counter()
    until = began + seconds

    async def caller() -> None:
        nonlocal done
        for number in numbers:
            intent = intent_of(run_key, number, ledger.ids.next(), holds)
            begun = await ledger.write_async(Beginning(intent, 1))
            await ledger.write_async(Observing(begun.key, FACTS, ANSWER, ANSWER_DIGEST, "{}", "[]"))
            if time.perf_counter() >= until:
                return
            done += 1

    await asyncio.gather(*(caller() for _ in range(_CALLERS)))
    if done >= slots - _CALLERS:
        raise SystemExit("the run was too short for the time")
    return {"calls": done, "took": seconds, "longest_wait_seconds": ledger.longest_wait_seconds}


def _start(path: Path, run_id: str, slots: int, seconds: float) -> subprocess.Popen[str]:
    asked = {"name": "writer", "path": str(path), "run_id": run_id, "slots": slots, "seconds": seconds}
    return subprocess.Popen(
        [sys.executable, __file__, "--measure", json.dumps(asked)],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a writer ended with {process.wait()} before its time")
    return line


def rows(asked: Asked) -> Sequence[Row]:
    """One row for each number of processes, the worst of its repetitions."""
    made = []
    seconds, alone = 1.0 if asked.quick else 4.0, 0.0
    for processes in (1, 2, 4):
        taken = [child(__file__, "together", processes=processes, seconds=seconds) for _ in range(asked.repetitions)]
        rate = sorted(one["calls_per_second"] for one in taken)[len(taken) // 2]
        if processes == 1:
            alone = rate
            continue
        uneven = max(one["most_to_least"] for one in taken)
        wait = max(one["longest_wait_seconds"] for one in taken)
        made.append(
            Row(
                case=f"{processes} processes, {_CALLERS} callers each",
                ours=f"{rate:,.0f} calls/s",
                baseline=f"alone {alone:,.0f} calls/s",
                ratio=f"{rate / alone:.2f}",
                must=f"uneven <= {_UNEVEN_MAX}, wait <= {_WAIT_MAX_SECONDS * 1000:.0f} ms",
                reached=uneven <= _UNEVEN_MAX and wait <= _WAIT_MAX_SECONDS,
                more=f"most to least {uneven:.2f}, longest wait at the turnstile {wait * 1000:.0f} ms"
                f" (worst of {len(taken)})",
            )
        )
    return made


if __name__ == "__main__":
    run_script(
        __file__,
        "Processes that write to one ledger at once",
        {"together": together, "writer": writer},
        rows,
    )
