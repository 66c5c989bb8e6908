"""Syncing reaches as far as the system lets it, and every sync of the ledger goes this way."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from tallystick.ledger import durable

ROOT = Path(__file__).resolve().parents[3]
FULL = 51  # F_FULLFSYNC of macOS


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of the system, on one that knows F_FULLFSYNC."""
    made: list[str] = []
    monkeypatch.setattr(durable, "_FULL", FULL)
    monkeypatch.setattr(os, "fsync", lambda descriptor: made.append("fsync"))
    monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, what: made.append(f"fcntl {what}"))
    return made


def fails(number: int) -> None:
    raise OSError(number, os.strerror(number))


def test_where_more_than_fsync_is_needed_it_is_done(calls: list[str]) -> None:
    durable.sync(0)
    assert calls == [f"fcntl {FULL}"]


def test_where_the_file_system_does_not_know_it_fsync_is_what_there_is(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "fcntl", lambda *_: fails(errno.ENOTSUP))
    durable.sync(0)
    assert calls == ["fsync"]


def test_a_sync_that_fails_is_not_tried_in_a_weaker_way(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "fcntl", lambda *_: fails(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        durable.sync(0)
    assert calls == []


@pytest.mark.parametrize(("number", "is_raised"), [(errno.EIO, True), (errno.EINVAL, False)])
def test_only_a_file_system_that_cannot_sync_folders_is_let_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_raised: bool
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: fails(number))
    if is_raised:
        with pytest.raises(OSError, match="Input/output"):
            durable.sync_folder(tmp_path)
    else:
        durable.sync_folder(tmp_path)


def test_every_sync_of_the_ledger_goes_this_way() -> None:
    strays = [
        path.name
        for path in sorted((ROOT / "ledger").glob("*.py"))
        if path.name != "durable.py" and "fsync(" in path.read_text(encoding="utf-8")
    ]
    assert strays == []
