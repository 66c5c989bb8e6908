"""Ids rise strictly, whatever the clock, the threads and the forks do."""

from __future__ import annotations

import gc
import itertools
import os
import re
import signal
import threading
import weakref
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.ledger.identifiers import ID_LENGTH, IdSource

INSTANT = 1_700_000_000_000_000


@attrs.define
class SetClock:
    """A clock that shows what it is set to."""

    us: int = INSTANT

    def now_us(self) -> int:
        return self.us

    def boot_ns(self) -> int:
        return self.us * 1000


def ids_of(source: IdSource, count: int) -> list[str]:
    return [source.next() for _ in range(count)]


def rises_strictly(ids: list[str]) -> bool:
    return all(before < after for before, after in itertools.pairwise(ids))


def test_an_id_is_26_characters_of_crockford_base_32() -> None:
    for identifier in ids_of(IdSource(), 100):
        assert len(identifier) == ID_LENGTH == 26
        assert re.fullmatch(r"[0-7][0-9abcdefghjkmnpqrstvwxyz]{25}", identifier)


def test_an_id_begins_with_its_millisecond() -> None:
    assert IdSource(SetClock(1_000_000)).next()[:10] == "00000000z8"  # 1000 = 31 * 32 + 8
    assert IdSource(SetClock(1_000_000)).next() < IdSource(SetClock(1_001_000)).next()


def test_ids_of_one_millisecond_rise() -> None:
    assert rises_strictly(ids_of(IdSource(SetClock()), 10_000))


@given(st.lists(st.integers(min_value=0, max_value=2**47), min_size=2, max_size=50))
def test_ids_rise_while_the_clock_goes_forward_and_backward(instants_ms: Any) -> None:
    clock = SetClock()
    source = IdSource(clock)
    ids: list[str] = []
    for instant_ms in instants_ms:
        clock.us = instant_ms * 1000
        ids += ids_of(source, 2)
    assert rises_strictly(ids)


def test_two_sources_at_the_same_instant_do_not_meet() -> None:
    clock = SetClock()
    left, right = ids_of(IdSource(clock), 2_000), ids_of(IdSource(clock), 2_000)
    assert len({*left, *right}) == 4_000


def test_ids_rise_in_each_thread_and_none_is_made_twice() -> None:
    source, barrier = IdSource(SetClock()), threading.Barrier(8)
    found: list[list[str]] = []

    def make() -> None:
        barrier.wait()
        found.append(ids_of(source, 2_000))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(rises_strictly(ids) for ids in found)
    assert len({identifier for ids in found for identifier in ids}) == 16_000


def ids_of_a_forked_child(source: IdSource, count: int) -> list[str]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(20)  # a child that waits for a lock for ever dies of it
            os.write(writer, " ".join(ids_of(source, count)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text.split()


def test_a_forked_child_goes_on_above_all_earlier_ids_and_beside_its_parent() -> None:
    source = IdSource(SetClock())
    before = ids_of(source, 100)
    children = [ids_of_a_forked_child(source, 100) for _ in range(3)]
    after = ids_of(source, 100)
    for ids in (*children, after):
        assert rises_strictly(before + ids)
    assert len({*before, *after, *(identifier for ids in children for identifier in ids)}) == 500


def test_a_child_that_was_forked_while_a_thread_made_an_id_makes_ids() -> None:
    source = IdSource(SetClock())
    source.next()
    with source._lock:
        found = ids_of_a_forked_child(source, 3)
    assert len(found) == 3
    assert rises_strictly(found)


def test_a_source_is_let_go_when_nobody_holds_it() -> None:
    source = IdSource()
    watched = weakref.ref(source)
    del source
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("count", [1, 5_000])
def test_a_clock_that_stands_at_the_epoch_is_enough(count: Any) -> None:
    assert rises_strictly(ids_of(IdSource(SetClock(0)), count))
