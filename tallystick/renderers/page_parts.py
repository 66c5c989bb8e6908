"""The parts of the page above the list of cases, in the order in which they should be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..runner.report_document import GroupLine, RunReport, ScoreInterval
from ..runner.report_models import BudgetLine, Population, TotalsPart
from .charts import Chart, duration_chart, has_charts, mean_chart, rate_chart, time_chart
from .markup import Markup, element, join, table
from .words import (
    agreement_cells,
    budget_name,
    flag_words,
    interval_words,
    money_or_count,
    people_line,
    price_words,
    rate_words,
    seconds_words,
    silent_words,
    state_word,
)

__all__ = [
    "budgets_part",
    "durations_part",
    "groups_part",
    "head_part",
    "points_part",
    "population_part",
    "scores_part",
    "times_part",
]

_STATES: Final = ("selected", "failed", "unknown", "unavailable", "parked", "cancelled", "in_flight", "pending")
_SCORE_COLUMNS: Final = ("judge", "variant", ">passed", ">rate", ">95 %", ">mean", ">95 %", ">judged", "no verdict")


def head_part(summary: RunReport) -> Markup:
    """What the page is of, and the way to its parts."""
    facts = [
        ("run", element("code", summary.run)),
        ("state", element("span", state_word(summary.state), class_=f"chip {summary.state}")),
        ("event", f"{summary.event} of {summary.event_at}"),
        ("next", element("code", summary.command) if summary.command else "nothing is needed"),
    ]
    if summary.evaluation is not None:
        facts.append(("evaluation", f"{summary.evaluation.number} ({summary.evaluation.name})"))
    if summary.slice is not None:
        terms = ", ".join(f"{term.key} = {term.value}" for term in summary.slice.terms)
        facts.append(("slice", f"{terms}: {summary.slice.planned} of {summary.slice.of} planned"))
    links = [
        element("a", text, href=f"#{name}")
        for name, text, is_there in (
            ("population", "Population", True), ("points", "Needs a look", bool(summary.open_points)),
            ("scores", "Scores", bool(summary.scores)), ("groups", "Groups", bool(summary.groups)),
            ("budgets", "Spend", True), ("durations", "Durations", True), ("times", "Time line", True),
            ("cases", "Cases", True),
        )
        if is_there
    ]  # fmt: skip
    listed = [element("div", element("dt", name), element("dd", value)) for name, value in facts]
    return element(
        "header", element("h1", summary.name), element("dl", *listed, class_="facts"), element("nav", *links)
    )


def _section(name: str, title: str, *parts: object) -> Markup:
    return element("section", element("h2", title), *parts, id=name)


def _figure(chart: Chart | None) -> Markup | None:
    if chart is None:
        return None
    caption = element("figcaption", chart.title)
    return element("figure", caption, element("div", chart.drawing, class_="scroll", tabindex="0"))


def population_part(summary: RunReport) -> Markup:
    """Every planned observation once, as one bar and in numbers."""
    people = summary.population
    rows = [_bar_row("all", people)]
    if len(summary.by_variant) > 1:
        rows += [_bar_row(one.variant, one.population) for one in summary.by_variant]
    legend = [
        element("li", element("i", class_=state), f"{state_word(state)} {getattr(people, state)}")
        for state in _STATES
        if getattr(people, state)
    ]
    return _section(
        "population", "Population", element("p", people_line(people), class_="lead"),
        element("div", *rows, class_="bars"), element("ul", *legend, class_="legend"),
    )  # fmt: skip


def _bar_row(name: str, people: Population) -> Markup:
    parts = [
        element(
            "a", class_=state, style=f"flex-grow:{count}", href=f"#cases:state={state}",
            title=f"{state_word(state)}: {count} of {people.planned}",
            aria_label=f"{state_word(state)}: {count} of {people.planned}",
        )
        for state in _STATES
        if (count := getattr(people, state))
    ]  # fmt: skip
    return element("div", element("span", name), element("div", *parts, class_="bar"))


def points_part(summary: RunReport) -> Markup | None:
    """What needs somebody: what it is, what that means, what helps."""
    if not summary.open_points:
        return None
    cards = []
    for one in summary.open_points:
        why = ", ".join(f"{count} {reason}" for reason, count in one.reasons.items())
        cards.append(
            element(
                "li", element("b", f"{one.count} {state_word(one.what)}"), element("span", why, class_="soft"),
                element("p", one.meaning), element("code", one.command) if one.command else None,
                element("a", "show them", href=f"#cases:{_filter_of(one.what)}"), class_=f"card {one.what}",
            )
        )  # fmt: skip
    return _section("points", "Needs a look", element("ul", *cards, class_="cards"))


def _filter_of(what: str) -> str:
    """What the list of cases is filtered by to show those of a point."""
    return {
        "no_verdict": "verdict=none",
        "waiting": "verdict=waiting",
        "unqualified": "verdict=any",
        "qualified_elsewhere": "verdict=any",
    }.get(what, f"state={what}")


def scores_part(summary: RunReport) -> Markup | None:
    """Each judge's figures with their denominators and intervals."""
    if not summary.scores:
        return None
    agreed = [agreement_cells(one) for one in summary.agreements]
    agreement = table(["judges", ">agreed", ">rate", ">kappa", ">95 %"], agreed) if agreed else None
    charts = [_figure(rate_chart(summary.scores)), _figure(mean_chart(summary.scores))] if has_charts() else []
    return _section(
        "scores", "Scores", table(_SCORE_COLUMNS, [_score(one) for one in summary.scores]), *charts,
        agreement,
        element("p", f"Flags of selected answers: {flag_words(summary.flags)}.") if summary.flags else None,
        element("p", "Only observations with a verdict are in a denominator; what has none stands beside it. Intervals "
                "hold the repetitions of a case together.", class_="soft"),
    )  # fmt: skip


def _score(one: ScoreInterval) -> list[Any]:
    missing = {**one.no_verdict, **one.without_observation}
    told = [f"{count} {state_word(reason)}" for reason, count in missing.items()]
    told += [f"{one.waiting} waiting"] if one.waiting else []
    told += [f"{one.outside} outside the set"] if one.outside else []
    return [
        one.judge if one.counts else join([one.judge, " ", element("span", "unqualified", class_="chip failed")]),
        one.variant, f"{one.passed} of {one.rated}" if one.rated else "", rate_words(one.rate),
        interval_words(one.rate_low, one.rate_high, rate=True), "" if one.mean is None else f"{one.mean:.4g}",
        interval_words(one.mean_low, one.mean_high), f"{one.judged} of {one.planned}", ", ".join(told),
    ]  # fmt: skip


def groups_part(summary: RunReport) -> Markup | None:
    """The scores for each value of a key."""
    rows = [[_value(group), *_score(score)] for group in summary.groups for score in group.scores]
    if not rows:
        return None
    return _section("groups", f"By {summary.groups[0].key}", table(["value", *_SCORE_COLUMNS], rows))


def _value(group: GroupLine) -> Any:
    return group.value if group.has_key else "(none)"


def budgets_part(summary: RunReport) -> Markup:
    """What was sent, and what each budget was spent on."""
    rows = [
        [
            budget_name(one) + ("" if one.kind == "hard" else " (soft)"), money_or_count(one.unit, one.limit),
            *(money_or_count(one.unit, value) for value in (one.settled, one.counted, one.wasted, one.held,
                                                            one.held_by_unknown, one.left)),
        ]
        for one in summary.budgets
    ]  # fmt: skip
    columns = ["budget", ">limit", ">spent", ">counted", ">wasted", ">held", ">held by unknown", ">left"]
    silent = [
        element("p", f"{silent_words(one)}.", class_="soft")
        for one in summary.budgets
        if one.unknown_uses
    ]  # fmt: skip
    bars = [_spend_bar(one) for one in summary.budgets]
    return _section(
        "budgets", "Spend", table(_TOTALS, _totals(summary)), table(columns, rows) if rows else None,
        element("div", *bars, class_="bars") if bars else None, _spend_legend() if bars else None, *silent,
        _by_class(summary), *(element("p", f"Prices {price_words(one)}.", class_="soft") for one in summary.prices),
    )  # fmt: skip


def _by_class(summary: RunReport) -> Markup | None:
    """Tokens of each class, by who sent them, where they were told apart."""
    parts = {"target": summary.totals, "judges": summary.judge_totals}
    told = {name: part.tokens_by_class for name, part in parts.items() if part is not None and part.tokens_by_class}
    if not told:
        return None
    classes = list(dict.fromkeys(one for part in told.values() for one in part))
    rows = [[name, *(part.get(one, "") for one in classes)] for name, part in told.items()]
    return table(["tokens by", *(f">{one.replace('_', ' ')}" for one in classes)], rows)


_TOTALS: Final = (
    "by", ">attempts", ">calls", ">sends", ">wasted", ">tokens in", ">tokens out", ">cost", "sends by outcome",
)  # fmt: skip


def _totals(summary: RunReport) -> list[list[Any]]:
    rows = [_total("target", summary.totals)]
    return rows if summary.judge_totals is None else [*rows, _total("judges", summary.judge_totals)]


def _total(name: str, found: TotalsPart) -> list[Any]:
    cost = "unknown" if found.cost_usd is None else f"${found.cost_usd}"
    if found.unpriced_dispatches and found.cost_usd is not None:
        cost = f"at least {cost}; {found.unpriced_dispatches} had no price"
    tokens = ["unknown" if value is None else value for value in (found.tokens_in, found.tokens_out)]
    states = ", ".join(f"{count} {state}" for state, count in found.dispatches_by_state.items())
    return [
        name, found.attempts or "", found.calls, found.dispatches, found.wasted_dispatches or "", *tokens, cost, states,
    ]  # fmt: skip


def _spend_legend() -> Markup:
    words = (("selected", "counted"), ("failed", "wasted"), ("unknown", "held"), ("pending", "left"))
    return element("ul", *(element("li", element("i", class_=css), word) for css, word in words), class_="legend")


def _spend_bar(one: BudgetLine) -> Markup:
    """What of a budget counted, was wasted, is held and is left, as shares of its limit."""
    shares = [
        ("counted", one.counted, "selected"), ("wasted", one.wasted, "failed"), ("held", one.held, "unknown"),
        ("left", one.left, "pending"),
    ]  # fmt: skip
    parts = [
        element("i", class_=css, style=f"flex-grow:{float(amount)}",
                title=f"{name}: {money_or_count(one.unit, amount)} of {money_or_count(one.unit, one.limit)}")
        for name, amount, css in shares
        if amount is not None and float(amount) > 0
    ]  # fmt: skip
    return element("div", element("span", budget_name(one)), element("div", *parts, class_="bar"))


def durations_part(summary: RunReport) -> Markup:
    """How long observations took."""
    rows = [
        [one.variant, one.known, one.unknown or "",
         *(seconds_words(value) for value in (one.least, one.p50, one.p90, one.p95, one.p99, one.most)),
         interval_words(one.p50_low, one.p50_high)]
        for one in summary.durations
    ]  # fmt: skip
    columns = ["variant", ">known", ">unknown", ">shortest", ">median", ">p90", ">p95", ">p99", ">longest",
               ">median, 95 % (s)"]  # fmt: skip
    chart = _figure(duration_chart(summary.durations)) if has_charts() else None
    return _section("durations", "Durations", table(columns, rows), chart)


def times_part(summary: RunReport) -> Markup:
    """Sessions, deaths, takeovers, and what happened to the run as a whole."""
    rows = [
        [one.number, one.began_at, one.ended_at or "", _how(one.died, one.reason),
         ", ".join(f"{count} {word}" for count, word in _found(one)), one.fence]
        for one in summary.sessions
    ]  # fmt: skip
    marks = [[one.event, one.at, one.text] for one in reversed(summary.marks)]
    chart = _figure(time_chart(summary)) if has_charts() else None
    sessions = table(["session", "@began", "@ended", "how", "found at its beginning", ">fence"], rows)
    shown: Sequence[object] = ()
    if marks:
        head = element("summary", f"What happened to the run ({len(marks)})")
        shown = [element("details", head, table([">event", "@at", "what"], marks))]
    return _section(
        "times", "Time line", chart, sessions if rows else element("p", "Nothing was executed yet."), *shown
    )


def _how(died: bool, reason: str | None) -> Markup | str:
    if died:
        return element("span", "its process died", class_="chip failed")
    return reason or "no end is recorded"


def _found(one: Any) -> list[tuple[int, str]]:
    told = ((one.unknown, "unknown"), (one.again, "asked again"), (one.interrupted, "cut off"), (one.parked, "parked"))
    return [(count, word) for count, word in told if count]
