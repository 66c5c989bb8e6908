"""The commands about devices and their options."""

from __future__ import annotations

import click

from .settings import Settings, common, json_output

__all__ = ["device"]

_REASON = click.option("--reason", metavar="TEXT", help="Why; kept in the ledger.")


@click.group()
def device() -> None:
    """See who has a device, and decide about it."""


@device.command("list", short_help="List the devices and who has each.")
@json_output
@common
@click.pass_obj
def device_list(settings: Settings) -> int:
    """List every device that this ledger has had: who has it, who waits, what is unknown on it, and what to do."""
    from .devices import show_list

    return show_list(settings)


@device.command("show", short_help="Show all that is known of one device.")
@click.argument("resource", metavar="DEVICE")
@json_output
@common
@click.pass_obj
def device_show(settings: Settings, resource: str) -> int:
    """Show all that is known of DEVICE."""
    from .devices import show_device

    return show_device(settings, resource)


@device.command("release", short_help="Take a device from a holder that has died or hangs.")
@click.argument("resource", metavar="DEVICE")
@click.option("--force", is_flag=True, help="Also from a holder that may be alive; needs --reason.")
@_REASON
@json_output
@common
@click.pass_obj
def device_release(settings: Settings, resource: str, *, force: bool, reason: str | None) -> int:
    """Take DEVICE from a holder that has died; with --force from any. What it had in flight becomes unknown."""
    from .device_care import release

    return release(settings, resource, force=force, reason=reason)


@device.command("quarantine", short_help="Let nobody have a device.")
@click.argument("resource", metavar="DEVICE")
@_REASON
@json_output
@common
@click.pass_obj
def device_quarantine(settings: Settings, resource: str, *, reason: str | None) -> int:
    """Let nobody on this host have DEVICE before it is cleared; ends its holder's lease."""
    from .device_care import quarantine

    return quarantine(settings, resource, reason=reason)


@device.command("clear", short_help="Let a device that was in quarantine be used again.")
@click.argument("resource", metavar="DEVICE")
@_REASON
@json_output
@common
@click.pass_obj
def device_clear(settings: Settings, resource: str, *, reason: str | None) -> int:
    """Let DEVICE be used again, after you have looked at it."""
    from .device_care import clear

    return clear(settings, resource, reason=reason)
