"""Work orders, targets and cases of the acceptance tests."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .harness import FIXTURES, Service

__all__ = ["case", "execution", "http_order", "http_target", "python_target", "work_order"]


def case(name: str, expected: Any = None, *, text: str | None = None, **behave: Any) -> dict[str, Any]:
    """A case whose request says how the service is to treat it; it is answered with its own text."""
    asked: dict[str, Any] = {"input": name if text is None else text}
    if behave:
        asked["behave"] = behave
    return {"id": name, "input": asked, "expected": asked["input"] if expected is None else expected}


def http_target(service: Service, *, if_unknown: str = "keep", url: str = "", **options: Any) -> dict[str, Any]:
    """A target table for the service, from which a query may learn that an id was tombstoned and never will be done."""
    origin = url or service.url
    table: dict[str, Any] = {
        "kind": "http",
        "url": f"{origin}/ask",
        "json": "{{input}}",
        "answer": "$.answer",
        "usage": {"tokens_in": "$.usage.tokens_in", "tokens_out": "$.usage.tokens_out"},
        "if_unknown": if_unknown,
    }
    if if_unknown == "query":
        table["query"] = {"url": f"{origin}/outcome/{{{{request_id}}}}", "never": {"status": [410]}}
    return {**table, **options}


def python_target(folder: Path, *, function: str = "blocking", if_unknown: str = "keep") -> dict[str, Any]:
    """A target table for a counting Python function, in a copy of its module beside the work order."""
    shutil.copy(FIXTURES / "counting_target.py", folder / "counting_target.py")
    return {"kind": "python", "file": "counting_target.py", "function": function, "if_unknown": if_unknown}


def execution(**options: Any) -> dict[str, Any]:
    """Execution options for tests: short back-offs, everything else as it comes."""
    return {
        "concurrency": 1,
        "deadline_seconds": 60.0,
        "grace_seconds": 5.0,
        "backoff": {"first_seconds": 0.01, "max_seconds": 0.05},
        **options,
    }


def http_order(
    service: Service,
    cases: Sequence[Mapping[str, Any]],
    *,
    if_unknown: str = "keep",
    target: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """A work order that asks the service."""
    return work_order(http_target(service, if_unknown=if_unknown, **(target or {})), cases, **options)


def work_order(
    target: Mapping[str, Any],
    cases: Sequence[Mapping[str, Any]],
    *,
    repetitions: int = 1,
    budgets: Any = None,
    judges: Sequence[Mapping[str, Any]] = ({"kind": "exact"},),
    **options: Any,
) -> dict[str, Any]:
    """A work order with one target."""
    return {
        "version": 1,
        "name": "acceptance",
        "cases": {"items": list(cases), "repetitions": repetitions},
        "target": dict(target),
        "judges": list(judges),
        "budgets": {"dispatches": 1000} if budgets is None else budgets,
        "execution": execution(**options),
    }
