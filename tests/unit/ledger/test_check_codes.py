"""Every finding that a check can make is written down, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tallystick.ledger.check_judgments import JUDGMENT_RULES
from tallystick.ledger.check_leases import LEASE_RULES
from tallystick.ledger.check_rules import RULES

ROOT = Path(__file__).resolve().parents[3]
MAKERS = {"Finding", "finding_of", "_warning"}


def codes_of_rules() -> set[str]:
    return {rule.code for rule in (*RULES, *LEASE_RULES, *JUDGMENT_RULES)}


def codes_in(module: str) -> set[str]:
    tree = ast.parse((ROOT / "ledger" / module).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return {
        str(call.args[0].value)
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in MAKERS and isinstance(call.args[0], ast.Constant)
    }


def test_every_code_of_a_check_is_described_once() -> None:
    text = (ROOT / "docs" / "reference" / "ledger-check.md").read_text(encoding="utf-8")
    described = re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", text, flags=re.MULTILINE)
    known = codes_of_rules() | codes_in("checks.py") | codes_in("check_digests.py") | codes_in("check_leftovers.py")
    assert len(known) > 40
    assert set(described) == known
    assert len(described) == len(set(described))
