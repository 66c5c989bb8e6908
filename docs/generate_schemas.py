"""Write the JSON schemas of documents that other programs read; `render` gives the same text to the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from tallystick.ledger.snapshot_format import Manifest
from tallystick.runner.compare_document import Comparison
from tallystick.runner.gate_document import GateReport
from tallystick.runner.report_document import ReportDocument

DOCS: Final = Path(__file__).resolve().parent
DOCUMENTS: Final[dict[str, type[BaseModel]]] = {
    "comparison.schema.json": Comparison,
    "gate.schema.json": GateReport,
    "report.schema.json": ReportDocument,
    "snapshot-manifest.schema.json": Manifest,
}


def render() -> dict[str, str]:
    """The schemas by file name."""
    return {name: json.dumps(_schema(model), indent=1) + "\n" for name, model in DOCUMENTS.items()}


def _schema(model: type[BaseModel]) -> dict[str, object]:
    schema = model.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def main() -> None:
    for name, text in render().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
