"""A judge that has to be qualified, in real processes: unqualified, killed while it is qualified, qualified at last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .harness import Site
from .invariants import check_invariants, rows
from .judging import Endpoint, endpoint, judge_order, llm_judge, watched
from .orders import http_order

LABELS = 6
REQUIRED = {"accuracy": 0.9, "labels": LABELS}


def labelled(site: Site, *, right: int) -> Path:
    """Answers that the endpoint calls right or wrong; so many labels agree with it."""
    path = site.folder / "labelled.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for at in range(LABELS):
            passes = at % 2 == 0
            row: dict[str, Any] = {"id": f"l{at}", "input": {"q": at}, "expected": at, "answer": at if passes else -1}
            row["label"] = passes if at < right else not passes
            file.write(json.dumps(row) + "\n")
    return path


def judged(site: Site, where: Endpoint) -> Path:
    """A run that is judged by a judge of which something is required; its judge work order."""
    site.order(http_order(site.service, [watched("a"), watched("b", "something else")], judges=[]))
    assert site.run().ended() == 0
    order = judge_order(site, [llm_judge(where, require=REQUIRED)], budgets={"dispatches": 100})
    told = site.told("judge", "acceptance", order, "--json", statuses=[3])
    assert told["judges"][0]["qualified"]["met"] is False
    return order


def checked(site: Site, where: Endpoint) -> None:
    """Labelled answers are recorded: their calls arrive nowhere, and the service counts those of the run alone."""
    assert len(site.requests()) == 2
    check_invariants(site.ledger, None, judged=where.requests())


def counts(site: Site) -> list[bool]:
    report = site.told("report", "acceptance", "--evaluation", 2, "--json", statuses=[0, 3])
    return [score["counts"] for score in report["scores"]]


@pytest.mark.parametrize("point", ["evaluation.set.batch", "judgment.intent.committed", "judgment.sent@4"])
def test_verdicts_count_once_their_judge_is_qualified_also_across_a_death_on_the_way(site: Site, point: str) -> None:
    where = endpoint(site)
    order = judged(site, where)
    assert counts(site) == [False], "shown, and nothing is decided by them"
    asked = where.received()

    command = ["qualify", order, labelled(site, right=LABELS)]
    site.start(*command, crashpoint=point).died_at_its_point()
    assert rows(site.ledger, "SELECT count(*) FROM qualifications") == [(0,)], "half a file says nothing"
    told = site.told(*command, "--json")
    assert (told["judges"][0]["accuracy"], told["judges"][0]["met"]) == (1.0, True)
    assert LABELS <= where.received() - asked <= LABELS + 1, "what may have been sent is sent once more, no other"

    asked = where.received()
    assert site.told(*command, "--json")["judges"] == told["judges"]
    site.told("judge", "acceptance", order, "--json")
    assert where.received() == asked, "verdicts and figures were there"
    assert counts(site) == [True]
    checked(site, where)


def test_a_judge_that_is_right_too_seldom_stays_unqualified_and_says_by_how_much(site: Site) -> None:
    where = endpoint(site)
    order = judged(site, where)
    shown = site.start("qualify", order, labelled(site, right=4))
    assert shown.ended() == 3
    assert "accuracy is 0.6667, 0.9 is required" in shown.out
    shown = site.start("judge", "acceptance", order)
    assert shown.ended() == 3
    assert "unqualified" in shown.out
    assert counts(site) == [False]
    checked(site, where)
