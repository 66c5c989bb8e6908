"""Intents and answers written together: the rows are those of one after the other, and one's trouble stays its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.ledger import attempts
from tallystick.ledger.attempt_groups import Beginning, Observing
from tallystick.ledger.canonical import canonical_text, parse_json
from tallystick.ledger.errors import BudgetExhausted, TransitionRefused
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import Artifact, DispatchFacts, DispatchKey, Held, Hold, Intent
from tallystick.ledger.states import DispatchState
from tallystick.ledger.transaction import Transaction
from tests.unit.ledger.batches import Batch
from tests.unit.ledger.factories import (
    ANSWER,
    ANSWER_DIGEST,
    HandClock,
    budget,
    hold,
    intent,
    new_ledger,
    new_run,
)

TABLES = ("slots", "attempts", "calls", "dispatches", "reservations", "budgets", "observations", "events", "artifacts")
SOFT, DEAR = hold(2, 5, unit="tokens_in", hard=False), hold(3, 4, unit="nanousd")

amounts = st.none() | st.integers(0, 9)
answers = st.builds(
    DispatchFacts,
    st.just(DispatchState.ANSWERED),
    reason=st.sampled_from(["", 'odd "reason"', "ünknown"]),
    message=st.sampled_from(["", "said"]),
    duration_us=amounts,
    bytes_sent=amounts,
    wire_sends=st.none() | st.integers(1, 3),
    status=st.none() | st.just(200),
    raw=st.none() | st.just(b"\x00raw"),
    raw_cut=st.booleans(),
    retry_after_us=amounts,
    tokens_in=amounts,
    tokens_out=amounts,
    cost_nanousd=amounts,
    usage=st.none() | st.just("{}"),
)


def rows(ledger: Ledger) -> dict[str, list[Any]]:
    with ledger.reading() as reader:
        return {table: sorted(map(repr, _without_worker(reader, table))) for table in TABLES}


def _without_worker(reader: Any, table: str) -> list[tuple[Any, ...]]:
    columns = [row[1] for row in reader.rows(f"PRAGMA table_info({table})") if row[1] not in ("worker_id", "hash")]
    found: list[tuple[Any, ...]] = reader.rows(f"SELECT {', '.join(columns)} FROM {table}")
    return [row for row in found if "run.planned" not in row]  # which holds the run's id


def planned(ledger: Ledger, *, limit: int = 10_000, cases: int = 8) -> int:
    plans = (
        budget(1, limit=limit),
        budget(2, limit=10_000, unit="tokens_in", kind="soft"),
        budget(3, limit=10_000, unit="nanousd"),
    )
    return new_run(ledger, cases, budgets=plans).run_key


def beginning(run_key: int, slot_no: int, holds: tuple[Hold, ...] = (hold(),), attempt_no: int = 1) -> Beginning:
    return Beginning(intent(run_key, slot_no, holds=holds, call_id=f"call-{slot_no}-{attempt_no}"), attempt_no)


def observing(key: DispatchKey, facts: DispatchFacts) -> Observing:
    return Observing(key, facts, ANSWER, ANSWER_DIGEST, '{"context":["c"]}', '["truncated"]')


def all_of(tx: Transaction, works: Sequence[Any]) -> list[Any]:
    done: list[Any] = works[0].together(tx, list(works))
    return done


def one_by_one(tx: Transaction, works: Sequence[Any]) -> list[Any]:
    return [work(tx) for work in works]


def at_once(ledger: Ledger, works: Sequence[Callable[[Transaction], Any]]) -> list[Any]:
    """All of them in one batch of the scribe; an outcome is a result or an error."""
    with Batch(ledger) as batch:
        for number, work in enumerate(works):
            batch.ask(str(number), work)
    return [batch.outcomes[str(number)] for number in range(len(works))]


@settings(max_examples=15, deadline=None)
@given(given_facts=st.lists(answers, min_size=2, max_size=8), kinds=st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_together_leaves_the_same_rows_as_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, given_facts: list[DispatchFacts], kinds: list[int]
) -> None:
    holds = [(), (hold(),), (hold(), SOFT, DEAR)]
    seen = []
    for together in (True, False):
        with new_ledger(tmp_path_factory.mktemp("together"), clock=HandClock()) as ledger:
            run_key = planned(ledger)
            begins = [beginning(run_key, n + 1, holds[kinds[n]]) for n in range(len(given_facts))]
            keys = [DispatchKey(run_key, one.intent.slot_no, 1, one.intent.call_id, 1, one.intent.holds)
                    for one in begins]  # fmt: skip
            ends = [observing(key, facts) for key, facts in zip(keys, given_facts, strict=True)]
            if together:
                assert [one.key for one in ledger.write(functools.partial(all_of, works=begins))] == keys
                ledger.write(functools.partial(all_of, works=ends))
            else:
                ledger.write(functools.partial(one_by_one, works=begins))
                ledger.write(functools.partial(one_by_one, works=ends))
            seen.append(rows(ledger))
    for table in TABLES:
        assert seen[0][table] == seen[1][table]


def test_what_an_event_says_is_canonical(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        run_key = planned(ledger)
        holds = (hold(), SOFT, DEAR)
        works = [beginning(run_key, 1, holds), beginning(run_key, 2, holds)]
        keys = [one.key for one in ledger.write(functools.partial(all_of, works=works))]
        ends = [observing(key, DispatchFacts(DispatchState.ANSWERED, 'a "reason"')) for key in keys]
        ledger.write(functools.partial(all_of, works=ends))
        with ledger.reading() as reader:
            bodies = [row[0] for row in reader.rows("SELECT body FROM events WHERE run_key = ?", (run_key,))]
    assert bodies
    assert [canonical_text(parse_json(body)) for body in bodies] == bodies


def test_a_budget_with_room_for_some_lets_exactly_those_begin(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        run_key = planned(ledger, limit=3)
        outcomes = at_once(ledger, [beginning(run_key, slot_no) for slot_no in range(1, 9)])
        assert [type(outcome) for outcome in outcomes].count(BudgetExhausted) == 5
        assert len(rows(ledger)["calls"]) == 3


def test_a_slot_that_somebody_else_has_claimed_is_refused_and_the_others_begin(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        run_key = planned(ledger)
        ledger.write(beginning(run_key, 2))
        again = attrs.evolve(beginning(run_key, 2).intent, call_id="another")
        outcomes = at_once(ledger, [beginning(run_key, 1), Beginning(again, 1), beginning(run_key, 3)])
        assert [isinstance(outcome, TransitionRefused) for outcome in outcomes] == [False, True, False]
        assert len(rows(ledger)["attempts"]) == 3


def test_an_answer_that_is_given_twice_counts_once_and_the_others_stand(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        run_key = planned(ledger)
        keys = [ledger.write(beginning(run_key, slot_no)).key for slot_no in (1, 2, 3)]
        facts = DispatchFacts(DispatchState.ANSWERED)
        outcomes = at_once(ledger, [observing(key, facts) for key in [*keys, keys[0]]])
        assert [isinstance(outcome, TransitionRefused) for outcome in outcomes] == [False, False, False, True]
        assert len(rows(ledger)["observations"]) == 3


def test_the_number_of_an_attempt_is_the_ledgers_also_where_another_was_expected(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        run_key = planned(ledger)
        first, second = at_once(ledger, [beginning(run_key, 1, attempt_no=7), beginning(run_key, 2)])
        assert (first.key.attempt_no, second.key.attempt_no) == (1, 1)


@pytest.mark.parametrize(
    "changed",
    [
        {"payload": None},
        {"key_until_us": 9},
        {"held": Held(("l",), 3)},
        {"payload_artifact": Artifact("sha256:0", 1, b"x")},
    ],
)
def test_an_intent_out_of_the_ordinary_is_written_by_itself(changed: dict[str, Any]) -> None:
    odd: Intent = attrs.evolve(intent(1), **changed)
    assert Beginning(odd, 1).together is None


def test_one_that_raises_leaves_the_chain_of_events_whole(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        run_key = planned(ledger, limit=2)
        at_once(ledger, [beginning(run_key, slot_no) for slot_no in range(1, 6)])
        with ledger.reading() as reader:
            numbers = [row[0] for row in reader.rows("SELECT event_no FROM events WHERE run_key = ?", (run_key,))]
    assert numbers == list(range(1, len(numbers) + 1))


def test_alone_it_is_the_same_as_the_plain_transaction(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        run_key = planned(ledger)
        begun = ledger.write(beginning(run_key, 1))
        ledger.write(observing(begun.key, DispatchFacts(DispatchState.ANSWERED)))
        with pytest.raises(TransitionRefused):
            ledger.write(lambda tx: attempts.begin(tx, intent(run_key, 1)))
