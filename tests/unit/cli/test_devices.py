"""The board of devices, the page of one, and what an operator may decide."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tallystick.ledger import attempts, device_care, leases
from tallystick.ledger.host_claims import HostClaims
from tallystick.ledger.lease_records import Granted
from tallystick.ledger.ledger import Ledger
from tests.unit.cli.project import Project
from tests.unit.ledger.children import Child
from tests.unit.ledger.devices import (
    attempt,
    device,
    granted_to,
    held_under,
    lease_states,
    line_up,
    other_worker,
)
from tests.unit.ledger.factories import intent, new_run

A = device("atlas:SN-42", lease_ms=3_600_000)
PLAIN = device("line:1", compares=False, lease_ms=3_600_000)


@pytest.fixture
def ledger(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    monkeypatch.setenv("TALLYSTICK_DEVICE_LOCKS", str(project.folder / "host"))
    with Ledger.open(project.ledger_path, create=True) as opened:
        yield opened


def used(ledger: Ledger, granted: Granted, run_key: int, slot_no: int = 1) -> str:
    """A request in flight under the set; its id."""
    wanted = intent(run_key, slot_no, held=held_under(granted))
    return ledger.write(lambda tx: attempts.begin(tx, wanted)).key.call_id


def test_a_folder_of_device_locks_that_cannot_be_used_is_told_before_a_run_is_recorded(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("plain.txt", "no folder")
    monkeypatch.setenv("TALLYSTICK_DEVICE_LOCKS", str(project.folder / "plain.txt" / "locks"))
    python = '[target]\nkind = "python"\nfile = "target.py"\nfunction = "answer"\n'
    atlas = '[target]\nkind = "atlas"\nurl = "http://127.0.0.1:9"\nserial = "SN-42"\n'
    project.order()
    order = (project.folder / "order.toml").read_text()
    assert python in order
    project.write("order.toml", order.replace(python, atlas))
    done = project.give("run", "order.toml", "--new")
    assert (done.status, "through which runs share devices, cannot be used" in done.err) == (4, True)
    assert project.give("runs", "--json").document["runs"] == []


# Looking.


def test_a_ledger_without_devices_says_so(project: Project, ledger: Ledger) -> None:
    assert "has had no devices" in project.give("device", "list").out
    assert project.give("device", "list", "--json").document["devices"] == []


def test_the_board_shows_who_has_each_device_and_what_to_do(project: Project, ledger: Ledger) -> None:
    run = new_run(ledger)
    held = granted_to(ledger, A, run_key=run.run_key)
    call = used(ledger, held, run.run_key)
    line_up(ledger, A, PLAIN)
    done = project.give("device", "list")
    assert done.status == 0
    assert run.run_id in done.out
    assert "wait, or ask its run to stop" in done.out
    atlas, line = project.give("device", "list", "--json").document["devices"]
    assert (atlas["resource"], atlas["state"], atlas["fence"], atlas["waiting"]) == ("atlas:SN-42", "held", 1, 1)
    assert (atlas["holder"]["run"], atlas["holder"]["alive"], atlas["last_request"]) == (run.run_id, True, call)
    assert 3_500 < atlas["holder"]["expires_in_seconds"] <= 3_600
    assert (atlas["next"], atlas["command"]) == (
        "wait",
        f"tallystick cancel {run.run_id} --ledger {project.ledger_path}",
    )
    assert (line["state"], line["holder"], line["next"], line["waiting"]) == ("free", None, "nothing", 1)


def test_the_page_of_a_device_shows_its_facts_its_line_and_what_is_not_known(project: Project, ledger: Ledger) -> None:
    run = new_run(ledger)
    held = granted_to(ledger, A, run_key=run.run_key)
    ledger.write(lambda tx: leases.record_device(tx, "atlas:SN-42", {"serial": "SN-42"}, boot_count=7))
    first = used(ledger, held, run.run_key)
    ledger.write(lambda tx: leases.abandon(tx, held.set_id))
    again = granted_to(ledger, A, run_key=run.run_key)
    second = used(ledger, again, run.run_key, 2)
    line_up(ledger, A)
    found = project.give("device", "show", "atlas:SN-42", "--json").document
    assert (found["facts"], found["boot_count"], found["generation"]) == ({"serial": "SN-42"}, 7, 1)
    assert [(one["call"], one["in_flight"], one["reason"]) for one in found["requests"]] == [
        (first, False, "lease.lost"),
        (second, True, None),
    ]
    assert (found["unknown"], found["last_request"], found["fence"]) == (1, second, 2)
    assert [(one["alive"], one["asking"]) for one in found["waiters"]] == [(True, True)]
    text = project.give("device", "show", "atlas:SN-42").out
    for word in ("SN-42", "7 boots", first, second, "lease.lost", "in flight", "in line", "fence 2", "next: wait"):
        assert word in text


def test_contaminated_attempts_stand_on_the_page(project: Project, ledger: Ledger) -> None:
    run = new_run(ledger)
    held = granted_to(ledger, A, run_key=run.run_key)
    used(ledger, held, run.run_key)
    ledger.write(lambda tx: tx.change("UPDATE attempts SET contaminated = 1", ()))
    found = project.give("device", "show", "atlas:SN-42", "--json").document
    assert found["contaminated"] == 1
    assert found["contaminated_attempts"] == [{"run": run.run_id, "case": "c1", "slot": 1, "attempt": 1}]
    assert "contaminated by an earlier holder" in project.give("device", "show", "atlas:SN-42").out


def test_looking_at_devices_changes_nothing(project: Project, ledger: Ledger) -> None:
    granted_to(ledger, A)
    before = ledger.path.with_name(ledger.path.name + "-wal").read_bytes()
    for arguments in (("list",), ("show", "atlas:SN-42"), ("list", "--json")):
        assert project.give("device", *arguments).status == 0
    assert ledger.path.with_name(ledger.path.name + "-wal").read_bytes() == before
    assert not (project.folder / "host").exists()


@pytest.mark.parametrize(
    "command", [("show",), ("release",), ("quarantine", "--reason", "r"), ("clear", "--reason", "r")]
)
def test_a_device_that_is_not_there_is_one_line_with_the_way_on(
    command: tuple[str, ...], project: Project, ledger: Ledger
) -> None:
    assert ledger.worker_id
    done = project.give("device", command[0], "atlas:typo", *command[1:])
    assert done.status == 2
    assert "usage.device_not_found" in done.err
    assert "tallystick device list" in done.err


def test_the_page_says_when_a_holder_has_died_and_that_its_run_may_go_on(project: Project, ledger: Ledger) -> None:
    run = new_run(ledger)
    with Child("hold_devices", ledger.path, "line:1") as child:
        set_id = child.line()
        ledger.write(lambda tx: tx.change("UPDATE leases SET run_key = ? WHERE set_id = ?", (run.run_key, set_id)))
        child.kill()
    found = project.give("device", "show", "line:1", "--json").document
    assert (found["state"], found["holder"]["alive"], found["next"]) == ("held", False, "resume")
    assert found["command"].startswith(f"tallystick resume {run.run_id}")
    assert "(died)" in project.give("device", "list").out


@pytest.mark.parametrize(("one", "step"), [(A, "nothing"), (PLAIN, "force")])
def test_the_page_says_what_helps_with_a_holder_that_stands_still(
    one: object, step: str, project: Project, ledger: Ledger
) -> None:
    granted_to(ledger, one)  # type: ignore[arg-type]
    ledger.write(lambda tx: tx.change("UPDATE leases SET expires_boot_ns = 1", ()))
    line = project.give("device", "list", "--json").document["devices"][0]
    assert (line["next"], line["holder"]["expires_in_seconds"]) == (step, 0)


def test_a_remaining_time_is_never_above_the_lease_time(project: Project, ledger: Ledger) -> None:
    granted_to(ledger, A)
    ledger.write(lambda tx: tx.change("UPDATE leases SET expires_boot_ns = 9000000000000000000", ()))
    assert project.give("device", "list", "--json").document["devices"][0]["holder"]["expires_in_seconds"] == 3_600


def test_a_holder_of_another_host_is_told_as_such(project: Project, ledger: Ledger) -> None:
    other_worker(ledger, "far", host="elsewhere")
    granted_to(ledger, A, worker="far")
    found = project.give("device", "show", "atlas:SN-42", "--json").document
    assert (found["holder"]["on_this_host"], found["next"]) == (False, "force")


def test_a_device_that_another_ledger_of_the_host_has_is_shown_with_that_ledger(
    project: Project, ledger: Ledger
) -> None:
    mine = granted_to(ledger, A)
    ledger.write(lambda tx: leases.release(tx, mine.set_id))
    other = project.folder / "other.db"
    with Ledger.open(other, create=True) as theirs:
        held = granted_to(theirs, A)
        HostClaims(theirs).take(held, [A])
        line = project.give("device", "list", "--json").document["devices"][0]
        assert (line["state"], line["next"]) == ("elsewhere", "wait")
        assert line["command"] == f"tallystick device show atlas:SN-42 --ledger {other}"
        done = project.give("device", "release", "atlas:SN-42", "--force", "--reason", "r")
        assert (done.status, str(other) in done.err) == (4, True)
        assert lease_states(theirs, held.set_id) == [("atlas:SN-42", "held")]


# Deciding.


def test_a_living_holder_is_not_released_without_force_and_is_named(project: Project, ledger: Ledger) -> None:
    run = new_run(ledger)
    held = granted_to(ledger, PLAIN, run_key=run.run_key)
    done = project.give("device", "release", "line:1")
    assert done.status == 4
    assert "device.busy" in done.err
    assert run.run_id in done.err
    assert lease_states(ledger, held.set_id) == [("line:1", "held")]
    assert project.give("device", "release", "line:1", "--force").status == 2
    assert project.give("device", "release", "line:1", "--force", "--json", "--reason", "it hangs").document["changed"]
    assert lease_states(ledger, held.set_id) == [("line:1", "revoked")]
    assert isinstance(attempt(ledger, line_up(ledger, PLAIN)), Granted)


def test_a_forced_release_frees_the_device_for_other_ledgers_of_the_host(project: Project, ledger: Ledger) -> None:
    held = granted_to(ledger, PLAIN)
    claims = HostClaims(ledger)
    claims.take(held, [PLAIN])
    assert project.give("device", "release", "line:1", "--force", "--reason", "it hangs").status == 0
    assert claims.holders("line:1") == ()


def test_a_dead_holder_is_released_without_force(project: Project, ledger: Ledger) -> None:
    with Child("hold_devices", ledger.path, "line:1") as child:
        set_id = child.line()
        child.kill()
    done = project.give("device", "release", "line:1")
    assert (done.status, "the device line:1 is released" in done.out) == (0, True)
    assert lease_states(ledger, set_id) == [("line:1", "lost")]
    again = project.give("device", "release", "line:1")
    assert (again.status, "nothing was changed" in again.out) == (0, True)


def test_a_quarantine_holds_on_the_whole_host_until_it_is_cleared(project: Project, ledger: Ledger) -> None:
    granted_to(ledger, A)
    assert project.give("device", "quarantine", "atlas:SN-42").status == 2
    done = project.give("device", "quarantine", "atlas:SN-42", "--reason", "it smokes")
    assert (done.status, "quarantined: it smokes" in done.out) == (0, True)
    assert "nothing was changed" in project.give("device", "quarantine", "atlas:SN-42", "--reason", "again").out
    found = project.give("device", "show", "atlas:SN-42", "--json").document
    assert (found["state"], found["next"]) == ("quarantined", "look")
    assert HostClaims(ledger).quarantined("atlas:SN-42") is not None
    assert project.give("device", "clear", "atlas:SN-42").status == 2
    assert project.give("device", "clear", "atlas:SN-42", "--reason", "new fuse").status == 0
    assert HostClaims(ledger).quarantined("atlas:SN-42") is None
    assert isinstance(attempt(ledger, line_up(ledger, A)), Granted)
    assert project.give("device", "clear", "atlas:SN-42", "--reason", "again").status == 2


def test_a_quarantine_of_another_ledger_is_seen_and_can_be_cleared_here(project: Project, ledger: Ledger) -> None:
    held = granted_to(ledger, A)
    ledger.write(lambda tx: leases.release(tx, held.set_id))
    HostClaims(ledger).quarantine("atlas:SN-42", "it smokes (by their run)")
    line = project.give("device", "list", "--json").document["devices"][0]
    assert (line["state"], line["quarantine"]) == ("quarantined", f"it smokes (by their run), in {ledger.path}")
    assert project.give("device", "clear", "atlas:SN-42", "--reason", "new fuse").status == 0
    assert project.give("device", "list", "--json").document["devices"][0]["state"] == "free"


def test_a_command_that_was_broken_off_can_be_given_again(project: Project, ledger: Ledger) -> None:
    held = granted_to(ledger, PLAIN)
    claims = HostClaims(ledger)
    claims.take(held, [PLAIN])
    ledger.write(lambda tx: device_care.revoke(tx, "line:1", reason="r", made_by="me"))
    assert claims.holders("line:1") != ()
    assert project.give("device", "release", "line:1", "--force", "--reason", "r").status == 0
    assert claims.holders("line:1") == ()


def test_the_page_of_a_case_shows_the_fence_and_that_an_attempt_is_contaminated(
    project: Project, ledger: Ledger
) -> None:
    run = new_run(ledger)
    used(ledger, granted_to(ledger, A, run_key=run.run_key), run.run_key)
    ledger.write(lambda tx: tx.change("UPDATE attempts SET contaminated = 1", ()))
    found = project.give("show", run.run_id, "c1", "--json").document["planned"][0]["attempts"][0]
    assert (found["contaminated"], found["dispatches"][0]["fence"]) == (True, 1)
    text = project.give("show", run.run_id, "c1").out
    assert "contaminated: an earlier holder" in text
    assert "fence 1" in text


@pytest.mark.parametrize("decision", ["quarantine", "clear", "release"])
def test_a_reason_or_a_name_that_is_not_utf8_is_wrong_usage_and_changes_nothing(
    project: Project, ledger: Ledger, decision: str
) -> None:
    granted_to(ledger, A)
    force = ("--force",) if decision == "release" else ()
    if decision == "clear":
        project.give("device", "quarantine", "atlas:SN-42", "--reason", "smoke")
    before = project.give("device", "show", "atlas:SN-42", "--json").document["state"]
    for resource, reason in (("atlas:SN-42", "\udcff"), ("\udcff", "smoke")):
        done = project.give("device", decision, resource, *force, "--reason", reason)
        assert done.status == 2
        assert "UTF-8" in done.err
        assert done.err.count("\n") == 1
    assert project.give("device", "show", "atlas:SN-42", "--json").document["state"] == before
