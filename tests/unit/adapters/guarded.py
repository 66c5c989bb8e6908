"""Guarded targets in one case each, against a model in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

import tallystick as ts

__all__ = ["URL", "Model", "attempts", "broken_off", "dispatches", "echo", "run"]

URL = "http://model/ask"
Handler = Callable[[httpx.Request], httpx.Response]


class Model(httpx.MockTransport):
    """Answers as it is told to, and remembers what came."""

    def __init__(self, handler: Handler) -> None:
        super().__init__(handler)
        self.seen: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        return super().handle_request(request)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        return await super().handle_async_request(request)


def echo(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"said": json.loads(request.content)["say"]})


def run(path: Path, function: Callable[..., Any], *, budgets: Any = None, **options: Any) -> ts.RunOutcome:
    """One case through a guarded target."""
    policy = options.pop("if_unknown", "repeat")
    target = ts.target(if_unknown=policy, guarded=True, version="1")(function)
    order = ts.WorkOrder(
        "agents", cases=[{"id": "a", "input": 1}], target=target, budgets=budgets or {"dispatches": 50}, **options
    )
    return ts.run(order, ledger=path)


def attempts(path: Path) -> list[tuple[str, str | None]]:
    with ts.open(path) as ledger:
        return [(one.state, one.reason) for one in ledger.case("agents", "a")[0].attempts]


def dispatches(path: Path) -> list[Any]:
    with ts.open(path) as ledger:
        return [one for attempt in ledger.case("agents", "a")[0].attempts for one in attempt.dispatches]


def broken_off(path: Path, function: Callable[..., Any], after: int, **options: Any) -> ts.RunOutcome:
    """The run, broken off after so many requests by a budget that has no room for more, and then gone on with."""
    run(path, function, budgets={"dispatches": after}, **options)
    return run(path, function, budgets={"dispatches": 50}, **options)
