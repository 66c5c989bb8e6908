"""Facts about answers are counted where figures are: a share of cut answers is no detail of single cases."""

from __future__ import annotations

from pathlib import Path

import tallystick as ts
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.states import DispatchState
from tallystick.renderers.words import flag_words
from tallystick.runner.protocols import Dispatching, Outcome
from tallystick.runner.report_models import FlagLine
from tallystick.runner.reports import status_of
from tests.unit.runner.scripted import ANSWERED, Scripted, always, execute


async def cut(target: Scripted, dispatching: Dispatching) -> Outcome:
    """The even cases are cut, the first of them is filtered as well."""
    number = dispatching.slot.case.input
    assert isinstance(number, int)
    flags = () if number % 2 else ("truncated", "filtered") if number == 0 else ("truncated",)
    return Outcome(DispatchState.ANSWERED, answer="x", bytes_sent=1, flags=flags)


def test_flags_of_selected_answers_are_counted_by_variant_in_status_and_report(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        run = execute(ledger, {"small": Scripted(cut), "large": Scripted(always(ANSWERED))}, cases=5).run_id
        status = status_of(ledger, run)
    expected = [
        FlagLine(variant="small", flag="filtered", count=1),
        FlagLine(variant="small", flag="truncated", count=3),
    ]
    assert status.flags == expected
    with ts.open(path) as opened:
        assert opened.report("scripted").flags == expected


def test_flags_are_told_in_one_line_with_the_most_frequent_first() -> None:
    lines = [FlagLine(variant=name, flag=flag, count=count) for name, flag, count in (
        ("a", "filtered", 1), ("a", "truncated", 2), ("b", "truncated", 3),
    )]  # fmt: skip
    assert flag_words(lines) == "5 truncated (a 2, b 3) · 1 filtered (a 1)"
