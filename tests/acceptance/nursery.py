"""Processes from the nursery of the fixtures, spoken to as if they were children of this one."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["Bred", "breed"]

_PROGRAM: Final = Path(__file__).resolve().parents[1] / "fixtures" / "nursery.py"
_START_SECONDS: Final = 120.0


class _Nursery:
    """The one nursery of this test process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(_PROGRAM), str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        self._channel = ours
        self._unread = b""
        self._said: dict[tuple[str, str], int] = {}
        self._count = 0
        atexit.register(self.close)

    def close(self) -> None:
        if self._pid == os.getpid():
            self._channel.close()
            self._process.wait()

    def start(self, document: Mapping[str, object], descriptors: Sequence[int]) -> tuple[str, int]:
        self._count += 1
        key = str(self._count)
        message = json.dumps({**document, "key": key, "numbers": list(descriptors)}).encode()
        # One message is read as one: it is small, and the next is sent only after the answer to this.
        assert socket.send_fds(self._channel, [message], list(descriptors)) == len(message)
        pid = self.look("started", key, _START_SECONDS)
        assert pid is not None, "the nursery does not answer"
        return key, pid

    def look(self, word: str, key: str, seconds: float) -> int | None:
        """What was said of a child by that word, waiting for it at most so long."""
        end = time.monotonic() + seconds
        while (word, key) not in self._said:
            left = end - time.monotonic()
            ready, _, _ = select.select([self._channel], [], [], max(0.0, left))
            if not ready:
                return None
            found = self._channel.recv(65536)
            assert found, "the nursery has ended"
            *lines, self._unread = (self._unread + found).split(b"\n")
            for line in lines:
                kind, name, number = line.decode().split()
                self._said[kind, name] = int(number)
        return self._said[word, key]


_the_one: list[_Nursery] = []


class Bred:
    """One child, with the part of `subprocess.Popen` that tests need."""

    def __init__(self, nursery: _Nursery, key: str, pid: int) -> None:
        self._nursery = nursery
        self._key = key
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended, None while it has not."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises subprocess.TimeoutExpired."""
        seconds = 3600.0 if timeout is None else timeout
        status = self._ended(seconds)
        if status is None:
            raise subprocess.TimeoutExpired(str(self.pid), seconds)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal; nothing happens where it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it is being reaped
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds: float) -> int | None:
        if self.returncode is None:
            status = self._nursery.look("ended", self._key, seconds)
            self.returncode = None if status is None else os.waitstatus_to_exitcode(status)
        return self.returncode


def breed(
    program: str,
    arguments: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    out: Path,
    err: Path,
    pass_fds: Sequence[int] = (),
) -> Bred:
    """Start a module (by name) or a Python file in a process of its own."""
    if not _the_one:
        _the_one.append(_Nursery())
    document = {
        "program": program, "arguments": list(arguments), "folder": str(folder), "environment": dict(environment),
        "out": str(out), "err": str(err),
    }  # fmt: skip
    key, pid = _the_one[0].start(document, pass_fds)
    return Bred(_the_one[0], key, pid)
