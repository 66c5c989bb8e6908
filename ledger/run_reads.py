"""Read models of whole runs: finding one, its counts, its budgets. Pure; one row class a question."""

from __future__ import annotations

from typing import Final

import attrs

from .errors import RunAmbiguous, RunNotFound
from .ledger import Reader
from .records import EVALUATION_SCOPE, BudgetPlan
from .schema import IN_TROUBLE
from .states import SlotState

__all__ = [
    "BudgetState",
    "RunRow",
    "VariantRow",
    "budgets_of",
    "find_run",
    "is_part",
    "list_runs",
    "newest_of_name",
    "newest_unfinished",
    "own_budgets_of",
    "reason_example",
    "reused_count",
    "run_by_digest",
    "slot_counts",
    "slot_reasons",
    "stop_asked",
    "unfinished_of_name",
    "variants_of",
]

_RUN = (
    "SELECT run_key, run_id, name, state, work_order, work_order_digest, identity, settings, planned, created_us,"
    " started_us, ended_us, active_us, stop_asked_us, custody, custody_epoch, forked_from,"
    " forked_at_event FROM runs"
)
_LOOKED_AT: Final = 256
_VISIBLE = "state NOT IN ('planning', 'importing')"


@attrs.frozen
class RunRow:
    """A run; documents are canonical JSON texts, instants microseconds since the epoch."""

    run_key: int
    run_id: str
    name: str
    state: str
    work_order: str
    work_order_digest: str
    identity: str
    settings: str
    planned: int
    created_us: int
    started_us: int | None
    ended_us: int | None
    active_us: int
    stop_asked_us: int | None
    custody: str
    custody_epoch: int
    forked_from: str | None
    forked_at_event: int | None


@attrs.frozen
class VariantRow:
    """One side of the comparison."""

    variant_no: int
    name: str
    target: str
    if_unknown: str


@attrs.frozen
class BudgetState:
    """A budget now. ``settled`` is a lower bound where ``unknown_uses`` is not 0."""

    plan: BudgetPlan
    held: int
    settled: int
    overrun: int
    unknown_uses: int

    @property
    def left(self) -> int:
        """What a new hard reservation may still take."""
        return max(0, self.plan.limit_amount - self.held - self.settled)


def find_run(reader: Reader, text: str) -> RunRow:
    """The run with that id, unambiguous id prefix, or name (the newest of that name).

    Raises RunNotFound and RunAmbiguous.
    """
    rows = reader.rows(
        f"{_RUN} WHERE {_VISIBLE} AND run_id >= ? AND run_id < ? ORDER BY run_id LIMIT 2", (text, text + "~")
    )
    exact = [row for row in rows if row[1] == text]
    if exact or len(rows) == 1:
        return RunRow(*(exact or rows)[0])
    if rows:
        raise RunAmbiguous(f"several runs begin with {text}", "name more of the id; `tallystick runs` lists them", text)
    named = reader.row(f"{_RUN} WHERE {_VISIBLE} AND name = ? ORDER BY run_key DESC LIMIT 1", (text,))
    if named is None:
        raise RunNotFound(f"there is no run {text}", "list them with `tallystick runs`", text)
    return RunRow(*named)


def list_runs(reader: Reader, *, limit: int = 100) -> list[RunRow]:
    """The newest runs first."""
    return [RunRow(*row) for row in reader.rows(f"{_RUN} WHERE {_VISIBLE} ORDER BY run_key DESC LIMIT ?", (limit,))]


def newest_unfinished(reader: Reader) -> RunRow | None:
    """The newest run that may go on; one that is a copy only where there is no other."""
    row = reader.row(f"{_RUN} WHERE state = 'open' ORDER BY custody = 'held' DESC, run_key DESC LIMIT 1")
    return None if row is None else RunRow(*row)


def run_by_digest(reader: Reader, work_order_digest: str) -> RunRow | None:
    """The newest run of that very work order that was not cancelled or moved away."""
    row = reader.row(
        f"{_RUN} WHERE work_order_digest = ? AND state IN ('open', 'finished') ORDER BY run_key DESC LIMIT 1",
        (work_order_digest,),
    )
    return None if row is None else RunRow(*row)


def unfinished_of_name(reader: Reader, name: str) -> RunRow | None:
    """The newest unfinished run of that name that this ledger may go on with."""
    row = reader.row(
        f"{_RUN} WHERE name = ? AND state = 'open' AND custody = 'held' ORDER BY run_key DESC LIMIT 1", (name,)
    )
    return None if row is None else RunRow(*row)


def newest_of_name(reader: Reader, name: str) -> RunRow | None:
    """The newest run of that name, in whatever state it is."""
    row = reader.row(
        f"{_RUN} WHERE name = ? AND state NOT IN ('planning', 'importing') ORDER BY run_key DESC LIMIT 1", (name,)
    )
    return None if row is None else RunRow(*row)


def stop_asked(reader: Reader, run_key: int) -> tuple[int | None, str | None]:
    """When and why somebody asked the run's coordinator to stop, None where nobody did."""
    asked, reason = reader.row("SELECT stop_asked_us, stop_reason FROM runs WHERE run_key = ?", (run_key,))
    return asked, reason


def variants_of(reader: Reader, run_key: int) -> list[VariantRow]:
    """The run's variants in their order."""
    return [
        VariantRow(*row)
        for row in reader.rows(
            "SELECT variant_no, name, target, if_unknown FROM variants WHERE run_key = ? ORDER BY variant_no",
            (run_key,),
        )
    ]


def slot_counts(reader: Reader, run_key: int) -> dict[SlotState, int]:
    """How many of the planned slots are in each state; the sum is the population.

    What is selected is what is left of the plan: all other states have an index, so that this does not grow with what
    is done. `tallystick ledger check` counts the selected themselves.
    """
    counts = dict.fromkeys(SlotState, 0)
    for state in (SlotState.PENDING, SlotState.IN_FLIGHT):
        # The planner would else take the primary key, which reads the whole run.
        counts[state] = reader.row(
            f"SELECT count(*) FROM slots INDEXED BY slots_{state} WHERE run_key = ? AND state = '{state}'", (run_key,)
        )[0]
    for name, count in reader.rows(
        "SELECT state, count(*) FROM slots INDEXED BY slots_in_trouble WHERE run_key = ?"
        f" AND {IN_TROUBLE} GROUP BY state",
        (run_key,),
    ):
        counts[SlotState(name)] = count
    planned = reader.row("SELECT planned FROM runs WHERE run_key = ?", (run_key,))[0]
    counts[SlotState.SELECTED] = planned - sum(counts.values())
    return counts


def reused_count(reader: Reader, run_key: int) -> int:
    """How many observations a fork took over; told by the events that follow its plan, so that it is cheap."""
    total = 0
    for kind, count in reader.each(
        "SELECT kind, json_extract(body, '$.count') FROM events WHERE run_key = ? AND event_no > 1 ORDER BY event_no",
        (run_key,),
    ):
        if kind != "slots.reused":
            break
        total += int(count)
    return total


def slot_reasons(reader: Reader, run_key: int) -> list[tuple[str, str, int]]:
    """``(state, reason, count)`` of every slot that ended without an observation."""
    return [
        (state, reason or "", count)
        for state, reason, count in reader.rows(
            "SELECT state, reason, count(*) FROM slots WHERE run_key = ?"
            f" AND {IN_TROUBLE} GROUP BY state, reason ORDER BY state, reason",
            (run_key,),
        )
    ]


def reason_example(reader: Reader, run_key: int, state: str, reason: str) -> str:
    """What the newest attempt of one of the first slots that ended so was told; empty where none of these was.

    Of a million that were told nothing, some hundred are looked at.
    """
    row = reader.row(
        "SELECT a.message FROM (SELECT slot_no, attempts FROM slots INDEXED BY slots_in_trouble"
        f" WHERE run_key = ?1 AND {IN_TROUBLE} AND state = ?2 AND coalesce(reason, '') = ?3 LIMIT {_LOOKED_AT}) s"
        " JOIN attempts a ON a.run_key = ?1 AND a.slot_no = s.slot_no AND a.attempt_no = s.attempts"
        " WHERE a.message <> '' ORDER BY s.slot_no LIMIT 1",
        (run_key, state, reason),
    )
    return "" if row is None else str(row[0])


def is_part(reader: Reader, run_key: int) -> bool:
    """Whether the run came without all of its contents: then nobody goes on with it here."""
    return bool(reader.row("SELECT left_out IS NOT NULL FROM runs WHERE run_key = ?", (run_key,))[0])


def budgets_of(reader: Reader, run_key: int) -> list[BudgetState]:
    """The run's budgets and what they hold."""
    return [
        BudgetState(BudgetPlan(*row[:8]), *row[8:])
        for row in reader.rows(
            "SELECT budget_no, scope, scope_value, unit, kind, limit_amount, bound_amount, carried, held, settled,"
            " overrun, unknown_uses FROM budgets WHERE run_key = ? ORDER BY budget_no",
            (run_key,),
        )
    ]


def own_budgets_of(reader: Reader, run_key: int) -> list[BudgetState]:
    """The run's own budgets, without those that an evaluation brought for itself."""
    return [state for state in budgets_of(reader, run_key) if state.plan.scope != EVALUATION_SCOPE]
