"""A small asyncio harness of one's own, with the ledger inside: kill it, start it again, and it pays for nothing twice.

    python examples/embedding/harness.py [LEDGER]

The "model" is a function in this file, so that it runs as it is. Put your own client in its place.
"""

from __future__ import annotations

import asyncio
import sys

import tallystick as ts

QUESTIONS = [
    {"id": f"q{number}", "input": f"{number} + {number}", "expected": str(2 * number)} for number in range(1, 21)
]
CONFIG = {"model": "adder-1", "prompt": "Add the numbers."}


async def send(question: str, request_id: str) -> tuple[str, dict[str, int]]:
    """What costs money: the id goes along, so that the service can tell a repetition."""
    assert request_id
    await asyncio.sleep(0)
    left, right = question.split(" + ")
    return str(int(left) + int(right)), {"tokens_in": len(question), "tokens_out": 2}


async def work(slot: ts.EmbeddedSlot) -> None:
    async with slot.attempt(deadline_seconds=30) as attempt:
        question = str(slot.case.input)
        async with attempt.call("model", {**CONFIG, "question": question}, bound_usd="0.02") as call:
            text, used = await send(question, call.request_id)
            call.answer(text, usage=ts.Usage(used["tokens_in"], used["tokens_out"], 12_000_000))
        attempt.observe(text)


async def main(path: str) -> None:
    async with ts.open_async(path) as ledger:
        run = await ledger.create_or_continue(
            "adding", slots=QUESTIONS, identity=CONFIG, if_unknown="repeat",
            budget=ts.Budget(dispatches=100, usd="2.00", usd_bound="0.02"),
        )  # fmt: skip
        async with asyncio.TaskGroup() as tasks:
            async for slot in run.claims(concurrency=4):
                tasks.create_task(work(slot))
        rows = ledger.observations(run)
        right = sum(row.answer == question["expected"] for row, question in zip(rows, QUESTIONS, strict=True))
        print(f"{right} of {len(QUESTIONS)} are right")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "evals.db"))
