"""A run as it stood at any of its events, from the history alone: the same whenever it is asked."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant

from tallystick import ledger as package
from tallystick.ledger import attempts, budgets, coordinators, run_ends
from tallystick.ledger.contamination import mark_contaminated
from tallystick.ledger.errors import UsageError
from tallystick.ledger.history import history_at
from tallystick.ledger.history_budgets import budgets_by_replay
from tallystick.ledger.history_check import differences
from tallystick.ledger.history_effects import EFFECTS, WITHOUT_EFFECT
from tallystick.ledger.holders import Holder
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import Waiting
from tallystick.ledger.run_reads import budgets_of
from tallystick.ledger.settlements import Decision, Settlement, settle_unknown
from tallystick.ledger.standing import numbers_of, steps_of
from tallystick.ledger.states import DispatchState
from tests.unit.ledger.factories import (
    begin,
    budget,
    every,
    facts,
    hold,
    lost,
    new_run,
    observe,
    one,
    opened_run,
)
from tests.unit.ledger.test_model import LedgerMachine


def rows_now(ledger: Ledger, run_key: int) -> tuple[Any, ...]:
    """The rows that a report goes by, as they are at this moment."""
    with ledger.reading() as reader:
        slots = reader.rows(
            "SELECT slot_no, state, reason, attempts, next_step FROM slots WHERE run_key = ? ORDER BY slot_no",
            (run_key,),
        )
        running = reader.rows(
            "SELECT slot_no, attempt_no, state FROM attempts WHERE run_key = ? AND state IN ('running', 'unknown')"
            " ORDER BY slot_no, attempt_no",
            (run_key,),
        )
        return slots, running, budgets_of(reader, run_key)


def told_of(ledger: Ledger, run_key: int, event_no: int) -> tuple[Any, ...]:
    """The same from the events up to that one."""
    with ledger.reading() as reader:
        history = history_at(reader, run_key, event_no)
        slots = [
            (number, history.state_of(number).value, history.reasons.get(number), history.attempts[number],
             history.step_of(number))
            for number in range(1, history.planned + 1)
        ]  # fmt: skip
        running = [(*key, attempt.state) for key, attempt in sorted(history.open_attempts.items())]
        return slots, running, budgets_by_replay(reader, history)


def newest_event(ledger: Ledger, run_key: int) -> int:
    return int(one(ledger, "SELECT max(event_no) FROM events WHERE run_key = ?", run_key)[0])


class HistoryMachine(LedgerMachine):
    """Whatever is done, each moment that was seen can be told again afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, tuple[Any, ...]] = {}

    @invariant()
    def look(self) -> None:
        if hasattr(self, "run_key"):
            self.seen[newest_event(self.ledger, self.run_key)] = rows_now(self.ledger, self.run_key)

    def teardown(self) -> None:
        for event_no, rows in self.seen.items():
            assert told_of(self.ledger, self.run_key, event_no) == rows, event_no
        super().teardown()


TestHistory = HistoryMachine.TestCase
TestHistory.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


def kinds_in_the_code() -> set[str]:
    """Every kind of event that the ledger writes: a literal with a dot, given to what appends an event."""
    found = set[str]()
    for path in sorted(Path(package.__path__[0]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
                "event",
                "events",
                "record_event",
                "_tell",
            ):
                found |= {
                    str(argument.value)
                    for argument in node.args
                    if isinstance(argument, ast.Constant) and re.fullmatch(r"[a-z]+\.[a-z_]+", str(argument.value))
                }
    return found


def test_every_kind_of_event_is_known_to_the_history() -> None:
    kinds = kinds_in_the_code()
    assert "dispatch.intended" in kinds
    assert kinds - set(EFFECTS) - WITHOUT_EFFECT == set(), "say in ledger/history_effects.py what it does to a slot"
    assert set(EFFECTS) - kinds == set()


def test_some_of_many_slots_are_told_by_their_numbers(ledger: Ledger) -> None:
    run = opened_run(ledger, 5, variants=("old", "new"))
    ledger.write(lambda tx: run_ends.mark_unavailable(tx, run.run_key, reason="budget", variant_no=2))
    (body,) = every(ledger, "SELECT body FROM events WHERE run_key = ? AND kind = 'slots.unavailable'", run.run_key)
    assert '"slots":[[2,10,2]]' in body[0]
    with ledger.reading() as reader:
        history = history_at(reader, run.run_key)
    assert history.slots_in("unavailable") == [2, 4, 6, 8, 10]


@pytest.mark.parametrize(
    ("kind", "ranges", "why"),
    [
        ("slots.unavailable", [[2, 2, 1]], "names slot 2, which does not wait"),
        ("slots.unavailable", [[3, 3, 1], *[[3, 3, 1]] * 1_000], "names slot 3, which does not wait"),
        ("slots.unavailable", [[-1, -1, 1]], "names slot -1, which does not wait"),
        ("slots.reused", [[1, 1, 1]], "names slot 1, which does not wait"),
        ("slots.reused", [[4, 4, 1]], "reuses slot 4, which has an attempt"),
    ],
)
def test_slots_that_are_named_again_and_again_are_not_gone_through_again(
    kind: str, ranges: list[list[int]], why: str, ledger: Ledger
) -> None:
    run = opened_run(ledger, 4)
    keys = [begin(ledger, run.run_key, slot_no).key for slot_no in (1, 4)]
    ledger.write(lambda tx: observe(tx, keys[0]))
    ledger.write(lambda tx: attempts.fail(tx, keys[1], facts(DispatchState.FAILED, "x"), waiting=Waiting()))
    ledger.write(lambda tx: attempts.give_up(tx, run.run_key, 2, reason="r"))
    body: dict[str, Any] = {"count": 1, "reason": "r", "variant": None, "slots": ranges, "contaminated": []}
    ledger.write(lambda tx: tx.event(run.run_key, kind, body))
    with ledger.reading() as reader:
        (found,) = differences(reader)
    assert found.endswith(f"events cannot be read (ValueError: event {newest_event(ledger, run.run_key)} {why})")


@pytest.mark.parametrize(
    "numbers", [[], [1], [1, 5], [1, 2, 3, 7, 9, 11, 20], [1, 3, 4, 5, 9], [2, 4, 6, 7, 8, 9, 100]]
)
def test_numbers_survive_their_short_form(numbers: list[int]) -> None:
    assert list(numbers_of(steps_of(numbers))) == numbers


def test_an_unknown_outcome_is_told_as_it_was_after_it_was_settled(ledger: Ledger) -> None:
    run = opened_run(ledger, 1)
    begun = begin(ledger, run.run_key)
    ledger.write(
        lambda tx: attempts.lose(tx, begun.key, lost(message="cut", bytes_sent=7, duration_us=9), waiting=None)
    )
    before = newest_event(ledger, run.run_key)
    ledger.write(lambda tx: settle_unknown(tx, Settlement(begun.key.call_id, 1, Decision.GIVE_UP, "me", "why")))
    with ledger.reading() as reader:
        then, now = history_at(reader, run.run_key, before), history_at(reader, run.run_key)
    (dispatch,) = then.open_dispatches.values()
    assert (dispatch.state, dispatch.message, dispatch.bytes_sent, dispatch.duration_us) == ("unknown", "cut", 7, 9)
    assert (then.state_of(1), now.state_of(1), now.reasons[1]) == ("unknown", "failed", "given_up")
    assert now.open_dispatches == {}
    assert then.is_newest is False


def test_budgets_are_told_as_they_were_in_every_unit(ledger: Ledger) -> None:
    units = ("dispatches", "tokens", "nanousd", "milliseconds")
    run = opened_run(
        ledger, 4, budgets=tuple(budget(no, unit=unit, limit=20, kind="soft") for no, unit in enumerate(units, start=1))
    )
    holds = tuple(hold(no, 5 if unit != "dispatches" else 1, unit=unit, hard=False)
                  for no, unit in enumerate(units, start=1))  # fmt: skip
    seen = {}

    def look() -> None:
        seen[newest_event(ledger, run.run_key)] = rows_now(ledger, run.run_key)

    first, second, third = (begin(ledger, run.run_key, slot, holds=holds) for slot in (1, 2, 3))
    look()
    ledger.write(lambda tx: observe(tx, first.key, facts(tokens_in=9, tokens_out=40, wire_sends=3, duration_us=1_500)))
    look()
    refused = facts(DispatchState.REFUSED, "busy", wire_sends=2)
    ledger.write(lambda tx: attempts.refuse(tx, second.key, refused))
    ledger.write(lambda tx: attempts.give_back(tx, second.key, Waiting(not_before_us=5), reason="busy"))
    look()
    ledger.write(lambda tx: budgets.amend(tx, run.run_key, 2, limit=90, reason="more", made_by="me"))
    look()
    ledger.write(lambda tx: attempts.fail(tx, third.key, facts(DispatchState.FAILED, "x", charged=False), waiting=None))
    look()
    told = {event_no: told_of(ledger, run.run_key, event_no) for event_no in seen}
    assert told == seen
    assert told[max(told)][2][1].overrun == 49 + 5 + 5 - 20
    with ledger.reading() as reader:
        assert list(differences(reader)) == []


def test_a_death_is_seen_by_who_came_after(ledger: Ledger) -> None:
    run = opened_run(ledger, 2)
    begin(ledger, run.run_key)
    ledger.write(lambda tx: coordinators._take(tx, run.run_id, Holder(
        run.lease_id, ledger.worker_id, None, True, 0), 3))  # type: ignore[arg-type]  # fmt: skip
    with ledger.reading() as reader:
        died, alive = history_at(reader, run.run_key).sessions
    assert (died.died, died.reason, died.ended_us is not None) == (True, None, True)
    assert (alive.died, alive.ended_us, alive.recovered["unknown"], alive.fence) == (False, None, 1, died.fence + 1)


def test_events_that_a_run_does_not_have_are_refused(ledger: Ledger) -> None:
    run = new_run(ledger, 1)
    with ledger.reading() as reader:
        for wrong in (0, 2, -1):
            with pytest.raises(UsageError, match="Name one from 1 to 1"):
                history_at(reader, run.run_key, wrong)


def test_rows_that_were_changed_behind_the_history_are_found(ledger: Ledger) -> None:
    run = opened_run(ledger, 2)
    begun = begin(ledger, run.run_key)
    ledger.write(lambda tx: observe(tx, begun.key))
    ledger.write(
        lambda tx: tx.change("UPDATE slots SET reason = 'late' WHERE run_key = ? AND slot_no = 2", (run.run_key,))
    )
    with ledger.reading() as reader:
        (found,) = differences(reader)
    assert "slot 2" in found


def test_a_mark_of_contamination_that_the_history_does_not_tell_is_found_and_so_is_one_that_is_missing(
    ledger: Ledger,
) -> None:
    run = opened_run(ledger, 2)
    for slot_no in (1, 2):
        begin(ledger, run.run_key, slot_no)
    ledger.write(lambda tx: mark_contaminated(tx, run.run_key, 2, 1, body={"reason": "an earlier holder"}))
    with ledger.reading() as reader:
        assert list(differences(reader)) == []
    ledger.write(lambda tx: tx.change("UPDATE attempts SET contaminated = 1 - contaminated", ()))
    with ledger.reading() as reader:
        found = list(differences(reader))
    assert [text.split(" ", 2)[2] for text in found] == [
        "slot 1 attempt 1: contaminated True, told False",
        "slot 2 attempt 1: contaminated False, told True",
    ]
