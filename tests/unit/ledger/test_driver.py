"""Every connection has the settings that durability needs, and one that does not take them is refused."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger import driver
from tallystick.ledger.driver import Connection
from tallystick.ledger.errors import LedgerFailed
from tallystick.ledger.ledger import Ledger, Reader
from tests.unit.ledger.children import Child
from tests.unit.ledger.factories import SETTINGS, empty_file, new_run, raw


def settings_of(execute: Any) -> dict[str, Any]:
    return {name: execute(f"PRAGMA {name}").fetchone()[0] for name in SETTINGS}


class Deaf:
    """A connection on which one setting cannot be made."""

    def __init__(self, connection: Connection, setting: str) -> None:
        self._connection = connection
        self._setting = setting

    def execute(self, sql: str) -> Any:
        return self._connection.execute("SELECT 1" if re.match(rf"PRAGMA {self._setting}=", sql) else sql)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    opened = raw(empty_file(tmp_path))
    opened.execute("PRAGMA journal_mode=DELETE").fetchone()
    opened.execute("PRAGMA synchronous=OFF").fetchone()
    yield opened
    opened.close()


def test_the_writer_has_every_setting(ledger: Ledger) -> None:
    assert ledger.write(lambda tx: settings_of(tx.execute)) == SETTINGS


def test_a_reader_has_every_setting_and_cannot_write(ledger: Ledger) -> None:
    new_run(ledger)
    with ledger.reading() as reader:
        assert settings_of(reader._connection.execute) == SETTINGS
        with pytest.raises(driver.SqliteError, match="readonly"):
            reader._connection.execute("DELETE FROM runs")


def test_a_reader_that_was_used_before_still_has_every_setting(ledger: Ledger) -> None:
    for _ in range(2):
        with ledger.reading() as reader:
            assert settings_of(reader._connection.execute) == SETTINGS


def test_another_thread_has_every_setting(ledger: Ledger) -> None:
    found: list[dict[str, Any]] = []

    def look() -> None:
        found.append(ledger.write(lambda tx: settings_of(tx.execute)))
        with ledger.reading() as reader:
            found.append(settings_of(reader._connection.execute))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [SETTINGS, SETTINGS]


def test_another_process_has_every_setting(ledger: Ledger) -> None:
    with Child("tell_settings", ledger.path) as child:
        found = child.lines()
    assert found == [f"{who} {name} {value}" for who in ("writer", "reader") for name, value in SETTINGS.items()]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_connection_that_does_not_take_a_setting_is_refused(setting: str, connection: Connection) -> None:
    connection.execute("PRAGMA wal_autocheckpoint=1000").fetchone()
    connection.execute("PRAGMA foreign_keys=OFF").fetchone()
    with pytest.raises(LedgerFailed, match=setting):
        driver.harden(Deaf(connection, setting))


def test_a_connection_that_stays_writable_is_refused_to_readers(connection: Connection) -> None:
    with pytest.raises(LedgerFailed, match="query_only"):
        driver.harden(Deaf(connection, "query_only"), query_only=True)


def test_a_store_without_write_ahead_logging_is_refused() -> None:
    memory = driver.sqlite.connect(":memory:")
    with pytest.raises(LedgerFailed, match="journal_mode is 'memory' and not 'wal'"):
        driver.harden(memory)
    memory.close()


def test_a_path_with_signs_of_an_address_is_opened_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory&b#c%20d ü.db"
    with Ledger.open(path, create=True) as ledger:
        new_run(ledger)
    assert path.stat().st_size > 0


def test_connecting_creates_nothing_unless_asked(tmp_path: Path) -> None:
    with pytest.raises(driver.SqliteError):
        driver.connect(tmp_path / "absent.db")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_is_one_instant_whatever_is_written_meanwhile(ledger: Ledger) -> None:
    new_run(ledger)
    with ledger.reading() as reader:
        assert runs(reader) == 1
        new_run(ledger)
        assert runs(reader) == 1
    with ledger.reading() as reader:
        assert runs(reader) == 2


def runs(reader: Reader) -> int:
    return int(reader.row("SELECT count(*) FROM runs")[0])
