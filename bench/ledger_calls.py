"""Durable calls a second through the whole ledger, against the same rows written with the bare driver.

A call is two durable acknowledgements: its intent (claim, attempt, call, dispatch, reservations, event) and its outcome
(dispatch, settlement, observation, selection, event).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from measure import Asked, Figures, Row, Taken, peak_megabytes, run_script, scratch_folder, take_in_turns
from raw_ledger import RawLedger
from scratch_runs import ANSWER_DIGEST, FACTS, PAYLOAD, PAYLOAD_DIGEST, holds_of, instant_target, intent_of, plan_run

from tallystick.ledger import driver
from tallystick.ledger.attempt_groups import Beginning, Observing
from tallystick.ledger.coordinators import open_run
from tallystick.ledger.ledger import Ledger

_MUST = 0.5
_CALLERS = (1, 8, 64, 256)


def through_the_ledger(*, calls: int, callers: int, budgets: int) -> Figures:
    """Calls a second through the library."""
    with scratch_folder() as folder:
        path = folder / "ledger.db"
        with Ledger.open(path, create=True) as ledger:
            run = plan_run(ledger, calls, budgets=budgets)
            open_run(ledger, run.run_id)
            holds = holds_of(budgets)

            async def one_call(slot_no: int) -> None:
                intent = intent_of(run.run_key, slot_no, ledger.ids.next(), holds)
                begun = await ledger.write_async(Beginning(intent, 1))
                answer = await instant_target(PAYLOAD)
                await ledger.write_async(Observing(begun.key, FACTS, answer, ANSWER_DIGEST, "{}", "[]"))

            figures = asyncio.run(_saturate(one_call, calls, callers))
        _check(path, calls, budgets)
        return figures


def with_the_driver(*, calls: int, callers: int, budgets: int) -> Figures:
    """Calls a second of hand-written code."""
    with scratch_folder() as folder:
        path = folder / "ledger.db"
        with Ledger.open(path, create=True) as ledger:
            run = plan_run(ledger, calls, budgets=budgets)
            open_run(ledger, run.run_id)
            worker_id = ledger.worker_id
        raw = RawLedger(
            path,
            run_key=run.run_key,
            worker_id=worker_id,
            budgets=[(hold.budget_no, hold.amount, FACTS.used(hold.unit) or 0) for hold in holds_of(budgets)],
        )
        answer_raw = FACTS.raw or b""

        async def main() -> Figures:
            loop = asyncio.get_running_loop()

            async def one_call(slot_no: int) -> None:
                call_id = f"{slot_no:026d}"
                await raw.write(
                    loop, raw.begin, call_id, slot_no, '{"kind":"bench"}', PAYLOAD, PAYLOAD_DIGEST, "sha256:fingerprint"
                )
                answer = await instant_target(PAYLOAD)
                await raw.write(loop, raw.observe, call_id, slot_no, answer, ANSWER_DIGEST, answer_raw)

            return await _saturate(one_call, calls, callers)

        try:
            figures = asyncio.run(main())
        finally:
            raw.close()
        _check(path, calls, budgets)
        return figures


async def _saturate(one_call: Callable[[int], Awaitable[None]], calls: int, callers: int) -> Figures:
    slots = iter(range(1, calls + 1))

    async def caller(numbers: Iterator[int]) -> None:
        for number in numbers:
            await one_call(number)

    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.gather(*(caller(slots) for _ in range(callers)))
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"calls_per_second": calls / took, "cpu_us": cpu / calls * 1e6, "megabytes": peak_megabytes()}


_EXPECTED = {
    "SELECT count(*) FROM slots WHERE state = 'selected'": 1,
    "SELECT count(*) FROM attempts WHERE state = 'observed'": 1,
    "SELECT count(*) FROM calls": 1,
    "SELECT count(*) FROM dispatches WHERE state = 'answered'": 1,
    "SELECT count(*) FROM observations": 1,
    "SELECT count(*) FROM events WHERE kind IN ('dispatch.intended', 'attempt.observed')": 2,
}


def _check(path: Path, calls: int, budgets: int) -> None:
    """Both sides must have written the same, else their ratio means nothing."""
    connection = driver.connect(path, read_only=True)
    wanted = {sql: each * calls for sql, each in _EXPECTED.items()}
    wanted["SELECT count(*) FROM reservations WHERE state = 'settled'"] = calls * budgets
    wanted["SELECT settled FROM budgets WHERE budget_no = 1"] = calls
    wanted["SELECT sum(held) FROM budgets"] = 0
    for sql, expected in wanted.items():
        found: Any = connection.execute(sql).fetchone()[0]
        if found != expected:
            raise SystemExit(f"{sql}: {found}, not {expected}")
    connection.close()


def rows(asked: Asked) -> Sequence[Row]:
    """One row for each number of callers and budgets."""
    made = []
    for budgets in (1, 9):
        for callers in _CALLERS:
            calls = asked.size(1_500 if callers == 1 else 6_000 if callers == 8 else 15_000, 300)
            taken = take_in_turns(
                __file__, ("ours", "raw"), repetitions=asked.repetitions, calls=calls, callers=callers, budgets=budgets
            )
            made.append(_row(taken, callers, budgets))
    return made


def _row(taken: Taken, callers: int, budgets: int) -> Row:
    ratio = taken.ratio("ours", "raw", "calls_per_second")
    due = callers == 64
    return Row(
        case=f"ledger, {callers} callers, {budgets} budget{'s' * (budgets > 1)}",
        ours=f"{taken.median('ours', 'calls_per_second'):,.0f} calls/s",
        baseline=f"driver {taken.median('raw', 'calls_per_second'):,.0f} calls/s",
        ratio=f"{ratio:.2f}",
        must=f">= {_MUST}" if due else "",
        reached=ratio >= _MUST if due else None,
        more=f"CPU {taken.median('ours', 'cpu_us'):.0f} us a call (driver {taken.median('raw', 'cpu_us'):.0f}), "
        f"peak {taken.median('ours', 'megabytes'):.0f} MB",
    )


if __name__ == "__main__":
    run_script(
        __file__,
        "Durable calls through the ledger, against the same rows by the bare driver",
        {"ours": through_the_ledger, "raw": with_the_driver},
        rows,
    )
