from __future__ import annotations

import asyncio
import contextlib
import functools
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.adapters import calls
from tallystick.adapters.answers import Answer, Failed, OutcomeUnknown, Refused, request_id
from tallystick.adapters.python_target import PythonTarget, target
from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.ledger.states import DispatchState, IfUnknown
from tallystick.runner.protocols import MISSING, Case, Outcome, QueryAnswer, QueryState, Usage
from tallystick.runner.token_classes import TokenClass

from .makers import dispatch_case, make_case, make_dispatching, make_slot, run, run_case

ROOT = Path(__file__).resolve().parents[3]


def both(body: Any) -> Iterator[PythonTarget]:
    """The same body as a blocking and as an async function."""

    def blocking(case: Case) -> Any:
        return body(case)

    async def on_the_loop(case: Case) -> Any:
        return body(case)

    yield target(blocking)
    yield target(on_the_loop)


def raising(exception: BaseException) -> Any:
    def body(case: Case) -> Any:
        raise exception

    return body


class ReadTimeout(Exception):
    """Named like the time-out of a client library that is not installed."""

    __module__ = "httpx"


@pytest.mark.parametrize(
    ("exception", "state", "reason", "message"),
    [
        (ValueError("no such\nmodel"), "failed", "python.exception", "ValueError: no such model"),
        (KeyError("x"), "failed", "python.exception", "KeyError: 'x'"),
        (SystemExit(3), "failed", "python.exception", "SystemExit: 3"),
        (GeneratorExit("left"), "failed", "python.exception", "GeneratorExit: left"),
        (RuntimeError(), "failed", "python.exception", "RuntimeError"),
        (ConnectionRefusedError("port 1"), "failed", "python.exception", "ConnectionRefusedError: port 1"),
        (TimeoutError("slow"), "unknown", "python.broken_off", "TimeoutError: slow"),
        (ConnectionResetError("gone"), "unknown", "python.broken_off", "ConnectionResetError: gone"),
        (ReadTimeout("slow"), "unknown", "python.broken_off", "ReadTimeout: slow"),
        (Failed("bad input", reason="bot.bad_input"), "failed", "bot.bad_input", "bad input"),
        (OutcomeUnknown("sent, and lost"), "unknown", "target.unknown", "sent, and lost"),
        (Refused("busy", retry_after_seconds=3), "refused", "target.refused", "busy"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_what_a_function_raises_tells_what_became_of_it(
    exception: BaseException, state: str, reason: str, message: str
) -> None:
    for made in both(raising(exception)):
        outcome = run_case(made, make_case())
        assert (outcome.state, outcome.reason, outcome.message) == (state, reason, message)
        assert outcome.bytes_sent is None


class Untold(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class UntoldTimeout(Untold, TimeoutError): ...


@pytest.mark.parametrize(
    ("exception", "state", "message"),
    [(Untold(), "failed", "Untold"), (UntoldTimeout(), "unknown", "UntoldTimeout")],
)
def test_exception_whose_text_cannot_be_had_tells_what_became_of_it_all_the_same(
    exception: Exception, state: str, message: str
) -> None:
    for made in both(raising(exception)):
        outcome = run_case(made, make_case())
        assert (outcome.state, outcome.message) == (state, message)


@pytest.mark.parametrize("wait", ["soon", float("nan"), float("inf"), True, [3]])
def test_wait_of_a_refusal_that_is_no_time_is_left_out(wait: Any) -> None:
    for made in both(raising(Refused("busy", retry_after_seconds=wait))):
        outcome = run_case(made, make_case())
        assert (outcome.state, outcome.retry_after_seconds) == (DispatchState.REFUSED, None)


def test_answer_whose_evidence_is_no_mapping_is_not_lost_wherever_the_function_ran() -> None:
    for made in both(lambda case: Answer(1, evidence=5, flags="cut")):  # type: ignore[arg-type]
        outcome = run_case(made, make_case())
        assert (outcome.answer, outcome.evidence, outcome.flags) == (1, {"evidence": 5}, ("cut",))


class _Mute:
    def __str__(self) -> str:
        raise ValueError("says nothing")


@pytest.mark.parametrize("unfit", [{1: 2}, {"k": {1: 2}}, {"k": object()}, {b"k": 1}])
def test_evidence_without_a_json_form_is_left_out_and_the_answer_kept(unfit: Any) -> None:
    for made in both(lambda case: Answer(1, evidence={"sound": 2, **unfit}, flags=("cut",))):
        outcome = run_case(made, make_case())
        assert (outcome.state, outcome.answer, outcome.evidence) == (DispatchState.ANSWERED, 1, {"sound": 2})
        assert outcome.flags == ("cut", "evidence_left_out")


@pytest.mark.parametrize(("odd", "flags"), [(b"ab", ("b'ab'",)), ([_Mute()], ("list",)), (None, ())])
def test_odd_flags_lose_no_answer(odd: Any, flags: tuple[str, ...]) -> None:
    for made in both(lambda case: Answer(1, flags=odd)):
        assert run_case(made, make_case()).flags == flags


def test_a_usage_object_is_read_as_carefully_as_a_mapping() -> None:
    odd = Usage(tokens_in=-5, tokens_out=10**30, cost_nanousd=1.5, problems=("told",))  # type: ignore[arg-type]
    for made in both(lambda case: Answer(1, usage=odd)):
        usage = run_case(made, make_case()).usage
        assert usage is not None
        assert (usage.tokens_in, usage.tokens_out, usage.cost_nanousd) == (None, None, None)
        assert usage.problems[0] == "told"
        assert len(usage.problems) == 4


def test_wait_of_a_refusal_is_a_year_at_most() -> None:
    for made in both(raising(Refused("busy", retry_after_seconds=1e300))):
        assert run_case(made, make_case()).retry_after_seconds == 366 * 24 * 3600


def test_message_of_an_exception_holds_no_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_API_KEY", "SK-CANARY-1")
    for made in both(raising(ValueError("401 for key SK-CANARY-1"))):
        assert run_case(made, make_case()).message == "ValueError: 401 for key ***"


def test_retry_after_of_a_refusal_is_never_negative() -> None:
    for made in both(raising(Refused(retry_after_seconds=-5))):
        assert run_case(made, make_case()).retry_after_seconds == 0


@pytest.mark.parametrize(
    "value",
    [object(), {1: "a"}, float("nan"), b"bytes", {"a": {2, 3}}, 10**5000, Answer(object())],  # type: ignore[arg-type]
    ids=lambda value: type(value).__name__,
)
def test_value_without_a_json_form_is_failed_and_named(value: Any) -> None:
    for made in both(lambda case: value):
        outcome = run_case(made, make_case())
        assert (outcome.state, outcome.reason) == (DispatchState.FAILED, "answer.not_json")
        assert type(value).__name__ in outcome.message


def test_blocking_function_that_gives_a_coroutine_is_told_so() -> None:
    async def inner() -> str:
        return "never"

    outcome = run_case(target(lambda case: inner()), make_case())
    assert outcome.reason == "answer.not_json"
    assert "coroutine" in outcome.message


def test_answer_brings_usage_evidence_and_flags() -> None:
    answer = Answer(
        ("a", 1),
        usage={"tokens_in": 5, "tokens_out": "12", "cost_usd": "0.01"},
        context=["passage"],
        tool_calls=[{"name": "search"}],
        evidence={"model": "m-1"},
        flags=["truncated"],
    )
    outcome = run_case(target(lambda case: answer), make_case())
    assert outcome.answer == ["a", 1]
    assert outcome.usage == Usage(
        tokens_in=5,
        tokens_out=None,
        cost_nanousd=10_000_000,
        raw={"tokens_in": 5, "tokens_out": "12", "cost_usd": "0.01"},
        problems=("tokens_out is '12': not a number",),
        classes={TokenClass.INPUT: 5},
    )
    assert outcome.evidence == {"model": "m-1", "context": ["passage"], "tool_calls": [{"name": "search"}]}
    assert outcome.flags == ("truncated",)


def test_answer_is_not_changed_by_what_the_function_does_to_it_later() -> None:
    kept: list[int] = [1]
    outcome = run_case(target(lambda case: kept), make_case())
    kept.append(2)
    assert outcome.answer == [1]


def test_function_gets_a_case_of_its_own_without_what_is_expected() -> None:
    seen: list[Case] = []

    def nosy(case: Case) -> str:
        seen.append(case)
        case.input["turns"].append("mine")  # type: ignore[index, call-overload, union-attr]
        return "done"

    given = Case("c", {"turns": []}, "secret", {"tag": 1})
    run_case(target(nosy), given)
    run_case(target(nosy), given)
    assert given.input == {"turns": []}
    assert [case.expected for case in seen] == [MISSING, MISSING]
    assert seen[1] == Case("c", {"turns": ["mine"]}, MISSING, {"tag": 1})


def test_arguments_are_passed_by_name_and_make_another_identity() -> None:
    @target(if_unknown="repeat", version="1")
    async def bot(case: Case, model: str, temperature: float = 0.0) -> str:
        return f"{model} {temperature} {case.input}"

    one, other = bot.using(model="a"), bot.using(model="b", temperature=0.5)
    assert run_case(one, make_case("x")).answer == "a 0.0 x"
    assert run_case(other, make_case("x")).answer == "b 0.5 x"
    assert one.if_unknown is IfUnknown.REPEAT
    assert one.identity()["arguments"] == {"model": "a"}
    assert one.identity() != other.identity()
    assert asyncio.run(bot(make_case("y"), model="c")) == "c 0.0 y"
    assert b'"model":"a"' in one.prepare(make_slot()).payload


def test_function_that_lacks_an_argument_is_refused_before_any_call() -> None:
    @target
    def bot(case: Case, model: str) -> str:
        return model

    with pytest.raises(WorkOrderInvalid, match="missing a required argument: 'model'"):
        run_case(bot, make_case())


def test_argument_without_a_json_form_is_refused() -> None:
    with pytest.raises(WorkOrderInvalid, match="has no JSON form"):
        target(lambda case, model: model).using(model=object())  # type: ignore[arg-type]


def test_if_unknown_that_is_not_known_is_refused_with_the_nearest() -> None:
    with pytest.raises(WorkOrderInvalid, match='Did you mean "resend"'):
        target(if_unknown="resent")(lambda case: case)


def test_function_can_ask_for_its_request_id() -> None:
    for made in both(lambda case: request_id()):
        assert run_case(made, make_case(), request_id="durable-id").answer == "durable-id"
    with pytest.raises(LookupError):
        request_id()


def test_c02_answer_of_an_overdue_thread_is_reported_as_late() -> None:
    go_on, reported = threading.Event(), threading.Event()
    late: list[Outcome] = []

    def slow(case: Case) -> str:
        assert go_on.wait(30)
        return "late"

    def listen(outcome: Outcome) -> None:
        late.append(outcome)
        reported.set()

    async def scenario() -> None:
        made = target(slow)
        await made.open()
        outcome, _ = await dispatch_case(made, make_case(), deadline_seconds=0.01, late=listen)
        assert (outcome.state, outcome.reason) == (DispatchState.UNKNOWN, "deadline")
        assert late == []
        go_on.set()
        assert await asyncio.to_thread(reported.wait, 30)
        await made.close()

    run(scenario())
    assert [(outcome.state, outcome.answer) for outcome in late] == [(DispatchState.ANSWERED, "late")]


def test_late_answer_after_the_loop_has_ended_is_reported_from_its_thread() -> None:
    go_on, reported = threading.Event(), threading.Event()

    def slow(case: Case) -> str:
        assert go_on.wait(30)
        return "very late"

    async def scenario() -> None:
        await dispatch_case(target(slow), make_case(), deadline_seconds=0.01, late=lambda outcome: reported.set())

    run(scenario())
    assert not reported.is_set()
    go_on.set()
    assert reported.wait(30)


def test_answer_in_spite_of_cancellation_is_reported_as_late() -> None:
    async def stubborn(case: Case) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "anyway"
        return "never"

    late: list[Outcome] = []

    async def scenario() -> None:
        made = target(stubborn)
        outcome, _ = await dispatch_case(made, make_case(), deadline_seconds=0.01, late=late.append)
        assert outcome.state is DispatchState.UNKNOWN
        await made.close()

    run(scenario())
    assert [outcome.answer for outcome in late] == ["anyway"]


def test_function_that_swallows_every_cancellation_wedges_neither_call_nor_loop() -> None:
    async def deaf(case: Case) -> str:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    async def scenario() -> None:
        made = target(deaf)
        slot = make_slot()
        call = asyncio.create_task(made.dispatch(made.prepare(slot), make_dispatching(slot)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await made.close()

    run(scenario())  # asyncio.run waits for every task that it knows


def test_cancellation_inside_a_function_is_not_taken_for_one_from_outside() -> None:
    async def inner() -> None:
        await asyncio.Event().wait()

    async def clumsy(case: Case) -> None:
        task = asyncio.create_task(inner())
        await asyncio.sleep(0)
        task.cancel()
        await task

    outcome = run_case(target(clumsy), make_case())
    assert (outcome.state, outcome.reason) == (DispatchState.FAILED, "python.exception")


def test_thread_that_never_returns_does_not_keep_the_process() -> None:
    script = """
        import asyncio, threading
        from tallystick.adapters.python_target import target
        from tallystick.runner.protocols import Case, Dispatching, SlotView

        @target
        def stuck(case):
            threading.Event().wait()

        async def main():
            slot = SlotView("r", Case("c", 1), "v", 1)
            outcome = await stuck.dispatch(stuck.prepare(slot), Dispatching("id", 1, 1, slot, 0.01))
            print(outcome.reason)
            await stuck.close()

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert (done.returncode, done.stdout.strip()) == (0, "deadline"), done.stderr


def test_overdue_threads_are_bounded_and_the_next_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_OVERDUE_MAX", 2)
    go_on = threading.Event()

    def stuck(case: Case) -> bool:
        return go_on.wait(30)

    async def scenario() -> None:
        made = target(stuck)
        for _ in range(2):
            outcome, _ = await dispatch_case(made, make_case(), deadline_seconds=0.01)
            assert outcome.state is DispatchState.UNKNOWN
        outcome, dispatching = await dispatch_case(made, make_case(), deadline_seconds=0.01)
        assert (outcome.state, outcome.reason, outcome.bytes_sent) == (DispatchState.REFUSED, "python.threads", 0)
        assert dispatching.progress.bytes_sent == 0
        go_on.set()

    run(scenario())


def test_query_asks_the_function_that_was_given() -> None:
    def ask(asked: str) -> QueryAnswer:
        return QueryAnswer(QueryState.NEVER if asked == "lost" else QueryState.PENDING)

    async def ask_on_the_loop(asked: str) -> QueryAnswer:
        return ask(asked)

    def broken(asked: str) -> QueryAnswer:
        raise OSError("no network")

    async def asked(query: Any) -> QueryAnswer:
        made = target(if_unknown="query", query=query)(lambda case: case)
        return await made.query("lost", made.prepare(make_slot()))

    assert run(asked(ask)).state == QueryState.NEVER
    assert run(asked(ask_on_the_loop)).state == QueryState.NEVER
    answer = run(asked(broken))
    assert (answer.state, answer.message) == (QueryState.NO_PROOF, "OSError: no network")
    with pytest.raises(WorkOrderInvalid, match="needs a query function"):
        target(if_unknown="query")(lambda case: case)


class Callable:
    async def __call__(self, case: Case) -> str:
        return "from an object"


def test_objects_and_partial_functions_are_functions_too() -> None:
    assert run_case(PythonTarget(Callable()), make_case()).answer == "from an object"
    made = PythonTarget(functools.partial(lambda case, model: model, model="m"))
    assert run_case(made, make_case()).answer == "m"
    assert made.identity()["bound"] == {"model": "m"}


def test_answer_that_comes_with_the_cancellation_is_reported_as_late() -> None:
    late: list[Outcome] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        async def quick(case: Case) -> str:
            loop.call_soon(call.cancel)  # before the dispatch is woken by this function's end
            return "at the last moment"

        made = target(quick)
        slot = make_slot()
        call = asyncio.create_task(made.dispatch(made.prepare(slot), make_dispatching(slot, late=late.append)))
        with pytest.raises(asyncio.CancelledError):
            await call
        await made.close()

    run(scenario())
    assert [outcome.answer for outcome in late] == ["at the last moment"]


def test_answer_of_a_thread_that_comes_with_the_cancellation_is_reported_as_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late: list[Outcome] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        posted = threading.Event()
        post = loop.call_soon_threadsafe

        def posting(*args: Any) -> Any:
            handle = post(*args)
            posted.set()
            return handle

        monkeypatch.setattr(loop, "call_soon_threadsafe", posting)
        made = target(lambda case: "at the last moment")
        slot = make_slot()
        call = asyncio.create_task(made.dispatch(made.prepare(slot), make_dispatching(slot, late=late.append)))
        await asyncio.sleep(0)
        assert posted.wait(30)  # the answer stands in the loop's queue, and behind it:
        loop.call_soon(call.cancel)
        with pytest.raises(asyncio.CancelledError):
            await call
        await made.close()
        assert made._calls.overdue == 0

    run(scenario())
    assert [outcome.answer for outcome in late] == ["at the last moment"]
