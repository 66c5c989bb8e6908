"""Death inside an agent's own requests (E02, E03 and their like), retries of a client library (E08c), and budgets."""

from __future__ import annotations

from typing import Any, Final

import pytest

from .agents import agent_case, agent_order, answers, ask, dies_in_request
from .harness import Site
from .invariants import check_invariants, rows

TWELVE: Final = [str(number) for number in range(1, 13)]
FUNCTIONS: Final = ("agent", "blocking", "with_sdk", "with_steps", "with_async_steps", "streamed")


def attempts_of(site: Site, name: str = "agent") -> list[tuple[str, str | None]]:
    return [(attempt.state, attempt.reason) for attempt in site.only(name).attempts]


def answer_of(site: Site, name: str = "agent") -> str | None:
    answer: str | None = site.only(name).attempts[-1].answer
    return answer


def counted(site: Site) -> tuple[int, int]:
    """Settled and held, of the budget of dispatches."""
    budget = site.budgets()[0]
    return budget.settled, budget.held


@pytest.mark.parametrize("function", [name for name in FUNCTIONS if name != "streamed"])
def test_e02_e03_killed_in_request_eight_of_twelve_an_agent_asks_for_the_first_seven_no_more(
    site: Site, function: str
) -> None:
    lost = dies_in_request(site, 8, of=12, function=function)

    assert site.resume().ended() == 0

    assert [state for state, _ in attempts_of(site)] == ["unknown", "observed"]
    assert answer_of(site) == answers(TWELVE)
    assert site.service.received() == 13, "1 to 8, and 8 to 12"
    assert site.seen()[lost] == 1, "the unknown call is never sent again"
    assert counted(site) == (12, 1), "the unknown request keeps what it holds"
    check_invariants(site.ledger, site.requests())


@pytest.mark.parametrize("function", ["agent", "blocking"])
def test_e03_what_must_not_follow_by_itself_waits_for_an_operator_who_knows_that_nothing_was_done(
    site: Site, function: str
) -> None:
    dies_in_request(site, 8, of=12, function=function, if_unknown="keep")

    assert site.resume().ended() == 3
    assert site.service.received() == 8, "nothing is asked before somebody has decided"
    assert attempts_of(site)[-1][0] == "unknown"
    with site.opened() as ledger:
        (unknown,) = ledger.unknown(ledger.runs()[0].run_id)
        ledger.not_landed(unknown, reason="the service's log says so", made_by="me")
    assert site.resume().ended() == 0

    assert [state for state, _ in attempts_of(site)] == ["not_landed", "observed"]
    assert answer_of(site) == answers(TWELVE)
    assert site.service.received() == 13
    assert counted(site) == (12, 0)
    check_invariants(site.ledger, site.requests())


def test_e03_an_answer_that_an_operator_gives_is_replayed_as_that_of_the_request(site: Site) -> None:
    lost = dies_in_request(site, 2, of=3, if_unknown="keep")
    site.resume().ended()
    decisions = site.folder / "landed.jsonl"
    decisions.write_text(f'{{"call": "{lost}", "answer": {{"answer": "from the log"}}}}\n')

    site.start("reconcile", _run(site), "--landed", decisions, "--reason", "its log", "--yes").ended()
    assert site.resume().ended() == 0

    assert answer_of(site) == answers(["1", "from the log", "3"])
    assert site.service.received() == 3
    check_invariants(site.ledger, site.requests())


def test_e03b_what_may_be_resent_goes_out_again_under_its_id_in_the_same_attempt(site: Site) -> None:
    lost = dies_in_request(site, 8, of=12, if_unknown="resend")

    assert site.resume().ended() == 0

    assert [state for state, _ in attempts_of(site)] == ["observed"]
    assert answer_of(site) == answers(TWELVE)
    assert site.seen()[lost] == 2
    assert site.service.worked() == 12
    check_invariants(site.ledger, site.requests())


def test_e03c_what_landed_is_fetched_by_its_id_and_replayed(site: Site) -> None:
    lost = dies_in_request(site, 8, of=12, function="asked_by_id", if_unknown=None)

    assert site.resume(environment={"AGENT_SERVICE": site.service.url}).ended() == 0

    assert [state for state, _ in attempts_of(site)] == ["interrupted", "observed"]
    assert answer_of(site) == answers(TWELVE)
    assert site.seen()[lost] == 1
    assert site.service.received() == 12
    assert counted(site) == (12, 0)
    check_invariants(site.ledger, site.requests())


def test_a_session_that_has_to_begin_anew_is_asked_from_its_first_request(site: Site) -> None:
    dies_in_request(site, 3, of=4, if_unknown="restart")

    assert site.resume().ended() == 0

    assert answer_of(site) == answers(TWELVE[:4])
    assert site.service.received() == 3 + 4
    check_invariants(site.ledger, site.requests())


@pytest.mark.parametrize("function", ["together", "in_threads"])
def test_requests_that_are_made_at_the_same_time_get_their_own_answers_in_the_replay(site: Site, function: str) -> None:
    asks = [ask(str(number), **({"wait": "gate"} if number == 4 else {})) for number in range(8)]
    agent_order(site, agent_case(site, asks), function=function)
    coordinator = site.run(pause_at="dispatch.outcome.committed@7")
    site.wait_for("gate")
    coordinator.wait_until_there()
    coordinator.dies()
    site.service.go("gate")

    assert site.resume().ended() == 0

    assert answer_of(site) == answers([str(number) for number in range(8)])
    assert site.service.received() == 9, "seven were answered, and one is asked again"
    check_invariants(site.ledger, site.requests())


def test_a_stream_is_replayed_as_a_stream(site: Site) -> None:
    asks = [ask("a", chunks=["one ", "two"]), ask("b", chunks=["three"], wait="gate"), ask("c", chunks=["four"])]
    agent_order(site, agent_case(site, asks), function="streamed")
    coordinator = site.run()
    site.wait_for("gate")
    coordinator.dies()
    site.service.go("gate")

    assert site.resume().ended() == 0

    assert answer_of(site) == answers(["one two", "three", "four"])
    assert site.service.received() == 4


def test_a_target_that_asks_for_something_else_is_told_what_it_asked_for_then(site: Site) -> None:
    environment = {"AGENT_MARK": str(site.folder / "mark")}
    asks = [ask("a"), ask("b", wait="gate")]
    agent_order(site, agent_case(site, asks), function="forgetful")
    coordinator = site.run(environment=environment)
    site.wait_for("gate")
    coordinator.dies()
    received = site.service.received()

    assert site.resume(environment=environment).ended() == 3

    assert site.service.received() == received, "nothing is sent that does not fit what was answered"
    assert attempts_of(site)[-1] == ("failed", "replay.diverged")
    message = site.only("agent").attempts[-1].message
    assert "request 1 is POST" in message
    assert " and was " in message
    check_invariants(site.ledger, site.requests())


def test_a_hard_budget_stops_the_third_request_of_an_agent_and_its_first_two_are_not_paid_again(site: Site) -> None:
    agent_order(site, agent_case(site, [ask(text) for text in "abc"]), budgets={"dispatches": 2})

    assert site.run().ended() == 6

    assert site.service.received() == 2
    assert site.only("agent").state == "unavailable"
    assert counted(site) == (2, 0)
    assert site.resume("acceptance", "--amend", "dispatches=3", "--reason", "one more").ended() == 0
    assert answer_of(site) == answers("abc")
    assert site.service.received() == 3
    check_invariants(site.ledger, site.requests())


def test_e08c_every_wire_request_of_a_client_library_that_retries_is_counted(site: Site) -> None:
    flaky: dict[str, Any] = {"sequence": [{"status": 500}, {"status": 503}, {}]}
    limited: dict[str, Any] = {"sequence": [{"status": 429, "retry_after": 0}, {}]}
    asks = [ask("a", **flaky), ask("b", **limited), ask("c")]
    agent_order(site, agent_case(site, asks), function="with_sdk")

    assert site.run().ended() == 0

    assert answer_of(site) == answers("abc")
    assert site.service.received() == 6
    assert rows(site.ledger, "SELECT count(*) FROM dispatches") == [(6,)]
    assert counted(site) == (6, 0)
    check_invariants(site.ledger, site.requests())


def test_e08c_a_hard_budget_holds_against_a_client_library_that_retries(site: Site) -> None:
    agent_order(
        site, agent_case(site, [ask("a", status=500)]), function="with_sdk", budgets={"dispatches": 2},
    )  # fmt: skip

    assert site.run().ended() == 6

    assert site.service.received() == 2
    assert counted(site) == (2, 0)
    check_invariants(site.ledger, site.requests())


def test_e08c_a_client_library_does_not_retry_what_may_have_happened(site: Site) -> None:
    agent_order(
        site, agent_case(site, [ask("a", drop_after=0)]), function="with_sdk", if_unknown="keep", dispatches_max=4
    )

    assert site.run().ended() == 3

    assert site.service.received() == 1
    assert [(one.reason, one.is_newest) for one in site.unknown()] == [("wire.broken_off", True)]
    check_invariants(site.ledger, site.requests())


def _run(site: Site) -> str:
    with site.opened() as ledger:
        return ledger.runs()[0].run_id


# Killed at each crash point.

ASKS: Final = (ask("a", remember=True), ask("b", remember=True), ask("c", remember=True), ask("d", remember=True))
IN_A_REQUEST: Final = (
    "dispatch.intent.before",
    "dispatch.intent.inside",
    "dispatch.intent.committed",
    "dispatch.sent",
    "dispatch.outcome.inside",
    "dispatch.outcome.committed",
    "scribe.commit.before",
    "scribe.commit.after",
)
SENT_TWICE: Final = {"dispatch.sent", "dispatch.outcome.inside"}
UNKNOWN: Final = {*SENT_TWICE, "dispatch.intent.committed"}
SCENARIOS: Final = ("attempt.begun", "call.replayed", "attempt.returned")


@pytest.mark.parametrize("function", ["agent", "blocking", "with_steps"])
@pytest.mark.parametrize("point", [*IN_A_REQUEST[:6], "attempt.begun", "attempt.returned"])
def test_crash_of_an_agent_at_every_point_pays_only_for_what_is_unknown(site: Site, point: str, function: str) -> None:
    agent_order(site, agent_case(site, ASKS), function=function)
    passage = "" if point.startswith("attempt.") else "@3"
    site.run(crashpoint=f"{point}{passage}").died_at_its_point()

    assert site.resume().ended() == 0

    assert answer_of(site) == answers("abcd")
    assert site.service.received() == 4 + (point in SENT_TWICE)
    assert counted(site) == (4, int(point in UNKNOWN))
    assert site.counts() == {"selected": 1}
    check_invariants(site.ledger, site.requests())


@pytest.mark.parametrize("if_unknown", ["keep", "resend", "restart"])
@pytest.mark.parametrize("point", IN_A_REQUEST)
def test_crash_of_an_agent_is_followed_by_what_its_target_declares(site: Site, point: str, if_unknown: str) -> None:
    agent_order(site, agent_case(site, ASKS), if_unknown=if_unknown)
    # Planning, opening and the attempt itself are commits, too.
    passage = 10 if point.startswith("scribe") else 3
    site.run(crashpoint=f"{point}@{passage}").died_at_its_point()

    status = site.resume().ended()
    unknown = site.unknown()
    if if_unknown == "keep":
        assert (status, len(unknown)) in {(0, 0), (3, 1)}
        assert max(site.seen().values()) == 1, "nothing is sent twice"
        with site.opened() as ledger:
            for one in unknown:
                ledger.not_landed(one, reason="a test", made_by="test")
        status = site.resume().ended() if unknown else status

    assert status == 0
    assert answer_of(site) == answers("abcd")
    if if_unknown == "resend":
        assert site.service.worked() == 4, "its id keeps the service from working twice"
        assert counted(site)[1] <= 1
    check_invariants(site.ledger, site.requests())


@pytest.mark.parametrize("function", ["agent", "blocking"])
def test_crash_in_a_replay_is_followed_by_another_replay(site: Site, function: str) -> None:
    agent_order(site, agent_case(site, ASKS), function=function, solitary_deaths_max=9)
    site.run(crashpoint="dispatch.intent.before@4").died_at_its_point()
    for passage in (1, 2, 3):
        site.resume(crashpoint=f"call.replayed@{passage}").died_at_its_point()

    assert site.resume().ended() == 0

    assert answer_of(site) == answers("abcd")
    assert site.service.received() == 4
    assert counted(site) == (4, 0)
    assert [state for state, _ in attempts_of(site)] == ["interrupted"] * 4 + ["observed"]
    check_invariants(site.ledger, site.requests())


def test_an_agent_that_dies_again_and_again_comes_to_its_end_and_pays_for_each_answer_once(site: Site) -> None:
    agent_order(site, agent_case(site, [ask(text) for text in "abcdef"]), solitary_deaths_max=99)
    for _ in range(6):
        site.run(crashpoint="dispatch.outcome.committed").died_at_its_point()

    assert site.run().ended() == 0

    assert answer_of(site) == answers("abcdef")
    assert site.service.received() == 6
    check_invariants(site.ledger, site.requests())
