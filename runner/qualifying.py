"""Holding judges against labels: the labelled observations become a run, an evaluation judges it, figures are kept.

So a qualification has intents, budgets, a cache and a history like everything that is paid for, and is gone on with
after a death. Its run observes what the file says, without any call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import attrs

from ..ledger.canonical import JsonValue, parse_json, unescaped_text
from ..ledger.errors import UsageError
from ..ledger.evaluations import EvaluationRow
from ..ledger.judging_reads import JudgeRow, judge_rows, verdicts_by_case
from ..ledger.ledger import Ledger
from ..ledger.qualifications import add_qualification, newest_qualification
from .agreement import agreement_of
from .descriptions import Adapters, describe
from .evaluation_reports import evaluation_end
from .evaluations import SessionEnd, describe_judge_order, find_or_create_evaluation, run_evaluation
from .judge_orders import JudgeOrder
from .judge_protocols import gives_pass
from .labelled import Labelled
from .protocols import Judge
from .qualification import unmet
from .qualification_models import LabelledSetPart, LabelLine, QualifiedLine, QualifyEnd
from .results import ExitStatus, NextMove, RunOutcome
from .sessions import find_or_create, run_session
from .stopping import StopSwitch
from .tally import JudgingTally
from .work_order import WorkOrder
from .work_order_judges import AnyJudge, JudgeSpec

__all__ = ["qualify"]

_NO_VERDICT: Final = "no verdict"


async def qualify(
    ledger: Ledger,
    order: JudgeOrder,
    labelled: Labelled,
    adapters: Adapters,
    *,
    stop: StopSwitch | None = None,
    concurrency: int | None = None,
    ledger_option: str = "",
    command: str = "",
    on_start: Callable[[JudgingTally], None] = lambda tally: None,
) -> QualifyEnd:
    """Judge the labelled observations, keep each judge's figures, and say them.

    The figures of a judge are kept once all of its judgments are given. Raises UsageError for labels that no verdict of
    a judge can be, before anything is asked where its scale says so.
    """
    switch = stop or StopSwitch()
    description = describe_judge_order(_without_requirements(order), adapters)
    for judge in description.judges:
        _refuse_unfit_labels(labelled, judge)
    session = find_or_create(ledger, describe(_observing(order, labelled), adapters))
    outcome = await run_session(ledger, session, stop=switch)
    if outcome.state != "finished":
        return _unobserved(ledger, labelled, outcome, command=f"{command}{ledger_option}")
    found = find_or_create_evaluation(ledger, session.run, description)
    done = await run_evaluation(ledger, found, stop=switch, concurrency=concurrency, on_start=on_start)
    return _end(ledger, order, labelled, found.row, done, ledger_option=ledger_option, command=command)


def _refuse_unfit_labels(labelled: Labelled, judge: Judge) -> None:
    """What cannot be compared is found out before its calls are paid for."""
    labels = labelled.labels_of(judge.name)
    if not labels:
        raise UsageError(
            f"{labelled.path.name} has no label for the judge {judge.name}",
            "label observations for it by its name, or with one label for every judge",
        )
    scores = sorted(labels - {"pass", "fail"}, key=float)
    if scores and judge.scale is None:
        raise _no_scores(judge.name)
    if len(scores) < len(labels) and not gives_pass(judge):
        raise _no_passes(judge.name)
    off = [text for text in scores if judge.scale and not judge.scale[0] <= float(text) <= judge.scale[1]]
    if off and judge.scale:
        raise UsageError(
            f"the label {float(off[0]):g} is not on the scale {judge.scale[0]:g} to {judge.scale[1]:g} of the judge"
            f" {judge.name}",
            "correct the label, or the scale",
        )


def _no_scores(judge: str) -> UsageError:
    return UsageError(
        f"the labels are scores, and the judge {judge} gives none", "give it a scale, or label with pass and fail"
    )


def _no_passes(judge: str) -> UsageError:
    return UsageError(
        f"the labels are pass and fail, and the judge {judge} gives scores",
        "give it the least score that passes (pass_at, or at_least of a similarity), or label with scores",
    )


def _unobserved(ledger: Ledger, labelled: Labelled, outcome: RunOutcome, *, command: str) -> QualifyEnd:
    """It was asked to stop before the labelled observations were all in the ledger: nothing is judged yet."""
    return QualifyEnd(
        ledger=str(ledger.path), run=outcome.run_id, evaluation=0, labelled=_set_of(labelled), judges=[],
        next=NextMove.RESUME.value, command=command, exit_status=int(outcome.exit_status), calls=0,
        stopped=outcome.stopped,
    )  # fmt: skip


def _set_of(labelled: Labelled) -> LabelledSetPart:
    return LabelledSetPart(file=str(labelled.path), digest=labelled.digest, count=len(labelled.cases))


def _observing(order: JudgeOrder, labelled: Labelled) -> WorkOrder:
    """A work order whose target answers what the file says."""
    target = {"kind": "recorded", "file": labelled.path.name}
    return WorkOrder(
        f"qualify {order.name[:150]} {labelled.digest[7:15]}", cases=list(labelled.cases), target=target,
        folder=labelled.path.parent, concurrency=64,
    )  # fmt: skip


def _without_requirements(order: JudgeOrder) -> JudgeOrder:
    """What is measured here is what a requirement asks for."""

    def bare(judge: AnyJudge) -> AnyJudge:
        if not isinstance(judge, JudgeSpec):
            return judge
        return attrs.evolve(judge, settings=attrs.evolve(judge.settings, require={}))

    return order.replaced(judges=tuple(map(bare, order.judges)))


def _end(
    ledger: Ledger,
    order: JudgeOrder,
    labelled: Labelled,
    row: EvaluationRow,
    done: SessionEnd,
    *,
    ledger_option: str,
    command: str,
) -> QualifyEnd:
    judged = evaluation_end(ledger, row, done)
    lines = [_kept(ledger, one, labelled, order, row, is_whole=judged.ended) for one in _judges(ledger, row)]
    move = NextMove(judged.next)
    is_met = all(not line.no_verdict if line.met is None else line.met for line in lines)
    if move in (NextMove.NOTHING, NextMove.DECIDE):
        move = NextMove.NOTHING if is_met else NextMove.DECIDE
    status = {NextMove.NOTHING: ExitStatus.DONE, NextMove.DECIDE: ExitStatus.DECIDE}.get(move, judged.exit_status)
    return QualifyEnd(
        ledger=str(ledger.path), run=row.run_id, evaluation=row.evaluation_no, labelled=_set_of(labelled), judges=lines,
        next=move.value, command=f"{command}{ledger_option}" if move in _GOES_ON else "", exit_status=int(status),
        calls=done.dispatches, stopped=done.stopped,
    )  # fmt: skip


_GOES_ON: Final = (NextMove.RESUME, NextMove.FUND)


def _judges(ledger: Ledger, row: EvaluationRow) -> list[JudgeRow]:
    with ledger.reading() as reader:
        return judge_rows(reader, row.run_key, row.evaluation_no)


def _kept(
    ledger: Ledger, judge: JudgeRow, labelled: Labelled, order: JudgeOrder, row: EvaluationRow, *, is_whole: bool
) -> QualifiedLine:
    """The judge's figures, kept where all of its judgments are given, and once for the same set."""
    table, no_verdict = _compared(ledger, judge, labelled, row)
    line = _figures(judge.name, table, no_verdict)
    document: dict[str, JsonValue] = {
        **line.model_dump(mode="json", exclude={"qualification", "required", "met", "lacking"}),
        "kind": judge.kind, "identity": parse_json(judge.identity), "run": row.run_id, "evaluation": row.evaluation_no,
        "file": labelled.path.name, "set": labelled.digest,
    }  # fmt: skip
    name: str | None = None
    if is_whole:
        with ledger.reading() as reader:
            newest = newest_qualification(reader, judge.identity_digest)
        if newest is not None and newest.document == document:
            name = newest.qualification_id
        else:
            name = ledger.write(
                lambda tx: add_qualification(
                    tx, judge_digest=judge.identity_digest, set_digest=labelled.digest, document=document
                )
            )
    required = dict(order.settings()[judge.name].require)
    lacking = unmet(required, document if is_whole else None) if required else []
    return line.model_copy(
        update={
            "qualification": name,
            "required": required,
            "lacking": lacking,
            "met": not lacking if required else None,
        }
    )


def _compared(
    ledger: Ledger, judge: JudgeRow, labelled: Labelled, row: EvaluationRow
) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """How often each verdict was given to each label, and why there was none."""
    table, no_verdict = Counter[tuple[str, str]](), Counter[str]()
    with ledger.reading() as reader:
        for case_id, passed, score, reason in verdicts_by_case(reader, row.run_key, row.evaluation_no, judge.judge_no):
            label = labelled.label_of(unescaped_text(case_id), judge.name)
            if label is None:
                continue
            if reason is not None:
                no_verdict[reason] += 1
                table[label, _NO_VERDICT] += 1
            else:
                table[label, _verdict_as(label, passed, score, judge.name)] += 1
    return table, no_verdict


def _verdict_as(label: str, passed: int | None, score: str | None, judge: str) -> str:
    """The verdict in the label's own kind: pass or fail, or a score."""
    if label in ("pass", "fail"):
        if passed is None:
            raise _no_passes(judge)
        return "pass" if passed else "fail"
    if score is None:
        raise _no_scores(judge)
    return score


def _figures(judge: str, table: Mapping[tuple[str, str], int], no_verdict: Mapping[str, int]) -> QualifiedLine:
    given = {pair: count for pair, count in table.items() if pair[1] != _NO_VERDICT}
    found, labels = agreement_of("labels", judge, given), sum(table.values())
    kappa = found.kappa
    return QualifiedLine(
        judge=judge, labels=labels, judged=found.count, agreed=found.agreed, accuracy=found.rate,
        accuracy_low=None if found.interval is None else found.interval.low,
        accuracy_high=None if found.interval is None else found.interval.high,
        kappa=None if kappa is None else kappa.value,
        kappa_low=None if kappa is None else kappa.interval.low,
        kappa_high=None if kappa is None else kappa.interval.high,
        coverage=found.count / labels if labels else 0.0,
        by_label=[_label_line(label, table) for label in sorted({label for label, _ in table})],
        confusion=_confusion(table), no_verdict=dict(sorted(no_verdict.items())),
        qualification=None, required={}, met=None, lacking=[],
    )  # fmt: skip


def _label_line(label: str, table: Mapping[tuple[str, str], int]) -> LabelLine:
    labelled = sum(count for (one, _), count in table.items() if one == label)
    judged = sum(count for (_, verdict), count in table.items() if verdict == label)
    agreed = table.get((label, label), 0)
    return LabelLine(
        label=label, labelled=labelled, judged=judged, agreed=agreed,
        recall=agreed / labelled if labelled else None, precision=agreed / judged if judged else None,
    )  # fmt: skip


def _confusion(table: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (label, verdict), count in sorted(table.items()):
        found.setdefault(label, {})[verdict] = count
    return found
