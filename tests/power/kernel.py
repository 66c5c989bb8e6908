"""What the recorder asks of the Linux kernel: to follow a process and stop at the system calls that touch files.

x86-64 only. The numbers are those of the kernel's headers (linux/ptrace.h, linux/seccomp.h, linux/filter.h,
asm/unistd_64.h); how the stops follow each other is in ptrace(2).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from typing import Final

__all__ = [
    "CALLS",
    "EVENT_EXEC",
    "EVENT_SECCOMP",
    "SYSCALL_STOP",
    "WALL",
    "begin_to_be_followed",
    "follow",
    "go_on",
    "is_supported",
    "name_and_arguments",
    "read_memory",
    "read_text",
    "refuse",
    "result",
]

CALLS: Final = {
    "write": 1, "open": 2, "mmap": 9, "pwrite64": 18, "writev": 20, "sendfile": 40, "fsync": 74, "fdatasync": 75,
    "truncate": 76, "ftruncate": 77, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86, "unlink": 87,
    "symlink": 88, "sync": 162, "openat": 257, "mkdirat": 258, "unlinkat": 263, "renameat": 264, "linkat": 265,
    "symlinkat": 266, "splice": 275, "sync_file_range": 277, "fallocate": 285, "pwritev": 296, "syncfs": 306,
    "renameat2": 316, "copy_file_range": 326, "pwritev2": 328, "io_uring_setup": 425,
}  # fmt: skip
_NAMES: Final = {number: name for name, number in CALLS.items()}

WALL: Final = 0x40000000
SYSCALL_STOP: Final = 0x80
EVENT_EXEC: Final = 4
EVENT_SECCOMP: Final = 7
_TRACEME, _CONT, _GETREGS, _SETREGS, _SYSCALL, _SETOPTIONS, _GET_INFO = 0, 7, 12, 13, 24, 0x4200, 0x420E
_OPTIONS: Final = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | SYSCALL_STOP | 0x100000  # forks, threads, programs; its end ends them
_INFO_EXIT: Final = 2
_RAX, _ORIG_RAX, _REGISTERS = 10, 15, 27
_PAGE: Final = 4096
_PATH_MAX: Final = 4096

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.process_vm_readv.restype = ctypes.c_ssize_t


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def is_supported() -> bool:
    """Whether this is a kernel and a machine whose numbers are known here."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def _ptrace(request: int, pid: int, address: int = 0, data: object = None) -> int:
    found = int(_libc.ptrace(request, pid, address, data))
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found


def begin_to_be_followed() -> None:
    """In the child, before it becomes the program: stop at the calls of the table, in it and in all that it starts."""
    _ptrace(_TRACEME, 0)
    os.kill(os.getpid(), 19)
    rules = [(0x20, 0, 0, 0)]  # load the call's number
    rules += [(0x15, 0, 1, number) for number in CALLS.values()]  # is it this one? then the next rule, else skip it
    program = [rules[0]]
    for rule in rules[1:]:
        program += [rule, (0x06, 0, 0, 0x7FF00000)]  # stop for the tracer
    program.append((0x06, 0, 0, 0x7FFF0000))  # allow
    packed = b"".join(struct.pack("HBBI", *one) for one in program)
    code = ctypes.create_string_buffer(packed, len(packed))
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)), 16)
    for option, *more in ((38, 1, 0), (22, 2, ctypes.addressof(filters))):
        arguments = [ctypes.c_ulong(value) for value in (*more, 0, 0)]
        if _libc.prctl(option, *arguments[:4]):
            raise OSError(ctypes.get_errno(), "system calls cannot be filtered here")


def follow(pid: int) -> None:
    """Follow a process that has just stopped itself, with all that it starts."""
    _ptrace(_SETOPTIONS, pid, 0, _OPTIONS)


def go_on(pid: int, *, until_return: bool = False, signal: int = 0) -> None:
    """Let a stopped thread run, if asked only until the call that it stands at has returned."""
    try:
        _ptrace(_SYSCALL if until_return else _CONT, pid, 0, signal)
    except ProcessLookupError:
        return  # killed while it stood; its end is reported next


def name_and_arguments(pid: int) -> tuple[str, tuple[int, ...]]:
    """The call that a thread stands before."""
    info = ctypes.create_string_buffer(88)
    _ptrace(_GET_INFO, pid, 88, info)
    number, *arguments = struct.unpack_from("Q6Q", info, 24)
    return _NAMES[number], tuple(arguments)


def result(pid: int) -> int:
    """What the call returned that a thread stands behind: negative for an error, as minus its number."""
    info = ctypes.create_string_buffer(88)
    _ptrace(_GET_INFO, pid, 88, info)
    assert info.raw[0] == _INFO_EXIT, info.raw[0]
    found: int = struct.unpack_from("q", info, 24)[0]
    return found


def refuse(pid: int, error: int) -> None:
    """Let the call that a thread stands before not happen and return that error."""
    registers = (ctypes.c_ulonglong * _REGISTERS)()
    _ptrace(_GETREGS, pid, 0, registers)
    registers[_ORIG_RAX] = 2**64 - 1
    registers[_RAX] = 2**64 - error
    _ptrace(_SETREGS, pid, 0, registers)


def read_memory(pid: int, address: int, size: int) -> bytes:
    """So many bytes of a stopped thread's memory."""
    buffer = ctypes.create_string_buffer(size)
    ours, theirs = _Vector(ctypes.addressof(buffer), size), _Vector(address, size)
    found = _libc.process_vm_readv(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
    if found != size:
        raise OSError(ctypes.get_errno(), f"read {found} of {size} bytes of process {pid}")
    return buffer.raw


def read_text(pid: int, address: int) -> str:
    """The text at that address, up to its NUL; read page by page, because the next page may not be there."""
    found = b""
    while len(found) < _PATH_MAX:
        piece = read_memory(pid, address + len(found), _PAGE - (address + len(found)) % _PAGE)
        end = piece.find(b"\0")
        if end >= 0:
            return os.fsdecode(found + piece[:end])
        found += piece
    raise ValueError("a path has no end")
