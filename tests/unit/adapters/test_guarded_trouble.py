"""Guarded targets that misbehave: swallow their cancellation, start threads of their own, close clients early."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

import tallystick as ts
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import SlotState
from tallystick.runner import flights, inner_calls

from .guarded import URL, Model, attempts, dispatches, echo, run


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "l.db"
    with Ledger.open(tmp_path / "l.db") as ledger:
        assert check_ledger(ledger) == []


async def hangs(request: httpx.Request) -> httpx.Response:
    await asyncio.Event().wait()
    raise AssertionError


def test_a_guarded_target_that_swallows_its_cancellation_leaves_its_request_unknown_and_sends_nothing_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flights, "CANCEL_SLACK_SECONDS", 0.05)
    monkeypatch.setattr(flights, "ABANDON_SLACK_SECONDS", 0.1)
    free, refused = asyncio.Event(), list[Exception]()

    async def stubborn(case: ts.Case) -> str:
        client = ts.httpx_async_client(transport=httpx.MockTransport(hangs))
        while not free.is_set():
            try:
                await client.post(URL, json={"say": 1})
            except asyncio.CancelledError:
                continue
            except ts.TallystickError as problem:
                refused.append(problem)
                with contextlib.suppress(asyncio.CancelledError):
                    await free.wait()
        return "at last"

    async def both() -> ts.RunOutcome:
        target = ts.target(if_unknown="keep", guarded=True, version="1")(stubborn)
        order = ts.WorkOrder(
            "agents", cases=[{"id": "a", "input": 1}], target=target, budgets={"dispatches": 9}, deadline_seconds=0.05
        )
        outcome = await ts.run_async(order, ledger=path)
        free.set()
        return outcome

    outcome = asyncio.run(both())

    assert outcome.counts[SlotState.UNKNOWN] == 1
    assert [one.state for one in dispatches(path)] == ["unknown"]
    assert refused, "what it asks for after its end is refused"


def test_a_thread_of_a_targets_own_asks_in_its_attempt_with_a_copy_of_its_context_and_is_refused_without(
    path: Path,
) -> None:
    model, refused = Model(echo), list[Exception]()

    def agent(case: ts.Case) -> str:
        with ts.httpx_client(transport=model) as client:

            def asks(say: str) -> None:
                try:
                    client.post(URL, json={"say": say})
                except ts.AttemptOver as problem:
                    refused.append(problem)

            threads = [
                threading.Thread(target=contextvars.copy_context().run, args=(asks, "known")),
                threading.Thread(target=asks, args=("stray",)),
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return "done"

    run(path, agent)

    assert [request.content for request in model.seen] == [b'{"say":"known"}']
    assert "contextvars.copy_context()" in str(refused[0])
    assert len(dispatches(path)) == 1


def test_a_thread_that_outlives_its_target_is_refused_and_its_open_request_is_unknown(path: Path) -> None:
    sent, go, ended = threading.Event(), threading.Event(), threading.Event()
    heard: list[Exception] = []

    def slow(request: httpx.Request) -> httpx.Response:
        sent.set()
        assert go.wait(60)
        return echo(request)

    def agent(case: ts.Case) -> str:
        client = ts.httpx_client(transport=httpx.MockTransport(slow))

        def asks() -> None:
            for say in ("under way", "too late"):
                try:
                    client.post(URL, json={"say": say})
                except ts.TallystickError as problem:
                    heard.append(problem)
            ended.set()

        threading.Thread(target=contextvars.copy_context().run, args=(asks,)).start()
        assert sent.wait(60)
        return "early"

    outcome = run(path, agent)
    go.set()
    assert ended.wait(60)

    assert outcome.counts[SlotState.SELECTED] == 1
    assert [(one.state, one.reason) for one in dispatches(path)] == [("unknown", "target.returned")]
    assert len(heard) == 2, "both are told: the answer that came too late, and the request that was not sent"


async def two_parts() -> AsyncIterator[bytes]:
    yield b"data: 1\n\n"
    yield b"data: 2\n\n"


def test_a_client_that_is_closed_with_a_stream_unread_leaves_its_request_unknown(path: Path) -> None:
    async def agent(case: ts.Case) -> str:
        events = {"Content-Type": "text/event-stream"}
        model = Model(lambda request: httpx.Response(200, content=two_parts(), headers=events))
        client = ts.httpx_async_client(transport=model)
        await client.send(client.build_request("POST", URL, json={}), stream=True)
        await client.aclose()
        return "early"

    run(path, agent)

    assert [(one.state, one.reason) for one in dispatches(path)] == [("unknown", "target.returned")]


def test_a_stream_that_is_cleared_away_after_its_attempt_is_unknown_and_raises_in_nobodys_face(path: Path) -> None:
    left: list[httpx.Response] = []

    def agent(case: ts.Case) -> str:
        events = {"Content-Type": "text/event-stream"}
        model = Model(
            lambda request: httpx.Response(200, content=iter([b"data: 1\n\n", b"data: 2\n\n"]), headers=events)
        )
        client = ts.httpx_client(transport=model)
        left.append(client.send(client.build_request("POST", URL, json={}), stream=True))
        assert next(left[0].iter_bytes()) == b"data: 1\n\n"
        return "early"

    run(path, agent)
    left[0].close()  # as the garbage collector does with a loop that was left by `break`

    assert [(one.state, one.reason) for one in dispatches(path)] == [("unknown", "target.returned")]


def test_a_client_that_was_closed_sends_nothing_more(path: Path) -> None:
    model = Model(echo)

    def agent(case: ts.Case) -> str:
        client = ts.httpx_client(transport=model)
        client.close()
        return client.post(URL, json={"say": 1}).text

    run(path, agent, attempts_max=1)

    assert (model.seen, dispatches(path)) == ([], [])
    assert attempts(path) == [("failed", "python.exception")]


@pytest.mark.parametrize("size", [10, 100_000])
def test_an_answer_that_is_there_is_committed_though_its_reader_is_cancelled(
    path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    def cancelled_when_it_is_there(point: str) -> None:
        if point == "dispatch.sent":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    monkeypatch.setattr(inner_calls, "crashpoint", cancelled_when_it_is_there)
    model = Model(lambda request: httpx.Response(200, text="x" * size))

    async def agent(case: ts.Case) -> str:
        client = ts.httpx_async_client(transport=model)
        task = asyncio.ensure_future(client.post(URL, json={"say": 1}))
        await asyncio.wait([task])
        return "cancelled" if task.cancelled() else "not cancelled"

    run(path, agent)

    with ts.open(path) as ledger:
        (attempt,) = ledger.case("agents", "a")[0].attempts
    assert attempt.answer == '"cancelled"'
    assert [one.state for one in attempt.dispatches] == ["answered"]
