"""Every statement of the ledger fits the schema, and what is asked often is found by an index."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick import ledger as package
from tallystick.ledger import budgets, coordinators, report_reads, run_ends, run_reads, slot_reads
from tallystick.ledger.ledger import Ledger, Reader
from tests.unit.ledger.factories import begin, budget, empty_file, new_run, opened_run, raw

FOLDER = Path(package.__path__[0])
VERBS = ("SELECT ", "INSERT INTO ", "UPDATE ", "DELETE FROM ", "WITH ")
# What stands for a name that only a function knows.
LOCAL: dict[str, Any] = {
    "filters": "",
    "which": "",
    "table": "slots",
    "key": "slot_no",
    "names": "slot_no",
    "marks": "?, ?",
    "state": "pending",
    "without": (1, 2),
    "column": "reason",
    "condition": "reason IS NULL",
    "is_strange": "NOT json_valid(reason)",
}


# Made from the tables themselves, for each table; what they make is executed for all of them by the tests of snapshots.
FROM_TABLES = {"import_care", "snapshot_forward", "snapshot_import", "snapshot_scratch", "snapshot_tables"}


def statements() -> Iterator[tuple[str, str]]:
    """``(module:line, SQL)`` of every literal that is a whole statement, and of every one that a module compiled."""
    for path in sorted(FOLDER.glob("*.py")):
        if path.stem in {"statements", *FROM_TABLES}:
            continue
        module = importlib.import_module(f"tallystick.ledger.{path.stem}")
        names = {**LOCAL, **vars(module)}
        for name, value in vars(module).items():
            if isinstance(value, str) and value.startswith(VERBS) and "_" in name:
                yield f"{path.name}:{name}", value
        nodes = list(ast.walk(ast.parse(path.read_text())))
        parts = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                text = put_together(node, path.name, names)
                if text.startswith(VERBS):
                    yield f"{path.name}:{node.lineno}", text
            elif isinstance(node, ast.Constant) and node not in parts and str(node.value).startswith(VERBS):
                assert isinstance(node.value, str)
                yield f"{path.name}:{node.lineno}", node.value


def put_together(node: ast.JoinedStr, file: str, names: dict[str, Any]) -> str:
    """The text of an f-string; of a statement's, every name must be a module's or stand in `LOCAL`."""
    try:
        return str(eval(compile(ast.Expression(node), file, "eval"), names))
    except (AttributeError, NameError, TypeError):
        if isinstance(node.values[0], ast.Constant) and str(node.values[0].value).startswith(VERBS):
            raise
        return ""


def marks(sql: str) -> int:
    numbered = [int(number) for number in re.findall(r"\?(\d+)", sql)]
    return max(numbered) if numbered else sql.count("?")


def test_every_statement_fits_the_schema(tmp_path: Path) -> None:
    connection = raw(empty_file(tmp_path))
    seen, wrong = 0, []
    for place, sql in statements():
        if re.search(r"FROM runs$|c\.case_no = s\.case_no$", sql):
            continue  # the beginning of a query, which other places go on with
        seen += 1
        try:
            connection.execute(f"EXPLAIN {sql}", (None,) * marks(sql)).fetchall()
        except Exception as problem:
            wrong.append(f"{place}: {problem}: {sql}")
    connection.close()
    assert wrong == []
    assert seen > 100


class Explaining:
    """A reader that also notes how the database would find what it is asked."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.plans: list[str] = []

    def rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        self.plans += [row[3] for row in self._reader.rows(f"EXPLAIN QUERY PLAN {sql}", parameters)]
        return self._reader.rows(sql, parameters)

    def row(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        found = self.rows(sql, parameters)
        return found[0] if found else None


QUERIES: dict[str, tuple[Any, str]] = {
    "what waits": (
        lambda reader, key: slot_reads.pending_slots(reader, key, after=(0, 5), now_us=1, limit=9),
        "slots_pending",
    ),
    "suspects": (lambda reader, key: slot_reads.suspect_slots(reader, key, limit=9), "slots_suspect"),
    "the next instant": (slot_reads.next_not_before, "slots_pending"),
    "unknown outcomes": (slot_reads.unknown_outcomes, "dispatches_open"),
    "a call to repeat": (lambda reader, key: slot_reads.call_to_repeat(reader, key, 1, 1), "calls_of_attempt"),
    "in flight": (report_reads.in_flight_slots, "slots_in_flight"),
    "slots in trouble": (run_reads.slot_reasons, "slots_in_trouble"),
    "who was in trouble": (lambda reader, key: report_reads.troubled_slots(reader, key, limit=9), "slots_in_trouble"),
    "why unknown": (report_reads.unknown_reasons, "dispatches_open"),
    "how many in each state": (run_reads.slot_counts, "slots_in_flight"),
    "what unknowns hold": (report_reads.held_by_unknown, "dispatches_open"),
}


@pytest.mark.parametrize("name", QUERIES)
def test_what_is_asked_often_is_found_by_an_index(name: str, ledger: Ledger) -> None:
    query, index = QUERIES[name]
    run_key = new_run(ledger, 20).run_key
    begin(ledger, run_key, 1)
    with ledger.reading() as reader:
        explaining = Explaining(reader)
        query(explaining, run_key)
    assert any(index in plan for plan in explaining.plans), explaining.plans
    assert scans(explaining.plans) == []


def scans(plans: list[str]) -> list[str]:
    """Steps that read a whole table, or every row of a run."""
    large = r"(slots|s|dispatches|d|calls|c|attempts|a|events|cases)"
    whole_run = r"SEARCH (slots|s|attempts|a) USING PRIMARY KEY \(run_key=\?\)$"
    return [plan for plan in plans if re.match(rf"SCAN {large}\b", plan) or re.match(whole_run, plan)]


@pytest.mark.parametrize("name", ["what waits", "suspects"])
def test_what_waits_comes_in_order_from_its_index(name: str, ledger: Ledger) -> None:
    query, _ = QUERIES[name]
    run_key = new_run(ledger, 20).run_key
    with ledger.reading() as reader:
        explaining = Explaining(reader)
        query(explaining, run_key)
    assert [plan for plan in explaining.plans if "TEMP B-TREE" in plan] == []


def plans_of(ledger: Ledger, work: Any) -> list[str]:
    """How every statement of a piece of work is found."""
    seen: list[str] = []
    connection = ledger.write(lambda tx: ledger._shared._desk.connection())  # type: ignore[union-attr]
    connection.set_trace_callback(seen.append)
    try:
        work()
    finally:
        connection.set_trace_callback(None)
    other = raw(ledger.path)
    plans = []
    for sql in seen:
        if sql.startswith(VERBS):
            plans += [row[3] for row in other.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()]
    other.close()
    assert plans
    return plans


def test_beginning_an_attempt_scans_nothing(ledger: Ledger) -> None:
    run_key = new_run(ledger, 20).run_key
    assert scans(plans_of(ledger, lambda: begin(ledger, run_key))) == []


def test_a_recovery_finds_what_was_in_flight_by_its_index(ledger: Ledger) -> None:
    coordinator = opened_run(ledger, 20)
    begin(ledger, coordinator.run_key)
    ledger.write(lambda tx: coordinators.release_run(tx, coordinator, reason="r", active_us=0))
    plans = plans_of(ledger, lambda: coordinators.open_run(ledger, coordinator.run_id))
    assert any("slots_in_flight" in plan for plan in plans)
    assert scans(plans) == []


ENDS: dict[str, tuple[Any, str]] = {
    "finishing": (run_ends.finish_run, "slots_in_flight"),
    "giving up": (lambda tx, key: run_ends.abandon_run(tx, key, reason="r", made_by="me"), "slots_pending"),
    "retrying": (lambda tx, key: run_ends.retry(tx, key, state="failed", reason="x"), "slots_in_trouble"),
    "no target": (lambda tx, key: run_ends.mark_unavailable(tx, key, reason="r"), "slots_pending"),
    "more money": (lambda tx, key: budgets.amend(tx, key, 1, limit=99, reason="r", made_by="me"), "slots_in_trouble"),
}


@pytest.mark.parametrize("name", ENDS)
def test_ending_a_run_and_beginning_again_cost_by_what_is_left(name: str, ledger: Ledger) -> None:
    work, index = ENDS[name]
    run_key = new_run(ledger, 20, budgets=(budget(),)).run_key
    plans = plans_of(ledger, lambda: ledger.write(lambda tx: work(tx, run_key)))
    assert any(index in plan for plan in plans), plans
    assert scans(plans) == []
