"""A chat endpoint that judges, and judge work orders, for the acceptance tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .harness import FIXTURES, Service, Site, Speaking
from .orders import execution

__all__ = ["Endpoint", "endpoint", "judge_order", "llm_judge", "reasons_of", "watched"]


class Endpoint(Service):
    """The scripted chat endpoint; its log is the independent counter of judges' calls."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "judge_counter.jsonl"
        Speaking.__init__(self, FIXTURES / "judge_endpoint.py", "--log", self.log)
        self._waiting = []
        self.port = int(self.line())
        self.url = f"http://127.0.0.1:{self.port}"


def endpoint(site: Site) -> Endpoint:
    """An endpoint that ends with the site."""
    made = Endpoint(site.folder)
    site._speaking.append(made)
    return made


def llm_judge(where: Endpoint, **options: Any) -> dict[str, Any]:
    """The table of a judge that asks the endpoint."""
    table = {"kind": "llm", "name": "model", "model": "small", "rubric": "It is what is expected."}
    return {**table, "url": f"{where.url}/v1/chat/completions", **options}


def judge_order(
    site: Site, judges: Sequence[Mapping[str, Any]], *, name: str = "strict", budgets: Any = None, **options: Any
) -> Path:
    """Write a judge work order; its file."""
    document: dict[str, Any] = {"version": 1, "name": name, "judges": list(judges)}
    if budgets is not None:
        document["budgets"] = budgets
    if "cache" in options:
        document["cache"] = options.pop("cache")
    document["execution"] = execution(**options)
    path = site.folder / f"{name}.json"
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return path


def watched(
    name: str, expected: Any = None, *, judge: Mapping[str, Any] | None = None, **behave: Any
) -> dict[str, Any]:
    """A case whose request tells the service, and then the endpoint, how to treat it."""
    asked: dict[str, Any] = {"input": name}
    if judge is not None:
        asked["judge"] = dict(judge)
    if behave:
        asked["behave"] = behave
    return {"id": name, "input": asked, "expected": name if expected is None else expected}


def reasons_of(site: Site, evaluation: int = 2) -> dict[str, str]:
    """What became of each case's judgment in an evaluation: ``passed``, ``failed``, or why there is no verdict."""
    from .invariants import rows

    found = rows(
        site.ledger,
        "SELECT c.case_id, j.passed, j.reason FROM judgments j JOIN slots s ON s.run_key = j.run_key"
        " AND s.slot_no = j.slot_no JOIN cases c ON c.run_key = s.run_key AND c.case_no = s.case_no"
        " WHERE j.evaluation_no = ? AND j.judge_no = 1 AND j.sample_no = 1 AND j.state IN ('judged', 'no_verdict')",
        evaluation,
    )
    return {case: reason or ("passed" if passed else "failed") for case, passed, reason in found}
