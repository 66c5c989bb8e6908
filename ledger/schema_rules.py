"""What the database holds beyond the tables: the words of each vocabulary, legal transitions, history that stays.

The migrations freeze all of it; a test holds this module and them together.
"""

from __future__ import annotations

from typing import Final

from .states import (
    MACHINES,
    TRANSITIONS,
    BudgetKind,
    CallOwner,
    CustodyState,
    IfUnknown,
    NextStep,
)

__all__ = ["NEVER_CHANGED", "transition_rows", "triggers", "vocabularies"]

_MACHINE_TABLES: Final = {
    "run": "runs",
    "slot": "slots",
    "attempt": "attempts",
    "dispatch": "dispatches",
    "reservation": "reservations",
    "lease": "leases",
    "judgment": "judgments",
    "provision": "provisions",
    "import": "imports",
}
_NEVER_DELETED: Final = (
    *("runs", "variants", "cases", "slots", "attempts", "calls", "dispatches", "observations", "events"),
    *("settlements", "budgets", "budget_amendments", "reservations", "evaluations", "evaluation_judges", "judgments"),
    *("sessions", "turns"),
)
NEVER_CHANGED: Final = ("events", "observations", "settlements", "cases", "variants", "budget_amendments", "turns")
_EVENTS_WITHOUT_GAPS: Final = (
    "CREATE TRIGGER events_without_gaps BEFORE INSERT ON events"
    " WHEN NEW.event_no <> (SELECT coalesce(max(event_no), 0) + 1 FROM events WHERE run_key = NEW.run_key)"
    " BEGIN SELECT RAISE(ABORT, 'an event number is out of order'); END"
)


def vocabularies() -> dict[str, list[str]]:
    """The words of each reference table."""
    return {
        **{f"{machine}_states": [str(state) for state in states] for machine, states in MACHINES.items()},
        "custody_states": [str(state) for state in CustodyState],
        "if_unknown_values": [str(value) for value in IfUnknown],
        "next_steps": [str(step) for step in NextStep],
        "call_owners": [str(owner) for owner in CallOwner],
        "budget_kinds": [str(kind) for kind in BudgetKind],
    }


def transition_rows() -> set[tuple[str, str, str]]:
    """The rows of the table ``transitions``: machine, from, to."""
    return {
        (machine, old, new) for machine, moves in TRANSITIONS.items() for old, news in moves.items() for new in news
    }


def triggers() -> list[str]:
    """The rules that need a trigger: legal transitions, history that stays, events without gaps."""
    return [
        *(_transition_trigger(machine, table) for machine, table in _MACHINE_TABLES.items()),
        *(_stays_trigger(table) for table in _NEVER_DELETED),
        *(_unchanged_trigger(table) for table in NEVER_CHANGED),
        _EVENTS_WITHOUT_GAPS,
    ]


def _transition_trigger(machine: str, table: str) -> str:
    return (
        f"CREATE TRIGGER {table}_transition BEFORE UPDATE OF state ON {table}"
        " WHEN OLD.state <> NEW.state AND NOT EXISTS (SELECT 1 FROM transitions WHERE"
        f" machine = '{machine}' AND from_state = OLD.state AND to_state = NEW.state)"
        f" BEGIN SELECT RAISE(ABORT, 'the {machine} may not change its state so'); END"
    )


def _stays_trigger(table: str) -> str:
    return (
        f"CREATE TRIGGER {table}_stay BEFORE DELETE ON {table}"
        " WHEN coalesce((SELECT state FROM runs WHERE run_key = OLD.run_key), '') NOT IN ('planning', 'importing')"
        f" BEGIN SELECT RAISE(ABORT, 'rows of {table} are never deleted'); END"
    )


def _unchanged_trigger(table: str) -> str:
    return (
        f"CREATE TRIGGER {table}_unchanged BEFORE UPDATE ON {table}"
        f" BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed'); END"
    )
