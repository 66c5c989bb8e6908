"""E02 and E03d with chat models: killed while an endpoint works; the accounts of tokens and money agree afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from .harness import FIXTURES, Request, Service, Site, Speaking, read_counter
from .invariants import check_invariants
from .orders import execution

USAGE = {"prompt_tokens": 20, "completion_tokens": 4}
COST = {"small": 20 * 100 + 4 * 400, "large": 20 * 1000 + 4 * 4000}  # of a reply, in nano-USD
PRICES = {
    "as_of": "2026-11-01",
    "models": {"small": {"input": "0.1", "output": "0.4"}, "large": {"input": "1", "output": "4"}},
}


class Endpoint(Service):
    """The scripted chat endpoint; its log is the independent counter."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "chat_counter.jsonl"
        Speaking.__init__(self, FIXTURES / "chat_endpoint.py", "--log", self.log)
        self._waiting = []
        self.url = f"http://127.0.0.1:{int(self.line())}/v1/chat/completions"


@pytest.fixture
def endpoint(site: Site) -> Iterator[Endpoint]:
    made = Endpoint(site.folder)
    yield made
    made.close()


def requests(endpoint: Endpoint) -> list[Request]:
    return read_counter(endpoint.log)


def said(text: str, **behave: Any) -> str:
    """A message that says how it is to be treated."""
    return json.dumps({"reply": f"you said {text}", "usage": USAGE, **behave})


def chat_order(site: Site, endpoint: Endpoint, cases: Sequence[Mapping[str, Any]], **options: Any) -> None:
    target = {"kind": "chat", "url": endpoint.url, "max_tokens": 8, "prices": PRICES, **options.pop("target", {})}
    site.order({
        "version": 1, "name": "chat", "cases": {"items": list(cases)}, "target": target,
        "execution": execution(), **options,
    })  # fmt: skip


def bound(message: str, model: str, **more: Any) -> int:
    """The most that a request with the message can cost, in nano-USD: its bytes are its tokens."""
    body = {"messages": [{"content": message, "role": "user"}], "max_tokens": 8, "model": model, **more}
    price_in, price_out = {"small": (100, 400), "large": (1000, 4000)}[model]
    return len(json.dumps(body, separators=(",", ":"))) * price_in + 8 * price_out


def money(site: Site) -> tuple[int, int]:
    (budget,) = [one for one in site.budgets() if one.plan.unit == "nanousd"]
    return budget.settled, budget.held


def test_e03d_chat_grid_killed_while_a_model_answers_goes_on_and_its_accounts_agree(
    site: Site, endpoint: Endpoint
) -> None:
    cases = [{"id": name, "input": said(name)} for name in ("a", "b")]
    cases.insert(1, {"id": "lost", "input": said("lost", wait="gate")})
    chat_order(
        site, endpoint, cases, target={"stream": True}, grid={"model": ["small", "large"]},
        budgets={"dispatches": 20, "usd": "0.01"},
    )  # fmt: skip
    coordinator = site.run()
    endpoint.wait_for("gate")
    before = requests(endpoint)
    coordinator.dies()
    endpoint.go("gate")
    assert site.resume().ended() == 0

    after = requests(endpoint)
    answered = {request.request_id for request in before[:-1]}
    assert answered.isdisjoint(request.request_id for request in after[len(before) :]), (
        "E02: what was answered is reused"
    )
    lost = before[-1]
    assert [one.payload_digest for one in after].count(lost.payload_digest) == 2, "E03d: asked anew"
    assert [one.request_id for one in after].count(lost.request_id) == 1, "under another id"
    assert site.counts() == {"selected": 6}
    (unknown,) = site.unknown()
    assert (unknown.call_id, unknown.case_id, unknown.variant) == (lost.request_id, "lost", "small")

    most = bound(said("lost", wait="gate"), "small", stream=True, stream_options={"include_usage": True})
    assert money(site) == (3 * COST["small"] + 3 * COST["large"], most)
    told = site.told("report", "chat", "--json")
    assert told["totals"]["tokens_out"] == 6 * USAGE["completion_tokens"]
    check_invariants(site.ledger, after)


def test_e08b_chat_money_is_set_aside_before_a_request_and_a_death_frees_nothing(
    site: Site, endpoint: Endpoint
) -> None:
    """Room for the lost request and one more, at what each can cost at most: the third is never sent."""
    lost, other = said("lost", wait="gate"), said("b")
    limit = bound(lost, "large") + bound(other, "large")
    chat_order(
        site, endpoint, [{"id": "a", "input": lost}, {"id": "b", "input": other}, {"id": "c", "input": other}],
        target={"model": "large", "if_unknown": "keep"}, budgets={"usd": f"0.{limit:09d}"},
    )  # fmt: skip
    coordinator = site.run()
    endpoint.wait_for("gate")
    coordinator.dies()
    endpoint.go("gate")
    assert site.resume().ended() == 6
    assert site.counts() == {"selected": 1, "unknown": 1, "unavailable": 1}
    assert money(site) == (COST["large"], bound(lost, "large"))
    assert len(requests(endpoint)) == 2
    check_invariants(site.ledger, requests(endpoint))


def test_e02_chat_conversation_killed_in_its_second_turn_carries_the_first_and_asks_the_second_anew(
    site: Site, endpoint: Endpoint
) -> None:
    turns = [said("one"), said("two", wait="gate"), said("three")]
    chat_order(
        site, endpoint, [{"id": "talk", "input": {"turns": turns}}], target={"model": "small", "system": "Be kind."},
        conversation={"turns": "$.turns", "answer": "all"}, budgets={"tokens": 100_000},
    )  # fmt: skip
    coordinator = site.run()
    endpoint.wait_for("gate")
    coordinator.dies()
    endpoint.go("gate")
    assert site.resume().ended() == 0

    seen = requests(endpoint)
    assert len(seen) == 4
    assert seen[1].payload_digest == seen[2].payload_digest, "the same history, and the same message"
    slot = site.only("talk")
    assert json.loads(slot.attempts[-1].answer) == ["you said one", "you said two", "you said three"]
    (budget,) = site.budgets()
    assert budget.settled == 3 * sum(USAGE.values())
    assert budget.held > 0
    check_invariants(site.ledger, seen)


def test_e13_changed_prompt_of_a_grid_is_paid_for_in_its_own_variants_alone(site: Site, endpoint: Endpoint) -> None:
    prompts = {"terse": {"system": "Be terse."}, "kind": {"system": "Be kind."}}
    options: dict[str, Any] = {"grid": {"model": ["small", "large"], "prompt": prompts}, "budgets": {"dispatches": 20}}
    cases = [{"id": name, "input": said(name)} for name in "ab"]
    chat_order(site, endpoint, cases, **options)
    assert site.run().ended() == 0
    run = site.outcome().run_id

    prompts["kind"] = {"system": "Be very kind."}
    chat_order(site, endpoint, cases, **options)
    assert site.start("fork", run, site.order_file, "--yes").ended() == 0
    assert len(requests(endpoint)) == 8, "a fork asks nothing"
    assert site.run().ended() == 0

    assert len(requests(endpoint)) == 8 + 4, "two cases of two models, with the one prompt that was changed"
    assert site.counts() == {"selected": 8}
    check_invariants(site.ledger, requests(endpoint))
