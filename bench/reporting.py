"""What reports cost: every form over 100,000 planned observations, a comparison, and the page of 10,000 in a browser.

Each is a command in a process of its own, from its start to its end; the page is opened, searched and filtered in a
headless Chromium where there is one.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import (
    Asked,
    Figures,
    Row,
    Taken,
    child,
    environment,
    peak_megabytes,
    run_script,
    scratch_folder,
    take_in_turns,
)
from reported_runs import made_to_report

_FORMS = ("terminal", "json", "html", "md", "csv", "junit")
_SECONDS_MUST = 20
_MEGABYTES_MUST = 1_000
_PAGE_MUST = 2.0


def making(*, folder: str, slots: int) -> Figures:
    """Make the ledger that is reported on."""
    made_to_report(Path(folder) / "ledger.db", slots)
    return {}


def reporting(*, folder: str, form: str) -> Figures:
    """Seconds and memory of `tallystick report` in that form."""
    return _command(folder, "report", "language-id", "--format", form, "--output", str(Path(folder) / f"report.{form}"))


def comparing(*, folder: str) -> Figures:
    """Seconds and memory of `tallystick compare`, with a line for each language."""
    return _command(folder, "compare", "language-id", "--by", "language", "--json")


def _command(folder: str, *words: str) -> Figures:
    command = [sys.executable, "-m", "tallystick", *words, "--ledger", str(Path(folder) / "ledger.db")]
    began = time.perf_counter()
    subprocess.run(command, env=environment(), check=True, stdout=subprocess.DEVNULL)
    took, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": took, "cpu": used.ru_utime + used.ru_stime, "megabytes": peak_megabytes(children=True)}


def opening(*, folder: str) -> Figures:
    """Seconds until the page is loaded and its list drawn, and of a search and a filter over all of it."""
    from tests.browser.chromium import started  # of the checkout, which children can import

    page = Path(folder) / "report.html"
    with started(Path(folder)) as browser:
        browser.show_as(width=1280)
        began = time.perf_counter()
        browser.open(page)
        assert browser.run("return document.querySelectorAll('#list > details').length") > 0
        opened = time.perf_counter() - began
        took: Any = browser.run(
            "const began = performance.now(); const search = document.getElementById('search');"
            " search.value = 'overloaded'; const state = document.getElementById('state');"
            " state.value = 'failed'; state.dispatchEvent(new Event('change'));"
            " return [performance.now() - began, document.getElementById('count').textContent]"
        )
        return {"seconds": opened, "filter": took[0] / 1000, "megabytes": page.stat().st_size / 1e6}


def rows(asked: Asked) -> Sequence[Row]:
    """A row for each form, one for a comparison, one for the page."""
    slots = asked.size(100_000, 2_000)
    made = []
    with scratch_folder() as folder:
        child(__file__, "making", folder=str(folder), slots=slots)
        for form in _FORMS:
            taken = take_in_turns(__file__, ("reporting",), repetitions=asked.repetitions, folder=str(folder),
                                  form=form)  # fmt: skip
            made.append(_row(f"report of {slots:,} as {form}", taken, "reporting", due=not asked.quick))
        taken = take_in_turns(__file__, ("comparing",), repetitions=asked.repetitions, folder=str(folder))
        made.append(_row(f"comparison of {slots:,} by language", taken, "comparing", due=False))
    if shutil.which("chromedriver"):
        made.append(_page(asked))
    return made


def _row(case: str, taken: Taken, name: str, *, due: bool) -> Row:
    seconds, cpu, memory = (taken.median(name, figure) for figure in ("seconds", "cpu", "megabytes"))
    reached = seconds < _SECONDS_MUST and memory < _MEGABYTES_MUST
    return Row(
        case=case, ours=f"{seconds:.1f} s", must=f"< {_SECONDS_MUST} s, < 1 GB" if due else "",
        reached=reached if due else None, more=f"CPU {cpu:.1f} s, peak {memory:.0f} MB",
    )  # fmt: skip


def _page(asked: Asked) -> Row:
    slots = asked.size(10_000, 1_000)
    with scratch_folder() as folder:
        child(__file__, "making", folder=str(folder), slots=slots)
        child(__file__, "reporting", folder=str(folder), form="html")
        taken = take_in_turns(__file__, ("opening",), repetitions=asked.repetitions, folder=str(folder))
    opened, filtered = taken.median("opening", "seconds"), taken.median("opening", "filter")
    return Row(
        case=f"the page of {slots:,} in Chromium", ours=f"{opened:.2f} s + {filtered:.2f} s",
        must="< 2 s" if not asked.quick else "",
        reached=max(opened, filtered) < _PAGE_MUST if not asked.quick else None,
        more=f"opened, then searched and filtered; {taken.median('opening', 'megabytes'):.1f} MB",
    )  # fmt: skip


if __name__ == "__main__":
    run_script(
        __file__, "What reports cost",
        {"making": making, "reporting": reporting, "comparing": comparing, "opening": opening}, rows,
    )  # fmt: skip
