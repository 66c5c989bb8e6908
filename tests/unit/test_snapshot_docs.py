"""What the pages on snapshots show works, and the schema fits what is written."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import tallystick as ts
from docs import generate_schemas
from tallystick.ledger.snapshot_format import Manifest

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCHEMA = json.loads((DOCS / "snapshot-manifest.schema.json").read_text(encoding="utf-8"))


def shout(case: ts.Case) -> str:
    return str(case.input).upper()


@pytest.fixture
def run(tmp_path: Path) -> str:
    order = ts.WorkOrder("carried", cases=[{"id": "a", "input": "x", "expected": "X"}], target=ts.target(shout),
                         judges=[ts.exact()])  # fmt: skip
    return ts.run(order, ledger=tmp_path / "l.db").run_id


def shown(page: str) -> dict[str, Any]:
    """The names that a page's only block of Python defines."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "shown"}
    exec(block, names)
    return names


def test_a_snapshot_is_read_by_what_the_page_shows(run: str, tmp_path: Path) -> None:
    with ts.open(tmp_path / "l.db") as ledger:
        made = ledger.export(run, to=tmp_path / "s.zip")
    manifest, rows = shown("snapshot-format.md")["read_snapshot"](str(tmp_path / "s.zip"))
    assert manifest["digest"] == made.digest
    (observation,) = rows[f"runs/{run}/observations-0001.jsonl"]
    assert observation["answer"] == '"X"'
    with zipfile.ZipFile(tmp_path / "s.zip") as archive, zipfile.ZipFile(tmp_path / "bad.zip", "w") as bad:
        for name in archive.namelist():
            bad.writestr(name, archive.read(name).replace(b'\\"X\\"', b'\\"Y\\"'))
    with pytest.raises(ValueError, match="was changed"):
        shown("snapshot-format.md")["read_snapshot"](str(tmp_path / "bad.zip"))


def test_a_run_is_carried_by_what_the_page_shows(run: str, tmp_path: Path) -> None:
    carry = shown("how-to/carry-a-run.md")["carry"]
    paths = [str(tmp_path / name) for name in ("l.db", "other.db")]
    assert carry(*paths, run, str(tmp_path / "s.zip")) == "new"
    assert carry(*paths, run, str(tmp_path / "s.zip")) == "unchanged"


def test_a_manifest_fits_the_schema_and_a_wrong_one_does_not(run: str, tmp_path: Path) -> None:
    with ts.open(tmp_path / "l.db") as ledger:
        ledger.export(run, to=tmp_path / "s.zip", redact=["answers"])
    with zipfile.ZipFile(tmp_path / "s.zip") as archive:
        manifest = json.loads(archive.read("manifest.json"))
    jsonschema.validate(manifest, SCHEMA)
    for key in Manifest.model_fields:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({name: value for name, value in manifest.items() if name != key}, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**manifest, "more": 1}, SCHEMA)


def test_the_schema_is_made_from_the_model() -> None:
    name = "snapshot-manifest.schema.json"
    assert (DOCS / name).read_text(encoding="utf-8") == generate_schemas.render()[name], "run `make docs`"


def test_every_key_of_the_manifest_is_described() -> None:
    page = (DOCS / "snapshot-format.md").read_text(encoding="utf-8")
    assert [key for key in Manifest.model_fields if f"`{key}`" not in page] == []
