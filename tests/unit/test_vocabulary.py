"""The registered crash points and the state machines, each closed and each used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.ledger.crashpoints import CRASHPOINTS
from tallystick.ledger.states import INITIAL, MACHINES, TRANSITIONS

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("adapters", "ledger", "runner", "tallystick")


def _calls_of_crashpoint() -> Iterator[tuple[str, ast.Call]]:
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Call) and _name(node.func) == "crashpoint":
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _used() -> dict[str, list[str]]:
    """Crash point -> the places that pass it; a name that is not a literal is listed under its source."""
    found: dict[str, list[str]] = {}
    for place, call in _calls_of_crashpoint():
        found.setdefault(_literal(call), []).append(place)
    return found


def _literal(call: ast.Call) -> str:
    argument = call.args[0] if call.args else None
    return str(argument.value) if isinstance(argument, ast.Constant) else f"not a literal: {ast.unparse(call)}"


def test_every_crash_point_in_the_code_is_registered_and_a_literal() -> None:
    assert {name: places for name, places in _used().items() if name not in CRASHPOINTS} == {}


def test_every_registered_crash_point_is_passed_by_the_code() -> None:
    assert sorted(CRASHPOINTS.keys() - _used().keys()) == []


def test_every_machine_has_states_transitions_and_an_initial_state() -> None:
    assert MACHINES.keys() == TRANSITIONS.keys() == INITIAL.keys()


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_machine_is_closed(machine: str) -> None:
    states = {str(state) for state in MACHINES[machine]}
    assert TRANSITIONS[machine].keys() == states
    assert INITIAL[machine] in states
    assert frozenset[str]().union(*TRANSITIONS[machine].values()) <= states


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_no_state_follows_itself(machine: str) -> None:
    assert [state for state, targets in TRANSITIONS[machine].items() if state in targets] == []


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_every_state_can_be_reached(machine: str) -> None:
    # An imported run begins where the snapshot is read, so a run has two beginnings.
    reached = {INITIAL[machine]} | ({"importing"} if machine == "run" else set())
    while new := frozenset[str]().union(*(TRANSITIONS[machine][state] for state in reached)) - reached:
        reached |= new
    assert reached == {str(state) for state in MACHINES[machine]}


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_some_state_is_an_end_or_can_reach_one(machine: str) -> None:
    ends = {state for state, targets in TRANSITIONS[machine].items() if not targets}
    resting = {"run": {"finished", "cancelled", "moved"}, "slot": {"selected"}}.get(machine, ends)
    assert resting
    for state in TRANSITIONS[machine]:
        assert _reachable(machine, state) & resting, f"{machine}: {state} leads nowhere"


def _reachable(machine: str, start: str) -> set[str]:
    reached = {start}
    while new := frozenset[str]().union(*(TRANSITIONS[machine][state] for state in reached)) - reached:
        reached |= new
    return reached
