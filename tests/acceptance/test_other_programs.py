"""Other programs at the ledger's file, which know nothing of the turnstile: one that writes, and one that reads on."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from .harness import Site, until
from .invariants import check_invariants
from .orders import case, http_order


@contextlib.contextmanager
def another_program(site: Site) -> Iterator[sqlite3.Connection]:
    """A connection of another SQLite, as a shell on the file has it."""
    connection = sqlite3.connect(site.ledger, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def test_disk_c05_lock_of_another_program_is_waited_for_beyond_one_time_out_and_the_answer_is_kept(site: Site) -> None:
    site.order(http_order(site.service, [case("a", wait="gate"), case("b")], if_unknown="keep"))
    coordinator = site.run("--debug")
    site.wait_for("gate")
    with another_program(site) as program:
        program.execute("BEGIN IMMEDIATE")
        site.service.go("gate")
        until(lambda: "another program keeps the ledger locked" in coordinator.err, "the run says what it waits for")
        assert site.service.received() == 1, "nothing is sent whose intent cannot be committed"
        program.execute("ROLLBACK")

    assert coordinator.ended() == 0, coordinator.err
    assert site.counts() == {"selected": 2}
    assert site.service.received() == 2
    check_invariants(site.ledger, site.requests())


def test_disk_c05_reader_that_stays_for_the_whole_run_holds_up_nobody_and_sees_one_instant(site: Site) -> None:
    site.order(http_order(site.service, [case("a", wait="gate"), *(case(f"c{number}") for number in range(40))]))
    coordinator = site.run()
    site.wait_for("gate")
    with another_program(site) as program:
        program.execute("BEGIN")
        before = program.execute("SELECT count(*) FROM observations").fetchone()
        site.service.go("gate")
        assert coordinator.ended() == 0, coordinator.err
        assert program.execute("SELECT count(*) FROM observations").fetchone() == before == (0,)

    assert site.counts() == {"selected": 41}
    check_invariants(site.ledger, site.requests())
