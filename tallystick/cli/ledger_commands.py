"""The commands that look after the ledger's file."""

from __future__ import annotations

from pathlib import Path

import click

from .settings import Settings, common, json_output

__all__ = ["ledger_backup", "ledger_compact"]


@click.command("backup", short_help="Copy the ledger while it is used.")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Replace a file of that name.")
@json_output
@common
@click.pass_obj
def ledger_backup(settings: Settings, path: Path, *, force: bool) -> int:
    """Copy the ledger, as it is at one instant, to PATH, with its artifacts beside it; it may be in use meanwhile."""
    from .care import backup

    return backup(settings, path, force=force)


@click.command("compact", short_help="Give back the space that the ledger does not need.")
@json_output
@common
@click.pass_obj
def ledger_compact(settings: Settings) -> int:
    """Write the ledger's file anew without what is free in it; nobody else may use it meanwhile."""
    from .care import compact

    return compact(settings)
