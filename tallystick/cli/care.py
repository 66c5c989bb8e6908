"""``ledger backup`` and ``ledger compact``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from ..ledger.care import backup_ledger, compact_ledger
from ..ledger.ledger import Ledger
from .output import write_json
from .screen import Tone
from .settings import Settings
from .words import plural

__all__ = ["BackupDone", "CompactDone", "backup", "compact"]


class BackupDone(BaseModel):
    """What ``ledger backup`` says; sizes in bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["tallystick.ledger_backup/1"] = "tallystick.ledger_backup/1"
    ledger: str
    file: str
    bytes: int
    artifacts: int
    artifact_bytes: int


class CompactDone(BaseModel):
    """What ``ledger compact`` says; sizes in bytes. See `Compacted` for what is counted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["tallystick.ledger_compact/1"] = "tallystick.ledger_compact/1"
    ledger: str
    bytes_before: int
    bytes: int
    orphans: int
    orphan_bytes: int
    hidden_runs: int
    unpacked: int
    unpacked_bytes: int


def backup(settings: Settings, path: Path, *, force: bool) -> int:
    """Copy the ledger and say what the copy holds."""
    with Ledger.open(settings.ledger_path) as ledger:
        made = backup_ledger(ledger, path, force=force)
        done = BackupDone(
            ledger=str(ledger.path), file=str(made.path), bytes=made.size, artifacts=made.artifacts,
            artifact_bytes=made.artifact_bytes,
        )  # fmt: skip
    if settings.json:
        write_json(done)
        return 0
    screen = settings.screen()
    adopt = f"tallystick adopt RUN --reason TEXT --ledger {shlex.quote(done.file)}"
    beside = f", {plural(done.artifacts, 'artifact')} of {done.artifact_bytes:,} bytes in {path.name}.d"
    screen.pairs([("ledger", done.ledger), ("backup", f"{done.file} ({done.bytes:,} bytes{beside})")])
    screen.line(f"the backup is a ledger; who goes on with a run of it adopts that: `{adopt}`", tone=Tone.GOOD)
    return 0


def compact(settings: Settings) -> int:
    """Give space back and say how much."""
    with Ledger.open(settings.ledger_path) as ledger:
        made = compact_ledger(ledger)
        done = CompactDone(
            ledger=str(ledger.path), bytes_before=made.size_before, bytes=made.size, orphans=made.orphans,
            orphan_bytes=made.orphan_bytes, hidden_runs=made.hidden_runs, unpacked=made.unpacked,
            unpacked_bytes=made.unpacked_bytes,
        )  # fmt: skip
    if settings.json:
        write_json(done)
        return 0
    screen = settings.screen()
    screen.pairs([("ledger", done.ledger), ("size", f"{done.bytes:,} bytes, before {done.bytes_before:,}")])
    if done.orphans:
        screen.line(
            f"removed {plural(done.orphans, 'file')} that belonged to no artifact ({done.orphan_bytes:,} bytes)"
        )
    if done.hidden_runs:
        screen.line(f"removed {plural(done.hidden_runs, 'run')} left half-written by processes that died")
    if done.unpacked:
        screen.line(
            f"removed what {plural(done.unpacked, 'killed import')} had unpacked ({done.unpacked_bytes:,} bytes)"
        )
    screen.line("the ledger takes no more space than it needs", tone=Tone.GOOD)
    return 0
