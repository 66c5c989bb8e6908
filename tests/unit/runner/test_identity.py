"""What an answer depends on cannot change under a run; what does not matter may."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.ledger.canonical import canonical_text, parse_json
from tallystick.ledger.errors import IdentityChanged, UsageError
from tallystick.ledger.states import IfUnknown
from tallystick.runner.case_files import survey
from tallystick.runner.errors import IdentityNewer
from tallystick.runner.identity import (
    IDENTITY_VERSION,
    Section,
    compare,
    evaluation_document,
    identity_digest,
    identity_document,
)
from tallystick.runner.identity_changes import refuse_changes
from tallystick.runner.protocols import Case, Target
from tallystick.runner.work_order import WorkOrder
from tallystick.runner.work_order_cases import cases
from tests.unit.runner.given import StillJudge, StillTarget, a_work_order

ROWS = [Case("a", 1), Case("b", 2)]


def document(rows: Any = ROWS, target: Target | None = None, **options: Any) -> dict[str, Any]:
    """The identity document as a ledger gives it back."""
    if "variants" not in options:
        options["variants"] = {"default": target or StillTarget()}
    order = a_work_order(cases=rows, **options)
    found = survey(order.cases)
    made = identity_document(order, options["variants"], found.value(), cases_count=found.count)
    read: Any = parse_json(canonical_text(made))
    return dict(read)


def lines(then: Any, now: Any, section: Section | None = None) -> list[str]:
    return [str(found) for found in compare(then, now) if section in (None, found.section)]


def test_an_unchanged_work_order_has_the_same_identity() -> None:
    assert lines(document(), document()) == []
    assert identity_digest(document()) == identity_digest(document())


def test_the_same_work_order_from_its_stored_document_has_the_same_identity() -> None:
    target = StillTarget()
    order = a_work_order(cases=ROWS, target=target, budgets={"usd": {"limit": "1", "kind": "soft"}}, concurrency=3)
    again = WorkOrder.from_document(order.to_document(), cases=cases(ROWS), targets={"default": target})
    digest = survey(order.cases).value()
    made = [identity_document(one, {"default": target}, digest) for one in (order, again)]
    assert compare(made[0], made[1]) == compare(made[1], made[0]) == ()
    assert identity_digest(made[0]) == identity_digest(made[1])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"target": StillTarget({"code": "sha256:9"})}, 'variants.default.target.code: "sha256:1" -> "sha256:9"'),
        ({"target": StillTarget(kind="http")}, 'variants.default.target.kind: "python" -> "http"'),
        ({"target": StillTarget({"code": "sha256:1", "url": "x"})}, 'variants.default.target.url: (absent) -> "x"'),
        ({"target": StillTarget({})}, 'variants.default.target.code: "sha256:1" -> (absent)'),
        ({"repetitions": 2}, "repetitions: 1 -> 2"),
        ({"name": "other"}, 'name: "bot" -> "other"'),
        ({"variants": {"new": StillTarget()}}, 'variants.new.target.code: (absent) -> "sha256:1"'),
        ({"rows": ROWS[:1]}, "cases.count: 2 -> 1"),
        ({"rows": [Case("a", 1), Case("b", 2.0)]}, 'cases.digest: "sha256:'),
        ({"rows": [Case("a", 1), Case("b", 2, expected=None)]}, 'cases.digest: "sha256:'),
        ({"rows": ROWS[::-1]}, 'cases.digest: "sha256:'),
    ],
)
def test_what_an_answer_depends_on_is_identity(options: dict[str, Any], told: str) -> None:
    then, now = document(), document(**options)
    assert any(line.startswith(told) for line in lines(then, now, Section.IDENTITY))
    assert lines(then, now, Section.LIMITS) == [] or "variants" in options
    assert identity_digest(then) != identity_digest(now)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"attempts_max": 9}, "attempts_max: 3 -> 9"),
        ({"dispatches_max": 9}, "dispatches_max: 5 -> 9"),
        ({"deadline_seconds": 9}, "deadline_seconds: 120.0 -> 9.0"),
        ({"solitary_deaths_max": 9}, "solitary_deaths_max: 3 -> 9"),
        ({"retry": ["http"]}, 'retry: [] -> ["http"]'),
        ({"budgets": {"dispatches": 900}}, "budgets.run.dispatches.limit: 800 -> 900"),
        ({"budgets": {"dispatches": {"limit": 800, "kind": "soft"}}}, 'budgets.run.dispatches.kind: "hard" -> "soft"'),
        ({"budgets": {}}, "budgets.run.dispatches.limit: 800 -> (absent)"),
        ({"budgets": {"dispatches": 800, "usd": {"limit": "2.5", "kind": "soft", "per": "variant"}}},
         'budgets.variant.default.usd.limit: (absent) -> "2.50"'),
    ],
)  # fmt: skip
def test_how_much_may_be_done_is_a_limit(options: dict[str, Any], told: str) -> None:
    then, now = document(budgets={"dispatches": 800}), document(**{"budgets": {"dispatches": 800}, **options})
    assert told in lines(then, now, Section.LIMITS)
    assert lines(then, now) == lines(then, now, Section.LIMITS)
    assert identity_digest(then) == identity_digest(now)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"concurrency": 64}, "concurrency: 8 -> 64"),
        ({"rate_per_second": 2}, "rate_per_second: null -> 2.0"),
        ({"grace_seconds": 2}, "grace_seconds: 10.0 -> 2.0"),
        ({"backoff": {"first_seconds": 2}}, "backoff_first_seconds: 1.0 -> 2.0"),
        ({"backoff": {"max_seconds": 2}}, "backoff_max_seconds: 60.0 -> 2.0"),
    ],
)
def test_how_fast_it_goes_is_throughput(options: dict[str, Any], told: str) -> None:
    then, now = document(), document(**options)
    assert lines(then, now) == lines(then, now, Section.THROUGHPUT) == [told]
    assert identity_digest(then) == identity_digest(now)
    refuse_changes("01j", compare(then, now))


def test_what_may_follow_an_unknown_outcome_does_not_change_under_a_run() -> None:
    then, now = document(), document(target=StillTarget(if_unknown=IfUnknown.RESEND))
    assert lines(then, now, Section.IDENTITY) == ['variants.default.if_unknown: "keep" -> "resend"']
    with pytest.raises(IdentityChanged, match="if_unknown"):
        refuse_changes("01j", compare(then, now))


def test_every_execution_option_has_a_section() -> None:
    then = document()
    sections = then["limits"].keys() | then["throughput"].keys()
    assert set(then["defaulted"]) == sections - {"budgets"}


def test_judges_are_no_part_of_a_runs_identity() -> None:
    assert lines(document(), document(judges=[StillJudge()])) == []
    assert identity_digest(document()) == identity_digest(document(judges=[StillJudge()]))


def test_an_evaluation_depends_on_each_judge_and_not_on_their_order() -> None:
    one, two = StillJudge("one"), StillJudge("two", scale=(0, 2))
    both = canonical_text(evaluation_document([one, two]))
    assert both == canonical_text(evaluation_document([two, one]))
    others = [[one], [one, StillJudge("two")], [one, StillJudge("two", scale=(0, 3))],
              [one, StillJudge("two", scale=(0, 2), said={"rubric": 2})]]  # fmt: skip
    assert len({both, *(canonical_text(evaluation_document(some)) for some in others)}) == 5


def test_a_new_default_of_ours_is_no_change() -> None:
    then, now = document(), document()
    now["limits"]["attempts_max"] = 7
    now["throughput"]["concurrency"] = 99
    assert lines(then, now) == []


def test_a_default_that_the_work_order_now_says_otherwise_is_a_change() -> None:
    assert lines(document(attempts_max=3), document(attempts_max=4)) == ["attempts_max: 3 -> 4"]
    assert lines(document(), document(attempts_max=4)) == ["attempts_max: 3 -> 4"]
    assert lines(document(attempts_max=4), document()) == ["attempts_max: 4 -> 3"]
    assert lines(document(), document(attempts_max=3)) == []


def test_a_key_that_a_newer_version_adds_with_a_default_is_no_change() -> None:
    then, now = document(), document()
    now["limits"]["patience_seconds"] = 5
    now["defaulted"].append("patience_seconds")
    assert lines(then, now) == []
    now["defaulted"].remove("patience_seconds")
    assert lines(then, now) == ["patience_seconds: (absent) -> 5"]


def test_a_key_that_a_newer_version_adds_has_in_older_documents_the_value_that_they_meant() -> None:
    added: Any = {(Section.IDENTITY, "language"): (IDENTITY_VERSION + 1, "en"), (Section.LIMITS, "patience"): (2, 5)}
    then, now = document(), document()
    now["identity"]["language"], now["limits"]["patience"] = "en", 5
    assert compare(then, now, added=added) == ()
    now["identity"]["language"], now["limits"]["patience"] = "de", 6
    assert [str(found) for found in compare(then, now, added=added)] == ['language: "en" -> "de"', "patience: 5 -> 6"]


def test_a_document_of_a_newer_version_is_refused() -> None:
    with pytest.raises(IdentityNewer) as caught:
        compare({**document(), "identity_version": IDENTITY_VERSION + 1}, document())
    assert caught.value.exit_status == 4
    assert caught.value.version == IDENTITY_VERSION + 1


def test_values_that_python_holds_equal_are_told_apart() -> None:
    then, now = (document(target=StillTarget({"x": value})) for value in (1, 1.0))
    assert lines(then, now) == ["variants.default.target.x: 1 -> 1.0"]
    then, now = (document(target=StillTarget({"x": value})) for value in (True, 1))
    assert lines(then, now) == ["variants.default.target.x: true -> 1"]


def test_null_an_empty_table_and_absence_are_told_apart() -> None:
    shown: dict[str, Any] = {"null": None, "{}": {}, "[]": [], '""': ""}
    for text, value in shown.items():
        now = document(target=StillTarget({"code": "sha256:1", "x": value}))
        assert lines(document(), now) == [f"variants.default.target.x: (absent) -> {text}"]
        assert lines(now, document()) == [f"variants.default.target.x: {text} -> (absent)"]


def test_a_value_is_cut_to_where_it_differs() -> None:
    then, now = (document(target=StillTarget({"template": "x" * 500 + mark + "y" * 500})) for mark in "AB")
    (line,) = lines(then, now)
    assert len(line) < 200
    before, after = line.removeprefix("variants.default.target.template: ").split(" -> ")
    assert "A" in before
    assert "B" in after
    assert before.startswith("…x")
    assert before.endswith("y…")


def test_a_long_value_beside_a_short_one_is_cut() -> None:
    then, now = document(target=StillTarget({"t": "x" * 500})), document(target=StillTarget({"t": "x"}))
    (line,) = lines(then, now)
    assert len(line) < 200
    assert line.endswith(' -> "x"')


def test_a_difference_is_one_line_whatever_the_value_holds() -> None:
    nasty = {"new\nline.key": "a\nb\u2028c\x1b[31m\ud800"}
    (line,) = lines(document(target=StillTarget({})), document(target=StillTarget(nasty)))
    assert line.isprintable()
    assert line.startswith('variants.default.target."new\\nline.key": (absent) -> ')


def test_a_changed_run_is_refused_with_the_differences_and_what_to_do() -> None:
    then, now = document(), document(target=StillTarget({"code": "sha256:9"}), concurrency=3)
    with pytest.raises(IdentityChanged) as caught:
        refuse_changes("01j", compare(then, now))
    assert caught.value.run_id == "01j"
    assert caught.value.differences == ('variants.default.target.code: "sha256:1" -> "sha256:9"',)
    assert caught.value.differences[0] in str(caught.value)
    assert "ts.fork" in caught.value.remedy
    assert "\n" not in str(caught.value)


def test_digests_are_shown_as_far_as_they_tell_each_other_apart() -> None:
    one, two = "sha256:" + "a" * 64, "sha256:" + "b" * 64
    then, now = (document(target=StillTarget({"code": digest})) for digest in (one, two))
    (line,) = lines(then, now)
    assert line == 'variants.default.target.code: "sha256:aaaaaaaaaaaa…" -> "sha256:bbbbbbbbbbbb…"'
    (line,) = lines(then, document(target=StillTarget({"code": one[:-1] + "c"})))
    then_text, now_text = line.removeprefix("variants.default.target.code: ").split(" -> ")
    assert then_text != now_text


def test_many_differences_are_counted_in_the_error() -> None:
    then, now = (document(target=StillTarget({f"k{n}": mark for n in range(9)})) for mark in "AB")
    with pytest.raises(IdentityChanged, match="and 6 more") as caught:
        refuse_changes("01j", compare(then, now))
    assert len(caught.value.differences) == 9


def test_an_identity_that_is_not_json_is_told_by_its_variant() -> None:
    with pytest.raises(UsageError, match=r"variants\.default\.target: its identity is not JSON"):
        document(target=StillTarget({"f": object}))


TEXT = st.text(max_size=8)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))
IDENTITIES = st.dictionaries(TEXT.filter(lambda key: key != "kind"), VALUES, max_size=4)


@given(IDENTITIES, IDENTITIES)
def test_there_is_a_difference_exactly_when_the_digests_differ(then: Any, now: Any) -> None:
    one, two = document(target=StillTarget(then)), document(target=StillTarget(now))
    assert bool(lines(one, two)) is (identity_digest(one) != identity_digest(two))
    assert len(lines(one, two)) == len(lines(two, one))
    assert all(line.isprintable() for line in lines(one, two))
