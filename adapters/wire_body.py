"""Reading a body whose size nobody can be trusted to tell: bounded after decompression, not before."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Final, cast

__all__ = ["ENCODINGS", "BodyFault", "read_body"]

ENCODINGS: Final = "gzip, deflate"
_GZIP_OR_ZLIB: Final = zlib.MAX_WBITS | 32
_RAW_DEFLATE: Final = -zlib.MAX_WBITS


class BodyFault(Exception):
    """A body came that cannot be used; ``reason`` is ``answer.too_large`` or ``answer.encoding``."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


async def read_body(stream: AsyncIterable[bytes], into: bytearray, *, encoding: str, bytes_max: int) -> None:
    """Append the decoded body, never more than ``bytes_max``; raises BodyFault, with what fitted in ``into``."""
    add = _adder(encoding.strip().lower(), into, bytes_max)
    # Left in the middle, a generator would be closed whenever the collector finds it.
    async with contextlib.aclosing(cast("AsyncGenerator[bytes, None]", stream.__aiter__())) as chunks:
        async for chunk in chunks:
            add.feed(chunk)
    add.finish()


def _adder(encoding: str, into: bytearray, bytes_max: int) -> _Plain:
    if encoding in {"", "identity"}:
        return _Plain(into, bytes_max)
    if encoding in {"gzip", "x-gzip", "deflate"}:
        return _Inflated(into, bytes_max)
    raise BodyFault("answer.encoding", f"the content encoding {encoding[:40]} was not asked for")


class _Plain:
    def __init__(self, into: bytearray, bytes_max: int) -> None:
        self._into = into
        self._bytes_max = bytes_max

    def feed(self, chunk: bytes) -> None:
        room = self._bytes_max - len(self._into)
        if len(chunk) > room:
            self._into += chunk[:room]
            raise BodyFault("answer.too_large", f"the body is larger than {self._bytes_max:,} bytes")
        self._into += chunk

    def finish(self) -> None:
        """Nothing is held back."""


class _Inflated(_Plain):
    def __init__(self, into: bytearray, bytes_max: int) -> None:
        super().__init__(into, bytes_max)
        self._inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._is_begun = False

    def feed(self, chunk: bytes) -> None:
        while chunk:
            if self._inflater.eof:  # a gzip body may be several members, one after the other
                self._inflater = zlib.decompressobj(_GZIP_OR_ZLIB)
            super().feed(self._inflate(chunk))
            chunk = self._inflater.unconsumed_tail or self._inflater.unused_data

    def _inflate(self, chunk: bytes) -> bytes:
        room = self._bytes_max - len(self._into) + 1
        try:
            inflated = self._inflater.decompress(chunk, room)
        except zlib.error as fault:
            if self._is_begun:
                raise BodyFault("answer.encoding", f"the body cannot be decompressed ({fault})") from None
            self._inflater = zlib.decompressobj(_RAW_DEFLATE)  # what some servers mean by deflate
            self._is_begun = True
            return self._inflate(chunk)
        self._is_begun = True
        return inflated

    def finish(self) -> None:
        if self._is_begun and not self._inflater.eof:
            raise BodyFault("answer.encoding", "the compressed body ends too early")
