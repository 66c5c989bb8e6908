"""Conversations with an Atlas device: turns in order, checkpoints, and no old turn's answer for a new one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger.states import DispatchState
from tallystick.runner.device_protocols import ConversationTarget, Resuming
from tallystick.runner.protocols import Exchange, Outcome, QueryState, SlotView, Turn

from ...fixtures.atlas_handle import AtlasDevice
from .device_makers import FakeTenure, a_device, held, in_thread, make_atlas, make_turn, send
from .makers import make_case, run

ANSWERED, FAILED, REFUSED, UNKNOWN = (
    DispatchState.ANSWERED,
    DispatchState.FAILED,
    DispatchState.REFUSED,
    DispatchState.UNKNOWN,
)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[AtlasDevice]:
    with a_device(tmp_path) as started:
        yield started


def heard(number: int, message: str, *before: str) -> dict[str, Any]:
    return {"turn": number, "message": message, "heard": [*before]}


async def begin(target: Any, slot: SlotView, checkpoint: bytes | None = None) -> Outcome:
    assert slot.turn is not None
    outcome: Outcome = await target.begin_session(slot.turn, checkpoint)
    return outcome


def test_target_holds_conversations_of_its_own(device: AtlasDevice) -> None:
    target = make_atlas(device)
    assert isinstance(target, ConversationTarget)
    assert target.resuming is Resuming.CHECKPOINT


def test_device_without_checkpoints_begins_anew(tmp_path: Path) -> None:
    async def scenario(device: AtlasDevice) -> None:
        async with held(device) as (target, _):
            assert target.resuming is Resuming.RESTART
            assert (await begin(target, make_turn(1, "hello"))).state is ANSWERED
            outcome, _ = await send(target, make_turn(1, "hello"))
            assert (outcome.answer, outcome.checkpoint) == (heard(1, "hello"), None)

    with a_device(tmp_path, "--no-checkpoints") as started:
        run(scenario(started))


def test_turns_go_as_messages_and_each_brings_its_checkpoint(device: AtlasDevice) -> None:
    async def scenario() -> list[Outcome]:
        async with held(device) as (target, _):
            await begin(target, make_turn(1, "one"))
            outcomes = [(await send(target, make_turn(number, text)))[0] for number, text in ((1, "one"), (2, "two"))]
            await target.end_session("session-1")
            return outcomes

    outcomes = run(scenario())
    assert [outcome.answer for outcome in outcomes] == [heard(1, "one"), heard(2, "two", "one")]
    assert all(outcome.checkpoint for outcome in outcomes)
    assert [(line["session"], line["turn"]) for line in device.lines(role="submit")] == [
        ("session-1", 1),
        ("session-1", 2),
    ]
    assert device.get("state")["sessions"] == []


def test_payload_template_stands_before_the_message(device: AtlasDevice) -> None:
    target = make_atlas(device, payload={"ask": "{{input}}"})
    case = make_case("the case")
    prepared = target.prepare(SlotView("r", case, "v", 1, Turn("s", 2, "the message", (Exchange("a", "b"),))))
    assert prepared.payload == b'{"ask":"the case"}'
    assert dict(prepared.head) == {"device": "atlas:SN-1", "session": "s", "turn": 2}


def test_new_attempt_goes_on_from_the_checkpoint_of_a_committed_turn(device: AtlasDevice) -> None:
    async def first() -> bytes:
        async with held(device, FakeTenure(1)) as (target, _):
            await send(target, make_turn(1, "one"))
            outcome, _ = await send(target, make_turn(2, "two"))
            assert outcome.checkpoint is not None
            return outcome.checkpoint

    async def second(checkpoint: bytes) -> None:
        tenure = FakeTenure(2)
        async with held(device, tenure) as (target, _):
            slot = make_turn(3, "three", "session-2")
            assert (await begin(target, slot, checkpoint)).state is ANSWERED
            outcome, _ = await send(target, slot)
            assert outcome.answer == heard(3, "three", "one", "two")
            role, prepared, _ = tenure.calls[-1]
            assert (role, prepared.head["session"], prepared.keep) == ("restore", "session-2", False)

    run(second(run(first())))


@pytest.mark.parametrize("checkpoint", [b"", b"no checkpoint", b"\x00\xff"], ids=str)
def test_bytes_that_are_no_checkpoint_are_refused(device: AtlasDevice, checkpoint: bytes) -> None:
    async def scenario() -> Outcome:
        async with held(device) as (target, _):
            return await begin(target, make_turn(2, "two"), checkpoint)

    outcome = run(scenario())
    assert (outcome.state, outcome.reason) == (FAILED, "checkpoint.refused")


def test_checkpoint_of_another_turn_is_refused_and_its_session_forgotten(device: AtlasDevice) -> None:
    async def scenario() -> Outcome:
        async with held(device) as (target, _):
            outcome, _ = await send(target, make_turn(1, "one"))
            return await begin(target, make_turn(3, "three", "session-2"), outcome.checkpoint)

    outcome = run(scenario())
    assert (outcome.state, outcome.reason) == (FAILED, "checkpoint.refused")
    assert "of turn 1, and turn 2 was to be restored" in outcome.message
    assert [session["session"] for session in device.get("state")["sessions"]] == ["session-1"]


def test_session_that_a_reboot_lost_is_not_begun_in_the_middle(device: AtlasDevice) -> None:
    async def scenario() -> Outcome:
        async with held(device, boot="any") as (target, _):
            await send(target, make_turn(1, "one"))
            await in_thread(lambda: device.tell("reboot"))
            return (await send(target, make_turn(2, "two")))[0]

    outcome = run(scenario())
    assert (outcome.state, outcome.reason) == (FAILED, "session.lost")
    assert [line["verdict"] for line in device.lines(role="submit")] == ["accepted", "session.unknown"]


def test_session_that_is_not_known_is_not_begun_in_the_middle(device: AtlasDevice) -> None:
    async def scenario() -> Outcome:
        async with held(device) as (target, _):
            return (await send(target, make_turn(2, "two")))[0]

    outcome = run(scenario())
    assert (outcome.state, outcome.reason, outcome.bytes_sent) == (FAILED, "session.lost", 0)


def test_old_turns_answer_is_never_a_new_turns_and_the_session_goes_on_from_its_checkpoint(
    device: AtlasDevice,
) -> None:
    async def scenario() -> None:
        tenure = FakeTenure()
        async with held(device, tenure) as (target, _):
            first, dispatching = await send(target, make_turn(1, "one"))
            device.tell("plan", behave={"as_id": dispatching.request_id})
            wrong, second = await send(target, make_turn(2, "two"))
            assert (first.state, wrong.state, wrong.reason) == (ANSWERED, UNKNOWN, "reply.mismatched")
            found = await target.query(second.request_id, target.prepare(make_turn(2, "two")))
            assert found.outcome is not None
            assert (found.state, found.outcome.answer) == (QueryState.LANDED, heard(2, "two", "one"))
            third, _ = await send(target, make_turn(3, "three"))
            assert third.answer == heard(3, "three", "one", "two")
            assert tenure.roles == ["reconcile", "reset", "reset", "restore"]

    run(scenario())


def test_quarantined_session_without_a_checkpoint_is_lost(tmp_path: Path) -> None:
    async def scenario(device: AtlasDevice) -> None:
        async with held(device) as (target, _):
            await send(target, make_turn(1, "one"))
            device.tell("plan", behave={"as_id": "another"})
            await send(target, make_turn(2, "two"))
            outcome, _ = await send(target, make_turn(2, "two"))
            assert (outcome.state, outcome.reason) == (FAILED, "session.lost")
            again, _ = await send(target, make_turn(1, "one", "session-2"))
            assert again.answer == heard(1, "one")

    with a_device(tmp_path, "--no-checkpoints") as started:
        run(scenario(started))


def test_turn_whose_answer_was_lost_is_repeated_under_its_own_id_and_heard_once(device: AtlasDevice) -> None:
    async def scenario() -> None:
        async with held(device) as (target, _):
            device.tell("plan", behave={"lose": "after"})
            lost, dispatching = await send(target, make_turn(1, "one"))
            assert lost.state is UNKNOWN
            again, _ = await send(target, make_turn(1, "one"), request_id=dispatching.request_id)
            assert again.answer == heard(1, "one")

    run(scenario())
    assert [line["verdict"] for line in device.lines(role="submit")] == ["accepted", "repeated"]


def test_session_of_a_lost_lease_begins_and_ends_without_a_word(device: AtlasDevice) -> None:
    async def scenario() -> None:
        tenure = FakeTenure()
        async with held(device, tenure) as (target, _):
            await send(target, make_turn(1, "one"))
            tenure.is_lost = True
            await target.end_session("session-1")
            outcome = await begin(target, make_turn(1, "one", "session-2"))
            assert (outcome.state, outcome.reason) == (REFUSED, "lease.lost")

    run(scenario())
    assert [line["role"] for line in device.lines()] == ["fence", "reset", "submit"]
