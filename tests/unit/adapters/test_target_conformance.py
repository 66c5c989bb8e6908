"""What every target promises, whatever its kind: the outcome table, and that nothing is lost or changed on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.adapters.errors import CaseUnfit
from tallystick.ledger.canonical import JsonValue, canonical_text, digest_of_bytes
from tallystick.ledger.states import DispatchState, IfUnknown
from tallystick.runner.protocols import MISSING, Case, Outcome, Target

from .device_makers import a_device, an_instrument
from .makers import Service, dispatch_case, make_case, make_dispatching, make_slot, run, run_case
from .target_kinds import AtlasKind, ChatKind, HttpKind, Kind, LineKind, ProcessKind, PythonKind

HOSTILE = [
    *("{# x }", "{{user}}", "{{input}}", "{% raw", "%s", "${HOME}"),
    *("$(id)", "`id`", "'; rm -rf /;", "\\", "\r\n\t", "\x00\x1b[0m"),
]
ODD = ["\ud800", "\udc00 tail", "\U0001f600", "é", "﻿bom", "", " ", "  two  "]


@pytest.fixture(params=["http", "chat", "process", "blocking", "on_the_loop", "atlas", "line"])
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kind]:
    if request.param == "http":
        service = Service.start(tmp_path)
        yield HttpKind(service, tmp_path)
        service.stop()
    elif request.param == "chat":
        service = Service.start(tmp_path, "chat_endpoint.py")
        yield ChatKind(service, tmp_path)
        service.stop()
    elif request.param == "process":
        yield ProcessKind(tmp_path)
    elif request.param == "atlas":
        with a_device(tmp_path) as device:
            yield AtlasKind(device, tmp_path)
    elif request.param == "line":
        with an_instrument(tmp_path) as instrument:
            yield LineKind(instrument, tmp_path)
    else:
        monkeypatch.setenv("COUNTER_LOG", str(tmp_path / "calls.jsonl"))
        yield PythonKind(tmp_path, request.param)


def counted(kind: Kind, outcome: Outcome, calls: int = 1) -> None:
    assert len(kind.lines()) == calls
    assert "\n" not in outcome.message


def test_target_is_what_the_executor_expects(kind: Kind) -> None:
    target = kind.target()
    assert isinstance(target, Target)
    assert target.if_unknown is kind.if_unknown
    assert kind.target(if_unknown="resend").if_unknown is IfUnknown.RESEND


def test_whole_answer_in_time_is_answered_with_its_usage(kind: Kind) -> None:
    outcome = run_case(kind.target(), kind.answering({"language": "en"}), request_id="the-request-id")
    assert (outcome.state, outcome.answer) == (DispatchState.ANSWERED, {"language": "en"})
    assert outcome.usage is not None
    assert (outcome.usage.tokens_in, outcome.usage.tokens_out, outcome.usage.cost_nanousd) == (7, 3, None)
    assert outcome.wire_sends == 1
    counted(kind, outcome)
    if kind.sends_request_id:
        assert kind.lines()[0]["request_id"] == "the-request-id"


def test_refusal_is_refused_and_says_when_to_come_back_where_it_can(kind: Kind) -> None:
    case = kind.refusing()
    if case is None:
        pytest.skip("it has no word for it")
    outcome = run_case(kind.target(), case)
    assert outcome.state is DispatchState.REFUSED
    assert outcome.reason
    assert outcome.retry_after_seconds == (7 if kind.gives_retry_after else None)
    assert outcome.answer is MISSING
    counted(kind, outcome)


def test_error_is_failed_with_the_usage_that_it_reports(kind: Kind) -> None:
    outcome = run_case(kind.target(), kind.failing())
    assert outcome.state is DispatchState.FAILED
    assert "broken" in outcome.message
    assert outcome.answer is MISSING
    assert outcome.usage is not None
    assert outcome.usage.tokens_in == 7
    counted(kind, outcome)


def test_call_past_its_deadline_is_unknown_and_may_have_left(kind: Kind) -> None:
    async def scenario() -> None:
        target = kind.target()
        await target.open()
        outcome, dispatching = await dispatch_case(target, kind.hanging(), deadline_seconds=0.7)
        assert (outcome.state, outcome.reason) == (DispatchState.UNKNOWN, "deadline")
        assert outcome.bytes_sent != 0
        assert dispatching.progress.bytes_sent != 0
        assert dispatching.progress.wire_sends == 1
        await target.close()

    run(scenario())
    assert len(kind.lines()) == 1


def test_overdue_call_holds_up_nobody(kind: Kind) -> None:
    async def scenario() -> None:
        target = kind.target()
        await target.open()
        await dispatch_case(target, kind.hanging(), deadline_seconds=0.5)
        outcomes = await asyncio.gather(*[dispatch_case(target, kind.answering(at)) for at in range(4)])
        assert [outcome.answer for outcome, _ in outcomes] == [0, 1, 2, 3]
        await target.close()

    run(scenario())


def test_where_nothing_left_it_is_refused_at_no_cost(kind: Kind) -> None:
    target = kind.unreachable()
    if target is None:
        pytest.skip("of a function it is never certain that nothing left")

    async def scenario() -> None:
        await target.open()
        outcome, dispatching = await dispatch_case(target, kind.answering(1))
        assert outcome.state is DispatchState.REFUSED
        assert (outcome.bytes_sent, outcome.wire_sends) == (0, 0)
        assert (dispatching.progress.bytes_sent, dispatching.progress.wire_sends) == (0, 0)
        await target.close()

    run(scenario())
    assert kind.lines() == []


def test_cancelled_call_passes_the_cancellation_on_and_says_how_far_it_came(kind: Kind) -> None:
    async def scenario() -> None:
        target = kind.target()
        await target.open()
        slot = make_slot(kind.hanging())
        dispatching = make_dispatching(slot)
        call = asyncio.create_task(target.dispatch(target.prepare(slot), dispatching))
        while not kind.lines():  # noqa: ASYNC110 - a file of another process wakes nobody
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert dispatching.progress.bytes_sent != 0
        outcome, _ = await dispatch_case(target, kind.answering("after"))
        assert outcome.answer == "after"
        await target.close()

    run(scenario())


@pytest.mark.parametrize("value", [False, 0, "", [], {}, None, True, 1, 0.0, "0", 10**30], ids=repr)
def test_c36_answer_that_is_false_or_empty_is_an_answer(kind: Kind, value: JsonValue) -> None:
    outcome = run_case(kind.target(), kind.answering(value))
    assert outcome.state is DispatchState.ANSWERED
    assert outcome.answer is not MISSING
    assert canonical_text(outcome.answer) == canonical_text(value)  # type: ignore[arg-type]


def test_c37_case_text_with_template_or_shell_syntax_goes_and_comes_as_it_is(kind: Kind) -> None:
    case = kind.answering([*HOSTILE])
    outcome = run_case(kind.target(), case)
    assert outcome.answer == HOSTILE


def test_c32_lone_surrogates_and_odd_characters_go_and_come_as_they_are(kind: Kind) -> None:
    outcome = run_case(kind.target(), kind.answering([*ODD]))
    assert outcome.answer == ODD
    assert canonical_text(outcome.answer) == canonical_text(ODD)


def test_what_is_received_is_what_was_prepared(kind: Kind) -> None:
    if not kind.sends_bytes:
        pytest.skip("a function is given values")
    target = kind.target()
    case = kind.answering([*HOSTILE, *ODD])
    run_case(target, case)
    assert kind.lines()[0]["payload_digest"] == digest_of_bytes(target.prepare(make_slot(case)).payload)


def test_same_request_sent_again_is_the_same_under_the_same_id(kind: Kind) -> None:
    async def scenario() -> None:
        first, second = kind.target(), kind.target()
        slot = make_slot(kind.answering("same"))
        prepared = first.prepare(slot)
        for target in (first, second):  # the second: a process that has been started again
            await target.open()
            await target.dispatch(prepared, make_dispatching(slot, request_id="one-id"))
            await target.close()

    run(scenario())
    one, other = kind.lines()
    if kind.sends_request_id:
        assert one["request_id"] == other["request_id"] == "one-id"
    assert one["payload_digest"] == other["payload_digest"]


def test_preparing_is_pure_and_says_nothing_of_what_is_expected(kind: Kind) -> None:
    target = kind.target()
    case = kind.answering("x")
    telling = Case(case.id, case.input, "the expected answer", case.metadata)
    one, other = target.prepare(make_slot(telling)), target.prepare(make_slot(telling))
    assert one == other
    assert b"the expected answer" not in one.payload
    assert "the expected answer" not in canonical_text(one.head)
    assert kind.lines() == []


def test_case_that_has_no_json_form_is_named(kind: Kind) -> None:
    case = make_case({"a": object()}, id="the odd one", behave={})  # type: ignore[dict-item]
    with pytest.raises(CaseUnfit, match="the odd one") as caught:
        kind.target().prepare(make_slot(case))
    assert caught.value.case_id == "the odd one"


def test_fence_goes_with_the_request(kind: Kind) -> None:
    run_case(kind.target(), kind.answering(1), fence=41)
    run_case(kind.target(), kind.answering(1))
    assert tuple(line["fence"] for line in kind.lines()) == kind.fences


def test_identity_is_the_same_each_time_and_tells_configurations_apart(kind: Kind) -> None:
    identity = canonical_text(kind.target().identity())
    assert identity == canonical_text(kind.target(if_unknown="repeat").identity())
    assert identity != canonical_text(kind.target(version="2").identity())
    assert json.loads(identity)["kind"] == kind.target().kind


def test_target_can_be_closed_twice_and_opened_again(kind: Kind) -> None:
    async def scenario() -> None:
        target = kind.target()
        for _ in range(2):
            await target.open()
            outcome, _ = await dispatch_case(target, kind.answering("again"))
            assert outcome.answer == "again"
            await target.close()
            await target.close()

    run(scenario())
