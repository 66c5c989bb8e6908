"""A process that stands between a coordinator and a program, and outlives the one to end the other.

Run as a script, without any import of the project: ``python -I -S process_guard.py DEATH STATUS GRACE ARGV``. It
starts ARGV as the leader of a new session and writes to the descriptor STATUS: ``started``, or ``failed ERRNO``; then
``exit CODE`` or ``signal NUMBER``. When the leader has ended, or the descriptor DEATH comes to its end (the coordinator
closed it, or died in whatever way), everything that the leader started is ended too: SIGTERM, GRACE seconds, SIGKILL.
On Linux that reaches what has left the process group as well, because orphans come to this process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_AFTER_LEADER_SECONDS = 0.5  # what is left when the leader has ended is not worth a longer wait
_CHECK_SECONDS = 0.5
_KILL_SECONDS = 10.0


def main(arguments: list[str]) -> None:
    death, status, grace = int(arguments[0]), int(arguments[1]), float(arguments[2])
    parent = os.getppid()
    os.set_inheritable(death, False)
    os.set_inheritable(status, False)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    waker, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if select.select([death], [], [], 0)[0] or os.getppid() != parent:
        return  # the coordinator is gone already: nothing is begun
    leader = _start(arguments[3:], status)
    code = _wait(leader, death=death, waker=waker, parent=parent)
    _end(leader, grace if code is None else min(grace, _AFTER_LEADER_SECONDS))
    if code is None:
        return
    _say(status, f"exit {os.WEXITSTATUS(code)}" if os.WIFEXITED(code) else f"signal {os.WTERMSIG(code)}")


def _start(argv: list[str], status: int) -> int:
    failure, failed = os.pipe()
    guard = os.getpid()
    leader = os.fork()
    if leader == 0:
        try:
            _become(argv, guard)
        except OSError as fault:
            os.write(failed, str(fault.errno).encode())
        finally:
            os._exit(127)
    os.close(failed)
    errno = os.read(failure, 16)
    if errno:
        _say(status, f"failed {errno.decode()}")
        os.waitpid(leader, 0)
        raise SystemExit(0)
    _say(status, "started")
    return leader


def _become(argv: list[str], guard: int) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(127)  # the guard died before the kernel was asked
    os.execvp(argv[0], argv)  # noqa: S606 - a shell is what must not be here


def _wait(leader: int, *, death: int, waker: int, parent: int) -> int | None:
    """The leader's wait status; None when the coordinator has let go or died first."""
    while True:
        ended, code = os.waitpid(leader, os.WNOHANG)
        if ended:
            return code
        readable, _, _ = select.select([death, waker], [], [], _CHECK_SECONDS)
        # A fork of the coordinator may hold its end of the pipe open; so the parent is asked about too.
        if death in readable or os.getppid() != parent:
            return None
        if waker in readable:
            os.read(waker, 4096)
            _reap(except_for=leader)


def _end(leader: int, grace: float) -> None:
    _signal_group(leader, signal.SIGTERM)
    _signal_group(leader, signal.SIGCONT)
    until = time.monotonic() + grace
    while _is_left(leader) and time.monotonic() < until:
        select.select([], [], [], 0.01)
    until = time.monotonic() + _KILL_SECONDS
    while _is_left(leader) and time.monotonic() < until:
        _signal_group(leader, signal.SIGKILL)
        for child in _children():
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        select.select([], [], [], 0.002)


def _is_left(leader: int) -> bool:
    has_child = _reap()
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return has_child
    except PermissionError:
        return True
    return True


def _reap(except_for: int | None = None) -> bool:
    """Collect those who have ended; whether any child is left."""
    if except_for is not None:
        # The leader's status is waited for elsewhere: of the others, each by its own number.
        for child in _children():
            if child != except_for:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)
        return True
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if not ended:
            return True


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as listed:  # noqa: PTH123
            return [int(pid) for pid in listed.read().split()]
    except OSError:
        return []


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(leader, number)


def _say(status: int, line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(status, line.encode() + b"\n")


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
