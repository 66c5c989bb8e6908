"""E07: death in a turn of a conversation, with targets that keep nothing, that have checkpoints, and that have none."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any, Final

import pytest

from .harness import Site
from .invariants import check_invariants, rows
from .talks import (
    Sessions,
    asked,
    attempts_of,
    converse,
    histories,
    http_talks,
    said,
    session_order,
    talk,
    turns_of,
)

SAY: Final = ("a", "b", "c")


def dies_in_turn_two(site: Site, if_unknown: str, **options: Any) -> str:
    """A conversation of three turns; dies while the service works on the second. Returns that call's id."""
    remembered = [said("a", remember=True), said("b", wait="gate", remember=True), said("c", remember=True)]
    site.order(http_talks(site, [talk(*remembered)], if_unknown=if_unknown, **options))
    coordinator = site.run()
    site.wait_for("gate")
    coordinator.dies()
    return site.requests()[-1].request_id


# A target that keeps nothing: each request carries the history.


def test_e07_history_is_carried_over_and_committed_turns_are_not_asked_again(site: Site) -> None:
    lost = dies_in_turn_two(site, "repeat")
    site.service.go("gate")

    assert site.resume().ended() == 0

    assert [state for state, _ in attempts_of(site)] == ["unknown", "observed"]
    assert turns_of(site, 1) == [(1, "a", "wire", None, 0)]
    assert turns_of(site, 2) == [(1, "a", "carried", 1, 0), (2, "b", "wire", None, 0), (3, "c", "wire", None, 0)]
    assert histories(site) == [("a", []), ("b", ["a"]), ("b", ["a"]), ("c", ["a", "b"])]
    assert site.seen()[lost] == 1, "the unknown call is never sent again"
    assert site.service.received() == 4
    slot = site.only("talk")
    assert [turn["answer"] for turn in json.loads(slot.attempts[1].evidence)["turns"]] == ["a", "b", "c"]
    assert slot.judgments[0].passed == 1
    (budget,) = site.budgets()
    assert (budget.settled, budget.held) == (3, 1), "the unknown turn keeps what it holds"
    check_invariants(site.ledger, site.requests())


@pytest.mark.parametrize("deaths", [1, 3])
def test_e07_death_between_two_turns_leaves_nothing_unknown(site: Site, deaths: int) -> None:
    site.order(http_talks(site, [talk(*map(said, "abcde"))], if_unknown="keep", solitary_deaths_max=9))
    for _ in range(deaths):
        site.run(crashpoint="turn.committed").died_at_its_point()

    assert site.run().ended() == 0

    assert attempts_of(site) == [("interrupted", "coordinator.died")] * deaths + [("observed", "")]
    assert site.service.received() == 5, "each turn was asked once"
    assert [carried for _, _, _, carried, _ in turns_of(site, deaths + 1)] == [
        *range(1, deaths + 1), *[None] * (5 - deaths)
    ], "each carried turn says in which attempt it was asked"  # fmt: skip
    (budget,) = site.budgets()
    assert (budget.settled, budget.held) == (5, 0)
    check_invariants(site.ledger, site.requests())


def test_e07_what_may_be_resent_goes_on_in_the_same_attempt(site: Site) -> None:
    lost = dies_in_turn_two(site, "resend")
    site.service.go("gate")

    assert site.resume().ended() == 0

    assert [state for state, _ in attempts_of(site)] == ["observed"]
    assert turns_of(site, 1) == [(1, "a", "wire", None, 0), (2, "b", "wire", None, 0), (3, "c", "wire", None, 0)]
    assert site.seen()[lost] == 2
    assert site.service.worked() == 3
    check_invariants(site.ledger, site.requests())


def test_e07_what_landed_is_fetched_and_goes_on_in_the_same_attempt(site: Site) -> None:
    lost = dies_in_turn_two(site, "query")
    site.service.go("gate")

    assert site.resume().ended() == 0

    assert [state for state, _ in attempts_of(site)] == ["observed"]
    assert turns_of(site, 1) == [(1, "a", "wire", None, 0), (2, "b", "query", None, 0), (3, "c", "wire", None, 0)]
    assert site.seen()[lost] == 1
    assert site.service.received() == 3
    check_invariants(site.ledger, site.requests())


def test_e07_a_tombstoned_turn_is_asked_again_in_the_same_attempt_under_a_new_id(site: Site) -> None:
    site.order(http_talks(site, [talk(*(said(text, remember=True) for text in SAY))], if_unknown="query"))
    site.run(crashpoint="turn.committed").died_at_its_point()
    site.run(crashpoint="dispatch.intent.committed").died_at_its_point()
    ((lost,),) = rows(site.ledger, "SELECT call_id FROM dispatches WHERE state = 'intended'")
    assert site.service.ask("POST", f"/tombstone/{lost}")[0] == 200

    assert site.run().ended() == 0

    states = [state for state, _ in attempts_of(site)]
    assert states == ["interrupted", "observed"]
    assert turns_of(site, 2) == [(1, "a", "carried", 1, 0), (2, "b", "wire", None, 0), (3, "c", "wire", None, 0)]
    positions = rows(site.ledger, "SELECT position FROM calls WHERE attempt_no = 2 ORDER BY position")
    assert positions == [(1,), (2,), (3,)], "the tombstoned call keeps its place"
    assert lost not in site.seen()
    check_invariants(site.ledger, site.requests())


def test_e07_restart_asks_every_turn_again_as_a_charged_replay(site: Site) -> None:
    dies_in_turn_two(site, "restart")
    site.service.go("gate")

    assert site.resume().ended() == 0

    assert turns_of(site, 2) == [(1, "a", "wire", None, 1), (2, "b", "wire", None, 0), (3, "c", "wire", None, 0)]
    assert rows(site.ledger, "SELECT count(*) FROM dispatches WHERE replay = 1") == [(1,)]
    for command in ("status", "report"):
        assert site.told(command, "acceptance", "--json")["totals"]["replays"] == 1, command
    (budget,) = site.budgets()
    assert (budget.settled, budget.held) == (4, 1), "the replay is charged"
    assert site.service.received() == 5
    check_invariants(site.ledger, site.requests())


# keep: an operator decides in the middle.


def settle(site: Site, *decision: object) -> None:
    settled = site.start("reconcile", "acceptance", *decision, "--reason", "from the provider's log", "--yes")
    assert settled.ended() in (0, 3, 75), settled.err


def kept_in_turn_two(site: Site) -> str:
    lost = dies_in_turn_two(site, "keep")
    assert site.resume().ended() == 3
    assert site.service.received() == 2, "nothing follows by itself"
    assert site.counts() == {"unknown": 1}
    return lost


def test_e07_operator_brings_the_answer_of_a_turn_and_the_conversation_goes_on_from_it(site: Site) -> None:
    lost = kept_in_turn_two(site)
    answer = site.folder / "answer.json"
    answer.write_text('"b, as the log says"')

    settle(site, "--landed", answer)
    assert site.counts() == {"pending": 1}, "it waits to go on"
    assert site.run().ended() == 0

    assert attempts_of(site)[0] == ("interrupted", "landed")
    assert turns_of(site, 1)[1] == (2, "b, as the log says", "operator", None, 0)
    assert [source for _, _, source, _, _ in turns_of(site, 2)] == ["carried", "carried", "wire"]
    assert histories(site)[-1] == ("c", ["a", "b, as the log says"])
    told = json.loads(site.only("talk").attempts[1].evidence)["turns"]
    assert [turn.get("source") for turn in told] == [None, "operator", None]
    assert site.seen()[lost] == 1
    assert site.service.received() == 3
    check_invariants(site.ledger, site.requests())


def test_e07_operator_brings_the_answer_of_the_last_turn_and_nothing_more_is_asked(site: Site) -> None:
    site.order(http_talks(site, [talk(said("a"), said("b", drop_after=0))], if_unknown="keep"))
    assert site.run().ended() == 3
    answer = site.folder / "answer.json"
    answer.write_text('"b"')

    settle(site, "--landed", answer)
    assert site.run().ended() == 0

    slot = site.only("talk")
    assert (slot.attempts[1].answer, slot.attempts[1].source) == ('"b"', "operator")
    assert slot.judgments[0].passed == 1
    assert site.service.received() == 2
    check_invariants(site.ledger, site.requests())


def test_e07_operator_who_proves_that_a_turn_did_not_land_lets_it_be_asked_anew(site: Site) -> None:
    site.order(http_talks(site, [talk(*map(said, SAY))], if_unknown="keep"))
    site.run(crashpoint="dispatch.intent.committed@2").died_at_its_point()
    assert site.run().ended() == 3

    settle(site, "--not-landed")
    assert site.run().ended() == 0

    assert [state for state, _ in attempts_of(site)] == ["not_landed", "observed"]
    assert histories(site) == [("a", []), ("b", ["a"]), ("b", ["a"]), ("c", ["a", "b"])]
    assert site.service.received() == 3, "turn one was asked once"
    check_invariants(site.ledger, site.requests())


def test_e07_operator_who_gives_a_turn_up_ends_the_conversation_and_a_retry_goes_on_from_its_turns(site: Site) -> None:
    kept_in_turn_two(site)
    site.service.go("gate")

    settle(site, "--give-up")
    assert site.counts() == {"failed": 1}
    assert site.resume("acceptance", "--retry", "failed").ended() == 0

    assert [state for state, _ in attempts_of(site)] == ["abandoned", "observed"]
    assert [source for _, _, source, _, _ in turns_of(site, 2)] == ["carried", "wire", "wire"]
    check_invariants(site.ledger, site.requests())


# What else may happen in the middle.


def test_e07_a_turn_that_failed_is_retried_alone(site: Site) -> None:
    flaky = said("b", sequence=[{"status": 500}, {}])
    site.order(http_talks(site, [talk(said("a"), flaky, said("c"))], if_unknown="keep", retry=["http.status"]))

    assert site.run().ended() == 0

    assert [state for state, _ in attempts_of(site)] == ["failed", "observed"]
    assert [source for _, _, source, _, _ in turns_of(site, 2)] == ["carried", "wire", "wire"]
    assert site.service.received() == 4
    check_invariants(site.ledger, site.requests())


def test_e07_a_budget_that_is_used_up_in_the_middle_keeps_the_turns_and_goes_on_when_it_is_raised(site: Site) -> None:
    order = http_talks(site, [talk(*map(said, SAY))], if_unknown="keep", budgets={"dispatches": 2})
    site.order(order)
    assert site.run().ended() == 6
    assert site.counts() == {"unavailable": 1}
    assert turns_of(site, 1) == [(1, "a", "wire", None, 0), (2, "b", "wire", None, 0)]

    assert site.resume("acceptance", "--amend", "dispatches=3", "--reason", "one more").ended() == 0

    assert site.service.received() == 3
    assert [source for _, _, source, _, _ in turns_of(site, 2)] == ["carried", "carried", "wire"]
    check_invariants(site.ledger, site.requests())


def test_e07_the_first_ctrl_c_says_no_further_turn_and_the_next_session_goes_on(site: Site) -> None:
    messages = [said("a", wait="gate"), said("b"), said("c")]
    site.order(http_talks(site, [talk(*messages)], if_unknown="keep"))
    coordinator = site.run()
    site.wait_for("gate")
    coordinator.signal(signal.SIGINT)
    site.service.go("gate")
    assert coordinator.ended() == 130

    assert attempts_of(site) == [("interrupted", "stopped")]
    assert site.run().ended() == 0
    assert site.service.received() == 3
    check_invariants(site.ledger, site.requests())


# A user function.

USER: Final = """
import json, os

def simulated(case, history):
    with open(os.environ["COUNTER_LOG"] + ".user", "a") as log:
        log.write(json.dumps([one.answer for one in history]) + "\\n")
    if len(history) == case.input["turns"]:
        return None
    said = case.input["say"][len(history)]
    return {"say": said, "behave": {"wait": "gate", "remember": True} if said == "b" else {}}
"""


def user_was_asked(site: Site) -> list[list[str]]:
    return [json.loads(line) for line in (site.folder / "counter.jsonl.user").read_text().splitlines()]


def test_e07_a_user_function_says_the_next_message_and_is_not_asked_again_for_what_was_answered(site: Site) -> None:
    (site.folder / "simulated.py").write_text(USER)
    case = {"id": "talk", "input": {"turns": 3, "say": list(SAY)}, "expected": "c"}
    conversation = {"user": "simulated", "file": "simulated.py"}
    site.order(http_talks(site, [case], if_unknown="repeat", conversation=conversation))
    coordinator = site.run()
    site.wait_for("gate")
    coordinator.dies()
    site.service.go("gate")

    assert site.run().ended() == 0

    # Turn one is carried, and what was said in turn two is known; only then it is asked again.
    assert user_was_asked(site) == [[], ["a"], ["a", "b"], ["a", "b", "c"]]
    assert histories(site) == [("a", []), ("b", ["a"]), ("b", ["a"]), ("c", ["a", "b"])]
    assert site.only("talk").judgments[0].passed == 1
    check_invariants(site.ledger, site.requests())


def test_e07_a_user_function_that_kills_its_process_parks_its_case_and_no_other(site: Site) -> None:
    text = USER.replace(
        "    if len(history)", "    if case.id == 'deadly' and history:\n        os._exit(9)\n    if len(history)"
    )
    (site.folder / "simulated.py").write_text(text)
    cases = [{"id": name, "input": {"turns": 2, "say": ["a", "c"]}} for name in ("deadly", "x", "y")]
    conversation = {"user": "simulated", "file": "simulated.py"}
    site.order(http_talks(site, cases, if_unknown="keep", judges=(), conversation=conversation, solitary_deaths_max=2))
    ended = 9
    for _ in range(10):
        if (ended := site.run().ended()) != 9:
            break
    assert ended == 3
    assert site.counts() == {"selected": 2, "parked": 1}
    assert turns_of(site, len(site.only("deadly").attempts)) != []
    check_invariants(site.ledger, site.requests())


# Targets that keep state: one with checkpoints, one that can only begin anew.


@pytest.fixture
def sessions(site: Site) -> Iterator[Sessions]:
    made = Sessions(site.folder)
    try:
        yield made
    finally:
        made.close()


def dies_in_turn_three(site: Site, sessions: Sessions, *, resuming: str, **options: Any) -> None:
    session_order(site, sessions, ["a", "b", {"say": "c", "wait": "gate"}], resuming=resuming, **options)
    coordinator = converse(site)
    assert sessions.line(look=lambda: None) == "waiting gate"
    coordinator.dies()
    sessions.say("go gate")


def test_e07_a_session_is_restored_from_its_newest_checkpoint_and_nothing_is_asked_twice(
    site: Site, sessions: Sessions
) -> None:
    dies_in_turn_three(site, sessions, resuming="checkpoint")

    assert converse(site).ended() == 0

    assert asked(site) == [(1, "a"), (2, "b"), (3, "c"), (3, "c")], "the unknown turn is repeated, as it declares"
    assert turns_of(site, 2) == [
        (1, "a", "carried", 1, 0), (2, "a+b", "carried", 1, 0), (3, "a+b+c", "wire", None, 0)
    ]  # fmt: skip
    assert rows(site.ledger, "SELECT count(*) FROM dispatches WHERE replay = 1") == [(0,)]
    assert rows(site.ledger, "SELECT checkpoint_artifact IS NOT NULL FROM sessions ORDER BY attempt_no") == [(0,), (1,)]
    assert site.only("talk").judgments[0].passed == 1
    check_invariants(site.ledger, site.requests())


def test_e07_a_target_without_checkpoints_is_asked_from_the_beginning_and_each_replay_is_charged(
    site: Site, sessions: Sessions
) -> None:
    dies_in_turn_three(site, sessions, resuming="restart")

    assert converse(site).ended() == 0

    assert asked(site) == [(1, "a"), (2, "b"), (3, "c"), (1, "a"), (2, "b"), (3, "c")]
    assert turns_of(site, 2) == [(1, "a", "wire", None, 1), (2, "a+b", "wire", None, 1), (3, "a+b+c", "wire", None, 0)]
    (budget,) = site.budgets()
    assert (budget.settled, budget.held) == (5, 1)
    totals = site.told("report", "acceptance", "--json")["totals"]
    assert (totals["replays"], totals["dispatches"]) == (2, 6)
    check_invariants(site.ledger, site.requests())


def test_e07_a_checkpoint_that_is_refused_lets_the_conversation_begin_anew(site: Site, sessions: Sessions) -> None:
    dies_in_turn_three(site, sessions, resuming="checkpoint")
    sessions.say("refuse")

    assert converse(site).ended() == 0

    assert [reason for _, reason in attempts_of(site)] == ["coordinator.died", "checkpoint.refused", ""]
    assert asked(site)[3:] == [(1, "a"), (2, "b"), (3, "c")]
    assert [replay for _, _, _, _, replay in turns_of(site, 3)] == [1, 1, 0]
    check_invariants(site.ledger, site.requests())


def test_e07_where_only_checkpoints_are_allowed_nothing_is_asked_twice(site: Site, sessions: Sessions) -> None:
    dies_in_turn_three(site, sessions, resuming="checkpoint", conversation={"resume": "checkpoint"})
    sessions.say("refuse")

    assert converse(site).ended() == 3

    assert site.counts() == {"failed": 1}
    assert len(asked(site)) == 3
    check_invariants(site.ledger, site.requests())


@pytest.mark.parametrize("resuming", ["checkpoint", "restart"])
@pytest.mark.parametrize("if_unknown", ["query", "resend"])
def test_e07_an_answer_that_was_lost_is_fetched_and_the_same_session_goes_on(
    site: Site, sessions: Sessions, resuming: str, if_unknown: str
) -> None:
    messages = ["a", {"say": "b", "lose": "once"}, "c"]
    session_order(site, sessions, messages, resuming=resuming, if_unknown=if_unknown)

    assert converse(site).ended() == 0

    assert [state for state, _ in attempts_of(site)] == ["observed"]
    assert rows(site.ledger, "SELECT count(*) FROM sessions") == [(1,)]
    assert asked(site) == [(1, "a"), (2, "b"), *[(2, "b")] * (if_unknown == "resend"), (3, "c")]
    assert [answer for _, answer, _, _, _ in turns_of(site, 1)] == ["a", "a+b", "a+b+c"]
    check_invariants(site.ledger, site.requests())


def test_e07_what_landed_before_a_death_is_fetched_with_its_checkpoint_and_restored(
    site: Site, sessions: Sessions
) -> None:
    session_order(site, sessions, ["a", {"say": "b", "wait": "gate"}, "c"], resuming="checkpoint", if_unknown="query")
    coordinator = converse(site)
    assert sessions.line() == "waiting gate"
    coordinator.dies()
    sessions.say("go gate")

    assert converse(site).ended() == 0

    assert asked(site) == [(1, "a"), (2, "b"), (3, "c")]
    assert attempts_of(site)[0] == ("interrupted", "landed")
    assert turns_of(site, 2) == [
        (1, "a", "carried", 1, 0), (2, "a+b", "carried", 1, 0), (3, "a+b+c", "wire", None, 0)
    ]  # fmt: skip
    check_invariants(site.ledger, site.requests())


def test_e07_a_turn_that_never_was_done_is_asked_again_in_the_same_session(site: Site, sessions: Sessions) -> None:
    session_order(site, sessions, ["a", "b", "c"], resuming="restart", if_unknown="query")
    sessions.say("tombstone")
    converse(site, crashpoint="dispatch.intent.committed@2").died_at_its_point()

    assert converse(site).ended() == 0

    assert [state for state, _ in attempts_of(site)] == ["not_landed", "observed"]
    assert asked(site) == [(1, "a"), (1, "a"), (2, "b"), (3, "c")]
    check_invariants(site.ledger, site.requests())


def test_e07_a_session_that_the_target_has_forgotten_goes_on_in_a_new_attempt(site: Site, sessions: Sessions) -> None:
    session_order(site, sessions, ["a", {"say": "b", "wait": "gate"}, "c"], resuming="checkpoint")
    coordinator = converse(site)
    assert sessions.line() == "waiting gate"
    sessions.say("forget")
    sessions.say("go gate")

    assert coordinator.ended() == 0

    # The answer to b was given by a session that is gone before c is asked in it.
    assert [state for state, _ in attempts_of(site)][-1] == "observed"
    assert site.only("talk").attempts[-1].answer == '"a+b+c"'
    assert [one for one in asked(site) if one == (1, "a")] == [(1, "a")]
    check_invariants(site.ledger, site.requests())
