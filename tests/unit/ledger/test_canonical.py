"""One value has one byte form, and nothing that JSON can say is lost in it."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.ledger.canonical import (
    NESTING_MAX,
    JsonValue,
    canonical_bytes,
    canonical_text,
    digest_of_bytes,
    digest_of_value,
    escaped_text,
    parse_json,
    printable,
    stored_json,
    unescaped_text,
)

TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates and NUL included
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4))


def joined(value: Any) -> Any:
    """The value as JSON reads it: two surrogates that form a pair are one character."""
    return json.loads(json.dumps(value))


def types_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: types_of(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [types_of(inner) for inner in value]
    return (type(value), repr(value))


@given(VALUES)
def test_a_value_comes_back_from_its_canonical_form_with_its_types(value: Any) -> None:
    value = joined(value)
    assert types_of(parse_json(canonical_text(value))) == types_of(value)


@given(VALUES)
def test_the_canonical_form_of_what_was_parsed_is_the_same_again(value: Any) -> None:
    text = canonical_text(joined(value))
    assert canonical_text(parse_json(text)) == text
    assert canonical_text(parse_json(text.encode("ascii"))) == text


@given(st.dictionaries(TEXT, LEAVES, min_size=2, max_size=6), st.randoms())
def test_the_order_of_keys_does_not_count(value: Any, random: Any) -> None:
    keys = list(value)
    random.shuffle(keys)
    assert canonical_bytes({key: value[key] for key in keys}) == canonical_bytes(value)


@given(VALUES)
def test_the_canonical_form_is_one_line_of_ascii(value: Any) -> None:
    text = canonical_text(value)
    assert text.isascii()
    assert text.isprintable()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None]}, '{"a":[true,null],"b":1}'),
        ("\ud800", '"\\ud800"'),
        ("\x00", '"\\u0000"'),
        ("é", '"\\u00e9"'),
        ((1, 2), "[1,2]"),
        (10**40, "1" + "0" * 40),
        (-0.0, "-0.0"),
        (0.1, "0.1"),
        (1e100, "1e+100"),
    ],
)
def test_the_canonical_form_is_the_one_that_version_1_promises(value: Any, text: Any) -> None:
    assert canonical_text(value) == text


def test_keys_are_sorted_by_code_point_and_not_by_utf16_unit() -> None:
    assert canonical_text({"\U0001f600": 1, "\uffff": 2}) == '{"\\uffff":2,"\\ud83d\\ude00":1}'


def test_values_that_python_holds_equal_have_forms_of_their_own() -> None:
    different: list[Any] = [1, 1.0, True, "1", [1], {"1": 1}, None, 0, False, "", [], {}]
    assert len({canonical_text(value) for value in different}) == len(different)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")], {"a": float("nan")}])
def test_what_is_not_a_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_text(value)


@pytest.mark.parametrize("value", [{1: "a"}, {"a": {None: 1}}, [{"a": [{True: 1}]}], {"a": OrderedDict({1: "x"})}])
def test_a_key_that_is_not_text_is_refused_at_every_depth(value: Any) -> None:
    with pytest.raises(TypeError, match="must be a string"):
        canonical_text(value)


@pytest.mark.parametrize("value", [b"bytes", {"a": {1, 2}}, object()])
def test_what_has_no_json_form_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        canonical_text(value)


def nested(levels: int) -> Any:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def test_the_depth_that_can_be_kept_is_a_number_and_beyond_it_is_a_value_error() -> None:
    assert canonical_text(nested(NESTING_MAX))
    with pytest.raises(ValueError, match="nested too deeply"):
        canonical_text(nested(NESTING_MAX + 1))


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="nested too deeply"):
        canonical_text(value)


def test_text_that_is_nested_without_end_is_a_value_error_and_no_crash() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 100_000)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "-Infinity", "1e999", "-1e999", '{"a": 1e400}'])
def test_numbers_beyond_json_are_not_parsed(text: Any) -> None:
    with pytest.raises(ValueError, match=r"is not JSON|beyond the range"):
        parse_json(text)


def test_an_object_that_says_a_key_twice_is_not_parsed() -> None:
    with pytest.raises(ValueError, match="'a' stands twice"):
        parse_json('{"b": {"a": 1, "a": 2}}')


def test_an_integer_keeps_all_of_its_digits_up_to_the_limit() -> None:
    digits = "9" * 4300
    assert canonical_text(parse_json(digits)) == digits
    with pytest.raises(ValueError, match="digit"):
        parse_json(digits + "9")


def test_a_digest_names_its_algorithm_and_is_over_the_canonical_bytes() -> None:
    assert digest_of_value({"a": 1}) == "sha256:" + hashlib.sha256(b'{"a":1}').hexdigest()
    assert digest_of_bytes(memoryview(b"")) == digest_of_bytes(bytearray()) == "sha256:" + hashlib.sha256().hexdigest()


@given(TEXT)
def test_printable_text_can_be_written_in_utf8_and_sends_no_command_to_a_terminal(text: Any) -> None:
    shown = printable(text)
    shown.encode("utf-8")
    assert all(character.isprintable() or character in "\n\t\ufffd" for character in shown)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\ud800", "\ufffd"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202e", "\\u202e"),
        ("\x00\x7f", "\\x00\\x7f"),
        ("zwölf\n\täöü 😀", "zwölf\n\täöü 😀"),
    ],
)
def test_printable_text_shows_what_cannot_be_printed(text: Any, shown: Any) -> None:
    assert printable(text) == shown


def test_a_split_pair_of_surrogates_is_joined() -> None:
    split = "\ud83d" + "\ude00"
    assert printable(split) == "😀"
    assert canonical_text(split) == canonical_text("😀")


@given(TEXT | st.text(st.sampled_from(["\\", "u", "d", "8", "0", "\x00", "\ud800"])))
def test_any_text_is_kept_as_one_that_a_database_can_hold(text: str) -> None:
    stored = escaped_text(text)
    stored.encode("utf-8")
    assert "\x00" not in stored
    assert unescaped_text(stored) == text


@pytest.mark.parametrize("text", ["q-1", "Größe 3", "日本"])
def test_an_ordinary_id_is_kept_as_it_is(text: str) -> None:
    assert escaped_text(text) == text


@given(VALUES)
def test_what_was_stored_is_read_back(value: JsonValue) -> None:
    assert stored_json(canonical_text(value)) == value


@pytest.mark.parametrize("text", ["", "{", "{}x", "{} ", " {}", "[1,]", "nul", "[" * 100_000])
def test_what_was_never_stored_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        stored_json(text)
