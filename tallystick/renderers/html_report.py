"""One page that shows everything about a run and needs nothing else: no network, no other file, no server.

What targets and judges said is text in it and never markup, and a content security policy lets no other script run than
the page's own, so that a mistake here could not be used either.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from importlib.resources import files
from typing import Final

from ..runner.report_reading import Report
from .charts import has_charts
from .markup import Markup, element, join
from .page_data import DETAILS_MAX, ROWS_MAX, page_data
from .page_parts import (
    budgets_part,
    durations_part,
    groups_part,
    head_part,
    points_part,
    population_part,
    scores_part,
    times_part,
)

__all__ = ["html_report"]

_POLICY: Final = (
    "default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none';"
    " form-action 'none'"
)


def html_report(report: Report) -> Iterator[str]:
    """Its pieces."""
    summary = report.summary
    script, style = _asset("page.js"), _asset("page.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    yield "<!DOCTYPE html>\n"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield element("meta", http_equiv="Content-Security-Policy", content=_POLICY.format(digest=digest))
    yield element("meta", name="viewport", content="width=device-width, initial-scale=1")
    yield element("meta", name="color-scheme", content="light dark")
    yield element("title", f"{summary.name}: tallystick report")
    yield f"<style>{style}</style></head><body>"
    yield head_part(summary)
    parts = [
        population_part(summary), points_part(summary), scores_part(summary), groups_part(summary),
        budgets_part(summary), durations_part(summary), times_part(summary),
    ]  # fmt: skip
    yield element("main", join(parts), None if has_charts() else _without_charts(), _cases(report))
    yield '<script type="application/json" id="data">'
    yield from page_data(report)
    yield f"</script><script>{script}</script></body></html>\n"


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _without_charts() -> Markup:
    return element(
        "p", "Charts are drawn where Matplotlib is installed: ", element("code", "pip install 'tallystick[html]'"), ".",
        class_="soft",
    )  # fmt: skip


def _cases(report: Report) -> Markup:
    planned = report.summary.population.planned
    notes = []
    if planned > ROWS_MAX:
        notes.append(f"The list ends after {ROWS_MAX} of {planned}; the CSV and JSON forms have all.")
    if planned > DETAILS_MAX:
        notes.append(f"Only the first {DETAILS_MAX} unfold; `tallystick show RUN CASE` shows any.")
    search = element(
        "input", type="search", id="search", placeholder="Search cases, answers, reasons, verdicts…",
        aria_label="Search", autocomplete="off",
    )  # fmt: skip
    choices = [
        element("select", id=name, aria_label=label)
        for name, label in (("state", "State"), ("variant", "Variant"), ("verdict", "Verdict"))
    ]
    tools = element("div", search, *choices, element("button", "Clear", id="clear", type="button"), class_="tools")
    return element(
        "section",
        element("h2", "Cases"),
        *(element("p", note, class_="soft") for note in notes),
        tools,
        element("p", "", id="count", class_="soft", aria_live="polite"),
        element("noscript", element("p", "The list of cases needs JavaScript; the figures above do not.")),
        element("div", id="list"),
        element("div", id="pager", class_="pager"),
        id="cases",
    )
