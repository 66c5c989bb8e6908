from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.adapters.wire_body import BodyFault, read_body


def read(chunks: list[bytes], encoding: str = "", bytes_max: int = 10**6) -> bytes:
    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    into = bytearray()
    asyncio.run(read_body(stream(), into, encoding=encoding, bytes_max=bytes_max))
    return bytes(into)


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def sliced(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@given(st.binary(max_size=500), st.integers(1, 50))
def test_every_encoding_gives_the_bytes_back_however_they_are_cut(data: bytes, size: int) -> None:
    assert read(sliced(data, size)) == data
    assert read(sliced(gzip.compress(data), size), "gzip") == data
    assert read(sliced(zlib.compress(data), size), "deflate") == data
    assert read(sliced(gzip.compress(data) + gzip.compress(b"more"), size), "X-GZIP ") == data + b"more"


def test_deflate_without_its_header_is_understood() -> None:
    assert read([raw_deflate(b"hello")], "deflate") == b"hello"


@pytest.mark.parametrize(
    ("data", "encoding", "reason"),
    [
        (b"plain text", "gzip", "answer.encoding"),
        (gzip.compress(b"hello" * 100, mtime=0)[:-12], "gzip", "answer.encoding"),
        (gzip.compress(b"hello", mtime=0) + b"rubbish", "gzip", "answer.encoding"),
        (b"hello", "br", "answer.encoding"),
        (b"hello", "gzip, gzip", "answer.encoding"),
        (b"x" * 101, "", "answer.too_large"),
        (gzip.compress(b"x" * 101, mtime=0), "gzip", "answer.too_large"),
    ],
)
def test_body_that_cannot_be_used_is_told_why(data: bytes, encoding: str, reason: str) -> None:
    with pytest.raises(BodyFault) as caught:
        read([data], encoding, bytes_max=100)
    assert caught.value.reason == reason


def test_c28_bomb_takes_no_more_memory_than_the_bound() -> None:
    bomb = gzip.compress(bytes(200_000_000))
    tracemalloc.start()
    with pytest.raises(BodyFault, match="larger than 100,000 bytes"):
        read([bomb], "gzip", bytes_max=100_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


def test_empty_body_of_any_encoding_is_empty() -> None:
    assert read([], "gzip") == read([b""], "") == b""
