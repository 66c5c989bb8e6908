"""Two ledgers of one host and one device: who has it, who waits, and what a death, a freeze and a reboot change."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tallystick.ledger import leases
from tallystick.ledger.errors import DeviceLocksUnusable, DeviceQuarantined, LeaseLost
from tallystick.ledger.host_claims import Claimed, ClaimedElsewhere, HostClaims
from tallystick.ledger.host_folder import default_folder, host_folder
from tallystick.ledger.ledger import Ledger
from tests.unit.ledger.children import Child
from tests.unit.ledger.devices import LEASE_US, device, granted_to
from tests.unit.ledger.factories import HandClock, new_ledger

A, B, C = device("atlas:A"), device("atlas:B"), device("atlas:C")
PLAIN = device("line:1", compares=False)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "host"


@pytest.fixture
def ledgers(tmp_path: Path, clock: HandClock) -> Iterator[list[Ledger]]:
    opened = [new_ledger(tmp_path, f"{name}.db", clock=clock) for name in ("one", "two", "three")]
    yield opened
    for one in opened:
        one.close()


@pytest.fixture
def claims(ledgers: list[Ledger], place: Path) -> list[HostClaims]:
    return [HostClaims(one, folder=place) for one in ledgers]


def in_the_way(found: Claimed | ClaimedElsewhere) -> list[tuple[str, str, bool]]:
    """Resource, name of the ledger and whether it only waits, of everybody in the way."""
    assert isinstance(found, ClaimedElsewhere)
    return [
        (one.resource, Path(one.entry.ledger_path).name if one.entry else "?", one.is_waiting)
        for one in found.obstacles
    ]


def test_a_set_that_another_ledger_has_is_claimed_when_it_is_given_back(
    ledgers: list[Ledger], claims: list[HostClaims]
) -> None:
    here, there = granted_to(ledgers[0], A, B), granted_to(ledgers[1], B)
    assert claims[0].take(here, [A, B]) == Claimed(here.set_id, {"atlas:A": 1, "atlas:B": 1})
    assert claims[0].take(here, [A, B]) == Claimed(here.set_id, {"atlas:A": 1, "atlas:B": 1})
    assert not claims[0].is_wanted(here.set_id)
    assert in_the_way(claims[1].take(there, [B])) == [("atlas:B", "one.db", False)]
    assert claims[0].is_wanted(here.set_id)
    claims[0].release(here.set_id)
    claims[0].release(here.set_id)
    assert claims[1].take(there, [B]) == Claimed(there.set_id, {"atlas:B": 2})


def test_nothing_of_a_set_is_claimed_when_one_device_of_it_is_not_to_be_had(
    ledgers: list[Ledger], claims: list[HostClaims]
) -> None:
    holder, both = granted_to(ledgers[0], B), granted_to(ledgers[1], A, B)
    claims[0].take(holder, [B])
    claims[1].take(both, [A, B])
    assert [one.is_waiting for one in claims[2].holders("atlas:A")] == [True]


def test_sets_that_want_the_same_devices_from_two_ledgers_do_not_wait_for_each_other(
    ledgers: list[Ledger], claims: list[HostClaims]
) -> None:
    holder = granted_to(ledgers[2], A)
    claims[2].take(holder, [A])
    one, two = granted_to(ledgers[0], A, B), granted_to(ledgers[1], B, A)
    assert isinstance(claims[0].take(one, [A, B]), ClaimedElsewhere)
    assert isinstance(claims[1].take(two, [B, A]), ClaimedElsewhere)
    claims[2].release(holder.set_id)
    assert in_the_way(claims[1].take(two, [B, A])) == [("atlas:A", "one.db", True), ("atlas:B", "one.db", True)]
    assert isinstance(claims[0].take(one, [A, B]), Claimed)


def test_ledgers_are_served_in_the_order_of_their_tickets(ledgers: list[Ledger], claims: list[HostClaims]) -> None:
    granted = [granted_to(ledger, A) for ledger in ledgers]
    for mine, held in zip(claims, granted, strict=True):
        mine.take(held, [A])
    claims[0].release(granted[0].set_id)
    assert in_the_way(claims[2].take(granted[2], [A])) == [("atlas:A", "two.db", True)]
    ledgers[0].write(lambda tx: leases.release(tx, granted[0].set_id))
    again = granted_to(ledgers[0], A)
    assert [waits for _, _, waits in in_the_way(claims[0].take(again, [A]))] == [True, True]
    assert isinstance(claims[1].take(granted[1], [A]), Claimed)


def test_who_stopped_asking_is_passed_over(ledgers: list[Ledger], claims: list[HostClaims], clock: HandClock) -> None:
    granted = [granted_to(ledger, A) for ledger in ledgers]
    for mine, held in zip(claims, granted, strict=True):
        mine.take(held, [A])
    claims[0].release(granted[0].set_id)
    clock.us += LEASE_US + 1
    assert isinstance(claims[2].take(granted[2], [A]), Claimed)


# A holder that stands still.


def test_a_claim_that_has_run_out_counts_no_more_where_the_device_compares_fences(
    ledgers: list[Ledger], claims: list[HostClaims], clock: HandClock
) -> None:
    mine, plain = granted_to(ledgers[0], A), granted_to(ledgers[0], PLAIN)
    claims[0].take(mine, [A])
    claims[0].take(plain, [PLAIN])
    clock.us += LEASE_US + 1
    theirs, theirs_plain = granted_to(ledgers[1], A), granted_to(ledgers[1], PLAIN)
    assert claims[1].take(theirs, [A]) == Claimed(theirs.set_id, {"atlas:A": 2})
    assert in_the_way(claims[1].take(theirs_plain, [PLAIN])) == [("line:1", "one.db", False)]


def test_a_renewed_claim_holds_and_one_that_has_run_out_cannot_be_renewed(
    ledgers: list[Ledger], claims: list[HostClaims], clock: HandClock
) -> None:
    mine = granted_to(ledgers[0], A)
    claims[0].take(mine, [A])
    for _ in range(3):
        clock.us += LEASE_US
        claims[0].renew(mine.set_id)
        assert isinstance(claims[1].take(granted_to(ledgers[1], A), [A]), ClaimedElsewhere)
        ledgers[1].write(lambda tx: tx.change("UPDATE leases SET state = 'lost' WHERE state = 'held'", ()))
    clock.us += LEASE_US + 1
    with pytest.raises(LeaseLost, match="run out"):
        claims[0].renew(mine.set_id)


class FreezingClock(HandClock):
    """A clock of a process that stands still for longer than its lease between its second look and the next."""

    looks = 0

    def boot_ns(self) -> int:
        type(self).looks += 1
        if type(self).looks == 3:
            self.us += 2 * LEASE_US
        return super().boot_ns()


def test_a_holder_that_is_frozen_between_looking_and_writing_does_not_revive_its_claim(
    tmp_path: Path, place: Path, ledgers: list[Ledger], claims: list[HostClaims]
) -> None:
    mine = granted_to(ledgers[0], A)
    claims[0].take(mine, [A])
    frozen = FreezingClock()
    FreezingClock.looks = 0
    claims[0]._ledger._shared.clock = frozen
    with pytest.raises(LeaseLost, match="while it was renewed"):
        claims[0].renew(mine.set_id)


@pytest.mark.parametrize("step_us", [-3_600_000_000, 3_600_000_000])
def test_a_stepped_wall_clock_neither_frees_nor_prolongs_a_claim(
    step_us: int, ledgers: list[Ledger], claims: list[HostClaims], clock: HandClock
) -> None:
    mine, theirs = granted_to(ledgers[0], A), granted_to(ledgers[1], A)
    claims[0].take(mine, [A])
    clock.step(step_us)
    assert isinstance(claims[1].take(theirs, [A]), ClaimedElsewhere)
    clock.us += LEASE_US + 1
    assert isinstance(claims[1].take(theirs, [A]), Claimed)


# The same ledger again.


def test_a_newer_lease_of_the_same_ledger_stands_above_an_older_claim(
    ledgers: list[Ledger], place: Path, clock: HandClock
) -> None:
    ledger = ledgers[0]
    old, new = HostClaims(ledger, folder=place), HostClaims(ledger, folder=place)
    first = granted_to(ledger, A)
    old.take(first, [A])
    clock.us += LEASE_US + 1
    second = granted_to(ledger, A)
    assert new.take(second, [A]) == Claimed(second.set_id, {"atlas:A": 2})
    old.release(first.set_id)
    with pytest.raises(LeaseLost, match="newer lease"):
        old.take(first, [A])


# Deaths.


def test_the_claim_of_a_killed_process_is_free_and_that_of_a_stopped_one_is_not(tmp_path: Path, place: Path) -> None:
    with (
        new_ledger(tmp_path, "mine.db") as ledger,
        Child("claim_devices", tmp_path / "theirs.db", place, "line:1") as child,
    ):
        mine, claims = granted_to(ledger, PLAIN), HostClaims(ledger, folder=place)
        assert child.line() == "claimed 1"
        child.stop()
        assert in_the_way(claims.take(mine, [PLAIN])) == [("line:1", "theirs.db", False)]
        child.kill()
        assert claims.take(mine, [PLAIN]) == Claimed(mine.set_id, {"line:1": 2})
        assert len(list((host_folder(place).device("line:1") / "claims").iterdir())) == 1


def test_a_process_that_is_killed_at_its_claim_leaves_the_device_to_the_next(tmp_path: Path, place: Path) -> None:
    with new_ledger(tmp_path, "mine.db") as ledger:
        with Child("claim_devices", tmp_path / "theirs.db", place, "line:1", crashpoint="lease.claimed") as child:
            assert child.end() == -9
        mine = granted_to(ledger, PLAIN)
        assert HostClaims(ledger, folder=place).take(mine, [PLAIN]) == Claimed(mine.set_id, {"line:1": 2})


def test_a_process_that_is_stopped_inside_the_gate_is_ended_and_the_next_one_passes(
    tmp_path: Path, place: Path
) -> None:
    with new_ledger(tmp_path, "mine.db") as ledger, Child("stand_in_gate", place) as child:
        assert child.line() == "inside"
        child.stop()
        short = device("line:1", compares=False, lease_ms=150)
        mine = granted_to(ledger, short)
        assert isinstance(HostClaims(ledger, folder=place).take(mine, [short]), Claimed)
        assert child.end() == -9


def test_a_forked_child_neither_has_nor_drops_the_claims_of_its_parent(tmp_path: Path, place: Path) -> None:
    with Child("claim_and_fork", tmp_path / "theirs.db", place, "line:1") as child:
        assert [child.line(), child.line()] == ["claimed 1", "the child saw a stranger"]
        with new_ledger(tmp_path, "mine.db") as ledger:
            mine = granted_to(ledger, PLAIN)
            assert isinstance(HostClaims(ledger, folder=place).take(mine, [PLAIN]), ClaimedElsewhere)


# Fences and operators.


def test_fences_do_not_fall_between_ledgers(ledgers: list[Ledger], claims: list[HostClaims]) -> None:
    fences = []
    for index in (0, 1, 0, 2, 1):
        held = granted_to(ledgers[index], A)
        found = claims[index].take(held, [A])
        assert isinstance(found, Claimed)
        fence = found.fences["atlas:A"]
        lease_id = held.leases[0].lease_id
        raised = ledgers[index].write(lambda tx, i=lease_id, f=fence: leases.raise_fence(tx, i, seen=f - 1))  # type: ignore[misc]
        assert raised == fence
        fences.append(fence)
        claims[index].release(held.set_id)
        ledgers[index].write(lambda tx, s=held.set_id: leases.release(tx, s))  # type: ignore[misc]
    assert fences == [1, 2, 3, 4, 5]


def test_a_fence_that_was_raised_is_remembered_on_the_host(ledgers: list[Ledger], claims: list[HostClaims]) -> None:
    mine = granted_to(ledgers[0], A)
    claims[0].take(mine, [A])
    claims[0].raise_fence(mine.set_id, "atlas:A", 42)
    assert claims[0].take(mine, [A]) == Claimed(mine.set_id, {"atlas:A": 42})
    claims[0].release(mine.set_id)
    theirs = granted_to(ledgers[1], A)
    assert claims[1].take(theirs, [A]) == Claimed(theirs.set_id, {"atlas:A": 43})


def test_a_claim_that_an_operator_revoked_counts_no_more(ledgers: list[Ledger], claims: list[HostClaims]) -> None:
    mine, theirs = granted_to(ledgers[0], PLAIN), granted_to(ledgers[1], PLAIN)
    claims[0].take(mine, [PLAIN])
    assert claims[1].revoke("line:1") == 0
    assert isinstance(claims[1].take(theirs, [PLAIN]), ClaimedElsewhere)
    assert claims[0].revoke("line:1") == 1
    assert isinstance(claims[1].take(theirs, [PLAIN]), Claimed)
    claims[0].release(mine.set_id)
    claims[1].take(granted_to(ledgers[1], B), [B])


def test_a_quarantine_counts_for_every_ledger_of_the_host(ledgers: list[Ledger], claims: list[HostClaims]) -> None:
    claims[0].quarantine("atlas:A", "it smokes (by me)")
    theirs = granted_to(ledgers[1], A)
    with pytest.raises(DeviceQuarantined, match="it smokes"):
        claims[1].take(theirs, [A])
    assert claims[1].clear("atlas:A")
    assert not claims[1].clear("atlas:A")
    assert isinstance(claims[1].take(theirs, [A]), Claimed)


# The folder.


def test_looking_at_a_device_makes_nothing(place: Path, claims: list[HostClaims]) -> None:
    assert claims[0].holders("atlas:A") == ()
    assert claims[0].quarantined("atlas:A") is None
    assert not place.exists()


def test_the_folder_is_open_to_all_and_no_name_of_a_device_leads_out_of_it(
    ledgers: list[Ledger], claims: list[HostClaims], place: Path, clock: HandClock
) -> None:
    old = os.umask(0o077)
    try:
        evil = device("../../etc/passwd")
        claims[0].take(granted_to(ledgers[0], evil), [evil])
    finally:
        os.umask(old)
    found = list(place.rglob("*"))
    assert all(stat.S_IMODE(path.stat().st_mode) == (0o1777 if path.is_dir() else 0o666) for path in (place, *found))
    assert {len(path.name) for path in place.iterdir() if path.is_dir()} == {64}
    assert not any("passwd" in path.name for path in found)


@pytest.mark.parametrize("content", [b"", b"garbage", b"00000000 4 {}xx", b"\xff\xfe"])
def test_an_entry_that_cannot_be_read_counts_as_long_as_it_is_locked(
    content: bytes, tmp_path: Path, place: Path, ledgers: list[Ledger], claims: list[HostClaims]
) -> None:
    folder = host_folder(place).device("line:1") / "claims"
    claims[0].take(granted_to(ledgers[0], C), [C])
    folder.mkdir(parents=True)
    (folder / "strange").write_bytes(content)
    mine = granted_to(ledgers[1], PLAIN)
    with Child("hold_worker_lock", folder / "strange") as child:
        assert child.line() == "held"
        assert in_the_way(claims[1].take(mine, [PLAIN])) == [("line:1", "?", False)]
        child.kill()
    assert isinstance(claims[1].take(mine, [PLAIN]), Claimed)
    assert not (folder / "strange").exists()


def test_a_folder_that_cannot_be_used_is_told_in_one_line(tmp_path: Path, ledger: Ledger) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(DeviceLocksUnusable, match="TALLYSTICK_DEVICE_LOCKS"):
        HostClaims(ledger, folder=tmp_path / "file").take(granted_to(ledger, A), [A])


@pytest.mark.parametrize(
    "does",
    [
        lambda claims: claims.holders("atlas:A"),
        lambda claims: claims.quarantined("atlas:A"),
        lambda claims: claims.highest_fence("atlas:A"),
        lambda claims: claims.quarantine("atlas:A", "smoke"),
        lambda claims: claims.clear("atlas:A"),
        lambda claims: claims.revoke("atlas:A"),
    ],
)
@pytest.mark.parametrize("is_file", [True, False], ids=["the folder is a file", "the files are folders"])
def test_looking_and_deciding_say_also_that_the_folder_cannot_be_used(
    tmp_path: Path, ledger: Ledger, is_file: bool, does: Callable[[HostClaims], object]
) -> None:
    if is_file:
        (tmp_path / "host").write_text("no folder")
    else:
        its = host_folder(tmp_path / "host").device("atlas:A")
        for name in ("fence", "quarantine"):
            (its / name).mkdir(parents=True)
        for name in ("claims", "line"):
            (its / name).write_text("no folder")
    with pytest.raises(DeviceLocksUnusable, match="TALLYSTICK_DEVICE_LOCKS"):
        does(HostClaims(ledger, folder=tmp_path / "host"))


def test_what_is_no_number_in_place_of_a_fence_counts_as_none(
    place: Path, ledgers: list[Ledger], claims: list[HostClaims]
) -> None:
    claims[0].quarantine("atlas:A", "smoke")
    claims[0].clear("atlas:A")
    (host_folder(place).device("atlas:A") / "fence").write_text("\u00b2")  # a digit to str.isdigit, and not to int
    mine = granted_to(ledgers[0], A)
    assert claims[0].take(mine, [A]) == Claimed(mine.set_id, {"atlas:A": 1})


def test_a_link_in_place_of_a_file_is_not_followed(
    tmp_path: Path, place: Path, ledgers: list[Ledger], claims: list[HostClaims]
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    claims[0].take(granted_to(ledgers[0], C), [C])
    folder = host_folder(place).device("atlas:A")
    folder.mkdir()
    (folder / "fence").symlink_to(precious)
    with pytest.raises(DeviceLocksUnusable):
        claims[0].take(granted_to(ledgers[0], A), [A])
    assert precious.read_text() == "as it was"


@pytest.mark.parametrize("what", ["link", "folder", "pipe"])
def test_what_is_no_file_of_ours_is_passed_over_and_never_waited_for(
    what: str, tmp_path: Path, place: Path, ledgers: list[Ledger], claims: list[HostClaims]
) -> None:
    claims[0].take(granted_to(ledgers[0], C), [C])
    folder = host_folder(place).device("atlas:A")
    for strange in (folder / "claims" / "strange", folder / "line" / "strange"):
        strange.parent.mkdir(parents=True)
        make = {"link": lambda path: path.symlink_to(tmp_path), "folder": Path.mkdir, "pipe": os.mkfifo}
        make[what](strange)
    assert isinstance(claims[0].take(granted_to(ledgers[0], A), [A]), Claimed)
    assert [one.entry is not None for one in claims[1].holders("atlas:A")] == [True]


def test_a_claim_of_another_boot_has_run_out_and_one_of_another_host_never_does(
    ledgers: list[Ledger], claims: list[HostClaims], place: Path, clock: HandClock
) -> None:
    mine = granted_to(ledgers[0], A)
    claims[0].take(mine, [A])
    (found,) = host_folder(place).entries(host_folder(place).device("atlas:A") / "claims")
    assert found.entry is not None

    def is_said_by(**changes: Any) -> bool:
        """Whether the claim counts when its process says this of itself."""
        assert found.entry is not None
        process = attrs.evolve(found.entry.process, **changes)
        host_folder(place).rewrite(found.path, attrs.evolve(found.entry, process=process))
        return bool(claims[1].holders("atlas:A"))

    assert is_said_by()
    assert not is_said_by(boot_id="another")
    clock.us += 10 * LEASE_US
    assert not is_said_by()
    assert is_said_by(host="elsewhere", boot_id="another")


def test_the_folder_is_the_named_one_or_one_that_all_users_share(tmp_path: Path) -> None:
    assert default_folder({"TALLYSTICK_DEVICE_LOCKS": str(tmp_path)}) == tmp_path
    with pytest.raises(DeviceLocksUnusable, match="is relative"):
        default_folder({"TALLYSTICK_DEVICE_LOCKS": "locks"})
    elsewhere = default_folder({"TMPDIR": str(tmp_path)})
    assert elsewhere.name == "tallystick-devices"
    assert tmp_path not in elsewhere.parents


def test_a_lease_that_waits_for_another_ledger_can_be_given_up(ledgers: list[Ledger], claims: list[HostClaims]) -> None:
    mine, theirs = granted_to(ledgers[0], A), granted_to(ledgers[1], A)
    claims[0].take(mine, [A])
    claims[1].take(theirs, [A])
    claims[1].release(theirs.set_id)
    assert not claims[0].is_wanted(mine.set_id)
    assert [one.is_waiting for one in claims[2].holders("atlas:A")] == [False]
