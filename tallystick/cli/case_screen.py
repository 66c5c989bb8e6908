"""The page of one case: each planned observation, its attempts, what was sent, answered, judged and settled."""

from __future__ import annotations

import json

from ..runner.case_pages import AttemptPart, CaseModel, DispatchPart, JudgmentPart, SlotPart, TurnPart
from .screen import Screen, Tone
from .words import decision_word, joined

__all__ = ["show_case"]


def show_case(screen: Screen, found: CaseModel) -> None:
    """Everything about the case, the newest attempt of each planned observation last."""
    screen.line(f"case {found.case} of run {found.run} ({found.name})", tone=Tone.STRONG)
    screen.pairs([
        ("ledger", found.ledger), ("input", _value(found.input)),
        ("expected", _value(found.expected) if found.has_expected else "(none)"),
        *([("metadata", _value(found.metadata))] if found.metadata else []),
    ])  # fmt: skip
    for slot in found.planned:
        _slot(screen, slot)


def _slot(screen: Screen, slot: SlotPart) -> None:
    screen.line()
    why = f" ({slot.reason})" if slot.reason else ""
    screen.line(f"{slot.variant}, repetition {slot.repetition}: {slot.state.replace('_', ' ')}{why}", tone=Tone.STRONG)
    if slot.not_before and slot.state == "pending":
        screen.line(f"  waits until {slot.not_before}")
    for attempt in slot.attempts:
        _attempt(screen, attempt, selected=attempt.number == slot.selected_attempt)
    for one in slot.judgments:
        _judgment(screen, one)


def _judgment(screen: Screen, one: JudgmentPart) -> None:
    """A verdict or why there is none; then the reply that it was not found in, too."""
    said = one.reason or one.state if one.passed is None and one.score is None else joined([
        "" if one.passed is None else "passed" if one.passed else "not passed", one.score or "",
    ])  # fmt: skip
    which = joined([
        f"evaluation {one.evaluation}" if one.evaluation > 1 else "", f"judge {one.judge}",
        f"sample {one.sample} of {one.samples}" if one.samples > 1 else "",
    ])  # fmt: skip
    screen.line(joined([f"  {which}: {said}", one.explanation or "", "used again" if one.reused_from else ""]))
    for dispatch in one.dispatches:
        screen.line(f"    {_dispatch(dispatch)}")
    if one.reason and one.reply is not None:
        screen.line(f"    reply: {_value(one.reply)}")


def _attempt(screen: Screen, attempt: AttemptPart, *, selected: bool) -> None:
    mark = ", selected" if selected else ""
    screen.line(joined([f"  attempt {attempt.number}: {attempt.state.replace('_', ' ')}{mark}", attempt.reason or "",
                        attempt.message or "", f"began {attempt.began_at}"]))  # fmt: skip
    if attempt.contaminated:
        screen.line("    contaminated: an earlier holder touched its device meanwhile, or may have", tone=Tone.WARNING)
    if attempt.reused_from:
        run_id, slot_no, number = attempt.reused_from.split("/")
        screen.line(f"    taken over from run {run_id}, slot {slot_no}, attempt {number}")
    talk = attempt.conversation
    if talk is not None:
        restored = f", restored from {talk.checkpoint[:19]}…" if talk.checkpoint else ""
        screen.line(f"    session {talk.session}{restored}")
    for dispatch in attempt.dispatches:
        screen.line(f"    {_dispatch(dispatch)}")
    for turn in [] if talk is None else talk.turns:
        screen.line(f"    {_turn(turn)}")
    if attempt.has_answer:
        flags = f" [{', '.join(attempt.flags)}]" if attempt.flags else ""
        source = f" (by {attempt.source})" if attempt.source not in ("wire", "reused") else ""
        screen.line(f"    answer{source}: {_value(attempt.answer)}{flags}")
    told = {key: value for key, value in attempt.evidence.items() if key != "turns" or talk is None}
    if told:
        screen.line(f"    evidence: {_value(told)}")
    for one in attempt.settlements:
        screen.line(f"    settled as {decision_word(one.decision)} by {one.made_by} at {one.made_at}: {one.reason}")


def _turn(one: TurnPart) -> str:
    """A turn that is committed: what was said, what was answered, and how it came here."""
    how = f"carried from attempt {one.carried_from}" if one.carried_from is not None else f"by {one.source}"
    return joined([
        f"turn {one.turn}: {_value(one.message)} → {_value(one.answer)}", "" if how == "by wire" else how,
        "a replay" if one.replay else "", ", ".join(one.flags),
    ])  # fmt: skip


def _dispatch(one: DispatchPart) -> str:
    used = joined([
        "" if one.tokens_in is None else f"{one.tokens_in} tokens in",
        "" if one.tokens_out is None else f"{one.tokens_out} tokens out",
        "" if one.cost_usd is None else f"${one.cost_usd}",
        *([] if one.usage is None else one.usage.problems),
    ])  # fmt: skip
    return joined([
        f"call {one.call}, send {one.number}: {one.state}", f"fence {one.fence}" if one.fence else "",
        one.reason or "", one.message or "",
        "" if one.status is None else f"status {one.status}",
        "bytes sent not known" if one.bytes_sent is None else f"{one.bytes_sent} bytes sent",
        "" if one.seconds is None else f"{one.seconds:.3f} s", used, "replay" if one.replay else "",
    ])  # fmt: skip


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
