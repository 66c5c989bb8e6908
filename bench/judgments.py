"""Judgments a second of `tallystick judge`: a rule judge over a run that has been observed.

From the opened ledger to the finished evaluation: writing the set down, reading cases and observations, judging, the
commit of each batch with its event. Making the run is not in it. The baseline keeps no books but the rows: it reads the
same cases and answers, asks the same rule, and writes the same judgments with bare statements, as many to a commit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from measure import Asked, Figures, Row, peak_megabytes, run_script, scratch_folder, take_in_turns
from scratch_runs import write_cases

import tallystick as ts
from tallystick.ledger import driver
from tallystick.ledger.canonical import parse_json
from tallystick.ledger.states import SlotState

_MUST_PER_SECOND: Final = 3_000
_BATCH: Final = 1_000

_READ: Final = (
    "SELECT o.run_key, o.slot_no, o.attempt_no, o.answer, c.expected FROM observations o"
    " JOIN slots s ON s.run_key=o.run_key AND s.slot_no=o.slot_no"
    " JOIN cases c ON c.run_key=s.run_key AND c.case_no=s.case_no WHERE o.slot_no>? ORDER BY o.slot_no LIMIT ?"
)
_MAKE: Final = (
    "CREATE TABLE raw_judgments (run_key INTEGER, evaluation_no INTEGER, judge_no INTEGER, slot_no INTEGER,"
    " attempt_no INTEGER, sample_no INTEGER, state TEXT, passed INTEGER, cache_key TEXT, explanation TEXT,"
    " judged_us INTEGER, PRIMARY KEY (run_key, evaluation_no, judge_no, slot_no, attempt_no, sample_no)) STRICT,"
    " WITHOUT ROWID"
)
_WRITE: Final = "INSERT INTO raw_judgments VALUES (?,2,1,?,?,1,?,?,'','',?)"


def judging(*, slots: int) -> Figures:
    """Judgments a second of an evaluation with one rule judge."""
    with scratch_folder() as folder:
        run = _observed(folder, slots)
        order = ts.JudgeOrder("bench", judges=[ts.exact()])
        first, cpu = time.perf_counter(), time.process_time()
        ended = ts.evaluate(run, order, ledger=folder / "ledger.db")
        took, cpu = time.perf_counter() - first, time.process_time() - cpu
        judged = sum(line.passed for line in ended.judges)
        if judged != slots:
            raise SystemExit(f"{judged} of {slots} judgments passed: {ended}")
        return {"per_second": slots / took, "cpu_us": cpu / slots * 1e6, "megabytes": peak_megabytes()}


def raw(*, slots: int) -> Figures:
    """Judgments a second of bare statements."""
    with scratch_folder() as folder:
        _observed(folder, slots)
        connection = driver.harden(driver.connect(folder / "ledger.db"))
        connection.execute(_MAKE)
        first, reached = time.perf_counter(), 0
        while found := connection.execute(_READ, (reached, _BATCH)).fetchall():
            reached = found[-1][1]
            rows = [(run, slot, attempt, "judged", _same(answer, wanted), time.time_ns() // 1000)
                    for run, slot, attempt, answer, wanted in found]  # fmt: skip
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(_WRITE, rows)
            connection.execute("COMMIT")
        took = time.perf_counter() - first
        (passed,) = connection.execute("SELECT sum(passed) FROM raw_judgments").fetchone()
        if passed != slots:
            raise SystemExit(f"the baseline wrote {passed} of {slots} judgments")
        return {"per_second": slots / took}


def rows(asked: Asked) -> Sequence[Row]:
    """One row a size."""
    return [_row(asked, slots) for slots in ((1_000,) if asked.quick else (10_000, 50_000))]


def _row(asked: Asked, slots: int) -> Row:
    taken = take_in_turns(__file__, ("judging", "raw"), repetitions=asked.repetitions, slots=slots)
    rate = taken.median("judging", "per_second")
    return Row(
        case=f"judge {slots:,} observations by a rule",
        ours=f"{rate:,.0f} judgments/s",
        baseline=f"bare statements {taken.median('raw', 'per_second'):,.0f}/s",
        ratio=f"{taken.ratio('judging', 'raw', 'per_second'):.2f}",
        must=f">= {_MUST_PER_SECOND:,}/s",
        reached=rate >= _MUST_PER_SECOND,
        more=f"CPU {taken.median('judging', 'cpu_us'):.0f} us each, peak {taken.median('judging', 'megabytes'):.0f} MB",
    )


def _observed(folder: Path, slots: int) -> str:
    @ts.target(if_unknown="repeat", version="1")
    async def instant(case: ts.Case) -> str:
        return "en" if case else ""

    write_cases(folder / "cases.jsonl", slots)
    order = ts.WorkOrder(
        "bench", cases=ts.cases(folder / "cases.jsonl"), target=instant, judges=[], budgets={"dispatches": slots},
        concurrency=64,
    )  # fmt: skip
    outcome = ts.run(order, ledger=folder / "ledger.db")
    if outcome.counts[SlotState.SELECTED] != slots:
        raise SystemExit(f"not every slot was selected: {outcome}")
    return outcome.run_id


def _same(answer: str, wanted: str) -> bool:
    return bool(parse_json(answer) == parse_json(wanted))


if __name__ == "__main__":
    run_script(__file__, "Judgments by a rule", {"judging": judging, "raw": raw}, rows)
