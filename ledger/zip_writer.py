"""Writing a zip file whose bytes depend on its members alone; memory is bounded by a chunk."""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Iterable
from typing import Final

import attrs

from .zip_layout import DEFLATED, STORED, Member, directory_end, directory_entry, local_header

__all__ = ["Written", "ZipWriter"]

_LEVEL: Final = 1
"""Rows shrink to a tenth at the lowest level already; the next ones cost more than they save."""


@attrs.frozen
class Written:
    """A member as it was written; ``digest`` (of the bytes before they were packed) is ``sha256:<hex>``."""

    member: Member
    digest: str


class ZipWriter:
    """Writes into a file that is empty and can be positioned; belongs to one thread."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file = file
        self._members: list[Member] = []
        self._at = 0

    @property
    def count(self) -> int:
        """How many members there are."""
        return len(self._members)

    def deflate(self, name: str, chunks: Iterable[bytes]) -> Written:
        """Write a compressed member; it must stay below 4 GiB."""
        return self._add(Member(name, DEFLATED, self._at, 0, 0, 0), chunks)

    def store(self, name: str, size: int, chunks: Iterable[bytes]) -> Written:
        """Write a member as it is; ``size`` is that of all chunks."""
        return self._add(Member(name, STORED, self._at, size, size, 0), chunks)

    def finish(self) -> int:
        """Write the directory and return the size of the file."""
        self._file.seek(self._at)
        size = 0
        for member in self._members:
            size += self._file.write(directory_entry(member))
        end = directory_end(count=len(self._members), begins=self._at, size=size)
        self._file.write(end)
        self._file.flush()
        return self._at + size + len(end)

    def _add(self, begun: Member, chunks: Iterable[bytes]) -> Written:
        # The sizes stand before the bytes, so the header is written twice; its length must not change.
        self._file.seek(begun.begins)
        hashed, crc, size, packed = hashlib.sha256(), 0, 0, 0
        deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS) if begun.method == DEFLATED else None
        for chunk in chunks:
            hashed.update(chunk)
            crc = zlib.crc32(chunk, crc)
            size += len(chunk)
            packed += self._file.write(deflater.compress(chunk) if deflater else chunk)
        if deflater:
            packed += self._file.write(deflater.flush())
        member = attrs.evolve(begun, size=size, packed=packed, crc=crc)
        if member.begins != begun.begins or (begun.method == STORED and size != begun.size):
            raise ValueError(f"the member {begun.name} has {size} bytes and was announced with {begun.size}")
        self._file.seek(begun.offset)
        self._file.write(local_header(member))
        self._at = member.ends
        self._members.append(member)
        return Written(member, f"sha256:{hashed.hexdigest()}")
