"""A connection that carries lines: a TCP socket, or a serial port or pseudo-terminal by its path."""

from __future__ import annotations

import asyncio
import os
import stat
import termios
import tty
from typing import Final

from ..ledger.errors import WorkOrderInvalid

__all__ = ["LineLink", "LineTooLong", "read_address"]

_UNREAD_MAX: Final = 16 * 1024 * 1024


class LineTooLong(Exception):
    """A line has no end within the bound."""


def read_address(address: str, *, place: str) -> tuple[str, int] | str:
    """Host and port, or the path of a device file; raises WorkOrderInvalid."""
    if address.startswith("/"):
        return address
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        remedy = 'Write "host:port", or the path of a serial port such as "/dev/ttyUSB0"'
        raise WorkOrderInvalid(f'{place}: "{address}" is no address of an instrument', remedy, place=place)
    return host.removeprefix("[").removesuffix("]"), int(port)


class LineLink(asyncio.Protocol):
    """One open connection. Lines end with a line feed, or with a carriage return and one."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._changed = asyncio.Event()
        self._is_closed = False
        self._fault: BaseException | None = None
        self._reading: asyncio.BaseTransport | None = None
        self._writing: asyncio.WriteTransport | None = None

    @classmethod
    async def open(cls, address: tuple[str, int] | str, *, connect_seconds: float, baud: int | None) -> LineLink:
        """Connect; raises OSError, and TimeoutError after ``connect_seconds``."""
        loop = asyncio.get_running_loop()
        if isinstance(address, str):
            return await cls._open_terminal(address, baud)
        async with asyncio.timeout(connect_seconds):
            transport, link = await loop.create_connection(cls, *address)
        link._reading = link._writing = transport
        return link

    @classmethod
    async def _open_terminal(cls, path: str, baud: int | None) -> LineLink:
        loop = asyncio.get_running_loop()
        file = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            if not stat.S_ISCHR(os.fstat(file).st_mode):
                raise OSError(f"{path} is no terminal and no serial port")
            _make_raw(file, path, baud)
            copy = os.dup(file)
        except BaseException:
            os.close(file)
            raise
        reading, link = await loop.connect_read_pipe(cls, os.fdopen(file, "rb", 0))
        link._reading = reading
        link._writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(copy, "wb", 0))
        return link

    @property
    def has_bytes(self) -> bool:
        """Whether something has come that nobody has read."""
        return bool(self._received)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def write_line(self, line: bytes, ending: bytes) -> None:
        """Send a line; raises ConnectionResetError where the other side is gone."""
        if self._is_closed or self._writing is None:
            raise ConnectionResetError("the connection is closed") from self._fault
        self._writing.write(line + ending)

    async def read_line(self, bytes_max: int) -> bytes:
        """The next line without its end; raises ConnectionResetError where none will come.

        Raises LineTooLong, and drops what there is of that line; its rest counts as the next.
        """
        while b"\n" not in self._received and len(self._received) <= bytes_max:
            if self._is_closed:
                raise ConnectionResetError("the connection was closed within an answer") from self._fault
            self._changed.clear()
            await self._changed.wait()
        line, end, rest = self._received.partition(b"\n")
        self._received[:] = rest
        if len(line) > bytes_max or not end:
            raise LineTooLong(f"a line is longer than {bytes_max:,} bytes")
        return bytes(line).removesuffix(b"\r")

    def drop_received(self) -> int:
        """Forget what has come, and say how many bytes that were."""
        count = len(self._received)
        self._received.clear()
        return count

    def close(self) -> None:
        """Close; idempotent."""
        self._is_closed = True
        for transport in (self._reading, self._writing):
            if transport is not None:
                transport.close()

    # What the loop calls.

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > _UNREAD_MAX:
            self.close()  # it says more than anybody reads
        self._changed.set()

    def eof_received(self) -> None:
        self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        self._fault = self._fault or exc
        self._changed.set()


def _make_raw(file: int, path: str, baud: int | None) -> None:
    try:
        tty.setraw(file)
        if baud is None:
            return
        speed = getattr(termios, f"B{baud}", None)
        if speed is None:
            raise OSError(f"{path} has no speed of {baud} baud")
        settings = termios.tcgetattr(file)
        settings[4] = settings[5] = speed
        termios.tcsetattr(file, termios.TCSANOW, settings)
    except termios.error as fault:
        raise OSError(f"{path} is no terminal and no serial port ({fault})") from None
