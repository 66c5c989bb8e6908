"""One program run under a guard, with bounded output, and ended as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

import attrs

from ..runner.protocols import WireProgress

__all__ = ["Ended", "Run", "Runs"]

_GUARD: Final = str(Path(__file__).with_name("process_guard.py"))
_READ_BYTES: Final = 64 * 1024
_ERROR_TAIL: Final = 64 * 1024
_CLOSE_SECONDS: Final = 12.0


@attrs.frozen
class Run:
    """What is run; ``argv[0]`` is a path or is looked for in the environment's ``PATH``."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    stdin: bytes
    output_bytes_max: int
    grace_seconds: float


@attrs.define
class Ended:
    """How far a run has come: `errno` where it could not be started, else `exit_status` or `signal_number`."""

    has_started: bool = False
    errno: int | None = None
    exit_status: int | None = None
    signal_number: int | None = None
    is_too_large: bool = False
    is_overdue: bool = False
    error_tail: bytearray = attrs.field(factory=bytearray)

    def hear(self, line: str) -> None:
        """Take in one line of the guard."""
        word, _, number = line.partition(" ")
        match word:
            case "started":
                self.has_started = True
            case "failed":
                self.errno = int(number)
            case "exit":
                self.exit_status = int(number)
            case "signal":
                self.signal_number = int(number)


class Runs:
    """Runs programs on one loop, and remembers those that are still being ended."""

    def __init__(self) -> None:
        self._ending: dict[subprocess.Popen[bytes], asyncio.Future[None]] = {}

    async def run(self, run: Run, *, progress: WireProgress, deadline_seconds: float) -> Ended:
        """Run to the end, the deadline or the bound of the output, whichever comes first.

        What came on standard output stands in ``progress.partial``. Raises OSError where no guard can be started.
        When this returns or is cancelled, the program has ended or is being ended by its guard.
        """
        loop = asyncio.get_running_loop()
        ended = Ended()
        over: asyncio.Future[None] = loop.create_future()
        guard, pipes = _start_guard(run)
        gone: asyncio.Future[None] = loop.create_future()
        self._ending[guard] = gone
        open_streams = 3

        def on_end() -> None:
            nonlocal open_streams
            open_streams -= 1
            if open_streams == 0:
                _set(over)

        def on_output(data: bytes) -> None:
            if over.done():
                return
            room = run.output_bytes_max - len(progress.partial)
            progress.partial.extend(data[:room])
            if len(data) > room:
                ended.is_too_large = True
                _set(over)

        def on_error(data: bytes) -> None:
            ended.error_tail.extend(data)
            del ended.error_tail[:-_ERROR_TAIL]

        heard = bytearray()

        def on_status(data: bytes) -> None:
            heard.extend(data)
            *lines, rest = heard.split(b"\n")
            heard[:] = rest
            for line in lines:
                ended.hear(line.decode("ascii"))
            if ended.has_started:
                progress.wire_sends = 1

        def on_gone() -> None:
            on_end()
            self._collect(guard, gone)

        _drain(loop, pipes.status, on_status, on_gone)
        _drain(loop, pipes.output, on_output, on_end)
        _drain(loop, pipes.errors, on_error, on_end)
        timer = loop.call_later(deadline_seconds, _set, over)
        try:
            await over
        finally:
            timer.cancel()
            os.close(pipes.death)  # the guard ends whatever is still there
        ended.is_overdue = open_streams > 0 and not ended.is_too_large
        return ended

    def _collect(self, guard: subprocess.Popen[bytes], gone: asyncio.Future[None]) -> None:
        # The guard has closed its status, so it ends at once; looked at again until it has.
        if guard.poll() is None:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().call_later(0.005, self._collect, guard, gone)
            return
        self._ending.pop(guard, None)
        _set(gone)

    async def close(self) -> None:
        """Wait until every program has been ended; a guard that does not manage it is killed."""
        if self._ending:
            await asyncio.wait([*self._ending.values()], timeout=_CLOSE_SECONDS)
        for guard in [*self._ending]:
            with contextlib.suppress(OSError):
                os.kill(guard.pid, signal.SIGKILL)
            guard.wait()
        self._ending.clear()


@attrs.frozen
class _Pipes:
    death: int
    status: int
    output: int
    errors: int


def _start_guard(run: Run) -> tuple[subprocess.Popen[bytes], _Pipes]:
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:

        def pipe() -> tuple[int, int]:
            reading, writing = os.pipe()
            mine, other = (writing, reading) if not pipes else (reading, writing)
            ours.callback(os.close, mine)
            theirs.callback(os.close, other)
            pipes.append(mine)
            return mine, other

        pipes: list[int] = []
        death, death_reading = pipe()
        status, status_writing = pipe()
        output, output_writing = pipe()
        errors, errors_writing = pipe()
        guard = subprocess.Popen(  # noqa: S603 - an argument list; there is no shell
            [
                sys.executable,
                "-I",
                "-S",
                _GUARD,
                str(death_reading),
                str(status_writing),
                f"{run.grace_seconds}",
                *run.argv,
            ],
            stdin=theirs.enter_context(_input_file(run.stdin)),
            stdout=output_writing,
            stderr=errors_writing,
            env=run.environment,
            cwd=run.folder,
            pass_fds=(death_reading, status_writing),
            start_new_session=True,
        )
        ours.pop_all()
    return guard, _Pipes(death=death, status=status, output=output, errors=errors)


def _input_file(data: bytes) -> IO[bytes]:
    # A file and not a pipe: it needs no writer, and a program that reads nothing blocks nobody.
    opened: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    opened.write(data)
    opened.seek(0)
    return opened


def _drain(
    loop: asyncio.AbstractEventLoop, descriptor: int, on_data: Callable[[bytes], None], on_end: Callable[[], None]
) -> None:
    os.set_blocking(descriptor, False)

    def on_readable() -> None:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            on_data(data)
            return
        loop.remove_reader(descriptor)
        os.close(descriptor)
        on_end()

    loop.add_reader(descriptor, on_readable)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
