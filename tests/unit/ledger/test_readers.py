"""Views of the ledger: ended when they are old and in the way of writers, and never before."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.ledger import driver
from tallystick.ledger.desk import size_of
from tallystick.ledger.errors import LedgerDamaged, LedgerUnreadable, ReadingEnded
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.readers import Reader, ReaderWatch
from tests.unit.ledger.batches import put
from tests.unit.ledger.factories import new_ledger, raw

PATIENCE_SECONDS = 60
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


def watch_of(ledger: Ledger) -> ReaderWatch:
    return ledger._shared.watch


def eager(ledger: Ledger) -> ReaderWatch:
    """Every view is old from its beginning, and the log always too large."""
    found = watch_of(ledger)
    found.seconds_max, found.bytes_max = -1.0, -1
    return found


def can_empty_the_log(ledger: Ledger) -> bool:
    connection = raw(ledger.path)
    with contextlib.closing(connection):
        connection.execute("PRAGMA busy_timeout=0").fetchone()
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def test_an_old_view_in_the_way_of_writers_is_ended_and_lets_the_log_be_emptied(ledger: Ledger) -> None:
    ledger.write(put("one"))
    with ledger.reading() as reader:
        assert reader.row("SELECT count(*) FROM facts WHERE name = 'one'") == (1,)
        ledger.write(put("two"))
        assert not can_empty_the_log(ledger), "a view keeps the log"
        eager(ledger).look()
        assert can_empty_the_log(ledger)
        with pytest.raises(ReadingEnded) as caught:
            reader.row("SELECT 1")
    assert "backup" in caught.value.remedy
    with ledger.reading() as reader:
        assert reader.row("SELECT count(*) FROM facts WHERE name = 'two'") == (1,)


@pytest.mark.parametrize(("age", "log"), [(10.5, 1_000), (9.5, 10**9)], ids=["small-log", "young"])
def test_a_view_in_nobodys_way_may_last(tmp_path: Path, age: float, log: int) -> None:
    with new_ledger(tmp_path) as ledger, ledger.reading() as reader:
        watch = ReaderWatch(lambda: log, clock=lambda: reader.began + age)
        watch.add(reader)
        watch.look()
        watch.close()
        assert reader.row("SELECT 1") == (1,)


def test_a_view_that_is_old_while_the_log_is_large_is_ended(ledger: Ledger) -> None:
    with ledger.reading() as reader:
        watch = ReaderWatch(lambda: 10**9, clock=lambda: reader.began + 10.5)
        watch.add(reader)
        watch.look()
        watch.close()
        assert reader.is_ended


def test_rows_that_are_being_gone_through_end_with_their_view(ledger: Ledger) -> None:
    for number in range(200):
        ledger.write(put(f"{number}"))

    def through() -> Iterator[str]:
        with ledger.reading() as reader:
            for (name,) in reader.each("SELECT name FROM facts"):
                yield name

    names = through()
    next(names)
    eager(ledger).look()
    assert can_empty_the_log(ledger)
    with pytest.raises(ReadingEnded):
        list(names)


def test_a_statement_that_runs_is_interrupted(ledger: Ledger) -> None:
    running, ends = threading.Event(), []

    def count(reader: Reader) -> None:
        try:
            reader.row(ENDLESS)
        except ReadingEnded as problem:
            ends.append(problem)

    with ledger.reading() as reader:
        reader._connection.set_progress_handler(running.set, 1_000)
        thread = threading.Thread(target=count, args=(reader,), daemon=True)
        thread.start()
        assert running.wait(PATIENCE_SECONDS)
        eager(ledger).look()
        thread.join(PATIENCE_SECONDS)
    assert len(ends) == 1


def test_a_view_for_the_whole_run_does_not_let_the_log_grow_without_bound(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, looked = watch_of(ledger), threading.Event()
    look = watch.look

    def looking() -> None:
        look()
        looked.set()

    monkeypatch.setattr(watch, "look", looking)
    watch.seconds_max, watch.bytes_max = 0.0, 1 << 20
    with ledger.reading() as reader:
        assert reader.row("SELECT count(*) FROM facts")[0] >= 0
        for number in range(20):
            ledger.write(put(f"before {number}", "x" * 100_000))
        looked.clear()
        assert looked.wait(PATIENCE_SECONDS), "the thread of the watch looks"
        assert reader.is_ended
        large = size_of(ledger.path.with_name(ledger.path.name + "-wal"))
        desk = ledger._shared._desk
        assert desk is not None
        ledger.write(lambda tx: None)
        desk.checkpoint()
        for number in range(20):
            ledger.write(put(f"after {number}", "x" * 100_000))
        assert size_of(ledger.path.with_name(ledger.path.name + "-wal")) <= large + 200_000


def test_a_connection_whose_view_was_ended_is_not_used_again(ledger: Ledger) -> None:
    with ledger.reading() as reader:
        ended = reader._connection
        eager(ledger).look()
    watch_of(ledger).bytes_max = 10**9
    with ledger.reading() as reader:
        assert reader._connection is not ended


def test_a_file_that_cannot_be_read_and_a_damaged_one_are_told_apart(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = driver.sqlite.OperationalError("unable to open database file")

    def fails(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr(driver, "connect", fails)
    problem.sqlite_errorcode = 14
    with pytest.raises(LedgerUnreadable, match="could not be read"), ledger.reading():
        pass
    problem.sqlite_errorcode = 11
    with pytest.raises(LedgerDamaged, match="damaged"), ledger.reading():
        pass
    problem.sqlite_errorcode = 1
    with pytest.raises(driver.sqlite.OperationalError), ledger.reading():
        pass
