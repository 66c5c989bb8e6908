"""The records of a zip file as snapshots use them (PKWARE APPNOTE.TXT 6.3.10, sections 4.3.7 to 4.3.16).

One layout only, so that the same members give the same bytes and nothing can hide between them: members follow each
other without gaps from the first byte, their sizes stand before them, the directory follows, and nothing comes after.
No comments, no encryption, no data descriptors, no attributes of a machine. The zip64 records stand where, and only
where, a number does not fit.
"""

from __future__ import annotations

import struct
from typing import Final

import attrs

__all__ = [
    "DEFLATED",
    "DIRECTORY_END",
    "LOCAL",
    "LOCATOR",
    "STORED",
    "ZIP64_END",
    "Member",
    "directory_end",
    "directory_entry",
    "entry_of",
    "local_header",
]

STORED: Final = 0
DEFLATED: Final = 8

LOCAL: Final = struct.Struct("<4s5H3L2H")
ENTRY: Final = struct.Struct("<4s4B4H3L5H2L")
DIRECTORY_END: Final = struct.Struct("<4s4H2LH")
ZIP64_END: Final = struct.Struct("<4sQ2H2L4Q")
LOCATOR: Final = struct.Struct("<4sLQL")

_MAX16: Final = 0xFFFF
_MAX32: Final = 0xFFFFFFFF
_DAY: Final = 0x21  # 1 January 1980, the first day that a zip file knows
_PLAIN_FILE: Final = 0o100644 << 16
_UNIX: Final = 3
_ZIP64_TAG: Final = 1


@attrs.frozen
class Member:
    """One member: where its header begins, how it is kept, its sizes before and after, and its CRC-32."""

    name: str
    method: int
    offset: int
    size: int
    packed: int
    crc: int

    @property
    def begins(self) -> int:
        """Where its bytes begin in the file."""
        return self.offset + len(local_header(self))

    @property
    def ends(self) -> int:
        """Where the next member begins."""
        return self.begins + self.packed


def local_header(member: Member) -> bytes:
    """What stands before the member's bytes."""
    is_long = max(member.size, member.packed) >= _MAX32
    extra = struct.pack("<2H2Q", _ZIP64_TAG, 16, member.size, member.packed) if is_long else b""
    sizes = (_MAX32, _MAX32) if is_long else (member.packed, member.size)
    head = LOCAL.pack(
        b"PK\3\4", _version(is_long), 0, member.method, 0, _DAY, member.crc, *sizes, len(member.name), len(extra)
    )
    return head + member.name.encode("ascii") + extra


def directory_entry(member: Member) -> bytes:
    """What the directory says of the member."""
    is_long = max(member.size, member.packed) >= _MAX32
    is_far = member.offset >= _MAX32
    long = [member.size, member.packed] * is_long + [member.offset] * is_far
    extra = struct.pack(f"<2H{len(long)}Q", _ZIP64_TAG, 8 * len(long), *long) if long else b""
    sizes = (_MAX32, _MAX32) if is_long else (member.packed, member.size)
    version = _version(bool(long))
    head = ENTRY.pack(
        b"PK\1\2", version, _UNIX, version, 0, 0, member.method, 0, _DAY, member.crc, *sizes, len(member.name),
        len(extra), 0, 0, 0, _PLAIN_FILE, _MAX32 if is_far else member.offset,
    )  # fmt: skip
    return head + member.name.encode("ascii") + extra


def entry_of(data: bytes) -> tuple[Member, int]:
    """The directory's entry with which these bytes begin, and its length.

    Raises ValueError for every entry that `directory_entry` would not have written.
    """
    if len(data) < ENTRY.size:
        raise ValueError("it is cut short")
    *_, method, _, _, crc, packed, size, name_length, extra_length, _, _, _, _, offset = ENTRY.unpack_from(data)
    name = data[ENTRY.size : ENTRY.size + name_length]
    extra = data[ENTRY.size + name_length : ENTRY.size + name_length + extra_length]
    try:
        offset, size, packed = _long(extra, offset, size, packed)
        member = Member(name.decode("ascii"), method, offset, size, packed, crc)
    except (UnicodeDecodeError, struct.error) as problem:
        raise ValueError(f"the name {name[:80]!r} is not as they are written") from problem
    entry = directory_entry(member)
    if data[: len(entry)] != entry:
        raise ValueError(f"the entry {member.name[:80]!r} has attributes, flags or fields that are never written")
    return member, len(entry)


def _long(extra: bytes, offset: int, size: int, packed: int) -> tuple[int, int, int]:
    """Offset, size and packed size, from the zip64 field where they do not fit."""
    numbers = list(struct.unpack(f"<{max(0, len(extra) - 4) // 8}Q", extra[4:])) if extra else []
    if _MAX32 in (size, packed) and len(numbers) > 1:
        size, packed = numbers[:2]
        numbers = numbers[2:]
    if offset == _MAX32 and numbers:
        offset = numbers[0]
    return offset, size, packed


def directory_end(*, count: int, begins: int, size: int) -> bytes:
    """What ends the file, for a directory of so many entries that begins there and has that size."""
    if count < _MAX16 and begins < _MAX32 and size < _MAX32:
        return DIRECTORY_END.pack(b"PK\5\6", 0, 0, count, count, size, begins, 0)
    zip64 = ZIP64_END.pack(
        b"PK\6\6", ZIP64_END.size - 12, _version(is_long=True) | _UNIX << 8, 45, 0, 0, count, count, size, begins
    )
    locator = LOCATOR.pack(b"PK\6\7", 0, begins + size, 1)
    return zip64 + locator + DIRECTORY_END.pack(b"PK\5\6", 0, 0, _MAX16, _MAX16, _MAX32, _MAX32, 0)


def _version(is_long: bool) -> int:
    return 45 if is_long else 20
