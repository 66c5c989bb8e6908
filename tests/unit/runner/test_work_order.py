"""A work order says the same from a file, from Python and from its document; a wrong one is told in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.ledger.canonical import canonical_text, parse_json
from tallystick.ledger.errors import CaseFileInvalid, WorkOrderInvalid
from tallystick.ledger.states import BudgetKind
from tallystick.runner.budget_spec import UNITS, BudgetScope, BudgetSpec, BudgetUnit
from tallystick.runner.case_files import CaseFile, survey
from tallystick.runner.work_order import ExecutionSpec, JudgeSpec, TargetSpec, WorkOrder, load_work_order
from tests.unit.runner.given import CASES, HEAD, TARGET, StillJudge, StillTarget, a_work_order, written

WHOLE = """
version = 1
name = "language-id"

[cases]
file = "cases.jsonl"
repetitions = 3

[variants.old.target]
kind = "http"
url = "http://127.0.0.1:8080/identify"
json = { text = "{{input}}", limits = [1, 2.5, true] }
headers = { Authorization = { env = "API_KEY", prefix = "Bearer " } }

[variants.new.target]
kind = "process"
command = ["identify", "--fast"]

[[judges]]
kind = "exact"

[[judges]]
kind = "exact"
name = "loose"
ignore_case = true

[budgets]
dispatches = 800
usd = { limit = "2.50", bound_per_dispatch = "0.01", per = "variant" }

[execution]
concurrency = 16
deadline_seconds = 30
retry = ["http"]
backoff = { max_seconds = 5 }
"""


def fault_of(make: Any) -> WorkOrderInvalid:
    with pytest.raises(WorkOrderInvalid) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return caught.value


def test_a_file_says_everything_that_stands_in_it(tmp_path: Path) -> None:
    order = written(tmp_path, WHOLE)
    assert order.name == "language-id"
    assert order.cases == CaseFile(tmp_path / "cases.jsonl", "cases.jsonl", "jsonl")
    assert order.repetitions == 3
    assert list(order.variants) == ["old", "new"]
    assert order.variants["new"] == TargetSpec("process", {"command": ["identify", "--fast"]})
    assert order.judges == (JudgeSpec("exact", "exact"), JudgeSpec("exact", "loose", {"ignore_case": True}))
    assert [(spec.key, spec.limit) for spec in order.budgets] == [
        (("run", "", "dispatches"), 800),
        (("variant", "old", "nanousd"), 2_500_000_000),
        (("variant", "new", "nanousd"), 2_500_000_000),
    ]
    assert order.execution == ExecutionSpec(concurrency=16, deadline_seconds=30, retry=("http",), backoff_max_seconds=5)


def test_python_says_the_same_as_a_file(tmp_path: Path) -> None:
    order = written(tmp_path, WHOLE)
    assert (
        WorkOrder(
            "language-id",
            cases="cases.jsonl",
            repetitions=3,
            variants={
                "old": {
                    "kind": "http",
                    "url": "http://127.0.0.1:8080/identify",
                    "json": {"text": "{{input}}", "limits": [1, 2.5, True]},
                    "headers": {"Authorization": {"env": "API_KEY", "prefix": "Bearer "}},
                },
                "new": TargetSpec("process", {"command": ["identify", "--fast"]}),
            },
            judges=[{"kind": "exact"}, JudgeSpec("exact", "loose", {"ignore_case": True})],
            budgets={"dispatches": 800, "usd": {"limit": "2.50", "bound_per_dispatch": "0.01", "per": "variant"}},
            concurrency=16,
            deadline_seconds=30,
            retry=["http"],
            backoff={"max_seconds": 5},
        ).to_document()
        == order.to_document()
    )


def test_json_says_the_same_as_toml(tmp_path: Path) -> None:
    order = written(tmp_path, WHOLE)
    assert written(tmp_path, json.dumps(order.to_document()), name="order.json") == order


def test_one_target_makes_one_variant(tmp_path: Path) -> None:
    assert list(written(tmp_path, HEAD + CASES + TARGET).variants) == ["default"]
    assert list(a_work_order().variants) == ["default"]


def test_targets_and_judges_can_be_objects() -> None:
    old, new, judge = StillTarget(), StillTarget({"code": "sha256:3"}), StillJudge()
    order = a_work_order(variants={"old": old, "new": new}, judges=[judge])
    assert order.variants == {"old": old, "new": new}
    assert order.judges == (judge,)


def test_cases_stand_in_the_work_order_itself(tmp_path: Path) -> None:
    order = written(tmp_path, HEAD + TARGET + '[cases]\nitems = [{ id = 1, input = "x" }, { id = "b", input = [] }]\n')
    assert [case.id for case in order.cases] == ["1", "b"]


def test_a_lone_surrogate_in_a_json_work_order_stays_through_its_document(tmp_path: Path) -> None:
    cases_table = r'{"items": [{"id": "\ud800", "input": "\udfff"}]}'
    raw = r'{"version": 1, "name": "n", "target": {"kind": "x", "say": "\ud800"}, "cases": CASES}'.replace(
        "CASES", cases_table
    )
    order = written(tmp_path, raw, name="order.json")
    document: Any = parse_json(canonical_text(order.to_document()))
    for one in (order, WorkOrder.from_document(document)):
        assert [(case.id, case.input) for case in one.cases] == [("\ud800", "\udfff")]
        assert one.variants["default"] == TargetSpec("x", {"say": "\ud800"})


def test_the_case_file_is_not_opened_by_reading_the_work_order(tmp_path: Path) -> None:
    order = written(tmp_path, HEAD + CASES + TARGET)
    with pytest.raises(CaseFileInvalid, match=r"^q\.jsonl: there is no such case file"):
        survey(order.cases)


def test_the_case_file_is_relative_to_the_work_order_and_not_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "q.jsonl").write_text('{"id": "a", "input": 1}')
    order = written(tmp_path / "in", HEAD + CASES + TARGET)
    monkeypatch.chdir(tmp_path)
    assert survey(order.cases).count == 1
    assert survey(load_work_order("in/order.toml").cases).count == 1


ALL = HEAD + CASES + TARGET
RUN = ALL + "[execution]\n"
BAD = [
    ("", "order.toml: version: this key is missing. Write version = 1"),
    ("version = 2\n", "order.toml:1: version: 2 is not known here. Write 1"),
    ('version = "1"\n', 'order.toml:1: version: "1" is not known here'),
    (HEAD + CASES, "order.toml: there is no target. Give [target], or [variants.NAME.target]"),
    (HEAD + TARGET, "order.toml: cases: this key is missing"),
    (HEAD + "versoin = 1\n" + CASES + TARGET, 'order.toml:3: versoin: there is no such key. Did you mean "version"?'),
    ('version = 1\nname = ""\n' + CASES + TARGET, 'order.toml:2: name: "" cannot stand here'),
    ('version = 1\nname = "a\\nb"\n' + CASES + TARGET, 'order.toml:2: name: "a\\nb" cannot stand here'),
    ("version = 1\nname = 3\n" + CASES + TARGET, "order.toml:2: name: 3 is no text. Write text in quotes"),
    (HEAD + 'cases = "q.jsonl"\n' + TARGET, 'order.toml:3: cases: "q.jsonl" is no table'),
    (HEAD + TARGET + "[cases]\nrepetitions = 2\n", "order.toml:5: cases: there are no cases. Give file, or items"),
    (HEAD + TARGET + CASES + "items = []\n", "order.toml:5: cases: file and items exclude each other"),
    (HEAD + TARGET + CASES + "repetitions = 0\n", "order.toml:7: cases.repetitions: 0 is too small. Write 1 or more"),
    (HEAD + TARGET + CASES + "repetitions = true\n", "order.toml:7: cases.repetitions: true is no whole number"),
    (HEAD + TARGET + CASES + 'format = "xls"\n', 'order.toml:7: cases.format: "xls" is not known here. Write "jsonl"'),
    (HEAD + TARGET + '[cases]\nfile = ""\n', "order.toml:6: cases.file: "),
    (HEAD + TARGET + '[cases]\nfile = "q.xls"\n', "order.toml:6: cases.file: q.xls: the form of a case file cannot be"),
    (HEAD + CASES + '[target]\nurl = "x"\n', "order.toml:5: target.kind: this key is missing"),
    (HEAD + CASES + "[target]\nkind = 3\n", "order.toml:6: target.kind: 3 is no text"),
    (HEAD + CASES + TARGET + "since = 2020-01-01\n", "order.toml:7: target.since: a date or time without quotes"),
    (HEAD + CASES + TARGET + "x = [1, { a = nan }]\n", "order.toml:7: target.x[1].a: nan is not a number"),
    (HEAD + CASES + TARGET + '[variants.a.target]\nkind = "x"\n', "order.toml: target and variants exclude each other"),
    (HEAD + CASES + '[variants.a]\nkind = "x"\n', "order.toml:6: variants.a.kind: there is no such key"),
    (HEAD + CASES + "[variants]\n", "order.toml:5: variants: there is no variant"),
    (HEAD + CASES + '[variants." a".target]\nkind = "x"\n', 'order.toml:5: variants." a": " a" cannot name a variant'),
    (HEAD + CASES + "[variants.a]\n", "order.toml:5: variants.a.target: this key is missing"),
    (HEAD + CASES + TARGET + "[[judges]]\n", "order.toml:7: judges[0].kind: this key is missing"),
    (HEAD + CASES + TARGET + "[judges]\nkind = 1\n",
     'order.toml:7: judges: {"kind": 1} is no list. Write a list; of tables, each begins with [[judges]]'),
    (HEAD + CASES + TARGET + '[[judges]]\nkind = "a"\n' * 2, "order.toml:9: judges[1]: a second judge is named"),
    (RUN + "concurency = 3\n",
     'order.toml:8: execution.concurency: there is no such key. Did you mean "concurrency"?'),
    (RUN + 'concurrency = "3"\n', 'order.toml:8: execution.concurrency: "3" is no whole'),
    (RUN + "concurrency = 1.0\n", "order.toml:8: execution.concurrency: 1.0 "),
    (RUN + "deadline_seconds = 0\n", "order.toml:8: execution.deadline_seconds: 0 is too"),
    (RUN + "deadline_seconds = inf\n", "order.toml:8: execution.deadline_seconds: inf is"),
    (RUN + 'retry = "http"\n', 'order.toml:8: execution.retry: "http" is no list'),
    (RUN + 'retry = ["http", 5]\n', "order.toml:8: execution.retry[1]: 5 is no text"),
    (RUN + "backoff = { first = 1 }\n", "order.toml:8: execution.backoff.first: there is"),
    (ALL + "[execution.backoff]\nfirst_seconds = 99\n", "order.toml:7: execution.backoff: first_seconds"),
    (HEAD + HEAD, "order.toml:3: column 12: not TOML (cannot overwrite a value)"),
    ("version = \n", "order.toml:1: column 11: not TOML (invalid value)"),
    (HEAD + 'x = "abc', "order.toml:3: at the end: not TOML (unterminated string)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "told"), BAD, ids=[told for _, told in BAD])
def test_a_wrong_work_order_is_told_by_file_line_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("order.toml").write_text(text)
    fault = fault_of(lambda: load_work_order("order.toml"))
    assert str(fault).startswith(told)
    assert fault.place
    assert fault.exit_status == 2


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xef\xbb\xbfversion = 1\n", "order.toml: begins with a byte order mark. Save it as UTF-8 without BOM"),
        (b"\xff\xfev\x00", "order.toml: begins with a byte order mark"),
        (b"version = 1\nname = '\xff'\n", "order.toml:2: not UTF-8. Save it as UTF-8"),
        (b"\x00", "order.toml:1: column 1: not TOML"),
        (b"a = " + b"[" * 100_000, "order.toml: nested too deeply"),
        (b"#" * (16 * 2**20 + 1), "order.toml: larger than 16777216 bytes"),
    ],
)
def test_bytes_that_are_no_work_order_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("order.toml").write_bytes(content)
    assert str(fault_of(lambda: load_work_order("order.toml"))).startswith(told)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"version": 1\n"name"', "order.json:2: column 1: not JSON"),
        ('{"version": 1, "version": 1}', "order.json: not JSON (the object key 'version' stands twice)"),
        ('{"version": NaN}', "order.json: not JSON (NaN is not JSON)"),
        ("[1]", "order.json: a work order is a table of keys"),
        ("[" * 100_000, "order.json: not JSON (nested too deeply)"),
        ('{"version": 1, "name": "a", "cases": {}, "\\ud800\\n": 1}', 'order.json: "\ufffd\\n" is text that UTF-8'),
    ],
)
def test_a_wrong_json_work_order_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("order.json").write_text(text)
    assert str(fault_of(lambda: load_work_order("order.json"))).startswith(told)


def test_a_work_order_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "nothing.toml: there is no such work order" in str(fault_of(lambda: load_work_order("nothing.toml")))
    assert "this is a folder" in str(fault_of(lambda: load_work_order(tmp_path)))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"target": None}, "WorkOrder('bot'): there is no target"),
        ({"target": 3}, "WorkOrder('bot'): target: 3 is no target"),
        ({"target": len}, "WorkOrder('bot'): target: the function len is no target yet. Decorate it with @ts.target"),
        ({"judges": [len]}, "WorkOrder('bot'): judges[0]: the function len is no judge yet. Decorate it with @ts."),
        ({"target": {"knd": "http"}}, "WorkOrder('bot'): target.kind: this key is missing"),
        ({"target": {"kind": "http", "x": object}}, "WorkOrder('bot'): target.x: a type has no JSON form"),
        ({"variants": {}}, "WorkOrder('bot'): variants: there is no variant"),
        ({"variants": {1: StillTarget()}}, "WorkOrder('bot'): variants[1]: 1 cannot name a variant"),
        ({"target": StillTarget(), "variants": {"a": StillTarget()}}, "WorkOrder('bot'): target and variants exclude"),
        ({"repetitions": "3"}, "WorkOrder('bot'): repetitions: \"3\" is no whole number"),
        ({"judges": [3]}, "WorkOrder('bot'): judges[0]: 3 is no judge"),
        ({"judges": [StillJudge(), StillJudge()]}, "WorkOrder('bot'): judges[1]: a second judge is named"),
        ({"budgets": {"usd": 0.1}}, "WorkOrder('bot'): budgets.usd: 0.1 is a number"),
        ({"concurency": 3}, "WorkOrder('bot'): concurency: there is no such key. Did you mean"),
        ({"name": 7}, "WorkOrder(7): name: 7 is no text"),
    ],
)
def test_a_wrong_work_order_in_python_is_told(options: dict[str, Any], told: str) -> None:
    assert str(fault_of(lambda: a_work_order(**options))).startswith(told)


def test_a_document_is_canonical_json_and_comes_back(tmp_path: Path) -> None:
    order = written(tmp_path, WHOLE)
    document = parse_json(canonical_text(order.to_document()))
    assert isinstance(document, dict)
    again = WorkOrder.from_document(document, folder=tmp_path)
    assert again == order
    assert again.to_document() == order.to_document()


def test_a_document_writes_every_default_out(tmp_path: Path) -> None:
    document: Any = written(tmp_path, HEAD + CASES + TARGET).to_document()
    assert document["execution"] == {
        "concurrency": 8,
        "deadline_seconds": 120.0,
        "attempts_max": 3,
        "dispatches_max": 5,
        "retry": [],
        "solitary_deaths_max": 3,
        "grace_seconds": 10.0,
        "backoff": {"first_seconds": 1.0, "max_seconds": 60.0},
    }
    assert document["cases"] == {"file": "q.jsonl", "format": "jsonl", "repetitions": 1}


@pytest.mark.parametrize(("inside", "kept"), [(True, "data/q.jsonl"), (False, "q.jsonl")])
def test_a_document_holds_no_absolute_path(tmp_path: Path, *, inside: bool, kept: str) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    path = (folder if inside else tmp_path) / "data" / "q.jsonl"
    order = written(folder, HEAD + TARGET + f'[cases]\nfile = "{path}"\n')
    document: Any = order.to_document()
    assert document["cases"]["file"] == kept
    assert str(tmp_path) not in canonical_text(document)


def test_a_relative_path_stays_as_it_is_in_a_document(tmp_path: Path) -> None:
    document: Any = written(tmp_path, HEAD + TARGET + '[cases]\nfile = "../data/q.jsonl"\n').to_document()
    assert document["cases"]["file"] == "../data/q.jsonl"


def test_a_document_holds_no_secret_but_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "SK-CANARY")
    text = canonical_text(written(tmp_path, WHOLE).to_document())
    assert "API_KEY" in text
    assert os.environ["API_KEY"] not in text


def test_cases_in_the_work_order_stand_in_its_document(tmp_path: Path) -> None:
    order = written(tmp_path, HEAD + TARGET + '[cases]\nitems = [{ id = "a", input = "x" }]\n')
    again = WorkOrder.from_document(order.to_document())
    assert list(again.cases) == list(order.cases)


def test_what_was_given_from_python_is_named_in_a_document_and_given_again() -> None:
    target, judge = StillTarget(), StillJudge()
    order = a_work_order(variants={"old": target}, judges=[judge])
    document: Any = order.to_document()
    assert document["cases"] == {"given": True, "repetitions": 1}
    assert document["variants"]["old"]["target"] == {"kind": "given", "of": "python", "identity": {"code": "sha256:1"}}
    again = WorkOrder.from_document(document, cases=order.cases, targets={"old": target}, judges={"grounded": judge})
    assert again == order


def test_a_document_can_be_read_without_what_was_given_from_python() -> None:
    document = a_work_order(judges=[StillJudge()]).to_document()
    again = WorkOrder.from_document(document)
    assert again.to_document()["execution"] == document["execution"]
    assert isinstance(again.variants["default"], TargetSpec)
    with pytest.raises(CaseFileInvalid, match="were given from Python"):
        survey(again.cases)


def test_a_damaged_document_is_told() -> None:
    document: Any = {**a_work_order().to_document(), "execution": {"concurrency": 0}}
    told = "run 01j: execution.concurrency: 0 is too small"
    assert str(fault_of(lambda: WorkOrder.from_document(document, source="run 01j"))).startswith(told)


def test_a_work_order_cannot_be_changed() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        a_work_order().name = "other"  # type: ignore[misc]


def test_execution_options_can_be_replaced_and_stay_checked() -> None:
    order = a_work_order(concurrency=3, deadline_seconds=5)
    changed = order.with_execution(concurrency=64, backoff={"max_seconds": 9})
    assert changed.execution == attrs.evolve(order.execution, concurrency=64, backoff_max_seconds=9)
    assert order.execution.concurrency == 3
    assert order.execution.defaulted - changed.execution.defaulted == {"backoff_max_seconds"}
    assert "execution.concurrency: 0 is too small" in str(fault_of(lambda: order.with_execution(concurrency=0)))


NAMES = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=20)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
TABLES = st.builds(lambda kind, rest: {**rest, "kind": kind}, NAMES, st.dictionaries(TEXTS, VALUES, max_size=3))
SECONDS = st.floats(min_value=0.001, max_value=1e6)
AMOUNTS = st.integers(min_value=1, max_value=2**40)


@st.composite
def budgets(draw: st.DrawFn) -> list[BudgetSpec]:
    units = draw(st.lists(st.sampled_from(list(BudgetUnit)), unique=True))
    found = []
    for unit in units:
        limit = draw(AMOUNTS)
        bound = 1 if unit is BudgetUnit.DISPATCHES else draw(st.integers(min_value=0, max_value=limit))
        found.append(BudgetSpec(BudgetScope.RUN, "", unit, draw(st.sampled_from(list(BudgetKind))), limit, bound))
    return found


def has_fitting_waits(table: Any) -> bool:
    waits = table.get("backoff", {})
    return bool(waits.get("max_seconds", 60) >= waits.get("first_seconds", 1))


EXECUTIONS: Any = st.fixed_dictionaries(
    {},
    optional={
        "concurrency": st.integers(1, 1000),
        "deadline_seconds": SECONDS,
        "attempts_max": st.integers(1, 1000),
        "dispatches_max": st.integers(1, 1000),
        "retry": st.lists(NAMES, max_size=3),
        "solitary_deaths_max": st.integers(1, 1000),
        "rate_per_second": SECONDS,
        "grace_seconds": SECONDS,
        "backoff": st.fixed_dictionaries({}, optional={"first_seconds": st.floats(0.1, 1), "max_seconds": SECONDS}),
    },
).filter(has_fitting_waits)


@given(
    name=NAMES,
    variants=st.dictionaries(NAMES, TABLES, min_size=1, max_size=3),
    judges=st.lists(TABLES, max_size=3, unique_by=lambda table: table["kind"]),
    execution=EXECUTIONS,
    specs=budgets(),
    repetitions=st.integers(1, 1000),
)
def test_every_document_comes_back_as_it_was(
    name: str, variants: Any, judges: Any, execution: Any, specs: Any, repetitions: int
) -> None:
    judges = [{key: value for key, value in table.items() if key != "name"} for table in judges]
    order = WorkOrder(
        name,
        cases="q.jsonl",
        variants=variants,
        judges=judges,
        budgets=specs,
        repetitions=repetitions,
        **execution,
    )
    text = canonical_text(order.to_document())
    again = WorkOrder.from_document(parse_json(text))  # type: ignore[arg-type]
    assert canonical_text(again.to_document()) == text
    assert again.budgets == order.budgets == tuple(specs)
    assert again.execution == order.execution
    assert again.variants == order.variants


def test_every_unit_has_its_own_key() -> None:
    assert len({form.key for form in UNITS.values()}) == len(BudgetUnit)
