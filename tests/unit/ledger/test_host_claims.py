"""Two ledgers of one host and one device: who has it, who waits, and what a death, a freeze and a reboot change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.ledger.host_claims import Claimed, ClaimedElsewhere, HostClaims
from tallystick.ledger.ledger import Ledger
from tests.unit.ledger.devices import device, granted_to
from tests.unit.ledger.factories import HandClock, new_ledger

A, B = device("atlas:A"), device("atlas:B")


@pytest.fixture
def other(tmp_path: Path, clock: HandClock) -> Iterator[Ledger]:
    with new_ledger(tmp_path, "other.db", clock=clock) as opened:
        yield opened


def test_a_set_that_another_ledger_has_is_claimed_when_it_is_given_back(
    tmp_path: Path, ledger: Ledger, other: Ledger
) -> None:
    mine, theirs = HostClaims(ledger, folder=tmp_path / "host"), HostClaims(other, folder=tmp_path / "host")
    here, there = granted_to(ledger, A, B), granted_to(other, B)
    assert mine.take(here, [A, B]) == Claimed(here.set_id, {"atlas:A": 1, "atlas:B": 1})
    blocked = theirs.take(there, [B])
    assert isinstance(blocked, ClaimedElsewhere)
    assert [one.entry.ledger_path for one in blocked.obstacles if one.entry] == [str(ledger.path)]
    assert mine.is_wanted(here.set_id)
    mine.release(here.set_id)
    assert theirs.take(there, [B]) == Claimed(there.set_id, {"atlas:B": 2})
