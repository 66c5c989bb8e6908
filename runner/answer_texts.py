"""From a whole answer to the texts that the ledger keeps of it, and to the settlement of an outcome by it."""

from __future__ import annotations

import attrs

from ..ledger import artifacts
from ..ledger.canonical import canonical_text, digest_of_bytes
from ..ledger.ledger import Ledger
from ..ledger.records import Artifact
from ..ledger.settlements import Decision, Settlement
from ..ledger.states import DispatchState
from .outcome_facts import facts_of
from .protocols import EVIDENCE_LEFT_OUT, MISSING, Outcome

__all__ = ["AnswerTexts", "NoAnswer", "answer_texts", "checkpoint_of", "settlement_by"]


class NoAnswer(Exception):
    """An outcome that says *answered* and brings none; ``reason`` is a stable dotted token."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@attrs.frozen
class AnswerTexts:
    """Canonical JSON of an answer, and its digest."""

    answer: str
    digest: str
    evidence: str
    flags: str


def answer_texts(outcome: Outcome) -> AnswerTexts:
    """The texts; raises NoAnswer where there is no answer, or one that is not JSON.

    Evidence that is not JSON is left out and the answer flagged: it is paid for.
    """
    if outcome.answer is MISSING:
        raise NoAnswer("answer.missing", "there is no answer in it")
    try:
        text = canonical_text(outcome.answer)  # type: ignore[arg-type]  # MISSING was asked for
    except (TypeError, ValueError) as problem:
        raise NoAnswer("answer.not_json", str(problem)) from problem
    given, flags = outcome.evidence, outcome.flags
    evidence = {name: value for name, value in given.items() if _is_json({name: value})}
    if len(evidence) < len(given) and EVIDENCE_LEFT_OUT not in flags:
        flags = (*flags, EVIDENCE_LEFT_OUT)
    return AnswerTexts(
        text, digest_of_bytes(text.encode()),
        canonical_text(evidence) if evidence else "{}", canonical_text(list(flags)) if flags else "[]",
    )  # fmt: skip


def _is_json(value: object) -> bool:
    try:
        canonical_text(value)  # type: ignore[arg-type]  # that is the question
    except (TypeError, ValueError):
        return False
    return True


async def settlement_by(
    ledger: Ledger, call_id: str, dispatch_no: int, outcome: Outcome, *, made_by: str, reason: str
) -> Settlement:
    """What an outcome that was fetched later settles: LANDED with its answer, else FAILED. Large bytes go to files."""
    facts = await artifacts.with_stored_raw(ledger, facts_of(outcome, duration_us=None, settled_by=made_by))
    if outcome.state is not DispatchState.ANSWERED:
        return Settlement(call_id, dispatch_no, Decision.FAILED, made_by, outcome.message or outcome.reason, facts)
    try:
        texts = answer_texts(outcome)
    except NoAnswer as none:
        failed = attrs.evolve(facts, state=DispatchState.FAILED, reason=none.reason, message=str(none))
        return Settlement(call_id, dispatch_no, Decision.FAILED, made_by, str(none), failed)
    return Settlement(
        call_id, dispatch_no, Decision.LANDED, made_by, reason, facts,
        await artifacts.stored_answer(ledger, texts.answer), texts.digest, texts.evidence, texts.flags,
        await checkpoint_of(ledger, outcome),
    )  # fmt: skip


async def checkpoint_of(ledger: Ledger, outcome: Outcome) -> Artifact | None:
    """The checkpoint that came with an answer, ready to be recorded."""
    if outcome.checkpoint is None:
        return None
    return await artifacts.prepare_async(ledger, outcome.checkpoint, media_type="application/octet-stream")
