"""The base of devices in a lab, and the subclass that the documentation shows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import tallystick as ts
from tallystick.adapters.answers import Failed, OutcomeUnknown, Refused
from tallystick.adapters.lab import LabTable, LabTarget
from tallystick.ledger.canonical import JsonValue
from tallystick.ledger.errors import TargetNotFound, WorkOrderInvalid
from tallystick.ledger.states import DispatchState, SlotState
from tallystick.runner.device_protocols import DeviceTarget, TakenOver
from tallystick.runner.protocols import MISSING, Outcome, QueryState, Target

from .device_makers import FakeTenure, open_request, send
from .http_makers import listening
from .makers import make_case, make_slot, run

ANSWERED, FAILED, REFUSED, UNKNOWN = (
    DispatchState.ANSWERED,
    DispatchState.FAILED,
    DispatchState.REFUSED,
    DispatchState.UNKNOWN,
)
PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "write-a-device-adapter.md"
SUBCLASS_LINES_MAX = 40


class Bench(LabTarget):
    """Does what its payload says."""

    kind = "bench"
    says: Mapping[str, JsonValue] = {"serial": "B-1", "firmware": "3"}
    connections = 0

    async def connect(self) -> None:
        self.connections += 1

    async def identify(self) -> Mapping[str, JsonValue]:
        return self.says

    async def ask(self, payload: Any) -> Any:
        match payload:
            case {"raise": name}:
                raise {
                    "refused": Refused("busy", retry_after_seconds=7),
                    "failed": Failed("jammed", reason="bench.jammed", usage={"tokens_in": 3}),
                    "unknown": OutcomeUnknown("who knows"),
                    "odd": ValueError("odd"),
                    "gone": ConnectionResetError("gone"),
                }[name]
            case {"hang": _}:
                await asyncio.Event().wait()
            case {"object": _}:
                return object()
        return payload

    async def disconnect(self) -> None:
        return


class InStep(Bench):
    """Can prove that nothing comes late."""

    async def resynchronise(self) -> None:
        return


def make_bench(made: type[LabTarget] = Bench, **options: Any) -> Any:
    table = {"serial": "B-1", "drain_seconds": 1.0, **options}
    return made.from_work_order(table, folder=Path(), place="target")


@asynccontextmanager
async def held(target: Any, tenure: FakeTenure | None = None) -> AsyncIterator[TakenOver]:
    await target.open()
    try:
        yield await target.take_over(tenure or FakeTenure())
    finally:
        await target.close()


def ask(target: Any, *payloads: JsonValue, tenure: FakeTenure | None = None, **more: Any) -> list[Outcome]:
    async def scenario() -> list[Outcome]:
        async with held(target, tenure):
            return [(await send(target, make_slot(make_case(payload)), **more))[0] for payload in payloads]

    return run(scenario())


# What the base makes of a subclass.


def test_subclass_is_a_target_with_a_device() -> None:
    target = make_bench()
    assert isinstance(target, Target)
    assert isinstance(target, DeviceTarget)
    (need,) = target.devices()
    assert (need.resource, need.compares_fences) == ("bench:B-1", False)


@pytest.mark.parametrize(
    ("name", "state", "reason"),
    [
        ("refused", REFUSED, "target.refused"),
        ("failed", FAILED, "bench.jammed"),
        ("unknown", UNKNOWN, "target.unknown"),
        ("odd", UNKNOWN, "device.broken_off"),
        ("gone", UNKNOWN, "device.broken_off"),
    ],
)
def test_what_a_driver_raises_says_what_became_of_it(name: str, state: DispatchState, reason: str) -> None:
    (outcome,) = ask(make_bench(), {"raise": name})
    assert (outcome.state, outcome.reason, outcome.answer) == (state, reason, MISSING)
    assert outcome.retry_after_seconds == (7 if name == "refused" else None)


def test_what_is_returned_is_the_answer_where_it_has_a_json_form() -> None:
    good, bad = ask(make_bench(), {"volts": [1, None]}, {"object": 1})
    assert (good.state, good.answer) == (ANSWERED, {"volts": [1, None]})
    assert (bad.state, bad.reason) == (FAILED, "answer.not_json")


@pytest.mark.parametrize("payload", [{"hang": 1}, {"raise": "odd"}, {"raise": "unknown"}], ids=str)
def test_unknown_outcome_quarantines_a_device_that_cannot_be_brought_into_step(payload: JsonValue) -> None:
    unknown, held_back = ask(make_bench(), payload, 2, deadline_seconds=0.2)
    assert unknown.state is UNKNOWN
    assert (held_back.state, held_back.reason, held_back.bytes_sent) == (REFUSED, "device.out_of_step", 0)
    assert held_back.quarantine is not None


@pytest.mark.parametrize("payload", [{"hang": 1}, {"raise": "odd"}], ids=str)
def test_device_that_can_be_brought_into_step_goes_on(payload: JsonValue) -> None:
    tenure = FakeTenure()
    unknown, answered = ask(make_bench(InStep), payload, 2, tenure=tenure, deadline_seconds=0.2)
    assert (unknown.state, answered.answer) == (UNKNOWN, 2)
    assert tenure.roles == ["drain", "drain"]


@pytest.mark.parametrize("payload", [{"raise": "refused"}, {"raise": "failed"}, 1], ids=str)
def test_known_outcome_leaves_the_device_in_step(payload: JsonValue) -> None:
    tenure = FakeTenure()
    assert ask(make_bench(InStep), payload, 2, tenure=tenure)[-1].answer == 2
    assert tenure.roles == ["drain"]


def test_device_without_a_proof_is_taken_over_where_nobody_owes_it_an_answer() -> None:
    async def scenario(tenure: FakeTenure) -> TakenOver:
        async with held(make_bench(), tenure) as taken:
            return taken

    assert run(scenario(FakeTenure())).quarantine is None
    assert run(scenario(FakeTenure(2, open=[open_request("old")]))).quarantine is not None


def test_facts_are_kept_and_the_firmware_is_compared() -> None:
    async def scenario() -> TakenOver:
        async with held(make_bench(firmware="3")) as taken:
            return taken

    assert run(scenario()).facts == {"serial": "B-1", "firmware": "3"}
    with pytest.raises(ts.IdentityChanged, match="firmware: 2 -> 3"):
        ask(make_bench(firmware="2"))


def test_proof_that_takes_too_long_is_none() -> None:
    class Slow(Bench):
        async def resynchronise(self) -> None:
            await asyncio.Event().wait()

    async def scenario() -> TakenOver:
        async with held(make_bench(Slow, drain_seconds=0.1)) as taken:
            return taken

    assert run(scenario()).quarantine == "what it is still doing could not be found out within 0.1 s"


def test_device_that_cannot_be_reached_when_it_is_brought_into_step_is_not_quarantined() -> None:
    class Off(Bench):
        async def resynchronise(self) -> None:
            raise ConnectionRefusedError("off")

    async def scenario() -> None:
        async with held(make_bench(Off)):
            raise AssertionError("it is off")

    with pytest.raises(TargetNotFound, match=r"target: bench:B-1: it cannot be reached \(off\)"):
        run(scenario())


def test_device_is_used_under_a_lease_only() -> None:
    async def scenario() -> Outcome:
        target = make_bench()
        await target.open()
        return (await send(target, make_slot(make_case(1))))[0]

    outcome = run(scenario())
    assert (outcome.state, outcome.reason) == (FAILED, "device.not_held")


def test_lost_lease_is_said_when_it_is_noticed_by_a_call_of_it() -> None:
    async def scenario() -> Outcome:
        target, tenure = make_bench(InStep), FakeTenure()
        async with held(target, tenure):
            await send(target, make_slot(make_case({"raise": "odd"})))
            tenure.is_lost = True
            return (await send(target, make_slot(make_case(1))))[0]

    assert run(scenario()).reason == "lease.lost"


def test_device_cannot_be_asked_by_request_id() -> None:
    found = run(make_bench().query("id", make_bench().prepare(make_slot())))
    assert found.state == QueryState.NO_PROOF
    with pytest.raises(WorkOrderInvalid, match=r'target\.if_unknown: a device of kind "bench" cannot be asked'):
        make_bench(if_unknown="query")


def test_patience_is_no_part_of_the_identity() -> None:
    assert make_bench(drain_seconds=9.0, if_unknown="repeat").identity() == make_bench().identity()
    assert make_bench(payload={"x": "{{input}}"}).identity() != make_bench().identity()


def test_subclass_says_how_each_step_is_done_or_it_is_not_implemented() -> None:
    target = LabTarget(LabTable(serial="x"), place="target")
    for step in (target.connect(), target.identify(), target.ask(None)):
        with pytest.raises(NotImplementedError):
            run(step)


# What the documentation shows.


def shown() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def scale_of_the_docs() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "shown"}
    for block in shown():
        exec(block, names)
    return names


class FakeScale:
    """Weighs what it is told to, at once, late, or twice."""

    def __init__(self) -> None:
        self.serial = "SC-9"
        self.asked: list[str] = []
        self.owed: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            number, query, *rest = line.decode().split()
            self.asked.append(query)
            answers = [*self.owed, f"{number};{self.serial if query == 'S' else self.weigh(rest)}\n".encode()]
            self.owed.clear()
            if rest == ["late"]:
                self.owed = answers
            elif rest != ["never"]:
                writer.write(b"".join(answers))

    def weigh(self, what: list[str]) -> str:
        return "OVERLOAD" if what == ["elephant"] else "12.5"


def test_subclass_that_is_shown_is_short_enough() -> None:
    subclass = shown()[0]
    lines = subclass[subclass.index("class ScaleTable") :].splitlines()
    assert len(lines) <= SUBCLASS_LINES_MAX


def test_subclass_that_is_shown_weighs_in_a_run(
    scale_of_the_docs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_DEVICE_LOCKS", str(tmp_path / "locks"))

    async def scenario() -> ts.RunOutcome:
        async with listening(FakeScale().serve) as url:
            order = scale_of_the_docs["order"]({"address": url.removeprefix("http://"), "serial": "SC-9"})
            return await ts.run_async(order, ledger=tmp_path / "l.db")

    assert run(scenario()).counts[SlotState.SELECTED] == 1


def test_subclass_that_is_shown_never_takes_a_late_answer(scale_of_the_docs: dict[str, Any]) -> None:
    async def scenario() -> list[Outcome]:
        scale = FakeScale()
        async with listening(scale.serve) as url:
            table = {"address": url.removeprefix("http://"), "serial": "SC-9"}
            target = scale_of_the_docs["Scale"].from_work_order(table, folder=Path(), place="target")
            async with held(target):
                cases = [make_slot(make_case(what)) for what in ("late", "apple", "elephant", "never", "pear")]
                return [(await send(target, case, deadline_seconds=0.3))[0] for case in cases]

    late, apple, elephant, never, pear = run(scenario())
    assert [late.state, never.state] == [UNKNOWN, UNKNOWN]
    assert (apple.state, apple.answer) == (pear.state, pear.answer) == (ANSWERED, {"grams": 12.5})
    assert (elephant.state, elephant.reason) == (FAILED, "scale.overload")


def test_subclass_that_is_shown_refuses_another_scale(scale_of_the_docs: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with listening(FakeScale().serve) as url:
            table = {"address": url.removeprefix("http://"), "serial": "SC-1"}
            async with held(scale_of_the_docs["Scale"].from_work_order(table, folder=Path(), place="target")):
                raise AssertionError("it is another")

    with pytest.raises(ts.IdentityChanged, match="serial: SC-1 -> SC-9"):
        run(scenario())
