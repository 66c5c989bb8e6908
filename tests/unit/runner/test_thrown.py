"""A GeneratorExit of somebody's own code is an outcome, one that closes the coroutine ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from tallystick.runner.thrown import go_if_closed


async def _waiting(what: Awaitable[Any], heard: list[str]) -> None:
    task = asyncio.current_task()
    try:
        await what
    except (Exception, GeneratorExit) as problem:
        go_if_closed(problem, task)
        heard.append(type(problem).__name__)
        await asyncio.sleep(0)  # who goes on waits, which a closed coroutine must not


async def _raising(problem: BaseException) -> None:
    raise problem


@pytest.mark.parametrize("problem", [GeneratorExit(), ValueError()])
def test_what_is_raised_inside_is_heard_and_its_task_goes_on(problem: BaseException) -> None:
    heard: list[str] = []
    asyncio.run(_waiting(_raising(problem), heard))
    assert heard == [type(problem).__name__]


@pytest.mark.parametrize("in_loop", [True, False])
def test_a_coroutine_that_is_closed_hears_nothing_and_waits_for_nothing(in_loop: bool) -> None:
    heard: list[str] = []
    left: list[Any] = []

    async def leave() -> None:
        coroutine = _waiting(asyncio.get_running_loop().create_future(), heard)
        coroutine.send(None)
        left.append(coroutine)
        if in_loop:
            await asyncio.create_task(_closing(coroutine))

    asyncio.run(leave())
    left[0].close()
    assert heard == []


async def _closing(coroutine: Any) -> None:
    coroutine.close()
