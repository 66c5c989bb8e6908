"""What a run costs as it grows: planning, claiming, resuming and status at 10³ to 10⁶ slots.

Planning must stay within bounded memory; claiming must not grow with the run; resuming must grow with what is left and
what was in flight; status may read the run, and must be quick. Each is measured in a fresh process. The ratio is to the
same at the smallest size, per slot for planning.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from measure import Asked, Figures, Row, child, environment, peak_megabytes, run_script, scratch_folder, take_in_turns
from scratch_runs import holds_of, intent_of, plan_run
from worn_ledger import die_with_calls_in_flight, plan_and_wear

from tallystick.ledger import attempts
from tallystick.ledger.coordinators import open_run
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.run_reads import budgets_of, find_run, slot_counts, totals_of
from tallystick.ledger.slot_reads import pending_slots, suspect_slots
from tallystick.ledger.states import IfUnknown

_LEFT = 1_000
_IN_FLIGHT = 64
_CLAIMS = 512
_START = (-1, -1)


def planning(*, slots: int) -> Figures:
    """Seconds and memory to plan a run of that many cases, from nothing to durable."""
    with scratch_folder() as folder:
        began = time.perf_counter()
        with Ledger.open(folder / "ledger.db", create=True) as ledger:
            plan_run(ledger, slots, budgets=1)
            took = time.perf_counter() - began
        return {"seconds": took, "megabytes": peak_megabytes()}


def claiming(*, slots: int) -> Figures:
    """Milliseconds for the first claim of a planned run, and for one of many that go together, in its middle."""
    with scratch_folder() as folder, Ledger.open(folder / "ledger.db", create=True) as ledger:
        run = plan_run(ledger, slots, budgets=1)
        open_run(ledger, run.run_id)
        began = time.perf_counter()
        asyncio.run(_claim(ledger, run.run_key, _START, 1))
        first = time.perf_counter() - began
        began = time.perf_counter()
        asyncio.run(_claim(ledger, run.run_key, (0, slots // 2), min(_CLAIMS, slots // 4)))
        many = (time.perf_counter() - began) / min(_CLAIMS, slots // 4)
        return {"first_ms": first * 1000, "many_us": many * 1e6, "megabytes": peak_megabytes()}


async def _claim(ledger: Ledger, run_key: int, after: tuple[int, int], count: int) -> None:
    with ledger.reading() as reader:
        waiting = pending_slots(reader, run_key, after=after, now_us=ledger.clock.now_us(), limit=count)
    intents = [intent_of(run_key, slot.slot_no, ledger.ids.next(), holds_of(1)) for slot in waiting]
    await asyncio.gather(
        *(ledger.write_async(lambda tx, intent=intent: attempts.begin(tx, intent)) for intent in intents)  # type: ignore[misc]
    )


def wearing(*, path: str, slots: int) -> Figures:
    """Make the ledger that `resuming` and `status` are measured on, all but its death."""
    run_id = plan_and_wear(Path(path), slots, left=_LEFT if slots > 2 * _LEFT else slots // 2)
    Path(path).with_suffix(".run").write_text(run_id)
    return {}


def dying(*, path: str) -> Figures:
    """Leave calls in flight, by a death."""
    die_with_calls_in_flight(Path(path), _run_id(path), _IN_FLIGHT)
    return {}


def resuming(*, path: str) -> Figures:
    """Seconds from opening the ledger to the first durable intent, the recovery of a death included."""
    began = time.perf_counter()
    ledger = Ledger.open(path)
    coordinator = open_run(ledger, _run_id(path))
    with ledger.reading() as reader:
        slot = suspect_slots(reader, coordinator.run_key, limit=256)[0]
    intent = intent_of(coordinator.run_key, slot.slot_no, ledger.ids.next(), holds_of(1), IfUnknown.REPEAT)
    ledger.write(lambda tx: attempts.begin(tx, intent))
    took = time.perf_counter() - began
    with ledger.reading() as reader:
        found = pending_slots(
            reader, coordinator.run_key, after=_START, now_us=ledger.clock.now_us(), limit=256
        )  # what a concurrent worker would get next
    assert found
    return {"seconds": took, "recovered": coordinator.recovered.again, "megabytes": peak_megabytes()}


def status(*, path: str) -> Figures:
    """Seconds to count the run's slots by state, its budgets and its totals."""
    began = time.perf_counter()
    with Ledger.open(path) as ledger, ledger.reading() as reader:
        run = find_run(reader, _run_id(path))
        counts = slot_counts(reader, run.run_key)
        budgets_of(reader, run.run_key)
        totals = totals_of(reader, run.run_key)
    took = time.perf_counter() - began
    if sum(counts.values()) != run.planned or totals.calls < run.planned - _LEFT:
        raise SystemExit("the ledger does not hold what was written")
    return {"seconds": took, "megabytes": peak_megabytes()}


def _run_id(path: str) -> str:
    return Path(path).with_suffix(".run").read_text()


def rows(asked: Asked) -> Sequence[Row]:
    """Four rows for each size."""
    sizes = (1_000, 10_000) if asked.quick else (1_000, 10_000, 100_000, 1_000_000)
    smallest: dict[str, float] = {}
    made = []
    for slots in sizes:
        taken = take_in_turns(
            __file__, ("planning", "claiming"), repetitions=1 if slots == sizes[-1] else asked.repetitions, slots=slots
        )
        seconds, memory = taken.median("planning", "seconds"), taken.median("planning", "megabytes")
        each = seconds / slots
        due = slots == 1_000_000
        made.append(_row(f"plan {slots:,} slots", f"{seconds:.2f} s", each, smallest, "per slot", memory,
                         must="< 60 s, < 500 MB" if due else "",
                         reached=seconds < 60 and memory < 500 if due else None))  # fmt: skip
        many = taken.median("claiming", "many_us")
        made.append(_row(f"claim of {slots:,} slots", f"{many:.0f} us", many, smallest, "claim",
                         taken.median("claiming", "megabytes"),
                         more=f"the first alone {taken.median('claiming', 'first_ms'):.1f} ms"))  # fmt: skip
        made += _worn_rows(asked, slots, smallest, due=due)
    return made


def _worn_rows(asked: Asked, slots: int, smallest: dict[str, float], *, due: bool) -> list[Row]:
    left = _LEFT if slots > 2 * _LEFT else slots // 2
    with scratch_folder() as folder:
        path = str(folder / "ledger.db")
        child(__file__, "wearing", path=path, slots=slots)
        seen: dict[str, list[Figures]] = {"resuming": [], "status": []}
        for _ in range(asked.repetitions):
            _die(path)
            seen["resuming"].append(child(__file__, "resuming", path=path))
            seen["status"].append(child(__file__, "status", path=path))
    resumed = sorted(seen["resuming"], key=lambda figures: figures["seconds"])[asked.repetitions // 2]
    read = sorted(seen["status"], key=lambda figures: figures["seconds"])[asked.repetitions // 2]
    took, looked = resumed["seconds"], read["seconds"]
    return [
        _row(f"resume, {left:,} left of {slots:,}", f"{took:.3f} s", took, smallest, "resume", resumed["megabytes"],
             must="< 2 s" if due else "", reached=took < 2 if due else None,
             more=f"to the first durable intent; {resumed['recovered']:.0f} recovered"),
        _row(f"status of {slots:,} slots", f"{looked:.3f} s", looked, smallest, "status", read["megabytes"],
             must="< 1 s" if due else "", reached=looked < 1 if due else None),
    ]  # fmt: skip


def _die(path: str) -> None:
    ended = subprocess.run(
        [sys.executable, __file__, "--measure", f'{{"name": "dying", "path": "{path}"}}'],
        env=environment(),
        check=False,
    )
    if ended.returncode >= 0:
        raise SystemExit(f"the coordinator that was to be killed ended with {ended.returncode}")


def _row(
    case: str, ours: str, value: float, smallest: dict[str, float], kind: str, memory: float, *,
    must: str = "", reached: bool | None = None, more: str = "",
) -> Row:  # fmt: skip
    first = smallest.setdefault(kind, value)
    return Row(
        case=case, ours=ours, baseline="the smallest", ratio=f"{value / first:.2f}", must=must, reached=reached,
        more=f"peak {memory:.0f} MB{'; ' * bool(more)}{more}",
    )  # fmt: skip


if __name__ == "__main__":
    run_script(
        __file__,
        "What a run costs as it grows",
        {
            "planning": planning, "claiming": claiming, "wearing": wearing, "dying": dying, "resuming": resuming,
            "status": status,
        },
        rows,
    )  # fmt: skip
