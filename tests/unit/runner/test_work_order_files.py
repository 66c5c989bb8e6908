"""The place of a fault is its line, and no line is given rather than a wrong one."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.runner.work_order_files import Place, parse_work_order

TEXT = """\
# [execution] in a comment is no table
version = 1
name = '''
[execution]
concurrency = 1
'''

[cases]
items = [
  { id = "a", input = 1 },
  { id = "b", input = 2 },
]

[variants."a.b".target]
kind = "http"
headers.Authorization = { env = "KEY" }

[execution]
concurrency = 16
backoff = { first_seconds = 1, max_seconds = 2 }

[[judges]]
kind = "exact"
[[judges]]
kind = "loose"
name = "[execution]"
"""


def line_at(*keys: str | int) -> int:
    lines = str(Place("o", keys, text=TEXT)).split(": ")[0].removeprefix("o").removeprefix(":")
    return int(lines or 0)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (("version",), 2),
        (("name",), 3),
        (("cases",), 8),
        (("cases", "items"), 9),
        (("cases", "items", 1, "id"), 9),
        (("variants", "a.b", "target", "kind"), 15),
        (("variants", "a.b", "target", "headers", "Authorization", "env"), 16),
        (("execution",), 18),
        (("execution", "concurrency"), 19),
        (("execution", "backoff", "max_seconds"), 20),
        (("judges", 0, "kind"), 23),
        (("judges", 1), 24),
        (("judges", 1, "name"), 26),
    ],
)
def test_a_key_is_found_on_the_line_on_which_its_value_begins(keys: tuple[str | int, ...], line: int) -> None:
    assert line_at(*keys) == line


def test_a_key_that_is_not_there_is_placed_at_its_table() -> None:
    assert line_at("execution", "nothing") == 18
    assert line_at("judges", 1, "nothing") == 24
    assert line_at("nothing") == 0


def test_no_line_is_given_where_it_would_cost_too_much_to_find() -> None:
    text = "items = [\n" + "  1,\n" * 5_000 + "]\nlast = 1\n"
    assert str(Place("o", ("items",), text=text)) in ("o: items", "o:1: items")
    assert str(Place("o", ("last",), text=text)) in ("o: last", f"o:{5_003}: last")


KEYS = st.text("abcdefgh", min_size=1, max_size=4)
SCALARS = st.integers(0, 9).map(str) | st.sampled_from(['"x"', "'''\ny\nz'''", "[\n1,\n2]", "{ k = 1 }"])


@given(st.lists(st.tuples(KEYS, SCALARS), min_size=1, max_size=12, unique_by=lambda pair: pair[0]))
def test_every_key_of_a_flat_text_is_found(pairs: list[tuple[str, str]]) -> None:
    text, lines = "", {}
    for key, value in pairs:
        lines[key] = text.count("\n") + 1
        text += f"{key} = {value}\n\n"
    tomllib.loads(text)
    assert {key: str(Place("o", (key,), text=text)) for key in lines} == {
        key: f"o:{line}: {key}" for key, line in lines.items()
    }


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        (("a", "b"), "o: a.b"),
        (("judges", 0, "kind"), "o: judges[0].kind"),
        (("variants", "a.b", "x"), 'o: variants."a.b".x'),
        (("new\nline",), 'o: "new\\nline"'),
        ((), "o"),
    ],
)
def test_a_place_is_one_line_of_keys(keys: tuple[str | int, ...], shown: str) -> None:
    assert str(Place("o", keys)) == shown


def test_a_refusal_carries_place_and_remedy() -> None:
    with pytest.raises(WorkOrderInvalid) as caught:
        Place("o").at("a", 1).refuse("is wrong", "Correct it")
    assert (caught.value.place, str(caught.value)) == ("o: a[1]", "o: a[1]: is wrong. Correct it")


@pytest.mark.parametrize("source", ["o.json", "O.JSON"])
def test_json_is_told_by_the_suffix(source: str) -> None:
    assert parse_work_order('{"a": [1, 2.5, null]}', source=source)[0] == {"a": [1, 2.5, None]}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("2020-01-01", "a date or time without quotes"),
        ("07:32:00", "a date or time without quotes"),
        ("1979-05-27T07:32:00Z", "a date or time without quotes"),
        ("nan", "nan is not a number that can be kept"),
        ("[-inf]", "-inf is not a number that can be kept"),
    ],
)
def test_what_json_cannot_say_is_refused(value: str, told: str) -> None:
    with pytest.raises(WorkOrderInvalid, match=told):
        parse_work_order(f"[target]\nx = {value}\n", source="o.toml")


def test_windows_line_ends_are_read() -> None:
    document: Any = parse_work_order("version = 1\r\n[a]\r\nb = 2\r\n", source="o.toml")[0]
    assert document == {"version": 1, "a": {"b": 2}}
