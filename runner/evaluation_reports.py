"""How an evaluation stands, read from the ledger into the one model that screens and ``--json`` use. Makes no call."""

from __future__ import annotations

import shlex

from ..ledger.canonical import parse_json
from ..ledger.evaluations import EvaluationRow, find_evaluation, has_selected_since, newest_of_digest
from ..ledger.judging_reads import JudgeRow, JudgeTally, judge_rows, judge_tallies
from ..ledger.ledger import Ledger, Reader
from ..ledger.qualifications import qualification_of
from ..ledger.verdicts import NoVerdictReason
from .agreement import Agreement, agreements_of_judges
from .evaluation_models import AgreementLine, EvaluationEnd, JudgeLine, JudgeRecovery, QualifiedPart
from .evaluations import SessionEnd
from .qualification import unmet
from .results import ExitStatus, NextMove, exit_status_of

__all__ = ["agreement_line", "evaluation_end", "only_it"]


def evaluation_end(
    ledger: Ledger, row: EvaluationRow, done: SessionEnd, *, order: str = "ORDER", ledger_option: str = ""
) -> EvaluationEnd:
    """How the evaluation stands after a session of it; ``order`` is the judge work order's file."""
    with ledger.reading() as reader:
        row = find_evaluation(reader, row.run_key, row.evaluation_id)
        lines = judge_lines(reader, row.run_key, row.evaluation_no)
        agreements = [agreement_line(one) for one in agreements_of_judges(reader, row.run_key, row.evaluation_no)]
        only = only_it(reader, row)
    move = _next(row, lines)
    found = done.hold.recovered if done.hold is not None else None
    recovery = JudgeRecovery() if found is None else JudgeRecovery(
        dead_worker=found.dead_worker, again=found.again, undecided=found.undecided, parked=found.parked,
    )  # fmt: skip
    status = ExitStatus.INTERRUPTED if done.stopped and move is NextMove.RESUME else exit_status_of(move)
    assert row.set_at_event is not None
    return EvaluationEnd(
        ledger=str(ledger.path), run=row.run_id, evaluation=row.evaluation_no, id=row.evaluation_id, name=row.name,
        set_at_event=row.set_at_event, ended=row.ended_us is not None,
        next=move.value,
        command=_command(move, row, lines, shlex.quote(order) + only, ledger_option), exit_status=int(status),
        judges=lines,
        agreements=agreements, calls=done.dispatches, stopped=done.stopped, recovery=recovery,
    )  # fmt: skip


def judge_lines(reader: Reader, run_key: int, evaluation_no: int) -> list[JudgeLine]:
    """Each judge of an evaluation: how far it has come, and whether its verdicts count."""
    rows = {row.judge_no: row for row in judge_rows(reader, run_key, evaluation_no)}
    return [
        _line(tally, _qualified(reader, rows[tally.judge_no]))
        for tally in judge_tallies(reader, run_key, evaluation_no)
    ]


def agreement_line(found: Agreement) -> AgreementLine:
    """The agreement as it is told."""
    kappa = found.kappa
    return AgreementLine(
        judges=[found.first, found.second], count=found.count, agreed=found.agreed, rate=found.rate,
        kappa=None if kappa is None else kappa.value,
        kappa_low=None if kappa is None else kappa.interval.low,
        kappa_high=None if kappa is None else kappa.interval.high,
    )  # fmt: skip


def _line(tally: JudgeTally, qualified: QualifiedPart | None) -> JudgeLine:
    return JudgeLine(
        judge=tally.judge, planned=tally.planned, waiting=tally.waiting, judged=tally.judged, passed=tally.passed,
        rated=tally.rated, mean=tally.score_sum / tally.scored if tally.scored else None, reused=tally.reused,
        no_verdict=dict(sorted(tally.no_verdict.items())), examples=dict(sorted(tally.examples.items())),
        qualified=qualified,
    )  # fmt: skip


def _qualified(reader: Reader, row: JudgeRow) -> QualifiedPart | None:
    if row.requirement is None:
        return None
    required = parse_json(row.requirement)
    assert isinstance(required, dict)
    found = None if row.qualification_id is None else qualification_of(reader, row.qualification_id)
    lacking = unmet(required, None if found is None else found.document)
    return QualifiedPart(
        required=required,
        met=bool(row.qualified), lacking=lacking, qualification=row.qualification_id,
        brought=found is not None and found.is_brought,
    )  # fmt: skip


def _next(row: EvaluationRow, lines: list[JudgeLine]) -> NextMove:
    reasons = {reason for line in lines for reason in line.no_verdict}
    if NoVerdictReason.OUT_OF_BUDGET in reasons and _reparsed(row) is None:
        return NextMove.FUND
    if row.ended_us is None:
        return NextMove.RESUME
    is_unqualified = any(line.qualified is not None and not line.qualified.met for line in lines)
    return NextMove.DECIDE if reasons or is_unqualified else NextMove.NOTHING


def _reparsed(row: EvaluationRow) -> str | None:
    """The id of the evaluation whose replies this one reads again."""
    document = parse_json(row.document)
    assert isinstance(document, dict)
    found = document.get("reparsed")
    return None if found is None else str(found)


def only_it(reader: Reader, row: EvaluationRow) -> str:
    """What the command has to say so that it finds this evaluation, and neither a newer one nor a new one."""
    if _reparsed(row) is not None:
        return ""  # --reparse names its event
    newest = newest_of_digest(reader, row.run_key, row.document_digest)
    assert newest is not None
    assert row.set_at_event is not None
    is_found = newest.evaluation_no == row.evaluation_no and (
        row.ended_us is None or not has_selected_since(reader, row.run_key, row.set_at_event)
    )
    return "" if is_found else f" --at {row.set_at_event}"


def _command(move: NextMove, row: EvaluationRow, lines: list[JudgeLine], order: str, ledger_option: str) -> str:
    source = _reparsed(row)
    match move:
        case NextMove.RESUME | NextMove.FUND:
            # Without it the judges would be asked, and paid for.
            again = "" if source is None else f" --reparse {source}"
            return f"tallystick judge {row.run_id} {order}{again}{ledger_option}"
        case NextMove.DECIDE if source is not None:
            return ""  # the same reply read again says the same
        case NextMove.DECIDE:
            reasons = sorted({reason for line in lines for reason in line.no_verdict})
            retry = "".join(f" --retry {reason}" for reason in reasons)
            return f"tallystick judge {row.run_id} {order}{retry}{ledger_option}"
        case _:
            return ""
