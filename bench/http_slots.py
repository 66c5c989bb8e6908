"""An instant HTTP service on this machine: our executor and ledger against bare httpx that keeps no books at all.

The service is a process of its own that answers every request with the same few bytes, as cheaply as Python can. Ours
sends each request through the HTTP target and keeps two durable commits for it. Bare httpx has 64 tasks that post the
same JSON and read the answer out of the reply: on one `AsyncClient`, as one writes it, and on a client for each task,
which spares httpx the search through its pool and is the harder baseline.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import httpx
from measure import Asked, Figures, Row, Taken, environment, peak_megabytes, run_script, scratch_folder, take_in_turns

import tallystick as ts
from tallystick.ledger.states import SlotState

_CONCURRENCY = 64
_MUST = 0.6
_BODY = b'{"language":"en"}'


class _Service(asyncio.Protocol):
    """Answers whole requests that have a Content-Length, and looks at nothing else of them."""

    def __init__(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._reply = head + body
        self._seen = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._seen += data
        while (end := self._seen.find(b"\r\n\r\n")) >= 0:
            head = self._seen[:end].lower()
            _, _, after = head.partition(b"content-length:")
            whole = end + 4 + int(after.split(b"\r\n", 1)[0] or b"0")
            if len(self._seen) < whole:
                return
            self._seen = self._seen[whole:]
            assert self._transport is not None
            self._transport.write(self._reply)


def service(*, body: str) -> Figures:
    """Serve until standard input ends; the first line says the port."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Service(body.encode()), "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await loop.run_in_executor(None, sys.stdin.read)
        server.close()

    asyncio.run(serve())
    return {}


@contextlib.contextmanager
def serving(body: bytes = _BODY) -> Iterator[str]:
    """The address of an instant service that answers everything with that body, from a process of its own."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--measure", json.dumps({"name": "service", "body": body.decode()})],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/identify"
    finally:
        process.communicate()


def one_client(*, slots: int) -> Figures:
    """Requests a second of httpx alone, all tasks on one client."""
    return _bare(slots, clients=1)


def client_each(*, slots: int) -> Figures:
    """Requests a second of httpx alone, each task on a client of its own."""
    return _bare(slots, clients=_CONCURRENCY)


def _bare(slots: int, *, clients: int) -> Figures:

    async def main(url: str) -> Figures:
        numbers = iter(range(1, slots + 1))

        async def worker(client: httpx.AsyncClient) -> None:
            for number in numbers:
                reply = await client.post(url, json={"text": f"sentence {number}"})
                assert reply.status_code == 200
                assert reply.json()["language"] == "en"

        async with contextlib.AsyncExitStack() as stack:
            limits = httpx.Limits(max_connections=_CONCURRENCY, max_keepalive_connections=_CONCURRENCY)
            made = [await stack.enter_async_context(httpx.AsyncClient(limits=limits)) for _ in range(clients)]
            cpu, began = time.process_time(), time.perf_counter()
            await asyncio.gather(*(worker(made[number % clients]) for number in range(_CONCURRENCY)))
            return _figures(slots, began, cpu)

    with serving() as url:
        return asyncio.run(main(url))


def ours(*, slots: int) -> Figures:
    """Slots a second of a run: the whole of it, planning too, since no target tells when its first call began."""
    with serving() as url, scratch_folder() as folder:
        order = ts.WorkOrder(
            "bench",
            cases=[ts.Case(f"case-{number}", f"sentence {number}", "en") for number in range(1, slots + 1)],
            target={
                "kind": "http", "url": url, "json": {"text": "{{input}}"}, "answer": "$.language",
                "if_unknown": "repeat",
            },
            budgets={"dispatches": slots},
            concurrency=_CONCURRENCY,
        )  # fmt: skip
        ledger = folder / "ledger.db"
        ts.run(order, ledger=ledger, limit=1)  # opens everything once
        cpu, began = time.process_time(), time.perf_counter()
        outcome = ts.run(order, ledger=ledger)
        figures = _figures(slots - 1, began, cpu)
        if outcome.counts[SlotState.SELECTED] != slots:
            raise SystemExit(f"not every slot was selected: {outcome}")
        return figures


def _figures(slots: int, began: float, cpu: float) -> Figures:
    took = time.perf_counter() - began
    return {
        "calls_per_second": slots / took,
        "cpu_us": (time.process_time() - cpu) / slots * 1e6,
        "megabytes": peak_megabytes(),
    }


def rows(asked: Asked) -> Sequence[Row]:
    """One row for each way to use httpx."""
    slots = asked.size(5_000, 500)
    taken = take_in_turns(__file__, ("ours", "one_client", "client_each"), repetitions=asked.repetitions, slots=slots)
    return [
        _row(taken, slots, "one_client", "one client"),
        _row(taken, slots, "client_each", "a client each"),
    ]


def _row(taken: Taken, slots: int, name: str, how: str) -> Row:
    ratio = taken.ratio("ours", name, "calls_per_second")
    return Row(
        case=f"HTTP target, {slots:,} slots at {_CONCURRENCY}; httpx with {how}",
        ours=f"{taken.median('ours', 'calls_per_second'):,.0f} slots/s",
        baseline=f"httpx {taken.median(name, 'calls_per_second'):,.0f} requests/s",
        ratio=f"{ratio:.2f}",
        must=f">= {_MUST}",
        reached=ratio >= _MUST,
        more=f"CPU {taken.median('ours', 'cpu_us'):.0f} us a slot (httpx {taken.median(name, 'cpu_us'):.0f}),"
        f" peak {taken.median('ours', 'megabytes'):.0f} MB",
    )


if __name__ == "__main__":
    run_script(
        __file__,
        "Slots through the HTTP target, against bare httpx",
        {"ours": ours, "one_client": one_client, "client_each": client_each, "service": service},
        rows,
    )
