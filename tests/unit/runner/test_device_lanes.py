"""Executing on devices: one conversation at a time, leases and looks first, giving way, on a real ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick._wiring import ADAPTERS
from tallystick.ledger import leases
from tallystick.ledger.errors import IdentityChanged, TargetNotFound
from tallystick.ledger.lease_records import DeviceAsk, Granted
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import SlotState
from tallystick.ledger.turnstile import STALL_SECONDS
from tallystick.runner import executor
from tallystick.runner.descriptions import describe
from tallystick.runner.device_protocols import TakenOver, Tenure
from tallystick.runner.protocols import Dispatching, Outcome
from tallystick.runner.results import NextMove, RunOutcome
from tallystick.runner.sessions import find_or_create, run_session
from tallystick.runner.stopping import StopSwitch
from tests.unit.runner.benches import Bench, OnBench
from tests.unit.runner.scripted import ANSWERED, REFUSED, Scripted, always, execute, in_turn, order_of


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_DEVICE_LOCKS", str(tmp_path / "locks"))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        yield opened


def rows(ledger: Ledger, sql: str, *parameters: object) -> list[Any]:
    with ledger.reading() as reader:
        return reader.rows(sql, parameters)


def session_of(
    ledger: Ledger, target: Any, *, stop: StopSwitch | None = None, **options: Any
) -> Coroutine[Any, Any, RunOutcome]:
    found = find_or_create(ledger, describe(order_of(target, **options), ADAPTERS), new=True)
    return run_session(ledger, found, stop=stop)


def hold(ledger: Ledger, *names: str) -> str:
    """Another holder of these devices, who never lets go by himself."""
    asks = [DeviceAsk(name, "bench", True, 600_000) for name in names]
    set_id = ledger.write(lambda tx: leases.ask(tx, asks, run_key=None))
    assert isinstance(ledger.write(lambda tx: leases.try_grant(tx, set_id)), Granted)
    return set_id


def let_go(ledger: Ledger, set_id: str) -> None:
    ledger.write(lambda tx: leases.release(tx, set_id))


async def until_waiting(ledger: Ledger, *, count: int = 1) -> None:
    while len(rows(ledger, "SELECT 1 FROM leases WHERE state = 'waiting'")) != count:  # noqa: ASYNC110 - rows wake nobody
        await asyncio.sleep(0)


def test_every_request_goes_out_under_one_lease_with_its_fence_after_the_look(ledger: Ledger) -> None:
    target = OnBench()
    outcome = execute(ledger, target, cases=3)
    assert outcome.counts[SlotState.SELECTED] == 3
    assert outcome.next is NextMove.NOTHING
    assert [(fence, role) for _, fence, role in target.benches[0].log] == [(1, "reset"), *[(1, "submit")] * 3]
    assert len(target.tenures) == len(target.left) == 1
    assert rows(ledger, "SELECT state, fence, reason FROM leases WHERE resource = 'bench:1'") == [
        ("released", 1, "the session ended")
    ]
    assert rows(ledger, "SELECT owner, role, fence, lease_id IS NOT NULL FROM calls ORDER BY call_id") == [
        ("lease", "reset", 1, 1), *[("attempt", "target", 1, 1)] * 3
    ]  # fmt: skip


def test_a_run_without_devices_asks_for_no_lease_and_no_claim(ledger: Ledger, tmp_path: Path) -> None:
    execute(ledger, Scripted(always(ANSWERED)))
    assert rows(ledger, "SELECT 1 FROM leases WHERE resource NOT LIKE 'run:%'") == []
    assert not (tmp_path / "locks").exists()


def test_a_writer_that_stands_still_costs_a_holder_no_more_than_a_part_of_its_lease(ledger: Ledger) -> None:
    limits: list[float] = []

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        limits.append(ledger._shared.turnstile._stall_seconds())
        return ANSWERED

    execute(ledger, OnBench(reply=reply), device={"lease_seconds": 3.0})
    assert limits == [1.0]
    assert ledger._shared.turnstile._stall_seconds() == STALL_SECONDS


def test_a_device_never_has_two_conversations_at_once_whatever_the_concurrency(ledger: Ledger) -> None:
    under_way, most = [0], [0]

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        for _ in range(20):
            await asyncio.sleep(0)
        under_way[0] -= 1
        return ANSWERED

    bench = Bench()
    benches = {name: OnBench(reply=reply, benches=(bench,)) for name in ("old", "new")}
    sides = {**benches, "free": Scripted(always(ANSWERED))}
    outcome = execute(ledger, sides, cases=4, concurrency=8)
    assert outcome.counts[SlotState.SELECTED] == 12
    assert most == [1]
    assert rows(ledger, "SELECT count(*) FROM leases WHERE resource = 'bench:1'") == [(1,)]
    assert all(len(side.tenures) == 1 for side in benches.values())  # each looks once in the tenure that they share


def test_two_devices_have_a_conversation_each_at_the_same_time(ledger: Ledger) -> None:
    async def met() -> RunOutcome:
        barrier = asyncio.Barrier(2)

        async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
            async with asyncio.timeout(30):
                await barrier.wait()
            return ANSWERED

        sides = {name: OnBench(reply=reply, benches=(Bench(name),)) for name in ("bench:a", "bench:b")}
        return await session_of(ledger, sides, cases=2)

    assert asyncio.run(met()).counts[SlotState.SELECTED] == 4


def test_what_needs_no_device_goes_on_while_a_device_is_waited_for(ledger: Ledger) -> None:
    held, ended = hold(ledger, "bench:1"), list[str]()

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        ended.append(dispatching.slot.variant)
        if ended == ["free"] * 3:
            let_go(ledger, held)
        return ANSWERED

    sides = {"bench": OnBench(reply=reply), "free": Scripted(reply)}
    outcome = execute(ledger, sides, cases=3, concurrency=1)
    assert outcome.counts[SlotState.SELECTED] == 6
    assert ended == ["free"] * 3 + ["bench"] * 3


def test_a_stop_ends_the_wait_and_leaves_the_line(ledger: Ledger) -> None:
    hold(ledger, "bench:1")
    stop, target = StopSwitch(), OnBench()

    async def stopped() -> RunOutcome:
        running = asyncio.ensure_future(session_of(ledger, target, stop=stop))
        await until_waiting(ledger)
        stop.ask("SIGINT")
        return await running

    outcome = asyncio.run(stopped())
    assert outcome.counts[SlotState.PENDING] == 1
    assert int(outcome.exit_status) == 130
    assert target.benches[0].log == []
    states = rows(ledger, "SELECT state FROM leases WHERE resource = 'bench:1' ORDER BY set_id")
    assert states == [("held",), ("released",)]


def test_patience_ends_and_the_session_says_that_resuming_helps(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(ledger, "bench:1")
    monkeypatch.setattr(executor, "PATIENCE_SECONDS", 0.0)
    sides = {"bench": OnBench(), "free": Scripted(always(ANSWERED))}
    outcome = execute(ledger, sides)
    assert outcome.counts[SlotState.PENDING] == outcome.counts[SlotState.SELECTED] == 1
    assert outcome.next is NextMove.RESUME
    assert int(outcome.exit_status) == 75


def test_a_set_is_taken_all_or_none(ledger: Ledger) -> None:
    held = hold(ledger, "bench:b")
    target = OnBench(benches=(Bench("bench:a"), Bench("bench:b")))

    async def waited() -> RunOutcome:
        running = asyncio.ensure_future(session_of(ledger, target))
        await until_waiting(ledger, count=2)
        assert rows(ledger, "SELECT 1 FROM leases WHERE resource = 'bench:a' AND state = 'held'") == []
        let_go(ledger, held)
        return await running

    assert asyncio.run(waited()).counts[SlotState.SELECTED] == 1
    assert [role for _, _, role in target.benches[0].log] == ["reset", "submit"]


def test_two_runs_that_want_the_same_devices_in_another_order_both_end(ledger: Ledger) -> None:
    a, b = Bench("bench:a"), Bench("bench:b")
    targets = OnBench(benches=(a, b)), OnBench(benches=(b, a))

    async def both() -> list[RunOutcome]:
        async with asyncio.timeout(60):
            return await asyncio.gather(*(
                session_of(ledger, {f"v{number}": target}, cases=3, device={"tenure_seconds": 0})
                for number, target in enumerate(targets)
            ))  # fmt: skip

    assert [outcome.counts[SlotState.SELECTED] for outcome in asyncio.run(both())] == [3, 3]


def test_a_run_gives_way_to_one_that_waits_and_gets_the_device_back(ledger: Ledger) -> None:
    bench = Bench()
    targets = [OnBench(benches=(bench,)) for _ in range(2)]

    async def both() -> list[RunOutcome]:
        async with asyncio.timeout(60):
            return await asyncio.gather(*(
                session_of(ledger, {f"v{number}": target}, cases=4, device={"tenure_seconds": 0})
                for number, target in enumerate(targets)
            ))  # fmt: skip

    outcomes = asyncio.run(both())
    assert [outcome.counts[SlotState.SELECTED] for outcome in outcomes] == [4, 4]
    fences = [fence for _, fence, _ in bench.log]
    assert fences == sorted(fences)
    assert min(len(target.tenures) for target in targets) >= 2  # neither waited for the other's end
    assert [len(target.left) for target in targets] == [len(target.tenures) for target in targets]
    assert bench.refused == []


def test_a_young_tenure_is_kept_though_somebody_waits(ledger: Ledger) -> None:
    bench = Bench()
    first = OnBench(benches=(bench,))

    async def both() -> None:
        asked = asyncio.Event()

        async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
            asked.set()
            await until_waiting(ledger)
            return ANSWERED

        first.reply = reply
        running = asyncio.ensure_future(session_of(ledger, {"v0": first}, cases=3))
        await asked.wait()
        await asyncio.gather(running, session_of(ledger, {"v1": OnBench(benches=(bench,))}, cases=1))

    asyncio.run(both())
    assert len(first.tenures) == 1


def test_a_device_that_is_not_used_goes_to_who_waits_however_young_the_tenure(ledger: Ledger) -> None:
    later = Outcome(REFUSED.state, "http.status.503", "busy", bytes_sent=5, retry_after_seconds=60)
    bench = Bench()
    idle, stop = OnBench(reply=in_turn(later, ANSWERED), benches=(bench,)), StopSwitch()

    async def both() -> RunOutcome:
        running = asyncio.ensure_future(session_of(ledger, {"v0": idle}, stop=stop, deadline_seconds=1))
        while not idle.asked:  # noqa: ASYNC110 - a list wakes nobody
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            outcome = await session_of(ledger, {"v1": OnBench(benches=(bench,))})
        stop.ask("enough")
        await running
        return outcome

    assert asyncio.run(both()).counts[SlotState.SELECTED] == 1


def looks(problem: Exception, *, after: int = 0) -> Any:
    seen: list[Tenure] = []

    async def look(target: OnBench, tenure: Tenure) -> TakenOver:
        seen.append(tenure)
        if len(seen) > after:
            raise problem
        return TakenOver({})

    return look


@pytest.mark.parametrize(
    "problem",
    [
        IdentityChanged("the device at that address is SN-2 and not SN-1", "give the address of SN-1"),
        TargetNotFound("nobody listens at 127.0.0.1:1", "start the device"),
    ],
)
def test_a_device_that_is_not_the_one_meant_or_not_there_ends_the_session_with_nothing_sent(
    ledger: Ledger, problem: Exception
) -> None:
    target = OnBench(look=looks(problem))
    with pytest.raises(type(problem)) as caught:
        execute(ledger, target)
    assert caught.value is problem
    assert target.asked == []
    assert rows(ledger, "SELECT state FROM leases WHERE resource <> 'bench:1'") == [("released",)]
    assert rows(ledger, "SELECT state FROM leases WHERE resource = 'bench:1'") == [("released",)]


def test_an_adapter_that_raises_whatever_else_in_its_look_ends_the_session_with_a_remedy(ledger: Ledger) -> None:
    with pytest.raises(TargetNotFound, match=r"bench:1 could not be taken over \(ZeroDivisionError: oops\)"):
        execute(ledger, OnBench(look=looks(ZeroDivisionError("oops"))))


def test_an_adapter_that_raises_when_it_lets_go_keeps_nobody_from_the_device(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    class Clinging(OnBench):
        async def let_go(self, tenure: Tenure) -> None:
            raise ZeroDivisionError("oops")

    assert execute(ledger, Clinging()).counts[SlotState.SELECTED] == 1
    assert rows(ledger, "SELECT state FROM leases WHERE resource = 'bench:1'") == [("released",)]
    assert "could not be left in good order" in caplog.text
