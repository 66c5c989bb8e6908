"""Threads change places soon while an import is under way, and as before when the last one is done."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tallystick.ledger.switching import quick_switching


@pytest.fixture
def unhurried() -> Iterator[float]:
    """Some interval that a program has set."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.02)
    try:
        yield sys.getswitchinterval()
    finally:
        sys.setswitchinterval(before)


def test_the_last_of_several_restores_what_was_set_before_the_first(unhurried: float) -> None:
    first, second = quick_switching(), quick_switching()
    first.__enter__()
    quick = sys.getswitchinterval()
    assert quick < unhurried / 10
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == quick
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == unhurried


def test_a_program_that_has_set_less_keeps_it_and_a_failure_restores_it(unhurried: float) -> None:
    sys.setswitchinterval(1e-5)
    less = sys.getswitchinterval()
    inside: list[float] = []

    def fail() -> None:
        inside.append(sys.getswitchinterval())
        raise KeyError

    with pytest.raises(KeyError), quick_switching():
        fail()
    assert inside == [less]
    assert sys.getswitchinterval() == less
