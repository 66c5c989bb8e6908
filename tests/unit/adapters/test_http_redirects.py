from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tallystick.adapters.http_target import from_work_order
from tallystick.runner.protocols import Outcome

from .http_makers import ANSWERED, FAILED, ask
from .makers import Service


def test_c29_redirect_is_not_followed_by_default(service: Service) -> None:
    outcome = ask(service, {"redirect": "/elsewhere?token=1"})
    assert (outcome.state, outcome.reason, outcome.status) == (FAILED, "http.redirect", 307)
    assert outcome.message == f"307: a redirect to {service.url}/elsewhere, which is not followed"
    assert len(service.lines()) == 1


@pytest.mark.parametrize("host", ["http://127.0.0.1:1/x", "https://127.0.0.1:{port}/x", "//localhost:{port}/x"])
def test_c29_redirect_to_another_origin_is_never_followed(service: Service, host: str) -> None:
    outcome = ask(service, {"redirect": host.replace("{port}", str(service.port))}, follow_redirects=True)
    assert (outcome.state, outcome.reason) == (FAILED, "http.redirect")
    assert "another origin" in outcome.message
    assert len(service.lines()) == outcome.wire_sends == 1


def redirecting(service: Service, *hops: dict[str, Any], **options: Any) -> Outcome:
    return ask(service, {"sequence": [*hops]}, follow_redirects=True, **options)


def test_c29_redirect_within_the_origin_is_followed_and_each_hop_counted(service: Service) -> None:
    outcome = redirecting(service, {"redirect": "/b"}, {"redirect": "/c", "status": 308}, {"answer": "there"})
    assert (outcome.state, outcome.answer, outcome.wire_sends) == (ANSWERED, "there", 3)
    lines = service.lines()
    assert [line["path"] for line in lines] == ["/ask", "/b", "/c"]
    assert len({line["request_id"] for line in lines}) == len({line["payload_digest"] for line in lines}) == 1


def test_c29_redirect_loop_is_bounded(service: Service) -> None:
    outcome = redirecting(service, {"redirect": "/ask"})
    assert (outcome.state, outcome.reason, outcome.message) == (FAILED, "http.redirect", "307: more than 5 redirects")
    assert outcome.wire_sends == len(service.lines()) == 6


@pytest.mark.parametrize("status", [301, 302])
def test_c29_redirect_that_would_turn_a_post_into_a_get_is_not_followed(service: Service, status: int) -> None:
    outcome = redirecting(service, {"redirect": "/b", "status": status})
    assert (outcome.state, outcome.reason) == (FAILED, "http.redirect")
    assert len(service.lines()) == 1


def test_see_other_is_fetched_by_get(service: Service) -> None:
    outcome = redirecting(service, {"redirect": '/b?answer="seen"', "status": 303})
    assert (outcome.state, outcome.answer) == (ANSWERED, "seen")
    assert [line["method"] for line in service.lines()] == ["POST", "GET"]


@pytest.mark.parametrize(("follows", "sends"), [(False, 1), (True, 6)])
def test_target_says_how_many_requests_a_dispatch_may_be(service: Service, follows: bool, sends: int) -> None:
    table = {"url": f"{service.url}/ask", "json": {}, "follow_redirects": follows}
    assert from_work_order(table, folder=Path(), place="target").wire_sends_max == sends
