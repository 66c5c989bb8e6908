"""Read models of whole runs: finding one, its counts, its budgets, what it cost. Pure; one row class a question."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from .errors import RunAmbiguous, RunNotFound
from .ledger import Reader
from .records import EVALUATION_SCOPE, BudgetPlan
from .schema import IN_TROUBLE
from .states import SlotState

__all__ = [
    "BudgetState",
    "RunRow",
    "Totals",
    "VariantRow",
    "budgets_of",
    "find_run",
    "list_runs",
    "newest_of_name",
    "newest_unfinished",
    "own_budgets_of",
    "run_by_digest",
    "slot_counts",
    "slot_reasons",
    "stop_asked",
    "totals_of",
    "unfinished_of_name",
    "variants_of",
]

_RUN = (
    "SELECT run_key, run_id, name, state, work_order, work_order_digest, identity, settings, planned, created_us,"
    " started_us, ended_us, active_us, stop_asked_us, custody, custody_epoch, forked_from FROM runs"
)
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


@attrs.frozen
class Totals:
    """What was sent and what is known of it. ``wasted`` counts dispatches that gave no selected observation.

    ``replays`` are sends of conversations' turns that an earlier attempt had an answer to.
    """

    attempts: int
    calls: int
    dispatches: int
    by_state: dict[str, int]
    tokens_in: int | None
    tokens_out: int | None
    cost_nanousd: int | None
    unpriced: int
    wasted: int
    replays: int


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
    """The newest run that may go on."""
    row = reader.row(f"{_RUN} WHERE state = 'open' ORDER BY run_key DESC LIMIT 1")
    return None if row is None else RunRow(*row)


def run_by_digest(reader: Reader, work_order_digest: str) -> RunRow | None:
    """The newest run of that very work order that was not cancelled or moved away."""
    row = reader.row(
        f"{_RUN} WHERE work_order_digest = ? AND state IN ('open', 'finished') ORDER BY run_key DESC LIMIT 1",
        (work_order_digest,),
    )
    return None if row is None else RunRow(*row)


def unfinished_of_name(reader: Reader, name: str) -> RunRow | None:
    """The newest unfinished run of that name."""
    row = reader.row(f"{_RUN} WHERE name = ? AND state = 'open' ORDER BY run_key DESC LIMIT 1", (name,))
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


def budgets_of(reader: Reader, run_key: int) -> list[BudgetState]:
    """The run's budgets and what they hold."""
    return [
        BudgetState(BudgetPlan(*row[:7]), *row[7:])
        for row in reader.rows(
            "SELECT budget_no, scope, scope_value, unit, kind, limit_amount, bound_amount, held, settled, overrun,"
            " unknown_uses FROM budgets WHERE run_key = ? ORDER BY budget_no",
            (run_key,),
        )
    ]


_DISPATCHED = (
    "SELECT state, count(*), count(*) FILTER (WHERE dispatch_no = 1), sum(tokens_in), sum(tokens_out),"
    " sum(cost_nanousd), count(*) FILTER (WHERE cost_nanousd IS NULL), sum(replay) FROM dispatches WHERE run_key = ?"
    " GROUP BY state"
)
# By the index of calls that were made under a lease, which is empty where there are no devices.
_FOR_DEVICES = (
    "SELECT d.state, count(*) FROM calls c INDEXED BY calls_of_lease JOIN dispatches d ON d.call_id = c.call_id"
    " WHERE c.lease_id IS NOT NULL AND c.owner = 'lease' AND c.run_key = ? GROUP BY d.state"
)
_ATTEMPTED = (
    "SELECT coalesce(sum(attempts), 0), count(*) FILTER (WHERE state = 'selected') FROM slots WHERE run_key = ?"
)
_TURNED = (
    "SELECT count(*), count(DISTINCT t.slot_no) FROM turns t JOIN slots s ON s.run_key = t.run_key"
    " AND s.slot_no = t.slot_no AND s.selected_attempt = t.attempt_no WHERE t.run_key = ?"
)


def totals_of(reader: Reader, run_key: int) -> Totals:
    """Everything that was sent for the run, in all its sessions, save resets and the like of its devices.

    Dispatches and slots are each gone through once; every call has a first dispatch, so these count the calls.
    """
    rows = reader.rows(_DISPATCHED, (run_key,))
    attempts, selected = reader.row(_ATTEMPTED, (run_key,))
    of_leases = dict(reader.rows(_FOR_DEVICES, (run_key,)))
    by_state = {state: left for state, count, *_ in rows if (left := count - of_leases.get(state, 0))}
    tokens_in, tokens_out, cost = (_sum_of_known(row[column] for row in rows) for column in (3, 4, 5))
    unpriced = sum(row[6] - of_leases.get(row[0], 0) for row in rows if row[0] not in ("refused", "intended"))
    sent = sum(by_state.values())
    calls = sum(row[2] for row in rows) - sum(of_leases.values())
    # A conversation came of as many sends as it has turns, every other observation of one.
    turns, conversations = reader.row(_TURNED, (run_key,))
    wasted, replays = sent - (selected - conversations + turns), sum(row[7] for row in rows)
    return Totals(attempts, calls, sent, by_state, tokens_in, tokens_out, cost, unpriced, wasted, replays)


def own_budgets_of(reader: Reader, run_key: int) -> list[BudgetState]:
    """The run's own budgets, without those that an evaluation brought for itself."""
    return [state for state in budgets_of(reader, run_key) if state.plan.scope != EVALUATION_SCOPE]


def _sum_of_known(amounts: Iterable[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None
