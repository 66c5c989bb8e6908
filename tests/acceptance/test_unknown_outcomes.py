"""E03 to E03d, C01 and the kill half of C17: the target has the request, and its answer was never committed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .harness import Site
from .invariants import check_invariants, rows
from .orders import case, http_order


def killed_while_the_target_works(site: Site, if_unknown: str, **options: Any) -> str:
    """Three cases, one after the other; dies while the service works on the second, and returns that call's id."""
    cases = [case("a"), case("b", wait="gate", remember=True), case("c")]
    site.order(http_order(site.service, cases, if_unknown=if_unknown, **options))
    coordinator = site.run()
    site.wait_for("gate")
    coordinator.dies()
    return site.requests()[-1].request_id


def held(site: Site) -> tuple[int, int]:
    (budget,) = site.budgets()
    return budget.settled, budget.held


# E03: keep


def test_e03_unknown_outcome_is_kept_and_never_resent(site: Site) -> None:
    call = killed_while_the_target_works(site, "keep")
    site.service.go("gate")

    assert site.resume().ended() == 3
    assert site.resume("acceptance").ended() == 3, "and not the second time either"
    assert site.run().ended() == 3

    assert site.counts() == {"selected": 2, "unknown": 1}
    assert site.outcome().next == "decide"
    assert site.service.received() == 3
    (unknown,) = site.unknown()
    assert (unknown.call_id, unknown.case_id, unknown.reason) == (call, "b", "coordinator.died")
    assert unknown.held == {"dispatches": 1}
    assert held(site) == (2, 1)
    check_invariants(site.ledger, site.requests())


def test_e03_status_and_report_show_an_unknown_outcome_and_what_it_holds(site: Site) -> None:
    call = killed_while_the_target_works(site, "keep")
    assert site.resume().ended() == 3
    for command in ("status", "report"):
        told = site.told(command, "acceptance", "--json")
        assert (told["next"], told["exit_status"]) == ("decide", 3)
        assert told["population"]["unknown"] == 1
        assert told["unknown"] == {"count": 1, "reasons": {"coordinator.died": 1}}
        assert [(budget["settled"], budget["held"]) for budget in told["budgets"]] == [(2, 1)]
    listed = site.told("reconcile", "acceptance", "--json")
    assert call in json.dumps(listed)
    shown = site.start("status", "acceptance")
    assert shown.ended() == 0
    assert "unknown" in shown.out
    check_invariants(site.ledger, site.requests())


def settle(site: Site, *decision: object, reason: str) -> None:
    """An operator's word, from the command line."""
    settled = site.start("reconcile", "acceptance", *decision, "--reason", reason, "--yes")
    assert settled.ended() in (0, 3, 75), settled.err


def test_e03_operator_gives_an_unknown_outcome_up_and_the_history_says_who_and_why(site: Site) -> None:
    killed_while_the_target_works(site, "keep")
    assert site.resume().ended() == 3

    settle(site, "--case", "b", "--give-up", reason="the provider has no log")

    (attempt,) = site.only("b").attempts
    ((decision, made_by, reason, made_us),) = attempt.settlements
    assert (decision, reason) == ("give_up", "the provider has no log")
    assert made_by
    assert made_us > attempt.began_us
    assert site.counts() == {"selected": 2, "failed": 1}
    assert held(site) == (3, 0), "what was given up counts as spent"
    assert site.resume("acceptance").ended() == 3
    assert site.service.received() == 3
    check_invariants(site.ledger, site.requests())


def test_e03_operator_who_proves_that_it_did_not_land_lets_it_be_asked_anew(site: Site) -> None:
    site.order(http_order(site.service, [case("a"), case("b"), case("c")]))
    site.run(crashpoint="dispatch.intent.committed@2").died_at_its_point()
    assert site.resume().ended() == 3
    assert site.service.received() == 2

    settle(site, "--not-landed", reason="not in the provider's log")
    assert held(site) == (2, 0), "what never was done is given back"
    assert site.resume().ended() == 0

    first, second = site.only("b").attempts
    assert (first.state, second.state) == ("not_landed", "observed")
    assert first.dispatches[0].call_id not in site.seen()
    assert site.service.received() == 3
    check_invariants(site.ledger, site.requests())


def test_e03_operator_brings_the_answer_of_an_unknown_outcome_and_it_is_judged(site: Site) -> None:
    killed_while_the_target_works(site, "keep")
    assert site.resume().ended() == 3
    answer = site.folder / "answer.json"
    answer.write_text('"b"')

    settle(site, "--case", "b", "--landed", answer, reason="from the provider's log")
    again = site.start("reconcile", "acceptance", "--case", "b", "--give-up", "--reason", "twice", "--yes")
    assert again.ended() == 2, "there is nothing left to settle"

    assert site.resume("acceptance").ended() == 0
    slot = site.only("b")
    assert (slot.attempts[0].answer, slot.attempts[0].source) == ('"b"', "operator")
    assert [judgment.passed for judgment in slot.judgments] == [1]
    assert site.service.received() == 3
    check_invariants(site.ledger, site.requests())


# E03b: resend


def test_e03b_stored_bytes_are_resent_under_the_same_key_and_both_sends_count(site: Site) -> None:
    call = killed_while_the_target_works(site, "resend")
    site.service.go("gate")

    assert site.resume().ended() == 0

    assert site.counts() == {"selected": 3}
    sends = [request for request in site.requests() if request.request_id == call]
    assert len(sends) == 2
    assert len({request.payload_digest for request in sends}) == 1
    assert site.service.worked() == 3, "the service honours the key and works once"
    (attempt,) = site.only("b").attempts
    assert [dispatch.state for dispatch in attempt.dispatches] == ["unknown", "answered"]
    assert held(site) == (3, 1), "the first send stays unknown and held, the second is settled"
    check_invariants(site.ledger, site.requests())


def test_e03b_after_the_keys_validity_nothing_is_resent(site: Site) -> None:
    call = killed_while_the_target_works(site, "resend", target={"key_valid_seconds": 0.001})
    site.service.go("gate")

    assert site.resume().ended() == 3

    assert site.counts() == {"selected": 2, "unknown": 1}
    assert site.seen()[call] == 1
    assert held(site) == (2, 1)
    check_invariants(site.ledger, site.requests())


def test_e03b_a_resend_that_dies_too_is_resent_again_within_its_limit(site: Site) -> None:
    site.order(http_order(site.service, [case("b", remember=True)], if_unknown="resend", dispatches_max=3))
    for _ in range(3):
        site.run(crashpoint="dispatch.sent").died_at_its_point()
    assert list(site.seen().values()) == [3]
    assert site.resume().ended() == 3
    assert list(site.seen().values()) == [3], "three dispatches were allowed"
    assert site.counts() == {"unknown": 1}
    check_invariants(site.ledger, site.requests())


# E03c: query


def test_e03c_outcome_that_landed_is_fetched_by_its_id_and_not_sent_again(site: Site) -> None:
    call = killed_while_the_target_works(site, "query")
    site.service.go("gate")

    assert site.resume().ended() == 0

    assert site.counts() == {"selected": 3}
    assert site.seen()[call] == 1
    (attempt,) = site.only("b").attempts
    assert (attempt.source, attempt.answer) == ("query", '"b"')
    assert attempt.settlements[0][:2] == ("landed", "query")
    assert held(site) == (3, 0)
    assert site.only("b").judgments[0].passed == 1
    check_invariants(site.ledger, site.requests())


def test_e03c_not_found_is_no_proof_while_the_request_may_still_arrive(site: Site) -> None:
    proxy = site.proxy()
    site.order(http_order(site.service, [case("b")], if_unknown="query", target={"url": proxy.url}))
    coordinator = site.run()
    proxy.wait_until_holding()
    coordinator.dies()
    assert site.service.received() == 0

    assert site.resume().ended() == 3
    assert site.counts() == {"unknown": 1}
    assert site.service.received() == 0, "404 was no reason to send it again"

    proxy.release()
    assert site.service.worked() == 1, "it lands at last, and only once"
    assert site.resume("acceptance").ended() == 3
    assert site.service.received() == 1
    check_invariants(site.ledger, site.requests())


def test_e03c_only_a_tombstoned_id_is_sent_again(site: Site) -> None:
    proxy = site.proxy()
    site.order(http_order(site.service, [case("b")], if_unknown="query", target={"url": proxy.url}))
    coordinator = site.run()
    proxy.wait_until_holding()
    coordinator.dies()
    ((call,),) = rows(site.ledger, "SELECT call_id FROM calls")
    assert site.service.ask("POST", f"/tombstone/{call}")[0] == 200

    assert site.resume().ended() == 0

    proxy.release()
    assert site.service.worked() == 1, "what was held arrives tombstoned and is not worked on"
    first, second = site.only("b").attempts
    assert (first.state, second.state) == ("not_landed", "observed")
    assert first.settlements[0][:2] == ("not_landed", "query")
    assert first.dispatches[0].call_id == call != second.dispatches[0].call_id
    check_invariants(site.ledger, site.requests())


# E03d: repeat


def test_e03d_repeat_is_a_new_attempt_and_the_unknown_keeps_its_reservation(site: Site) -> None:
    call = killed_while_the_target_works(site, "repeat")
    site.service.go("gate")

    assert site.resume().ended() == 0

    first, second = site.only("b").attempts
    assert (first.state, first.dispatches[0].call_id) == ("unknown", call)
    assert second.state == "observed"
    assert second.dispatches[0].call_id != call
    assert held(site) == (3, 1)
    assert [unknown.call_id for unknown in site.unknown()] == [call], "the report still says what is held"
    assert site.seen()[call] == 1
    assert site.service.received() == 4
    check_invariants(site.ledger, site.requests())


# C01: a reply of no byte at all


def test_c01_a_connection_that_ends_without_a_word_is_unknown_and_not_sent_again(site: Site) -> None:
    site.order(http_order(site.service, [case("a", drop_after=0), case("b")], attempts_max=3, dispatches_max=3))
    assert site.run().ended() == 3
    assert site.counts() == {"selected": 1, "unknown": 1}
    assert site.service.received() == 2
    (unknown,) = site.unknown()
    assert unknown.bytes_sent is not None
    assert unknown.bytes_sent > 0
    assert unknown.held == {"dispatches": 1}
    assert site.resume("acceptance").ended() == 3
    assert site.service.received() == 2
    check_invariants(site.ledger, site.requests())


def test_c01_a_target_that_honours_keys_is_sent_the_same_key_again(site: Site) -> None:
    lost_then_answered: dict[str, Any] = {
        "remember": True,
        "sequence": [{"drop_after": 0, "remember": True}, {"remember": True}],
    }
    site.order(http_order(site.service, [case("a", **lost_then_answered)], if_unknown="resend"))
    assert site.run().ended() == 0
    assert list(site.seen().values()) == [2]
    assert site.service.worked() == 1
    check_invariants(site.ledger, site.requests())


# C17: killed between reservation and answer, again and again


@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.parametrize("point", ["dispatch.intent.committed", "dispatch.sent"])
@pytest.mark.parametrize("if_unknown", ["keep", "repeat"])
def test_c17_no_number_of_kills_leaks_a_reservation_or_passes_the_limit(
    site: Site, point: str, if_unknown: str, kills: int
) -> None:
    limit = kills + 2
    site.order(
        http_order(
            site.service,
            [case(f"c{number}") for number in range(limit + 3)],
            if_unknown=if_unknown,
            budgets={"dispatches": limit},
            solitary_deaths_max=200,
        )
    )
    for _ in range(kills):
        site.run(crashpoint=point).died_at_its_point()
        settled, outstanding = held(site)
        assert settled + outstanding <= limit
        check_invariants(site.ledger, site.requests(), at_rest=False)
    assert site.run().ended() == 6
    assert held(site) == (2, kills), "each death holds what it may have spent, and nothing frees it by itself"
    assert site.service.received() <= limit
    check_invariants(site.ledger, site.requests())
