"""The commands that report, compare and decide: nothing is called and nothing is changed by any of them."""

from __future__ import annotations

from pathlib import Path

import click

from .settings import Settings, common, json_output

__all__ = ["report"]

_FORMS = click.Choice(["terminal", "json", "md", "csv", "junit"])
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
