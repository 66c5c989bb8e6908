"""A disk that is mounted read-only under a ledger."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import Site
from .invariants import rows
from .orders import case, http_order


def mount(*arguments: str) -> int:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    if mount("-t", "tmpfs", "-o", "size=16M", "tmpfs", str(place)):
        pytest.skip("mounting a disk is not permitted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_disk_that_is_read_only_stops_every_command_with_one_line_and_nothing_is_sent(
    tmp_path: Path, disk: Path
) -> None:
    site = Site(tmp_path / "site", ledger=disk / "evals.db")
    try:
        site.order(http_order(site.service, [case("a"), case("b", wait="gate")], if_unknown="repeat"))
        coordinator = site.run()
        site.wait_for("gate")
        assert mount("-o", "remount,ro", str(disk)) != 0, "the kernel refuses while a ledger is open to be written"
        coordinator.kill()
        assert mount("-o", "remount,ro", str(disk)) == 0
        sent = site.service.received()

        again = site.resume()
        assert again.ended() == 4, again.err
        assert len(again.err.strip().splitlines()) == 1, again.err
        assert "ledger.read_only" in again.err
        assert site.service.received() == sent

        assert mount("-o", "remount,rw", str(disk)) == 0
        site.service.go("gate")
        assert site.resume().ended() == 0
        assert site.counts() == {"selected": 2}
        assert rows(site.ledger, "PRAGMA integrity_check") == [("ok",)]
    finally:
        site.close()
