"""Real processes for the tests that need one: started, spoken to over pipes, stopped and killed by the test alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[3]


class Child:
    """A process that runs a function of `programs`; what it prints and what it is told are lines.

    With ``crashpoint`` it kills itself there; with ``pause_at`` it stands there until `let_go`. ``under`` is a command
    that starts it.
    """

    def __init__(
        self,
        program: str,
        *arguments: object,
        crashpoint: str = "",
        pause_at: str = "",
        under: tuple[str, ...] = (),
    ) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._pipes: list[int] = []
        self._reached = self._release = -1
        inherited: tuple[int, ...] = ()
        if crashpoint or pause_at:
            environment["TALLYSTICK_CRASHPOINT"] = crashpoint or pause_at
        if pause_at:
            go_read, self._release = os.pipe()
            self._reached, here_write = os.pipe()
            environment["TALLYSTICK_CRASHPOINT_PIPE"] = f"{go_read},{here_write}"
            inherited = (go_read, here_write)
            self._pipes = [self._release, self._reached]
        code = f"import sys; from tests.unit.ledger.programs import {program} as main; main(*sys.argv[1:])"
        self.process = subprocess.Popen(
            [*under, sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
            pass_fds=inherited,
            text=True,
        )
        for descriptor in inherited:
            os.close(descriptor)

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """The next line that it prints; empty when it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def lines(self) -> list[str]:
        """Everything that it still prints, until its end."""
        assert self.process.stdout is not None
        found = self.process.stdout.read().splitlines()
        self.process.wait()
        return found

    def say(self, text: str = "go") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def wait_until_there(self) -> str:
        """Until it stands at its crash point; says which."""
        return os.read(self._reached, 200).decode().strip()

    def let_go(self) -> None:
        os.write(self._release, b"x")

    def stop(self) -> None:
        """SIGSTOP, and wait until the kernel says that it is stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self.process.poll() is None:
            self.process.kill()  # which may have ended, waited for by another thread, since
        self.process.wait()

    def end(self) -> int:
        """Wait for the end and return the exit status, negative for a signal."""
        return self.process.wait()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # it died with something unread
                    stream.close()
        for descriptor in self._pipes:
            os.close(descriptor)
