"""Requests to an Atlas device: answers under their own id and fence, and nothing sent to a device out of step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger.states import DispatchState
from tallystick.runner.protocols import Outcome

from ...fixtures.atlas_handle import AtlasDevice
from .device_makers import FakeTenure, a_device, held, send
from .makers import make_case, make_slot, run

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


def asking(value: Any, **behave: Any) -> Any:
    return make_slot(make_case({"answer": value, "behave": behave}))


def ask_all(device: AtlasDevice, *slots: Any, tenure: FakeTenure | None = None, **options: Any) -> list[Outcome]:
    """Take the device over, send one request after the other, leave."""

    async def scenario() -> list[Outcome]:
        deadline = options.pop("deadline_seconds", 30.0)
        async with held(device, tenure, **options) as (target, taken):
            assert taken.quarantine is None
            return [(await send(target, slot, deadline_seconds=deadline))[0] for slot in slots]

    return run(scenario())


def test_answer_is_taken_under_its_own_id_and_fence(device: AtlasDevice) -> None:
    (outcome,) = ask_all(device, asking(42, usage={"tokens_in": 3}), tenure=FakeTenure(7))
    assert (outcome.state, outcome.answer) == (ANSWERED, 42)
    assert outcome.usage is not None
    assert outcome.usage.tokens_in == 3
    (line,) = device.lines(role="submit")
    assert (line["fence"], line["verdict"], line["boot_count"]) == (7, "accepted", 1)


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
    assert (wrong.state, wrong.reason) == (UNKNOWN, "reply.mismatched")
    assert told in wrong.message
    assert wrong.quarantine is None
    assert (right.state, right.answer) == (ANSWERED, "its own")
    assert tenure.roles == ["reconcile", "reset", "reset"]  # the last one before the second request
    assert [line["role"] for line in device.lines()] == ["fence", "reset", "submit", "reset", "submit"]


def test_reply_of_another_device_quarantines_the_device(device: AtlasDevice) -> None:
    (outcome,) = ask_all(device, asking("whose?", as_serial="SN-2"))
    assert (outcome.state, outcome.reason) == (UNKNOWN, "reply.mismatched")
    assert outcome.quarantine == "SN-2 answers in place of SN-1"
