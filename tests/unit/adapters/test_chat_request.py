from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from tallystick.adapters.chat_request import holds_only_text
from tallystick.adapters.chat_target import ChatTarget, from_work_order
from tallystick.adapters.errors import CaseUnfit
from tallystick.ledger.canonical import JsonValue, canonical_text, parse_json
from tallystick.ledger.errors import SecretMissing, WorkOrderInvalid
from tallystick.ledger.states import IfUnknown
from tallystick.runner.protocols import Case, Exchange, Turn

from .makers import make_case, make_slot


def make(**options: Any) -> ChatTarget:
    table = {"url": "http://127.0.0.1:1/v1/chat/completions", "model": "small", **options}
    return from_work_order(table, folder=Path(), place="target")


def body_of(target: ChatTarget, case: Case | None = None, *, turn: Turn | None = None) -> dict[str, Any]:
    slot = attrs.evolve(make_slot(case), turn=turn)
    body: dict[str, Any] = json.loads(target.prepare(slot).payload)
    return body


def test_request_has_the_model_the_system_message_and_the_case() -> None:
    assert body_of(make(system="Be brief."), make_case("Hello?")) == {
        "model": "small",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}],
    }


def test_what_the_table_says_of_the_reply_goes_into_the_body() -> None:
    tool = {"type": "function", "function": {"name": "look_up"}}
    told: dict[str, Any] = {
        "temperature": 0,
        "max_completion_tokens": 40,
        "seed": 7,
        "tools": [tool],
        "response_format": {"type": "json_object"},
    }
    body = body_of(make(**told, extra={"top_p": 0.5, "stop": ["{{not a placeholder}}"]}))
    assert body | told == body
    assert (body["top_p"], body["stop"]) == (0.5, ["{{not a placeholder}}"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, {}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"stream": True, "stream_usage": False}, {"stream": True}),
    ],
    ids=["whole", "stream", "stream without usage"],
)
def test_stream_is_asked_for_with_its_usage(options: dict[str, Any], told: dict[str, Any]) -> None:
    body = body_of(make(**options))
    assert {key: value for key, value in body.items() if key.startswith("stream")} == told


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        (12, "12"),
        (None, "null"),
        ({"b": 1, "a": [True]}, '{"a":[true],"b":1}'),
        (["a", "b"], '["a","b"]'),
        ([{"type": "text", "text": "a part"}], [{"type": "text", "text": "a part"}]),
        ([], "[]"),
    ],
    ids=repr,
)
def test_content_is_text_or_a_list_of_parts_and_everything_else_its_json(value: JsonValue, content: Any) -> None:
    for target in (make(), make(message="{{input}}")):
        assert body_of(target, make_case(value))["messages"] == [{"role": "user", "content": content}]


def test_message_and_its_parts_are_templates() -> None:
    parts = [
        {"type": "text", "text": "What is it? {{input.hint}}"},
        {"type": "image_url", "image_url": {"url": "{{input.url}}"}},
    ]
    body = body_of(make(message=parts), make_case({"hint": "Round.", "url": "http://x/y.png"}))
    assert body["messages"][0]["content"] == [
        {"type": "text", "text": "What is it? Round."},
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
    ]


def test_whole_list_of_messages_can_be_a_template_behind_the_system_message() -> None:
    shots = [
        {"role": "user", "content": "2+2"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "{{input}}"},
    ]
    body = body_of(make(system="Add.", messages=shots), make_case("3+3"))
    assert [one["content"] for one in body["messages"]] == ["Add.", "2+2", "4", "3+3"]
    given = body_of(make(system="Add.", messages="{{input.said}}"), make_case({"said": shots[:2]}))
    assert given["messages"] == [{"role": "system", "content": "Add."}, *shots[:2]]
    with pytest.raises(CaseUnfit, match=r"the odd one.*gives no list of messages"):
        body_of(make(messages="{{input}}"), make_case("no list", id="the odd one"))


@pytest.mark.parametrize("text", ["{# x }", "{{user}}", "{{input}}", "${HOME}", "\ud800", "\x00", "é\r\n"])
def test_c37_text_of_a_case_is_never_a_template(text: str) -> None:
    body = body_of(make(system="S {{input}}", message="M {{input}}"), make_case(text))
    assert [one["content"] for one in body["messages"]] == [f"S {text}", f"M {text}"]


def test_conversation_is_carried_with_every_message_rendered_as_it_was_sent() -> None:
    history = (Exchange("Hi", "Hello!"), Exchange("Sum?", None), Exchange("And?", {"sum": 4}))
    turn = Turn("s-1", 4, "Bye", history)
    told = [("user", "Hi"), ("assistant", "Hello!"), ("user", "Sum?"), ("assistant", "")]
    told += [("user", "And?"), ("assistant", '{"sum":4}'), ("user", "Bye")]
    plain = body_of(make(), turn=turn)["messages"]
    assert [(one["role"], one["content"]) for one in plain] == told
    numbered = body_of(make(message="{{turn}}: {{message}}"), turn=turn)["messages"]
    assert [one["content"] for one in numbered if one["role"] == "user"] == ["1: Hi", "2: Sum?", "3: And?", "4: Bye"]


def test_whole_messages_are_carried_as_they_are_so_that_tools_can_be_answered() -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function"}]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "21 degrees"}
    turn = Turn("s-1", 2, [result, {"role": "user", "content": "Go on."}], (Exchange("How warm?", asked),))
    messages = body_of(make(answer="message"), turn=turn)["messages"]
    assert messages == [{"role": "user", "content": "How warm?"}, asked, result, {"role": "user", "content": "Go on."}]


def test_target_hears_a_turn_unless_its_own_templates_leave_it_out() -> None:
    assert (make().takes_turns, make().needs_turns) == (True, False)
    deaf, needing = make(message="{{input.question}}"), make(message="{{message}}")
    assert (deaf.takes_turns, deaf.needs_turns) == (False, False)
    assert (needing.takes_turns, needing.needs_turns) == (True, True)


def test_bytes_do_not_depend_on_the_order_in_which_the_table_is_written() -> None:
    """A run that is resumed from its ledger has its table in another order."""
    schema = {"type": "json_schema", "json_schema": {"name": "v", "schema": {"z": 1, "a": 2}}}
    options: dict[str, Any] = {"response_format": schema, "seed": 1, "extra": {"b": {"y": 1, "x": 2}, "a": 1}}
    again: Any = parse_json(canonical_text(options))
    slot = make_slot()
    assert make(**options).prepare(slot).payload == make(**again).prepare(slot).payload


def test_schema_as_text_keeps_its_order() -> None:
    text = '{"type": "json_schema", "json_schema": {"schema": {"z": 1, "a": "\\u00e9"}}}'
    payload = make(response_format=text).prepare(make_slot()).payload
    assert b'"response_format":{"type":"json_schema","json_schema":{"schema":{"z":1,"a":"\\u00e9"}}}' in payload


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": '{"a": 1}'}, "target.tools: this text is not an array"),
        ({"tools": "[1]"}, "target.tools: this text is not an array of objects"),
        ({"response_format": "[]"}, "target.response_format: this text is not an object"),
        ({"response_format": '{"a": 1, "a": 2}'}, "target.response_format: this text is not JSON"),
        ({"message": "a", "messages": []}, "message and messages both say what is asked"),
        ({"messages": {"role": "user"}}, "target.messages: this is no list of messages"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "give the one that it knows"),
        ({"extra": {"seed": 1}}, "extra.seed: write seed beside extra"),
        ({"extra": {"n": 2}}, "extra.n: the target makes it itself"),
        ({"if_unknown": "query"}, 'no chat endpoint can be asked by request id; write "repeat" or "keep"'),
        ({"api_key": {"env": "K"}, "headers": {"authorization": {"env": "K"}}}, "both say the key"),
        ({"headers": {"Authorization": "Bearer sk-1"}}, "a secret would be stored"),
        ({"system": "{{inptu}}"}, "there is no placeholder"),
        ({"temprature": 1}, 'there is no such key. Did you mean "temperature"'),
        ({"accept": ["stop"]}, "target.accept.0"),
        ({"url": "ftp://x/"}, "is no address of a service"),
        ({"temperature": -1}, "target.temperature"),
        ({"model": ""}, "target.model"),
    ],
)
def test_fault_in_the_table_is_told_with_its_place(options: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkOrderInvalid, match=message.replace("[", r"\[").replace("(", r"\(")) as caught:
        make(**options)
    assert "\n" not in str(caught.value)


def test_lost_answer_is_asked_for_anew_unless_the_work_order_says_otherwise() -> None:
    assert make().if_unknown is IfUnknown.REPEAT
    assert make(if_unknown="keep").if_unknown is IfUnknown.KEEP


def test_key_that_is_missing_is_named_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODEL_KEY", raising=False)
    with pytest.raises(SecretMissing, match=r"target\.api_key: the environment variable MODEL_KEY is not set"):
        make(api_key={"env": "MODEL_KEY"}).check()


def test_identity_is_what_the_reply_depends_on_and_neither_key_nor_throughput() -> None:
    plain = make().identity()
    assert plain == {"kind": "chat", "url": "http://127.0.0.1:1/v1/chat/completions", "model": "small"}
    free: dict[str, Any] = {"api_key": {"env": "K"}, "connections": 3, "tokens_in_max": 9, "if_unknown": "keep"}
    assert make(**free).identity() == plain
    others: list[dict[str, Any]] = [
        {"system": "x"},
        {"seed": 1},
        {"extra": {"top_p": 1}},
        {"accept": []},
        {"stream": True},
    ]
    for options in others:
        assert make(**options).identity() != plain


@pytest.mark.parametrize(
    ("options", "is_text"),
    [
        ({}, True),
        ({"message": [{"type": "text", "text": "x"}]}, True),
        ({"message": [{"type": "image_url", "image_url": {"url": "http://x/"}}]}, False),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, True),
        ({"tools": [{"type": "web_search"}]}, False),
        ({"extra": {"web_search_options": {}}}, False),
        ({"extra": {"top_p": 1}}, True),
    ],
)
def test_only_text_is_as_many_tokens_as_bytes_at_most(options: dict[str, Any], is_text: bool) -> None:
    assert holds_only_text(make(**options).prepare(make_slot()).payload) is is_text
