"""The charts of the page, drawn by Matplotlib as inline SVG; without it (``tallystick[html]``) there are none.

Their colours are names of the page's own (``var(--ink)``), so that they follow it into the dark. The same figures give
the same bytes: no date, no random id.
"""

from __future__ import annotations

import importlib.util
import io
import re
import warnings
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..ledger.canonical import printable
from ..runner.report_document import DurationLine, RunReport, ScoreInterval
from .markup import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Chart", "duration_chart", "has_charts", "mean_chart", "rate_chart", "time_chart"]

_NAME_MAX: Final = 32
_LINES_MAX: Final = 40
# Colours that nothing else uses stand for the page's, and are replaced in the text of the drawing.
_INK, _SOFT, _RULE = "#010101", "#020202", "#030303"
_SERIES: Final = ("#040401", "#040402", "#040403", "#040404", "#040405", "#040406")
_STATES: Final = {
    "observed": "#050501",
    "failed": "#050502",
    "unknown": "#050503",
    "late": "#050503",
    "running": "#050504",
}
_OTHER: Final = "#050505"
_VARIABLES: Final = {
    _INK: "--ink",
    _SOFT: "--soft",
    _RULE: "--rule",
    **{color: f"--s{number}" for number, color in enumerate(_SERIES, start=1)},
    "#050501": "--good",
    "#050502": "--bad",
    "#050503": "--unknown",
    "#050504": "--busy",
    "#050505": "--idle",
}
_SETTINGS: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.edgecolor": _RULE,
    "axes.labelcolor": _SOFT,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _RULE,
    "grid.linewidth": 0.6,
    "text.color": _INK,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}


@attrs.frozen
class Chart:
    """A drawing and what it shows."""

    title: str
    drawing: Markup


def has_charts() -> bool:
    """Whether Matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def rate_chart(scores: Sequence[ScoreInterval]) -> Chart | None:
    """Each rate with its interval, from 0 to 100 %."""
    rows = [(_name(one), one.rate, one.rate_low, one.rate_high, one.variant) for one in scores if one.rate is not None]
    return _intervals("rates", rows, title="Share passed, with 95 % intervals", share=True)


def mean_chart(scores: Sequence[ScoreInterval]) -> Chart | None:
    """Each mean score with its interval."""
    rows = [(_name(one), one.mean, one.mean_low, one.mean_high, one.variant) for one in scores if one.mean is not None]
    return _intervals("means", rows, title="Mean score, with 95 % intervals", share=False)


def _intervals(name: str, rows: Sequence[tuple[Any, ...]], *, title: str, share: bool) -> Chart | None:
    if not rows:
        return None
    shown = rows[:_LINES_MAX]
    variants = list(dict.fromkeys(row[4] for row in shown))

    def draw(axes: Axes) -> None:
        for place, (_, value, low, high, variant) in enumerate(reversed(shown)):
            color = _SERIES[variants.index(variant) % len(_SERIES)]
            axes.plot([low, high], [place, place], color=color, linewidth=2, solid_capstyle="round")
            axes.plot([value], [place], marker="o", markersize=6, color=color)
        axes.set_yticks(range(len(shown)), [row[0] for row in reversed(shown)])
        axes.set_ylim(-0.6, len(shown) - 0.4)
        axes.grid(visible=False, axis="y")
        if share:
            axes.set_xlim(-0.02, 1.02)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")

    return _drawn(name, title, draw, height=0.9 + 0.28 * len(shown))


def duration_chart(lines: Sequence[DurationLine]) -> Chart | None:
    """How many observations took how long, on a scale of ratios; the median is marked."""
    rows = [line for line in lines if len(line.histogram) > 1][: len(_SERIES)]
    if not rows:
        return None

    def draw(axes: Axes) -> None:
        for color, line in zip(_SERIES, rows, strict=False):
            edges = [line.histogram[0][0], *(end for _, end, _ in line.histogram)]
            counts = [count for _, _, count in line.histogram]
            axes.stairs(counts, edges, color=color, fill=True, alpha=0.25)
            axes.stairs(counts, edges, color=color, linewidth=1.5, label=_cut(line.variant))
            if line.p50 is not None:
                axes.axvline(line.p50, color=color, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: _seconds(value))
        axes.xaxis.set_minor_formatter(lambda value, _: _seconds(value) if f"{value:.0e}"[0] in "25" else "")
        axes.set_ylabel("observations")
        if len(rows) > 1:
            axes.legend(frameon=False, labelcolor=_INK)

    return _drawn("durations", "Durations of observations; a dashed line is the median", draw, height=2.6)


def time_chart(summary: RunReport) -> Chart | None:
    """Attempts under way over time, above the sessions: a cross where one died, a bar where the next took over."""
    line = summary.timeline
    if line.began_at is None or line.ended_at is None:
        return None
    first, last = _instant(line.began_at), _instant(line.ended_at)

    def draw(axes: Axes) -> None:
        top = _attempts(axes, summary)
        _sessions(axes, summary, top, last)
        pad = (last - first) / 50
        axes.set_xlim(_number(first - pad), _number(last + pad))
        axes.set_ylim(-0.22 * top, top * 1.05)
        axes.set_yticks([value for value in axes.get_yticks() if 0 <= value <= top and value == int(value)])
        _date_axis(axes)

    title = "Attempts under way, and the sessions below them; a cross is the death of a process"
    return _drawn("times", title, draw, height=2.8)


def _attempts(axes: Axes, summary: RunReport) -> float:
    """Bars of the attempts where they are listed, else how many were under way; returns the height."""
    line = summary.timeline
    if line.attempts:
        lanes: list[datetime] = []
        last = _instant(str(line.ended_at))
        for one in line.attempts:
            began, ended = _instant(one.began_at), _instant(one.ended_at) if one.ended_at else last
            lane = next((place for place, free in enumerate(lanes) if free <= began), len(lanes))
            lanes[lane:] = [ended, *lanes[lane + 1 :]]
            color = _STATES.get(one.state, _OTHER)
            axes.plot(
                [_number(began), _number(ended)], [lane + 0.5] * 2, color=color, linewidth=4, solid_capstyle="butt"
            )
        axes.set_ylabel("attempts")
        return float(max(1, len(lanes)))
    starts = [_number(_instant(bucket.at)) for bucket in line.buckets]
    edges = [*starts, _number(_instant(str(line.ended_at)))]
    edges[-1] = max(edges[-1], starts[-1] + 1e-9)
    axes.stairs([bucket.in_flight for bucket in line.buckets], edges, color=_SERIES[0], fill=True, alpha=0.35)
    axes.set_ylabel("attempts under way")
    return float(max([1, *(bucket.in_flight for bucket in line.buckets)]))


def _sessions(axes: Axes, summary: RunReport, top: float, last: datetime) -> None:
    place = -0.11 * top
    for one in summary.sessions:
        began = _number(_instant(one.began_at))
        ended = _number(_instant(one.ended_at) if one.ended_at else last)
        axes.plot([began, ended], [place] * 2, color=_SOFT, linewidth=5, solid_capstyle="butt")
        if one.number > 1:
            axes.axvline(began, color=_SOFT, linewidth=0.8, linestyle=(0, (2, 2)))
        if one.died:
            axes.plot([ended], [place], marker="x", markersize=9, markeredgewidth=2.5, color=_STATES["failed"])


def _date_axis(axes: Axes) -> None:
    dates: Any = importlib.import_module("matplotlib.dates")
    locator = dates.AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))


def _number(instant: datetime) -> float:
    dates: Any = importlib.import_module("matplotlib.dates")
    return float(dates.date2num(instant))


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _seconds(value: float) -> str:
    for unit, size in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size * 0.999:
            return f"{value / size:g} {unit}"
    return f"{value:g} s"


def _name(score: ScoreInterval) -> str:
    return f"{_cut(score.judge)} · {_cut(score.variant)}"


def _cut(text: str) -> str:
    shown = " ".join(printable(text).split())
    return shown if len(shown) <= _NAME_MAX else shown[: _NAME_MAX - 1] + "…"


def _drawn(name: str, title: str, draw: Callable[[Axes], None], *, height: float) -> Chart:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: Any = {**_SETTINGS, "svg.hashsalt": name}
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that no font here has is drawn by the browser's
        figure = Figure(figsize=(7.6, height), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        draw(axes)
        return Chart(title, _inline(FigureCanvasSVG(figure), name, title))


def _inline(canvas: Any, name: str, title: str) -> Markup:
    out = io.StringIO()
    canvas.print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    # Several drawings stand on one page, so each has ids of its own.
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var({variable})")
    text = re.sub(r'<svg ([^>]*?)width="[^"]*pt" height="[^"]*pt"', r"<svg \1", text)
    head, rest = text.split(">", 1)
    return Markup(f'{head} role="img" class="chart" aria-label="{title}"><title>{title}</title>{rest}')
