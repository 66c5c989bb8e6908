"""One JSON document on standard output."""

from __future__ import annotations

import json
import sys

from pydantic import BaseModel

from ..runner.report_models import as_json

__all__ = ["write_json"]


def write_json(model: BaseModel) -> None:
    """Write it; text beyond ASCII is escaped, so that every encoding and every lone surrogate passes."""
    sys.stdout.write(json.dumps(as_json(model), indent=2) + "\n")
    sys.stdout.flush()
