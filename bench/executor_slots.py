"""Slots a second through the whole of `tallystick.run`, with a target that answers at once.

From the first call of the target until the run is finished: planning is not in it (`planning.py` has that); reading
ahead, pacing, the watch over deadlines, tallies and, in the rows that say so, an exact-match judge with a durable
commit of its own are. The baseline is the ledger alone with as many callers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ledger_calls import through_the_ledger
from measure import Asked, Figures, Row, peak_megabytes, run_script, scratch_folder, take_in_turns
from scratch_runs import write_cases

import tallystick as ts
from tallystick.ledger.states import SlotState

_MUST_PER_SECOND = 3_500
_FALL_MAX = 0.8
_SMALLEST = 1_000


def executor(*, slots: int, concurrency: int, judged: bool) -> Figures:
    """Slots a second of a run."""
    first = cpu = 0.0

    @ts.target(if_unknown="repeat", version="1")
    async def instant(case: ts.Case) -> str:
        nonlocal first, cpu
        if not first:
            first, cpu = time.perf_counter(), time.process_time()
        return str(case.expected)

    with scratch_folder() as folder:
        cases = folder / "cases.jsonl"  # a file, so that memory is the library's and not that of our list
        write_cases(cases, slots)
        order = ts.WorkOrder(
            "bench", cases=ts.cases(cases), target=instant, judges=[ts.exact()] if judged else [],
            budgets={"dispatches": slots}, concurrency=concurrency,
        )  # fmt: skip
        outcome = ts.run(order, ledger=folder / "ledger.db")
        took, cpu = time.perf_counter() - first, time.process_time() - cpu
        if outcome.counts[SlotState.SELECTED] != slots:
            raise SystemExit(f"not every slot was selected: {outcome}")
        return {"calls_per_second": slots / took, "cpu_us": cpu / slots * 1e6, "megabytes": peak_megabytes()}


def ledger(*, slots: int, concurrency: int, judged: bool) -> Figures:  # noqa: ARG001 - the same arguments for both
    """Calls a second of the ledger alone."""
    return through_the_ledger(calls=slots, callers=concurrency, budgets=1)


def rows(asked: Asked) -> Sequence[Row]:
    """One row for each concurrency and size; at 64, the smallest size takes its turn with each of the others."""
    cases = [(_SMALLEST, 1, False), (_SMALLEST, 16, False), (_SMALLEST, 64, False)]
    if not asked.quick:
        cases += [(10_000, 64, False), (100_000, 64, False), (10_000, 16, True), (10_000, 64, True)]
    return [_row(asked, slots, concurrency, judged=judged) for slots, concurrency, judged in cases]


def _row(asked: Asked, slots: int, concurrency: int, *, judged: bool) -> Row:
    due = concurrency == 64 and not judged
    sizes = {"executor": slots, "ledger": min(slots, 15_000), "smallest": _SMALLEST}
    taken = take_in_turns(
        __file__,
        ("executor", "ledger", "smallest") if due else ("executor", "ledger"),
        repetitions=asked.repetitions,
        each={name: {"slots": size} for name, size in sizes.items()},
        concurrency=concurrency,
        judged=judged,
    )
    rate = taken.median("executor", "calls_per_second")
    kept = taken.ratio("executor", "smallest", "calls_per_second") if due else 1.0
    return Row(
        case=f"executor, {slots:,} slots at {concurrency}{', judged' * judged}",
        ours=f"{rate:,.0f} slots/s",
        baseline=f"ledger {taken.median('ledger', 'calls_per_second'):,.0f} calls/s",
        ratio=f"{taken.ratio('executor', 'ledger', 'calls_per_second'):.2f}",
        must=f">= {_MUST_PER_SECOND:,}/s, {_FALL_MAX} of {_SMALLEST:,} slots" if due else "",
        reached=rate >= _MUST_PER_SECOND and kept >= _FALL_MAX if due else None,
        more=f"CPU {taken.median('executor', 'cpu_us'):.0f} us a slot,"
        f" peak {taken.median('executor', 'megabytes'):.0f} MB" + f", {kept:.2f} of the smallest" * due,
    )


if __name__ == "__main__":
    run_script(
        __file__,
        "Slots through the executor, with an instant target",
        {"executor": executor, "smallest": executor, "ledger": ledger},
        rows,
    )
