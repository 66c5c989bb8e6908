"""The command line. Importing it is cheap: what a command needs is loaded when the command is given."""

from __future__ import annotations

from .entry import invoke, main

__all__ = ["invoke", "main"]
