"""The figures of a report: whole populations, denominators, intervals, and what needs somebody."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tallystick.ledger import attempts, coordinators, run_ends, turns
from tallystick.ledger.evaluations import evaluations_of, let_retried_wait
from tallystick.ledger.holders import Holder
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import DispatchFacts
from tallystick.ledger.settlements import Decision, Settlement, settle_unknown
from tallystick.ledger.states import DispatchState
from tallystick.runner import report_reading
from tallystick.runner.report_options import slice_term
from tallystick.runner.report_points import STATE_MEANINGS
from tallystick.runner.reports import status_of
from tallystick.runner.statistics_rates import wilson
from tests.unit.ledger import talks
from tests.unit.ledger.factories import answered, begin, budget, facts
from tests.unit.renderers.made_runs import (
    Asked,
    answer,
    document,
    end,
    fail,
    judge,
    lose,
    made_run,
    rendered,
    troubled_run,
)


def whole(people: dict[str, int]) -> bool:
    return people["planned"] == sum(count for state, count in people.items() if state != "planned")


def accounted(score: dict[str, Any]) -> int:
    missing = sum(score["no_verdict"].values()) + sum(score["without_observation"].values())
    return int(score["judged"] + missing + score["waiting"] + score["outside"])


def test_the_population_is_whole_in_every_part(ledger: Ledger) -> None:
    found = document(ledger, troubled_run(ledger).run_id, by="language")
    parts = [found["population"], *(one["population"] for one in (*found["by_variant"], *found["groups"]))]
    assert all(whole(part) for part in parts)
    assert found["population"]["planned"] == 10
    assert sum(one["population"]["planned"] for one in found["by_variant"]) == 10
    assert sum(one["population"]["planned"] for one in found["groups"]) == 10
    assert sum(one["planned"] for one in found["scores"]) == 10
    assert all(accounted(one) == one["planned"] for one in found["scores"])
    assert len(found["slots"]) == 10


def test_scores_have_their_denominators_and_why_the_rest_has_none(ledger: Ledger) -> None:
    old, new = document(ledger, troubled_run(ledger).run_id)["scores"]
    assert (old["judged"], old["passed"], old["planned"], old["rate"]) == (1, 1, 5, 1.0)
    assert old["no_verdict"] == {"malformed_verdict": 1}
    assert old["without_observation"] == {"not_attempted": 1, "target_unavailable": 2}
    assert (new["judged"], new["passed"], new["waiting"]) == (1, 0, 1)
    assert new["without_observation"] == {"not_attempted": 2, "target_unavailable": 1}
    assert (old["mean"], old["scored"]) == (0.5, 1)


def test_the_interval_of_a_rate_is_wilsons(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked(f"c{number}") for number in range(10)])
    for slot in range(1, 11):
        answer(ledger, run.run_key, slot)
        judge(ledger, run.run_key, slot, slot > 3, score=slot / 10)
    (score,) = document(ledger, run.run_id)["scores"]
    expected = wilson(7, 10)
    assert (score["rate_low"], score["rate_high"]) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert score["mean"] == pytest.approx(0.55)
    assert score["mean_low"] < 0.45 < 0.65 < score["mean_high"]
    assert (score["cases"], score["rated"], score["scored"]) == (10, 10, 10)


def test_repetitions_that_agree_make_no_rate_more_certain(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked(f"c{number}") for number in range(10)], repetitions=3)
    for slot in range(1, 31):
        answer(ledger, run.run_key, slot)
        judge(ledger, run.run_key, slot, (slot - 1) % 10 >= 3)
    (score,) = document(ledger, run.run_id)["scores"]
    expected = wilson(7, 10)
    assert (score["judged"], score["cases"]) == (30, 10)
    assert (score["rate_low"], score["rate_high"]) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_nan_verdicts_spoil_nothing(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked(f"c{number}") for number in range(10)])
    for slot in range(1, 11):
        answer(ledger, run.run_key, slot)
        judge(ledger, run.run_key, slot, True if slot <= 5 else None, reason=None if slot <= 5 else "malformed_verdict")
    found = document(ledger, run.run_id)
    (score,) = found["scores"]
    assert (score["passed"], score["judged"], score["planned"], score["rate"]) == (5, 5, 10, 1.0)
    (point,) = [one for one in found["open_points"] if one["what"] == "no_verdict"]
    assert (point["count"], point["reasons"]) == (5, {"malformed_verdict": 5})


def test_observations_that_an_earlier_holder_of_the_device_may_have_touched_are_counted(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked(f"c{number}") for number in range(3)])
    for slot in (1, 2):
        answer(ledger, run.run_key, slot)
    assert "contaminated" not in {one["what"] for one in document(ledger, run.run_id)["open_points"]}
    ledger.write(lambda tx: tx.event(run.run_key, "attempt.contaminated", {"slot": 2, "attempt": 1}))
    (point,) = [one for one in document(ledger, run.run_id)["open_points"] if one["what"] == "contaminated"]
    assert (point["count"], point["command"]) == (1, f"tallystick show {run.run_id} CASE")


def test_a_turn_that_a_later_attempt_has_carried_over_was_not_wasted(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked("c1")])
    first = talks.open_session(ledger, run.run_key)
    talks.say(ledger, first, 1)
    talks.break_off(ledger, first)
    second = talks.open_session(ledger, run.run_key, carried_from=1, carried=1, seen=1)
    last = talks.ask(ledger, second, 2)
    ledger.write(lambda tx: turns.commit_last_turn(tx, last, answered(), talks.answer_of(2), talks.answer_of(2)))
    found = document(ledger, run.run_id)
    assert (found["population"]["selected"], found["totals"]["dispatches"]) == (1, 2)
    assert found["totals"]["wasted_dispatches"] == 0


def test_what_needs_a_look_is_told_with_its_meaning_and_command(ledger: Ledger) -> None:
    run = troubled_run(ledger)
    points = {one["what"]: one for one in document(ledger, run.run_id)["open_points"]}
    assert set(points) == {"unknown", "failed", "unavailable", "pending", "no_verdict", "waiting"}
    assert points["unknown"]["command"] == f"tallystick reconcile {run.run_id}"
    assert points["failed"]["command"] == f"tallystick resume {run.run_id} --retry failed"
    assert points["failed"]["reasons"] == {"http.500": 1}
    assert points["unavailable"]["meaning"] == STATE_MEANINGS["unavailable"]  # type: ignore[index]
    assert points["pending"]["command"] == f"tallystick resume {run.run_id}"


def test_a_slice_is_of_cases_that_fit_all_its_terms(ledger: Ledger) -> None:
    run = troubled_run(ledger)
    german = document(ledger, run.run_id, terms=(slice_term("language=de"),))
    assert {slot["case"] for slot in german["slots"]} == {"c1", "c3", "c5"}
    assert (german["slice"]["planned"], german["slice"]["of"], german["population"]["planned"]) == (6, 10, 6)
    both = document(ledger, run.run_id, terms=(slice_term("language=de"), slice_term("tags=3")))
    assert {slot["case"] for slot in both["slots"]} == {"c3"}
    assert document(ledger, run.run_id, terms=(slice_term("nothing=1"),))["slice"]["without_key"] == 10
    assert german["budgets"] == document(ledger, run.run_id)["budgets"]


@pytest.mark.parametrize(
    ("value", "text", "fits"),
    [
        ("de", "de", True), (3, "3", True), ("3", "3", True), (3, "3.0", False), (True, "true", True),
        (1, "true", False),
        (None, "null", True), (["a", 1], "a", True), (["a", 1], "1", True), (["a"], '["a"]', True), ("de", "d", False),
        ({"a": 1}, '{"a": 1}', True), ("null", "null", True), ("", "", True), (0, "", False),
    ],
)  # fmt: skip
def test_a_term_fits_values_as_they_are_written(value: Any, text: str, fits: bool) -> None:
    assert slice_term(f"key={text}").fits({"key": value}) is fits


def test_groups_keep_what_lacks_the_key_and_what_is_equal_in_text_alone(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked("a", {"k": 1}), Asked("b", {"k": "1"}), Asked("c", {}), Asked("d", {"k": None})])
    answer(ledger, run.run_key, 1)
    groups = document(ledger, run.run_id, by="k")["groups"]
    assert [(one["value"], one["has_key"], one["population"]["planned"]) for one in groups] == [
        ("1", True, 1), (1, True, 1), (None, True, 1), (None, False, 1),
    ]  # fmt: skip


def test_money_is_parted_into_what_counts_and_what_was_wasted(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked(f"c{number}") for number in range(4)], budgets=(budget(limit=20),))
    answer(ledger, run.run_key, 1, holds=1)
    key = begin(ledger, run.run_key, 2, holds=()).key
    told = facts(reason="http.500")
    ledger.write(lambda tx: attempts.fail(tx, key, told, waiting=None))
    found = document(ledger, run.run_id)
    (line,) = found["budgets"]
    assert (line["settled"], line["counted"], line["wasted"]) == (1, 1, 0)
    assert found["totals"]["wasted_dispatches"] == 1
    assert found["judge_totals"] is None


def test_what_was_never_sent_or_is_settled_as_not_done_was_not_wasted(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked(f"c{number}") for number in range(3)], budgets=(budget(limit=20),))

    def wasted() -> int:
        found = document(ledger, run.run_id)["totals"]
        told = status_of(ledger, run.run_id).totals
        assert told is not None
        assert told.model_dump() == found, "the report and the status count alike"
        return int(found["wasted_dispatches"])

    call_id, before = lose(ledger, run.run_key, 1), wasted()
    not_done = Settlement(call_id, 1, Decision.NOT_LANDED, "me", "its log has no such call")
    ledger.write(lambda tx: settle_unknown(tx, not_done))
    assert (before, wasted()) == (0, 0)
    for slot_no, bytes_sent, count in [(2, 0, 0), (3, 12, 1)]:
        key = begin(ledger, run.run_key, slot_no, holds=()).key
        refused = DispatchFacts(DispatchState.REFUSED, "http.429", bytes_sent=bytes_sent, charged=bytes_sent > 0)
        ledger.write(lambda tx, key=key, refused=refused: attempts.refuse(tx, key, refused))  # type: ignore[misc]
        assert wasted() == count


def test_durations_are_of_selected_observations_that_say_them(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked(f"c{number}") for number in range(12)])
    for slot in range(1, 11):
        answer(ledger, run.run_key, slot, seconds=slot / 10)
    answer(ledger, run.run_key, 11, seconds=None)
    (line,) = document(ledger, run.run_id)["durations"]
    assert (line["known"], line["unknown"], line["p50"], line["least"], line["most"]) == (10, 1, 0.55, 0.1, 1.0)
    assert line["p50_low"] <= line["p50"] <= line["p50_high"]
    assert sum(count for _, _, count in line["histogram"]) == 10


def test_an_answer_that_was_settled_by_hand_has_no_time(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked("a")])
    call_id = lose(ledger, run.run_key, 1)
    landed = Settlement(call_id, 1, Decision.LANDED, "me", "I saw it", answer='"yes"', answer_digest="d")
    ledger.write(lambda tx: settle_unknown(tx, landed))
    found = document(ledger, run.run_id)
    assert (found["durations"][0]["known"], found["durations"][0]["unknown"]) == (0, 1)
    assert found["slots"][0]["source"] == "operator"
    assert [mark["kind"] for mark in found["marks"]] == ["dispatch.settled"]
    assert "settled as landed by me: I saw it" in found["marks"][0]["text"]


def test_a_kill_and_what_was_found_after_it_are_in_the_time_line(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked("a"), Asked("b")])
    begin(ledger, run.run_key, 1)
    holder = Holder(run.lease_id, ledger.worker_id, None, True, 0)  # type: ignore[arg-type]
    ledger.write(lambda tx: coordinators._take(tx, run.run_id, holder, 3))
    found = document(ledger, run.run_id)
    died, now = found["sessions"]
    assert (died["died"], died["ended_at"] is not None, now["died"], now["unknown"]) == (True, True, False, 1)
    assert now["fence"] == died["fence"] + 1
    assert [one["state"] for one in found["timeline"]["attempts"]] == ["unknown"]
    for form in ("html", "md"):
        assert "its process died" in rendered(ledger, run.run_id, form)


def test_the_time_line_has_the_most_that_was_under_way(ledger: Ledger, clock: Any) -> None:
    run = made_run(ledger, [Asked(f"c{number}") for number in range(3)])
    first = begin(ledger, run.run_key, 1)
    second = begin(ledger, run.run_key, 2)
    clock.us += 60_000_000
    told = facts(reason="x")
    for one in (first, second):
        ledger.write(lambda tx, key=one.key: attempts.fail(tx, key, told, waiting=None))  # type: ignore[misc]
    clock.us += 60_000_000
    fail(ledger, run.run_key, 3)
    line = document(ledger, run.run_id)["timeline"]
    assert max(bucket["in_flight"] for bucket in line["buckets"]) == 2
    assert sum(sum(bucket["ended"].values()) for bucket in line["buckets"]) == 3
    assert line["buckets"][-1]["ended"] == {"failed": 1}
    assert len(line["attempts"]) == 3


def leave(ledger: Ledger, run: coordinators.Coordinator) -> None:
    """Nothing happens."""


def run_dry(ledger: Ledger, run: coordinators.Coordinator) -> None:
    ledger.write(lambda tx: run_ends.mark_unavailable(tx, run.run_key, reason="budget"))


def fail_all(ledger: Ledger, run: coordinators.Coordinator) -> None:
    fail(ledger, run.run_key, 1)
    end(ledger, run)


def pass_all(ledger: Ledger, run: coordinators.Coordinator) -> None:
    answer(ledger, run.run_key, 1)
    judge(ledger, run.run_key, 1, True)
    end(ledger, run)


def judge_none(ledger: Ledger, run: coordinators.Coordinator) -> None:
    answer(ledger, run.run_key, 1)
    judge(ledger, run.run_key, 1, reason="timeout")
    end(ledger, run)


def abandon(ledger: Ledger, run: coordinators.Coordinator) -> None:
    ledger.write(lambda tx: run_ends.abandon_run(tx, run.run_key, reason="enough", made_by="me"))


@pytest.mark.parametrize(
    ("prepare", "move", "status"),
    [
        (leave, "resume", 75),
        (run_dry, "fund", 6),
        (fail_all, "decide", 3),
        (pass_all, "nothing", 0),
        (judge_none, "decide", 3),
        (abandon, "nothing", 0),
    ],
)
def test_what_helps_next_is_told_as_status_tells_it(ledger: Ledger, prepare: Any, move: str, status: int) -> None:
    run = made_run(ledger, [Asked("a")])
    prepare(ledger, run)
    found = document(ledger, run.run_id)
    assert (found["next"], found["exit_status"]) == (move, status)
    now = status_of(ledger, run.run_id).model_dump()
    for key in ("state", "next", "command", "exit_status", "active_seconds", "started_at", "ended_at", "unknown"):
        assert found[key] == now[key], key
    assert found["totals"] == now["totals"]


def test_a_run_of_many_values_of_a_key_is_cut_and_stays_whole(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_reading, "GROUPS_MAX", 3)
    run = made_run(ledger, [Asked(f"c{number}", {"k": number}) for number in range(9)])
    groups = document(ledger, run.run_id, by="k")["groups"]
    assert len(groups) == 4
    assert sum(one["population"]["planned"] for one in groups) == 9


def test_a_judgment_that_is_tried_again_waits_and_had_no_verdict_before(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked("a")])
    answer(ledger, run.run_key, 1)
    judge(ledger, run.run_key, 1, reason="timeout")
    before = document(ledger, run.run_id)
    with ledger.reading() as reader:
        (own,) = evaluations_of(reader, run.run_key)
    ledger.write(lambda tx: let_retried_wait(tx, own, reason="timeout"))
    (score,) = document(ledger, run.run_id)["scores"]
    assert (score["no_verdict"], score["waiting"]) == ({}, 1)
    then = document(ledger, run.run_id, at=before["event"])
    assert then == before
    assert (then["scores"][0]["no_verdict"], then["scores"][0]["waiting"]) == ({"timeout": 1}, 0)
    judge(ledger, run.run_key, 1, True)
    assert document(ledger, run.run_id)["scores"][0]["passed"] == 1
    assert document(ledger, run.run_id, at=before["event"]) == before


def test_answers_that_look_empty_are_told_apart(ledger: Ledger) -> None:
    values: list[Any] = [False, 0, "", [], None, {}, 0.0]
    run = made_run(ledger, [Asked(f"c{number}") for number in range(len(values) + 1)])
    for slot, value in enumerate(values, start=1):
        answer(ledger, run.run_key, slot, value)
    slots = document(ledger, run.run_id)["slots"]
    assert [(slot["has_answer"], repr(slot["answer"])) for slot in slots] == [
        *((True, repr(value)) for value in values), (False, "None"),
    ]  # fmt: skip
    page = rendered(ledger, run.run_id, "html")
    shown = json.loads(page.split('id="data">', 1)[1].split("</script>", 1)[0])["more"]
    assert [one["a"][0]["o"] for one in shown[: len(values)]] == ["false", "0", "", "[]", "null", "{}", "0.0"]


def test_what_costs_nothing_known_is_unknown_and_a_sum_is_a_lower_bound(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked("a"), Asked("b")])
    answer(ledger, run.run_key, 1)
    assert document(ledger, run.run_id)["totals"]["cost_usd"] is None
    answer(ledger, run.run_key, 2, cost_nanousd=0)
    found = document(ledger, run.run_id)
    assert (found["totals"]["cost_usd"], found["totals"]["unpriced_dispatches"]) == ("0.00", 1)
    assert [slot["cost_usd"] for slot in found["slots"]] == [None, "0.00"]
    assert "at least $0.00; 1 had no price" in rendered(ledger, run.run_id, "html")


def test_judges_that_say_passed_or_not_are_held_beside_each_other(ledger: Ledger) -> None:
    run = made_run(ledger, [Asked(f"c{number}") for number in range(10)], judges=("exact", "strict", "score"))
    for slot in range(1, 11):
        answer(ledger, run.run_key, slot)
        judge(ledger, run.run_key, slot, slot > 2)
        judge(ledger, run.run_key, slot, slot > 4 if slot < 10 else None, judge_no=2,
              reason=None if slot < 10 else "timeout")  # fmt: skip
        judge(ledger, run.run_key, slot, judge_no=3, score=1.0)
    found = document(ledger, run.run_id)
    (line,) = found["agreements"]
    assert (line["judges"], line["agreed"], line["count"]) == (["exact", "strict"], 7, 9)
    # Of 9: both pass 5, exact alone 2, both fail 2; chance gives (7 * 5 + 2 * 4) / 81.
    assert line["kappa"] == pytest.approx((7 / 9 - 43 / 81) / (1 - 43 / 81))
    assert "exact and strict" in rendered(ledger, run.run_id, "md")
    assert "exact and strict" in rendered(ledger, run.run_id, "html")
