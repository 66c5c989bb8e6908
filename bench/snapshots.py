"""Exporting and importing a run of 100,000 slots with 1 GB of artifacts, against copying and hashing as many bytes.

The baseline is what one would do with a plain file: `cp` it and `sha256sum` the copy. Export reads the ledger, hashes
everything, writes the file and syncs it; import verifies everything, writes the rows through the scribe in batches and
syncs. Each is measured as a whole process, and so is the baseline.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from measure import Asked, Figures, Row, child, environment, run_script, scratch_folder, take_in_turns
from worn_ledger import wear

from tallystick.ledger import driver
from tallystick.ledger.artifacts import file_of
from tallystick.ledger.canonical import digest_of_bytes

_MEGABYTE = 1_000_000
_RATIO = 0.5
_MEMORY_MAX = 300
_PEAK = """
import resource, sys
from tallystick.cli import invoke
status = invoke(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, file=sys.stderr)
sys.exit(status)
"""


def making(*, folder: str, slots: int, artifacts: int) -> Figures:
    """A ledger with a nearly finished run, of which so many observations have a raw answer of a megabyte."""
    place = Path(folder)
    wear(place, slots, left=10)
    with contextlib.closing(driver.harden(driver.connect(place / "ledger.db"))) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for number in range(2, artifacts + 2):
            data = os.urandom(_MEGABYTE)
            digest = digest_of_bytes(data)
            path = file_of(place / "ledger.db.d" / "artifacts", digest)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            connection.execute("INSERT INTO artifacts (digest, size, created_us) VALUES (?, ?, 0)", (digest, len(data)))
            connection.execute("UPDATE dispatches SET raw_artifact = ?, raw = NULL WHERE call_id = printf('%026d', ?)",
                               (digest, number))  # fmt: skip
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    os.sync()
    return {}


def exporting(*, folder: str) -> Figures:
    """`tallystick export`, to the last sync."""
    place = Path(folder)
    took, memory = _tallystick(place, "export", "worn", "-o", "s.zip", "--force", "--ledger", "ledger.db")
    return {"seconds": took, "megabytes": memory, "bytes": (place / "s.zip").stat().st_size}


def importing(*, folder: str) -> Figures:
    """`tallystick import` into a ledger that is not there yet, to the last sync."""
    with scratch_folder() as target:
        took, memory = _tallystick(Path(folder), "import", "s.zip", "--ledger", str(target / "other.db"))
        size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    return {"seconds": took, "megabytes": memory, "bytes": size}


def copying(*, folder: str) -> Figures:
    """`cp` and `sha256sum` of the snapshot."""
    place = Path(folder)
    (place / "copy").unlink(missing_ok=True)
    began = time.perf_counter()
    subprocess.run(["cp", "s.zip", "copy"], cwd=place, check=True)
    subprocess.run(["sha256sum", "copy"], cwd=place, check=True, stdout=subprocess.DEVNULL)
    took = time.perf_counter() - began
    (place / "copy").unlink()
    return {"seconds": took}


def _tallystick(folder: Path, *arguments: str) -> tuple[float, float]:
    began = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-c", _PEAK, *arguments], cwd=folder, env=environment(), check=False, capture_output=True,
        text=True,
    )  # fmt: skip
    took = time.perf_counter() - began
    if ended.returncode:
        raise SystemExit(f"tallystick {arguments} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
    return took, float(ended.stderr.split()[-1])


def rows(asked: Asked) -> Sequence[Row]:
    """Export, and import; the speed is that of the snapshot's bytes."""
    slots, artifacts = asked.size(100_000, 1_000), asked.size(1_000, 10)
    with scratch_folder() as folder:
        child(__file__, "making", folder=str(folder), slots=slots, artifacts=artifacts)
        child(__file__, "exporting", folder=str(folder))  # so that there is something to copy
        taken = take_in_turns(
            __file__, ("exporting", "copying", "importing"), repetitions=asked.repetitions, folder=str(folder)
        )
    size = taken.median("exporting", "bytes")
    return [_row(name, taken.ratio("copying", name, "seconds"), taken.median(name, "seconds"),
                 taken.median("copying", "seconds"), size, taken.median(name, "megabytes"), slots,
                 due=not asked.quick) for name in ("exporting", "importing")]  # fmt: skip


def _row(
    name: str, ratio: float, took: float, copied: float, size: float, memory: float, slots: int, *, due: bool
) -> Row:
    return Row(
        f"{name} {slots:,} slots, {size / 1e9:.2f} GB", f"{size / took / 1e6:.0f} MB/s",
        f"{size / copied / 1e6:.0f} MB/s", f"{ratio:.2f}", f">= {_RATIO}, < {_MEMORY_MAX} MB" if due else "",
        f"{took:.1f} s against {copied:.1f} s, peak {memory:.0f} MB",
        ratio >= _RATIO and memory < _MEMORY_MAX if due else None,
    )  # fmt: skip


if __name__ == "__main__":
    run_script(
        __file__,
        "Exporting and importing a run, against cp and sha256sum of as many bytes",
        {"making": making, "exporting": exporting, "importing": importing, "copying": copying},
        rows,
    )
