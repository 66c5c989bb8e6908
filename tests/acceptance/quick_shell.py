"""A shell in which `tallystick` starts quickly: its processes come from the nursery, everything loaded."""

from __future__ import annotations

import json
import shlex
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .harness import FIXTURES, PATIENCE_SECONDS
from .nursery import breed
from .shown import environment_of

__all__ = ["quick_environment"]

_COMMAND: Final = FIXTURES / "quick_command.py"


@contextmanager
def quick_environment(folder: Path) -> Iterator[dict[str, str]]:
    """As `environment_of`, for as long as it is open."""
    environment = environment_of(folder)
    # The path of a socket is short, whatever that of the folder is.
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        path = str(Path(short) / "s")
        door.bind(path)
        door.listen()
        command = shlex.join([sys.executable, "-S", "-E", str(_COMMAND), path])
        (folder / "bin" / "tallystick").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        server = threading.Thread(target=_serve, args=(door, Path(short)), daemon=True)
        server.start()
        try:
            yield environment
        finally:
            door.shutdown(socket.SHUT_RDWR)
            server.join(PATIENCE_SECONDS)


def _serve(door: socket.socket, folder: Path) -> None:
    """One command after the other, until the door is shut."""
    out, err = folder / "out", folder / "err"
    while True:
        try:
            channel, _ = door.accept()
        except OSError:
            return
        with channel, channel.makefile("rw", encoding="utf-8") as stream:
            asked = json.loads(stream.readline())
            bred = breed(
                "tallystick", asked["arguments"], folder=Path(asked["folder"]), environment=asked["environment"],
                out=out, err=err,
            )  # fmt: skip
            status = bred.wait(PATIENCE_SECONDS)
            stream.write(json.dumps({"status": status, "out": out.read_text(), "err": err.read_text()}) + "\n")
