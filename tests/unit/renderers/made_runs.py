"""Runs of every kind of trouble, written straight into a ledger, and what their reports look like."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import attrs

from tallystick.ledger import attempts, coordinators, planning, run_ends
from tallystick.ledger.canonical import canonical_text, digest_of_bytes, escaped_text
from tallystick.ledger.judgments import add_judgments
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.records import BudgetPlan, DispatchFacts, JudgmentRow
from tallystick.ledger.states import DispatchState
from tallystick.renderers.files import ReportForm, pieces_of
from tallystick.runner.report_options import ReportOptions
from tallystick.runner.report_reading import open_report
from tests.unit.ledger.factories import begin, case_plan, hold, run_plan

WORK_ORDER = json.dumps({"judges": [], "variants": {}})

HOSTILE = (
    "=cmd|'/c calc'!A1 <script>alert(1)</script> \x1b[2J\x00 \u202e | `*_[x](http://a.b) & \ud800 ]]> \"q\" \ufffe @you"
)
"""A text that every format takes for something else than a text."""


@attrs.frozen
class Asked:
    """One case of a made run; ``metadata`` is what it can be sliced by."""

    id: str
    metadata: dict[str, Any] = attrs.field(factory=dict)
    input: Any = "what is asked"
    expected: Any = "yes"


def made_run(
    ledger: Ledger,
    cases: Iterable[Asked],
    *,
    variants: tuple[str, ...] = ("default",),
    repetitions: int = 1,
    judges: tuple[str, ...] = ("exact",),
    budgets: tuple[BudgetPlan, ...] = (),
    name: str = "made",
) -> coordinators.Coordinator:
    """A planned run that this process coordinates."""
    plan = attrs.evolve(
        run_plan(variants=variants, repetitions=repetitions, judges=judges, budgets=budgets, name=name),
        work_order=WORK_ORDER,
    )
    planned = planning.create_run(ledger, plan, map(_row, cases))
    return coordinators.open_run(ledger, planned.run_id)


def _row(case: Asked) -> planning.CasePlan:
    return case_plan(
        escaped_text(case.id), canonical_text(case.input), canonical_text(case.expected), canonical_text(case.metadata)
    )


def answer(
    ledger: Ledger,
    run_key: int,
    slot_no: int,
    value: Any = "yes",
    *,
    seconds: float | None = 0.5,
    holds: int = 0,
    flags: str = "[]",
    **facts: Any,
) -> None:
    """The slot is observed; ``holds`` are set aside in budget 1 before."""
    begun = begin(ledger, run_key, slot_no, holds=(hold(1, holds),) if holds else ())
    text = canonical_text(value)
    told = DispatchFacts(
        DispatchState.ANSWERED, duration_us=None if seconds is None else round(seconds * 1e6), wire_sends=1, **facts
    )
    digest = digest_of_bytes(text.encode())
    ledger.write(lambda tx: attempts.observe(tx, begun.key, told, answer=text, answer_digest=digest, flags=flags))


def judge(
    ledger: Ledger,
    run_key: int,
    slot_no: int,
    passed: bool | None = None,
    *,
    score: float | None = None,
    reason: str | None = None,
    judge_no: int = 1,
    evaluation_no: int = 1,
    attempt_no: int = 1,
    explanation: str = "",
) -> None:
    """A verdict of a judge, or why there is none."""
    row = JudgmentRow(
        judge_no, slot_no, attempt_no, passed, None if score is None else repr(score), reason, explanation
    )
    ledger.write(lambda tx: add_judgments(tx, run_key, evaluation_no, [row]))


def fail(ledger: Ledger, run_key: int, slot_no: int, message: str = "it broke", reason: str = "http.500") -> None:
    """Every attempt at the slot ended in an error."""
    begun = begin(ledger, run_key, slot_no)
    told = DispatchFacts(DispatchState.FAILED, reason, message)
    ledger.write(lambda tx: attempts.fail(tx, begun.key, told, waiting=None))


def lose(ledger: Ledger, run_key: int, slot_no: int) -> str:
    """The slot's outcome is unknown; returns the call's id."""
    begun = begin(ledger, run_key, slot_no)
    told = DispatchFacts(DispatchState.UNKNOWN, "timeout", "no whole answer came", bytes_sent=12)
    ledger.write(lambda tx: attempts.lose(tx, begun.key, told, waiting=None))
    return begun.key.call_id


def end(ledger: Ledger, run: coordinators.Coordinator) -> None:
    """The run ends in good order."""

    def work(tx: Any) -> None:
        run_ends.finish_run(tx, run.run_key)
        coordinators.release_run(tx, run, reason="ended", active_us=1_000_000)

    ledger.write(work)


def troubled_run(ledger: Ledger, *, hostile: str = "") -> coordinators.Coordinator:
    """Two variants of five cases: passed, not passed, no verdict, failed, unknown, unavailable, pending."""
    cases = [
        Asked(f"c{number}{hostile}", {"language": "de" if number % 2 else "fr", "tags": ["a", str(number)]}, hostile)
        for number in range(1, 6)
    ]
    run = made_run(ledger, cases, variants=("old", "new"))
    key = run.run_key
    said = hostile.replace("\ud800", "").replace("\x00", "")  # what a judge or a target says is kept without these
    answer(ledger, key, 1, f"yes{hostile}", seconds=0.25, tokens_in=3, cost_nanousd=1_500_000)
    judge(ledger, key, 1, True, score=0.5, explanation=f"good {said}")
    answer(ledger, key, 2, {"text": hostile}, seconds=0.75)
    judge(ledger, key, 2, False, score=0.25, explanation=said)
    answer(ledger, key, 3, -5)
    judge(ledger, key, 3, reason="malformed_verdict", explanation=f"NaN {said}")
    fail(ledger, key, 4, f"broke {said}")
    lose(ledger, key, 5)
    answer(ledger, key, 6, None, seconds=None)
    ledger.write(lambda tx: attempts.give_up(tx, key, 7, reason="connect.refused"))
    return run


def rendered(ledger: Ledger, run_id: str, form: ReportForm | str, **options: Any) -> str:
    """The report in that form."""
    with open_report(ledger, run_id, ReportOptions(**options)) as report:
        return "".join(pieces_of(report, ReportForm(form)))


def document(ledger: Ledger, run_id: str, **options: Any) -> Any:
    """The report as its JSON says."""
    return json.loads(rendered(ledger, run_id, "json", **options))


def every_row(ledger: Ledger) -> str:
    """A digest of every row of every table: what the ledger says, whatever its file looks like."""
    with ledger.reading() as reader:
        tables = [row[0] for row in reader.rows("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        rows = [repr((table, sorted(map(repr, reader.rows(f'SELECT * FROM "{table}"'))))) for table in tables]
    return digest_of_bytes("\n".join(rows).encode("utf-8", "surrogatepass"))
