"""Items are made by another thread, a few ahead, in their order, and what goes wrong is raised in its place."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tallystick.ledger.ahead import ahead


def test_everything_comes_in_its_order() -> None:
    assert list(ahead(iter(range(1000)))) == list(range(1000))
    assert list(ahead(iter([None, None]))) == [None, None]


def test_what_the_source_raises_comes_after_the_items_before_it() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise LookupError("here")

    found = ahead(source())
    assert next(found) == 1
    with pytest.raises(LookupError, match="here"):
        next(found)


def test_no_more_is_made_than_is_wanted_soon() -> None:
    made: list[int] = []
    enough = threading.Event()

    def source() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            if number == 4:
                enough.set()
            yield number

    found = ahead(source())
    assert next(found) == 0
    assert enough.wait(30)
    assert len(made) <= 6
    found.close()
    assert threading.active_count() < 50
    assert len(made) <= 7


def test_the_thread_ends_when_nobody_wants_more() -> None:
    before = threading.active_count()
    found = ahead(iter(range(100)))
    next(found)
    found.close()
    assert threading.active_count() == before
