"""Asking before something is changed."""

from __future__ import annotations

import sys

import click

from ..ledger.errors import UsageError
from .settings import Settings

__all__ = ["is_wanted"]


def is_wanted(settings: Settings, question: str, *, verb: str, yes: bool) -> bool:
    """Whether it is to be done: ``--yes`` says so, or somebody at a terminal does.

    ``verb`` names it in the remedy. Raises UsageError where there is nobody to ask.
    """
    if yes:
        return True
    if settings.json or not sys.stdin.isatty():
        raise UsageError(
            "this is no terminal to ask on, and nothing was changed", f"add --yes to {verb} without asking"
        )
    if click.confirm(question, err=True):
        return True
    settings.progress_screen().line("nothing was changed")
    return False
