"""C06: Ctrl-C once and twice, SIGTERM; with a call under way, one in a back-off and others that wait for their turn."""

from __future__ import annotations

import signal

import pytest

from .harness import KILLED, Coordinator, Site, until
from .invariants import check_invariants, rows
from .orders import case, http_order

REFUSED = "SELECT count(*) FROM dispatches WHERE state = 'refused'"


def busy(site: Site, *, if_unknown: str = "keep", grace_seconds: float = 30.0) -> Coordinator:
    """A run with one answer, one call under way and one in a back-off of an hour; the rest has not begun."""
    cases = [
        case("done"),
        case("under-way", sequence=[{"wait": "gate"}, {}]),
        # What the target asks for holds back every other request to it as well.
        case("backs-off", status=429, retry_after=3000),
        *(case(f"later-{number}") for number in range(4)),
    ]
    order = http_order(
        site.service,
        cases,
        if_unknown=if_unknown,
        concurrency=2,
        deadline_seconds=3600.0,
        grace_seconds=grace_seconds,
        attempts_max=9,
    )
    site.order(order)
    coordinator = site.run()
    site.wait_for("gate")
    until(lambda: rows(site.ledger, REFUSED)[0][0], "one is refused and backs off")
    return coordinator


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_c06_first_signal_stops_dispatching_and_lets_what_is_under_way_finish(
    site: Site, number: signal.Signals
) -> None:
    coordinator = busy(site)
    coordinator.signal(number)
    until(lambda: site.only("backs-off").state == "pending", "what sleeps is woken and given back")
    sent = site.service.received()
    site.service.go("gate")

    assert coordinator.ended() == 130
    assert "tallystick resume" in coordinator.out + coordinator.err, "it says how to go on"
    assert site.service.received() == sent, "nothing was sent after the signal"
    assert site.only("under-way").state == "selected"
    assert site.only("backs-off").state == "pending"
    assert site.outcome().state == "open"
    assert site.counts()["pending"] >= 4
    check_invariants(site.ledger, site.requests())


def test_c06_what_does_not_finish_in_the_grace_time_is_unknown(site: Site) -> None:
    coordinator = busy(site, grace_seconds=0.2)
    coordinator.signal(signal.SIGINT)
    assert coordinator.ended() == 130
    slot = site.only("under-way")
    assert (slot.state, slot.attempts[0].reason) == ("unknown", "stopped")
    check_invariants(site.ledger, site.requests())


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_c06_second_signal_leaves_at_once_and_what_is_under_way_is_unknown_on_the_next_open(
    site: Site, second: signal.Signals
) -> None:
    coordinator = busy(site, grace_seconds=3000.0)
    coordinator.signal(signal.SIGINT)
    coordinator.signal(second)

    def has_left() -> bool:
        # Two signals of one kind may arrive as one: an impatient hand goes on.
        if coordinator.process.poll() is None:
            coordinator.signal(second)
        return coordinator.process.poll() is not None

    until(has_left, "it leaves")
    assert coordinator.ended() in (130, KILLED, -second)
    check_invariants(site.ledger, site.requests(), at_rest=False)
    assert site.outcome().state == "open", "nothing partial is written as if it were final"

    assert site.resume("--limit", 1).ended() in (75, 3)
    assert site.only("under-way").state == "unknown"
    check_invariants(site.ledger, site.requests())


def test_c06_cancel_from_another_terminal_stops_as_the_first_signal_does(site: Site) -> None:
    coordinator = busy(site)
    assert site.start("cancel", "acceptance").ended() == 0
    site.service.go("gate")
    assert coordinator.ended() == 130
    assert site.only("under-way").state == "selected"
    check_invariants(site.ledger, site.requests())
