"""``fork``: say what is reused and what will be paid, then make the linked new run."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

from .._wiring import ADAPTERS
from ..ledger.errors import UsageError
from ..ledger.ledger import Ledger
from ..runner.fork_document import ForkBudget, ForkOutlook, ForkVariant
from ..runner.forking import fork_run, planned_fork
from ..runner.work_order import load_work_order
from .asking import is_wanted
from .output import write_json
from .running import CaseChoice
from .screen import Screen, Tone
from .settings import Settings
from .words import joined, money_or_count, plural

__all__ = ["fork_from"]

_CHANGES_MAX = 3


def fork_from(settings: Settings, run: str, order: Path | None, choice: CaseChoice, *, dry_run: bool, yes: bool) -> int:
    """Show the outlook; make the fork where that is wanted."""
    if order is None and choice.words:
        raise UsageError(
            "a run's own cases are forked as they are", "name the file ORDER whose cases are to be chosen from"
        )
    with Ledger.open(settings.ledger_path) as ledger:
        with settings.aside():
            wanted = None if order is None else choice.of(load_work_order(order))
            fork = planned_fork(ledger, run, ADAPTERS, order=wanted, ledger_option=settings.ledger_option)
        if not settings.json:
            _show(settings.screen(), fork.outlook)
        if dry_run:
            if settings.json:
                write_json(fork.outlook)
            return 0
        if not is_wanted(settings, "Make this run?", verb="fork", yes=yes):
            return 0
        made = fork_run(ledger, fork)
    if settings.json:
        write_json(made)
        return 0
    settings.screen().line(f"run {made.run} is made, and nothing is called yet: `{made.command}` goes on with it",
                           tone=Tone.GOOD)  # fmt: skip
    return 0


def _show(screen: Screen, found: ForkOutlook) -> None:
    screen.line(f"fork of run {found.forked_from} at event {found.at_event} ({found.name})", tone=Tone.STRONG)
    cases = found.cases
    screen.pairs([
        ("ledger", found.ledger),
        ("cases", joined(f"{count} {word}" for count, word in (
            (cases.same, "the same"), (cases.new, "new or changed"), (cases.dropped, "of the earlier run left out"),
        ) if count)),
        ("population", f"{found.planned} planned: {_split(found)}"),
        *((side.name, _side(side)) for side in found.variants),
        *(("budget", _budget(line)) for line in found.budgets),
        *([] if found.budgets else [("budget", "none: nothing but the work order's limits bounds what is paid")]),
        *([("judges", _judges(found))] if found.judges else []),
    ])  # fmt: skip
    if found.unknown:
        stays = "stays" if found.unknown == 1 else "stay"
        screen.line(
            f"{plural(found.unknown, 'outcome')} of the earlier run that may have happened {stays} unknown: nothing of"
            " that is sent again, and what it holds stays held there", tone=Tone.WARNING,
        )  # fmt: skip
    for line in found.budgets:
        if line.is_enough is False:
            screen.line(f"the budget of {line.unit} has less than what is to be paid needs at its bound",
                        tone=Tone.WARNING)  # fmt: skip


def _judges(found: ForkOutlook) -> str:
    how = "judge what is reused as well; a verdict that was given here for the very same answer is used again"
    return f"{', '.join(found.judges)}: {how} without a call"


def _split(found: ForkOutlook | ForkVariant) -> str:
    return joined(
        f"{count} {word}"
        for count, word in (
            (found.reused, "reused"), (found.to_pay, "to pay"), (found.unknown, "unknown"), (found.failed, "failed"),
        )
        if count
    )  # fmt: skip


def _side(side: ForkVariant) -> str:
    parts = [_split(side)]
    if side.again:
        parts.append("of those to pay " + joined(f"{count} {state} there" for state, count in side.again.items()))
    if side.contaminated:
        parts.append(f"{side.contaminated} of those reused are contaminated")
    if side.taken_from not in (None, side.name):
        parts.append(f"the same as {side.taken_from} there")
    if side.changes:
        more = f" (and {len(side.changes) - _CHANGES_MAX} more)" if side.changes[_CHANGES_MAX:] else ""
        parts.append("; ".join(side.changes[:_CHANGES_MAX]) + more)
    return "; ".join(parts)


def _budget(line: ForkBudget) -> str:
    limit = money_or_count(line.unit, line.limit)
    of = "" if line.scope == "run" else f" of {line.scope} {line.name}"
    head = f"{line.unit}{of}: {'at most' if line.kind == 'hard' else 'stops new work at'} {limit}"
    if float(line.carried):
        head += f" ({money_or_count(line.unit, line.carried)} of the limit counts as used already)"
    if line.least is None or line.worst is None:
        return f"{head}; no bound of a call is declared"
    least, worst = money_or_count(line.unit, line.least), money_or_count(line.unit, line.worst)
    if line.kind == "hard" and Decimal(str(line.worst)) > Decimal(str(line.limit)):
        return f"{head}; to pay are {least} if nothing is sent twice, with retries up to the limit"
    return f"{head}; to pay are {least} if nothing is sent twice, with retries up to {worst}"
