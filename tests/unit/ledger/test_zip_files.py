"""Zip files: what is written is what any tool reads, at every size, and what is read is what was written."""

from __future__ import annotations

import errno
import io
import os
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.ledger.zip_layout import (
    DEFLATED,
    STORED,
    Member,
    directory_end,
    directory_entry,
    entry_of,
    local_header,
)
from tallystick.ledger.zip_reader import NotOurZip, ZipReader
from tallystick.ledger.zip_writer import ZipWriter

SIZES = st.one_of(st.integers(0, 2**20), st.integers(2**32 - 2, 2**32 + 2), st.integers(2**32, 2**62))
MEMBERS = st.builds(
    Member,
    st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}(/[a-z0-9]{1,9}){0,2}", fullmatch=True),
    st.sampled_from([STORED, DEFLATED]),
    SIZES,
    SIZES,
    SIZES,
    st.integers(0, 2**32 - 1),
)


@given(MEMBERS)
def test_an_entry_is_read_as_it_was_written_at_every_size(member: Member) -> None:
    entry = directory_entry(member)
    assert entry_of(entry + b"what follows") == (member, len(entry))
    for length in range(len(entry)):
        with pytest.raises(ValueError, match=r"cut short|never written|as they are written"):
            entry_of(entry[:length])


@given(MEMBERS)
def test_any_tool_reads_the_same_of_an_entry(member: Member) -> None:
    entry = directory_entry(member)
    begins = len(local_header(member))
    file = io.BytesIO(bytes(begins) + entry + directory_end(count=1, begins=begins, size=len(entry)))
    (found,) = zipfile.ZipFile(file).infolist()
    assert (found.filename, found.compress_type, found.file_size, found.compress_size, found.CRC) == (
        member.name, member.method, member.size, member.packed, member.crc,
    )  # fmt: skip
    assert found.header_offset == member.offset
    assert (found.flag_bits, found.comment, found.external_attr >> 16) == (0, b"", 0o100644)


@given(st.lists(st.tuples(st.booleans(), st.lists(st.binary(max_size=300), max_size=4)), max_size=6))
def test_members_are_read_as_they_were_written_by_us_and_by_others(members: list[tuple[bool, list[bytes]]]) -> None:
    file = io.BytesIO()
    writer = ZipWriter(file)
    for number, (is_packed, chunks) in enumerate(members):
        if is_packed:
            writer.deflate(f"member-{number}", chunks)
        else:
            writer.store(f"member-{number}", sum(map(len, chunks)), chunks)
    assert writer.finish() == len(file.getvalue())
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert [archive.read(name) for name in archive.namelist()] == [b"".join(chunks) for _, chunks in members]


def test_a_member_of_another_size_than_was_announced_is_not_written() -> None:
    with pytest.raises(ValueError, match="announced with 3"):
        ZipWriter(io.BytesIO()).store("a", 3, [b"four"])


def test_a_file_is_read_in_pieces_of_bounded_size(tmp_path: Path) -> None:
    with (tmp_path / "a.zip").open("w+b") as file:
        writer = ZipWriter(file)
        writer.deflate("packed", [bytes(3 << 20)])
        writer.store("stored", 3 << 20, [bytes(3 << 20)])
        writer.finish()
        reader = ZipReader(file.fileno())
        for member in reader.members:
            chunks = [len(chunk) for chunk in reader.chunks(member)]
            assert sum(chunks) == 3 << 20
            assert max(chunks) <= 1 << 20


def test_a_file_that_shrinks_while_it_is_read_is_told(tmp_path: Path) -> None:
    with (tmp_path / "a.zip").open("w+b") as file:
        writer = ZipWriter(file)
        writer.store("stored", 3 << 20, [bytes(3 << 20)])
        writer.finish()
        reader = ZipReader(file.fileno())
        file.truncate(1 << 20)
        with pytest.raises(NotOurZip, match="ends in the middle"):
            list(reader.chunks(reader.members[0]))


@pytest.mark.parametrize("refusal", [None, errno.EXDEV, errno.EOPNOTSUPP])
def test_a_stored_member_is_copied_whole_by_the_system_and_by_us_where_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int | None
) -> None:
    if refusal is not None:

        def refuse(*_: object, **__: object) -> int:
            raise OSError(refusal, "cannot")

        monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    data = os.urandom((1 << 20) + 7)
    with (tmp_path / "a.zip").open("w+b") as file, (tmp_path / "copy").open("wb", buffering=0) as copy:
        writer = ZipWriter(file)
        writer.deflate("first", [b"1"])
        writer.store("stored", len(data), [data])
        writer.finish()
        reader = ZipReader(file.fileno())
        reader.copy(reader.members[1], copy.fileno())
        assert (tmp_path / "copy").read_bytes() == data
        file.truncate(reader.members[1].begins + 5)
        with pytest.raises(NotOurZip, match="ends in the middle"):
            reader.copy(reader.members[1], copy.fileno())
