"""The same instant target as steps of DBOS workflows on SQLite, beside calls of ours, both at 64 at a time.

A DBOS step is one durable write after the call; a call of ours is two, the first before it. DBOS runs as it comes (its
journal and durability are SQLite's defaults), and once more with its file set to write-ahead logging beforehand,
which is kinder to it. DBOS is a dependency of this benchmark alone; without it the script says so and makes no row.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import logging
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from ledger_calls import through_the_ledger
from measure import Asked, Figures, Row, peak_megabytes, run_script, scratch_folder, take_in_turns
from scratch_runs import PAYLOAD, instant_target

_CALLERS = 64
_MUST = 10


def steps_as_it_comes(*, calls: int) -> Figures:
    """Steps a second with the settings that it comes with."""
    return _steps(calls, journal="delete")


def steps_in_wal(*, calls: int) -> Figures:
    """Steps a second with its file in write-ahead logging."""
    return _steps(calls, journal="wal")


def ours(*, calls: int) -> Figures:
    """Calls a second through the ledger."""
    return through_the_ledger(calls=calls, callers=_CALLERS, budgets=1)


def _steps(calls: int, *, journal: str) -> Figures:
    import dbos

    DBOS: Any = dbos.DBOS  # noqa: N806 - untyped where it is not installed

    with scratch_folder() as folder:
        path = folder / "dbos.sqlite"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA journal_mode={journal}").fetchone()
        DBOS(config={
            "name": "bench", "system_database_url": f"sqlite:///{path}", "run_admin_server": False,
            "log_level": "ERROR",
        })  # fmt: skip
        logging.getLogger("dbos").setLevel(logging.ERROR)

        @DBOS.step()  # type: ignore[untyped-decorator]
        async def step(payload: bytes) -> str:
            return await instant_target(payload)

        @DBOS.workflow()  # type: ignore[untyped-decorator]
        async def workflow(steps: int) -> int:
            for _ in range(steps):
                await step(PAYLOAD)
            return steps

        DBOS.launch()
        try:
            return asyncio.run(_saturate(DBOS, workflow, calls))
        finally:
            DBOS.destroy()


async def _saturate(dbos: Any, workflow: Any, calls: int) -> Figures:
    steps = max(1, calls // _CALLERS)
    cpu, began = time.process_time(), time.perf_counter()
    handles = [await dbos.start_workflow_async(workflow, steps) for _ in range(_CALLERS)]
    done = sum([await handle.get_result() for handle in handles])
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"calls_per_second": done / took, "cpu_us": cpu / done * 1e6, "megabytes": peak_megabytes()}


def rows(asked: Asked) -> Sequence[Row]:
    """One row for each way to run DBOS."""
    if importlib.util.find_spec("dbos") is None:
        return [
            Row("calls against DBOS steps", "not measured", more="dbos is not installed here; `make bench` installs it")
        ]
    ours_calls, steps = asked.size(15_000, 640), asked.size(3_200, 128)
    return [
        _row("DBOS steps as they come", "steps_as_it_comes", asked, ours_calls, steps),
        _row("DBOS steps, its file in WAL", "steps_in_wal", asked, ours_calls, steps),
    ]


def _row(case: str, name: str, asked: Asked, calls: int, steps: int) -> Row:
    taken = take_in_turns(
        __file__, ("ours", name), repetitions=asked.repetitions, each={"ours": {"calls": calls}, name: {"calls": steps}}
    )
    cpu, megabytes = (functools.partial(taken.median, figure=figure) for figure in ("cpu_us", "megabytes"))
    ratio = taken.ratio("ours", name, "calls_per_second")
    return Row(
        case=case,
        ours=f"{taken.median('ours', 'calls_per_second'):,.0f} calls/s",
        baseline=f"DBOS {taken.median(name, 'calls_per_second'):,.0f} steps/s",
        ratio=f"{ratio:.1f}",
        must=f">= {_MUST}",
        reached=ratio >= _MUST,
        more=f"{_CALLERS} at a time; CPU {cpu('ours'):.0f} us a call, DBOS {cpu(name):,.0f} a step;"
        f" peak {megabytes('ours'):.0f} MB, DBOS {megabytes(name):.0f}",
    )


if __name__ == "__main__":
    run_script(
        __file__,
        "Calls through the ledger, against DBOS steps on SQLite",
        {"ours": ours, "steps_as_it_comes": steps_as_it_comes, "steps_in_wal": steps_in_wal},
        rows,
    )
