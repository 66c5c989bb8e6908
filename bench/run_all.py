"""Every benchmark, each in processes of its own, and one table of all at the end.

``make bench`` runs this; ``make bench ARGS=--quick`` only looks whether all of them run. Ends with 1 when one of them
could not be taken, and, unless ``--quick``, when a figure misses what it must reach.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from measure import Row, environment, scratch_folder, show

_SCRIPTS = (
    "ledger_calls.py",
    "processes.py",
    "dbos_steps.py",
    "executor_slots.py",
    "http_slots.py",
    "guard.py",
    "judgments.py",
    "planning.py",
    "device_takeover.py",
    "reporting.py",
    "snapshots.py",
)


def main() -> int:
    """Run them one after the other."""
    parser = argparse.ArgumentParser(description="Every benchmark, and one table of all at the end.")
    parser.add_argument("--quick", action="store_true", help="small sizes and one repetition: does it run at all")
    parser.add_argument("--repetitions", type=int, help="how often each measurement is taken (the median counts)")
    parser.add_argument("--only", help="only the scripts whose names hold this")
    options = parser.parse_args()
    passed = ["--quick"] * options.quick
    passed += ["--repetitions", str(options.repetitions)] if options.repetitions else []
    rows: list[Row] = []
    broken: list[str] = []
    for script in _SCRIPTS:
        if options.only and options.only not in script:
            continue
        taken = _rows_of(script, passed)
        if taken is None:
            broken.append(script)
        else:
            rows += taken
    show("All benchmarks", rows)
    for script in broken:
        print(f"{script} could not be taken")
    missed = [row.case for row in rows if row.reached is False]
    return int(bool(broken) or (bool(missed) and not options.quick))


def _rows_of(script: str, passed: list[str]) -> list[Row] | None:
    with scratch_folder() as folder:
        written = folder / "rows.json"
        command = [sys.executable, str(Path(__file__).with_name(script)), *passed, "--rows", str(written)]
        if subprocess.run(command, env=environment(), check=False).returncode or not written.exists():
            return None
        return [Row(**row) for row in json.loads(written.read_text())]


if __name__ == "__main__":
    sys.exit(main())
