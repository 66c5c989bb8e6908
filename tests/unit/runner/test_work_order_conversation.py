"""The ``[conversation]`` of a work order: read, refused, kept in a document, and what of it identifies a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tallystick as ts
from tallystick._wiring import ADAPTERS
from tallystick.ledger.errors import IdentityChanged, WorkOrderInvalid
from tallystick.ledger.states import SlotState
from tallystick.runner.descriptions import describe
from tallystick.runner.preflight import preflight_of
from tallystick.runner.work_order import WorkOrder, load_work_order
from tallystick.runner.work_order_conversation import Answering, GivenUser, ResumeAt
from tests.unit.runner.talker import Talker, talks

USER = "def simulated(case, history, mood='calm'):\n    return None if history else mood\n"
BOT = "def bot(case, turn):\n    return turn.message\n"


def order_file(
    folder: Path, conversation: str, *, target: str = 'kind = "python"\nfile = "bot.py"\nfunction = "bot"'
) -> Path:
    (folder / "user.py").write_text(USER)
    (folder / "bot.py").write_text(BOT)
    said = '{"id": "a", "input": {"turns": ["x", "y"], "other": ["z"]}}'
    (folder / "cases.jsonl").write_text(f'{said}\n{{"id": "b", "input": {{}}}}\n')
    path = folder / "order.toml"
    head = 'version = 1\nname = "talk"\n[cases]\nfile = "cases.jsonl"\n'
    path.write_text(f"{head}[target]\n{target}\n[conversation]\n{conversation}\n")
    return path


@pytest.mark.parametrize(
    ("conversation", "text"),
    [
        ("", "order.toml:9: conversation: nothing says what is said in it. Give turns"),
        ('turns = "$.t"\nuser = "a:b"', "turns and user exclude each other"),
        ('turns = "$.t"\nfile = "user.py"', "conversation.file: this belongs to a user function that is named"),
        ('turns = "$.t"\nturns_max = 0', "conversation.turns_max: 0 is too small"),
        ('turns = "$.t"\nresume = "never"', 'Write "auto", "checkpoint" or "restart"'),
        ('turns = "$.t"\nturnsmax = 3', 'Did you mean "turns_max"'),
        ("turns = 3", "conversation.turns: 3 is no text"),
    ],
)
def test_a_conversation_with_a_fault_is_refused_in_one_line(tmp_path: Path, conversation: str, text: str) -> None:
    with pytest.raises(WorkOrderInvalid) as caught:
        load_work_order(order_file(tmp_path, conversation))
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("conversation", "error", "text"),
    [
        ('turns = "turns"', WorkOrderInvalid, '"turns" is not a path'),
        ('user = "simulated"', WorkOrderInvalid, "names no module"),
        ('user = "simulatd"\nfile = "user.py"', ts.UsageError, 'Did you mean "simulated"'),
        ('user = "simulated"\nfile = "users.py"', ts.UsageError, "there is no file users.py"),
        ('user = "simulated"\nfile = "user.py"\narguments = { tone = "x" }', WorkOrderInvalid, "cannot be called"),
    ],
)
def test_what_a_conversation_names_is_looked_for_before_anything_is_made(
    tmp_path: Path, conversation: str, error: type[Exception], text: str
) -> None:
    order = load_work_order(order_file(tmp_path, conversation))
    with pytest.raises(error) as caught:
        describe(order, ADAPTERS)
    assert text in str(caught.value)
    assert "conversation" in str(caught.value)


def test_a_conversation_is_read_back_from_its_document(tmp_path: Path) -> None:
    text = 'user = "simulated"\nfile = "user.py"\narguments = { mood = "cross" }\nanswer = "all"\nresume = "restart"'
    order = load_work_order(order_file(tmp_path, text))
    again = WorkOrder.from_document(order.to_document(), folder=tmp_path)
    assert again.conversation == order.conversation
    assert again.conversation is not None
    assert (again.conversation.answer, again.conversation.resume) == (Answering.ALL, ResumeAt.RESTART)
    assert "conversation" not in WorkOrder("x", cases=[{"id": "a", "input": 1}], target=Talker()).to_document()


def test_a_user_that_was_given_from_python_has_to_be_given_again(tmp_path: Path) -> None:
    @ts.user(version="1")
    def simulated(case: ts.Case, history: list[ts.Exchange]) -> Any:
        return None if history else "hello"

    order = talks(Talker(), conversation={"user": simulated})
    document = order.to_document()
    lost = WorkOrder.from_document(document, targets={"default": Talker()})
    assert lost.conversation is not None
    assert isinstance(lost.conversation.user, GivenUser)
    assert lost.to_document() == {**document, "name": "talks"}
    with pytest.raises(WorkOrderInvalid, match="this user was given from Python"):
        describe(lost.replaced(cases=order.cases), ADAPTERS)
    found = WorkOrder.from_document(document, targets={"default": Talker()}, user=simulated, cases=order.cases)
    assert describe(found, ADAPTERS).digest == describe(order, ADAPTERS).digest


def test_an_undecorated_function_is_no_user_yet() -> None:
    def simulated(case: ts.Case, history: list[ts.Exchange]) -> Any:
        return None

    with pytest.raises(WorkOrderInvalid, match=r"is no user yet. Decorate a function with @ts.user"):
        talks(Talker(), conversation={"user": simulated})


# Identity.


def run(folder: Path, conversation: str) -> ts.RunOutcome:
    return ts.run(order_file(folder, conversation), ledger=folder / "l.db")


@pytest.mark.parametrize(
    "changed", ['turns = "$.other"', 'turns = "$.turns"\nturns_max = 3', 'turns = "$.turns"\nanswer = "all"']
)
def test_what_an_answer_depends_on_cannot_change_under_a_run(tmp_path: Path, changed: str) -> None:
    path = tmp_path / "l.db"
    ts.run(order_file(tmp_path, 'turns = "$.turns"'), ledger=path, limit=1)
    with pytest.raises(IdentityChanged, match="conversation"):
        ts.run(order_file(tmp_path, changed), ledger=path)


def test_where_to_go_on_and_how_long_may_change(tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    first = ts.run(order_file(tmp_path, 'turns = "$.turns"'), ledger=path, limit=1)
    changed = 'turns = "$.turns"\nresume = "restart"\ndeadline_seconds = 60\nturns_max = 50'
    second = ts.run(order_file(tmp_path, changed), ledger=path)
    assert first.run_id == second.run_id
    assert second.counts[SlotState.SELECTED] == 1
    assert ts.resume(ledger=path, run="talk").run_id == first.run_id, "and it is so from then on"


def test_the_code_of_a_user_function_is_identity(tmp_path: Path) -> None:
    path, user = tmp_path / "l.db", 'user = "simulated"\nfile = "user.py"'
    order = order_file(tmp_path, user)
    before = describe(load_work_order(order), ADAPTERS).identity["identity"]
    assert isinstance(before, dict)
    told = before["conversation"]["user"]
    assert (told["function"], told["kind"]) == ("user.py:simulated", "python")
    assert "module_digest" in told
    assert str(tmp_path) not in str(before)
    assert path.exists() is False


# Targets that do not fit.


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ('kind = "http"\nurl = "http://127.0.0.1:9/x"\njson = { a = "{{input}}" }', "nothing of what is said"),
        ('kind = "http"\nurl = "http://127.0.0.1:9/x"\njson = { a = "{{turn}}" }', "nothing of what is said"),
        ('kind = "process"\nargv = ["cat"]\ntext = "{{input}}"', "nothing of what is said"),
        ('kind = "python"\nfile = "user.py"\nfunction = "simulated"', "history"),
    ],
)
def test_a_target_that_would_not_hear_what_is_said_is_refused(tmp_path: Path, target: str, text: str) -> None:
    order = order_file(tmp_path, 'turns = "$.turns"', target=target)
    with pytest.raises(ts.UsageError, match=text):
        describe(load_work_order(order), ADAPTERS)


@pytest.mark.parametrize(
    "target",
    [
        {"kind": "http", "url": "http://127.0.0.1:9/{{session}}"},
        {"kind": "process", "argv": ["cat", "{{message}}"]},
        {"kind": "python", "file": "bot.py", "function": "bot"},
    ],
)
def test_a_target_that_asks_for_a_turn_is_refused_where_there_is_none(tmp_path: Path, target: dict[str, Any]) -> None:
    (tmp_path / "bot.py").write_text(BOT)
    order = WorkOrder("x", cases=[{"id": "a", "input": 1}], target=target, folder=tmp_path)
    with pytest.raises(WorkOrderInvalid, match=r"Add a \[conversation\]"):
        describe(order, ADAPTERS)


@pytest.mark.parametrize(
    "target",
    [
        {"kind": "http", "url": "http://127.0.0.1:9/x", "json": {"messages": "{{messages}}"}},
        {"kind": "http", "url": "http://127.0.0.1:9/x", "form": {"q": "{{message}}"}},
        {"kind": "http", "url": "http://127.0.0.1:9/x", "params": {"q": "{{message.say}}"}, "method": "GET"},
        {"kind": "process", "argv": ["cat"]},
        {"kind": "process", "argv": ["echo", "{{message}}"], "input": "none", "output": "text"},
        {"kind": "python", "file": "bot.py", "function": "bot"},
    ],
)
def test_targets_that_hear_what_is_said_are_taken(tmp_path: Path, target: dict[str, Any]) -> None:
    (tmp_path / "bot.py").write_text(BOT)
    rows: list[dict[str, Any]] = [{"id": "a", "input": {"turns": ["x"]}}]
    order = WorkOrder("x", cases=rows, target=target, conversation={"turns": "$.turns"}, folder=tmp_path)
    assert describe(order, ADAPTERS).turns == 1


# The outlook.


def test_a_preflight_counts_what_is_said() -> None:
    rows = [{"id": "a", "input": {"turns": ["x", "y", "z"]}}, {"id": "b", "input": {"turns": ["x"]}}]
    budget = {"usd": {"limit": "1.00", "bound_per_dispatch": "0.10"}}
    order = talks(Talker(), rows=rows, repetitions=2, budgets=budget, attempts_max=1, dispatches_max=1)
    found = preflight_of(describe(order, ADAPTERS), ledger="l", ledger_exists=False)
    assert found.conversation is not None
    assert (found.conversation.script, found.conversation.turns) == ("$.turns", 4)
    (outlook,) = found.budgets
    assert (outlook.planned, outlook.least, outlook.worst) == (4, "0.80", "0.80")


def test_a_preflight_of_a_user_function_knows_its_bound_alone() -> None:
    @ts.user(version="1")
    def simulated(case: ts.Case, history: list[ts.Exchange]) -> Any:
        return None

    budget = {"usd": {"limit": "1.00", "bound_per_dispatch": "0.10"}}
    order = talks(
        Talker(), rows=[{"id": "a", "input": 1}], conversation={"user": simulated, "turns_max": 7}, budgets=budget,
        attempts_max=1, dispatches_max=1,
    )  # fmt: skip
    found = preflight_of(describe(order, ADAPTERS), ledger="l", ledger_exists=False)
    assert found.conversation is not None
    assert found.conversation.turns is None
    assert (found.budgets[0].least, found.budgets[0].worst) == ("0.10", "0.70")
