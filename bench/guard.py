"""What guarding costs: an agent's requests, their replay, and the items of a script.

The client is measured against bare httpx that makes the same requests of the same instant transport in this process, so
that nothing but the books is between them: two durable commits a request, one request after the other, and 16 attempts
at a time. Both are measured a second time with an instant service in another process, over a connection, as every
request of a user goes: bare httpx then has to be woken for each answer too. The replay is that of one attempt with
1,000 requests that are answered already. A script's items are mapped by an instant function: new ones, and the same
once more.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
from http_slots import serving
from measure import Asked, Figures, Row, Taken, run_script, scratch_folder, take_in_turns

import tallystick as ts
from tallystick.ledger.driver import connect, harden
from tallystick.ledger.states import SlotState

_ADDED_US_MAX = 1000
_REPLAY_SECONDS_MAX = 0.5
_MAPPED_MIN = 2_000
_REUSED_MIN = 20_000
_URL = "http://instant/ask"
_REPLY = json.dumps({"answer": "yes", "usage": {"prompt_tokens": 3, "completion_tokens": 4}}).encode()
_HEADERS = {"Content-Type": "application/json", "Content-Length": str(len(_REPLY))}


class _Instant(httpx.AsyncBaseTransport):
    """Answers at once by a stream, as every transport with a wire does."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return httpx.Response(200, headers=_HEADERS, stream=_Stream())


class _Stream(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield _REPLY


def _body(number: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"question {number}"}]}


def commits(*, requests: int) -> Figures:
    """Processor time of two durable commits of one row each, by the driver alone: what a request cannot do without."""
    with scratch_folder() as folder:
        connection = harden(connect(folder / "bare.db", create=True))
        connection.execute("CREATE TABLE calls (id INTEGER, state TEXT)")
        cpu, began = time.process_time(), time.perf_counter()
        for number in range(requests):
            for state in ("intended", "answered"):
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("INSERT INTO calls VALUES (?, ?)", (number, state))
                connection.execute("COMMIT")
        took = _figures(requests, began, cpu)
        connection.close()
    return took


def bare(*, requests: int, url: str = "") -> Figures:
    """Processor time of a request of httpx alone; without an address, of the transport that answers here."""

    async def main() -> Figures:
        async with httpx.AsyncClient(transport=_sender(url)) as client:
            cpu, began = time.process_time(), time.perf_counter()
            for number in range(requests):
                (await client.post(url or _URL, json=_body(number))).json()
            return _figures(requests, began, cpu)

    return asyncio.run(main())


def _sender(url: str) -> httpx.AsyncBaseTransport:
    return httpx.AsyncHTTPTransport() if url else _Instant()


def wired_bare(*, requests: int) -> Figures:
    """`bare` over a connection."""
    with serving(_REPLY) as url:
        return bare(requests=requests, url=url)


def wired_guarded(*, requests: int) -> Figures:
    """`guarded` over a connection."""
    with serving(_REPLY) as url:
        return guarded(requests=requests, url=url)


def guarded(*, requests: int, attempts: int = 1, url: str = "") -> Figures:
    """The same through a guarded client, in so many attempts at a time."""
    each = requests // attempts
    took: dict[str, float] = {}

    @ts.target(guarded=True, version="1")
    async def agent(case: ts.Case) -> int:  # noqa: ARG001 - all cases ask the same
        async with ts.httpx_async_client(transport=_sender(url)) as client:
            for number in range(each):
                (await client.post(url or _URL, json=_body(number))).json()
        return each

    with scratch_folder() as folder:
        order = ts.WorkOrder(
            "bench", cases=[{"id": f"c{number}", "input": number} for number in range(attempts)], target=agent,
            budgets={"dispatches": requests}, concurrency=attempts, deadline_seconds=900,
        )  # fmt: skip
        ts.run(order, ledger=folder / "first.db")  # imports everything once
        cpu, began = time.process_time(), time.perf_counter()
        outcome = ts.run(order, ledger=folder / "ledger.db")
        took = _figures(requests, began, cpu)
        _check(outcome, attempts)
    return took


def many_guarded(*, requests: int) -> Figures:
    """16 attempts at a time."""
    return guarded(requests=requests // 16 * 16, attempts=16)


def replay(*, requests: int) -> Figures:
    """An attempt that was broken off after so many requests, replayed; the time is the target's own."""
    took: list[Figures] = []

    @ts.target(guarded=True, version="1")
    async def agent(case: ts.Case) -> int:  # noqa: ARG001 - all cases ask the same
        cpu, began = time.thread_time(), time.perf_counter()
        async with ts.httpx_async_client(transport=_Instant()) as client:
            for number in range(requests):
                (await client.post(_URL, json=_body(number))).json()
            took.append({"cpu": time.thread_time() - cpu, "seconds": time.perf_counter() - began})
            await client.post(_URL, json=_body(requests))  # this one does not fit into the budget at first
        return requests

    with scratch_folder() as folder:
        for limit in (requests, requests + 1):
            order = ts.WorkOrder(
                "bench", cases=[{"id": "c", "input": 0}], target=agent, budgets={"dispatches": limit},
                deadline_seconds=900,
            )  # fmt: skip
            outcome = ts.run(order, ledger=folder / "ledger.db")
        _check(outcome, 1)
        if outcome.dispatches != 1:
            raise SystemExit(f"the replay sent {outcome.dispatches} requests instead of one")
    return took[-1]


def mapped(*, items: int) -> Figures:
    """Items a second of `guard.map`, new and known, and the processor time that each took."""

    def instant(number: int) -> int:
        return number

    figures: Figures = {}
    with scratch_folder() as folder:
        for name, called in (("new", items), ("known", 0)):
            with ts.guard("bench", ledger=folder / "ledger.db") as guard:
                cpu, began = time.process_time(), time.perf_counter()
                results = guard.map(instant, range(items))
                took = _figures(items, began, cpu)
                figures |= {name: took["per_second"], f"{name}_us": took["cpu_us"]}
                if results != list(range(items)) or guard.summary().called != called:
                    raise SystemExit(f"{guard.summary()}")
    return figures


def _check(outcome: ts.RunOutcome, slots: int) -> None:
    if outcome.counts[SlotState.SELECTED] != slots:
        raise SystemExit(f"not every slot was selected: {outcome}")


def _figures(count: int, began: float, cpu: float) -> Figures:
    took = time.perf_counter() - began
    return {"per_second": count / took, "cpu_us": (time.process_time() - cpu) / count * 1e6}


def rows(asked: Asked) -> Sequence[Row]:
    """The client in two ways, the replay, and the script in two ways."""
    requests, items = asked.size(3_200, 320), asked.size(10_000, 500)
    names = ("bare", "commits", "guarded", "many_guarded", "wired_bare", "wired_guarded")
    client = take_in_turns(__file__, names, repetitions=asked.repetitions, requests=requests)
    replays = take_in_turns(__file__, ("replay",), repetitions=asked.repetitions, requests=asked.size(1_000, 100))
    script = take_in_turns(__file__, ("mapped",), repetitions=asked.repetitions, items=items)
    seconds, cpu = replays.median("replay", "seconds"), replays.median("replay", "cpu")
    return [
        _client_row(client, "guarded", f"guarded client, {requests:,} requests one after the other"),
        _client_row(client, "many_guarded", f"guarded client, {requests:,} requests in 16 attempts at a time"),
        _client_row(
            client, "wired_guarded", f"guarded client, {requests:,} requests over a connection", bare="wired_bare"
        ),
        Row(
            case=f"replay of an attempt of {asked.size(1_000, 100):,} requests",
            ours=f"{seconds * 1000:.0f} ms",
            must=f"< {_REPLAY_SECONDS_MAX * 1000:.0f} ms",
            reached=seconds < _REPLAY_SECONDS_MAX,
            more=f"{cpu * 1000:.0f} ms of CPU",
        ),
        _script_row(script, "new", f"guard.map, {items:,} new items", _MAPPED_MIN),
        _script_row(script, "known", f"guard.map, {items:,} known items", _REUSED_MIN),
    ]


def _client_row(taken: Taken, name: str, case: str, *, bare: str = "bare") -> Row:
    ours, bare_us = taken.median(name, "cpu_us"), taken.median(bare, "cpu_us")
    commits_us = taken.median("commits", "cpu_us")
    return Row(
        case=case,
        ours=f"CPU {ours:.0f} us a request",
        baseline=f"httpx {bare_us:.0f} us",
        ratio=f"+{ours - bare_us:.0f} us",
        must=f"< +{_ADDED_US_MAX} us",
        reached=ours - bare_us < _ADDED_US_MAX,
        more=f"{taken.median(name, 'per_second'):,.0f} requests/s, two bare commits {commits_us:.0f} us",
    )


def _script_row(taken: Taken, name: str, case: str, must: int) -> Row:
    rate = taken.median("mapped", name)
    return Row(
        case=case, ours=f"{rate:,.0f} items/s", must=f">= {must:,}", reached=rate >= must,
        more=f"CPU {taken.median('mapped', f'{name}_us'):.0f} us an item",
    )  # fmt: skip


if __name__ == "__main__":
    measured = (bare, commits, guarded, many_guarded, wired_bare, wired_guarded, replay, mapped)
    run_script(__file__, "Guarded clients, replay and scripts", {one.__name__: one for one in measured}, rows)
