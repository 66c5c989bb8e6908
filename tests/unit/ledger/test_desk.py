"""The writing side looks where it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.ledger.errors import LedgerFailed
from tallystick.ledger.ledger import Ledger
from tests.unit.ledger.factories import new_run


@pytest.mark.parametrize("what", ["ledger.db", "ledger.db-wal"])
@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_nothing_more_is_acknowledged_once_a_file_of_the_ledger_is_not_at_its_place(
    tmp_path: Path, what: str, how: str
) -> None:
    path = tmp_path / what
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        new_run(ledger)
        content = path.read_bytes()
        kept = path.rename(tmp_path / "kept")
        if how == "removed":
            kept.unlink()
        elif how == "replaced":
            path.write_bytes(content)
        with pytest.raises(LedgerFailed, match="removed, moved or replaced") as told:
            ledger.write(lambda tx: tx.change("UPDATE runs SET active_us = 5", ()))
        assert str(path) in told.value.what
        if how == "moved":
            kept.rename(path)
            assert ledger.write(lambda tx: tx.change("UPDATE runs SET active_us = 5", ())) == 1


def test_a_statement_that_the_disk_fails_reaches_its_caller_as_an_error_of_the_ledger(ledger: Ledger) -> None:
    with pytest.raises(LedgerFailed, match="a statement failed"):
        ledger.write(lambda tx: tx.row("SELECT 1 FROM a_table_that_cannot_be_read"))
    assert ledger.write(lambda tx: tx.row("SELECT 1")) == (1,)
