"""``resume --check``: everything that ``resume`` checks, and what it would find; nothing is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .._wiring import ADAPTERS
from ..ledger.errors import RunBusy
from ..ledger.ledger import Ledger
from ..runner.resume_check import ResumeCheck, resume_check
from ..runner.sessions import reopened
from .changes import Changes, plan_of, read_changes
from .output import write_json
from .running import named_or_newest, telling_how
from .screen import Screen, Tone
from .settings import Settings
from .words import joined, people_line

__all__ = ["show_resume_check"]


def show_resume_check(
    settings: Settings, run: str | None, *, retry: str | None, amend: Sequence[str], reason: str | None
) -> int:
    """Show what ``resume`` would find; raises what it would raise, IdentityChanged and RunBusy included."""
    changes = read_changes(retry=retry, amend=amend, reason=reason)
    with Ledger.open(settings.ledger_path) as ledger:
        found = named_or_newest(ledger, run, is_changed=bool(changes))
        with settings.aside(), telling_how(settings):
            reopened(ledger, found.run_id, ADAPTERS)
        for one in changes.amendments:
            plan_of(ledger, found, one)
        checked = resume_check(
            ledger, found, retried=_retried(changes), amendments=tuple(str(one) for one in changes.amendments)
        )
    holder = checked.executing
    if holder is not None and holder.alive:
        raise RunBusy(
            f"run {found.run_id} is being executed by process {holder.pid}",
            f"wait for it, or ask it to stop with `{settings.command('cancel', found.run_id)}`",
            found.run_id, str(holder.pid),
        )  # fmt: skip
    if settings.json:
        write_json(checked)
    else:
        retried = [] if retry is None else ["--retry", retry]
        amended = [word for text in amend for word in ("--amend", text)]
        why = [] if reason is None else ["--reason", reason]
        _show(settings.screen(), checked, settings.command("resume", found.run_id, *retried, *amended, *why))
    return 0


def _retried(changes: Changes) -> tuple[tuple[str, str | None], ...]:
    found: list[tuple[str, str | None]] = []
    if changes.amendments:
        found.append(("unavailable", "budget"))
    if changes.state is not None:
        found.append((changes.state, changes.retry_reason))
    return tuple(found)


def _show(screen: Screen, found: ResumeCheck, command: str) -> None:
    screen.line(f"run {found.run} ({found.name}): {found.state}", tone=Tone.STRONG)
    counts = Counter[str](one.becomes for one in found.in_flight)
    left = found.population.pending + counts["again"] + counts["interrupted"] + found.waits_again
    words = {
        "unknown": "unknown, to be settled by you", "again": "asked again, as declared",
        "interrupted": "begun again, nothing of them was sent",
    }  # fmt: skip
    holder = found.executing
    screen.pairs([
        ("ledger", found.ledger),
        ("population", people_line(found.population)),
        ("identity", "as it was"),
        ("found", "nobody executes it" if holder is None else f"process {holder.pid} died"),
        *([("in flight", joined(f"{counts[key]} {words[key]}" for key in words if counts[key]))] if counts else []),
        *([("waits again", f"{found.waits_again} by --retry or --amend")] if found.waits_again else []),
        *(("amended", text) for text in found.amendments),
    ])  # fmt: skip
    if left:
        screen.line(f"`{command}` would take up {left}; nothing was changed", tone=Tone.GOOD)
    else:
        screen.line("nothing is left to execute; nothing was changed", tone=Tone.GOOD)
