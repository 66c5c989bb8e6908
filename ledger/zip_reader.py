"""Reading a zip file that somebody else may have made to do harm.

Only the one layout that `zip_layout` writes is taken: every header is compared with the bytes that the directory leads
to, byte for byte. So there are no two members of one name, none that overlap or hide, no links, no paths that lead
elsewhere, no lies about sizes. What is unpacked is never more than was announced.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from collections.abc import Iterator
from typing import Final

from .zip_layout import (
    DEFLATED,
    DIRECTORY_END,
    LOCATOR,
    STORED,
    ZIP64_END,
    Member,
    directory_end,
    entry_of,
    local_header,
)

__all__ = ["CHUNK", "MEMBERS_MAX", "NotOurZip", "ZipReader"]

CHUNK: Final = 1 << 20
MEMBERS_MAX: Final = 250_000
"""Each is kept in memory while the file is read."""
_RATIO_MAX: Final = 400
"""Rows that are all alike shrink to a two-hundredth; deflate could reach a thousandth."""
_SMALL: Final = 1 << 20
_CANNOT_COPY: Final = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ETXTBSY, errno.EPERM})
"""What is said where files, or the systems that they are on, cannot be copied between."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]*(?:/[a-z0-9][a-z0-9._-]*){0,3}", re.ASCII)
_NAME_MAX: Final = 200
_ENTRY_MAX: Final = 46 + _NAME_MAX + 64


class NotOurZip(ValueError):
    """The file has another layout than the one that is written; the text names the place."""


class ZipReader:
    """The members of an open file, by its descriptor, which stays open; safe for threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self.members = self._directory()

    def chunks(self, member: Member, *, checked: bool = True) -> Iterator[bytes]:
        """The member's bytes; raises NotOurZip when they are not as announced, at the latest at their end.

        Unless ``checked``, their CRC is not looked at: for who knows a better digest of them.
        """
        size = crc = 0
        for chunk in self._unpacked(member):
            size += len(chunk)
            if checked:
                crc = zlib.crc32(chunk, crc)
            yield chunk
        if size != member.size or (checked and crc != member.crc):
            raise NotOurZip(f"{member.name} is damaged: its checksum or its size is not as announced")

    def copy(self, member: Member, target: int) -> None:
        """Write a member that is stored as it is to an open file; the system does it where it can.

        Nothing is known of the bytes then: read the file again and compare. Raises NotOurZip where they are cut short.
        """
        left = member.packed
        while left:
            done = _copied(self._descriptor, target, left, member.ends - left)
            if not done:
                done = _write(target, self._read(member.ends - left, min(left, CHUNK), member.name))
            left -= done

    def _unpacked(self, member: Member) -> Iterator[bytes]:
        left, unpacked = member.packed, 0
        inflater = zlib.decompressobj(-zlib.MAX_WBITS) if member.method == DEFLATED else None
        while left:
            packed = self._read(member.ends - left, min(left, CHUNK), member.name)
            left -= len(packed)
            if inflater is None:
                yield packed
                continue
            while packed and not inflater.eof:
                try:
                    chunk = inflater.decompress(packed, CHUNK)
                except zlib.error as problem:
                    raise NotOurZip(f"{member.name} cannot be unpacked ({problem})") from problem
                unpacked += len(chunk)
                if unpacked > member.size:
                    raise NotOurZip(f"{member.name} unpacks to more than the {member.size} bytes that it announces")
                packed = inflater.unconsumed_tail
                if chunk:
                    yield chunk
            if inflater.eof and (inflater.unused_data or left):
                raise NotOurZip(f"{member.name} has bytes behind its end")
        if inflater is not None and not inflater.eof:
            raise NotOurZip(f"{member.name} is cut short")

    def _directory(self) -> list[Member]:
        count, begins, size = self._end()
        members: list[Member] = []
        at = expected = 0
        while at < size and len(members) < count:
            member, length = self._entry(begins + at, size - at)
            self._refuse_strange(member, expected)
            members.append(member)
            at, expected = at + length, member.ends
        if len(members) != count or at != size or expected != begins:
            raise NotOurZip("the directory does not cover the file: there are bytes that no member owns")
        names = {member.name for member in members}
        if len(names) != len(members):
            raise NotOurZip("two members have one name")
        for member in members:
            head = local_header(member)
            if self._read(member.offset, len(head), member.name) != head:
                raise NotOurZip(f"the header of {member.name} is not what the directory says of it")
        return members

    def _end(self) -> tuple[int, int, int]:
        """Count, beginning and size of the directory, from a record that is written anew and compared."""
        if self.size < DIRECTORY_END.size:
            raise NotOurZip("the file is cut short, or no snapshot")
        end = self._read(self.size - DIRECTORY_END.size, DIRECTORY_END.size, "its end")
        mark, _, _, _, count, size, begins, _ = DIRECTORY_END.unpack(end)
        if mark != b"PK\5\6":
            raise NotOurZip("the file is cut short, has something behind its end, or is no snapshot")
        before = LOCATOR.size + ZIP64_END.size
        if count == 0xFFFF or 0xFFFFFFFF in (size, begins):
            if self.size < DIRECTORY_END.size + before:
                raise NotOurZip("the file is cut short")
            found = self._read(self.size - DIRECTORY_END.size - before, before, "its end")
            _, _, _, _, _, _, _, count, size, begins = ZIP64_END.unpack(found[: ZIP64_END.size])
            end = found + end
        if begins + size + len(end) != self.size or directory_end(count=count, begins=begins, size=size) != end:
            raise NotOurZip("the end of the file does not say where its directory is")
        if count > MEMBERS_MAX:
            raise NotOurZip(f"there are {count} members, and more than {MEMBERS_MAX} are not taken")
        return count, begins, size

    def _entry(self, begins: int, left: int) -> tuple[Member, int]:
        # An entry is short: a name, and at most one field of 64 bit numbers.
        try:
            return entry_of(self._read(begins, min(left, _ENTRY_MAX), "its directory"))
        except ValueError as problem:
            raise NotOurZip(f"the directory cannot be read: {problem}") from problem

    def _refuse_strange(self, member: Member, expected: int) -> None:
        name = member.name
        if len(name) > _NAME_MAX or not _NAME.fullmatch(name):
            raise NotOurZip(f"a member has the name {name[:_NAME_MAX]!r}, which no snapshot uses")
        if member.method not in (STORED, DEFLATED):
            raise NotOurZip(f"{name} is packed by method {member.method}")
        if member.offset != expected:
            raise NotOurZip(f"{name} does not begin where the member before it ends")
        if member.method == STORED and member.size != member.packed:
            raise NotOurZip(f"{name} is stored and says that it has two sizes")
        if member.size > max(_SMALL, member.packed * _RATIO_MAX):
            raise NotOurZip(f"{name} would unpack from {member.packed} to {member.size} bytes")

    def _read(self, begins: int, count: int, what: str) -> bytes:
        data = os.pread(self._descriptor, count, begins)
        if len(data) != count:
            raise NotOurZip(f"the file ends in the middle of {what}")
        return data


def _copied(source: int, target: int, count: int, begins: int) -> int:
    """How many bytes the system has copied; none where it cannot."""
    copy = getattr(os, "copy_file_range", None)
    if copy is None:
        return 0
    try:
        done: int = copy(source, target, count, offset_src=begins)
    except OSError as problem:
        if problem.errno not in _CANNOT_COPY:
            raise
        return 0
    return done


def _write(target: int, data: bytes) -> int:
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]
    return len(data)
