from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tallystick as ts
from tallystick.adapters.clients_around import clients_around, retries_of
from tallystick.adapters.guarded_clients import Lent
from tallystick.ledger.checks import check_ledger
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import SlotState
from tallystick.runner import inner_calls

from .guarded import URL, Model, attempts, broken_off, dispatches, echo, run


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "l.db"
    with Ledger.open(tmp_path / "l.db") as ledger:
        assert check_ledger(ledger) == []


def test_each_request_is_a_call_with_its_own_id_and_usage(path: Path) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    model = Model(lambda request: httpx.Response(200, json={"usage": usage}))

    def agent(case: ts.Case) -> int:
        with ts.httpx_client(transport=model) as client:
            return sum(client.post(URL, json={"n": n}).json()["usage"]["prompt_tokens"] for n in range(2))

    run(path, agent, budgets={"tokens": {"limit": 100, "bound_per_dispatch": 30}})

    ids = [request.headers["Idempotency-Key"] for request in model.seen]
    assert [one.call_id for one in dispatches(path)] == ids
    assert len(set(ids)) == 2
    assert [(one.tokens_in, one.tokens_out) for one in dispatches(path)] == [(3, 4)] * 2
    with ts.open(path) as ledger:
        assert ledger.budgets("agents")[0].settled == 14


def test_headers_are_sent_and_no_secret_is_stored(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "s3cret-value")
    model = Model(lambda request: httpx.Response(200, json={"echo": request.headers["Authorization"]}))

    def agent(case: ts.Case) -> str:
        with ts.httpx_client(transport=model, headers={"Authorization": "Bearer s3cret-value"}) as client:
            client.post(f"{URL}?key=s3cret-value", json={"key": "s3cret-value"})
        return "done"

    run(path, agent)

    assert model.seen[0].headers["Authorization"] == "Bearer s3cret-value"
    assert model.seen[0].url.params["key"] == "s3cret-value"
    assert b"s3cret-value" not in b"".join(file.read_bytes() for file in path.parent.rglob("*") if file.is_file())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_was_answered_is_replayed_as_it_was(path: Path, kind: str) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        n = json.loads(request.content)["n"]
        if n == 0:
            return httpx.Response(404, json={"error": "none"}, headers={"X-Request-Id": "r1"})
        return httpx.Response(200, text="ü" * n, headers={"Content-Type": "text/plain; charset=utf-8"})

    model, seen = Model(handler), []

    def told(reply: httpx.Response) -> tuple[Any, ...]:
        return reply.status_code, reply.text, reply.headers["content-type"], reply.headers.get("x-request-id")

    def blocking(case: ts.Case) -> int:
        with ts.httpx_client(transport=model) as client:
            seen.append([told(client.post(URL, json={"n": n})) for n in range(3)])
        return len(seen)

    async def on_loop(case: ts.Case) -> int:
        async with ts.httpx_async_client(transport=model) as client:
            seen.append([told(await client.post(URL, json={"n": n})) for n in range(3)])
        return len(seen)

    agent = blocking if kind == "sync" else on_loop
    run(path, agent, budgets={"dispatches": 2})
    assert run(path, agent).counts[SlotState.SELECTED] == 1
    assert len(model.seen) == 3
    assert seen == [[(404, '{"error":"none"}', "application/json", "r1"), (200, "ü", "text/plain; charset=utf-8", None),
                     (200, "üü", "text/plain; charset=utf-8", None)]]  # fmt: skip


def test_a_stream_is_passed_on_as_it_comes_recorded_and_replayed(path: Path) -> None:
    came: list[str] = []

    async def parts() -> AsyncIterator[bytes]:
        for number in range(3):
            came.append(f"sent {number}")
            yield f"data: {number}\n\n".encode()

    model = Model(lambda request: httpx.Response(200, content=parts(), headers={"Content-Type": "text/event-stream"}))

    async def agent(case: ts.Case) -> str:
        async with ts.httpx_async_client(transport=model) as client:
            async with client.stream("POST", URL, json={"stream": True}) as reply:
                lines = []
                async for line in reply.aiter_lines():
                    came.append(f"read {line}")
                    lines.append(line)
            await client.post(URL, json={"say": "more"})
        return "".join(lines)

    broken_off(path, agent, 1)

    assert came[:4] == ["sent 0", "read data: 0", "read ", "sent 1"], "nothing is held back"
    assert len(model.seen) == 2
    with ts.open(path) as ledger:
        assert ledger.case("agents", "a")[0].attempts[-1].answer == '"data: 0data: 1data: 2"'


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_body_that_is_streamed_is_kept_whole_before_it_is_sent_and_known_again(path: Path, kind: str) -> None:
    model = Model(lambda request: httpx.Response(200, json={"length": len(request.content)}))

    async def parts() -> AsyncIterator[bytes]:
        for part in (b"one ", b"two"):
            yield part

    def blocking(case: ts.Case) -> list[int]:
        with ts.httpx_client(transport=model) as client:
            return [client.post(URL, content=iter([b"x" * n, b"y"])).json()["length"] for n in (1, 2)]

    async def on_loop(case: ts.Case) -> list[int]:
        async with ts.httpx_async_client(transport=model) as client:
            return [(await client.post(f"{URL}?n={n}", content=parts())).json()["length"] for n in (1, 2)]

    assert broken_off(path, blocking if kind == "sync" else on_loop, 1).counts[SlotState.SELECTED] == 1
    assert len(model.seen) == 2, "the first is not sent again"
    with ts.open(path) as ledger:
        assert ledger.case("agents", "a")[0].attempts[-1].answer == ("[2,3]" if kind == "sync" else "[7,7]")


@pytest.mark.parametrize(("last", "state"), [("[DONE]", "answered"), ("more", "unknown")])
def test_a_stream_that_is_left_was_whole_where_its_last_event_had_come(path: Path, last: str, state: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield f"data: 1\n\ndata: {last}\n\n".encode()
        yield b"data: never read\n\n"

    model = Model(lambda request: httpx.Response(200, content=parts(), headers={"Content-Type": "text/event-stream"}))

    async def agent(case: ts.Case) -> str:
        async with (
            ts.httpx_async_client(transport=model) as client,
            client.stream("POST", URL, json={}) as reply,
        ):
            async for _ in reply.aiter_raw():
                return "left"
        return "never"

    run(path, agent)
    assert [one.state for one in dispatches(path)] == [state]


def test_a_broken_connection_is_unknown_and_stops_what_must_not_follow(path: Path) -> None:
    def breaks(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("slow", request=request)

    model = Model(breaks)
    refused: list[BaseException] = []

    def agent(case: ts.Case) -> str:
        with ts.httpx_client(transport=model) as client:
            with contextlib.suppress(httpx.ReadTimeout):
                client.post(URL, json={"say": 1})
            try:
                client.post(URL, json={"say": 1})
            except ts.EarlierCallUnknown as problem:
                refused.append(problem)
                raise
        return "never"

    assert run(path, agent, if_unknown="keep").counts[SlotState.UNKNOWN] == 1
    assert len(model.seen) == 1
    assert len(refused) == 1


def test_a_refused_connection_costs_nothing_and_its_attempt_is_given_back(path: Path) -> None:
    def breaks(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody listens", request=request)

    def agent(case: ts.Case) -> str:
        with ts.httpx_client(transport=Model(breaks)) as client:
            return client.post(URL, json={"say": 1}).text

    outcome = run(path, agent, attempts_max=2, backoff={"first_seconds": 0.001, "max_seconds": 0.002})
    assert outcome.counts[SlotState.UNAVAILABLE] == 1
    assert attempts(path) == [("given_back", "connect.failed")] * 2
    with ts.open(path) as ledger:
        assert (ledger.budgets("agents")[0].settled, ledger.budgets("agents")[0].held) == (0, 0)


def test_what_was_limited_is_asked_again_and_not_replayed_as_a_limit(path: Path) -> None:
    answers = iter([429, 200])
    model = Model(lambda request: httpx.Response(next(answers), json={}, headers={"Retry-After": "0"}))

    def agent(case: ts.Case) -> int:
        with ts.httpx_client(transport=model) as client:
            reply = client.post(URL, json={"say": 1})
            reply.raise_for_status()
            return reply.status_code

    outcome = run(path, agent, backoff={"first_seconds": 0.001, "max_seconds": 0.002})
    assert outcome.counts[SlotState.SELECTED] == 1
    assert [one.state for one in dispatches(path)] == ["refused", "answered"]


def test_an_attempt_after_a_failed_one_asks_for_everything_anew(path: Path) -> None:
    model, tries = Model(echo), []

    def agent(case: ts.Case) -> str:
        tries.append(1)
        with ts.httpx_client(transport=model) as client:
            client.post(URL, json={"say": 1})
        if len(tries) == 1:
            raise KeyError("first")
        return "done"

    run(path, agent, retry=["python.exception"], backoff={"first_seconds": 0.001, "max_seconds": 0.002})
    assert len(model.seen) == 2
    assert attempts(path) == [("failed", "python.exception"), ("observed", "")]


def test_a_failed_attempt_ends_the_replay_of_those_before_it_too(path: Path) -> None:
    model, tries = Model(echo), []

    def agent(case: ts.Case) -> str:
        tries.append(1)
        with ts.httpx_client(transport=model) as client:
            client.post(URL, json={"say": 1})
            client.post(URL, json={"say": 2})
        if len(tries) == 2:
            raise KeyError("the second")
        return "done"

    options: dict[str, Any] = {"retry": ["python.exception"], "backoff": {"first_seconds": 0.001}}
    assert broken_off(path, agent, 1, **options).counts[SlotState.SELECTED] == 1
    said = [json.loads(request.content)["say"] for request in model.seen]
    assert said == [1, 2, 1, 2], "the first was replayed once, and both are asked anew after the failure"


def test_a_secret_that_has_just_been_set_is_not_stored(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(echo)

    def agent(case: ts.Case) -> str:
        with ts.httpx_client(transport=model) as client:
            client.post(URL, json={"say": "nothing"})
            monkeypatch.setenv("LATE_TOKEN", "just-set-value")
            client.post(URL, json={"say": "just-set-value"})
        return "done"

    run(path, agent)
    assert b"just-set-value" not in b"".join(file.read_bytes() for file in path.parent.rglob("*") if file.is_file())


def test_an_answer_that_breaks_off_is_kept_without_secrets(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "s3cret-value")

    def half() -> Iterator[bytes]:
        yield b'{"echo": "s3cret-value", '
        raise httpx.ReadError("the line went dead")

    def agent(case: ts.Case) -> str:
        with ts.httpx_client(transport=Model(lambda request: httpx.Response(200, content=half()))) as client:
            return client.post(URL, json={"say": 1}).text

    run(path, agent, if_unknown="keep")
    stored = b"".join(file.read_bytes() for file in path.parent.rglob("*") if file.is_file())
    assert b"s3cret-value" not in stored
    assert b'{"echo": ' in stored


def test_a_redirect_that_carries_a_secret_is_followed_and_replayed_and_the_secret_not_stored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "s3cret-value")
    last = iter([httpx.ReadError("the line went dead"), None])

    def moved(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/ask":
            return httpx.Response(307, headers={"Location": "http://model/there?key=s3cret-value"})
        if request.url.path == "/last" and (problem := next(last)) is not None:
            raise problem
        return httpx.Response(200, json={"key": request.url.params.get("key")})

    model = Model(moved)

    def agent(case: ts.Case) -> str:
        with ts.httpx_client(transport=model, follow_redirects=True) as client:
            client.post(URL, json={}).raise_for_status()
            return client.post("http://model/last").text

    assert run(path, agent).counts[SlotState.SELECTED] == 1
    assert [request.url.path for request in model.seen] == ["/ask", "/there", "/last", "/last"]
    assert b"s3cret-value" not in b"".join(file.read_bytes() for file in path.parent.rglob("*") if file.is_file())


def test_a_request_that_differs_ends_the_replay_and_shows_both(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inner_calls, "REPLAY_PATIENCE_SECONDS", 0.0)
    model, tries = Model(echo), []

    def agent(case: ts.Case) -> str:
        tries.append(1)
        with ts.httpx_client(transport=model) as client:
            with contextlib.suppress(ts.ReplayDiverged):
                client.post(URL, json={"say": f"try {len(tries)}"})
            client.post(URL, json={"say": "two"})
        return "an answer that is not believed"

    outcome = broken_off(path, agent, 1)
    assert outcome.counts[SlotState.FAILED] == 1
    assert len(model.seen) == 1
    with ts.open(path) as ledger:
        message = ledger.case("agents", "a")[0].attempts[-1].message
    assert message is not None
    assert message.startswith(f"request 1 is POST {URL} sha256:")
    assert '"method":"POST"' in message


def test_random_boundaries_of_uploads_and_headers_of_sdks_are_no_divergence(path: Path) -> None:
    model, tries = Model(lambda request: httpx.Response(200, json={})), []

    def agent(case: ts.Case) -> str:
        tries.append(1)
        headers = {"User-Agent": f"sdk {len(tries)}", "X-Stainless-Retry-Count": str(len(tries))}
        with ts.httpx_client(transport=model, headers=headers) as client:
            client.post(URL, files={"file": ("a.txt", b"content")})
            client.post(URL, json={"say": "two"})
        return "done"

    assert broken_off(path, agent, 1).counts[SlotState.SELECTED] == 1
    assert len(model.seen) == 2


def test_a_full_budget_is_heard_by_the_target_and_not_believed_when_it_is_swallowed(path: Path) -> None:
    model, heard = Model(echo), []

    def agent(case: ts.Case) -> str:
        with ts.httpx_client(transport=model) as client:
            for say in range(3):
                try:
                    client.post(URL, json={"say": say})
                except ts.BudgetExhausted as full:
                    heard.append(full)
        return "as if nothing had happened"

    outcome = run(path, agent, budgets={"dispatches": 1})
    assert outcome.counts[SlotState.UNAVAILABLE] == 1
    assert len(model.seen) == 1
    assert heard


def test_a_client_outside_of_an_attempt_or_in_a_plain_target_is_told_what_to_do(tmp_path: Path) -> None:
    with ts.httpx_client(transport=Model(echo)) as client:
        with pytest.raises(ts.AttemptOver, match="no attempt is going on"):
            client.post(URL, json={"say": 1})

        def plain(case: ts.Case) -> str:
            return client.post(URL, json={"say": 1}).text

        order = ts.WorkOrder("agents", cases=[{"id": "a", "input": 1}], target=ts.target(plain))
        ts.run(order, ledger=tmp_path / "l.db")
    with ts.open(tmp_path / "l.db") as ledger:
        assert "guarded=True" in (ledger.case("agents", "a")[0].attempts[0].message or "")


def test_what_a_target_leaves_running_is_unknown_and_asks_for_nothing_more(path: Path) -> None:
    left: list[asyncio.Task[Any]] = []

    async def hangs(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def agent(case: ts.Case) -> str:
        client = ts.httpx_async_client(transport=httpx.MockTransport(hangs))
        left.append(asyncio.ensure_future(client.post(URL, json={"say": 1})))
        with Ledger.open(path) as ledger:
            while not _intended(ledger):  # noqa: ASYNC110
                await asyncio.sleep(0)
        return "returned"

    outcome = run(path, agent, if_unknown="keep")
    assert outcome.counts[SlotState.SELECTED] == 1
    assert [(one.state, one.reason) for one in dispatches(path)] == [("unknown", "target.returned")]


def _intended(ledger: Ledger) -> bool:
    with ledger.reading() as reader:
        return bool(reader.rows("SELECT 1 FROM dispatches WHERE state = 'intended'"))


def test_closing_the_given_client_closes_it_for_nobody_else() -> None:
    closed: list[str] = []

    class Sender(Model):
        def close(self) -> None:
            closed.append("closed")

    with ts.httpx_client(transport=Lent(Sender(echo))):
        pass
    assert closed == []
    with ts.httpx_client(transport=Sender(echo)):
        pass
    assert closed == ["closed"], "one of one's own is closed with its client"


def test_a_parameter_makes_a_target_guarded_and_an_argument_of_that_name_does_not() -> None:
    def named(case: ts.Case, http: Any) -> None: ...
    def annotated(case: ts.Case, client: ts.SyncHttp) -> None: ...
    def plain(case: ts.Case) -> None: ...

    assert [ts.target(function).is_guarded for function in (named, annotated, plain)] == [True, True, False]
    assert not ts.target(named).using(http="text").evolve(guarded=None).is_guarded
    assert ts.target(named).identity()["guarded"] is True
    assert "guarded" not in ts.target(plain).identity()


def test_a_guarded_target_holds_no_conversation() -> None:
    def talks(case: ts.Case, turn: ts.Turn, http: Any) -> None: ...

    with pytest.raises(ts.WorkOrderInvalid, match="cannot hold a conversation"):
        ts.target(talks)


open_client = httpx.Client()
closed_client = ts.httpx_client()


class Sdk:
    def __init__(self, client: httpx.Client, retries: int) -> None:
        self._client = client
        self.max_retries = retries


open_sdk, guarded_sdk = Sdk(open_client, 2), Sdk(closed_client, 3)


def goes_around(case: ts.Case, http: Any) -> None:
    open_client.get(URL)
    open_sdk.max_retries = 0


def stays_inside(case: ts.Case, http: Any) -> None:
    closed_client.get(URL)
    guarded_sdk.max_retries = 0


def test_a_target_that_is_seen_to_go_around_its_client_is_refused_under_a_hard_budget(tmp_path: Path) -> None:
    def order(function: Callable[..., Any], budget: Any) -> ts.WorkOrder:
        return ts.WorkOrder("agents", cases=[{"id": "a", "input": 1}], target=ts.target(function), budgets=budget)

    with pytest.raises(ts.WorkOrderInvalid, match="open_client, open_sdk, which no budget counts"):
        ts.run(order(goes_around, {"dispatches": 3}), ledger=tmp_path / "l.db")
    assert clients_around(stays_inside) == ()
    assert clients_around(goes_around) == ("open_client", "open_sdk")
    assert retries_of(stays_inside) == {"guarded_sdk": 3}
    assert not (tmp_path / "l.db").exists()
