"""Budgets: reserved in the transaction that commits the intent, settled in the one that commits the outcome.

A hard budget holds at every instant: settled + held ≤ limit, by a guarded update here and by a CHECK in the database.
An answer dearer than its bound is kept, the overrun is recorded, and no new dispatch fits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from decimal import Decimal
from typing import Final, assert_never

from sqlalchemy import bindparam, func, update

from .custody import LOCAL_FROM, require_held
from .errors import BudgetExhausted, TransitionRefused, UsageError
from .readers import Reader
from .records import EVALUATION_SCOPE, DispatchFacts, DispatchKey, Hold
from .reopening import reopen_run
from .schema import IN_TROUBLE, budget_amendments, budgets, reservations
from .statements import hot, hot_insert
from .states import BudgetKind, DispatchState
from .transaction import Transaction

__all__ = [
    "amend",
    "amend_bound",
    "holds_of",
    "let_wait_again",
    "record_all",
    "record_reservations",
    "release",
    "reserve",
    "reserve_all",
    "settle",
    "settle_all",
    "settle_at_bound",
    "settle_ended",
    "settle_refused",
    "waits_for_budget",
]

_KEY = (budgets.c.run_key == bindparam("run")) & (budgets.c.budget_no == bindparam("budget"))
_RESERVE_HARD = hot(
    update(budgets)
    .values(held=budgets.c.held + bindparam("amount"))
    .where(_KEY, budgets.c.held + budgets.c.settled + bindparam("more") <= budgets.c.limit_amount),
    "amount", "run", "budget", "more",
)  # fmt: skip
_RESERVE_SOFT = hot(
    update(budgets)
    .values(held=budgets.c.held + bindparam("amount"))
    .where(_KEY, budgets.c.held + budgets.c.settled < budgets.c.limit_amount),
    "amount", "run", "budget",
)  # fmt: skip
_ADD_RESERVATION = hot_insert(reservations, "call_id", "dispatch_no", "budget_no", "run_key", "state", "held")
_AFTER = budgets.c.held - bindparam("held_b") + budgets.c.settled + bindparam("used_b")
_SETTLE_BUDGET = hot(
    update(budgets)
    .ordered_values(
        (budgets.c.held, budgets.c.held - bindparam("held_a")),
        (budgets.c.settled, budgets.c.settled + bindparam("used_a")),
        (budgets.c.overrun, func.max(budgets.c.overrun, _AFTER - budgets.c.limit_amount)),
        (budgets.c.unknown_uses, budgets.c.unknown_uses + bindparam("unknown")),
    )
    .where(_KEY),
    "held_a", "used_a", "held_b", "used_b", "unknown", "run", "budget",
)  # fmt: skip
_SETTLE = hot(
    update(reservations)
    .ordered_values((reservations.c.state, bindparam("new")), (reservations.c.settled, bindparam("used")))
    .where(
        (reservations.c.call_id == bindparam("call"))
        & (reservations.c.dispatch_no == bindparam("dispatch"))
        & (reservations.c.budget_no == bindparam("budget"))
        & (reservations.c.state == bindparam("old"))
    ),
    "new", "used", "call", "dispatch", "budget", "old",
)  # fmt: skip
_TIME_AND_SENDS = frozenset({"dispatches", "milliseconds"})  # of these, what was given up says nothing
_NOTHING_TOLD = DispatchFacts(DispatchState.ABANDONED)
_SETTLE_HELD = (
    "UPDATE reservations SET state = 'settled', settled = ?"
    " WHERE call_id = ? AND dispatch_no = ? AND budget_no = ? AND state = 'held'"
)
_HOLDS = (
    "SELECT r.budget_no, b.unit, r.held, b.kind = 'hard' FROM reservations r JOIN budgets b"
    " ON b.run_key = r.run_key AND b.budget_no = r.budget_no"
    " WHERE r.call_id = ? AND r.dispatch_no = ? AND r.state = 'held' ORDER BY r.budget_no"
)
_NAME = (
    "SELECT CASE scope WHEN 'run' THEN '' ELSE scope || ' ' || scope_value || ' ' END, unit,"
    " limit_amount, held, settled FROM budgets WHERE run_key = ? AND budget_no = ?"
)
_HELD_BACK = (
    f"run_key = ? AND reason = 'budget' AND {IN_TROUBLE}"
    " AND (state = 'unavailable' OR (state = 'unknown' AND next_step <> 'new'))"
)
_ADD_AMENDMENT = hot_insert(
    budget_amendments,
    "run_key", "budget_no", "amendment_no", "old_limit", "new_limit", "reason", "made_by", "made_us",
)  # fmt: skip


def reserve(tx: Transaction, run_key: int, holds: tuple[Hold, ...]) -> None:
    """Set the holds aside; raises BudgetExhausted when one does not fit, and then nothing of this work stays."""
    execute = tx.execute
    for hold in holds:
        if hold.hard:
            fits = execute(_RESERVE_HARD, (hold.amount, run_key, hold.budget_no, hold.amount)).rowcount
        else:
            fits = execute(_RESERVE_SOFT, (hold.amount, run_key, hold.budget_no)).rowcount
        if not fits:
            raise _exhausted(tx, run_key, hold)


def record_reservations(tx: Transaction, key: DispatchKey) -> None:
    """Write down what `reserve` has set aside, by dispatch; after the dispatch's own row."""
    for hold in key.holds:
        tx.execute(_ADD_RESERVATION, (key.call_id, key.dispatch_no, hold.budget_no, key.run_key, "held", hold.amount))


def settle(tx: Transaction, key: DispatchKey, facts: DispatchFacts) -> None:
    """Turn the holds into what was used; where that is not known, into the bound, and counted as unknown.

    What was seen of it before it broke off counts where it is more than the bound.
    """
    for hold in key.holds:
        used, unknown = _charged(hold, facts)
        _settle_one(tx, key, hold, used, unknown=unknown)


def settle_ended(tx: Transaction, key: DispatchKey, facts: DispatchFacts) -> None:
    """Account for what became of a dispatch, by its state; an unknown one keeps its holds."""
    match facts.state:
        case DispatchState.UNKNOWN:
            return
        case DispatchState.REFUSED:
            settle_refused(tx, key, facts)
        case DispatchState.ABANDONED:
            settle_at_bound(tx, key, facts)
        case DispatchState.FAILED if not facts.charged:
            release(tx, key)
        case DispatchState.ANSWERED | DispatchState.FAILED | DispatchState.LATE:
            settle(tx, key, facts)
        case DispatchState.INTENDED:
            raise ValueError("a dispatch that is intended has not ended")
        case _:
            assert_never(facts.state)


def _charged(hold: Hold, facts: DispatchFacts) -> tuple[int, bool]:
    """What counts as used, and whether that is not known and stands at its bound."""
    used = facts.used(hold.unit)
    return (max(hold.amount, facts.at_least(hold.unit)), True) if used is None else (used, False)


def reserve_all(tx: Transaction, keys: Sequence[DispatchKey]) -> None:
    """`reserve` for many dispatches; raises BudgetExhausted where not all of them fit, and then each is to be tried."""
    sums: Counter[tuple[int, Hold]] = Counter()
    for key in keys:
        for hold in key.holds:
            sums[key.run_key, hold] += 1
    for (run_key, hold), count in sums.items():
        amount = hold.amount * count
        # A soft budget lets the last one overrun it; whether it may is found out one by one.
        if not tx.change(_RESERVE_HARD, (amount, run_key, hold.budget_no, amount)):
            raise _exhausted(tx, run_key, hold)


def record_all(tx: Transaction, keys: Sequence[DispatchKey]) -> None:
    """`record_reservations` for many dispatches."""
    tx.cursor.executemany(_ADD_RESERVATION, [
        (key.call_id, key.dispatch_no, hold.budget_no, key.run_key, "held", hold.amount)
        for key in keys
        for hold in key.holds
    ])  # fmt: skip


def settle_all(tx: Transaction, ends: Sequence[tuple[DispatchKey, DispatchFacts]]) -> None:
    """`settle` for many dispatches: each reservation by itself, each budget once for all that kept to their bounds."""
    sums: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    rows, dear = [], []
    for key, facts in ends:
        for hold in key.holds:
            used, unknown = _charged(hold, facts)
            if used > hold.amount:
                dear.append((key, hold, used, unknown))
                continue
            rows.append((used, key.call_id, key.dispatch_no, hold.budget_no))
            sum_of = sums[key.run_key, hold.budget_no]
            sum_of[0] += hold.amount
            sum_of[1] += used
            sum_of[2] += unknown
    if not tx.change_all(_SETTLE_HELD, rows):
        raise TransitionRefused("not every reservation is held", "each is settled by itself", "reservation", "settled")
    for (run_key, budget_no), (held, used, unknown_uses) in sums.items():
        tx.execute(_SETTLE_BUDGET, (held, used, held, used, unknown_uses, run_key, budget_no))
    for key, hold, used, unknown in dear:
        _settle_one(tx, key, hold, used, unknown=unknown)


def settle_refused(tx: Transaction, key: DispatchKey, facts: DispatchFacts) -> None:
    """Nothing was done: only what was sent counts, in budgets of dispatches, and nothing where nothing left."""
    sends = facts.used("dispatches") or 1 if facts.charged else 0
    for hold in key.holds:
        if sends and hold.unit == "dispatches":
            _settle_one(tx, key, hold, sends, unknown=False)
        else:
            _release_one(tx, key, hold)


def settle_at_bound(tx: Transaction, key: DispatchKey, facts: DispatchFacts = _NOTHING_TOLD) -> None:
    """Count the whole bound as spent: an unknown outcome that was given up.

    What it told of its use before it broke off is charged as told, or as the least where more may have been used.
    """
    for hold in key.holds:
        if hold.unit in _TIME_AND_SENDS:
            _settle_one(tx, key, hold, hold.amount, unknown=hold.unit != "dispatches")
        else:
            used, unknown = _charged(hold, facts)
            _settle_one(tx, key, hold, used, unknown=unknown)


def release(tx: Transaction, key: DispatchKey) -> None:
    """Give the holds back: proven that nothing was done."""
    for hold in key.holds:
        _release_one(tx, key, hold)


def holds_of(tx: Transaction, call_id: str, dispatch_no: int) -> tuple[Hold, ...]:
    """The holds of a dispatch that are still held."""
    return tuple(
        Hold(number, unit, held, bool(hard)) for number, unit, held, hard in tx.rows(_HOLDS, (call_id, dispatch_no))
    )


def amend(tx: Transaction, run_key: int, budget_no: int, *, limit: int, reason: str, made_by: str) -> None:
    """Change a limit and record it; raises UsageError when what is held and settled would not fit."""
    if budget_no < LOCAL_FROM:
        require_held(tx, run_key)
    row = tx.row("SELECT limit_amount, held, settled, kind, scope FROM budgets WHERE run_key = ? AND budget_no = ?",
                 (run_key, budget_no))  # fmt: skip
    if row is None:
        raise UsageError(f"the run has no budget {budget_no}", "list its budgets with `tallystick status`")
    old, held, settled, kind, scope = row
    if kind == "hard" and held + settled > limit:
        raise UsageError(
            f"a limit of {limit} lies below the {held + settled} that are already settled or held",
            "name a limit that is at least that",
        )
    number = 1 + tx.row("SELECT count(*) FROM budget_amendments WHERE run_key = ? AND budget_no = ?",
                        (run_key, budget_no))[0]  # fmt: skip
    tx.change("UPDATE budgets SET limit_amount = ? WHERE run_key = ? AND budget_no = ?", (limit, run_key, budget_no))
    tx.change(_ADD_AMENDMENT, (run_key, budget_no, number, old, limit, reason, made_by, tx.now_us))
    tx.event(
        run_key, "budget.amended", {"budget": budget_no, "old": old, "new": limit, "reason": reason, "by": made_by}
    )
    if limit > old and scope != EVALUATION_SCOPE:
        let_wait_again(tx, run_key)


def amend_bound(
    tx: Transaction, run_key: int, budget_no: int, *, kind: BudgetKind, bound: int | None, reason: str, made_by: str
) -> None:
    """Change what a dispatch sets aside from now on, and record it; raises UsageError where it cannot be hard."""
    if budget_no < LOCAL_FROM:
        require_held(tx, run_key)
    old_kind, old_bound, limit, held, settled, scope = tx.row(
        "SELECT kind, bound_amount, limit_amount, held, settled, scope FROM budgets"
        " WHERE run_key = ? AND budget_no = ?",
        (run_key, budget_no),
    )
    if kind is BudgetKind.HARD and held + settled > limit:
        raise UsageError(
            f"a budget of which {held + settled} are settled or held cannot be hard at a limit of {limit}",
            "name a limit that is at least that",
        )
    tx.change("UPDATE budgets SET kind = ?, bound_amount = ? WHERE run_key = ? AND budget_no = ?",
              (kind, bound, run_key, budget_no))  # fmt: skip
    tx.event(run_key, "budget.bound_amended", {
        "budget": budget_no, "old": [old_kind, old_bound], "new": [kind, bound], "reason": reason, "by": made_by,
    })  # fmt: skip
    if scope != EVALUATION_SCOPE:
        let_wait_again(tx, run_key)


def waits_for_budget(reader: Reader, run_key: int) -> bool:
    """Whether a budget keeps something of the run from being attempted, or from being resent or asked for."""
    sql = f"SELECT 1 FROM slots INDEXED BY slots_in_trouble WHERE {_HELD_BACK} LIMIT 1"
    return reader.row(sql, (run_key,)) is not None


def let_wait_again(tx: Transaction, run_key: int) -> None:
    """What a budget had kept from being attempted, or from being resent or asked for, waits for it again."""
    count = tx.change(
        "UPDATE slots INDEXED BY slots_in_trouble SET state = 'pending', reason = NULL, not_before_us = 0"
        f" WHERE {_HELD_BACK}"
        " AND EXISTS (SELECT 1 FROM runs WHERE runs.run_key = slots.run_key AND runs.state <> 'cancelled')",
        (run_key,),
    )
    if count:
        reopen_run(tx, run_key)
        tx.event(run_key, "slots.retried", {
            "count": count, "state": "unavailable", "reason": "budget", "undecided": True,
        })  # fmt: skip
    _let_judgments_wait_again(tx, run_key)


def _let_judgments_wait_again(tx: Transaction, run_key: int) -> None:
    """Of the run's own evaluation; another one is gone on with by itself, where its budgets have room."""
    count = tx.change(
        "UPDATE judgments SET state = 'pending', reason = NULL, explanation = NULL, judged_us = NULL WHERE run_key = ?"
        " AND evaluation_no = 1 AND state = 'no_verdict' AND reason = 'out_of_budget'",
        (run_key,),
    )
    if count:
        reopen_run(tx, run_key)
        tx.event(run_key, "judgments.retried", {
            "evaluation": 1, "count": count, "reason": "out_of_budget", "judge": None,
        })  # fmt: skip


def _settle_one(tx: Transaction, key: DispatchKey, hold: Hold, used: int, *, unknown: bool) -> None:
    tx.move("reservation", "settled", _SETTLE,
            ("settled", used, key.call_id, key.dispatch_no, hold.budget_no, "held"))  # fmt: skip
    tx.execute(_SETTLE_BUDGET, (hold.amount, used, hold.amount, used, int(unknown), key.run_key, hold.budget_no))


def _release_one(tx: Transaction, key: DispatchKey, hold: Hold) -> None:
    tx.move("reservation", "released", _SETTLE,
            ("released", None, key.call_id, key.dispatch_no, hold.budget_no, "held"))  # fmt: skip
    tx.execute(_SETTLE_BUDGET, (hold.amount, 0, hold.amount, 0, 0, key.run_key, hold.budget_no))


def _exhausted(tx: Transaction, run_key: int, hold: Hold) -> BudgetExhausted:
    row = tx.row(_NAME, (run_key, hold.budget_no))
    if row is None:
        raise UsageError(f"the run has no budget {hold.budget_no}")
    scope, unit, *amounts = row
    name = f"{scope}{_UNIT_WORDS.get(unit, unit)}"
    wanted, limit, held, settled = (_told(unit, amount) for amount in (hold.amount, *amounts))
    return BudgetExhausted(
        f"the budget of {name} has no room for {wanted} more: limit {limit}, spent {settled}, held {held}",
        "raise its limit where it is declared, or of a run that has a work order with `tallystick resume RUN --amend"
        " UNIT=LIMIT --reason TEXT`; or settle unknown outcomes that hold it",
        name,
    )


_UNIT_WORDS: Final = {"nanousd": "usd", "milliseconds": "seconds"}  # as a work order writes them


def _told(unit: str, amount: int) -> str:
    match unit:
        case "nanousd":
            return f"${Decimal(amount).scaleb(-9).normalize():f}"
        case "milliseconds":
            return f"{Decimal(amount).scaleb(-3).normalize():f} s"
        case _:
            return str(amount)
