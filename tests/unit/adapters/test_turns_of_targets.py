"""What each kind of target is told of a conversation's turn, in the bytes that are committed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tallystick.adapters import http_target, process_target
from tallystick.adapters.python_target import target
from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.ledger.states import DispatchState
from tallystick.runner.protocols import Case, Exchange, Outcome, SlotView, Turn

from .makers import make_dispatching, run

TURN = Turn("s-7", 2, {"say": "b"}, (Exchange("a", [1]),))
SLOT = SlotView("run-1", Case("c", {"x": 1}), "default", 1, TURN)
PLAIN = SlotView("run-1", Case("c", {"x": 1}), "default", 1)


def asked(made: Any, slot: SlotView = SLOT) -> Outcome:
    async def work() -> Outcome:
        await made.open()
        try:
            outcome: Outcome = await made.dispatch(made.prepare(slot), make_dispatching(slot))
            return outcome
        finally:
            await made.close()

    return run(work())


@pytest.mark.parametrize("is_async", [True, False])
def test_a_function_gets_the_turn_as_it_was_committed(is_async: bool) -> None:
    def blocking(case: Case, turn: Turn) -> Any:
        return [
            case.input,
            turn.session,
            turn.number,
            turn.message,
            [[one.message, one.answer] for one in turn.history],
        ]

    async def on_the_loop(case: Case, turn: Turn) -> Any:
        return blocking(case, turn)

    made = target(on_the_loop if is_async else blocking)
    assert asked(made).answer == [{"x": 1}, "s-7", 2, {"say": "b"}, [["a", [1]]]]
    told = json.loads(made.prepare(SLOT).payload)
    assert told["turn"] == {
        "session": "s-7", "number": 2, "message": {"say": "b"}, "history": [{"message": "a", "answer": [1]}],
    }  # fmt: skip


def test_a_function_sees_the_committed_turn_and_not_the_callers_objects() -> None:
    @target
    def greedy(case: Case, turn: Turn) -> Any:
        assert isinstance(turn.message, dict)
        turn.message["say"] = "changed"
        return "done"

    assert asked(greedy).state is DispatchState.ANSWERED
    assert TURN.message == {"say": "b"}


@pytest.mark.parametrize(
    ("function", "takes", "needs"),
    [
        (lambda case, turn: 1, True, True),
        (lambda case, turn=None: 1, True, False),
        (lambda case, **more: 1, True, False),
        (lambda case: 1, False, False),
        (lambda turn, /: 1, False, False),
    ],
)
def test_a_function_says_by_its_parameters_whether_it_hears_turns(function: Any, takes: bool, needs: bool) -> None:
    made = target(function)
    assert (made.takes_turns, made.needs_turns) == (takes, needs)
    made.check()


def test_outside_of_a_conversation_a_function_is_called_as_ever() -> None:
    assert asked(target(lambda case, turn="none": turn), PLAIN).answer == "none"
    assert b"turn" not in target(lambda case: 1).prepare(PLAIN).payload


def http(**table: Any) -> Any:
    return http_target.from_work_order({"url": "http://127.0.0.1:9/x", **table}, folder=Path(), place="target")


def test_a_template_puts_the_turn_into_every_part_of_a_request() -> None:
    made = http(
        url="http://127.0.0.1:9/{{session}}/{{turn}}", headers={"X-Said": "{{message.say}}"}, json={"h": "{{history}}"}
    )
    prepared = made.prepare(SLOT)
    assert prepared.head["url"] == "http://127.0.0.1:9/s-7/2"
    assert prepared.head["headers"] == {"X-Said": "b"}
    assert json.loads(prepared.payload) == {"h": [{"message": "a", "answer": [1]}]}


@pytest.mark.parametrize(
    ("table", "takes", "needs"),
    [
        ({"json": {"a": "{{input}}"}}, False, False),
        ({"json": {"a": ["{{messages}}"]}}, True, True),
        ({"text": "say {{message}}"}, True, True),
        ({"form": {"a": "{{message}}"}}, True, True),
        ({"params": {"a": "{{turn}}"}, "method": "GET"}, False, True),
        ({"headers": {"A": "{{history}}"}, "method": "GET"}, True, True),
        ({"url": "http://127.0.0.1:9/{{session}}", "method": "GET"}, False, True),
    ],
)
def test_a_request_says_by_its_templates_whether_it_hears_turns(
    table: dict[str, Any], takes: bool, needs: bool
) -> None:
    made = http(**table)
    assert (made.takes_turns, made.needs_turns) == (takes, needs)


def test_a_program_is_told_of_the_turn_in_its_line_of_json(tmp_path: Path) -> None:
    echo = "import json,sys; print(json.dumps(json.loads(sys.stdin.readline())))"
    made = process_target.from_work_order({"argv": [sys.executable, "-c", echo]}, folder=tmp_path, place="target")
    assert asked(made).answer == {
        "id": "c", "input": {"x": 1}, "message": {"say": "b"}, "history": [{"message": "a", "answer": [1]}],
        "turn": 2, "session": "s-7",
    }  # fmt: skip
    assert asked(made, PLAIN).answer == {"id": "c", "input": {"x": 1}}


def test_a_placeholder_of_a_turn_that_is_not_known_is_refused_with_the_nearest() -> None:
    with pytest.raises(WorkOrderInvalid, match='Did you mean "messages"'):
        http(json={"a": "{{mesages}}"})
