"""Ledgers, runs, intents and answers for the tests of the ledger; each call makes a fresh one."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from tallystick.ledger import attempts, coordinators, planning
from tallystick.ledger.canonical import digest_of_bytes, parse_json
from tallystick.ledger.driver import Connection, connect
from tallystick.ledger.evaluations import EvaluationPlan
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.migrate import migrate
from tallystick.ledger.records import Begun, BudgetPlan, DispatchFacts, DispatchKey, Held, Hold, Intent
from tallystick.ledger.states import DispatchState, IfUnknown
from tallystick.ledger.stored_digests import digest_of_case, digest_of_evaluation
from tallystick.ledger.transaction import Transaction

ANSWER = '"yes"'
ANSWER_DIGEST = digest_of_bytes(ANSWER.encode())
PAYLOAD = b"what was asked"
DAY_US = 86_400_000_000


@attrs.define
class HandClock:
    """A clock that moves when a test says so: ``us`` is true time since boot, from which the wall clock may be off."""

    us: int = 1_700_000_000_000_000
    off_us: int = 0

    def now_us(self) -> int:
        return self.us + self.off_us

    def boot_ns(self) -> int:
        return self.us * 1000

    def step(self, us: int) -> None:
        """The wall clock is set forward or back; boot time knows nothing of it."""
        self.off_us += us

    def suspend(self, us: int) -> None:
        """The machine sleeps: both clocks run on, and no process saw it."""
        self.us += us


def new_ledger(folder: Path, name: str = "t.db", *, clock: HandClock | None = None) -> Ledger:
    """The ledger of that name, which is made if it is not there; one worker a process, as always."""
    if not (folder / name).exists():
        empty_file(folder, name)
    return Ledger.open(folder / name, clock=clock)


def empty_file(folder: Path, name: str = "raw.db") -> Path:
    """A migrated ledger file, made by copying one that was migrated before: quick, and nobody has it open."""
    template = folder.parent / "template.db"
    if not template.exists():
        migrate(template, backups=folder)
    path = folder / name
    shutil.copyfile(template, path)
    return path


def raw(path: Path) -> Connection:
    """A connection without the ledger's settings: for planting faults and for looking."""
    return connect(path)


def budget(
    number: int = 1,
    *,
    limit: int = 10,
    unit: str = "dispatches",
    kind: str = "hard",
    scope: str = "run",
    value: str = "",
) -> BudgetPlan:
    return BudgetPlan(number, scope, value, unit, kind, limit, 1)


def hold(number: int = 1, amount: int = 1, *, unit: str = "dispatches", hard: bool = True) -> Hold:
    return Hold(number, unit, amount, hard)


def run_plan(
    *,
    if_unknown: str = "keep",
    variants: tuple[str, ...] = ("default",),
    repetitions: int = 1,
    budgets: tuple[BudgetPlan, ...] = (),
    judges: tuple[str, ...] = (),
    name: str = "a run",
) -> planning.RunPlan:
    return planning.RunPlan(
        name,
        "{}",
        digest_of_bytes(name.encode()),
        "{}",
        "{}",
        tuple(planning.VariantPlan(variant, "{}", if_unknown) for variant in variants),
        repetitions,
        budgets,
        tuple(planning.JudgePlan(judge, "exact", "{}") for judge in judges),
    )


def case_rows(count: int) -> Iterator[planning.CasePlan]:
    for number in range(1, count + 1):
        yield case_plan(f"c{number}", f'"input {number}"', '"yes"')


def case_plan(case_id: str, text: str, expected: str | None = None, metadata: str = "{}") -> planning.CasePlan:
    """A case as whoever plans a run describes it."""
    digest = digest_of_case(case_id, text, expected, metadata)
    return planning.CasePlan(case_id, digest, text, expected, metadata)


def evaluation_plan(name: str, *judges: planning.JudgePlan) -> EvaluationPlan:
    """An evaluation by these judges."""
    digest = digest_of_evaluation({judge.name: (parse_json(judge.identity), judge.samples) for judge in judges})
    return EvaluationPlan(name, "{}", digest, "{}", judges)


def new_run(ledger: Ledger, cases: int = 3, **options: Any) -> planning.PlannedRun:
    """A planned run; the options are those of `run_plan`."""
    return planning.create_run(ledger, run_plan(**options), case_rows(cases))


def opened_run(ledger: Ledger, cases: int = 3, **options: Any) -> coordinators.Coordinator:
    return coordinators.open_run(ledger, new_run(ledger, cases, **options).run_id)


_numbers = itertools.count(1)


def intent(
    run_key: int,
    slot_no: int = 1,
    *,
    holds: tuple[Hold, ...] = (),
    if_unknown: IfUnknown = IfUnknown.KEEP,
    payload: bytes = PAYLOAD,
    key_until_us: int | None = None,
    solitary: bool = False,
    call_id: str | None = None,
    held: Held | None = None,
) -> Intent:
    return Intent(
        run_key,
        slot_no,
        call_id or f"call-{next(_numbers):08d}",
        payload,
        digest_of_bytes(payload),
        len(payload),
        "{}",
        if_unknown,
        holds,
        "fp",
        key_until_us,
        solitary,
        held,
    )


def begin(ledger: Ledger, run_key: int, slot_no: int = 1, **options: Any) -> Begun:
    """An attempt whose intent is durable; the options are those of `intent`."""
    wanted = intent(run_key, slot_no, **options)
    return ledger.write(lambda tx: attempts.begin(tx, wanted))


def facts(state: DispatchState = DispatchState.ANSWERED, reason: str = "", **more: Any) -> DispatchFacts:
    return DispatchFacts(state, reason, **more)


def answered(**more: Any) -> DispatchFacts:
    return facts(DispatchState.ANSWERED, duration_us=1_000, wire_sends=1, **more)


def lost(**more: Any) -> DispatchFacts:
    return facts(DispatchState.UNKNOWN, "timeout", **more)


def observe(tx: Transaction, key: DispatchKey, told: DispatchFacts | None = None, answer: str = ANSWER) -> None:
    attempts.observe(tx, key, told or answered(), answer=answer, answer_digest=digest_of_bytes(answer.encode()))


def one(ledger: Ledger, sql: str, *parameters: Any) -> Any:
    """The first row of a query, on a reader."""
    with ledger.reading() as reader:
        return reader.row(sql, parameters)


def every(ledger: Ledger, sql: str, *parameters: Any) -> list[Any]:
    with ledger.reading() as reader:
        return reader.rows(sql, parameters)


def slot_state(ledger: Ledger, run_key: int, slot_no: int = 1) -> str:
    return str(one(ledger, "SELECT state FROM slots WHERE run_key = ? AND slot_no = ?", run_key, slot_no)[0])


def attempt_states(ledger: Ledger, run_key: int, slot_no: int = 1) -> list[str]:
    rows = every(
        ledger, "SELECT state FROM attempts WHERE run_key = ? AND slot_no = ? ORDER BY attempt_no", run_key, slot_no
    )
    return [row[0] for row in rows]


def dispatch_state(ledger: Ledger, key: DispatchKey) -> str:
    sql = "SELECT state FROM dispatches WHERE call_id = ? AND dispatch_no = ?"
    return str(one(ledger, sql, key.call_id, key.dispatch_no)[0])


def budget_row(ledger: Ledger, run_key: int, number: int = 1) -> tuple[int, int, int, int]:
    """``(held, settled, overrun, unknown_uses)``."""
    sql = "SELECT held, settled, overrun, unknown_uses FROM budgets WHERE run_key = ? AND budget_no = ?"
    held, settled, overrun, unknown = one(ledger, sql, run_key, number)
    return held, settled, overrun, unknown


SETTINGS = {
    "journal_mode": "wal",
    "synchronous": 2,
    "foreign_keys": 1,
    "recursive_triggers": 1,
    "wal_autocheckpoint": 0,
    "cache_size": -16384,
}
