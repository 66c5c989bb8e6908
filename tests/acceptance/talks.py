"""Conversations of the acceptance tests: with the scripted service, which is told the history, and with sessions."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .harness import FIXTURES, Coordinator, Site, Speaking
from .invariants import rows
from .orders import execution, http_target, work_order

__all__ = [
    "Sessions",
    "asked",
    "attempts_of",
    "converse",
    "histories",
    "http_talks",
    "said",
    "session_order",
    "talk",
    "turns_of",
]


def said(text: str, **behave: Any) -> dict[str, Any]:
    """One message; how the service treats it is said by itself."""
    return {"say": text, "behave": behave}


def talk(*messages: dict[str, Any], name: str = "talk") -> dict[str, Any]:
    """A case with these messages; its last answer is the last one's own text."""
    return {"id": name, "input": {"turns": list(messages)}, "expected": messages[-1]["say"]}


def http_talks(site: Site, cases: Sequence[Mapping[str, Any]], *, if_unknown: str, **options: Any) -> dict[str, Any]:
    """A work order for conversations with the service, which is told the whole history in each request."""
    body = {"input": "{{message.say}}", "history": "{{history}}", "behave": "{{message.behave}}"}
    target = http_target(site.service, if_unknown=if_unknown, json=body)
    conversation = options.pop("conversation", {"turns": "$.turns"})
    return {**work_order(target, cases, **options), "conversation": conversation}


def turns_of(site: Site, attempt: int) -> list[tuple[int, str, str, int | None, int]]:
    """``(turn, answer, source, carried_from, replay)`` of an attempt's committed turns."""
    return [
        (turn, json.loads(answer), source, carried_from, replay)
        for turn, answer, source, carried_from, replay in rows(
            site.ledger,
            "SELECT turn, answer, source, carried_from, replay FROM turns WHERE attempt_no = ? ORDER BY turn", attempt,
        )
    ]  # fmt: skip


def attempts_of(site: Site, name: str = "talk") -> list[tuple[str, str | None]]:
    """``(state, reason)`` of a case's attempts."""
    return [(attempt.state, attempt.reason) for attempt in site.only(name).attempts]


def histories(site: Site) -> list[tuple[str, list[str]]]:
    """What each request said, and which earlier answers it told of, in the order of the ledger's calls."""
    found = []
    for (payload,) in rows(site.ledger, "SELECT payload FROM calls ORDER BY call_id"):
        told = json.loads(payload)
        found.append((told["input"], [one["answer"] for one in told["history"]]))
    return found


class Sessions(Speaking):
    """The service that keeps state between turns; it outlives every coordinator."""

    def __init__(self, folder: Path) -> None:
        super().__init__(FIXTURES / "session_server.py", "--log", folder / "counter.jsonl")
        self.url = f"http://127.0.0.1:{int(self.line())}"


def session_order(site: Site, sessions: Sessions, messages: Sequence[Any], *, resuming: str, **options: Any) -> None:
    """Write a work order for one conversation in a session of that service."""
    site.order(
        {
            "url": sessions.url,
            "resuming": resuming,
            "if_unknown": options.pop("if_unknown", "repeat"),
            "cases": [{"id": "talk", "input": {"turns": list(messages)}, "expected": "a+b+c"}],
            "conversation": {"turns": "$.turns", **options.pop("conversation", {})},
            "judges": [{"kind": "exact"}],
            "budgets": {"dispatches": 100},
            **execution(**options),
        }
    )


def converse(site: Site, **options: Any) -> Coordinator:
    """Start the program that holds that conversation, or goes on with it."""
    program = (sys.executable, FIXTURES / "session_target.py", site.order_file, "--ledger", site.ledger)
    return site.start_program(*program, **options)


def asked(site: Site) -> list[tuple[int, str]]:
    """``(turn, message)`` of everything that the service of sessions has been asked."""
    lines = [json.loads(line) for line in (site.folder / "counter.jsonl").read_text().splitlines()]
    messages = [(line["turn"], line["message"]) for line in lines]
    return [(turn, message["say"] if isinstance(message, dict) else message) for turn, message in messages]
