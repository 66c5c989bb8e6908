"""The commands that only look: ``runs``, ``status``, ``show``."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final

from ..ledger.errors import UsageError
from ..ledger.ledger import Ledger
from ..ledger.run_reads import RunRow, newest_unfinished
from ..ledger.slot_reads import CasePage, case_ids, case_page
from ..runner.reports import list_of_runs, status_of
from . import screens
from .choosing import named_or_newest
from .output import write_json
from .settings import Settings

__all__ = ["show_case", "show_runs", "show_status"]

_LOOKED_AT: Final = 1000
_SHOWN: Final = 5


def show_runs(settings: Settings, *, limit: int) -> int:
    """The list of runs."""
    with Ledger.open(settings.ledger_path) as ledger:
        found = list_of_runs(ledger, limit=limit)
    if settings.json:
        write_json(found)
        return 0
    screen = settings.screen()
    screen.pairs([("ledger", found.ledger)])
    rows = [
        (one.run, one.name, one.state, f"{one.selected} of {one.planned}", one.created_at, one.next)
        for one in found.runs
    ]
    screen.table(["run", "name", "state", ">selected", "created", "next"], rows)
    return 0


def show_status(settings: Settings, run: str | None) -> int:
    """How a run stands."""
    with Ledger.open(settings.ledger_path) as ledger:
        row = _named_or_unfinished(ledger, run)
        found = status_of(ledger, row.run_id, ledger_option=settings.ledger_option)
    if settings.json:
        write_json(found)
    else:
        screens.show_status(settings.screen(), found)
    return 0


def show_case(settings: Settings, run: str | None, case: str, *, variant: str | None, repetition: int | None) -> int:
    """The page of one case."""
    from ..runner.case_pages import case_model
    from .case_screen import show_case as show

    with Ledger.open(settings.ledger_path) as ledger:
        row = named_or_newest(ledger, run)
        with ledger.reading() as reader:
            pages = case_page(reader, row.run_key, case)
            known = [] if pages else case_ids(reader, row.run_key, limit=_LOOKED_AT)
    chosen = [page for page in pages if variant in (None, page.variant) and repetition in (None, page.repetition)]
    if not chosen:
        what = f"no such variant or repetition of case {case}" if pages else f"no case {case}"
        raise UsageError(f"run {row.run_id} has {what}", _instead(case, pages, known))
    found = case_model(str(ledger.path), row, chosen)
    if settings.json:
        write_json(found)
    else:
        show(settings.screen(), found)
    return 0


def _instead(case: str, pages: Sequence[CasePage], known: Sequence[str]) -> str:
    """What there is in the place of a case, a variant or a repetition that is not there."""
    if pages:
        sides = ", ".join(dict.fromkeys(page.variant for page in pages))
        return f"it has {sides}, and repetitions up to {max(page.repetition for page in pages)}"
    if not known:
        return "it has no cases yet"
    near = difflib.get_close_matches(case, known, n=1)
    more = ", …" if known[_SHOWN:] else ""
    return f'did you mean "{near[0]}"?' if near else f"it has {', '.join(known[:_SHOWN])}{more}"


def _named_or_unfinished(ledger: Ledger, run: str | None) -> RunRow:
    if run is None:
        with ledger.reading() as reader:
            unfinished = newest_unfinished(reader)
        if unfinished is not None:
            return unfinished
    return named_or_newest(ledger, run)
