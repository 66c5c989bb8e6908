"""What the reference says of work orders is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from docs import generate
from tallystick.ledger.errors import CaseFileInvalid, WorkOrderInvalid
from tallystick.runner.case_files import load_cases, survey
from tallystick.runner.identity import Section, identity_document
from tallystick.runner.work_order import load_work_order
from tallystick.runner.work_order_models import TABLES, BackoffTable, DeviceTable, ExecutionTable, KeyClass
from tests.unit.runner.given import CASES, HEAD, TARGET, StillTarget, a_work_order, written

PAGE = (generate.REFERENCE / "work-order.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```toml\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def section_of(table: str) -> str:
    title = generate._TABLE_TITLES[table]
    return PAGE.split(f"\n### {title}\n", 1)[1].split("\n#", 1)[0]


@pytest.mark.parametrize("table", TABLES)
def test_every_key_of_a_table_is_listed_once_and_no_other(table: str) -> None:
    listed = re.findall(r"^\| `(\w+)` \|", section_of(table), flags=re.MULTILINE)
    assert listed == list(TABLES[table].model_fields)


@pytest.mark.parametrize("block", BLOCKS)
def test_the_examples_are_work_orders(tmp_path: Path, block: str) -> None:
    order = written(tmp_path, block)
    assert order.budgets
    assert len(BLOCKS) == 3


def class_of(field: Any) -> str:
    return str(field.json_schema_extra["class"])


def test_the_class_of_an_execution_key_is_its_section_in_the_identity() -> None:
    order = a_work_order()
    document: Any = identity_document(order, {"default": StillTarget()}, "sha256:0")
    fields = {name: field for name, field in ExecutionTable.model_fields.items() if name != "backoff"}
    fields |= {f"backoff_{name}": field for name, field in BackoffTable.model_fields.items()}
    fields |= {f"device_{name}": field for name, field in DeviceTable.model_fields.items()}
    sections = {Section.LIMITS: KeyClass.LIMIT, Section.THROUGHPUT: KeyClass.THROUGHPUT}
    for section, key_class in sections.items():
        named = {name for name, field in fields.items() if class_of(field) == key_class.value}
        assert document[section.value].keys() - {"budgets", "if_unknown"} == named


def test_every_key_has_a_class_and_a_meaning() -> None:
    for model in TABLES.values():
        for field in model.model_fields.values():
            assert KeyClass(class_of(field))
            assert field.description
            assert field.description.endswith(".")


def test_the_errors_that_are_shown_are_the_errors_that_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    all_keys = HEAD + CASES + TARGET
    shown = [line for line in PAGE.splitlines() if re.match(r"(order\.toml|cases\.jsonl):\d", line)]
    texts = (all_keys + "[execution]\nconcurency = 3\n", all_keys + "[budgets]\nusd = 2.5\n")
    for text, line in zip(texts, shown, strict=False):
        Path("order.toml").write_text(text)
        with pytest.raises(WorkOrderInvalid) as caught:
            load_work_order("order.toml")
        assert str(caught.value) == line
    Path("cases.jsonl").write_text('{"id": "1", "input": 0}\n\n{"id": 1, "input": 0}\n')
    with pytest.raises(CaseFileInvalid) as twice:
        survey(load_cases("cases.jsonl"))
    assert shown[2:] == [str(twice.value)]
