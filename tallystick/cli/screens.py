"""The screens of a run: what would be done, what was found, how it stands, how it ended."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from ..ledger.states import CustodyState
from ..runner.device_outlooks import DeviceOutlook, DeviceUse, device_outlooks
from ..runner.report_models import BudgetLine, ReasonLine, RunEnd, RunStanding, RunStatus, TotalsPart
from ..runner.results import NextMove
from .screen import Screen, Tone
from .words import (
    budget_name,
    command_words,
    duration,
    flag_words,
    in_words,
    joined,
    money_or_count,
    people_line,
    plural,
    price_words,
    silent_words,
)

if TYPE_CHECKING:
    from ..ledger.coordinators import Coordinator
    from ..ledger.ledger import Ledger
    from ..runner.preflight import BudgetOutlook, ChoiceOutlook, ConversationOutlook, Preflight, VariantOutlook
    from ..runner.sessions import Session
    from ..runner.tally import Tally

__all__ = [
    "exit_line",
    "show_budgets",
    "show_card",
    "show_end",
    "show_exit",
    "show_preflight",
    "show_standing",
    "show_status",
    "totals_rows",
]

_VARIANTS_SHOWN: Final = 8
_REASONS_SHOWN: Final = 8
_REMEDIES_SHOWN: Final = 3
_EXAMPLE_SHOWN: Final = 200
_WHOSE: Final = {
    CustodyState.COPY: "a copy of the run here",
    CustodyState.MOVING: "the run is being moved away from here",
    CustodyState.MOVED: "the run was moved away from here",
}
_CHANGES_SHOWN: Final = 5
_ACTIONS = {
    "create": "a new run begins",
    "continue": "run {run} goes on",
    "report": "run {run} is finished; its report is shown and nothing is called",
}


def show_preflight(screen: Screen, found: Preflight, *, fork: str = "") -> None:
    """Population, worst cost, what identifies the run, what follows a lost answer, and where the ledger lies.

    ``fork`` is the command that makes the run out of the earlier one of its name, where there is one.
    """
    screen.line(f"work order {found.name}: {_ACTIONS[found.action].format(run=found.run)}", tone=Tone.STRONG)
    names = _some([side.name for side in found.variants])
    sides = plural(len(found.variants), "variant")
    size = f"{plural(found.cases, 'case')} × {sides} ({names}) × {plural(found.repetitions, 'repetition')}"
    tries = f"{plural(found.attempts_max, 'attempt')} each, {plural(found.dispatches_max, 'send')} an attempt"
    rows = [
        ("population", f"{size} = {found.planned} planned"),
        *([] if found.chosen is None else [("cases", _choice(found.cases, found.chosen))]),
        ("limits", f"{tries}, {duration(found.deadline_seconds)} an attempt, {found.concurrency} at a time"),
        *([] if found.conversation is None else [("conversation", _said(found.conversation))]),
        *(("budget", _outlook(line)) for line in found.budgets),
        *([] if found.budgets else [("budget", "none: nothing but these limits bounds what this run may cost")]),
        *_sides(found),
        *(("device", _device(one)) for one in found.devices),
        ("judges", ", ".join(found.judges) or "none"),
        *(("prices", price_words(one)) for one in found.prices),
        ("identity", f"{found.identity_digest[:23]}… (cases {found.cases_digest[:23]}…)"),
        ("ledger", found.ledger + ("" if found.ledger_exists else " (will be created)")),
    ]
    screen.pairs(rows)
    if found.earlier is not None:
        screen.line(
            f"run {found.earlier.run} of this name cannot be continued, and all is paid for anew, because what answers"
            " depend on has changed:",
            tone=Tone.WARNING,
        )
        shown = found.earlier.changes[:_CHANGES_SHOWN]
        for change in shown:
            screen.line(f"  {change}", tone=Tone.WARNING)
        if left := len(found.earlier.changes) - len(shown):
            screen.line(f"  and {left} more; --json names them", tone=Tone.WARNING)
        if fork:
            screen.line(f"what has not changed is reused by `{fork}`", tone=Tone.WARNING)
    if found.without_expected:
        screen.line(_unjudged(found), tone=Tone.WARNING)
    for line in found.budgets:
        if line.kind == "hard" and line.enough_for is not None and line.enough_for < line.planned:
            screen.line(
                f"the budget of {line.unit} has room for {line.enough_for} of {line.planned} planned"
                " observations at its declared bound",
                tone=Tone.WARNING,
            )
        elif line.kind == "hard" and line.least is not None and Decimal(str(line.least)) > Decimal(str(line.limit)):
            whose = line.unit if line.scope == "run" else f"{line.unit} of {line.scope} {line.name}"
            why = (
                "the plan's requests can use at most: what finds no room any more is unavailable (budget)"
                if line.bound_per_dispatch is None
                else "the plan needs with its judges' calls: what they are not asked is out_of_budget"
            )
            screen.line(f"the budget of {whose} is less than {why}", tone=Tone.WARNING)


def _unjudged(found: Preflight) -> str:
    """What judges can say nothing of: it is cheaper to hear it before the cases are asked."""
    names, count = " and ".join(found.without_expected), max(found.without_expected.values())
    if count == found.cases:
        return f'no case says what is expected, and {names} can give no verdict: the key, or column, is "expected"'
    return f"{count} of {found.cases} cases do not say what is expected: no verdict of {names} there"


def _sides(found: Preflight) -> list[tuple[str, str]]:
    """A line for each variant, and of a large grid one for all that are alike."""
    if len(found.variants) <= _VARIANTS_SHOWN:
        return [(side.name, _side(found, side)) for side in found.variants]
    alike: dict[str, list[str]] = {}
    for side in found.variants:
        alike.setdefault(_side(found, side), []).append(side.name)
    return [("variants", f"{_some(names)}: {told}") for told, names in alike.items()]


def _some(names: Sequence[str]) -> str:
    if len(names) <= _VARIANTS_SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[:3])} and {len(names) - 3} more"


def _side(found: Preflight, side: VariantOutlook) -> str:
    """A variant, and where client libraries retry inside of our own attempts: the layers multiply."""
    whose = "" if side.package is None else f" of {side.package}"
    told = f"{side.kind}{whose}; {in_words(side.if_unknown)}"
    if side.guarded:
        told += "; each of its own requests is a call, however many it makes"
    for name, retries in side.client_retries.items():
        sends = (retries + 1) * found.attempts_max
        told += f"; {name} retries {retries} times by itself: up to {sends} sends of one request"
    return told


def _choice(count: int, chosen: ChoiceOutlook) -> str:
    return f"{count:,} of {chosen.population:,}, {chosen.told}"


def _said(one: ConversationOutlook) -> str:
    """Who says what, and how a conversation goes on that broke off."""
    who = f"{plural(one.turns, 'turn')} by script ({one.script})" if one.turns is not None else (
        f"said by {one.user}, at most {plural(one.turns_max, 'turn')}"
    )  # fmt: skip
    ways = {
        "auto": "goes on from its committed turns where the target can, else begins anew",
        "checkpoint": "goes on from its committed turns, or its case fails",
        "restart": "begins anew",
    }
    return f"{who}; one that breaks off {ways[one.resume]}"


def _device(one: DeviceOutlook) -> str:
    """The device, and who has it; a waiting runner gets it in its turn."""
    taken = {"held": "; this run waits its turn", "elsewhere": "; this run waits its turn", "quarantined": ""}
    return f"{one.device}, {one.who}{taken.get(one.state, '')}" if one.who else one.device


def _outlook(line: BudgetOutlook) -> str:
    limit = money_or_count(line.unit, line.limit)
    of = "" if line.scope == "run" else f" of {line.scope} {line.name}"
    head = f"{line.unit}{of}: {'at most' if line.kind == 'hard' else 'stops new work at'} {limit}"
    if line.least is None or line.worst is None:
        if line.kind == "hard":
            return f"{head}; each request sets aside the most that it can use"
        return f"{head} (soft, no estimate of a call: it may be overrun)"
    least, worst = money_or_count(line.unit, line.least), money_or_count(line.unit, line.worst)
    once = f"{head}; the plan needs {least} if nothing is sent twice"
    if Decimal(str(line.worst)) <= Decimal(str(line.limit)):
        return f"{once}, with retries up to {worst}"
    if line.kind == "hard":
        return f"{once} (without this limit, retries could need up to {worst})"
    return f"{once}, with retries up to {worst}; soft: it may be overrun"


def show_card(screen: Screen, ledger: Ledger, session: Session, coordinator: Coordinator, tally: Tally) -> None:
    """What was found when the run was taken up."""
    found = coordinator.recovered
    if session.is_new:
        screen.line(f"run {session.run.run_id} ({session.run.name})")
        return
    screen.line(f"run {session.run.run_id} ({session.run.name}) goes on", tone=Tone.STRONG)
    settle = screen.named(f"tallystick reconcile {session.run.run_id}")
    rows = [("ledger", str(ledger.path)), ("reused", f"{tally.reused} of {tally.planned} are answered already")]
    if found.dead_workers:
        flown = found.unknown + found.again + found.interrupted + found.parked
        left = f"with {plural(flown, 'case')} in flight" if flown else "between two calls"
        rows.append(("found", f"its process died {left}"))
    rows += [
        (label, text)
        for count, label, text in (
            (found.again, "again", f"{found.again} may be asked again, as the target declares"),
            (found.interrupted, "cut off", f"{found.interrupted} had nothing in question and go on"),
            (found.unknown, "unknown", f"{found.unknown} may have been done; `{settle}` settles them"),
            (found.parked, "parked", f"{found.parked} killed the process too often when they were alone"),
        )
        if count
    ]
    rows += [("device", _device(one)) for one in device_outlooks(session.description.targets, ledger)]
    screen.pairs(rows)


def show_end(screen: Screen, end: RunEnd) -> None:
    """How the run stands after a session."""
    show_standing(screen, end)
    screen.pairs([("passed over", f"{one.device}: {one.why}") for one in end.session.passed_over])
    show_exit(screen, end)


def show_status(screen: Screen, status: RunStatus) -> None:
    """How the run stands now, and who executes it."""
    _head(screen, status)
    holder = status.executing
    if holder is None:
        who = "nobody"
    elif holder.alive:
        who = f"process {holder.pid} since {holder.since}"
    else:
        who = f"nobody: process {holder.pid} died"
    is_alive = holder is not None and holder.alive
    screen.pairs(
        [
            ("executing", who),
            *(("device", _use(screen, one, is_alive=is_alive)) for one in status.devices),
        ]
    )
    _figures(screen, status)
    if holder is None or not holder.alive:
        show_exit(screen, status)


def _use(screen: Screen, one: DeviceUse, *, is_alive: bool) -> str:
    match one.state:
        case "held":
            return f"{one.device}: held by this run" + (
                "" if is_alive else ", whose process died; the next takes it over"
            )
        case "waiting":
            return f"waits for {one.device}" + (f", {one.who}" if one.who else "")
        case "quarantined":
            clear = screen.named(f"tallystick device clear {shlex.quote(one.device)} --reason TEXT")
            return f"{one.device}, {one.who}; look at it, then `{clear}`"


def show_standing(screen: Screen, found: RunStanding) -> None:
    """Everything that reports, status and ends have in common."""
    _head(screen, found)
    _figures(screen, found)


def _head(screen: Screen, found: RunStanding) -> None:
    screen.line(f"run {found.run} ({found.name}): {found.state}", tone=Tone.STRONG)
    origin = found.forked_from
    screen.pairs([
        ("ledger", found.ledger), ("population", people_line(found.population)),
        *([] if origin is None else [
            ("fork", f"of run {origin.run} at event {origin.event}; {origin.reused} reused from it, and paid for there")
        ]),
    ])  # fmt: skip


def _figures(screen: Screen, found: RunStanding) -> None:
    if found.scores:
        rows = [
            (
                one.judge, one.variant, f"{one.passed} of {one.rated}" if one.rated or not one.judged else "",
                _rate(one.passed, one.rated) if one.rated or not one.judged else "",
                "" if one.mean is None else f"{one.mean:.4g}", f"{one.judged} of {one.planned}",
                joined(f"{count} {reason}" for reason, count in one.no_verdict.items()),
            )
            for one in found.scores
        ]  # fmt: skip
        screen.table(["judge", "variant", ">passed", ">rate", ">mean", ">judged", "no verdict"], rows, title="scores")
    _why_not(screen, found.reasons)
    if found.budgets:
        show_budgets(screen, found.budgets)
    screen.pairs(totals_rows(screen, found))


def _why_not(screen: Screen, reasons: Sequence[ReasonLine]) -> None:
    """The commonest reasons first, what was told of one of each, and what helps against the first of them."""
    common = sorted(reasons, key=lambda one: -one.count)
    rows = [(one.count, one.state, one.reason, _cut(one.example)) for one in common[:_REASONS_SHOWN]]
    if rows:
        screen.table([">count", "state", "reason", "for example"], rows, title="why there is no observation")
    if left := common[_REASONS_SHOWN:]:
        screen.line(f"  and {sum(one.count for one in left)} for {plural(len(left), 'more reason')}; --json lists them")
    remedies = {one.reason: one.remedy for one in reversed(common[:_REMEDIES_SHOWN]) if one.remedy}
    screen.pairs([("what helps", f"{reason}: {remedy}") for reason, remedy in reversed(remedies.items())])


def _cut(text: str) -> str:
    return text if len(text) <= _EXAMPLE_SHOWN else f"{text[: _EXAMPLE_SHOWN - 1]}…"


def show_budgets(screen: Screen, lines: Sequence[BudgetLine]) -> None:
    """What each budget was spent on, and what it holds."""
    has_waste = any(line.counted is not None for line in lines)
    columns = ["budget", ">limit", ">spent", ">held", ">held by unknown", ">left"]
    rows = []
    for line in lines:
        spent = money_or_count(line.unit, line.settled)
        row = [
            budget_name(line) + ("" if line.kind == "hard" else " (soft)"), money_or_count(line.unit, line.limit),
            _with_unknown(spent, line),
            money_or_count(line.unit, line.held), money_or_count(line.unit, line.held_by_unknown),
            money_or_count(line.unit, line.left),
        ]  # fmt: skip
        if has_waste:
            row += [money_or_count(line.unit, line.counted), money_or_count(line.unit, line.wasted)]
        rows.append(row)
    screen.table([*columns, *([">counted", ">wasted"] if has_waste else [])], rows, title="budgets")
    for line in lines:
        if float(line.carried):
            carried = money_or_count(line.unit, line.carried)
            screen.line(f"{budget_name(line)}: {carried} more of the work order's limit went to the runs that this one"
                        " was forked from", tone=Tone.DIM)  # fmt: skip
        if line.unknown_uses:
            screen.line(silent_words(line), tone=Tone.DIM)


def _with_unknown(spent: str, line: BudgetLine) -> str:
    """A dispatch that does not say what it used counts at its declared bound: the most that it can have used."""
    if not line.unknown_uses or line.unit == "dispatches":
        return spent
    return f"≤ {spent}" if line.kind == "hard" else f"~ {spent}"


def totals_rows(screen: Screen, found: RunStanding) -> list[tuple[str, str]]:
    """What was sent, as pairs."""
    rows = [] if found.totals is None else _calls(found.totals)
    if found.totals is None:
        rows.append(("calls", f"`{screen.named(f'tallystick report {found.run}')}` counts them, with the scores"))
    if found.judge_totals is not None:
        rows.append(("judges", _judges_calls(found.judge_totals)))
    rows += [("prices", price_words(one)) for one in found.prices]
    if found.flags:
        rows.append(("flags", f"{flag_words(found.flags)} of the selected answers"))
    if found.unknown.count:
        why = joined(f"{count} {reason}" for reason, count in found.unknown.reasons.items())
        rows.append(("unknown", f"{plural(found.unknown.count, 'outcome')}: {why}"))
    return rows


def _calls(totals: TotalsPart) -> list[tuple[str, str]]:
    states = joined(f"{count} {state}" for state, count in totals.dispatches_by_state.items())
    sent = f"{totals.calls} in {plural(totals.attempts, 'attempt')}, sent {plural(totals.dispatches, 'time')}"
    rows = [("calls", f"{sent}: {states}" if states else sent)]
    if totals.wasted_dispatches:
        rows.append(("wasted", f"{totals.wasted_dispatches} sent without giving an observation that counts"))
    if totals.replays:
        told = plural(totals.replays, "turn")
        rows.append(("replays", f"{told} of conversations asked, and paid for, once more"))
    told, cost = _tokens(totals), _cost(totals)
    if told:
        silent = f"; {plural(totals.unmetered_dispatches, 'send')} did not say" if totals.unmetered_dispatches else ""
        rows.append(("tokens", f"{told}{silent or ', as far as they were told'}"))
    if len(totals.tokens_by_class) > 2:
        rows.append(("by class", _class_words(totals)))
    if cost:
        rows.append(("cost", cost))
    return rows


def _judges_calls(totals: TotalsPart) -> str:
    states = joined(f"{count} {state}" for state, count in totals.dispatches_by_state.items())
    told, wasted = _tokens(totals), totals.wasted_dispatches
    return "; ".join(filter(None, [
        f"{plural(totals.calls, 'call')}, sent {plural(totals.dispatches, 'time')}: {states}",
        f"{wasted} gave no verdict" if wasted else "",
        f"tokens: {told}" if told else "",
        _cost(totals),
    ]))  # fmt: skip


def _tokens(totals: TotalsPart) -> str:
    tokens = [(totals.tokens_in, "in"), (totals.tokens_out, "out")]
    return ", ".join(f"{count} {way}" for count, way in tokens if count is not None)


def _class_words(totals: TotalsPart) -> str:
    """Tokens by class: ``36 input, 64 cache_read, 20 output``."""
    return ", ".join(f"{count} {name}" for name, count in totals.tokens_by_class.items())


def _cost(totals: TotalsPart) -> str:
    if totals.cost_usd is None:
        return "unknown: nothing that was sent had a price" if _tokens(totals) and totals.unpriced_dispatches else ""
    unpriced = totals.unpriced_dispatches
    return f"${totals.cost_usd}" + (f"; at least, {unpriced} had no price" if unpriced else "")


def _rate(passed: int, judged: int) -> str:
    return f"{passed / judged:.1%}" if judged else "-"


def show_exit(screen: Screen, found: RunStanding) -> None:
    """What helps next, or that nothing is needed."""
    text, tone = exit_line(found)
    screen.line(text, tone=tone)


def exit_line(found: RunStanding) -> tuple[str, Tone]:
    """How it ended and what helps, in one line."""
    people, command = found.population, command_words(found.command)
    stopped = found.session.stopped if isinstance(found, RunEnd) else None
    left = people.pending + people.in_flight
    goes_on, judges = (" goes on", " judges what is answered and ends the run") if found.command else ("", "")
    if stopped and left:
        return f"stopped ({stopped}) with {left} left: {command}{goes_on}", Tone.WARNING
    match NextMove(found.next):
        case NextMove.NOTHING if found.state == "cancelled":
            return "cancelled: what had not begun was given up", Tone.WARNING
        case NextMove.NOTHING:
            lost = plural(found.unknown.count, "outcome")
            stay, hold = ("stays", "holds") if found.unknown.count == 1 else ("stay", "hold")
            more = f"; {lost} of earlier attempts {stay} unknown, and {hold} what may have been paid for"
            return f"complete: every planned observation is selected{more if found.unknown.count else ''}", Tone.GOOD
        case NextMove.RESUME if not left:
            return f"not finished: {command}{judges}", Tone.WARNING
        case NextMove.RESUME:
            when = f" (not before {found.not_before})" if found.not_before else ""
            return f"not finished, {left} left: {command}{goes_on}{when}", Tone.WARNING
        case NextMove.FUND:
            room = "; settling what is unknown may make room too" if people.unknown else ""
            how = command if found.command else f"raise the limit and {command}"
            return f"out of budget, {people.unavailable} could not be attempted: {how}{room}", Tone.BAD
        case NextMove.ADOPT:
            return (
                f"{_WHOSE[CustodyState(found.custody)]}: go on with it where it is held, or take it over: {command}",
                Tone.WARNING,
            )
        case NextMove.DECIDE if left:
            return f"not finished, {left} left: a device has to be looked at first; {command}", Tone.WARNING
        case NextMove.DECIDE:
            return f"finished, and something needs a decision: {_open(found)}; {command}", Tone.WARNING


def _open(found: RunStanding) -> str:
    people = found.population
    verdictless = sum(sum(one.no_verdict.values()) for one in found.scores or ())
    parts = [
        f"{count} {word}"
        for word, count in (
            ("unknown", people.unknown), ("parked", people.parked), ("unavailable", people.unavailable),
            ("failed", people.failed), ("without a verdict", verdictless),
        )
        if count
    ]  # fmt: skip
    return ", ".join(parts) or "verdicts are missing"
