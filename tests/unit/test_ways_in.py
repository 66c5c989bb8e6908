"""The ways in, as a user would type them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

import tallystick as ts
from tallystick.adapters import guarded_clients
from tallystick.ledger.states import SlotState


@attrs.frozen
class Doc:
    id: str
    text: str


@attrs.frozen
class Reply:
    text: str
    body: dict[str, str]
    usage: dict[str, int]


@pytest.fixture(autouse=True)
def _in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TALLYSTICK_LEDGER", raising=False)


def test_a_guard_around_paid_calls_in_a_plain_script(capsys: pytest.CaptureFixture[str]) -> None:
    docs, called = [Doc("a", "one"), Doc("b", "two")], []

    def summarise(doc: Doc) -> str:
        called.append(doc.id)
        return doc.text.upper()

    for _ in range(2):
        with ts.guard("summaries", if_unknown="repeat", budget=ts.Budget(dispatches=500, usd="5.00")) as guard:
            for doc in docs:
                result = guard.call(doc.id, summarise, doc)
                assert result == doc.text.upper()
            print(guard.summary())

    assert called == ["a", "b"]
    assert capsys.readouterr().out.splitlines()[-1].startswith("summaries: 2 keys, 2 reused, 0 called")


def test_a_target_a_judge_and_a_work_order_without_any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    model = httpx.MockTransport(lambda request: httpx.Response(200, json={"said": json.loads(request.content)}))
    monkeypatch.setattr(guarded_clients, "shared_sender", lambda **_: model)
    Path("q.jsonl").write_text('{"id": "a", "input": "one", "expected": "one"}\n', encoding="utf-8")

    @ts.target(if_unknown="repeat")
    async def bot(case: ts.Case, http: ts.Http, model: str) -> ts.Answer:
        reply = await http.post("http://model/ask", json={"model": model, "ask": case.input})
        return ts.Answer(reply.json()["said"]["ask"], context=[f"{case.input} is a number"])

    @ts.judge(needs=["context"])
    def grounded(answer: ts.Answer) -> ts.Verdict:
        context: Any = answer.context
        return ts.Verdict(str(answer.value) in context[0])

    order = ts.WorkOrder(
        "bot", cases=ts.cases("q.jsonl"), repetitions=3,
        variants={"old": bot.using(model="a"), "new": bot.using(model="b")}, judges=[ts.exact(), grounded],
    )  # fmt: skip
    report = ts.run(order)

    assert report.next is ts.NextMove.NOTHING
    assert report.planned == report.counts[SlotState.SELECTED] == 6
    assert asyncio.run(ts.run_async(order)).dispatches == 0


def test_a_supervisor() -> None:
    Path("nightly.py").write_text("def said(case):\n    return case.input\n", encoding="utf-8")
    document = """
        version = 1
        name = "nightly"
        [cases]
        items = [{ id = "a", input = 1 }, { id = "b", input = 2 }]
        [target]
        kind = "python"
        file = "nightly.py"
        function = "said"
    """
    Path("nightly.toml").write_text(document, encoding="utf-8")
    assert ts.run("nightly.toml", limit=1).next is ts.NextMove.RESUME

    outcome = ts.resume(run="nightly")

    assert outcome.next is ts.NextMove.NOTHING
    assert issubclass(ts.RunBusy, ts.TallystickError)
    assert issubclass(ts.IdentityChanged, ts.TallystickError)


def test_ones_own_asyncio_harness() -> None:
    slots, config, sent = ["a", "b"], {"model": "m"}, []

    async def my_send(request: dict[str, str], request_id: str) -> Reply:
        sent.append(request_id)
        return Reply("yes", {"said": "yes"}, {"tokens_in": 1, "tokens_out": 2, "cost_nanousd": 3})

    async def harness() -> None:
        async with ts.open_async("evals.db") as ledger:
            run = await ledger.create_or_continue("bench", slots=slots, identity=config)
            async for slot in run.claims():
                async with slot.attempt(deadline_seconds=30) as attempt:
                    request = {"ask": slot.case.id}
                    async with attempt.call("model", request, bound_usd="0.02") as call:
                        reply = await my_send(request, call.request_id)
                        call.answer(reply.body, usage=reply.usage)
                    attempt.observe(reply.text)
            assert [row.answer for row in ledger.observations(run)] == ["yes", "yes"]
            assert [call.cost_nanousd for call in ledger.calls(run)] == [3, 3]

    for _ in range(2):
        asyncio.run(harness())
    assert len(sent) == 2
