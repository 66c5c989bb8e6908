"""C05: a disk that fills up under the ledger."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.small_disk import SmallDisk, small_disk

from .harness import Site
from .invariants import check_invariants, rows
from .orders import case, http_order

SIZE = 16 * 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", size=SIZE) as made:
        yield made


def order(site: Site) -> None:
    cases = [case("a"), case("b", wait="gate"), *(case(f"c{number}", text="x" * 3000) for number in range(30))]
    site.order(http_order(site.service, cases, if_unknown="repeat"))


def test_disk_c05_full_disk_stops_the_run_before_its_next_dispatch(tmp_path: Path, disk: SmallDisk) -> None:
    site = Site(tmp_path / "site", ledger=disk.folder / "evals.db")
    try:
        order(site)
        coordinator = site.run()
        site.wait_for("gate")
        disk.fill()
        sent = site.service.received()
        site.service.go("gate")

        assert coordinator.ended() == 5
        assert len(coordinator.err.strip().splitlines()) == 1, coordinator.err
        assert "full" in coordinator.err
        assert "resume" in coordinator.err
        assert "locked" not in coordinator.err
        assert site.service.received() == sent, "nothing is dispatched after the first commit that failed"

        # While the disk is full it stays so, and nothing is sent either.
        again = site.resume()
        assert again.ended() == 5
        assert "full" in again.err
        assert len(again.err.strip().splitlines()) == 1, again.err
        assert site.service.received() == sent

        disk.free()
        check_invariants(site.ledger, site.requests(), at_rest=False)
        assert site.resume().ended() == 0
        assert site.counts() == {"selected": 32}
        assert rows(site.ledger, "PRAGMA integrity_check") == [("ok",)]
        # What was received and could not be kept is asked again, as its target declares.
        assert site.service.received() == sent + 31
        check_invariants(site.ledger, site.requests())
    finally:
        site.close()


def test_disk_c05_write_that_fails_by_a_limit_stops_the_run(site: Site) -> None:
    """The same where no disk may be mounted: a limit on the size of files, which SQLite meets as an I/O error."""
    order(site)
    program = (
        "import resource, runpy, sys; limit = int(sys.argv.pop(1));"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)); runpy.run_module('tallystick', run_name='__main__')"
    )
    site.run(crashpoint="dispatch.outcome.committed").died_at_its_point()
    wal = site.ledger.with_name(site.ledger.name + "-wal")
    limit = max(wal.stat().st_size, site.ledger.stat().st_size) + 40_000

    limited = site.start_program(sys.executable, "-c", program, limit, "resume", "--ledger", site.ledger)
    site.service.go("gate")
    assert limited.ended() == 5, limited.err
    assert len(limited.err.strip().splitlines()) == 1, limited.err
    (sent,) = {site.service.received()}
    known = rows(site.ledger, "SELECT count(*) FROM dispatches")[0][0]
    assert sent <= known

    check_invariants(site.ledger, site.requests(), at_rest=False)
    assert site.resume().ended() == 0
    assert site.counts() == {"selected": 32}
    check_invariants(site.ledger, site.requests())
