"""Bytes by digest: small ones in the ledger, large ones in files beside it.

A file is written under another name, synced, renamed and its folder synced *before* the row that names it is committed;
so a row never names bytes that are not there, and a death in between leaves a file that nobody names (``ledger check``
lists it). No file is touched inside a transaction: `prepare` does that before, `record` adds the row.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from .canonical import digest_of_bytes
from .durable import sync, sync_folder
from .errors import LedgerDamaged, LedgerFailed
from .ledger import Ledger, Reader
from .records import Artifact, DispatchFacts, Intent
from .transaction import Transaction

__all__ = [
    "ANSWER",
    "INLINE_MAX",
    "bytes_of",
    "file_of",
    "files_in",
    "get",
    "measured",
    "prepare",
    "prepare_async",
    "put",
    "put_async",
    "record",
    "stored_answer",
    "text_of",
    "with_stored_payload",
    "with_stored_raw",
]

INLINE_MAX: Final = 64 * 1024
"""Up to so many bytes stay in the ledger's own rows; SQLite reads them faster than files (sqlite.org/fasterthanfs.html
draws the line at about 100 kB)."""

ANSWER: Final = "coalesce(o.answer, CAST(o.answer_artifact AS BLOB))"
"""In SQL, the answer of the observation ``o``, for `text_of`; a digest comes as bytes, to be told from a text."""

_ADD: Final = (
    "INSERT INTO artifacts (digest, size, media_type, data, created_us) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (digest) DO NOTHING"
)
_PART: Final = ".part"


def prepare(ledger: Ledger, data: bytes, *, media_type: str | None = None) -> Artifact:
    """Bring large bytes into their file, durably; small ones wait for `record`. Idempotent.

    Raises LedgerFailed when the file cannot be written.
    """
    digest = digest_of_bytes(data)
    if len(data) <= INLINE_MAX:
        return Artifact(digest, len(data), data, media_type)
    path = file_of(ledger.artifacts, digest)
    try:
        if not (path.is_file() and digest_of_bytes(path.read_bytes()) == digest):
            _write(path, data)
        sync_folder(path.parent)
    except OSError as problem:
        raise LedgerFailed(
            f"the artifact file {path} could not be written ({problem.strerror})",
            "free space on the ledger's disk and check its permissions, then resume",
        ) from problem
    return Artifact(digest, len(data), None, media_type)


async def prepare_async(ledger: Ledger, data: bytes, *, media_type: str | None = None) -> Artifact:
    """The same for an event loop; only large bytes leave it.

    A cancellation waits until the bytes are kept and goes on at the caller's next await: that is the commit which they
    belong to, and an answer that is not committed would be paid for again.
    """
    if len(data) <= INLINE_MAX:
        return prepare(ledger, data, media_type=media_type)
    storing = asyncio.ensure_future(asyncio.to_thread(prepare, ledger, data, media_type=media_type))
    try:
        return await asyncio.shield(storing)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        while not storing.done():
            with contextlib.suppress(asyncio.CancelledError):  # bounded by the disk
                await asyncio.wait({storing})
        task.uncancel()
        task.cancel()
        return storing.result()


def record(tx: Transaction, artifact: Artifact) -> str:
    """Add the row of a prepared artifact, once; returns its digest."""
    tx.execute(_ADD, (artifact.digest, artifact.size, artifact.media_type, artifact.data, tx.now_us))
    return artifact.digest


def put(ledger: Ledger, data: bytes, *, media_type: str | None = None) -> str:
    """Keep the bytes and return their digest once they are durable."""
    artifact = prepare(ledger, data, media_type=media_type)
    return ledger.write(lambda tx: record(tx, artifact))


async def put_async(ledger: Ledger, data: bytes, *, media_type: str | None = None) -> str:
    """The same for an event loop."""
    artifact = await prepare_async(ledger, data, media_type=media_type)
    return await ledger.write_async(lambda tx: record(tx, artifact))


def get(reader: Reader, digest: str) -> bytes:
    """The bytes of that digest; raises LedgerDamaged when they are not there or not the same any more."""
    row = reader.row("SELECT data FROM artifacts WHERE digest = ?", (digest,))
    if row is None:
        raise LedgerDamaged(f"the ledger has no artifact {digest}", "run `tallystick ledger check`")
    data: bytes = _read(reader, digest) if row[0] is None else row[0]
    if digest_of_bytes(data) != digest:
        raise LedgerDamaged(f"the artifact {digest} is not what was kept", "restore its file from a backup")
    return data


async def with_stored_payload(ledger: Ledger, intent: Intent) -> Intent:
    """The intent, its payload brought into a file where it is large; before `attempts.begin`."""
    if intent.payload is None or len(intent.payload) <= INLINE_MAX:
        return intent
    return attrs.evolve(intent, payload=None, payload_artifact=await prepare_async(ledger, intent.payload))


async def with_stored_raw(ledger: Ledger, facts: DispatchFacts) -> DispatchFacts:
    """The facts, their raw bytes brought into a file where they are large; before any step that takes facts."""
    if facts.raw is None or len(facts.raw) <= INLINE_MAX:
        return facts
    return attrs.evolve(facts, raw=None, raw_artifact=await prepare_async(ledger, facts.raw))


async def stored_answer(ledger: Ledger, answer: str) -> str | Artifact:
    """The answer's text as it is, or brought into a file where it is large; what `attempts.observe` takes."""
    if len(answer) <= INLINE_MAX:
        return answer
    return await prepare_async(ledger, answer.encode(), media_type="application/json")


def bytes_of(reader: Reader, found: bytes | str | None) -> bytes | None:
    """What ``coalesce(bytes, artifact)`` gave: the bytes themselves, or those of the digest."""
    return get(reader, found) if isinstance(found, str) else found


def text_of(reader: Reader, found: str | bytes | None) -> str | None:
    """What `ANSWER` gave: the text itself, or that of the digest."""
    return get(reader, found.decode()).decode() if isinstance(found, bytes) else found


def file_of(folder: Path, digest: str) -> Path:
    """Where the bytes of a digest lie when they are large."""
    name = digest.removeprefix("sha256:")
    return folder / name[:2] / name


def measured(path: Path) -> tuple[int, str]:
    """How many bytes a file has, and their digest; it is never in memory as a whole. Raises OSError."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), f"sha256:{digest}"


def files_in(folder: Path) -> Iterator[Path]:
    """Every file of the artifact folder, half-written ones too."""
    return (path for path in sorted(folder.glob("*/*")) if path.is_file())


def _read(reader: Reader, digest: str) -> bytes:
    path = file_of(reader.artifacts, digest)
    try:
        return path.read_bytes()
    except OSError as problem:
        raise LedgerDamaged(
            f"the artifact file {path} cannot be read ({problem.strerror})", "restore it from a backup"
        ) from problem


def _write(path: Path, data: bytes) -> None:
    _make_durable_folders(path.parent.parent.parent, path.parent.parent, path.parent)
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}{_PART}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            sync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


_durable: Final[set[Path]] = set()


def _make_durable_folders(*folders: Path) -> None:
    """Make each folder, and make sure that its name is on the disk.

    A folder that is there may have been made by somebody who has not synced its name yet, or died before; so each
    process syncs once for each.
    """
    for folder in folders:
        if folder in _durable and folder.is_dir():
            continue
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
        _durable.add(folder)
