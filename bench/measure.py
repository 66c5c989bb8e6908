"""What every benchmark shares: fresh child processes, interleaved repetitions, medians, one table.

A script names its measurements (functions that return figures) and makes a table of them. Each measurement runs in a
process of its own, so that peak memory and warm caches belong to it alone, and the sides of a ratio take turns, so
that a disturbance of the machine falls on both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from tallystick.ledger.driver import sqlite_version

__all__ = [
    "Asked",
    "Figures",
    "Row",
    "Taken",
    "child",
    "environment",
    "peak_megabytes",
    "run_script",
    "scratch_folder",
    "show",
    "take_in_turns",
]

Figures: TypeAlias = dict[str, float]
Measurement: TypeAlias = Callable[..., Figures]

_ROOT = Path(__file__).resolve().parent.parent
_CHILD_SECONDS_MAX = 900


@attrs.frozen
class Row:
    """One row of the table. ``ratio`` is ours to the baseline's; ``must`` is what issue and design ask for."""

    case: str
    ours: str
    baseline: str = ""
    ratio: str = ""
    must: str = ""
    more: str = ""
    reached: bool | None = None


@attrs.frozen
class Asked:
    """What the command line asked for."""

    quick: bool
    repetitions: int

    def size(self, full: int, quick: int) -> int:
        """The one or the other."""
        return quick if self.quick else full


def run_script(
    script: str, title: str, measurements: Mapping[str, Measurement], rows: Callable[[Asked], Sequence[Row]]
) -> None:
    """The main function of a benchmark: prints a table, or as a child makes one measurement and prints its figures."""
    parser = argparse.ArgumentParser(prog=Path(script).name, description=title)
    parser.add_argument("--quick", action="store_true", help="small sizes and one repetition: does it run at all")
    parser.add_argument("--repetitions", type=int, help="how often each measurement is taken (the median counts)")
    parser.add_argument("--rows", type=Path, help="also write the rows to this file, as JSON")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        asked = json.loads(options.measure)
        print(json.dumps(measurements[asked.pop("name")](**asked)))
        return
    made = list(rows(Asked(options.quick, options.repetitions or (1 if options.quick else 3))))
    show(title, made)
    if options.rows:
        options.rows.write_text(json.dumps([attrs.asdict(row) for row in made]))


def child(script: str, name: str, **arguments: Any) -> Figures:
    """Take one measurement of a script in a fresh process."""
    command = [sys.executable, script, "--measure", json.dumps({"name": name, **arguments})]
    done = subprocess.run(
        command, env=environment(), check=False, capture_output=True, text=True, timeout=_CHILD_SECONDS_MAX
    )
    if done.returncode:
        raise SystemExit(f"the measurement {name} {arguments} ended with {done.returncode}:\n{done.stderr}")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def environment() -> dict[str, str]:
    """The environment of child processes: this one, with the checkout importable."""
    path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


@attrs.frozen
class Taken:
    """Figures of measurements that were taken in turns, by name, one for each repetition."""

    by_name: dict[str, list[Figures]]

    def median(self, name: str, figure: str) -> float:
        """The median over the repetitions."""
        return statistics.median(one[figure] for one in self.by_name[name])

    def ratio(self, name: str, other: str, figure: str) -> float:
        """The median of the ratios of those that ran side by side."""
        pairs = zip(self.by_name[name], self.by_name[other], strict=True)
        return statistics.median(one[figure] / two[figure] for one, two in pairs)


def take_in_turns(
    script: str,
    names: Sequence[str],
    *,
    repetitions: int,
    each: Mapping[str, Mapping[str, Any]] | None = None,
    **arguments: Any,
) -> Taken:
    """Take each measurement as often as asked, turn and turn about; ``each`` has arguments for one of them alone.

    The order turns round with every repetition, so that no side always runs on what the other left warm.
    """
    taken: dict[str, list[Figures]] = {name: [] for name in names}
    for repetition in range(repetitions):
        for name in names if repetition % 2 == 0 else reversed(names):
            taken[name].append(child(script, name, **arguments, **(each or {}).get(name, {})))
    return Taken(taken)


def peak_megabytes(*, children: bool = False) -> float:
    """The largest resident set that this process ever had, or that any of its children had that have ended."""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for ledgers on the disk of the checkout (or of ``TALLYSTICK_BENCH_DIR``), removed afterwards.

    Not the system's folder for temporary files: where that lies in memory, a sync costs nothing and figures lie.
    """
    base = Path(os.environ.get("TALLYSTICK_BENCH_DIR") or _ROOT / "build" / "bench")
    base.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def show(title: str, rows: Sequence[Row]) -> None:
    """Print the table, headed by what it was taken on."""
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"\n{title}")
    print(
        f"{os.cpu_count()} cores, load average {load}, Python {platform.python_version()}, SQLite {sqlite_version}, "
        f"{platform.system()} {platform.machine()}\n"
    )
    heads = ("case", "ours", "baseline", "ratio", "must reach", "", "more")
    table = [heads, *((row.case, row.ours, row.baseline, row.ratio, row.must, _mark(row), row.more) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(heads))]
    for number, line in enumerate(table):
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
    sys.stdout.flush()


def _mark(row: Row) -> str:
    return "" if row.reached is None else "ok" if row.reached else "MISSED"
