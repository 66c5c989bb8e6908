"""Killed at every crash point of judging, in an evaluation and in a run that judges itself; each gone on with then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import pytest

from .harness import Site
from .invariants import check_invariants, rows
from .judging import Endpoint, endpoint, judge_order, llm_judge, reasons_of, watched
from .orders import http_order, python_target, work_order

# What may become of a judge's request: answered, refused and answered then, failed, answered in vain, no verdict.
MIXED: Final = (
    watched("plain", judge={}),
    watched("refused", judge={"sequence": [{"status": 429, "retry_after": 0}, {}]}),
    watched("error", judge={"sequence": [{"status": 500, "body": {"error": "again"}}, {}]}),
    watched("lost", judge={"sequence": [{"drop_after": 0}, {}]}),
    watched("unreadable", judge={"reply": "well"}),
    watched("wrong", "something else", judge={}),
)
ENDS: Final = {
    **dict.fromkeys(("plain", "refused", "error", "lost"), "passed"),
    "unreadable": "malformed_verdict",
    "wrong": "failed",
}
BUDGETS: Final = {"dispatches": 1000, "tokens": {"limit": 9000, "bound_per_dispatch": 20}}
LIMITS: Final[dict[str, Any]] = {"retry": ["*"], "dispatches_max": 4, "attempts_max": 4}


def judges(where: Endpoint) -> list[dict[str, Any]]:
    return [llm_judge(where), {"kind": "exact", "name": "rule"}]


def an_evaluation(site: Site, where: Endpoint) -> list[Any]:
    """The command that judges what a run without judges has observed."""
    site.order(http_order(site.service, MIXED, judges=[], budgets=BUDGETS, **LIMITS))
    assert site.run().ended() == 0
    return ["judge", "acceptance", judge_order(site, judges(where), budgets=BUDGETS, **LIMITS)]


def on_judge(site: Site, where: Endpoint, point: str) -> list[Any]:
    command = an_evaluation(site, where)
    site.start(*command, crashpoint=point).died_at_its_point()
    return command


def on_judge_again(site: Site, where: Endpoint, point: str) -> list[Any]:
    """In the process that finds what an earlier death has left."""
    command = an_evaluation(site, where)
    site.start(*command, crashpoint="judgment.sent@2").died_at_its_point()
    site.start(*command, crashpoint=point).died_at_its_point()
    return command


def on_run(site: Site, where: Endpoint, point: str) -> list[Any]:
    """Inline: the run's own evaluation."""
    site.order(http_order(site.service, MIXED, judges=judges(where), budgets=BUDGETS, **LIMITS))
    site.run(crashpoint=point).died_at_its_point()
    return ["run", site.order_file]


@attrs.frozen
class Scenario:
    command: Callable[[Site, Endpoint, str], list[Any]]
    passage: int = 1

    def __str__(self) -> str:
        return f"{self.passage}-{self.command.__name__}"


def everywhere(*passages: int) -> list[Scenario]:
    return [Scenario(command, passage) for command in (on_judge, on_judge_again, on_run) for passage in passages]


SCENARIOS: Final[dict[str, list[Scenario]]] = {
    "evaluation.created": [Scenario(on_judge)],
    "evaluation.set.batch": [Scenario(on_judge)],
    "evaluation.opened": [Scenario(on_judge), Scenario(on_judge_again)],
    "judgment.before": [Scenario(on_judge), Scenario(on_run, 2)],
    "judgment.committed": [Scenario(on_judge), Scenario(on_run, 2)],
    "judgment.intent.before": everywhere(1, 3),
    "judgment.intent.inside": everywhere(1, 3),
    "judgment.intent.committed": everywhere(1, 4),
    "judgment.sent": everywhere(1, 3, 5),
    "judgment.outcome.inside": everywhere(1, 4),
    "judgment.outcome.committed": everywhere(1, 3),
    "evaluation.finish.before": [Scenario(on_judge), Scenario(on_judge_again)],
    "evaluation.finished": [Scenario(on_judge)],
}


@pytest.mark.parametrize(
    ("point", "scenario"),
    [
        pytest.param(point, scenario, id=f"{point}-{scenario}")
        for point, scenarios in SCENARIOS.items()
        for scenario in scenarios
    ],
)
def test_crash_in_judging_loses_no_verdict_and_sends_nothing_twice(site: Site, point: str, scenario: Scenario) -> None:
    where = endpoint(site)

    command = scenario.command(site, where, f"{point}@{scenario.passage}")
    check_invariants(site.ledger, site.requests(), at_rest=False, judged=where.requests())
    given = rows(site.ledger, "SELECT * FROM judgments WHERE state = 'judged' ORDER BY 1, 2, 3, 4, 5, 6")

    assert site.start(*command).ended() == 3, "one reply is no verdict"
    evaluation = 1 if scenario.command is on_run else 2
    assert reasons_of(site, evaluation) == ENDS
    kept = rows(site.ledger, "SELECT * FROM judgments WHERE state = 'judged' ORDER BY 1, 2, 3, 4, 5, 6")
    assert [row for row in given if row not in kept] == [], "what was committed stays as it was"
    assert rows(site.ledger, "SELECT count(*) FROM judgments WHERE state IN ('pending', 'judging')") == [(0,)]
    assert len(site.requests()) == len(MIXED), "no target was asked again"
    check_invariants(site.ledger, site.requests(), judged=where.requests())


def test_crash_leaves_no_second_evaluation_of_the_same_judges(site: Site) -> None:
    where = endpoint(site)
    command = on_judge(site, where, "evaluation.created")
    assert site.start(*command).ended() == 3
    assert rows(site.ledger, "SELECT evaluation_no FROM evaluations") == [(2,)]


@pytest.mark.parametrize("way", ["inline", "afterwards"])
def test_a_judge_that_kills_its_process_is_given_up_and_the_rest_is_judged(site: Site, way: str) -> None:
    """It takes the whole process down at one answer, whoever asks it and however often."""
    (site.folder / "judges.py").write_text(
        "import os\ndef deadly(answer):\n    if answer == 'b':\n        os.kill(os.getpid(), 9)\n    return True\n"
    )
    deadly = {"kind": "python", "name": "deadly", "file": "judges.py", "function": "deadly"}
    cases = [{"id": name, "input": name} for name in "abc"]
    target = python_target(site.folder, if_unknown="repeat")  # the others may be in flight when the judge dies
    site.order(work_order(target, cases, judges=[deadly] if way == "inline" else [], concurrency=3))
    command: list[Any] = ["run", site.order_file]
    if way == "afterwards":
        assert site.run().ended() == 0
        command = ["judge", "acceptance", judge_order(site, [deadly], concurrency=3)]

    statuses = [site.start(*command).ended()]
    while statuses[-1] == -9 and len(statuses) < 8:
        statuses.append(site.start(*command).ended())
    assert statuses[-1] == 3, statuses
    assert 3 <= statuses.count(-9) <= 5, "three deaths alone, and those in company before"
    evaluation = 1 if way == "inline" else 2
    assert reasons_of(site, evaluation) == {"a": "passed", "b": "judge_error", "c": "passed"}
    sent = len(site.requests())
    assert site.start(*command).ended() == 3, "and it is left in peace from then on"
    assert len(site.requests()) == sent
    check_invariants(site.ledger, site.requests())


def test_interrupted_judging_leaves_in_good_order_and_goes_on(site: Site) -> None:
    import signal

    where = endpoint(site)
    site.order(http_order(site.service, [watched("a", judge={"wait": "gate"}), watched("b")], judges=[]))
    assert site.run().ended() == 0
    order = judge_order(site, [llm_judge(where)], concurrency=1, grace_seconds=0.2)
    made = site.start("judge", "acceptance", order)
    where.wait_for("gate")
    made.signal(signal.SIGINT)
    assert made.ended() == 130
    assert "tallystick judge" in made.out
    where.go("gate")
    assert site.start("judge", "acceptance", order).ended() == 0
    assert reasons_of(site) == {"a": "passed", "b": "passed"}
    check_invariants(site.ledger, site.requests(), judged=where.requests())
