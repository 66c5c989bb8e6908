"""The commands that carry runs from ledger to ledger, and say whose they are to continue."""

from __future__ import annotations

from pathlib import Path

import click

from .settings import Settings, common, json_output

__all__ = ["adopt", "export", "import_"]

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(short_help="Write runs into one file that another ledger can take in.")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("-o", "--output", type=_FILE, required=True, metavar="FILE", help="Where the snapshot is to lie.")
@click.option(
    "--move", is_flag=True, help="Give the runs away: who imports the file goes on with them, not this ledger."
)
@click.option("--slots", "slots", multiple=True, metavar="KEY=VALUE", help="Leave out the contents of all others.")
@click.option("--redact", multiple=True, metavar="RULE", help="Leave out contents of that kind, or text that fits.")
@click.option("--force", is_flag=True, help="Replace a file of that name.")
@json_output
@common
@click.pass_obj
def export(
    settings: Settings,
    runs: tuple[str, ...],
    *,
    output: Path,
    move: bool,
    slots: tuple[str, ...],
    redact: tuple[str, ...],
    force: bool,
) -> int:
    """Write each RUN with everything that it refers to into one file, while it may go on; a copy, unless --move."""
    from .snapshots import ExportWish, export_to

    return export_to(settings, ExportWish(runs, output, move, slots, redact, force))


@click.command("import", short_help="Take in the runs of a snapshot.")
@click.argument("file", type=_FILE)
@json_output
@common
@click.pass_obj
def import_(settings: Settings, file: Path) -> int:
    """Verify the snapshot FILE completely, and take in its runs, or nothing. Again it changes nothing."""
    from .snapshots import import_from

    return import_from(settings, file)


@click.command(short_help="Take over a run that is a copy here, or was moved away.")
@click.argument("runs", metavar="RUN...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every unfinished run that is a copy here.")
@click.option("--reason", metavar="TEXT", help="How you know that nobody else goes on with it; kept in the ledger.")
@json_output
@common
@click.pass_obj
def adopt(settings: Settings, runs: tuple[str, ...], *, everything: bool, reason: str | None) -> int:
    """Let this ledger go on with RUN, which is a copy here or was moved away and never imported.

    That nobody else goes on with it cannot be proven: the reason is your word for it.
    """
    from .snapshots import adopt_runs

    if bool(runs) == everything:
        raise click.UsageError("name the runs, or say --all")
    return adopt_runs(settings, runs, reason=reason)
