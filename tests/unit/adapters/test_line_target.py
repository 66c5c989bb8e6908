"""Instruments that answer a line a query: a line that comes late, twice or unasked is never the next query's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tallystick.adapters.errors import CaseUnfit
from tallystick.adapters.line_target import LineTarget
from tallystick.ledger.canonical import canonical_text
from tallystick.ledger.errors import IdentityChanged, TargetNotFound, WorkOrderInvalid
from tallystick.ledger.states import DispatchState
from tallystick.runner.device_protocols import DeviceTarget, TakenOver
from tallystick.runner.protocols import Outcome, Prepared, Target

from .device_makers import FakeTenure, Instrument, an_instrument, in_thread, make_line, open_request, send
from .http_makers import listening
from .makers import make_case, make_slot, run

ANSWERED, FAILED, REFUSED, UNKNOWN = (
    DispatchState.ANSWERED,
    DispatchState.FAILED,
    DispatchState.REFUSED,
    DispatchState.UNKNOWN,
)
ECHO = {"echo": "ECHO {{nonce}}"}
OPEN_FILES = Path("/proc/self/fd")
MEANS: list[dict[str, Any]] = [ECHO, {"reconnect": True}, {**ECHO, "reconnect": True}]


@pytest.fixture(params=[(), ("--pty",)], ids=["tcp", "pty"])
def instrument(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Instrument]:
    with an_instrument(tmp_path, *request.param) as started:
        yield started


@pytest.fixture
def over_tcp(tmp_path: Path) -> Iterator[Instrument]:
    with an_instrument(tmp_path) as started:
        yield started


def asking(value: Any, **behave: Any) -> Any:
    return make_slot(make_case({"answer": value, "behave": behave}))


def reading(**options: Any) -> dict[str, Any]:
    return {"payload": "ASK {{input}}", "output": "json", **options}


class Held:
    """A target that has taken its instrument over."""

    def __init__(self, instrument: Instrument | str, tenure: FakeTenure | None = None, **options: Any) -> None:
        self.target = make_line(instrument, **options)
        self.tenure = tenure or FakeTenure()

    async def __aenter__(self) -> tuple[Any, TakenOver]:
        await self.target.open()
        return self.target, await self.target.take_over(self.tenure)

    async def __aexit__(self, *_: object) -> None:
        await self.target.close()


def ask_all(instrument: Instrument, *slots: Any, tenure: FakeTenure | None = None, **options: Any) -> list[Outcome]:
    async def scenario() -> list[Outcome]:
        async with Held(instrument, tenure, **options) as (target, taken):
            assert taken.quarantine is None
            return [(await send(target, slot))[0] for slot in slots]

    return run(scenario())


# The ordinary day.


def test_query_goes_out_as_a_line_and_its_answer_comes_back_as_one(instrument: Instrument) -> None:
    (outcome,) = ask_all(instrument, make_slot(make_case("volt")), payload="meas:{{input}} 1", ends_with="\r\n")
    assert (outcome.state, outcome.answer, outcome.raw) == (ANSWERED, "MEAS:VOLT 1", b"MEAS:VOLT 1")
    assert [line["line"] for line in instrument.lines()] == ["*IDN?", "meas:volt 1"]


@pytest.mark.parametrize(
    ("raw", "answer"), [("+1.25E+00\n", 1.25), ("-7\r\n", -7), ("  0.5 \n", 0.5), ("1e400\n", None), ("ok\n", None)]
)
def test_number_is_read_as_a_number(over_tcp: Instrument, raw: str, answer: float | None) -> None:
    (outcome,) = ask_all(over_tcp, asking(None, raw=raw), **reading(output="number"))
    if answer is None:
        assert (outcome.state, outcome.reason) == (FAILED, "answer.not_json")
    else:
        assert (outcome.state, outcome.answer) == (ANSWERED, answer)


def test_target_is_what_the_executor_takes_for_one_with_a_device() -> None:
    target = make_line("127.0.0.1:1", echo="ECHO {{nonce}}")
    assert isinstance(target, Target)
    assert isinstance(target, DeviceTarget)
    (need,) = target.devices()
    assert (need.resource, need.kind, need.compares_fences) == ("line:SN-7", "line", False)


# Late, double and unasked lines.


@pytest.mark.parametrize("means", MEANS, ids=["echo", "reconnect", "both"])
def test_late_line_in_the_next_querys_window_is_never_taken(over_tcp: Instrument, means: dict[str, Any]) -> None:
    async def scenario() -> None:
        tenure = FakeTenure()
        async with Held(over_tcp, tenure, **reading(**means)) as (target, _):
            late, _ = await send(target, asking("late", hold="g"), deadline_seconds=0.2)
            assert (late.state, late.reason) == (UNKNOWN, "deadline")
            following = asyncio.create_task(send(target, asking("its own")))
            await in_thread(lambda: over_tcp.wait_for("waiting g"))
            await in_thread(lambda: over_tcp.tell("go g"))
            outcome, _ = await following
            assert (outcome.state, outcome.answer) == (ANSWERED, "its own")
            third, _ = await send(target, asking("the third"))
            assert third.answer == "the third"
            assert tenure.roles.count("drain") == 2  # taking over, and after the unknown outcome

    run(scenario())


def test_late_line_over_a_serial_port_is_never_taken(tmp_path: Path) -> None:
    async def scenario(instrument: Instrument) -> None:
        async with Held(instrument, **reading(**ECHO)) as (target, _):
            late, _ = await send(target, asking("late", hold="g"), deadline_seconds=0.2)
            assert late.state is UNKNOWN
            following = asyncio.create_task(send(target, asking("its own")))
            await in_thread(lambda: instrument.wait_for("waiting g"))
            await in_thread(lambda: instrument.tell("go g"))
            assert (await following)[0].answer == "its own"

    with an_instrument(tmp_path, "--pty") as started:
        run(scenario(started))


def test_late_line_is_dropped_where_none_comes_after_a_known_time(over_tcp: Instrument) -> None:
    async def scenario() -> None:
        async with Held(over_tcp, **reading(answer_seconds_max=0.2)) as (target, taken):
            assert taken.contaminating == ()
            late, _ = await send(target, asking("late", hold="g"), deadline_seconds=0.2)
            assert late.state is UNKNOWN
            await in_thread(lambda: over_tcp.wait_for("waiting g"))
            await in_thread(lambda: over_tcp.tell("go g"))
            outcome, _ = await send(target, asking("its own"))
            assert outcome.answer == "its own"

    run(scenario())


def test_time_after_which_nothing_comes_is_not_waited_for_anew_by_each_attempt(over_tcp: Instrument) -> None:
    async def scenario() -> list[Outcome]:
        async with Held(over_tcp, **reading(answer_seconds_max=0.7)) as (target, _):
            slots = [asking("late", hold="never"), *(asking(number) for number in range(6))]
            return [(await send(target, slot, deadline_seconds=0.25))[0] for slot in slots]

    outcomes = run(scenario())
    assert [outcome.state for outcome in outcomes[:2]] == [UNKNOWN, REFUSED]
    assert outcomes[-1].state is UNKNOWN  # it was sent, though the instrument is still at the first


def test_instrument_with_no_way_back_into_step_is_quarantined_and_gets_nothing_more(over_tcp: Instrument) -> None:
    async def scenario() -> Outcome:
        async with Held(over_tcp, **reading()) as (target, _):
            late, _ = await send(target, asking("late", hold="g"), deadline_seconds=0.2)
            assert late.state is UNKNOWN
            await in_thread(lambda: over_tcp.wait_for("waiting g"))
            await in_thread(lambda: over_tcp.tell("go g"))
            return (await send(target, asking("its own")))[0]

    outcome = run(scenario())
    assert (outcome.state, outcome.reason, outcome.bytes_sent) == (REFUSED, "device.out_of_step", 0)
    assert outcome.quarantine == "what it is still doing is not known, and there is no way to find out"
    assert len(over_tcp.lines()) == 2


def test_instrument_that_does_not_come_back_into_step_is_quarantined(over_tcp: Instrument) -> None:
    async def scenario() -> Outcome:
        async with Held(over_tcp, **reading(**ECHO, drain_seconds=0.3)) as (target, _):
            await send(target, asking("late", hold="never"), deadline_seconds=0.2)
            return (await send(target, asking("its own")))[0]

    outcome = run(scenario())
    assert (outcome.state, outcome.reason) == (REFUSED, "device.out_of_step")
    assert outcome.quarantine == "what it is still doing could not be found out within 0.3 s"
    assert "its own" not in "".join(line["line"] for line in over_tcp.lines())


@pytest.mark.parametrize("behave", [{"twice": True}, {"first": '"of whom?"'}], ids=str)
def test_two_lines_for_one_query_are_no_answer_and_the_next_is_its_own(
    instrument: Instrument, behave: dict[str, Any]
) -> None:
    wrong, right = ask_all(instrument, asking("once", **behave), asking("its own"), **reading(**ECHO))
    assert (wrong.state, wrong.reason) == (UNKNOWN, "reply.mismatched")
    assert wrong.raw is not None
    assert b'"once"' in wrong.raw
    assert (right.state, right.answer) == (ANSWERED, "its own")


def test_line_that_nobody_asked_for_is_not_the_next_answer(over_tcp: Instrument) -> None:
    async def scenario() -> None:
        tenure = FakeTenure()
        async with Held(over_tcp, tenure, **reading(reconnect=True)) as (target, _):
            await send(target, asking(1))
            await in_thread(lambda: over_tcp.tell('say "alarm"'))
            while not target.link.has_bytes:  # noqa: ASYNC110 - another process wakes nobody here
                await asyncio.sleep(0)
            outcome, _ = await send(target, asking(2))
            assert outcome.answer == 2
            assert tenure.roles == ["drain", "drain"]

    run(scenario())


def test_line_that_comes_just_before_the_query_goes_out_keeps_it_from_going_out(over_tcp: Instrument) -> None:
    class JustBefore(LineTarget):
        lines: Sequence[bytes] = (b"", b'"late"\n', b"")

        async def get_ready(self, prepared: Prepared) -> None:
            await super().get_ready(prepared)
            first, *self.lines = self.lines
            self.link.data_received(first)

    async def scenario() -> list[Outcome]:
        made = make_line(over_tcp, **reading(**ECHO))
        target = JustBefore(made.table, place="target")
        await target.open()
        await target.take_over(FakeTenure())
        outcomes = [(await send(target, asking(number)))[0] for number in (1, 2, 2)]
        await target.close()
        return outcomes

    first, held_back, second = run(scenario())
    assert (first.answer, second.answer) == (1, 2)
    assert (held_back.state, held_back.reason, held_back.bytes_sent) == (REFUSED, "device.out_of_step", 0)
    assert held_back.quarantine is None


def test_two_variants_on_one_port_share_it_and_neither_takes_the_others_late_line(tmp_path: Path) -> None:
    async def scenario(instrument: Instrument) -> list[Outcome]:
        tenure = FakeTenure()
        one, other = (make_line(instrument, **reading(**ECHO)) for _ in range(2))
        for target in (one, other):
            await target.open()
            await target.take_over(tenure)
        first, _ = await send(one, asking("one's"))
        late, _ = await send(one, asking("one's late", hold="g"), deadline_seconds=0.2)
        following = asyncio.create_task(send(other, asking("other's")))
        await in_thread(lambda: instrument.wait_for("waiting g"))
        await in_thread(lambda: instrument.tell("go g"))
        outcomes = [first, late, (await following)[0], (await send(one, asking("one's again")))[0]]
        for target in (one, other):
            await target.let_go(tenure)
            await target.close()
        return outcomes

    with an_instrument(tmp_path, "--pty") as started:
        first, late, second, third = run(scenario(started))
    assert late.state is UNKNOWN
    assert [outcome.answer for outcome in (first, second, third)] == ["one's", "other's", "one's again"]


# Broken connections, bounds, garbage.


@pytest.mark.parametrize("means", MEANS, ids=["echo", "reconnect", "both"])
def test_connection_that_breaks_within_an_answer_leaves_it_unknown(over_tcp: Instrument, means: dict[str, Any]) -> None:
    broken, right = ask_all(over_tcp, asking(1, drop=True), asking(2), **reading(**means))
    assert (broken.state, broken.reason) == (UNKNOWN, "device.broken_off")
    assert (right.state, right.answer) == (ANSWERED, 2)


def test_instrument_that_was_switched_off_in_between_is_connected_and_identified_again(over_tcp: Instrument) -> None:
    async def scenario() -> None:
        async with Held(over_tcp, **reading()) as (target, _):
            await send(target, asking(1))
            target.link.close()
            await in_thread(lambda: over_tcp.tell("be ACME,Model 5,SN-8,1.0"))
            outcome, _ = await send(target, asking(2))
            assert (outcome.state, outcome.reason) == (REFUSED, "device.other")
            assert outcome.quarantine is not None
            assert "serial: SN-7 -> SN-8" in outcome.quarantine

    run(scenario())


def test_instrument_that_is_found_behind_a_new_connection_has_to_say_who_it_is(over_tcp: Instrument) -> None:
    async def scenario() -> Outcome:
        async with Held(over_tcp, **reading(reconnect=True)) as (target, _):
            await send(target, asking(1, drop=True))
            await in_thread(lambda: over_tcp.tell("be ACME,Model 5,SN-8,1.0"))
            return (await send(target, asking(2)))[0]

    outcome = run(scenario())
    assert (outcome.state, outcome.reason) == (REFUSED, "device.other")
    assert [line["line"] for line in over_tcp.lines()][-1] == "*IDN?"


def test_line_without_end_is_bounded_and_not_read_on_as_the_next_answer(over_tcp: Instrument) -> None:
    long, right = ask_all(over_tcp, asking(1, raw="x" * 2000 + "\n"), asking(2), **reading(**ECHO, line_bytes_max=1000))
    assert (long.state, long.reason) == (FAILED, "answer.too_large")
    assert (right.state, right.answer) == (ANSWERED, 2)


def test_line_that_is_not_json_is_said_to_be_none(over_tcp: Instrument) -> None:
    odd, right = ask_all(over_tcp, asking(1, raw="ERR 17\n"), asking(2), **reading(**ECHO))
    assert (odd.state, odd.reason) == (FAILED, "answer.not_json")
    assert "ERR 17" in odd.message
    assert right.answer == 2


@pytest.mark.parametrize("text", ["two\nlines", "one\r"], ids=repr)
def test_case_that_would_be_more_than_one_line_is_named(text: str) -> None:
    target = make_line("127.0.0.1:1")
    with pytest.raises(CaseUnfit, match=r'case "odd": what is sent to line:SN-7 would be more than one line'):
        target.prepare(make_slot(make_case(text, id="odd")))


def test_case_that_cannot_be_written_in_the_encoding_is_named() -> None:
    with pytest.raises(CaseUnfit, match="cannot be written as ascii"):
        make_line("127.0.0.1:1", encoding="ascii").prepare(make_slot(make_case("°C")))


# Taking over.


@pytest.mark.parametrize(
    ("options", "told"),
    [({"serial": "SN-1"}, "serial: SN-1 -> SN-7"), ({"firmware": "2.0"}, r"firmware: 2\.0 -> 1\.0")],
    ids=str,
)
def test_another_instrument_is_refused(instrument: Instrument, options: dict[str, Any], told: str) -> None:
    with pytest.raises(IdentityChanged, match=told):
        ask_all(instrument, **{**ECHO, **options})
    assert [line["line"] for line in instrument.lines() if "ASK" in line["line"]] == []


def test_identity_is_asked_for_after_what_came_late_for_an_earlier_holder(over_tcp: Instrument) -> None:
    """An earlier holder's answer, still on its way, is not taken for the identity."""

    async def scenario() -> None:
        async with Held(over_tcp, **reading(**ECHO)) as (target, _):
            late, _ = await send(target, asking("late", hold="g"), deadline_seconds=0.2)
            assert late.state is UNKNOWN
            again = asyncio.create_task(target.take_over(FakeTenure(2, open=[open_request("late")])))
            await in_thread(lambda: over_tcp.wait_for("waiting g"))
            await in_thread(lambda: over_tcp.tell("go g"))
            taken = await again
            assert taken.facts["serial"] == "SN-7"
            assert taken.facts["identification"] == "ACME,Model 5,SN-7,1.0"
            assert taken.contaminating == ()

    run(scenario())


def test_new_connection_alone_does_not_prove_that_an_earlier_query_has_ended(over_tcp: Instrument) -> None:
    async def scenario() -> TakenOver:
        async with Held(over_tcp, FakeTenure(2, open=[open_request("old")]), reconnect=True) as (_, taken):
            return taken

    assert run(scenario()).contaminating == ("old",)


def test_unknown_of_an_earlier_holder_quarantines_an_instrument_with_no_way_back(over_tcp: Instrument) -> None:
    async def scenario() -> TakenOver:
        async with Held(over_tcp, FakeTenure(2, open=[open_request("old")])) as (_, taken):
            return taken

    assert run(scenario()).quarantine == "what it is still doing is not known, and there is no way to find out"
    assert over_tcp.lines() == []


@pytest.mark.parametrize("address", ["127.0.0.1:1", "/dev/null", "/nowhere/at/all"])
def test_what_cannot_be_reached_is_said_with_the_remedy(address: str) -> None:
    async def scenario() -> None:
        async with Held(address):
            raise AssertionError("nobody was there")

    with pytest.raises(TargetNotFound, match=r"line:SN-7 cannot be reached.*Switch it on, or correct its address"):
        run(scenario())


def test_instrument_that_never_answers_is_given_up_in_bounds() -> None:
    async def scenario() -> None:
        async def silent(reader: Any, writer: Any) -> None:
            await reader.read()

        async with listening(silent) as url, Held(url.removeprefix("http://"), drain_seconds=0.2):
            raise AssertionError("it said nothing")

    with pytest.raises(TargetNotFound, match=r"no answer to \*IDN\? within 0\.2 s"):
        run(scenario())


def test_letting_go_leaves_the_instrument_in_step(over_tcp: Instrument) -> None:
    async def scenario() -> None:
        tenure = FakeTenure()
        async with Held(over_tcp, tenure, **reading(**ECHO, reconnect=True)) as (target, _):
            await send(target, asking("late", hold="g"), deadline_seconds=0.2)
            await target.let_go(tenure)
            assert tenure.roles == ["drain", "drain"]

    run(scenario())


# Tables.


def test_identity_is_the_instrument_and_not_its_address() -> None:
    here, there = make_line("127.0.0.1:1", **ECHO), make_line("/dev/ttyUSB0", reconnect=True, baud=9600)
    assert canonical_text(here.identity()) == canonical_text(there.identity())
    assert make_line("127.0.0.1:1", payload="READ? {{input}}").identity() != here.identity()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"address": "somewhere"}, r'target\.address: "somewhere" is no address of an instrument'),
        ({"address": "host:0"}, r"target\.address"),
        ({"echo": "ECHO"}, "has no {{nonce}} in it"),
        ({"answer_seconds_max": 99.0}, "drain_seconds has to be at least answer_seconds_max"),
        ({"if_unknown": "query"}, 'a device of kind "line" cannot be asked by request id'),
        ({"output": "text", "answer": "$.x"}, "leave answer out"),
    ],
    ids=str,
)
def test_table_that_cannot_be_meant_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(WorkOrderInvalid, match=told):
        make_line(options.pop("address", "127.0.0.1:1"), **options)


def test_speed_that_the_port_does_not_have_is_said(tmp_path: Path) -> None:
    with an_instrument(tmp_path, "--pty") as started:
        assert ask_all(started, baud=9600) == []
        with pytest.raises(TargetNotFound, match="has no speed of 9601 baud"):
            ask_all(started, baud=9601)


@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="open files cannot be counted here")
def test_files_are_given_back_also_where_it_is_another_instrument(instrument: Instrument) -> None:
    before = len(list(OPEN_FILES.iterdir()))
    ask_all(instrument, asking(1), **reading(**ECHO))
    with pytest.raises(IdentityChanged):
        ask_all(instrument, serial="SN-1")
    assert len(list(OPEN_FILES.iterdir())) == before
