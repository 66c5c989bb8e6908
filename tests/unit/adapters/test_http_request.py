from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from tallystick.adapters.errors import CaseUnfit
from tallystick.ledger.errors import SecretMissing
from tallystick.runner.protocols import Outcome

from .http_makers import ANSWERED, echo_server, listening, make
from .makers import dispatch_case, make_case, make_dispatching, make_slot, run


def sent_by(*, case: Any = None, **options: Any) -> dict[str, str]:
    """What arrives for a case."""
    seen: list[dict[str, str]] = []

    async def scenario() -> None:
        async with listening(echo_server(seen, lambda found: b'{"answer": 1}')) as url:
            path = options.pop("path", "/ask")
            target = make(url + path, **{"json": None, **options})
            await target.open()
            outcome, _ = await dispatch_case(target, case or make_case("a b&c=é/?"), request_id="req-1")
            assert outcome.state is ANSWERED, outcome
            await target.close()

    run(scenario())
    return seen[0]


def test_request_has_its_id_and_says_who_asks() -> None:
    sent = sent_by(json={"a": 1})
    assert sent["idempotency-key"] == "req-1"
    assert sent["content-type"] == "application/json"
    assert sent["accept-encoding"] == "gzip, deflate"
    assert sent["user-agent"] == "tallystick"
    assert sent_by(idempotency_header="X-Request-Id")["x-request-id"] == "req-1"


def test_url_parameters_and_form_are_filled_and_escaped() -> None:
    sent = sent_by(path="/m/{{input}}/x?v={{variant}}", params={"q": "{{input}}", "n": 3}, method="GET")
    assert sent["request-line"].startswith("GET /m/a%20b%26c%3D%C3%A9%2F%3F/x?v=default&q=")
    query = urlsplit(sent["request-line"].split()[1]).query
    assert parse_qsl(query) == [("v", "default"), ("q", "a b&c=é/?"), ("n", "3")]
    form = sent_by(form={"text": "{{input}}", "id": "{{case.id}}"})
    assert form["content-type"] == "application/x-www-form-urlencoded"
    assert parse_qsl(form["body"]) == [("text", "a b&c=é/?"), ("id", "case-1")]


def test_text_body_and_headers_are_filled() -> None:
    sent = sent_by(text="<{{input}}>", headers={"X-Case": "{{case.id}}", "X-Fixed": "1", "Content-Type": "text/x-own"})
    assert sent["body"].encode("latin-1").decode() == "<a b&c=é/?>"
    assert (sent["x-case"], sent["x-fixed"], sent["content-type"]) == ("case-1", "1", "text/x-own")


@pytest.mark.parametrize("value", ["a\r\nX-Other: 1", "a\x00b", "\x1b"], ids=repr)
def test_case_cannot_add_a_header(value: str) -> None:
    target = make("http://127.0.0.1:1/", json=None, headers={"X-Case": "{{input}}"})
    with pytest.raises(CaseUnfit, match='case "case-1" has control characters'):
        target.prepare(make_slot(make_case(value)))


def test_case_without_the_field_is_named() -> None:
    target = make("http://127.0.0.1:1/", json={"q": "{{metadata.question}}"})
    with pytest.raises(CaseUnfit, match=r'case "case-1" has no metadata.question'):
        target.prepare(make_slot())


def test_secret_goes_out_and_stands_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_KEY", "SK-CANARY-42")
    seen: list[dict[str, str]] = []

    def telltale(found: dict[str, str]) -> bytes:
        return json.dumps({"answer": f"you sent {found['authorization']} and {found['request-line']}"}).encode()

    async def scenario() -> tuple[Outcome, list[str]]:
        async with listening(echo_server(seen, telltale)) as url:
            target = make(
                url,
                json={"a": 1},
                headers={"Authorization": {"env": "SERVICE_KEY", "prefix": "Bearer "}},
                params={"key": {"env": "SERVICE_KEY"}},
            )
            await target.open()
            slot = make_slot()
            prepared = target.prepare(slot)
            dispatching = make_dispatching(slot)
            outcome = await target.dispatch(prepared, dispatching)
            await target.close()
            everything = [prepared, dispatching.progress, outcome, target.identity(), vars(target)]
            return outcome, [repr(thing) for thing in everything]

    outcome, everything = run(scenario())
    assert seen[0]["authorization"] == "Bearer SK-CANARY-42"
    assert "key=SK-CANARY-42" in seen[0]["request-line"]
    assert outcome.answer == "you sent Bearer *** and POST /?key=*** HTTP/1.1"
    assert [text for text in everything[:4] if "CANARY" in text] == []


def test_secret_that_is_not_set_is_named_before_any_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVICE_KEY", raising=False)
    target = make("http://127.0.0.1:1/", headers={"Authorization": {"env": "SERVICE_KEY"}})
    with pytest.raises(SecretMissing, match="environment variable SERVICE_KEY is not set") as caught:
        run(target.open())
    assert caught.value.variable == "SERVICE_KEY"
