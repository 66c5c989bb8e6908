"""Python functions as users of a conversation: found, identified, asked on the loop or on a thread, given up."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest

import tallystick as ts
from tallystick.adapters import python_user
from tallystick.adapters.python_user import PythonUser, from_work_order, user
from tallystick.ledger.errors import TargetNotFound, WorkOrderInvalid
from tallystick.runner.protocols import MISSING, Case, Exchange, User

CASE = Case("c", "hello")
HISTORY = (Exchange("a", 1),)


def say(made: User, history: tuple[Exchange, ...] = HISTORY, *, seconds: float = 30.0) -> Any:
    return asyncio.run(made.say(CASE, history, deadline_seconds=seconds))


@user(version="3")
def customer(case: Case, history: list[Exchange], mood: str = "calm") -> Any:
    return None if len(history) > 1 else f"{mood}: {case.input}"


def test_it_is_a_user_and_can_still_be_called() -> None:
    assert isinstance(customer, User)
    assert say(customer) == customer(CASE, HISTORY) == "calm: hello"
    assert say(customer.using(mood="cross")) == "cross: hello"
    assert say(customer, HISTORY * 2) is MISSING
    assert ts.user is user


def test_a_declared_version_stands_for_its_code_and_arguments_count() -> None:
    told = customer.using(mood="cross").identity()
    assert told == {
        "kind": "python", "function": f"{__name__}:customer", "arguments": {"mood": "cross"}, "version": "3",
    }  # fmt: skip
    assert "version" not in user(lambda case, history: None).identity()
    with pytest.raises(WorkOrderInvalid, match="no JSON form"):
        customer.using(mood=object()).identity()  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [lambda case: None, lambda case, history, more: None, lambda: None])
def test_a_function_that_cannot_be_asked_is_refused(function: Any) -> None:
    with pytest.raises(WorkOrderInvalid, match="cannot be called with a case and a history"):
        user(function).check()


def test_one_is_found_by_name_with_its_options(tmp_path: Path) -> None:
    (tmp_path / "people.py").write_text(
        "import tallystick as ts\n\n@ts.user(version='9')\ndef one(case, history, mood): return mood\n\nother = 3\n"
    )
    options = {"file": "people.py", "arguments": {"mood": "cross"}}
    made = from_work_order("one", options, folder=tmp_path, place="conversation.user")
    made.check()
    assert isinstance(made, PythonUser)
    assert (made.name, made.version, say(made)) == ("people.py:one", "9", "cross")
    with pytest.raises(TargetNotFound, match="is not a function"):
        from_work_order("other", {"file": "people.py"}, folder=tmp_path, place="conversation.user")
    with pytest.raises(WorkOrderInvalid, match=r"conversation\.user"):
        from_work_order("one", {"flie": "people.py"}, folder=tmp_path, place="conversation.user")


def test_what_it_does_to_the_history_changes_nobody_elses() -> None:
    def greedy(case: Case, history: list[Exchange]) -> Any:
        history.clear()
        return "more"

    assert say(user(greedy)) == "more"
    assert len(HISTORY) == 1


@pytest.mark.parametrize("is_async", [True, False])
def test_what_is_given_up_is_counted_until_it_ends(monkeypatch: pytest.MonkeyPatch, is_async: bool) -> None:
    monkeypatch.setattr(python_user, "_OVERDUE_MAX", 1)
    go_on = threading.Event()

    def blocking(case: Case, history: list[Exchange]) -> Any:
        assert go_on.wait(30)
        return "late"

    async def stubborn(case: Case, history: list[Exchange]) -> Any:
        while not go_on.is_set():
            try:
                await anyio.lowlevel.checkpoint()
            except asyncio.CancelledError:
                continue
        return "late"

    made = user(stubborn if is_async else blocking)

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            await made.say(CASE, HISTORY, deadline_seconds=0.05)
        with pytest.raises(RuntimeError, match="still going on"):
            await made.say(CASE, HISTORY, deadline_seconds=30)
        go_on.set()
        while made._overdue:
            await anyio.lowlevel.checkpoint()
        assert await made.say(CASE, HISTORY, deadline_seconds=30) == "late"

    asyncio.run(scenario())


def test_a_message_that_is_no_json_is_refused() -> None:
    with pytest.raises(Exception, match="object"):
        say(user(lambda case, history: object()))
