"""The whole report as one JSON document; ``docs/report.schema.json`` says what is in it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ..runner.report_models import as_json
from ..runner.report_reading import Report

__all__ = ["json_report"]


def json_report(report: Report) -> Iterator[str]:
    """Its pieces. Text beyond ASCII is escaped, so that every encoding and every lone surrogate passes."""
    head = json.dumps(as_json(report.summary), indent=2)
    yield head.removesuffix("\n}") + ',\n  "slots": ['
    between = "\n    "
    for slot in report.slots():
        yield between + json.dumps(as_json(slot))
        between = ",\n    "
    yield "]\n}\n" if between == "\n    " else "\n  ]\n}\n"
