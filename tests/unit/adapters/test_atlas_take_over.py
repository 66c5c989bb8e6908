"""Taking an Atlas device over: the right one, nothing of an earlier holder going on, and what that left asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger.errors import IdentityChanged, LeaseLost, TargetNotFound
from tallystick.ledger.states import DispatchState
from tallystick.runner.device_protocols import DeviceTarget, TakenOver
from tallystick.runner.protocols import QueryState

from ...fixtures.atlas_handle import AtlasDevice
from .device_makers import FakeTenure, a_device, held, make_atlas, open_request, send
from .http_makers import listening, read_request
from .makers import make_case, make_slot, run

SN = {"serial": "SN-1"}


@pytest.fixture
def device(tmp_path: Path) -> Iterator[AtlasDevice]:
    with a_device(tmp_path) as started:
        yield started


def take_over(device: AtlasDevice, tenure: FakeTenure | None = None, **options: Any) -> TakenOver:
    async def scenario() -> TakenOver:
        async with held(device, tenure, **options) as (_, taken):
            return taken

    return run(scenario())


def earlier_holder(device: AtlasDevice, request_id: str, **behave: Any) -> threading.Thread:
    """A request under fence 1 that is still being done."""

    def work() -> None:
        try:
            device.post("submit", request_id=request_id, fence=1, payload={"behave": behave, "answer": "old"}, **SN)
        except OSError:
            return  # broken off

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_target_is_what_the_executor_takes_for_one_with_a_device(device: AtlasDevice) -> None:
    assert isinstance(make_atlas(device), DeviceTarget)


def test_device_is_fenced_and_reset_before_anything_else_and_says_what_it_is(device: AtlasDevice) -> None:
    tenure = FakeTenure(4)
    taken = take_over(device, tenure)
    assert (taken.boot_count, taken.quarantine, dict(taken.settled)) == (1, None, {})
    assert taken.facts == {
        "protocol": "atlas/1",
        "serial": "SN-1",
        "firmware": "1.0",
        "boot_count": 1,
        "checkpoints": True,
    }
    assert [(line["role"], line["fence"], line["request_id"]) for line in device.lines()] == [
        ("fence", 4, "lease-4-0"),
        ("reset", 4, "lease-4-1"),
    ]
    assert tenure.roles == ["reconcile", "reset"]


@pytest.mark.parametrize("seen", [4, 9])
def test_fence_that_is_not_higher_than_the_device_has_seen_is_raised_first(device: AtlasDevice, seen: int) -> None:
    device.post("fence", request_id="of another ledger", fence=seen, **SN)
    tenure = FakeTenure(4)
    take_over(device, tenure)
    assert tenure.raised == [seen]
    assert [line["fence"] for line in device.lines()] == [seen, seen + 1, seen + 1]


def test_holder_before_is_refused_from_then_on(device: AtlasDevice) -> None:
    take_over(device, FakeTenure(2))
    late = device.post("submit", request_id="stale", fence=1, payload=1, **SN)
    assert (late["error"], late["done"]) == ("fence.stale", False)


# Which device it is.


@pytest.mark.parametrize(
    ("options", "told"),
    [({"serial": "SN-7"}, "serial: SN-7 -> SN-1"), ({"firmware": "2.0"}, "firmware: 2.0 -> 1.0")],
    ids=str,
)
def test_another_device_or_firmware_is_refused_and_nothing_is_sent_to_it(
    device: AtlasDevice, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(IdentityChanged, match=told) as caught:
        take_over(device, **options)
    assert caught.value.differences == (told,)
    assert device.lines() == []


def test_device_that_lies_about_its_identity_is_found_out_by_its_next_word(device: AtlasDevice) -> None:
    device.tell("become", serial="SN-2")
    device.tell("plan", role="identity", behave={"as_serial": "SN-1"})
    taken = take_over(device)
    assert taken.quarantine is not None
    assert "SN-2" in taken.quarantine
    assert device.lines(verdict="accepted") == []


@pytest.mark.parametrize(
    "behave", [{"garbage": "<html>"}, {"garbage": "{}"}, {"raw": "?"}, {"lose": "before"}, {"late": "never"}], ids=str
)
def test_what_does_not_speak_the_protocol_cannot_be_taken_over(device: AtlasDevice, behave: dict[str, Any]) -> None:
    device.tell("plan", role="identity", behave=behave)
    with pytest.raises(TargetNotFound, match="atlas:SN-1"):
        take_over(device, call_seconds=0.3)
    assert device.lines() == []


def test_nobody_at_the_address_is_said_with_the_remedy() -> None:
    async def scenario() -> None:
        target = make_atlas("http://127.0.0.1:1")
        await target.open()
        with pytest.raises(TargetNotFound, match=r"cannot be reached.*Switch it on, or correct its address"):
            await target.take_over(FakeTenure())
        await target.close()

    run(scenario())


def test_device_that_never_answers_is_given_up_in_bounds() -> None:
    async def scenario() -> None:
        async def silent(reader: Any, writer: Any) -> None:
            await read_request(reader)
            await reader.read()

        async with listening(silent) as url:
            target = make_atlas(url, call_seconds=0.2)
            await target.open()
            with pytest.raises(TargetNotFound, match=r"no reply to identity within 0\.2 s"):
                await target.take_over(FakeTenure())
            await target.close()

    run(scenario())


# What the holder before left.


def test_what_was_left_unknown_is_asked_for_by_its_id(device: AtlasDevice) -> None:
    device.post("submit", request_id="landed", fence=1, payload={"answer": 7}, **SN)
    tenure = FakeTenure(2, open=[open_request("landed"), open_request("never sent")])
    taken = take_over(device, tenure)
    assert {about: answer.state for about, answer in taken.settled.items()} == {
        "landed": QueryState.LANDED,
        "never sent": QueryState.NEVER,
    }
    landed = taken.settled["landed"].outcome
    assert landed is not None
    assert (landed.state, landed.answer, landed.wire_sends) == (DispatchState.ANSWERED, 7, 0)
    assert tenure.roles == ["reconcile", "reconcile", "reconcile", "reset"]
    assert taken.contaminating == ()


def test_what_is_still_being_done_is_waited_for(device: AtlasDevice) -> None:
    old = earlier_holder(device, "old", wait="g")
    device.wait_until_waiting("g")
    released = threading.Timer(0.2, device.go, ["g"])
    released.start()
    taken = take_over(device, FakeTenure(2, open=[open_request("old")]), drain_seconds=30.0)
    old.join()
    released.join()
    found = taken.settled["old"].outcome
    assert found is not None
    assert found.answer == "old"
    assert [line["role"] for line in device.lines()] == ["submit", "fence", "query", "reset"]


@pytest.mark.parametrize(
    ("behave", "state", "roles"),
    [
        ({}, QueryState.NEVER, ["fence", "cancel", "query", "reset"]),
        ({"stubborn": True}, QueryState.NO_PROOF, ["fence", "cancel", "reset", "query", "reset"]),
    ],
    ids=["can be cancelled", "can be reset only"],
)
def test_what_hangs_is_cancelled_or_broken_off(
    device: AtlasDevice, behave: dict[str, Any], state: str, roles: list[str]
) -> None:
    old = earlier_holder(device, "old", wait="g", **behave)
    device.wait_until_waiting("g")
    taken = take_over(device, FakeTenure(2, open=[open_request("old")]), call_seconds=0.3)
    old.join()
    assert taken.settled["old"].state == state
    assert taken.quarantine is None
    assert [line["role"] for line in device.lines()][1:] == roles
    assert device.get("state")["state"] == "idle"


def test_device_that_stays_busy_is_quarantined_with_what_is_known_of_it(device: AtlasDevice) -> None:
    earlier_holder(device, "old", wait="g", stubborn=True)
    device.wait_until_waiting("g")
    device.tell("plan", role="reset", behave={"refuse": 1})
    taken = take_over(device, FakeTenure(2), call_seconds=0.3)
    assert taken.quarantine is not None
    assert "busy with old" in taken.quarantine
    assert taken.facts["serial"] == "SN-1"


def test_sessions_and_faults_of_the_holder_before_are_gone(device: AtlasDevice) -> None:
    device.post("submit", request_id="a", fence=1, session="s", turn=1, payload=1, **SN)
    device.tell("fault", message="jammed")
    assert take_over(device, FakeTenure(2)).quarantine is None
    state = device.get("state")
    assert (state["state"], state["sessions"]) == ("idle", [])


def test_device_that_stays_faulted_is_quarantined(device: AtlasDevice) -> None:
    device.tell("fault", message="burnt", lasting=True)
    assert take_over(device).quarantine == "it is faulted, also after a reset: burnt"


def test_device_that_was_switched_on_again_is_taken_over_with_its_new_boot(device: AtlasDevice) -> None:
    async def scenario() -> None:
        async with held(device, FakeTenure(2)) as (target, first):
            device.tell("reboot")
            again = await target.take_over(FakeTenure(3))
            assert (first.boot_count, again.boot_count) == (1, 2)
            outcome, _ = await send(target, make_slot(make_case({"answer": "after"})))
            assert outcome.answer == "after"

    run(scenario())


def test_lease_that_is_lost_while_taking_over_ends_it(device: AtlasDevice) -> None:
    tenure = FakeTenure(2, is_lost=True)
    with pytest.raises(LeaseLost):
        take_over(device, tenure)
    assert device.lines() == []


def test_higher_fence_while_taking_over_ends_it(device: AtlasDevice) -> None:
    class Overtaken(FakeTenure):
        async def raise_fence(self, resource: str, seen: int) -> int:
            return self.number

    device.post("fence", request_id="faster", fence=9, **SN)
    with pytest.raises(LeaseLost, match=r"fence\.stale"):
        take_over(device, Overtaken(2))


def test_letting_go_leaves_the_device_idle(device: AtlasDevice) -> None:
    async def scenario() -> None:
        tenure = FakeTenure(2)
        async with held(device, tenure) as (target, _):
            await send(target, make_slot(make_case({"behave": {"hang": True}})), deadline_seconds=0.3)
            await target.let_go(tenure)
            assert tenure.roles == ["reconcile", "reset", "cancel"]

    run(scenario())
    assert device.get("state")["state"] == "idle"
