"""``reconcile``: list unknown outcomes, or settle those that are chosen, after showing what that would do."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import attrs
from pydantic import BaseModel, ConfigDict

from ..ledger.canonical import canonical_text, digest_of_bytes
from ..ledger.custody import elsewhere
from ..ledger.errors import NothingToSettle, TransitionRefused, UsageError
from ..ledger.ledger import Ledger
from ..ledger.run_reads import RunRow
from ..ledger.settlements import Decision, Settlement
from ..ledger.slot_reads import Unknown, unknown_outcomes
from ..runner.budget_spec import shown_amount, unit_key
from ..runner.reconciling import settle_all
from ..runner.reports import status_of
from ..runner.unknowns import Preview, preview, unknown_list
from . import unknown_screen
from .answer_files import read_landed
from .asking import is_wanted
from .changes import made_by
from .choosing import named_or_newest
from .output import write_json
from .screens import show_exit
from .settings import Settings
from .words import amount_words, decision_word, joined, plural

__all__ = ["Reconciled", "Wanted", "list_unknown", "settle"]


@attrs.frozen
class Wanted:
    """The filters; without ``run`` the newest run is meant."""

    run: str | None
    call: str | None = None
    case: str | None = None
    variant: str | None = None
    reason: str | None = None


class SettledLine(BaseModel):
    """``state`` is what became of the planned observation; null where somebody else had settled it meanwhile."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    call: str
    dispatch: int
    case: str
    state: str | None


class Reconciled(BaseModel):
    """What ``reconcile`` says after a decision."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["tallystick.reconciled/1"] = "tallystick.reconciled/1"
    ledger: str
    run: str
    decision: str
    made_by: str
    reason: str
    settled: list[SettledLine]
    next: str
    command: str
    exit_status: int


def list_unknown(settings: Settings, wanted: Wanted) -> int:
    """Show each unknown outcome with what is known of it; change nothing."""
    with Ledger.open(settings.ledger_path) as ledger:
        run, chosen, _ = _find(ledger, wanted)
        standing = status_of(ledger, run.run_id, ledger_option=settings.ledger_option)
    found = unknown_list(
        str(ledger.path), run, chosen,
        next_move=standing.next, command=standing.command, exit_status=standing.exit_status,
    )  # fmt: skip
    if settings.json:
        write_json(found)
    else:
        holder = standing.executing
        lost = standing.population.in_flight if holder is not None and not holder.alive else 0
        unknown_screen.show_unknown(settings.screen(), found, lost=lost)
    return 0


def settle(
    settings: Settings, wanted: Wanted, *, landed: Path | None, not_landed: bool, reason: str | None, yes: bool
) -> int:
    """Settle the chosen outcomes by the operator's word."""
    if not reason:
        raise UsageError("a decision needs a --reason, which is kept in the ledger", "say how it is known")
    decision = Decision.LANDED if landed else Decision.NOT_LANDED if not_landed else Decision.GIVE_UP
    with Ledger.open(settings.ledger_path) as ledger:
        run, chosen, everything = _find(ledger, wanted)
        if run.custody != "held":
            with ledger.reading() as reader:
                raise elsewhere(reader, run.run_id, run.custody)
        decided = _settlements(chosen, decision, landed, reason) if chosen else []
        if not decided:
            raise NothingToSettle(
                f"no unknown outcome of run {run.run_id} fits", "list them with `tallystick reconcile` and no decision"
            )
        by_key = {(one.call_id, one.dispatch_no): one for one in chosen}
        affected = [by_key[one.call_id, one.dispatch_no] for one in decided]
        if not _is_wanted(settings, preview(affected, everything, decision, run=run), decision, yes=yes):
            return 0
        settled = [_settle_one(ledger, one, case=other.case_id) for one, other in zip(decided, affected, strict=True)]
        _tell(settings, ledger, run, decision, reason, settled)
    return 0


def _find(ledger: Ledger, wanted: Wanted) -> tuple[RunRow, list[Unknown], list[Unknown]]:
    run = named_or_newest(ledger, wanted.run)
    with ledger.reading() as reader:
        everything = unknown_outcomes(reader, run.run_key)
        chosen = unknown_outcomes(
            reader, run.run_key,
            call_id=wanted.call, case_id=wanted.case, variant=wanted.variant, reason=wanted.reason,
        )  # fmt: skip
    return run, chosen, everything


def _settlements(chosen: Sequence[Unknown], decision: Decision, landed: Path | None, reason: str) -> list[Settlement]:
    who = made_by()
    if landed is None:
        return [Settlement(one.call_id, one.dispatch_no, decision, who, reason) for one in chosen]
    found = []
    for one in read_landed(landed, chosen):
        answer = canonical_text(one.answer)
        found.append(Settlement(
            one.unknown.call_id, one.unknown.dispatch_no, decision, who, reason, one.facts, answer,
            digest_of_bytes(answer.encode()),
        ))  # fmt: skip
    return found


def _settle_one(ledger: Ledger, settlement: Settlement, *, case: str) -> SettledLine:
    state: str | None = None
    with contextlib.suppress(TransitionRefused):  # somebody else has settled it meanwhile
        state = settle_all(ledger, [settlement])[0].value
    return SettledLine(call=settlement.call_id, dispatch=settlement.dispatch_no, case=case, state=state)


def _is_wanted(settings: Settings, found: Preview, decision: Decision, *, yes: bool) -> bool:
    if not settings.json:
        screen = settings.progress_screen()
        for line in preview_lines(found, decision):
            screen.line(line)
    return is_wanted(settings, "Settle them?", verb="settle", yes=yes)


def preview_lines(found: Preview, decision: Decision) -> list[str]:
    """What a decision would do, for people."""
    became = {
        "selected": ("gets its answer", "get their answers"), "pending": ("waits again", "wait again"),
        "failed": ("fails", "fail"), "cancelled": ("is given up", "are given up"),
    }  # fmt: skip
    cases = joined([
        *(
            f"{plural(count, 'planned observation')} {became[state][count != 1]}"
            for state, count in found.states.items()
        ),
        f"{found.kept} {'stays as it is' if found.kept == 1 else 'stay as they are'}, with this as evidence"
        if found.kept else "",
    ])  # fmt: skip
    held = {unit_key(unit): (unit, amount) for unit, amount in found.held.items()}
    amounts = ", ".join(amount_words(key, shown_amount(*pair)) for key, pair in held.items())
    follows = {
        Decision.LANDED: "becomes what was used, or the declared bound where that is not said",
        Decision.NOT_LANDED: "is released",
        Decision.GIVE_UP: "counts as spent",
        Decision.FAILED: "counts as spent",
    }
    lines = [f"{plural(found.count, 'outcome')} would be settled as {decision_word(decision)}: {cases}"]
    return [*lines, f"what is held ({amounts}) {follows[decision]}"] if amounts else lines


def _tell(
    settings: Settings, ledger: Ledger, run: RunRow, decision: Decision, reason: str, settled: list[SettledLine]
) -> None:
    standing = status_of(ledger, run.run_id, ledger_option=settings.ledger_option)
    if settings.json:
        write_json(
            Reconciled(
                ledger=str(ledger.path), run=run.run_id, decision=decision.value, made_by=made_by(), reason=reason,
                settled=settled, next=standing.next, command=standing.command, exit_status=standing.exit_status,
            )
        )  # fmt: skip
        return
    screen = settings.screen()
    screen.pairs([("ledger", str(ledger.path))])
    done = [one for one in settled if one.state is not None]
    screen.line(f"{plural(len(done), 'outcome')} settled as {decision_word(decision)} by {made_by()}: {reason}")
    if len(done) < len(settled):
        screen.line(f"{len(settled) - len(done)} had been settled by somebody else meanwhile")
    show_exit(screen, standing)
