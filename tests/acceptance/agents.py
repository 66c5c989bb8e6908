"""Agents of the acceptance tests: guarded targets that make several requests in one case, and how one dies in them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

from .harness import FIXTURES, Site
from .orders import work_order

__all__ = ["agent_case", "agent_order", "answers", "ask", "dies_in_request"]


def ask(text: str, **behave: Any) -> dict[str, Any]:
    """One request of an agent; how the service treats it is said by itself."""
    return {"say": text, "behave": behave} if behave else {"say": text}


def agent_case(site: Site, asks: Sequence[dict[str, Any]], *, name: str = "agent") -> dict[str, Any]:
    return {"id": name, "input": {"url": f"{site.service.url}/ask", "asks": list(asks)}}


def agent_order(
    site: Site,
    *cases: dict[str, Any],
    function: str = "agent",
    if_unknown: str | None = "repeat",
    target: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Write a work order for agents of the fixture's module, in a copy of it beside the work order."""
    shutil.copy(FIXTURES / "agent_target.py", site.folder / "agent_target.py")
    table = {"kind": "python", "file": "agent_target.py", "function": function, **(target or {})}
    if if_unknown is not None:
        table["if_unknown"] = if_unknown
    site.order({**work_order(table, cases, **options), "judges": []})


def answers(texts: Sequence[str]) -> str:
    """The canonical JSON of an agent's answer."""
    return "[" + ",".join(f'"{text}"' for text in texts) + "]"


def dies_in_request(site: Site, number: int, *, of: int, **options: Any) -> str:
    """An agent of so many requests that dies while the service works on one of them; returns that call's id."""
    asks = [
        ask(str(place), **({"wait": "gate"} if place == number else {}), remember=True) for place in range(1, of + 1)
    ]
    agent_order(site, agent_case(site, asks), **options)
    coordinator = site.run(environment={"AGENT_SERVICE": site.service.url})
    site.wait_for("gate")
    coordinator.dies()
    site.service.go("gate")
    return site.requests()[-1].request_id
