"""What a run costs as it grows: planning, claiming, resuming and status at 10³ to 10⁶ slots.

Planning must stay within bounded memory; claiming must not grow with the run; resuming must grow with what is left and
what was in flight; status may read the run, and must be quick. Each is measured in a fresh process. The ratio is to the
same at the smallest size, per slot for planning.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from measure import Asked, Figures, Row, child, peak_megabytes, run_script, scratch_folder, take_in_turns
from scratch_runs import holds_of, intent_of, plan_run
from worn_ledger import CONCURRENCY, die_with_calls_in_flight, seconds_of_status, seconds_to_first_dispatch, wear

from tallystick.ledger import attempts
from tallystick.ledger.coordinators import open_run
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.slot_reads import pending_slots

_LEFT = 1_000
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


def wearing(*, folder: str, slots: int, left: int) -> Figures:
    """Make the ledger that `resuming` and `status` are measured on, all but its death."""
    wear(Path(folder), slots, left=left)
    return {}


def resuming(*, folder: str) -> Figures:
    """Seconds from the start of `tallystick resume` to its first call of the target, after a death."""
    die_with_calls_in_flight(Path(folder))
    return {"seconds": seconds_to_first_dispatch(Path(folder)), "megabytes": peak_megabytes(children=True)}


def status(*, folder: str) -> Figures:
    """Seconds of `tallystick status`, from the start of its process to its end."""
    return {"seconds": seconds_of_status(Path(folder)), "megabytes": peak_megabytes(children=True)}


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
        child(__file__, "wearing", folder=str(folder), slots=slots, left=left)
        taken = take_in_turns(__file__, ("resuming", "status"), repetitions=asked.repetitions, folder=str(folder))
    took, looked = taken.median("resuming", "seconds"), taken.median("status", "seconds")
    return [
        _row(f"resume, {left:,} left of {slots:,}", f"{took:.2f} s", took, smallest, "resume",
             taken.median("resuming", "megabytes"), must="< 2 s" if due else "", reached=took < 2 if due else None,
             more=f"from the command's start to its first dispatch, after a death with {CONCURRENCY} in flight"),
        _row(f"status of {slots:,} slots", f"{looked:.2f} s", looked, smallest, "status",
             taken.median("status", "megabytes"), must="< 1 s" if due else "", reached=looked < 1 if due else None,
             more="the whole command"),
    ]  # fmt: skip


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
        {"planning": planning, "claiming": claiming, "wearing": wearing, "resuming": resuming, "status": status},
        rows,
    )
