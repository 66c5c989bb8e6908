from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.adapters.errors import CaseUnfit
from tallystick.adapters.templates import read_json_template, read_text_template
from tallystick.ledger.canonical import JsonValue
from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.runner.protocols import Exchange, Turn

from .makers import make_case, make_slot

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def rendered(template: JsonValue, value: JsonValue = "hello", *, tag: JsonValue = None) -> Any:
    slot = make_slot(make_case(value, tag=tag), variant="old", repetition=2)
    return json.loads(read_json_template(template, place="json").render(slot))


@pytest.mark.parametrize(
    ("template", "value", "wanted"),
    [
        ("{{input}}", {"a": [1, None]}, {"a": [1, None]}),
        ("{{ input }}", False, False),
        ("<{{input}}>", "x", "<x>"),
        ("<{{input}}>", 1.5, "<1.5>"),
        ("<{{input}}>", None, "<null>"),
        ("<{{input}}>", {"b": 1, "a": "é"}, '<{"a":"\\u00e9","b":1}>'),
        ("{{input}}{{input}}", "x", "xx"),
        ("{{input.turns.1}}", {"turns": ["a", "b"]}, "b"),
        (
            {"k": ["{{case.id}}", "{{variant}}", "{{repetition}}", "{{run_id}}"]},
            0,
            {"k": ["case-1", "old", 2, "run-1"]},
        ),
        ("{{metadata.tag}}", 0, {"deep": 1}),
        ("{{metadata.tag.deep}}", 0, 1),
        ('{{"{{"}}input}}', 0, "{{input}}"),
        ({}, 0, {}),
        ([], 0, []),
        ([{}, [], "", None, True, 1], 0, [{}, [], "", None, True, 1]),
        ("no placeholder } }} { %s $x", 0, "no placeholder } }} { %s $x"),
    ],
    ids=str,
)
def test_placeholders_are_replaced_by_values(template: JsonValue, value: JsonValue, wanted: Any) -> None:
    assert rendered(template, value, tag={"deep": 1}) == wanted


@given(JSON)
def test_c37_value_is_put_in_as_it_is_and_never_looked_at_again(value: JsonValue) -> None:
    assert rendered({"a": "{{input}}"}, value) == {"a": value}


@given(st.text() | st.sampled_from(["{{input}}", '{{"x"}}', "\\", '"', "\ud800"]))
def test_c37_text_inside_a_text_is_put_in_as_it_is(text: str) -> None:
    assert rendered({"a": "<{{input}}|{{input}}>"}, text) == {"a": f"<{text}|{text}>"}
    assert read_text_template("<{{input}}>", place="text").render(make_slot(make_case(text))) == f"<{text}>"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{user}}", "there is no placeholder {{user}}. Known here: case.id, history, input"),
        ("{{inptu}}", 'there is no placeholder {{inptu}}. Did you mean "input"'),
        ("{{expected}}", "there is no placeholder {{expected}}"),
        ("{{case.expected}}", "there is no placeholder {{case.expected}}"),
        ("{{metadata}}", "there is no placeholder {{metadata}}"),
        ("{{input.}}", "there is no placeholder {{input.}}"),
        ("{{input", "{{ begins no placeholder"),
        ("{{input} }", "{{ begins no placeholder"),
        ("{{a b}}", "{{ begins no placeholder"),
        ("{{}}", "{{ begins no placeholder"),
    ],
)
def test_template_with_a_fault_is_refused_when_it_is_read(template: str, text: str) -> None:
    for read in (read_json_template, read_text_template):
        with pytest.raises(WorkOrderInvalid) as caught:
            read(template, place="target.json")
        assert text in str(caught.value)
        assert caught.value.place == "target.json"


@pytest.mark.parametrize(
    ("template", "value"),
    [("{{input.a}}", {}), ("{{input.a}}", "text"), ("{{input.2}}", [1]), ("{{input.-1}}", [1]), ("{{metadata.a}}", 1)],
)
def test_field_that_a_case_lacks_names_the_case(template: str, value: JsonValue) -> None:
    with pytest.raises(CaseUnfit, match='case "case-1" has no ') as caught:
        rendered(template, value)
    assert caught.value.case_id == "case-1"


def test_static_template_is_known_to_be_static() -> None:
    assert read_text_template('plain {{"{{"}}', place="t").is_static
    assert not read_text_template("{{variant}}", place="t").is_static


TURN = Turn("s-1", 3, {"say": "c"}, (Exchange("a", 1), Exchange("b", [2])))


def in_turn(document: JsonValue) -> JsonValue:
    slot = attrs.evolve(make_slot(make_case("x")), turn=TURN)
    found: JsonValue = json.loads(read_json_template(document, place="t").render(slot))
    return found


def test_what_is_said_in_a_turn_and_was_said_before_it_can_be_put_in() -> None:
    assert in_turn({"m": "{{message}}", "h": "{{history}}", "t": "{{turn}}", "s": "{{session}}"}) == {
        "m": {"say": "c"},
        "h": [{"message": "a", "answer": 1}, {"message": "b", "answer": [2]}],
        "t": 3,
        "s": "s-1",
    }


def test_the_whole_conversation_can_be_put_in_as_chat_interfaces_take_it() -> None:
    assert in_turn({"messages": "{{messages}}"}) == {
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": 1},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": [2]},
            {"role": "user", "content": {"say": "c"}},
        ]
    }


def test_a_turn_outside_of_a_conversation_is_the_cases_fault_and_named() -> None:
    with pytest.raises(CaseUnfit, match="stands for something in a conversation only"):
        rendered({"a": "{{message}}"}, "x")


def test_templates_say_what_they_ask_of_a_conversation() -> None:
    def needs(text: str) -> tuple[bool, bool]:
        found = read_json_template({"a": ["x", text]}, place="t").turn_needs
        assert found == read_text_template(text, place="t").turn_needs
        return found.needs, found.hears

    assert needs("{{input}}") == (False, False)
    assert needs("no {{session}}, turn {{turn}}") == (True, False)
    assert needs("{{history}}") == needs("{{message}}") == needs("{{messages}}") == (True, True)
