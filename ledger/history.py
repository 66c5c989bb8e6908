"""A run as it stood at one of its events: read from the history alone, so that it is the same whenever it is asked.

Rows tell how things are now; events tell what happened, in order and for ever. `history_at` goes through the events up
to one of them. What had no end at that event is in `open_attempts` and `open_dispatches`, whatever its row says since;
what had one is as its row says, because an end is never changed. ``ledger check`` holds history and rows together.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import attrs

from .canonical import stored_json
from .errors import UsageError
from .ledger import Reader
from .states import NextStep, RunState, SlotState

__all__ = [
    "STATE_TEXTS",
    "EventRow",
    "Mark",
    "OpenAttempt",
    "OpenDispatch",
    "RunHistory",
    "SessionSpan",
    "code_of",
    "history_at",
    "note_what_came_later",
]

MARKS_MAX: Final = 1_000
_EVENTS_AT_ONCE: Final = 20_000
_STATES: Final = tuple(SlotState)
_CODES: Final[dict[str, int]] = {state: code for code, state in enumerate(_STATES)}
STATE_TEXTS: Final = tuple(state.value for state in SlotState)
"""What each of the codes in `RunHistory.codes` stands for."""


def code_of(state: SlotState) -> int:
    """The state's number in `RunHistory.codes`."""
    return _CODES[state]


@attrs.define
class OpenAttempt:
    """An attempt without an end: it runs, or it is unknown (then it has an instant, a reason and a message)."""

    state: str
    ended_us: int | None = None
    reason: str | None = None
    message: str | None = None


@attrs.define
class OpenDispatch:
    """A dispatch without a known outcome, and what it holds by budget number; ``owner`` as its call's."""

    owner: str
    slot_no: int
    attempt_no: int
    state: str
    held: dict[str, int]
    ended_us: int | None = None
    reason: str | None = None
    message: str | None = None
    bytes_sent: int | None = None
    duration_us: int | None = None
    status: int | None = None


@attrs.define
class SessionSpan:
    """One coordinator's time with the run.

    ``ended_us`` is None while it holds the run, or held it when it died and nobody has taken the run over since;
    ``died`` says that the next one found it dead, and then ``ended_us`` is the instant of its last event.
    """

    worker_id: str
    fence: int
    began_us: int
    ended_us: int | None = None
    reason: str | None = None
    died: bool = False
    recovered: dict[str, int] = attrs.field(factory=dict)


class Mark(NamedTuple):
    """Something of a run's history that a time line shows; ``body`` is the event's."""

    event_no: int
    at_us: int
    kind: str
    body: dict[str, Any]


@attrs.define
class RunHistory:
    """How the run stood at event ``event_no``; see the module. Slots that no event speaks of are pending.

    ``epoch`` is that of its custody. ``later_custody`` is the custody that a change after the event found, None where
    there was none since.
    ``qualified`` says by evaluation and judge whether its verdicts count, and whether a snapshot brought what they
    count by.
    ``no_verdicts`` counts judgments without a verdict by evaluation, ``out_of_budget`` those of them without room.
    ``selected_at`` has the event by which each slot was selected, 0 where it is not. ``is_newest`` says that nothing
    has happened since, as far as ``noted_to``.
    """

    run_key: int
    event_no: int
    planned: int
    variants: int
    is_newest: bool = True
    noted_to: int = 0
    at_us: int = 0
    run_state: str = RunState.OPEN.value
    started_us: int | None = None
    ended_us: int | None = None
    active_us: int = 0
    epoch: int = 1
    codes: bytearray = attrs.field(factory=bytearray)
    attempts: array[int] = attrs.field(factory=lambda: array("q"))
    selected_at: array[int] = attrs.field(factory=lambda: array("q"))
    reasons: dict[int, str] = attrs.field(factory=dict)
    steps: dict[int, str] = attrs.field(factory=dict)
    open_attempts: dict[tuple[int, int], OpenAttempt] = attrs.field(factory=dict)
    open_dispatches: dict[tuple[str, int], OpenDispatch] = attrs.field(factory=dict)
    contaminated: set[tuple[int, int]] = attrs.field(factory=set)
    settled_by_decision: set[tuple[str, int]] = attrs.field(factory=set)
    later_dispatches: set[tuple[str, int]] = attrs.field(factory=set)
    later_custody: str | None = None
    later_judgments: set[tuple[int, ...]] = attrs.field(factory=set)
    judged_before: dict[tuple[int, ...], list[Any]] = attrs.field(factory=dict)
    evaluation_ids: dict[int, str] = attrs.field(factory=dict)
    ended_evaluations: set[int] = attrs.field(factory=set)
    qualified: dict[tuple[int, int], tuple[bool, bool]] = attrs.field(factory=dict)
    no_verdicts: Counter[int] = attrs.field(factory=Counter)
    out_of_budget: Counter[int] = attrs.field(factory=Counter)
    sessions: list[SessionSpan] = attrs.field(factory=list)
    marks: deque[Mark] = attrs.field(factory=lambda: deque(maxlen=MARKS_MAX))

    def state_of(self, slot_no: int) -> SlotState:
        """The slot's state."""
        return _STATES[self.codes[slot_no]]

    def step_of(self, slot_no: int) -> str:
        """What the slot does next, once it waits."""
        return self.steps.get(slot_no, NextStep.NEW.value)

    def counts(self) -> dict[SlotState, int]:
        """How many of the planned slots are in each state."""
        return {state: self.codes.count(_CODES[state], 1) for state in _STATES}

    def put(self, slot_no: int, state: str, reason: str | None) -> None:
        """Move a slot; for the effects of events."""
        self.codes[slot_no] = _CODES[state]
        if reason is None:
            self.reasons.pop(slot_no, None)
        else:
            self.reasons[slot_no] = reason

    def put_step(self, slot_no: int, step: str) -> None:
        """Say what the slot does next; for the effects of events."""
        if step == NextStep.NEW:
            self.steps.pop(slot_no, None)
        else:
            self.steps[slot_no] = step

    def slots_in(self, state: str) -> list[int]:
        """The numbers of the slots in that state."""
        code, found, at = _CODES[state], [], 0
        while (at := self.codes.find(code, at + 1)) > 0:
            found.append(at)
        return found


EventRow: TypeAlias = tuple[int, str, int, str]
"""An event's number, kind, instant in microseconds, and body as text."""


def history_at(
    reader: Reader,
    run_key: int,
    event_no: int | None = None,
    *,
    turn: Callable[[], Reader] | None = None,
    events: Iterable[EventRow] | None = None,
    note: Callable[[str, dict[str, Any]], None] | None = None,
) -> RunHistory:
    """The run at that event, None: at its newest. Goes through the events once; about 3 µs each.

    ``turn`` gives the view to go on with after some thousand events (`views`); ``events`` are those up to that one,
    from who reads them anyway. ``note`` is shown the kind and the body of each that has an effect. Raises UsageError
    when the run has no such event.
    """
    from .history_effects import EFFECTS

    newest = reader.row("SELECT max(event_no) FROM events WHERE run_key = ?", (run_key,))[0] or 0
    if event_no is not None and not 1 <= event_no <= newest:
        raise UsageError(f"the run has no event {event_no}", f"name one from 1 to {newest}")
    planned, variants = reader.row(
        "SELECT r.planned, (SELECT count(*) FROM variants v WHERE v.run_key = r.run_key) FROM runs r"
        " WHERE r.run_key = ?",
        (run_key,),
    )
    history = RunHistory(run_key, newest if event_no is None else event_no, planned, max(1, variants))
    history.noted_to = history.event_no
    history.codes = bytearray(planned + 1)
    history.codes[0] = 255  # slots are numbered from 1
    history.attempts = array("q", bytes(8 * (planned + 1)))
    history.selected_at = array("q", bytes(8 * (planned + 1)))
    note_what_came_later(reader, history)
    rows = _events_to(history.event_no, reader, run_key, turn) if events is None else events
    effect_of = EFFECTS.get
    for number, kind, at_us, text in rows:
        effect = effect_of(kind)
        if effect is not None:
            body = stored_json(text)
            effect(history, Mark(number, at_us, kind, body))
            if note is not None:
                note(kind, body)
        history.at_us = at_us
    for numbers in (history.codes, history.attempts, history.selected_at):
        del numbers[history.planned + 1 :]  # what was planned later, in a run whose plan grows
    return history


def _events_to(event_no: int, reader: Reader, run_key: int, turn: Callable[[], Reader] | None) -> Iterator[EventRow]:
    for first in range(0, event_no, _EVENTS_AT_ONCE):
        view = reader if turn is None else turn()
        yield from view.each(
            "SELECT event_no, kind, at_us, body FROM events WHERE run_key = ? AND event_no > ? AND event_no <= ?"
            " ORDER BY event_no",
            (run_key, first, min(first + _EVENTS_AT_ONCE, event_no)),
        )


def note_what_came_later(reader: Reader, history: RunHistory) -> None:
    """Learn what has happened since the event, as far as this view knows; again for each newer view."""
    from .history_effects import note_later

    for number, kind, body in reader.each(
        "SELECT event_no, kind, body FROM events WHERE run_key = ? AND event_no > ? ORDER BY event_no",
        (history.run_key, history.noted_to),
    ):
        note_later(history, kind, body)
        history.noted_to, history.is_newest = number, False
