"""What a recording is made of: one tuple for each thing that a process did to the files of a folder.

``begun`` and ``ended`` number the moments before and after; what is not known to have ended has ``ended`` None (the
process died meanwhile). A file is a number of its own: paths come and go, and the kernel uses inode numbers again.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

__all__ = ["Failed", "Made", "Record", "Removed", "Renamed", "Said", "Sized", "Synced", "Wrote", "read_records"]


class Made(NamedTuple):
    """A file or folder got its name."""

    begun: int
    ended: int | None
    path: str
    file: int
    is_folder: bool


class Wrote(NamedTuple):
    """Bytes were written into a file."""

    begun: int
    ended: int | None
    file: int
    offset: int
    data: bytes


class Sized(NamedTuple):
    """A file was cut or grown."""

    begun: int
    ended: int | None
    file: int
    size: int


class Synced(NamedTuple):
    """A file, or the names in a folder, were brought to the disk; with ``failed``, they were not."""

    begun: int
    ended: int | None
    file: int
    failed: bool


class Renamed(NamedTuple):
    """A name was given to what had another."""

    begun: int
    ended: int | None
    old: str
    new: str


class Removed(NamedTuple):
    """A name went away."""

    begun: int
    ended: int | None
    path: str


class Said(NamedTuple):
    """The process acknowledged something, or told that it is about to send something."""

    begun: int
    ended: int | None
    text: str


class Failed(NamedTuple):
    """The recorder let a call fail."""

    begun: int
    ended: int | None
    call: str
    error: int


Record: TypeAlias = Failed | Made | Wrote | Sized | Synced | Renamed | Removed | Said


def read_records(log: Path) -> list[Record]:
    """A recording, in the order in which its calls began."""
    return sorted(_each(log), key=lambda record: record.begun)


def _each(log: Path) -> Iterator[Record]:
    kinds = {kind.__name__: kind for kind in (Failed, Made, Wrote, Sized, Synced, Renamed, Removed, Said)}
    with log.open("rb") as file:
        while True:
            try:
                name, fields = pickle.load(file)
            except EOFError:
                return
            yield kinds[name](*fields)
