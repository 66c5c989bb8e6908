"""SDKs of models have gone over to httpx2 and look whether a client is of it; what they do with it holds here, too."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest

import tallystick as ts
from tallystick.adapters.clients_around import clients_around, retries_of
from tallystick.ledger.states import SlotState

from .guarded import URL, attempts, broken_off, dispatches, run

USAGE = {"prompt_tokens": 3, "completion_tokens": 4}


class Sdk:
    """As the SDKs use a client that they are given: requests that it builds, sent as streams, and closed early."""

    def __init__(self, *, http_client: Any, max_retries: int = 0) -> None:
        if not isinstance(http_client, httpx2.Client):
            raise TypeError("this SDK uses httpx2")
        self._client = http_client
        self.max_retries = max_retries

    def ask(self, text: str) -> str:
        tries = self.max_retries
        while (reply := self._sent(text)).status_code >= 400 and tries:
            tries -= 1
        return str(reply.raise_for_status().json()["said"])

    def _sent(self, text: str) -> httpx2.Response:
        request = self._client.build_request("POST", URL, json={"say": text}, timeout=httpx2.Timeout(5))
        reply = self._client.send(request, stream=True)
        reply.read()
        return reply

    def words(self, text: str) -> Generator[str, None, None]:
        with self._client.stream("POST", URL, json={"say": text, "stream": True}) as reply:
            yield from (line.removeprefix("data: ") for line in reply.iter_lines() if line)


class Model(httpx2.MockTransport):
    def __init__(self, *statuses: int) -> None:
        super().__init__(self.answered)
        self.statuses = list(statuses)
        self.ids: list[str] = []

    def answered(self, request: httpx2.Request) -> httpx2.Response:
        self.ids.append(request.headers["Idempotency-Key"])
        said = json.loads(request.content)
        if self.statuses and (status := self.statuses.pop(0)) != 200:
            return httpx2.Response(status, json={"error": status})
        if said.get("stream"):
            return httpx2.Response(
                200, content=iter([b"data: a\n\n", b"data: b\n\n"]), headers={"Content-Type": "text/event-stream"}
            )
        return httpx2.Response(200, json={"said": said["say"], "usage": USAGE})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "l.db"


def test_an_sdk_of_httpx2_asks_through_the_ledger_and_is_replayed(path: Path) -> None:
    model = Model()

    def agent(case: ts.Case) -> list[str]:
        with ts.httpx2_client(transport=model) as client:
            sdk = Sdk(http_client=client)
            return [sdk.ask("a"), *sdk.words("b"), sdk.ask("c")]

    assert broken_off(path, agent, 2).counts[SlotState.SELECTED] == 1

    assert len(model.ids) == 3, "what was answered is not asked again, nor the stream"
    assert [one.call_id for one in dispatches(path)] == model.ids
    assert [one.tokens_in for one in dispatches(path)] == [3, None, 3]
    with ts.open(path) as ledger:
        assert ledger.case("agents", "a")[0].attempts[-1].answer == '["a","a","b","c"]'


def test_each_retry_of_an_sdk_of_httpx2_is_a_call_of_its_own(path: Path) -> None:
    model = Model(500, 429)

    def agent(case: ts.Case) -> str:
        with ts.httpx2_client(transport=model) as client:
            return Sdk(http_client=client, max_retries=2).ask("a")

    run(path, agent)

    assert [one.state for one in dispatches(path)] == ["failed", "refused", "answered"]
    assert len(set(model.ids)) == 3


async def fails(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("nobody is there")


def test_what_went_wrong_with_httpx2_is_told_apart_as_with_httpx(path: Path) -> None:
    async def agent(case: ts.Case) -> str:
        async with ts.httpx2_async_client(transport=httpx2.MockTransport(fails)) as client:
            await client.post(URL, json={})
        return "never"

    run(path, agent, attempts_max=1, dispatches_max=1)

    assert [(one.state, one.reason) for one in dispatches(path)] == [("refused", "connect.failed")]
    assert attempts(path)[0][1] == "connect.failed"


def test_a_client_of_an_sdk_that_is_closed_early_breaks_its_stream_off(path: Path) -> None:
    def agent(case: ts.Case) -> str:
        client = ts.httpx2_client(transport=Model())
        words = Sdk(http_client=client).words("a")
        first = next(words)
        words.close()
        client.close()
        return first

    run(path, agent)

    assert [(one.state, one.reason) for one in dispatches(path)] == [("unknown", "stream.left")]


guarded_sdk, open_sdk = Sdk(http_client=ts.httpx2_client(), max_retries=2), Sdk(http_client=httpx2.Client())


def uses_both(case: ts.Case) -> str:
    return guarded_sdk.ask("a") + open_sdk.ask("b")


def test_clients_of_httpx2_are_seen_to_go_around_and_to_retry() -> None:
    assert clients_around(uses_both) == ("open_sdk",)
    assert retries_of(uses_both) == {"guarded_sdk": 2}


def test_without_httpx2_its_client_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(ts.UsageError, match="httpx2 is not installed"):
        ts.httpx2_client()
    with ts.httpx_client() as client:
        assert isinstance(client, httpx.Client)
