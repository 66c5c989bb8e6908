"""What may lie on a disk after the power failed in the middle of a recording.

What was synced is there. Of the rest nothing is promised: a write may have come to the disk, or not, or in sectors of
512 bytes; a file may have its new size without its new bytes; names (made, given, removed) of one folder come in their
order, and those of two folders independently of each other. A file's sync says nothing about its name: that is a sync
of the folder. After a sync that failed, the pages that it was for are *doomed*: they are no longer waiting to be
written, and no later sync is for them unless they are written to again (the behaviour of Linux's page cache;
Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from pathlib import Path
from typing import Final

import attrs

from .records import Failed, Made, Record, Removed, Renamed, Said, Sized, Synced, Wrote

__all__ = ["Disk", "Loss"]

SECTOR: Final = 512
PAGE: Final = 4096


class Loss(StrEnum):
    """What becomes of what was not synced."""

    ALL = "all"  # nothing of it is there
    NOTHING = "nothing"  # all of it is there, as after a SIGKILL
    DATA = "data"  # every name is there, no byte
    NAMES = "names"  # every byte is there, no name
    SOME = "some"  # some writes, some names
    TORN = "torn"  # some sectors, some names
    STALE = "stale"  # some sectors, and old bytes of other files where a file grew


@attrs.define
class Piece:
    """A part of a write, within one page."""

    at: int
    data: bytes
    write: int
    ended: float
    doomed: bool = False
    cut: int = 0  # for the zeros that a cut leaves behind: the number of that size

    @property
    def end(self) -> int:
        return self.at + len(self.data)


@attrs.define
class File:
    """One file: what is synced of it, and what has come since, page by page."""

    base: bytearray = attrs.field(factory=bytearray)
    base_size: int = 0
    size: int = 0
    sizes: list[tuple[float, int]] = attrs.field(factory=list)
    pages: dict[int, list[Piece]] = attrs.field(factory=dict)

    def write(self, offset: int, data: bytes, *, number: int, ended: float, cut: int = 0) -> None:
        at, end = offset, offset + len(data)
        while at < end:
            stop = min(end, (at // PAGE + 1) * PAGE)
            piece = Piece(at, data[at - offset : stop - offset], number, ended, cut=cut)
            self.pages.setdefault(at // PAGE, []).append(piece)
            at = stop
        if not cut and end > self.size:
            self.set_size(end, ended)

    def cut(self, size: int, *, number: int, ended: float) -> None:
        before = self.size
        self.set_size(size, ended)
        if size < before:
            self.write(size, bytes(before - size), number=number, ended=ended, cut=len(self.sizes))

    def set_size(self, size: int, ended: float) -> None:
        self.size = size
        self.sizes.append((ended, size))

    def sync(self, begun: int, *, failed: bool) -> None:
        if failed:
            for pieces in self.pages.values():
                for piece in pieces:
                    piece.doomed = piece.doomed or piece.ended < begun
            return
        covered = [size for ended, size in self.sizes if ended < begun]
        left = len(self.sizes) - len(covered)
        for page, pieces in list(self.pages.items()):
            last = max((at for at, one in enumerate(pieces) if one.ended < begun and not one.doomed), default=-1)
            for piece in pieces[: last + 1]:
                self._put(self.base, piece)
            self.pages[page] = pieces[last + 1 :]
            if not self.pages[page]:
                del self.pages[page]
        if covered:
            self.base_size = covered[-1]
            for pieces in self.pages.values():
                for piece in pieces:
                    piece.cut = max(0, piece.cut - len(covered)) if piece.cut else 0
            self.sizes = self.sizes[len(self.sizes) - left :] if left else []

    @staticmethod
    def _put(into: bytearray, piece: Piece) -> None:
        if len(into) < piece.end:
            into.extend(bytes(piece.end - len(into)))
        into[piece.at : piece.end] = piece.data

    def after(self, loss: Loss, chance: random.Random) -> bytes:
        """The file's bytes after that loss."""
        sizes = [self.base_size, *(size for _, size in self.sizes)]
        if loss in (Loss.ALL, Loss.DATA):
            # With its name a file may have got its size, as after a write that was not given its place yet.
            chosen = 0 if loss is Loss.ALL else len(sizes) - 1
        elif loss in (Loss.NOTHING, Loss.NAMES):
            chosen = len(sizes) - 1
        else:
            chosen = chance.choice([0, len(sizes) - 1, chance.randrange(len(sizes))])
        found = bytearray(self.base[: self.base_size])
        size = sizes[chosen]
        if len(found) < size:
            found.extend(chance.randbytes(size - len(found)) if loss is Loss.STALE else bytes(size - len(found)))
        if loss not in (Loss.ALL, Loss.DATA):
            self._apply(found, loss, chance, chosen)
        return bytes(found[:size])

    def _apply(self, into: bytearray, loss: Loss, chance: random.Random, chosen: int) -> None:
        kept: dict[int, bool] = {}
        often = chance.choice((0.1, 0.5, 0.9))
        for page in sorted(self.pages):
            pieces = [one for one in self.pages[page] if not one.cut or one.cut <= chosen]
            if loss in (Loss.TORN, Loss.STALE):
                self._apply_sectors(into, pieces, page, chance, often)
                continue
            for piece in pieces:
                if loss is not Loss.SOME or kept.setdefault(piece.write, chance.random() < often):
                    self._put(into, piece)

    def _apply_sectors(
        self, into: bytearray, pieces: list[Piece], page: int, chance: random.Random, often: float
    ) -> None:
        if len(into) < (page + 1) * PAGE:
            into.extend(bytes((page + 1) * PAGE - len(into)))
        for start in range(page * PAGE, (page + 1) * PAGE, SECTOR):
            # How many of its writes each sector has seen is its own affair.
            if chance.random() < often:
                for piece in pieces[: chance.randint(1, len(pieces)) if pieces else 0]:
                    low, high = max(start, piece.at), min(start + SECTOR, piece.end)
                    if low < high:
                        into[low:high] = piece.data[low - piece.at : high - piece.at]


@attrs.define(eq=False)
class Change:
    """A name that came, changed or went; ``file`` None: it went.

    What was moved from one folder into another is a change of both, its ``twin`` in the other: both or neither is seen.
    """

    name: str
    file: int | None
    ended: float
    old: str | None = None
    folder: int = 0
    twin: Change | None = None
    synced: bool = False

    def do(self, names: dict[str, int]) -> None:
        if self.old is not None:
            names.pop(self.old, None)
        if self.file is None:
            names.pop(self.name, None)
        else:
            names[self.name] = self.file


@attrs.define
class Folder:
    """The names of one folder: those that are synced, and the changes since in their order."""

    base: dict[str, int] = attrs.field(factory=dict)
    changes: list[Change] = attrs.field(factory=list)

    def sync(self, covers: Callable[[Change], bool]) -> list[Change]:
        """Keep the changes up to the last that is covered, and return them."""
        done = 1 + max((at for at, one in enumerate(self.changes) if covers(one)), default=-1)
        found, self.changes = self.changes[:done], self.changes[done:]
        for change in found:
            change.do(self.base)
            change.synced = True
        return found

    def choose(self, loss: Loss, chance: random.Random) -> list[Change]:
        """The changes that are seen after that loss."""
        if loss in (Loss.ALL, Loss.NAMES):
            return []
        if loss in (Loss.NOTHING, Loss.DATA):
            return self.changes
        count = len(self.changes)
        return self.changes[: chance.choice((0, count, chance.randint(0, count)))]

    def after(self, seen: AbstractSet[Change]) -> dict[str, int]:
        """The names after a loss that left these changes of all folders."""
        names = dict(self.base)
        for change in self.changes:
            if change in seen and (change.twin is None or change.twin.synced or change.twin in seen):
                change.do(names)
        return names


class Disk:
    """The disk under a recording, moved forward from moment to moment."""

    def __init__(self, records: Sequence[Record], root: Path) -> None:
        self.root = str(root.resolve())
        self.said: list[str] = []
        self._files: dict[int, File] = {}
        self._folders: dict[int, Folder] = {}
        self._live: dict[str, int] = {}
        self._number = 0
        self._under_way: dict[int, Record] = {}
        # By its end a call is done; between its two moments it may have been done in part.
        edges = [(float(record.begun), 0, record) for record in records]
        edges += [(float(record.ended), 1, record) for record in records if record.ended is not None]
        self._edges = sorted(edges, key=lambda edge: (edge[0], edge[1]))
        self._next = 0
        self._learn(records)

    def _learn(self, records: Sequence[Record]) -> None:
        """What was there before is on the disk."""
        while self._next < len(self._edges) and self._edges[self._next][0] == 0:
            _, is_end, record = self._edges[self._next]
            if is_end:
                self._do(record, -1)
            self._next += 1
        for file in self._files.values():
            file.sync(0, failed=False)
        for folder in self._folders.values():
            folder.sync(lambda change: True)

    def advance(self, moment: float) -> None:
        """Go on to that moment."""
        while self._next < len(self._edges) and self._edges[self._next][0] <= moment:
            at, is_end, record = self._edges[self._next]
            self._next += 1
            if is_end:
                self._under_way.pop(record.begun, None)
                self._do(record, at)
            else:
                self._under_way[record.begun] = record
                if isinstance(record, Said):
                    self.said.append(record.text)  # it may have been read as soon as it was being written

    def _do(self, record: Record, ended: float) -> None:
        self._number += 1
        match record:
            case Made(path=path, file=file, is_folder=is_folder):
                if is_folder:
                    self._folders[file] = Folder()
                else:
                    self._files[file] = File()
                self._live[path] = file
                self._change(path, Change(Path(path).name, file, ended))
            case Wrote(file=file, offset=offset, data=data):
                self._files[file].write(offset, data, number=self._number, ended=ended)
            case Sized(file=file, size=size):
                self._files[file].cut(size, number=self._number, ended=ended)
            case Synced(file=file, begun=begun, failed=failed):
                if file in self._files:
                    self._files[file].sync(begun, failed=failed)
                elif not failed:
                    self._sync_names(file, lambda change: change.ended < begun)
            case Renamed(old=old, new=new):
                moved = self._live.pop(old)
                assert moved in self._files, "folders are not renamed"
                self._live[new] = moved
                self._rename(Path(old), Path(new), moved, ended)
            case Removed(path=path):
                del self._live[path]
                self._change(path, Change(Path(path).name, None, ended))
            case Said() | Failed():
                pass

    def _rename(self, old: Path, new: Path, moved: int, ended: float) -> None:
        if old.parent == new.parent:
            self._change(str(new), Change(new.name, moved, ended, old.name))
            return
        went, came = Change(old.name, None, ended), Change(new.name, moved, ended)
        went.twin, came.twin = came, went
        self._change(str(old), went)
        self._change(str(new), came)

    def _change(self, path: str, change: Change) -> None:
        if path != self.root:
            change.folder = self._live[str(Path(path).parent)]
            self._folders[change.folder].changes.append(change)

    def _sync_names(self, folder: int, covers: Callable[[Change], bool]) -> None:
        for change in self._folders[folder].sync(covers):
            twin = change.twin
            if twin is not None and not twin.synced:
                self._sync_names(twin.folder, lambda other, twin=twin: other is twin)  # type: ignore[misc]

    def lose(self, loss: Loss, chance: random.Random, place: Path) -> None:
        """Write what is left after a loss of power at this moment into an empty folder."""
        for path, data in self.left(loss, chance):
            target = place / path
            if data is None:
                target.mkdir()
            else:
                target.write_bytes(data)

    def left(self, loss: Loss, chance: random.Random) -> Iterator[tuple[str, bytes | None]]:
        """Every path that is left with its bytes, None for a folder; parents first."""
        begun: list[Wrote] = []
        if loss not in (Loss.ALL, Loss.DATA):
            begun = [one for one in self._under_way.values() if isinstance(one, Wrote) and chance.random() < 0.5]
        seen = {change for folder in self._folders.values() for change in folder.choose(loss, chance)}
        yield from self._below(self._live[self.root], "", loss, chance, begun, seen)

    def _below(
        self, folder: int, above: str, loss: Loss, chance: random.Random, begun: list[Wrote], seen: AbstractSet[Change]
    ) -> Iterator[tuple[str, bytes | None]]:
        for name, number in sorted(self._folders[folder].after(seen).items()):
            path = f"{above}{name}"
            if number in self._folders:
                yield path, None
                yield from self._below(number, f"{path}/", loss, chance, begun, seen)
            elif name.endswith("-shm"):
                # Memory of the processes that used it, of which anything may be left.
                if chance.random() < 0.5:
                    yield path, chance.choice((bytes(32768), chance.randbytes(32768), b""))
            else:
                yield path, self._bytes_of(number, loss, chance, begun)

    def _bytes_of(self, number: int, loss: Loss, chance: random.Random, begun: list[Wrote]) -> bytes:
        file = self._files[number]
        under_way = [one for one in begun if one.file == number]
        if under_way:
            file = attrs.evolve(
                file, sizes=list(file.sizes), pages={page: list(pieces) for page, pieces in file.pages.items()}
            )
            for one in under_way:
                file.write(one.offset, one.data, number=-one.begun, ended=float("inf"))
        return file.after(loss, chance)
