"""What each kind of event does to a run's history (`history.RunHistory`): one function a kind, in one table.

Every kind that the ledger writes stands in `EFFECTS` or in `WITHOUT_EFFECT`; a test holds that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from .evaluations import INLINE
from .history import Mark, OpenAttempt, OpenDispatch, RunHistory, SessionSpan, code_of
from .standing import numbers_of
from .states import CallOwner, CustodyState, DispatchState, NextStep, RunState, SlotState
from .verdicts import NoVerdictReason

__all__ = ["EFFECTS", "INTENTS", "WITHOUT_EFFECT", "note_later"]

INTENTS: Final = frozenset({"dispatch.intended", "judgment.call_intended"})
"""Kinds that set something aside in budgets."""

_CUSTODY: Final[dict[str, str | None]] = {
    "run.adopted": None,  # it says so itself
    "run.custody_lost": CustodyState.HELD.value,
    "run.moving": CustodyState.HELD.value,
    "run.taken_over": CustodyState.COPY.value,
}
"""Kinds that change who may continue the run, and who might before."""

_ATTEMPT: Final = CallOwner.ATTEMPT.value
_IN_FLIGHT: Final = code_of(SlotState.IN_FLIGHT)
_PENDING: Final = code_of(SlotState.PENDING)
_SELECTED: Final = code_of(SlotState.SELECTED)

Effect: TypeAlias = Callable[[RunHistory, Mark], None]


def _intended(history: RunHistory, mark: Mark) -> None:
    # As `_begun` and `_open` do: this and `_observed` are nearly all the events that a run has.
    body = mark.body
    slot_no, attempt_no = body["slot"], body["attempt"]
    history.codes[slot_no] = _IN_FLIGHT
    history.attempts[slot_no] = attempt_no
    history.open_attempts[slot_no, attempt_no] = OpenAttempt("running")
    history.open_dispatches[body["call"], body["dispatch"]] = OpenDispatch(
        _ATTEMPT, slot_no, attempt_no, "intended", body.get("held", {})
    )


def _begun(history: RunHistory, mark: Mark) -> None:
    slot_no, attempt_no = mark.body["slot"], mark.body["attempt"]
    history.put(slot_no, SlotState.IN_FLIGHT, history.reasons.get(slot_no))
    history.attempts[slot_no] = attempt_no
    history.open_attempts[slot_no, attempt_no] = OpenAttempt("running")


def _open(history: RunHistory, body: dict[str, Any], owner: str) -> None:
    history.open_dispatches[body["call"], body["dispatch"]] = OpenDispatch(
        owner, body["slot"], body["attempt"], "intended", body.get("held", {})
    )


def _judge_intended(history: RunHistory, mark: Mark) -> None:
    _open(history, mark.body, CallOwner.JUDGMENT)


def _call_ended(history: RunHistory, mark: Mark) -> None:
    if mark.body["state"] == DispatchState.UNKNOWN:
        _lose(history, mark)
    else:
        _close(history, mark.body)


def _close(history: RunHistory, body: dict[str, Any]) -> None:
    history.open_dispatches.pop((body["call"], body["dispatch"]), None)


def _observed(history: RunHistory, mark: Mark) -> None:
    # As `_close` and `_end` do.
    body = mark.body
    slot_no, attempt_no = body["slot"], body["attempt"]
    history.open_dispatches.pop((body["call"], body["dispatch"]), None)
    history.open_attempts.pop((slot_no, attempt_no), None)
    history.attempts[slot_no] = attempt_no
    history.codes[slot_no] = _SELECTED
    history.reasons.pop(slot_no, None)
    history.steps.pop(slot_no, None)
    history.selected_at[slot_no] = mark.event_no


def _end(history: RunHistory, body: dict[str, Any], state: str, reason: str | None) -> None:
    """The attempt has an end, and the slot is where that leads."""
    slot_no = body["slot"]
    history.open_attempts.pop((slot_no, body["attempt"]), None)
    history.attempts[slot_no] = body["attempt"]
    history.put(slot_no, state, reason)
    history.put_step(slot_no, NextStep.NEW)


def _known(history: RunHistory, mark: Mark) -> None:
    """A dispatch has its outcome, and its attempt goes on."""
    _close(history, mark.body)


def _given_back(history: RunHistory, mark: Mark) -> None:
    body = mark.body
    _end(history, body, SlotState.UNAVAILABLE if body["not_before"] < 0 else SlotState.PENDING, body["reason"])
    if body.get("attempt_state") == "unknown":
        # An earlier turn of it was answered when it was sent again: its first send stays unknown, and so does this.
        open_one = OpenAttempt("unknown", mark.at_us, body["reason"], body["message"])
        history.open_attempts[body["slot"], body["attempt"]] = open_one


def _failed(history: RunHistory, mark: Mark) -> None:
    _close(history, mark.body)
    _end(history, mark.body, SlotState.PENDING if mark.body["again"] else SlotState.FAILED, mark.body["reason"])


def _unknown(history: RunHistory, mark: Mark) -> None:
    body, slot_no = mark.body, mark.body["slot"]
    history.open_attempts[slot_no, body["attempt"]] = OpenAttempt(
        "unknown", mark.at_us, body["reason"], body.get("message")
    )
    decide = body["next"] == "decide"
    history.put(slot_no, SlotState.UNKNOWN if decide else SlotState.PENDING, body["reason"])
    history.put_step(slot_no, NextStep.NEW if decide else body["next"])
    _lose(history, mark)


def _lose(history: RunHistory, mark: Mark) -> None:
    body = mark.body
    dispatch = history.open_dispatches.get((body["call"], body["dispatch"]))
    if dispatch is not None and dispatch.state == "intended":
        dispatch.state, dispatch.ended_us = "unknown", mark.at_us
        dispatch.reason, dispatch.message = body["reason"], body.get("message")
        dispatch.bytes_sent, dispatch.duration_us = body.get("bytes_sent"), body.get("duration_us")
        dispatch.status = body.get("status")


def _stands(history: RunHistory, mark: Mark) -> None:
    """What was unknown has an outcome; the event says where that left slot, attempt and run."""
    body, slot_no = mark.body, mark.body["slot"]
    _close(history, body)
    history.put(slot_no, body["slot_state"], body["slot_reason"])
    history.put_step(slot_no, body["next"])
    if body["slot_state"] == SlotState.SELECTED and not history.selected_at[slot_no]:
        history.selected_at[slot_no] = mark.event_no
    if body["attempt_state"] not in ("running", "unknown"):
        history.open_attempts.pop((slot_no, body["attempt"]), None)
    if mark.kind == "dispatch.settled":
        history.settled_by_decision.add((body["call"], body["dispatch"]))
    if body["run_state"] != history.run_state:
        history.run_state, history.ended_us = body["run_state"], None
    history.marks.append(mark)


def _interrupted(history: RunHistory, mark: Mark) -> None:
    before = history.reasons.get(mark.body["slot"])
    _end(history, mark.body, SlotState.PENDING, mark.body.get("reason", before))


def _parked(history: RunHistory, mark: Mark) -> None:
    history.put(mark.body["slot"], SlotState.PARKED, "kills_the_runner")
    history.marks.append(mark)


def _slot_unavailable(history: RunHistory, mark: Mark) -> None:
    history.put(mark.body["slot"], SlotState.UNAVAILABLE, mark.body["reason"])


def _slot_unknown(history: RunHistory, mark: Mark) -> None:
    history.put(mark.body["slot"], SlotState.UNKNOWN, mark.body["reason"])
    if "undecided" not in mark.body:
        history.put_step(mark.body["slot"], NextStep.NEW)


def _named(history: RunHistory, mark: Mark) -> Iterator[int]:
    """The slots that an event names by ranges, of which a few bytes may name any number as often as they like.

    Each waits until then. So none is named twice unless another event let it wait again, and all of a history costs as
    much as slots have changed, however it is written. Raises ValueError at the first that does not wait.
    """
    for slot_no in numbers_of(mark.body["slots"]):
        if slot_no < 1 or history.codes[slot_no] != _PENDING:
            raise ValueError(f"event {mark.event_no} names slot {slot_no}, which does not wait")
        yield slot_no


def _slots_unavailable(history: RunHistory, mark: Mark) -> None:
    for slot_no in _named(history, mark):
        history.put(slot_no, SlotState.UNAVAILABLE, mark.body["reason"])
    history.marks.append(mark)


def _slots_unknown(history: RunHistory, mark: Mark) -> None:
    variant = mark.body["variant"]
    for slot_no in sorted(history.steps):
        is_meant = variant is None or (slot_no - 1) % history.variants + 1 == variant
        if is_meant and history.state_of(slot_no) is SlotState.PENDING:
            history.put(slot_no, SlotState.UNKNOWN, mark.body["reason"])
    history.marks.append(mark)


def _retried(history: RunHistory, mark: Mark) -> None:
    state, reason, undecided = mark.body["state"], mark.body["reason"], mark.body.get("undecided", False)
    chosen = [slot_no for slot_no in history.slots_in(state) if _fits(history.reasons.get(slot_no), reason, undecided)]
    if undecided:
        waiting = (slot_no for slot_no in history.steps if history.state_of(slot_no) is SlotState.UNKNOWN)
        chosen += [slot_no for slot_no in waiting if history.reasons.get(slot_no) == reason]
    for slot_no in chosen:
        history.put(slot_no, SlotState.PENDING, None)
    if history.run_state == RunState.FINISHED or (history.run_state == RunState.CANCELLED and not undecided):
        history.run_state, history.ended_us = RunState.OPEN.value, None
    history.marks.append(mark)


def _fits(found: str | None, wanted: str | None, exactly: bool) -> bool:
    if wanted is None or found == wanted:
        return True
    return not exactly and found is not None and found.startswith(f"{wanted}.")


def _planned(history: RunHistory, mark: Mark) -> None:
    history.planned = mark.body["planned"]
    history.marks.append(mark)


def _reused(history: RunHistory, mark: Mark) -> None:
    """A fork has these from the run that it comes of: each has one attempt, which was not made in this run."""
    for slot_no in _named(history, mark):
        if history.attempts[slot_no]:
            raise ValueError(f"event {mark.event_no} reuses slot {slot_no}, which has an attempt")
        history.put(slot_no, SlotState.SELECTED, None)
        history.attempts[slot_no], history.selected_at[slot_no] = 1, mark.event_no
    history.contaminated.update((slot_no, 1) for slot_no in mark.body["contaminated"])
    history.marks.append(mark)


def _kept(history: RunHistory, mark: Mark) -> None:
    """A fork has this one failed or unknown from the run that it comes of."""
    body, slot_no = mark.body, mark.body["slot"]
    history.put(slot_no, body["state"], body["reason"])
    history.attempts[slot_no] = 1
    if body["contaminated"]:
        history.contaminated.add((slot_no, 1))
    if body["state"] != SlotState.UNKNOWN:
        return
    message = body["message"]
    history.open_attempts[slot_no, 1] = OpenAttempt("unknown", body["ended_us"], body["reason"], message)
    for call_id, dispatch_no, bytes_sent, duration_us, status, ended_us, reason in body["sends"]:
        history.open_dispatches[call_id, dispatch_no] = OpenDispatch(
            CallOwner.ATTEMPT, slot_no, 1, "unknown", {}, ended_us, reason, message, bytes_sent, duration_us, status
        )


def _grown(history: RunHistory, mark: Mark) -> None:
    history.planned = mark.body["planned"]
    _is_open_again(history)


def _slot_retried(history: RunHistory, mark: Mark) -> None:
    history.put(mark.body["slot"], SlotState.PENDING, None)
    _is_open_again(history)


def _is_open_again(history: RunHistory) -> None:
    if history.run_state == RunState.FINISHED:
        history.run_state, history.ended_us = RunState.OPEN.value, None


def _opened(history: RunHistory, mark: Mark) -> None:
    last = history.sessions[-1] if history.sessions else None
    if last is not None and last.ended_us is None:
        last.ended_us, last.died = history.at_us, True
    history.started_us = mark.at_us if history.started_us is None else history.started_us
    history.sessions.append(SessionSpan(mark.body["worker"], mark.body["fence"], mark.at_us))


def _left(history: RunHistory, mark: Mark) -> None:
    history.active_us += mark.body["active_us"]
    if history.sessions:
        history.sessions[-1].ended_us, history.sessions[-1].reason = mark.at_us, mark.body["reason"]


def _recovered(history: RunHistory, mark: Mark) -> None:
    if history.sessions:
        found = ("unknown", "again", "interrupted", "parked")
        history.sessions[-1].recovered = {name: mark.body[name] for name in found if name in mark.body}


def _finished(history: RunHistory, mark: Mark) -> None:
    history.run_state, history.ended_us = RunState.FINISHED.value, mark.at_us
    history.marks.append(mark)


def _cancelled(history: RunHistory, mark: Mark) -> None:
    for slot_no in history.slots_in(SlotState.PENDING):
        history.put(slot_no, SlotState.CANCELLED, "given_up")
    if history.run_state == RunState.OPEN:
        history.run_state, history.ended_us = RunState.CANCELLED.value, mark.at_us
    history.marks.append(mark)


def _contaminated(history: RunHistory, mark: Mark) -> None:
    history.contaminated.add((mark.body["slot"], mark.body["attempt"]))


def _judged(history: RunHistory, mark: Mark) -> None:
    later = history.later_judgments
    for key, row in _judgments_of(mark.body):
        if row[2] is not None:
            history.no_verdicts[key[0]] += 1
            history.out_of_budget[key[0]] += row[2] == NoVerdictReason.OUT_OF_BUDGET
        # What gave no verdict may be tried again, and its row says nothing of it then.
        if row[2] is not None or (later and key in later):
            history.judged_before[key] = row


def _judgments_of(body: dict[str, Any]) -> list[tuple[tuple[int, ...], list[Any]]]:
    """By (evaluation, judge, slot, attempt, sample): ``[passed, score, reason]``."""
    found: list[tuple[tuple[int, ...], list[Any]]] = []
    for judge_no, slot_no, attempt_no, passed, score, reason, *sample in body["rows"]:
        key = (body["evaluation"], judge_no, slot_no, attempt_no, sample[0] if sample else 1)
        found.append((key, [passed, score, reason]))
    return found


def _judgments_retried(history: RunHistory, mark: Mark) -> None:
    evaluation, judge, reason = mark.body["evaluation"], mark.body["judge"], mark.body["reason"]
    for key, row in list(history.judged_before.items()):
        if key[0] == evaluation and judge in (None, key[1]) and row[2] == reason:
            del history.judged_before[key]
    history.no_verdicts[mark.body["evaluation"]] -= mark.body["count"]
    if mark.body["reason"] == NoVerdictReason.OUT_OF_BUDGET:
        history.out_of_budget[mark.body["evaluation"]] -= mark.body["count"]
    history.ended_evaluations.discard(mark.body["evaluation"])
    if mark.body["evaluation"] == INLINE and history.run_state == RunState.FINISHED:
        history.run_state, history.ended_us = RunState.OPEN.value, None
    history.marks.append(mark)


def _judge_qualified(history: RunHistory, mark: Mark) -> None:
    body = mark.body
    history.qualified[body["evaluation"], body["judge"]] = body["met"], body.get("brought", False)


def _evaluation_created(history: RunHistory, mark: Mark) -> None:
    history.evaluation_ids[mark.body["evaluation"]] = mark.body["id"]
    history.marks.append(mark)


def _evaluation_left(history: RunHistory, mark: Mark) -> None:
    if mark.body["ended"]:
        history.ended_evaluations.add(mark.body["evaluation"])


def _noted(history: RunHistory, mark: Mark) -> None:
    history.marks.append(mark)


def _custody_changed(history: RunHistory, mark: Mark) -> None:
    history.epoch = int(mark.body["epoch"])
    _noted(history, mark)


def note_later(history: RunHistory, kind: str, text: str) -> None:
    """Remember of an event beyond the one that is asked for what its rows must not show."""
    if kind in INTENTS:
        body = json.loads(text)
        history.later_dispatches.add((body["call"], body["dispatch"]))
    elif kind in _CUSTODY:
        was = _CUSTODY[kind] or json.loads(text)["was"]
        history.later_custody = history.later_custody or was
    elif kind == "observation.judged":
        history.later_judgments.update(key for key, _ in _judgments_of(json.loads(text)))


EFFECTS: Final[dict[str, Effect]] = {
    "attempt.begun": _begun,
    "attempt.contaminated": _contaminated,
    "attempt.failed": _failed,
    "attempt.given_back": _given_back,
    "attempt.interrupted": _interrupted,
    "attempt.observed": _observed,
    "attempt.unknown": _unknown,
    "budget.amended": _noted,
    "budget.bound_amended": _noted,
    "call.ended": _call_ended,
    "dispatch.intended": _intended,
    "dispatch.late": _stands,
    "dispatch.refused": _known,
    "dispatch.settled": _stands,
    "evaluation.created": _evaluation_created,
    "evaluation.judge_qualified": _judge_qualified,
    "evaluation.left": _evaluation_left,
    "judgment.call_ended": _call_ended,
    "judgment.call_intended": _judge_intended,
    "judgments.retried": _judgments_retried,
    "lease.lost": _noted,
    "observation.judged": _judged,
    "run.adopted": _custody_changed,
    "run.cancelled": _cancelled,
    "run.custody_lost": _custody_changed,
    "run.finished": _finished,
    "run.grown": _grown,
    "run.left": _left,
    "run.moving": _custody_changed,
    "run.opened": _opened,
    "run.planned": _planned,
    "run.recovered": _recovered,
    "run.stop_asked": _noted,
    "run.taken_over": _custody_changed,
    "session.begun": _begun,
    "slot.kept": _kept,
    "slot.parked": _parked,
    "slot.unavailable": _slot_unavailable,
    "slot.unknown": _slot_unknown,
    "slot.retried": _slot_retried,
    "slots.retried": _retried,
    "slots.reused": _reused,
    "slots.unavailable": _slots_unavailable,
    "slots.unknown": _slots_unknown,
    "turn.committed": _known,
}

WITHOUT_EFFECT: Final = frozenset(
    {
        "device.cleared",
        "device.quarantined",
        "device.seen",
        "evaluation.opened",
        "evaluation.recovered",
        "evaluation.settings_changed",
        "lease.call_ended",
        "lease.call_intended",
        "lease.granted",
        "lease.released",
        "lease.revoked",
        "run.settings_changed",
    }
)
"""Kinds that a report does not need."""
