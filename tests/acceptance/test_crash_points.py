"""Killed at every registered crash point, and at one SQL statement after the other (C09); each resumed to its end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import pytest

from tallystick.ledger.crashpoints import CRASHPOINTS

from .harness import FIXTURES, Request, Site, read_requests
from .invariants import check_invariants, rows
from .orders import case, http_order
from .test_agents import SCENARIOS as OF_AGENTS
from .test_conversation_crash_points import SCENARIOS as OF_CONVERSATIONS
from .test_device_crash_points import SCENARIOS as OF_DEVICES
from .test_forks import SCENARIOS as OF_FORKS
from .test_judging_crashes import SCENARIOS as OF_JUDGING
from .test_snapshots import SCENARIOS as OF_SNAPSHOTS

# What may become of a request: answered, refused and answered then, failed and answered then, answered in vain.
MIXED: Final = (
    case("plain", remember=True),
    case("refused", sequence=[{"status": 429, "retry_after": 0}, {"remember": True}]),
    case("error", sequence=[{"status": 500, "body": {"error": "again"}}, {"remember": True}]),
    case("lost", sequence=[{"drop_after": 0, "remember": True}, {"remember": True}]),
    case("last", remember=True),
)
BUDGETS: Final = {"dispatches": 1000, "tokens": {"limit": 9000, "bound_per_dispatch": 10}}


@attrs.frozen
class Scenario:
    """How a process is brought to a crash point: which command, under which policy, at which passage."""

    command: Callable[[Site, str], None]
    if_unknown: str = "keep"
    passage: int = 1
    many: bool = False

    def __str__(self) -> str:
        return f"{self.passage}-{self.if_unknown}-{self.command.__name__}"


def on_run(site: Site, point: str) -> None:
    site.run(crashpoint=point).died_at_its_point()


def on_resume(site: Site, point: str) -> None:
    """In the process that finds what an earlier death has left."""
    site.run(crashpoint="dispatch.sent@2").died_at_its_point()
    site.resume(crashpoint=point).died_at_its_point()


def on_reconcile(site: Site, point: str) -> None:
    """In the process of an operator who settles what two deaths have left unknown."""
    site.run(crashpoint="dispatch.sent@1").died_at_its_point()
    site.resume(crashpoint="dispatch.sent@1").died_at_its_point()
    assert site.resume().ended() == 3
    site.start(*GIVE_UP, crashpoint=point).died_at_its_point()


GIVE_UP: Final = ("reconcile", "acceptance", "--give-up", "--reason", "the service keeps no log", "--yes")
EVERY_POLICY: Final = ("keep", "resend", "query", "repeat")


def each_policy(command: Callable[[Site, str], None], *passages: int) -> list[Scenario]:
    return [Scenario(command, policy, passage) for policy in EVERY_POLICY for passage in passages]


SCENARIOS: Final[dict[str, list[Scenario]]] = {
    "ledger.created.empty": [Scenario(on_run)],
    "ledger.migrated": [Scenario(on_run)],
    "run.planning.batch": [Scenario(on_run), Scenario(on_run, passage=2)],
    "run.planned": [Scenario(on_run, "repeat")],
    "run.opened": [Scenario(on_run), Scenario(on_resume, "repeat")],
    "recovery.done": [Scenario(on_run, "resend"), *each_policy(on_resume, 1)],
    "dispatch.intent.before": [Scenario(on_run, "repeat", 2), Scenario(on_resume, "resend")],
    "dispatch.intent.inside": [Scenario(on_run, "repeat", 2), Scenario(on_resume, "resend")],
    "dispatch.intent.committed": [*each_policy(on_run, 3), Scenario(on_resume, "resend")],
    "dispatch.sent": [*each_policy(on_run, 2), Scenario(on_run, "repeat", 3), Scenario(on_run, "keep", 5)],
    "dispatch.outcome.inside": [Scenario(on_run, "keep"), Scenario(on_run, "resend", 3)],
    "dispatch.outcome.committed": [Scenario(on_run, "keep"), Scenario(on_run, "repeat", 4)],
    "judgment.before": [Scenario(on_run, "keep", 2), Scenario(on_resume, "query")],
    "judgment.committed": [Scenario(on_run, "repeat", 2)],
    "query.answered": [Scenario(on_resume, "query")],
    "query.settled": [Scenario(on_resume, "query")],
    "reconcile.before": [Scenario(on_reconcile), Scenario(on_reconcile, passage=2)],
    "reconcile.committed": [Scenario(on_reconcile), Scenario(on_reconcile, passage=2)],
    "scribe.commit.before": [Scenario(on_run, "repeat", passage) for passage in (1, 4, 9, 14)],
    "scribe.commit.after": [Scenario(on_run, "keep", passage) for passage in (1, 4, 9, 14)],
    "checkpoint.after": [Scenario(on_run, "repeat", many=True)],
    "run.finish.before": [Scenario(on_run, "repeat")],
    "run.finished": [Scenario(on_run, "repeat"), Scenario(on_run, "keep")],
}


def test_crash_every_registered_point_is_reached_by_a_scenario() -> None:
    elsewhere = (OF_AGENTS, OF_CONVERSATIONS, OF_DEVICES, OF_FORKS, OF_JUDGING, OF_SNAPSHOTS)
    assert set(SCENARIOS).union(*elsewhere) == set(CRASHPOINTS)


@pytest.mark.parametrize(
    ("point", "scenario"),
    [
        pytest.param(point, scenario, id=f"{point}-{scenario}")
        for point in CRASHPOINTS
        for scenario in SCENARIOS.get(point, ())
    ],
)
def test_crash_at_every_point_loses_nothing_and_sends_nothing_twice(site: Site, point: str, scenario: Scenario) -> None:
    # A checkpoint comes after some hundred commits.
    cases = [case(f"c{number}", remember=True) for number in range(210)] if scenario.many else MIXED
    site.order(
        http_order(
            site.service,
            cases,
            if_unknown=scenario.if_unknown,
            budgets=BUDGETS,
            retry=["*"],
            dispatches_max=4,
            attempts_max=4,
        )
    )

    scenario.command(site, f"{point}@{scenario.passage}")

    if site.ledger.stat().st_size and rows(site.ledger, "SELECT 1 FROM sqlite_master WHERE name = 'runs'"):
        check_invariants(site.ledger, site.requests(), at_rest=False)
    assert site.run().ended() in (0, 3), "the same work order goes on"
    if scenario.command is on_reconcile:
        settled = site.start(*GIVE_UP).ended()
        assert settled in (0, 2, 3), "what was not settled is settled now"

    counts = site.counts()
    assert sum(counts.values()) == len(cases)
    assert set(counts) <= {"selected", "unknown", "failed"}
    if scenario.if_unknown in ("repeat", "resend"):
        assert counts == {"selected": len(cases)}, "nothing is left where the target allows to ask again"
    if scenario.if_unknown == "query":
        # What the target does not know of is no proof; what it has worked on is fetched.
        assert 200 not in [site.service.ask("GET", f"/outcome/{unknown.call_id}")[0] for unknown in site.unknown()]
    check_invariants(site.ledger, site.requests())


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.soak), 4])
def test_c09_killed_at_the_statements_of_a_runs_life(site: Site, tmp_path: Path, stride: int) -> None:
    """One case from planning to its end, and a process that dies at one SQL statement after the other; each resumed."""
    order = http_order(site.service, [case("a", remember=True)], if_unknown="repeat", budgets=BUDGETS)
    template = tmp_path / "order.json"
    template.write_text(json.dumps(order))

    walk = site.start_program(sys.executable, FIXTURES / "statement_walk.py", template, tmp_path / "walk", stride)
    assert walk.ended(patience_seconds=1_120 // stride) == 0, walk.err
    deaths = [json.loads(line) for line in walk.out.splitlines()]

    assert [death["statement"] for death in deaths] == list(range(1, stride * len(deaths) + 1, stride))
    assert stride * len(deaths) > 100
    assert {death["signal"] for death in deaths[:-1]} == {9}
    assert deaths[-1]["signal"] == 0, "the last one came to its end"
    by_path: dict[str, list[Request]] = {}
    for path, request in read_requests(site.service.log):
        by_path.setdefault(path, []).append(request)
    for death in deaths:
        ledger = tmp_path / "walk" / f"{death['statement']}.db"
        requests = by_path.get(f"/ask/{death['statement']}", [])
        assert death["resumed"] == 0, death
        assert rows(ledger, "SELECT state, count(*) FROM slots GROUP BY state") == [("selected", 1)], death
        assert len(requests) in (1, 2), death
        check_invariants(ledger, requests)
