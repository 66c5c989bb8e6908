from __future__ import annotations

from typing import Any

import jsonpath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.adapters.paths import read_path
from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.runner.protocols import MISSING

DOCUMENT: Any = {
    "a": {"b": [10, {"c": None}], "": "empty", "x-y": 1, "a/b": 2, "m~n": 3, "0": "zero"},
    "false": False,
    "list": [{"v": 1}, {"v": 2}, {"w": 3}],
    "$": "dollar",
}


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("$", DOCUMENT),
        ("$.a.b[0]", 10),
        ("$.a.b[-1].c", None),
        ("$['a'][\"b\"][0]", 10),
        ("$['false']", False),
        ("$.a['']", "empty"),
        ("$.a.x-y", 1),
        ("$.a.b[2]", MISSING),
        ("$.a.b[-3]", MISSING),
        ("$.a.b.c", MISSING),
        ("$.a[0]", MISSING),
        ("$.a.b[0].c", MISSING),
        ("$.nothing", MISSING),
        ("/a/b/0", 10),
        ("/a/b/1/c", None),
        ("/a/", "empty"),
        ("/a/a~1b", 2),
        ("/a/m~0n", 3),
        ("/a/0", "zero"),
        ("/a/b/-1", MISSING),
        ("/a/b/00", MISSING),
        ("/a/b/x", MISSING),
        ("/nothing", MISSING),
        ("$.list[*].v", [1, 2]),
        ("$..c", [None]),
        ("$.list[?@.v > 1].v", [2]),
        ("$.list[*].nothing", MISSING),
        ("$.list[0:2].v", [1, 2]),
    ],
)
def test_path_gives_the_value_the_list_or_nothing(path: str, wanted: Any) -> None:
    found = read_path(path, place="answer").find(DOCUMENT)
    assert found is wanted if wanted is MISSING else found == wanted


@pytest.mark.parametrize("path", ["answer", "", "a.b", "$.a[", "$[", "$.a[?]", "$..", "$.a b"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(WorkOrderInvalid) as caught:
        read_path(path, place="target.answer")
    assert caught.value.place == "target.answer"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("document", [None, 1, "text", True, [], {}])
def test_path_into_what_has_no_inside_finds_nothing(document: Any) -> None:
    for path in ("$.a", "/a", "$[0]", "/0", "$.a[*].b"):
        assert read_path(path, place="answer").find(document) is MISSING


NAMES = st.sampled_from(["a", "b", "c"])
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
)
STEPS = st.lists(NAMES.map(lambda name: f".{name}") | st.integers(-3, 3).map(lambda index: f"[{index}]"), max_size=4)


@given(DOCUMENTS, STEPS)
def test_our_walk_finds_what_the_library_finds(document: Any, steps: list[str]) -> None:
    path = "$" + "".join(steps)
    found = read_path(path, place="answer").find(document)
    there = jsonpath.compile(path).findall(document) if isinstance(document, dict | list) else []
    if not steps:
        assert found == document
    elif not there:
        assert found is MISSING
    else:
        assert [found] == there
