"""Killed at every crash point of a conversation, with a target that keeps nothing and with a device that has sessions.

E07 on the device: what was answered is not asked again where a checkpoint brings the session back; where there is none,
the conversation begins anew and each replayed turn is counted as one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import attrs
import pytest

from .benches import Bench, asks, check_device
from .harness import Coordinator, Site
from .invariants import check_invariants, rows
from .orders import execution, http_target, work_order

SAYS: Final = ("a", "b", "c")
DEVICE: Final = {"checkpoints": (), "no checkpoints": ("--no-checkpoints",)}


@attrs.frozen
class Scenario:
    """Who is talked with, at which passage the process dies, and where an earlier one of the run had died before."""

    who: str
    passage: int = 1
    after: str = ""

    def __str__(self) -> str:
        return f"{self.passage}-{self.who}{f'-after-{self.after}' if self.after else ''}"


def with_all(passage: int = 1, *, after: str = "") -> list[Scenario]:
    return [Scenario(who, passage, after) for who in ("history", *DEVICE)]


SCENARIOS: Final[dict[str, list[Scenario]]] = {
    "session.begun": [*with_all(), *with_all(after="turn.committed")],
    "session.restored": [
        Scenario("checkpoints", after="turn.committed"),
        Scenario("checkpoints", after="dispatch.sent@2"),
    ],
    "turn.committed": [*with_all(), *with_all(2), Scenario("checkpoints", after="turn.committed")],
    "dispatch.intent.committed": with_all(2),
    "dispatch.sent": with_all(2),
    "dispatch.outcome.inside": with_all(2),
}


class Talk:
    """One conversation of three turns, as a run that can be started again and again."""

    def __init__(self, site: Site, who: str) -> None:
        self.site = site
        self.bench = None if who == "history" else Bench(site, *DEVICE[who])
        case = {"id": "talk", "input": {"turns": [{"say": text} for text in SAYS]}}
        if self.bench is None:
            body = {"input": "{{message.say}}", "history": "{{history}}", "behave": {"remember": True}}
            order = work_order(http_target(site.service, if_unknown="repeat", json=body), [case], judges=[])
        else:
            order = {**self.bench.order("acceptance", [case]), "judges": [], "execution": execution()}
        site.order({**order, "conversation": {"turns": "$.turns"}})

    def run(self, crashpoint: str = "") -> Coordinator:
        locks = None if self.bench is None else self.bench.locks
        return self.site.run(crashpoint=crashpoint, environment=locks)

    def asked(self) -> int:
        """How often a turn was really asked, by the witness of whom was asked."""
        if self.bench is None:
            return self.site.service.received()
        return len(self.bench.device.lines(role="submit", verdict="accepted"))

    def check(self, *, at_rest: bool) -> None:
        check_invariants(self.site.ledger, self.site.requests() if self.bench is None else None, at_rest=at_rest)
        if self.bench is not None:
            check_device(self.bench)

    def close(self) -> None:
        if self.bench is not None:
            self.bench.close()


@pytest.fixture
def talk(site: Site, scenario: Scenario) -> Iterator[Talk]:
    made = Talk(site, scenario.who)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    ("point", "scenario"),
    [
        pytest.param(point, scenario, id=f"{point}-{scenario}")
        for point, scenarios in SCENARIOS.items()
        for scenario in scenarios
    ],
)
def test_e07_crash_in_a_conversation_at_every_point(site: Site, talk: Talk, point: str, scenario: Scenario) -> None:
    for crashpoint in (scenario.after, f"{point}@{scenario.passage}"):
        if crashpoint:
            talk.run(crashpoint).died_at_its_point()
            talk.check(at_rest=False)

    ended = talk.run()
    assert ended.ended() == 0, ended.err

    slot = site.only("talk")
    told = json.loads(slot.attempts[-1].evidence)["turns"]
    assert [answer_of(turn, scenario.who) for turn in told] == heard_by(scenario.who)
    ((replays,),) = rows(site.ledger, "SELECT count(*) FROM dispatches WHERE replay = 1 AND state = 'answered'")
    unknown = len(site.unknown())
    assert 0 <= talk.asked() - len(SAYS) - replays <= unknown, "each turn was asked once, but for replays and unknowns"
    assert scenario.who == "history" or unknown == 0, "the device is asked what became of each"
    if scenario.who != "no checkpoints":
        assert replays == 0
    elif point == "turn.committed":
        assert replays > 0
    talk.check(at_rest=True)


@pytest.mark.parametrize("scenario", [Scenario(who) for who in DEVICE], ids=str)
def test_e07_another_run_has_the_device_between_two_turns(site: Site, talk: Talk, scenario: Scenario) -> None:
    """It resets the device, so that nothing of the session is left there; only a checkpoint brings it back."""
    assert talk.bench is not None
    talk.run("dispatch.sent@2").died_at_its_point()
    other = talk.bench.run("other", [asks("x")])
    assert other.ended() == 0, other.err
    assert talk.bench.device.get("state")["sessions"] == []

    ended = talk.run()
    assert ended.ended() == 0, ended.err

    with site.opened() as ledger:
        (slot,) = ledger.case(ledger.find("acceptance").run_id, "talk")
    told = json.loads(slot.attempts[-1].evidence or "{}")["turns"]
    assert [answer_of(turn, scenario.who) for turn in told] == heard_by(scenario.who)
    ((replays,),) = rows(site.ledger, "SELECT count(*) FROM dispatches WHERE replay = 1 AND state = 'answered'")
    assert replays == (0 if scenario.who == "checkpoints" else 2), "the turn that the other run was told of is no loss"
    assert talk.asked() == len(SAYS) + replays + 1
    talk.check(at_rest=True)


def answer_of(turn: dict[str, Any], who: str) -> Any:
    return turn["answer"] if who == "history" else (turn["answer"]["turn"], turn["answer"]["heard"])


def heard_by(who: str) -> list[Any]:
    """What each turn is answered by one that has heard the whole conversation, once and in its order."""
    if who == "history":
        return list(SAYS)
    return [(number, [{"say": text} for text in SAYS[: number - 1]]) for number in range(1, len(SAYS) + 1)]
