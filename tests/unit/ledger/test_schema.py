"""What the database itself refuses, and that the migrations make exactly what the code describes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import LargeBinary, Table, Text
from sqlalchemy.dialects.sqlite import dialect
from sqlalchemy.schema import CreateIndex, CreateTable

from tallystick.ledger import driver, schema_rules, states
from tallystick.ledger.driver import Connection
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.schema import SCHEMA_NUMBER, metadata
from tallystick.ledger.transaction import chained_hash
from tests.unit.ledger.factories import (
    begin,
    budget,
    empty_file,
    every,
    hold,
    new_run,
    observe,
    raw,
)

TABLES = {
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
STAY = [
    *("runs", "variants", "cases", "slots", "attempts", "calls", "dispatches", "observations", "events"),
    *("settlements", "budgets", "budget_amendments", "reservations", "evaluations", "evaluation_judges", "judgments"),
]
UNCHANGED = ["events", "observations", "settlements", "cases", "variants", "budget_amendments"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return empty_file(tmp_path)


@pytest.fixture
def connection(file: Path) -> Iterator[Connection]:
    """Without foreign keys and CHECKs, so that what refuses is the trigger alone."""
    opened = raw(file)
    opened.execute("PRAGMA ignore_check_constraints=ON")
    yield opened
    opened.close()


def plant(connection: Connection, table: Table, **values: Any) -> None:
    """A row with something in every column that must have something."""
    row = dict(values)
    for column in table.columns:
        if column.name not in row and not column.nullable and column.server_default is None:
            is_text, is_bytes = isinstance(column.type, Text), isinstance(column.type, LargeBinary)
            row[column.name] = "x" if is_text else b"x" if is_bytes else 1
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table.name} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def plant_run(connection: Connection, state: str = "open") -> None:
    plant(connection, metadata.tables["runs"], run_key=1, state=state)


MOVES = [
    (machine, old, new)
    for machine, found in states.MACHINES.items()
    for old, new in itertools.permutations([str(state) for state in found], 2)
]


@pytest.mark.parametrize("machine", TABLES)
def test_the_database_allows_the_legal_transitions_of_a_machine_and_refuses_every_other(
    machine: str, connection: Connection
) -> None:
    table = metadata.tables[TABLES[machine]]
    for _, old, new in (move for move in MOVES if move[0] == machine):
        plant(connection, table, state=old)
        change = f"UPDATE {table.name} SET state = ?"
        if new in states.TRANSITIONS[machine][old]:
            connection.execute(change, (new,))
        else:
            with pytest.raises(driver.sqlite.IntegrityError, match="may not change its state so"):
                connection.execute(change, (new,))
        connection.execute(f"DROP TRIGGER IF EXISTS {table.name}_stay")
        connection.execute(f"DELETE FROM {table.name}")


@pytest.mark.parametrize("table", STAY)
@pytest.mark.parametrize("state", ["open", "finished", "cancelled", "moving", "moved"])
def test_rows_of_history_cannot_be_deleted_once_a_run_is_shown(table: str, state: str, connection: Connection) -> None:
    plant_run(connection, state)
    if table != "runs":
        plant(connection, metadata.tables[table], run_key=1)
    with pytest.raises(driver.sqlite.IntegrityError, match="never deleted"):
        connection.execute(f"DELETE FROM {table}")


@pytest.mark.parametrize("table", ["calls", "dispatches", "settlements"])
def test_rows_of_history_that_belong_to_no_run_cannot_be_deleted_either(table: str, connection: Connection) -> None:
    plant(connection, metadata.tables[table], run_key=None)
    with pytest.raises(driver.sqlite.IntegrityError, match="never deleted"):
        connection.execute(f"DELETE FROM {table}")


@pytest.mark.parametrize("state", ["planning", "importing"])
def test_rows_of_a_run_that_was_never_shown_can_be_cleared_away(state: str, connection: Connection) -> None:
    plant_run(connection, state)
    plant(connection, metadata.tables["attempts"], run_key=1)
    assert connection.execute("DELETE FROM attempts").rowcount == 1


@pytest.mark.parametrize("table", UNCHANGED)
def test_what_was_planned_and_what_happened_cannot_be_changed(table: str, connection: Connection) -> None:
    plant_run(connection)
    plant(connection, metadata.tables[table], run_key=1)
    column = list(metadata.tables[table].columns)[-1].name
    with pytest.raises(driver.sqlite.IntegrityError, match="never changed"):
        connection.execute(f"UPDATE {table} SET {column} = {column}")


@pytest.mark.parametrize(
    ("state", "attempts", "selected"),
    [("selected", 1, None), ("pending", 1, 1), ("selected", 2, 1), ("selected", 1, 2)],
    ids=["selected without an attempt", "an attempt but not selected", "an older attempt", "an attempt of the future"],
)
def test_only_the_newest_attempt_of_a_slot_can_be_selected(
    state: str, attempts: int, selected: int | None, file: Path
) -> None:
    connection = raw(file)
    with pytest.raises(driver.sqlite.IntegrityError, match="CHECK"):
        plant(connection, metadata.tables["slots"], state=state, attempts=attempts, selected_attempt=selected)
    plant(connection, metadata.tables["slots"], state="selected", attempts=2, selected_attempt=2)
    connection.close()


@pytest.mark.parametrize(
    ("kind", "held", "settled", "overrun", "fits"),
    [
        ("hard", 4, 6, 0, True),
        ("hard", 5, 6, 0, False),
        ("hard", 0, 11, 0, False),
        ("hard", 0, 11, 1, True),
        ("hard", 1, 11, 1, False),
        ("soft", 5, 60, 0, True),
        ("soft", -1, 0, 0, False),
    ],
)
def test_a_hard_budget_cannot_be_passed_in_the_database(
    kind: str, held: int, settled: int, overrun: int, fits: bool, file: Path
) -> None:
    connection = raw(file)
    values = {"kind": kind, "limit_amount": 10, "held": held, "settled": settled, "overrun": overrun}
    if fits:
        plant(connection, metadata.tables["budgets"], **values)
    else:
        with pytest.raises(driver.sqlite.IntegrityError, match="CHECK"):
            plant(connection, metadata.tables["budgets"], **values)
    connection.close()


@pytest.mark.parametrize("number", [0, 2, 3])
def test_an_event_cannot_leave_a_gap_in_the_history_of_its_run(number: int, connection: Connection) -> None:
    events = metadata.tables["events"]
    with pytest.raises(driver.sqlite.IntegrityError, match="out of order"):
        plant(connection, events, run_key=1, event_no=number)
    plant(connection, events, run_key=1, event_no=1)
    plant(connection, events, run_key=2, event_no=1)
    plant(connection, events, run_key=1, event_no=2)


def test_every_event_is_bound_to_all_before_it(ledger: Ledger) -> None:
    runs = [new_run(ledger, 3, budgets=(budget(),)).run_key for _ in range(2)]
    for run_key in runs:
        begun = begin(ledger, run_key, 1, holds=(hold(),))
        ledger.write(lambda tx, key=begun.key: observe(tx, key))  # type: ignore[misc]
        begin(ledger, run_key, 2, holds=(hold(),))
    for run_key in runs:
        rows = every(
            ledger, "SELECT event_no, kind, at_us, body, hash FROM events WHERE run_key = ? ORDER BY event_no", run_key
        )
        assert [row[0] for row in rows] == [1, 2, 3, 4]
        previous = b""
        for event_no, kind, at_us, body, found in rows:
            assert chained_hash(previous, event_no, kind, at_us, body) == found
            previous = found


def test_the_chain_goes_on_from_what_is_there_after_a_piece_of_work_was_rolled_back(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key

    def fails_after_an_event(tx: Any) -> None:
        tx.event(run_key, "never", {})
        raise LookupError

    for _ in range(2):
        with pytest.raises(LookupError):
            ledger.write(fails_after_an_event)
        ledger.write(lambda tx: tx.event(run_key, "kept", {}))
    kinds = every(ledger, "SELECT kind FROM events WHERE run_key = ? ORDER BY event_no", run_key)
    assert [kind for (kind,) in kinds] == ["run.planned", "kept", "kept"]


def test_the_migrations_make_the_tables_indexes_and_triggers_that_the_code_describes(file: Path) -> None:
    compiled = dialect()
    wanted = [str(CreateTable(table).compile(dialect=compiled)) for table in metadata.sorted_tables]
    wanted += [
        str(CreateIndex(index).compile(dialect=compiled)) for table in metadata.sorted_tables for index in table.indexes
    ]
    wanted += schema_rules.triggers()
    connection = raw(file)
    found = connection.execute(
        "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND tbl_name <> 'alembic_version'"
    ).fetchall()
    connection.close()
    assert sorted(squeezed(sql) for (sql,) in found) == sorted(squeezed(sql) for sql in wanted)


def test_the_migrations_fill_every_vocabulary_and_the_transitions(file: Path) -> None:
    connection = raw(file)
    for table, words in schema_rules.vocabularies().items():
        assert {row[0] for row in connection.execute(f"SELECT * FROM {table}")} == set(words)
    found = {tuple(row) for row in connection.execute("SELECT machine, from_state, to_state FROM transitions")}
    assert found == schema_rules.transition_rows()
    assert connection.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_NUMBER
    assert connection.execute("PRAGMA application_id").fetchone()[0] == driver.APPLICATION_ID
    connection.close()


def test_every_vocabulary_is_referred_to_so_that_a_word_outside_it_is_refused() -> None:
    referred = {key.column.table.name for table in metadata.sorted_tables for key in table.foreign_keys}
    assert set(schema_rules.vocabularies()) <= referred


def test_a_state_outside_its_vocabulary_is_refused(ledger: Ledger) -> None:
    run_key = new_run(ledger).run_key
    with pytest.raises(driver.sqlite.IntegrityError, match="FOREIGN KEY"):
        ledger.write(lambda tx: tx.change("UPDATE runs SET custody = 'lent' WHERE run_key = ?", (run_key,)))


def test_every_machine_begins_and_moves_within_its_own_states() -> None:
    for machine, moves in states.TRANSITIONS.items():
        known = {str(state) for state in states.MACHINES[machine]}
        assert set(moves) == known
        assert {new for news in moves.values() for new in news} <= known
        assert states.INITIAL[machine] in known


def test_every_state_can_be_reached_from_its_beginning() -> None:
    beginnings = {**{machine: {first} for machine, first in states.INITIAL.items()}, "run": {"planning", "importing"}}
    for machine, moves in states.TRANSITIONS.items():
        reached = set(beginnings[machine])
        for _ in moves:
            reached |= {new for old in reached for new in moves[old]}
        assert reached == set(moves), machine


def squeezed(sql: str) -> str:
    return re.sub(r"\s*([(),])\s*", r"\1", re.sub(r"\s+", " ", sql)).strip()
