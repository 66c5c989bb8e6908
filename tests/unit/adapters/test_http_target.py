from __future__ import annotations

from typing import Any

import pytest

from tallystick.ledger.errors import TargetNotFound, WorkOrderInvalid

from .http_makers import make
from .makers import run


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"url": "ftp://x/"}, 'target.url: "ftp://x/" is no address of a service'),
        ({"url": "http://user:pw@x/"}, "target.url: a URL with a user or password would be stored"),
        ({"url": "http://{{input}}/"}, "target.url: a placeholder cannot choose the host"),
        ({"url": "http://x:port/"}, 'target.url: "http://x:port/" is no URL'),
        ({"url": "http://x/{{inptu}}"}, 'there is no placeholder {{inptu}}. Did you mean "input"'),
        ({"json": {"a": ["{{user}}"]}}, "target.json.a[0]: there is no placeholder {{user}}"),
        ({"json": {"a{{input}}": 1}}, 'target.json: the key "a{{input}}" holds a placeholder'),
        ({"text": "x"}, "json and text both make the body"),
        ({"json": None, "text": "x", "method": "GET"}, 'method = "GET" has none'),
        ({"headers": {"Authorization": "Bearer x"}}, "target.headers.Authorization: a secret would be stored"),
        ({"headers": {"Content-Length": "1"}}, "tallystick sets this header itself"),
        ({"headers": {"Idempotency-Key": "1"}}, "tallystick sets this header itself"),
        ({"headers": {"a b": "1"}}, "this is no name of a header"),
        ({"headers": {"a": "1\r\nb: 2"}}, "a header holds one line"),
        ({"if_unknown": "query"}, 'if_unknown = "query" and the table query go together'),
        ({"query": {"url": "http://x/"}}, 'if_unknown = "query" and the table query go together'),
        (
            {"if_unknown": "query", "query": {"url": "http://other/{{request_id}}"}},
            "http://other is not the target's own origin",
        ),
        ({"if_unknown": "query", "query": {"url": "http://x/{{input}}"}}, "no URL for a request id"),
        ({"answer": "answer"}, 'target.answer: "answer" is not a path'),
        ({"answer": "$.a["}, 'target.answer: "$.a[" is not a JSONPath'),
        ({"usage": {}}, "target.usage: no path is given"),
        ({"usage": {"tokens": "$.a"}}, 'target.usage.tokens: there is no such key. Did you mean "tokens_in"'),
        ({"conections": 3}, 'target.conections: there is no such key. Did you mean "connections"'),
        ({"connections": "3"}, "target.connections: '3' cannot stand here"),
        ({"method": "FETCH"}, "target.method: 'FETCH' is not known here"),
    ],
    ids=str,
)
def test_table_with_a_fault_is_refused_in_one_line(options: dict[str, Any], text: str) -> None:
    with pytest.raises(WorkOrderInvalid) as caught:
        make(options.pop("url", "http://x/"), **options)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.place.startswith("target")


def test_certificates_that_are_not_there_are_told_before_any_call() -> None:
    with pytest.raises(TargetNotFound, match=r"target.ca_file: no.pem cannot be read"):
        run(make("https://127.0.0.1:1/", ca_file="no.pem").open())


def test_identity_holds_what_an_answer_depends_on_and_no_more() -> None:
    url = "http://x/"
    same = {"connections": 3, "connect_seconds": 1.0, "if_unknown": "repeat", "method": "POST", "body_bytes_max": 10}
    assert make(url).identity() == make(url, **same).identity()
    for other in ({"answer": "$.b"}, {"json": {"a": 1}}, {"headers": {"X": "1"}}, {"error": "$.e"}, {"version": "2"}):
        assert make(url).identity() != make(url, **other).identity()
    secret = make(url, headers={"Authorization": {"env": "KEY", "prefix": "Bearer "}}).identity()
    assert secret["headers"] == {"Authorization": {"env": "KEY", "prefix": "Bearer "}}
