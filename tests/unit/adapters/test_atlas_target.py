"""Requests to an Atlas device: answers under their own id and fence, and nothing sent to a device out of step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger.canonical import canonical_text
from tallystick.ledger.errors import SecretMissing, WorkOrderInvalid
from tallystick.ledger.states import DispatchState
from tallystick.runner.protocols import MISSING, Outcome, QueryAnswer, QueryState

from ...fixtures.atlas_handle import AtlasDevice
from .device_makers import FakeTenure, a_device, held, in_thread, make_atlas, send
from .makers import make_case, make_dispatching, make_slot, run

ANSWERED, FAILED, REFUSED, UNKNOWN = (
    DispatchState.ANSWERED,
    DispatchState.FAILED,
    DispatchState.REFUSED,
    DispatchState.UNKNOWN,
)
SN = {"serial": "SN-1"}


@pytest.fixture
def device(tmp_path: Path) -> Iterator[AtlasDevice]:
    with a_device(tmp_path) as started:
        yield started


def asking(value: Any, **behave: Any) -> Any:
    return make_slot(make_case({"answer": value, "behave": behave}))


def ask_all(device: AtlasDevice, *slots: Any, tenure: FakeTenure | None = None, **options: Any) -> list[Outcome]:
    """Take the device over, send one request after the other, leave."""
    deadline_seconds = options.pop("deadline_seconds", 30.0)

    async def scenario() -> list[Outcome]:
        async with held(device, tenure, **options) as (target, taken):
            assert taken.quarantine is None
            return [(await send(target, slot, deadline_seconds=deadline_seconds))[0] for slot in slots]

    return run(scenario())


def ask_and_query(device: AtlasDevice, slot: Any, **options: Any) -> tuple[Outcome, QueryAnswer]:
    """Send a request, then ask by its id what became of it."""
    deadline_seconds = options.pop("deadline_seconds", 30.0)

    async def scenario() -> tuple[Outcome, QueryAnswer]:
        async with held(device, **options) as (target, _):
            outcome, dispatching = await send(target, slot, deadline_seconds=deadline_seconds)
            return outcome, await target.query(dispatching.request_id, target.prepare(slot))

    return run(scenario())


def roles(device: AtlasDevice) -> list[str]:
    return [line["role"] for line in device.lines()]


TAKEN_OVER = ["fence", "reset"]


def test_answer_is_taken_under_its_own_id_and_fence(device: AtlasDevice) -> None:
    (outcome,) = ask_all(device, asking(42, usage={"tokens_in": 3}), tenure=FakeTenure(7))
    assert (outcome.state, outcome.answer) == (ANSWERED, 42)
    assert outcome.usage is not None
    assert outcome.usage.tokens_in == 3
    (line,) = device.lines(role="submit")
    assert (line["fence"], line["verdict"], line["boot_count"]) == (7, "accepted", 1)


def test_answer_can_be_a_part_of_what_the_device_answers(device: AtlasDevice) -> None:
    here, nowhere = ask_all(device, asking({"value": {"mean": 4.2}}), asking({"other": 1}), answer="$.value.mean")
    assert (here.state, here.answer) == (ANSWERED, 4.2)
    assert (nowhere.state, nowhere.reason, nowhere.answer) == (FAILED, "answer.missing", MISSING)


# What is never taken.


@pytest.mark.parametrize(
    ("lie", "told"),
    [({"as_id": "another"}, "request_id 'another'"), ({"as_fence": 2}, "fence 2")],
    ids=["another id", "another fence"],
)
def test_reply_to_another_request_is_never_taken_and_the_device_is_reset_before_the_next(
    device: AtlasDevice, lie: dict[str, Any], told: str
) -> None:
    tenure = FakeTenure()
    wrong, right = ask_all(device, asking("not this one's", **lie), asking("its own"), tenure=tenure)
    assert (wrong.state, wrong.reason, wrong.answer) == (UNKNOWN, "reply.mismatched", MISSING)
    assert told in wrong.message
    assert wrong.raw is not None
    assert wrong.quarantine is None
    assert (right.state, right.answer) == (ANSWERED, "its own")
    assert tenure.roles == ["reconcile", "reset", "reset"]
    assert roles(device) == [*TAKEN_OVER, "submit", "reset", "submit"]


def test_reply_of_another_device_quarantines_the_device(device: AtlasDevice) -> None:
    (outcome,) = ask_all(device, asking("whose?", as_serial="SN-2"))
    assert (outcome.state, outcome.reason) == (UNKNOWN, "reply.mismatched")
    assert outcome.quarantine == "SN-2 answers in place of SN-1"


def test_reply_that_comes_twice_is_taken_once(device: AtlasDevice) -> None:
    outcomes = ask_all(device, asking(1, twice=True), asking(2), asking(3))
    assert [outcome.answer for outcome in outcomes] == [1, 2, 3]


@pytest.mark.parametrize(
    ("behave", "reason"),
    [
        ({"garbage": "<html>"}, "reply.garbage"),
        ({"garbage": ""}, "reply.garbage"),
        ({"garbage": '{"outcome": "answered"}'}, "reply.garbage"),
        ({"garbage": "[" * 2000}, "reply.garbage"),
        ({"raw": "\x00\x01\r\n"}, "wire.protocol"),
        ({"lose": "after"}, "wire.closed"),
    ],
    ids=str,
)
def test_garbage_is_no_answer_and_the_answer_is_fetched_by_its_id(
    device: AtlasDevice, behave: dict[str, Any], reason: str
) -> None:
    outcome, found = ask_and_query(device, asking({"value": 1}, **behave))
    assert (outcome.state, outcome.reason) == (UNKNOWN, reason)
    assert "\n" not in outcome.message
    assert found.state == QueryState.LANDED
    assert found.outcome is not None
    assert (found.outcome.state, found.outcome.answer) == (ANSWERED, {"value": 1})


def test_request_that_was_lost_on_its_way_is_proven_never_to_be_done(device: AtlasDevice) -> None:
    outcome, found = ask_and_query(device, asking(1, lose="before"))
    assert (outcome.state, outcome.reason) == (UNKNOWN, "wire.closed")
    assert found.state == QueryState.NEVER
    (id_asked,) = [line["about"] for line in device.lines(role="query")]
    late = device.post("submit", request_id=id_asked, fence=1, payload=1, **SN)
    assert late["error"] == "request.tombstoned"


def test_device_that_has_forgotten_proves_nothing(device: AtlasDevice) -> None:
    async def scenario() -> None:
        async with held(device) as (target, _):
            slot = asking(1, lose="after")
            _, dispatching = await send(target, slot)
            await in_thread(lambda: device.tell("forget"))
            found = await target.query(dispatching.request_id, target.prepare(slot))
            assert found.state == QueryState.NO_PROOF

    run(scenario())


def test_query_that_is_answered_with_garbage_proves_nothing(device: AtlasDevice) -> None:
    device.tell("plan", role="query", behave={"garbage": "never"})
    _, found = ask_and_query(device, asking(1, lose="after"))
    assert (found.state, found.outcome) == (QueryState.NO_PROOF, None)


# What is still going on.


def test_request_that_hangs_is_cancelled_before_the_next(device: AtlasDevice) -> None:
    tenure = FakeTenure()
    hanging, next_one = ask_all(device, asking(1, hang=True), asking(2), tenure=tenure, deadline_seconds=0.5)
    assert (hanging.state, hanging.reason) == (UNKNOWN, "deadline")
    assert (next_one.state, next_one.answer) == (ANSWERED, 2)
    assert tenure.roles == ["reconcile", "reset", "cancel"]


def test_wait_for_what_hangs_is_not_begun_anew_by_each_attempt(device: AtlasDevice) -> None:
    """An attempt's deadline is shorter than the wait: together they come to its end."""
    slots = [asking(1, hang=True), *(asking(2) for _ in range(6))]
    outcomes = ask_all(device, *slots, deadline_seconds=0.25, drain_seconds=0.7)
    assert [outcome.state for outcome in outcomes[:2]] == [UNKNOWN, REFUSED]
    assert (outcomes[1].reason, outcomes[1].bytes_sent) == ("device.busy", 0)
    assert outcomes[-1].answer == 2
    assert roles(device).count("cancel") == 1


def test_query_for_what_hangs_cancels_it_and_proves_that_it_never_will_be_done(device: AtlasDevice) -> None:
    outcome, found = ask_and_query(device, asking(1, hang=True), deadline_seconds=0.3)
    assert (outcome.state, found.state) == (UNKNOWN, QueryState.NEVER)
    assert roles(device) == [*TAKEN_OVER, "submit", "query", "cancel", "query"]


def test_request_that_ends_while_it_is_waited_for_is_not_cancelled(device: AtlasDevice) -> None:
    async def scenario() -> None:
        async with held(device, drain_seconds=30.0) as (target, _):
            slot = asking("late", wait="g")
            outcome, dispatching = await send(target, slot, deadline_seconds=0.3)
            assert outcome.reason == "deadline"
            asked = asyncio.create_task(target.query(dispatching.request_id, target.prepare(slot)))
            await in_thread(lambda: device.wait_until_waiting("g"))
            await in_thread(lambda: device.go("g"))
            found = await asked
            assert found.outcome is not None
            assert (found.state, found.outcome.answer) == (QueryState.LANDED, "late")

    run(scenario())
    assert "cancel" not in roles(device)


def test_what_cannot_be_cancelled_is_broken_off_by_a_reset_and_stays_unknown(device: AtlasDevice) -> None:
    outcome, found = ask_and_query(device, asking(1, hang=True, stubborn=True), deadline_seconds=0.3, call_seconds=0.3)
    assert (outcome.state, found.state) == (UNKNOWN, QueryState.NO_PROOF)
    assert roles(device) == [*TAKEN_OVER, "submit", "query", "cancel", "reset", "query"]
    assert device.get("state")["state"] == "idle"


def test_device_that_stays_busy_is_quarantined_and_gets_nothing_more(device: AtlasDevice) -> None:
    slots = [asking(1, hang=True, stubborn=True), asking(2)]

    async def scenario() -> list[Outcome]:
        async with held(device, call_seconds=0.3) as (target, _):
            first, _ = await send(target, slots[0], deadline_seconds=0.3)
            await in_thread(lambda: device.tell("plan", role="reset", behave={"refuse": 1}))
            return [first, (await send(target, slots[1]))[0]]

    _, second = run(scenario())
    assert (second.state, second.reason, second.bytes_sent, second.wire_sends) == (REFUSED, "device.busy", 0, 0)
    assert second.quarantine is not None
    assert "neither ends nor can be stopped" in second.quarantine
    assert len(device.lines(role="submit")) == 1


def test_cancelled_dispatch_puts_the_device_out_of_step(device: AtlasDevice) -> None:
    async def scenario() -> None:
        async with held(device) as (target, _):
            slot = asking(1, wait="g")
            dispatching = make_dispatching(slot)
            call = asyncio.create_task(target.dispatch(target.prepare(slot), dispatching))
            await in_thread(lambda: device.wait_until_waiting("g"))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert dispatching.progress.bytes_sent
            outcome, _ = await send(target, asking(2))
            assert outcome.answer == 2

    run(scenario())
    assert roles(device) == [*TAKEN_OVER, "submit", "cancel", "submit"]


def test_only_one_request_at_a_time_is_sent(device: AtlasDevice) -> None:
    async def scenario() -> list[Any]:
        async with held(device) as (target, _):
            sent = [send(target, asking(number)) for number in range(6)]
            return [outcome.answer for outcome, _ in await asyncio.gather(*sent)]

    assert run(scenario()) == [0, 1, 2, 3, 4, 5]
    assert {line["verdict"] for line in device.lines()} == {"accepted"}


def test_what_one_variant_left_is_settled_before_the_others_request(device: AtlasDevice) -> None:
    async def scenario() -> Outcome:
        tenure = FakeTenure()
        async with held(device, tenure) as (one, _), held(device, tenure) as (other, _):
            await send(one, asking("whose?", as_id="another"))
            return (await send(other, asking("its own")))[0]

    assert run(scenario()).answer == "its own"
    assert [line["role"] for line in device.lines()] == [*TAKEN_OVER, *TAKEN_OVER, "submit", "reset", "submit"]


# Faults, reboots, other devices, lost leases.


def test_faulted_device_is_reset_before_the_next_request(device: AtlasDevice) -> None:
    tenure = FakeTenure()
    fault, refused, healed = ask_all(device, asking(1, fault="jammed"), asking(2), asking(3), tenure=tenure)
    assert (fault.state, fault.reason, fault.message) == (FAILED, "device.failed", "jammed")
    assert (refused.state, refused.reason) == (REFUSED, "device.faulted")
    assert (healed.state, healed.answer) == (ANSWERED, 3)
    assert tenure.roles == ["reconcile", "reset", "reset"]


def test_device_that_a_reset_does_not_help_is_quarantined(device: AtlasDevice) -> None:
    async def scenario() -> list[Outcome]:
        async with held(device) as (target, _):
            await in_thread(lambda: device.tell("fault", message="burnt", lasting=True))
            return [(await send(target, asking(number)))[0] for number in range(2)]

    refused, quarantined = run(scenario())
    assert (refused.reason, refused.quarantine) == ("device.faulted", None)
    assert quarantined.quarantine == "it is faulted, also after a reset: burnt"


def test_failure_comes_with_the_token_of_the_device(device: AtlasDevice) -> None:
    (outcome,) = ask_all(device, asking(1, fail="no paper", reason="jammed"))
    assert (outcome.state, outcome.reason, outcome.message) == (FAILED, "device.failed.jammed", "no paper")


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_reboot_in_a_request_leaves_it_unknown_and_the_next_asks_for_a_look(device: AtlasDevice, when: str) -> None:
    unknown, next_one = ask_all(device, asking(1, reboot=when), asking(2))
    assert (unknown.state, unknown.reason) == (UNKNOWN, "wire.closed")
    assert (next_one.state, next_one.reason, next_one.bytes_sent) == (REFUSED, "device.rebooted", 0)
    assert next_one.quarantine is None


def test_reboot_between_two_requests_is_noticed_by_the_device_itself(device: AtlasDevice) -> None:
    async def scenario() -> Outcome:
        async with held(device) as (target, _):
            await in_thread(lambda: device.tell("reboot"))
            return (await send(target, asking(2)))[0]

    outcome = run(scenario())
    assert (outcome.state, outcome.reason) == (REFUSED, "device.rebooted")
    assert [line["verdict"] for line in device.lines(role="submit")] == ["device.rebooted"]


def test_any_boot_will_do_where_the_work_order_says_so(device: AtlasDevice) -> None:
    unknown, next_one = ask_all(device, asking(1, reboot="during"), asking(2), boot="any")
    assert (unknown.state, next_one.state, next_one.answer) == (UNKNOWN, ANSWERED, 2)


def test_another_device_at_the_address_does_nothing_and_is_quarantined(device: AtlasDevice) -> None:
    async def scenario() -> Outcome:
        async with held(device) as (target, _):
            await in_thread(lambda: device.tell("become", serial="SN-2"))
            return (await send(target, asking(2)))[0]

    outcome = run(scenario())
    assert (outcome.state, outcome.reason) == (REFUSED, "device.other")
    assert outcome.quarantine == "another device answers: SN-2"


def test_older_fence_is_refused_by_the_device_and_the_lease_is_lost(device: AtlasDevice) -> None:
    async def scenario() -> Outcome:
        async with held(device, FakeTenure(3)) as (target, _):
            await in_thread(lambda: device.post("fence", request_id="the next holder", fence=4, **SN))
            return (await send(target, asking("stale")))[0]

    outcome = run(scenario())
    assert (outcome.state, outcome.reason) == (REFUSED, "lease.lost")
    assert [line["verdict"] for line in device.lines(role="submit")] == ["fence.stale"]


def test_nothing_is_sent_once_the_lease_is_lost(device: AtlasDevice) -> None:
    async def scenario() -> Outcome:
        tenure = FakeTenure()
        async with held(device, tenure) as (target, _):
            tenure.is_lost = True
            return (await send(target, asking("stale")))[0]

    outcome = run(scenario())
    assert (outcome.state, outcome.reason, outcome.bytes_sent) == (REFUSED, "lease.lost", 0)
    assert roles(device) == TAKEN_OVER


def test_device_is_used_under_a_lease_only(device: AtlasDevice) -> None:
    async def scenario() -> tuple[Outcome, QueryAnswer]:
        target = make_atlas(device)
        await target.open()
        slot = asking(1)
        outcome, _ = await send(target, slot)
        found = await target.query("some id", target.prepare(slot))
        await target.close()
        return outcome, found

    outcome, found = run(scenario())
    assert (outcome.state, outcome.reason, outcome.bytes_sent) == (FAILED, "device.not_held", 0)
    assert found.state == QueryState.NO_PROOF
    assert device.lines() == []


def test_silent_device_is_refused_nothing_was_sent(device: AtlasDevice) -> None:
    async def scenario() -> Outcome:
        async with held(device, call_seconds=0.2) as (target, _):
            await send(target, asking(1, lose="after"))
            await in_thread(lambda: device.tell("plan", role="state", behave={"late": "never"}))
            return (await send(target, asking(2)))[0]

    outcome = run(scenario())
    assert (outcome.state, outcome.reason, outcome.bytes_sent) == (REFUSED, "device.silent", 0)
    assert outcome.quarantine is None


def test_drifting_clock_of_the_device_changes_nothing(device: AtlasDevice) -> None:
    device.tell("clock", offset=-1e9, rate=3.0)
    (outcome,) = ask_all(device, asking(1))
    assert outcome.answer == 1


# Secrets, identity, tables.


def test_secret_goes_with_every_request_and_comes_back_in_nothing(
    device: AtlasDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_TOKEN", "s3cr3t-of-the-bench")
    headers = {"Authorization": {"env": "BENCH_TOKEN", "prefix": "Bearer "}}
    said, failed = ask_all(
        device, asking("s3cr3t-of-the-bench"), asking(1, fail="no s3cr3t-of-the-bench"), headers=headers
    )
    assert said.answer == "***"
    assert b"s3cr3t" not in (said.raw or b"")
    assert failed.message == "no ***"


def test_missing_secret_is_named_before_anything_is_sent(device: AtlasDevice) -> None:
    with pytest.raises(SecretMissing, match="BENCH_TOKEN"):
        make_atlas(device, headers={"Authorization": {"env": "BENCH_TOKEN"}}).check()


def test_identity_is_the_device_and_not_its_address(device: AtlasDevice) -> None:
    here, there = make_atlas(device), make_atlas("http://127.0.0.1:1/bench", call_seconds=9.0)
    assert canonical_text(here.identity()) == canonical_text(there.identity())
    assert here.identity() == {"kind": "atlas", "serial": "SN-1"}
    assert make_atlas(device, firmware="1.0").identity() != here.identity()
    assert [need.resource for need in here.devices()] == ["atlas:SN-1"]
    assert here.devices()[0].compares_fences


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"serial": ""}, "serial"),
        ({"url": "ftp://x"}, "target.url"),
        ({"boot": "sometimes"}, "target.boot"),
        ({"answer": "value"}, "target.answer"),
        ({"serail": "x"}, "serail"),
        ({"headers": {"Authorization": "Bearer x"}}, "target.headers"),
    ],
    ids=str,
)
def test_table_that_cannot_be_meant_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(WorkOrderInvalid, match=told):
        make_atlas("http://127.0.0.1:1", **options)
