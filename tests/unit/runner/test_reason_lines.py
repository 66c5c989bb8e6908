from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tallystick._wiring import ADAPTERS
from tallystick.adapters.reasons import REASONS
from tallystick.ledger.ledger import Ledger
from tallystick.runner.descriptions import describe
from tallystick.runner.protocols import Dispatching, Outcome
from tallystick.runner.reason_lines import REMEDIES, remedy_of
from tallystick.runner.report_reading import report_of
from tallystick.runner.reports import run_end, status_of
from tallystick.runner.sessions import find_or_create, run_session
from tallystick.runner.tally import Tally

from .scripted import ANSWERED, FAILED, REFUSED, UNKNOWN, Scripted, execute, order_of


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        yield opened


OUTCOMES_PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "outcomes.md"


def test_every_reason_that_something_helps_against_is_a_documented_one() -> None:
    told = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)*)`", OUTCOMES_PAGE.read_text(encoding="utf-8"))) | REASONS.keys()
    for reason in REMEDIES:
        known = re.sub(r"\.\d+$", "", reason)
        assert known in told or any(one.startswith(f"{known}.") for one in told), reason


@pytest.mark.parametrize(
    ("reason", "helps"),
    [
        ("http.status.401", "the environment variable that is named for it"),
        ("http.status.418", "correct the request"),
        ("http.status.500", "the service failed by itself"),
        ("device.failed.jammed", "look at the device"),
        ("something.of.their.own", ""),
        ("", ""),
    ],
)
def test_the_longest_known_beginning_of_a_reason_says_what_helps(reason: str, helps: str) -> None:
    assert remedy_of(reason) == "" if not helps else helps in remedy_of(reason)


async def _by_case(target: Scripted, dispatching: Dispatching) -> Outcome:
    number = int(dispatching.slot.case.id[1:])
    if number < 3:
        return attrs.evolve(FAILED, reason="http.status.401", message=f"401: no key, says {number} {'x' * 400}")
    return attrs.evolve(FAILED, reason="http.status.500", message="") if number == 3 else ANSWERED


def test_a_run_says_why_it_has_no_observations_by_an_example_of_each_reason(ledger: Ledger) -> None:
    outcome = execute(ledger, Scripted(_by_case), cases=5)
    for standing in (
        run_end(ledger, outcome), status_of(ledger, outcome.run_id), report_of(ledger, outcome.run_id),
    ):  # fmt: skip
        refused, broken = standing.reasons
        assert (refused.reason, refused.count) == ("http.status.401", 3)
        assert refused.example.startswith("401: no key, says 0 xxx")
        assert len(refused.example) == 300
        assert (broken.reason, broken.count, broken.example) == ("http.status.500", 1, "")
        assert "the service failed by itself" in broken.remedy


@pytest.mark.parametrize("outcome", [FAILED, UNKNOWN, REFUSED], ids=lambda one: one.state)
def test_what_a_send_without_an_answer_said_is_there_for_displays_until_something_is_answered(
    ledger: Ledger, outcome: Outcome
) -> None:
    seen: list[tuple[str, bool]] = []

    async def reply(target: Scripted, dispatching: Dispatching) -> Outcome:
        seen.append((tallies[0].trouble, tallies[0].trouble_since_us is None))
        return outcome if len(target.asked) == 1 else ANSWERED

    tallies: list[Tally] = []
    target = Scripted(reply)
    order = order_of(target, cases=2, concurrency=1)
    session = find_or_create(ledger, describe(order, ADAPTERS))
    asyncio.run(run_session(ledger, session, on_start=lambda _, tally: tallies.append(tally)))
    assert seen[:2] == [("", True), (f"{outcome.reason}: {outcome.message}", False)]
    assert tallies[0].trouble_since_us is None
