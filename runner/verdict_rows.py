"""From what a judge said to the row that the ledger keeps: checked, on its scale, and never defaulted or clamped."""

from __future__ import annotations

from ..ledger.canonical import escaped_text, printable
from ..ledger.records import JudgmentRow
from ..ledger.verdicts import NoVerdictReason
from .protocols import NoVerdict, Verdict

__all__ = ["by_judge", "checked", "judgment_row"]

_EXPLANATION_MAX = 2_000
_RAW_MAX = 64 * 1024
_SHOWN_MAX = 80
_KNOWN = frozenset(NoVerdictReason)
_NOT_A_JUDGES = frozenset(
    {NoVerdictReason.OUT_OF_BUDGET, NoVerdictReason.TARGET_UNAVAILABLE, NoVerdictReason.NOT_ATTEMPTED}
)


def judgment_row(
    judge_no: int,
    slot_no: int,
    attempt_no: int,
    said: object,
    scale: tuple[float, float] | None,
    *,
    sample_no: int = 1,
    raw: str | None = None,
    parser: str | None = None,
    evidence_digest: str | None = None,
    cache_key: str | None = None,
    reused_from: str | None = None,
    call_id: str | None = None,
) -> JudgmentRow:
    """The row of one judgment; ``raw`` is cut at 64 KiB and kept so that NUL and lone surrogates survive."""
    verdict = checked(said, scale)
    explanation = printable(verdict.explanation)[:_EXPLANATION_MAX]
    passed, score, reason = None, None, None
    if isinstance(verdict, NoVerdict):
        reason = str(verdict.reason)
    else:
        passed, score = verdict.passed, None if verdict.score is None else repr(float(verdict.score))
    return JudgmentRow(
        judge_no, slot_no, attempt_no, passed, score, reason, explanation, sample_no,
        raw=None if raw is None else escaped_text(raw[:_RAW_MAX]), parser=parser, evidence_digest=evidence_digest,
        cache_key=cache_key, reused_from=reused_from, call_id=call_id,
    )  # fmt: skip


def checked(said: object, scale: tuple[float, float] | None) -> Verdict | NoVerdict:
    """A verdict that can count, or why there is none; a bool is a verdict, and nothing else is guessed."""
    if isinstance(said, bool):
        said = Verdict(passed=said)
    if not isinstance(said, Verdict | NoVerdict):
        return _malformed(f"a judge returned {type(said).__name__}")
    explanation: object = said.explanation
    if not isinstance(explanation, str):
        return _malformed(f"the explanation is {type(explanation).__name__}")
    return _no_verdict(said) if isinstance(said, NoVerdict) else _verdict(said, scale)


def by_judge(said: object) -> object:
    """What a judge itself said: a reason that only the runner can know becomes an abstention."""
    if isinstance(said, NoVerdict) and said.reason in _NOT_A_JUDGES:
        return NoVerdict(NoVerdictReason.ABSTAINED, f"{said.reason}: {said.explanation}")
    return said


def _no_verdict(said: NoVerdict) -> NoVerdict:
    """With a reason of the closed vocabulary: a word of a judge's own stands before its explanation."""
    reason: object = said.reason
    if not (isinstance(reason, str) and reason):
        return _malformed("the reason for no verdict is no text")
    if reason in _KNOWN:
        return said
    return NoVerdict(NoVerdictReason.ABSTAINED, ": ".join(filter(None, (reason, said.explanation))))


def _verdict(said: Verdict, scale: tuple[float, float] | None) -> Verdict | NoVerdict:
    passed: object = said.passed
    if passed is None and said.score is None:
        return _malformed("neither passed nor a score")
    if passed is not None and not isinstance(passed, bool):
        return _malformed(f"passed is {type(passed).__name__}")
    if said.score is not None and not _is_on(said.score, scale):
        shown = "it declares none" if scale is None else f"{scale[0]:g} to {scale[1]:g}"
        return _malformed(f"the score {_shown(said.score)} is not on the judge's scale ({shown})")
    return said


def _is_on(score: object, scale: tuple[float, float] | None) -> bool:
    # NaN is on no scale: every comparison with it is false.
    if isinstance(score, bool) or not isinstance(score, int | float) or scale is None:
        return False
    return scale[0] <= score <= scale[1]


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the text of a judge's own object, or an integer too long to be written
        return f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."


def _malformed(why: str) -> NoVerdict:
    return NoVerdict(NoVerdictReason.MALFORMED_VERDICT, why)
