from __future__ import annotations

import asyncio
import logging
import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tallystick as ts
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import SlotState

CONFIG = {"model": "a"}


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "evals.db"
    with Ledger.open(tmp_path / "evals.db") as ledger:
        assert check_ledger(ledger) == []


async def answered(slot: ts.EmbeddedSlot, sent: list[str] | None = None) -> None:
    async with slot.attempt() as attempt:
        async with attempt.call("model", {"ask": slot.case.id}) as call:
            if sent is not None:
                sent.append(call.request_id)
            call.answer({"text": slot.case.id}, usage=ts.Usage(3, 4))
        attempt.observe(slot.case.id.upper())


async def begun(ledger: ts.AsyncLedger, slots: Any = ("a", "b"), **more: Any) -> ts.EmbeddedRun:
    return await ledger.create_or_continue("bench", slots=slots, identity=CONFIG, **more)


def counts(path: Path) -> dict[str, int]:
    with ts.open(path) as ledger:
        return {str(state): count for state, count in ledger.counts("bench").items() if count}


def states(path: Path, case: str = "a") -> list[tuple[str, str | None]]:
    with ts.open(path) as ledger:
        return [(attempt.state, attempt.reason) for attempt in ledger.case("bench", case)[0].attempts]


def test_only_what_is_left_is_claimed_and_a_finished_run_claims_nothing(path: Path) -> None:
    async def harness(most: int) -> list[str]:
        seen = []
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, ["a", "b", "c"], repetitions=2)
            async for slot in run.claims():
                seen.append(slot.case.id)
                await answered(slot)
                if len(seen) == most:
                    break
        return seen

    assert asyncio.run(harness(2)) == ["a", "b"]
    assert asyncio.run(harness(9)) == ["c", "a", "b", "c"]
    assert asyncio.run(harness(9)) == []
    assert counts(path) == {"selected": 6}


def test_a_task_group_works_at_no_more_slots_than_it_asks_for(path: Path) -> None:
    async def harness() -> int:
        out = most = 0
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, [f"q{number}" for number in range(12)], budget=ts.Budget(dispatches=50))

            async def work(slot: ts.EmbeddedSlot) -> None:
                nonlocal out, most
                async with slot.attempt() as attempt:
                    out += 1
                    most = max(most, out)
                    async with attempt.call("model", slot.case.id) as call:
                        call.answer("yes")
                    attempt.observe(slot.case.id.upper())
                    out -= 1

            async with asyncio.TaskGroup() as tasks:
                async for slot in run.claims(concurrency=3):
                    tasks.create_task(work(slot))
            assert [row.answer for row in ledger.observations(run)] == [f"Q{number}" for number in range(12)]
            assert ledger.budgets("bench")[0].settled == 12
        return most

    assert 1 < asyncio.run(harness()) <= 3


def test_the_intent_is_durable_before_the_block_of_a_call_is_entered(path: Path) -> None:
    async def harness() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, ["a"])
            async for slot in run.claims():
                async with slot.attempt() as attempt:
                    async with attempt.call("model", {"n": 1}) as call:
                        with Ledger.open(path) as other, other.reading() as reader:
                            assert reader.rows("SELECT call_id, state FROM dispatches") == [
                                (call.request_id, "intended")
                            ]
                        call.answer("yes")
                    attempt.observe(1)

    asyncio.run(harness())


def test_a_call_that_is_left_without_a_word_is_unknown_and_decides_about_its_attempt(path: Path) -> None:
    async def harness() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger)
            async for slot in run.claims():
                async with slot.attempt() as attempt, attempt.call("model", {}):
                    pass
            (first, *_) = ledger.unknown("bench")
            assert first.reason == "call.unsaid"

    asyncio.run(harness())
    assert counts(path) == {"unknown": 2}


def test_an_exception_goes_on_and_its_call_is_unknown(path: Path) -> None:
    async def harness() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, ["a"], if_unknown="repeat", attempts_max=2, backoff={"first_seconds": 0.001})
            tries = 0
            async for slot in run.claims():
                tries += 1
                if tries == 2:
                    await answered(slot)
                    continue
                with pytest.raises(ConnectionError, match="gone"):
                    async with slot.attempt() as attempt, attempt.call("model", {}):
                        raise ConnectionError("gone")

    asyncio.run(harness())
    assert [state for state, _ in states(path)] == ["unknown", "observed"]


def test_a_cancelled_call_is_unknown_and_its_outcome_is_committed_before_the_cancellation_goes_on(path: Path) -> None:
    async def harness() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, ["a"])
            inside = asyncio.Event()

            async def work(slot: ts.EmbeddedSlot) -> None:
                async with slot.attempt() as attempt, attempt.call("model", {}):
                    inside.set()
                    await asyncio.Event().wait()

            async for slot in run.claims():
                task = asyncio.ensure_future(work(slot))
                await inside.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert [one.reason for one in ledger.unknown("bench")] == ["call.broken_off"]

    asyncio.run(harness())
    assert counts(path) == {"unknown": 1}


def test_an_attempt_that_is_cancelled_between_its_calls_waits_again(path: Path) -> None:
    async def harness() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, ["a"])
            inside = asyncio.Event()

            async def work(slot: ts.EmbeddedSlot) -> None:
                async with slot.attempt() as attempt:
                    async with attempt.call("model", {}) as call:
                        call.answer(1)
                    inside.set()
                    await asyncio.Event().wait()

            async for slot in run.claims():
                task = asyncio.ensure_future(work(slot))
                await inside.wait()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                break

    asyncio.run(harness())
    assert counts(path) == {"pending": 1}
    assert states(path) == [("interrupted", "cancelled")]


def test_a_deadline_cancels_the_block_and_is_told_as_a_time_out(path: Path) -> None:
    async def harness() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, ["a"])
            async for slot in run.claims():
                with pytest.raises(TimeoutError):
                    async with slot.attempt(deadline_seconds=0.5) as attempt, attempt.call("model", {}):
                        await asyncio.Event().wait()

    asyncio.run(harness())
    assert states(path) == [("unknown", "deadline")]


def test_an_attempt_without_an_observation_has_failed_and_is_retried_where_that_is_allowed(path: Path) -> None:
    async def harness() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(
                ledger, ["a", "b"], retry=["lazy"], attempts_max=2, backoff={"first_seconds": 0.001}
            )  # fmt: skip
            async for slot in run.claims():
                async with slot.attempt() as attempt:
                    if slot.case.id == "a":
                        attempt.fail("not today", reason="lazy")

    asyncio.run(harness())
    assert states(path) == [("failed", "lazy")] * 2
    assert states(path, "b") == [("failed", "attempt.not_observed")]


def test_a_full_budget_comes_out_of_the_call_and_ends_the_claims(path: Path) -> None:
    async def harness(limit: int) -> list[str]:
        sent: list[str] = []
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, ["a", "b", "c"], budget={"dispatches": limit})
            async for slot in run.claims():
                try:
                    await answered(slot, sent)
                except ts.BudgetExhausted:
                    continue
        return sent

    assert len(asyncio.run(harness(2))) == 2
    assert counts(path) == {"selected": 2, "pending": 1}
    assert len(asyncio.run(harness(3))) == 1
    assert counts(path) == {"selected": 3}


def test_a_call_sets_aside_what_it_may_cost_and_is_refused_where_that_does_not_fit(path: Path) -> None:
    async def harness() -> None:
        async with ts.open_async(path) as ledger:
            budget = ts.Budget(usd="1.00", usd_bound="0.10")
            run = await begun(ledger, ["a", "b"], budget=budget)
            async for slot in run.claims():
                async with slot.attempt() as attempt:
                    if slot.case.id == "b":
                        with pytest.raises(ts.BudgetExhausted):
                            await attempt.call("dear", {}, bound_usd="5").__aenter__()
                        continue
                    with pytest.raises(ts.UsageError, match="no amount"):
                        attempt.call("model", {}, bound_usd="much")
                    async with attempt.call("model", {}, bound_usd="0.75") as call:
                        assert ledger.budgets("bench")[0].held == 750_000_000
                        call.answer("x", usage=ts.Usage(cost_nanousd=1_000_000))
                    attempt.observe("x")
            assert ledger.budgets("bench")[0].settled == 1_000_000

    asyncio.run(harness())


def test_what_was_answered_before_a_break_comes_back_where_a_replay_is_asked_for(path: Path) -> None:
    sent = 0

    async def harness(*, breaks: bool) -> None:
        nonlocal sent
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, ["a"])
            async for slot in run.claims():
                async with slot.attempt(replay=True) as attempt:
                    for number in range(3):
                        async with attempt.call("model", {"n": number}) as call:
                            if call.known is None:
                                sent += 1
                                call.answer({"n": number})
                            else:
                                assert call.known == b'{"n":%d}' % number
                        if breaks and number == 1:
                            raise asyncio.CancelledError
                    attempt.observe("done")

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(harness(breaks=True))
    asyncio.run(harness(breaks=False))
    assert sent == 3
    assert counts(path) == {"selected": 1}


def test_another_identity_is_refused_and_another_promise_too(path: Path) -> None:
    async def harness() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger)
            await run.close()
            with pytest.raises(ts.IdentityChanged):
                await ledger.create_or_continue("bench", slots=["a", "b"], identity={"model": "b"})
            with pytest.raises(ts.IdentityChanged):
                await ledger.create_or_continue("bench", slots=["a", "c"], identity=CONFIG)
            with pytest.raises(ts.UsageError, match='no if_unknown = "query"'):
                await begun(ledger, if_unknown="query")

    asyncio.run(harness())


def test_a_run_that_is_held_is_busy_and_is_given_back_with_the_ledger(path: Path) -> None:
    async def harness() -> None:
        async with ts.open_async(path) as ledger:
            await begun(ledger)
            with pytest.raises(ts.RunBusy, match=r"is executed by this process .* already"):
                await begun(ledger)
        async with ts.open_async(path) as ledger:
            await begun(ledger)

    asyncio.run(harness())


def test_an_embedder_keeps_its_handlers_its_output_its_loop_and_its_old_ledgers(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def handlers() -> list[Any]:
        return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    async def harness() -> None:
        before = asyncio.all_tasks()
        async with ts.open_async(path) as ledger:
            run = await begun(ledger)
            async for slot in run.claims():
                await answered(slot)
                assert asyncio.all_tasks() == before, "no task of ours stays on the caller's loop"

    known = handlers(), logging.getLogger().handlers[:], logging.getLogger("tallystick").handlers[:]
    threads = threading.active_count()
    asyncio.run(harness())
    assert (handlers(), logging.getLogger().handlers, logging.getLogger("tallystick").handlers) == known
    assert threading.active_count() <= threads + 1, "the loop's own worker thread at most"
    assert capfd.readouterr() == ("", "")


def test_an_older_ledger_is_not_upgraded_unasked(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    Ledger.open(path, create=True).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 0")
    connection.close()
    before = path.read_bytes()

    async def harness() -> None:
        async with ts.open_async(path):
            raise AssertionError("it must not be opened")

    with pytest.raises(ts.TallystickError):
        asyncio.run(harness())
    assert path.read_bytes() == before


def test_states_are_read_with_their_types(path: Path) -> None:
    async def harness() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, [ts.Case("a", {"q": 1}, "A"), {"id": "b", "input": None}])
            async for slot in run.claims():
                await answered(slot)
            (first, second) = ledger.observations("bench")
            assert (first.case_id, first.answer, first.repetition, first.attempt) == ("a", "A", 1, 1)
            assert second.case_id == "b"
            assert ledger.counts("bench")[SlotState.SELECTED] == 2

    asyncio.run(harness())


ODD_BOUNDS: list[dict[str, Any]] = [
    {"bound_tokens": "7"}, {"bound_tokens": 1.5}, {"bound_tokens": True}, {"bound_tokens": -1}, {"bound_tokens": 2**70},
    {"bound_usd": "x"}, {"bound_usd": -1}, {"bound_usd": "1e40"},
]  # fmt: skip


def test_a_bound_that_is_no_amount_sets_nothing_aside_and_sends_nothing(path: Path) -> None:
    async def main() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, budget={"tokens": {"limit": 100, "bound_per_dispatch": 10}})
            slot = await anext(run.claims())
            async with slot.attempt() as attempt:
                for odd in ODD_BOUNDS:
                    with pytest.raises(ts.UsageError, match="is no "):
                        attempt.call("model", 1, **odd)
                with pytest.raises(ts.UsageError, match="the request cannot be kept"):
                    attempt.call("model", {1: 2})  # type: ignore[dict-item]
                attempt.observe(1)
            assert [one.held + one.settled for one in ledger.budgets("bench")] == [0]

    asyncio.run(main())


def test_slots_or_an_identity_that_are_none_are_refused(path: Path) -> None:
    async def main() -> None:
        async with ts.open_async(path) as ledger:
            with pytest.raises(ts.UsageError, match="slots='abc' is no list"):
                await begun(ledger, slots="abc")
            with pytest.raises(ts.UsageError, match="is no mapping"):
                await ledger.create_or_continue("bench", slots=["a"], identity=[1])  # type: ignore[arg-type]

    asyncio.run(main())


def test_what_is_said_beside_an_outcome_in_an_odd_type_does_not_lose_it(path: Path) -> None:
    async def main() -> list[tuple[str, str, str, int | None]]:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, slots=["a"], if_unknown="repeat")
            slot = await anext(run.claims())
            async with slot.attempt() as attempt:
                async with attempt.call("first", 1) as call:
                    call.answer("x", status=2**70)
                async with attempt.call("second", 1) as call:
                    call.fail(ValueError("no"), reason=None, status="500")  # type: ignore[arg-type]
                for wait in ("1", float("nan"), float("inf"), 1e30, -1):
                    async with attempt.call("third", 1) as call:
                        call.refuse(retry_after_seconds=wait)  # type: ignore[arg-type]
                attempt.fail(None, reason=5)  # type: ignore[arg-type]
            return [(one.state, one.reason, one.message, one.status) for one in ledger.calls(run)]

    told = asyncio.run(main())
    assert told[:2] == [("answered", "", "", None), ("failed", "call.failed", "no", None)]
    assert told[2:] == [("refused", "call.refused", "", None)] * 5


def test_evidence_and_flags_of_an_odd_type_are_kept_as_what_they_can_be(path: Path) -> None:
    odd: list[dict[str, Any]] = [
        {"evidence": "a text", "flags": "truncated"},
        {"evidence": None, "flags": None},
        {"evidence": [1], "flags": [1, "cut"]},
    ]

    async def main() -> list[tuple[Any, Any]]:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, slots=["a", "b", "c"])
            async for slot in run.claims():
                async with slot.attempt() as attempt:
                    attempt.observe(1, **odd["abc".index(slot.case.id)])
            return [(one.evidence, one.flags) for one in ledger.observations(run)]

    told = [({"evidence": "a text"}, ("truncated",)), ({}, ()), ({"evidence": [1]}, ("1", "cut"))]
    assert asyncio.run(main()) == told

    with ts.guard("g", ledger=path) as guard:
        assert [
            guard.call(number, lambda given=given: ts.Answer("paid", **given)) for number, given in enumerate(odd)
        ] == ["paid"] * 3


def test_a_slot_that_is_passed_over_keeps_no_failed_one_from_being_tried_again(path: Path) -> None:
    tries: list[str] = []

    async def main() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, slots=["a", "b"], retry=["busy"], backoff={"first_seconds": 0.01})
            async for slot in run.claims():
                tries.append(slot.case.id)
                if slot.case.id == "a":
                    slot.pass_over()
                elif tries.count("b") == 2:
                    await answered(slot)
                else:
                    async with slot.attempt() as attempt:
                        attempt.fail("not now", reason="busy")

    asyncio.run(asyncio.wait_for(main(), 30))
    assert sorted(tries) == ["a", "b", "b"]


def test_slots_that_are_passed_over_wait_on_and_hold_up_no_others(path: Path) -> None:
    async def main() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, slots=["a", "b", "c"])
            async for slot in run.claims(concurrency=1):
                if slot.case.id == "b":
                    await answered(slot)
                else:
                    slot.pass_over()
            assert [row.case_id for row in ledger.observations(run)] == ["b"]
        async with ts.open_async(path) as ledger:
            async for slot in (await begun(ledger, slots=["a", "b", "c"])).claims():
                await answered(slot)

    asyncio.run(asyncio.wait_for(main(), 30))
    assert counts(path) == {"selected": 3}
