"""The commands that report, compare and decide: nothing is called and nothing is changed by any of them."""

from __future__ import annotations

from pathlib import Path

import click

from .settings import Settings, common, json_output

__all__ = ["compare", "gate", "report"]

_FORMS = click.Choice(["terminal", "json", "html", "md", "csv", "junit"])
_SLICE = click.option(
    "--slice", "slices", metavar="KEY=VALUE", multiple=True, help="Only cases whose metadata has VALUE under KEY."
)
_OUTPUT = click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Write it there; the file's name may say the form.",
)  # fmt: skip


@click.command(short_help="Report on a run.")
@click.argument("run", required=False)
@click.option("--format", "form", type=_FORMS, help="In which form; on the terminal unless said otherwise.")
@_OUTPUT
@_SLICE
@click.option("--by", metavar="KEY", help="The scores for each value of KEY in the cases' metadata.")
@click.option("--at", type=click.IntRange(min=1), metavar="EVENT", help="As the run stood at that event.")
@click.option("--evaluation", metavar="E", help="The verdicts of that evaluation: its number, id or name.")
@json_output
@common
@click.pass_obj
def report(
    settings: Settings,
    run: str | None,
    *,
    form: str | None,
    output: Path | None,
    slices: tuple[str, ...],
    by: str | None,
    at: int | None,
    evaluation: str | None,
) -> int:
    """Report on RUN: population, scores with denominators, failures, what was spent; without RUN on the newest."""
    from .reporting import ReportWish, give_report

    return give_report(settings, run, ReportWish(form, output, slices, by, at, evaluation))


@click.command(short_help="Compare two runs, variants or evaluations.")
@click.argument("baseline")
@click.argument("candidate", required=False)
@_SLICE
@click.option("--by", metavar="KEY", help="Besides, a line for each value of KEY in the cases' metadata.")
@click.option("--per-case", is_flag=True, help="Besides, a line for each case.")
@click.option(
    "--min-coverage",
    type=click.FloatRange(0, 1),
    default=0.95,
    show_default=True,
    metavar="SHARE",
    help="What share of the pairs must be measured on both sides.",
)
@click.option("--format", "form", type=click.Choice(["terminal", "json", "md"]), help="In which form.")
@_OUTPUT
@json_output
@common
@click.pass_obj
def compare(
    settings: Settings,
    baseline: str,
    candidate: str | None,
    *,
    slices: tuple[str, ...],
    by: str | None,
    per_case: bool,
    min_coverage: float,
    form: str | None,
    output: Path | None,
) -> int:
    """Compare CANDIDATE to BASELINE by pairs of the same case and repetition.

    Each is RUN, RUN:VARIANT or RUN#EVALUATION. BASELINE alone is a run with two variants.
    """
    from .comparing import CompareWish, give_comparison

    return give_comparison(settings, CompareWish(baseline, candidate, slices, by, per_case, min_coverage, form, output))


@click.command(short_help="Hold a run to the gates of its work order.")
@click.argument("run", required=False)
@click.option("--order", type=click.Path(path_type=Path), metavar="FILE", help="The gates of this work order instead.")
@click.option("--baseline", metavar="SIDE", help="What it is compared to: a variant, or a side as of `compare`.")
@_SLICE
@click.option("--at", type=click.IntRange(min=1), metavar="EVENT", help="As the run stood at that event.")
@click.option("--evaluation", metavar="E", help="By the verdicts of that evaluation: its number, id or name.")
@json_output
@common
@click.pass_obj
def gate(
    settings: Settings,
    run: str | None,
    *,
    order: Path | None,
    baseline: str | None,
    slices: tuple[str, ...],
    at: int | None,
    evaluation: str | None,
) -> int:
    """Decide whether RUN (without it the newest) is within its gates: 0 passed, 1 failed, 3 inconclusive."""
    from .gating import GateWish, give_gate

    return give_gate(settings, run, GateWish(order, baseline, slices, at, evaluation))
