"""The large artifacts of a snapshot: unpacked and verified into a folder of their own by a thread, then taken over.

Their files are synced by a few further threads: a disk brings several to rest in the time of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from .artifacts import file_of
from .canonical import digest_of_bytes
from .durable import sync, sync_folder
from .ledger import Reader
from .snapshot_format import ArtifactCount, artifact_member
from .zip_layout import STORED, Member
from .zip_reader import CHUNK, NotOurZip, ZipReader

__all__ = ["ArtifactStage"]

_SYNCS: Final = 4
_UNSYNCED_MAX: Final = 16
"""So many files may be open, and wait to be synced."""


class ArtifactStage:
    """Files by digest that no ledger knows of yet; ``members`` are those that hold artifacts."""

    def __init__(self, archive: ZipReader, members: list[Member], folder: Path) -> None:
        self._archive = archive
        self._members = members
        self._folder = folder
        self._sizes: dict[str, int] = {}
        self._buffer = memoryview(bytearray(CHUNK))
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._unpack_all, name="tallystick-import", daemon=True)

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        """While inside, the thread unpacks; leaving ends it."""
        self._folder.mkdir()
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def finish(self, rows: Reader, told: ArtifactCount) -> None:
        """Wait for the thread, and compare with the rows; raises NotOurZip, and what stopped the thread."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        large = 0
        for digest, size, data in rows.each("SELECT digest, size, data FROM artifacts"):
            if data is None:
                large += 1
                if self._sizes.get(digest) != size:
                    raise NotOurZip(f"the artifact {digest} of {size} bytes is not in it")
            elif len(data) != size or digest_of_bytes(data) != digest:
                raise NotOurZip(f"the artifact {digest} is not what its row says")
        if large != told.count:
            raise NotOurZip(f"it has {told.count} artifacts as members, and rows for {large}")

    @contextlib.contextmanager
    def taking_over(self, artifacts: Path) -> Iterator[Callable[[], None]]:
        """While inside, a thread brings the files to where a ledger keeps them; what is there is replaced by the same.

        What is given waits until all are there, durably, and raises OSError where that failed. Leaving waits, too.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="tallystick-import") as helper:
            yield helper.submit(self._take_over, artifacts).result

    def _take_over(self, artifacts: Path) -> None:
        folders = {artifacts.parent}
        for digest in self._sizes:
            path = file_of(artifacts, digest)
            for folder in (artifacts, path.parent):
                if folder not in folders:  # one that is there may not have a durable name yet
                    folder.mkdir(exist_ok=True)
                    folders.add(folder)
            (self._folder / path.name).replace(path)
        with ThreadPoolExecutor(_SYNCS, thread_name_prefix="tallystick-sync") as pool:
            for _ in pool.map(sync_folder, folders):
                pass

    def _unpack_all(self) -> None:
        unsynced: deque[Future[None]] = deque()
        try:
            with ThreadPoolExecutor(_SYNCS, thread_name_prefix="tallystick-sync") as pool:
                for member in self._members:
                    if self._stop.is_set():
                        return
                    unsynced.append(pool.submit(_sync_and_close, self._unpack(member)))
                    if len(unsynced) >= _UNSYNCED_MAX:
                        unsynced.popleft().result()
                for waiting in unsynced:
                    waiting.result()
        except BaseException as problem:  # noqa: BLE001 - raised by `finish`, in the thread that waits
            self._failure = problem

    def _unpack(self, member: Member) -> int:
        """Write a member into its file, and return its descriptor, for somebody to sync and close."""
        digest = f"sha256:{member.name.rpartition('/')[2]}"
        if member.name != artifact_member(digest) or len(digest) != 71 or member.method != STORED:
            raise NotOurZip(f"{member.name} is no artifact's name")
        with (self._folder / digest.removeprefix("sha256:")).open("x+b", buffering=0) as file:
            self._archive.copy(member, file.fileno())
            if (member.size, digest) != self._found(file):
                raise NotOurZip(f"{member.name} has other bytes than its name says")
            self._sizes[digest] = member.size
            return os.dup(file.fileno())

    def _found(self, file: io.FileIO) -> tuple[int, str]:
        """The size and the digest of what a file holds now, whoever has put it there."""
        hashed, size = hashlib.sha256(), 0
        file.seek(0)
        while count := file.readinto(self._buffer):
            hashed.update(self._buffer[:count])
            size += count
        return size, f"sha256:{hashed.hexdigest()}"


def _sync_and_close(descriptor: int) -> None:
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
