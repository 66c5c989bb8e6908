"""Calls of an embedded ledger that are reserved now and sent later, and how calls are read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tallystick as ts
from tallystick.ledger import call_reads
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.ledger import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "evals.db"
    with Ledger.open(tmp_path / "evals.db") as ledger:
        assert check_ledger(ledger) == []


async def begun(ledger: ts.AsyncLedger, slots: Any = ("a", "b"), **more: Any) -> ts.EmbeddedRun:
    return await ledger.create_or_continue("bench", slots=slots, identity={"model": "a"}, **more)


def counts(path: Path) -> dict[str, int]:
    with ts.open(path) as ledger:
        return {str(state): count for state, count in ledger.counts("bench").items() if count}


def test_room_that_is_reserved_is_given_back_when_nothing_was_sent(path: Path) -> None:
    async def harness() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, ["a"], budget=ts.Budget(usd="1.00", usd_bound="0.10"))
            async for slot in run.claims():
                async with slot.attempt() as attempt:
                    held = await attempt.reserve("batch", {"n": 1}, bound_usd="0.95")
                    (budget,) = ledger.budgets("bench")
                    assert budget.held == 950_000_000
                    with pytest.raises(ts.BudgetExhausted):
                        assert not (await attempt.reserve("more", {"n": 2})).is_settled
                    await held.release("the queue is closed")
                    assert ledger.budgets("bench")[0].held == 0
            assert [(one.state, one.reason) for one in ledger.calls(run)] == [("refused", "call.refused")]
            assert ledger.budgets("bench")[0].settled == 0

    asyncio.run(harness())
    assert counts(path) == {"pending": 1}, "a full budget broke its attempt off"


def test_a_reservation_is_settled_once_by_whoever_has_it(path: Path) -> None:
    async def later(held: ts.EmbeddedReservation) -> None:
        await held.answer({"said": "yes"}, usage={"tokens_in": 3, "tokens_out": 4})
        with pytest.raises(ts.UsageError, match="settled already"):
            await held.release()

    async def harness() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, ["a"], budget=ts.Budget(dispatches=5))
            async for slot in run.claims():
                async with slot.attempt() as attempt:
                    with pytest.raises(ts.UsageError, match="nothing is reserved yet"):
                        await attempt.reserve("batch", {}).release()
                    held = await attempt.reserve("batch", {"n": 1})
                    assert [one.state for one in ledger.calls(run)] == ["intended"]
                    await asyncio.ensure_future(later(held))
                    async with attempt.reserve("batch", {"n": 2}) as second:
                        await second.fail("no", reason="model.down", status=500)
                    async with attempt.reserve("batch", {"n": 3}) as third:
                        await third.refuse("later")
                    attempt.observe("yes")
            found = [(one.name, one.state, one.reason, one.tokens_in, one.status) for one in ledger.calls("bench")]
            assert found == [
                ("batch", "answered", "", 3, None), ("batch", "failed", "model.down", None, 500),
                ("batch", "refused", "call.refused", None, None),
            ]  # fmt: skip
            assert ledger.budgets("bench")[0].settled == 3

    asyncio.run(harness())
    assert counts(path) == {"selected": 1}


@pytest.mark.parametrize("way", ["block", "raised", "attempt", "cancelled"])
def test_a_reservation_that_nothing_is_said_of_is_unknown_and_keeps_its_room(path: Path, way: str) -> None:
    async def leaves(attempt: ts.EmbeddedAttempt) -> None:
        if way == "attempt":
            held = await attempt.reserve("batch", {})
            assert not held.is_settled
            attempt.observe("early")
            return
        async with attempt.reserve("batch", {}):
            if way == "raised":
                raise ConnectionError("gone")
            if way == "cancelled":
                raise asyncio.CancelledError
        attempt.observe("early")

    async def harness() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, ["a"], budget=ts.Budget(dispatches=5))
            async for slot in run.claims():
                with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                    async with slot.attempt() as attempt:
                        await leaves(attempt)
            (call,) = ledger.calls(run)
            reason = {"block": "call.unsaid", "attempt": "target.returned"}.get(way, "call.broken_off")
            assert (call.state, call.reason) == ("unknown", reason)
            assert ledger.budgets("bench")[0].held == 1

    asyncio.run(harness())


def test_a_reservation_that_was_answered_before_comes_back_in_a_replay(path: Path) -> None:
    async def harness(*, breaks: bool) -> bytes | None:
        known: bytes | None = None
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, ["a"])
            async for slot in run.claims():
                async with slot.attempt(replay=True) as attempt:
                    held = await attempt.reserve("batch", {"n": 1})
                    known = held.known
                    await held.answer(b"first" if known is None else b"never kept")
                    if breaks:
                        raise asyncio.CancelledError
                    attempt.observe("done")
        return known

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(harness(breaks=True))
    assert asyncio.run(harness(breaks=False)) == b"first"
    with ts.open(path) as ledger:
        assert [len(attempt.dispatches) for attempt in ledger.case("bench", "a")[0].attempts] == [1, 0]


def test_what_a_call_answers_is_paid_for_also_where_it_cannot_be_kept(path: Path) -> None:
    async def harness() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, ["a"])
            async for slot in run.claims():
                with pytest.raises(ts.UsageError, match="cannot be kept"):
                    async with slot.attempt() as attempt, attempt.call("model", {}) as call:
                        call.answer(object(), usage={"tokens_in": 3, "prompt": 9})  # type: ignore[arg-type]
            (one,) = ledger.calls(run)
            assert (one.state, one.tokens_in, one.tokens_out) == ("answered", 3, None)

    asyncio.run(harness())
    assert counts(path) == {"failed": 1}


def test_usage_that_is_nothing_of_the_kind_loses_no_answer(path: Path) -> None:
    async def harness() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, ["a"])
            async for slot in run.claims():
                async with slot.attempt() as attempt:
                    async with attempt.call("model", {}) as call:
                        call.answer("x", usage="12 tokens")  # type: ignore[arg-type]
                    attempt.observe("x")
            assert [(one.state, one.tokens_in) for one in ledger.calls(run)] == [("answered", None)]

    asyncio.run(harness())


def test_calls_are_read_in_order_whatever_their_number(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_reads, "_AT_ONCE", 2)

    async def harness() -> None:
        async with ts.open_async(path) as ledger:
            run = await begun(ledger, ["a", "b"])
            async for slot in run.claims():
                async with slot.attempt() as attempt:
                    for number in range(3 if slot.case.id == "a" else 2):
                        async with attempt.call(f"call {number}", {}) as call:
                            call.answer(number)
                    attempt.observe(1)
            found = list(ledger.calls(run))
            assert [(one.case_id, one.name) for one in found] == [
                ("a", "call 0"), ("a", "call 1"), ("a", "call 2"), ("b", "call 0"), ("b", "call 1"),
            ]  # fmt: skip
            assert all(one.began_at.utcoffset() is not None and one.dispatch == 1 for one in found)

    asyncio.run(harness())
