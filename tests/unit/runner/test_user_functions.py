"""Conversations whose messages a user function makes from what was answered: asked, bounded, given up, asked again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tallystick as ts
from tallystick.ledger.canonical import JsonValue
from tallystick.ledger.checks import require_sound
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import DispatchState, SlotState
from tallystick.runner.device_protocols import Resuming
from tallystick.runner.protocols import Exchange, Outcome, Turn
from tallystick.runner.results import RunOutcome
from tests.unit.runner.scripted import page
from tests.unit.runner.talker import Talker, talks
from tests.unit.runner.talking import UNKNOWN, asked, run, states


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        yield opened
        require_sound(opened)


def simulated(ledger: Ledger, user: Any, target: Talker | None = None, **options: Any) -> RunOutcome:
    conversation = {"user": user, **options.pop("conversation", {})}
    rows = [{"id": "c0", "input": "hello", "expected": "secret"}]
    return run(ledger, talks(target or Talker(), rows=rows, conversation=conversation, **options))


def test_a_user_function_sees_the_case_and_what_was_said_and_answered(ledger: Ledger) -> None:
    seen: list[tuple[Any, list[Exchange]]] = []

    @ts.user(version="1")
    def user(case: ts.Case, history: list[Exchange]) -> JsonValue:
        seen.append((case, history))
        return None if len(history) == 2 else f"{case.input} {len(history)}"

    outcome = simulated(ledger, user)
    assert outcome.counts[SlotState.SELECTED] == 1
    assert [case.expected for case, _ in seen] == [ts.MISSING] * 3
    assert seen[2][1] == [Exchange("hello 0", "hello 0"), Exchange("hello 1", "hello 1")]
    assert page(ledger, outcome).attempts[0].flags == "[]"


def test_a_conversation_without_end_is_over_at_its_bound_and_says_so(ledger: Ledger) -> None:
    calls = []

    @ts.user(version="1")
    def user(case: ts.Case, history: list[Exchange]) -> JsonValue:
        calls.append(1)
        return "more"

    outcome = simulated(ledger, user, conversation={"turns_max": 3})
    assert page(ledger, outcome).attempts[0].flags == '["turns_max"]'
    assert len(calls) == 3, "after the last turn nobody is asked"


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (ValueError("no idea"), "user.raised"),
        (TimeoutError("its own"), "user.raised"),
        (SystemExit(3), "user.raised"),
        (StopIteration(), "user.raised"),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
def test_a_user_function_that_raises_fails_its_conversation_and_ends_no_run(
    ledger: Ledger, problem: BaseException, reason: str, is_async: bool
) -> None:
    def blocking(case: ts.Case, history: list[Exchange]) -> JsonValue:
        if history:
            raise problem
        return "a"

    async def on_the_loop(case: ts.Case, history: list[Exchange]) -> JsonValue:
        return blocking(case, history)

    if is_async and isinstance(problem, StopIteration):
        reason = "user.raised"  # Python itself makes a RuntimeError of it
    user = ts.user(version="1")(on_the_loop if is_async else blocking)
    target = Talker()
    outcome = simulated(ledger, user, target)
    assert states(ledger, outcome) == [("failed", reason)]
    assert len(target.asked) == 1


def test_a_user_function_is_asked_again_where_the_work_order_retries_it(ledger: Ledger) -> None:
    left = [ValueError("busy")]

    @ts.user(version="1")
    def user(case: ts.Case, history: list[Exchange]) -> JsonValue:
        if history and left:
            raise left.pop()
        return None if len(history) == 2 else "a"

    target = Talker()
    outcome = simulated(ledger, user, target, retry=["user"])
    assert outcome.counts[SlotState.SELECTED] == 1
    assert len(target.asked) == 2, "the turn before is carried over"


@pytest.mark.parametrize("is_async", [True, False])
def test_a_user_function_that_never_returns_is_given_up_at_the_deadline(ledger: Ledger, is_async: bool) -> None:
    over = threading.Event()

    def blocking(case: ts.Case, history: list[Exchange]) -> JsonValue:
        assert over.wait(30)
        return "late"

    async def on_the_loop(case: ts.Case, history: list[Exchange]) -> JsonValue:
        await asyncio.Event().wait()
        return "never"

    user = ts.user(version="1")(on_the_loop if is_async else blocking)
    outcome = simulated(ledger, user, deadline_seconds=0.1)
    over.set()
    assert states(ledger, outcome) == [("failed", "user.deadline")]


@pytest.mark.parametrize(("said", "reason"), [(None, "turns.missing"), (object(), "user.raised")])
def test_a_user_function_that_says_nothing_or_no_json_fails_its_case(ledger: Ledger, said: Any, reason: str) -> None:
    @ts.user(version="1")
    def user(case: ts.Case, history: list[Exchange]) -> Any:
        return said

    outcome = simulated(ledger, user)
    assert states(ledger, outcome) == [("failed", reason)]


def test_a_repeated_turn_says_what_was_said_and_a_replay_with_another_answer_is_asked_for_anew(
    ledger: Ledger,
) -> None:
    answers = iter(["x", "y", "z", "w"])
    told: list[list[JsonValue]] = []

    @ts.user(version="1")
    def user(case: ts.Case, history: list[Exchange]) -> JsonValue:
        told.append([one.answer for one in history])
        return None if len(history) == 2 else f"message {len(told)}"

    async def rule(target: Talker, turn: Turn) -> Outcome | None:
        if len(target.asked) == 2:
            return UNKNOWN
        return Outcome(DispatchState.ANSWERED, answer=next(answers), bytes_sent=1)

    target = Talker(Resuming.RESTART, rule=rule)
    simulated(ledger, user, target)
    # Turn one is replayed as it was said; its answer is another, and so the user is asked what to say next.
    assert asked(target) == [(1, "message 1"), (2, "message 2"), (1, "message 1"), (2, "message 3")]
    assert told == [[], ["x"], ["y"], ["y", "z"]]
