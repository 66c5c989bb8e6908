"""E07: killed at each step of a turn, under each policy; and with a service whose answers show a mix-up of sessions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from .harness import Site
from .invariants import check_invariants, rows
from .talks import Sessions, asked, converse, http_talks, said, session_order, talk

TURNS: Final = 3
EACH_TURN: Final = (
    *("dispatch.intent.before", "dispatch.intent.inside", "dispatch.intent.committed", "dispatch.sent"),
    *("dispatch.outcome.inside", "dispatch.outcome.committed"),
)
DEATHS: Final = [
    *((point, 2, policy) for point in EACH_TURN for policy in ("resend", "query")),
    *((point, turn, "repeat") for point in EACH_TURN for turn in (1, TURNS)),
    *((point, 1, "query") for point in ("session.begun", "turn.committed")),
    ("judgment.before", 1, "resend"),
]


@pytest.mark.parametrize(("point", "passage", "if_unknown"), DEATHS)
def test_e07_death_in_a_conversation_loses_no_turn_and_asks_none_twice(
    site: Site, point: str, passage: int, if_unknown: str
) -> None:
    messages = [said(text, remember=True) for text in "abc"]
    site.order(http_talks(site, [talk(*messages)], if_unknown=if_unknown, attempts_max=9))
    site.run(crashpoint=f"{point}@{passage}").died_at_its_point()
    check_invariants(site.ledger, site.requests(), at_rest=False)

    ended = site.run().ended()

    # A query for what never was sent proves nothing: it may be on its way.
    never_sent = if_unknown == "query" and point in ("dispatch.intent.committed", "session.begun")
    assert ended == (3 if never_sent else 0)
    check_invariants(site.ledger, site.requests())
    if never_sent:
        return
    assert site.counts() == {"selected": 1}
    ((newest,),) = rows(site.ledger, "SELECT max(attempt_no) FROM attempts")
    answers = rows(site.ledger, "SELECT turn, answer FROM turns WHERE attempt_no = ? ORDER BY turn", newest)
    assert answers == [(1, '"a"'), (2, '"b"'), (3, '"c"')]
    was_lost = point in ("dispatch.sent", "dispatch.outcome.inside") and if_unknown != "query"
    assert site.service.received() == TURNS + was_lost, "only a turn whose outcome is not known is asked again"
    assert rows(site.ledger, "SELECT count(*) FROM dispatches WHERE replay = 1") == [(0,)]


@pytest.fixture
def sessions(site: Site) -> Iterator[Sessions]:
    made = Sessions(site.folder)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("resuming", ["checkpoint", "restart"])
@pytest.mark.parametrize(
    ("point", "passage"),
    [("session.begun", 1), *(("turn.committed", turn) for turn in (1, 2)), ("dispatch.sent", 2), ("dispatch.sent", 3)],
)
def test_e07_death_with_a_target_that_keeps_state_never_mixes_two_sessions(
    site: Site, sessions: Sessions, point: str, passage: int, resuming: str
) -> None:
    session_order(site, sessions, ["a", "b", "c"], resuming=resuming)
    converse(site, crashpoint=f"{point}@{passage}").died_at_its_point()
    check_invariants(site.ledger, site.requests(), at_rest=False)

    assert converse(site).ended() == 0

    assert site.only("talk").attempts[-1].answer == '"a+b+c"'
    committed = passage if point == "turn.committed" else passage - 1
    again = committed if resuming == "restart" else 0
    assert rows(site.ledger, "SELECT count(*) FROM dispatches WHERE replay = 1") == [(again,)]
    assert len(asked(site)) == TURNS + again + (point == "dispatch.sent")
    check_invariants(site.ledger, site.requests())


def test_e07_death_after_a_session_was_restored_restores_it_again(site: Site, sessions: Sessions) -> None:
    session_order(site, sessions, ["a", "b", "c"], resuming="checkpoint", solitary_deaths_max=9)
    converse(site, crashpoint="turn.committed@2").died_at_its_point()
    for _ in range(2):
        converse(site, crashpoint="session.restored").died_at_its_point()

    assert converse(site).ended() == 0

    assert asked(site) == [(1, "a"), (2, "b"), (3, "c")]
    assert [attempt.state for attempt in site.only("talk").attempts] == ["interrupted"] * 3 + ["observed"]
    check_invariants(site.ledger, site.requests())
