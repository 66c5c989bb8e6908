"""``ledger check`` and ``ledger upgrade``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from ..ledger.checks import Severity, check_ledger
from ..ledger.ledger import Ledger
from ..ledger.opening import Found, look
from ..ledger.schema import SCHEMA_NUMBER
from ..runner.results import ExitStatus
from .output import write_json
from .screen import Tone
from .settings import Settings

__all__ = ["FindingLine", "LedgerChecked", "LedgerUpgraded", "check", "upgrade"]


class FindingLine(BaseModel):
    """One thing that is not as it should be; a ``warning`` is what a death has left, an ``error`` is damage."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    severity: str
    what: str
    remedy: str


class LedgerChecked(BaseModel):
    """What ``ledger check`` says; ``sound`` as long as nothing found is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["tallystick.ledger_check/1"] = "tallystick.ledger_check/1"
    ledger: str
    schema_number: int
    sound: bool
    exit_status: int
    findings: list[FindingLine]


def check(settings: Settings) -> int:
    """Look through the whole ledger; damage ends with the status of a failed ledger."""
    with Ledger.open(settings.ledger_path) as ledger:
        found = check_ledger(ledger)
        path = str(ledger.path)
    sound = all(one.severity is not Severity.ERROR for one in found)
    status = ExitStatus.DONE if sound else ExitStatus.LEDGER
    if settings.json:
        lines = [
            FindingLine(code=one.code, severity=one.severity.value, what=one.what, remedy=settings.named(one.remedy))
            for one in found
        ]
        write_json(
            LedgerChecked(
                ledger=path, schema_number=SCHEMA_NUMBER, sound=sound, exit_status=int(status), findings=lines
            )
        )
        return int(status)
    screen = settings.screen()
    screen.pairs([("ledger", path)])
    for one in found:
        tone = Tone.BAD if one.severity is Severity.ERROR else Tone.WARNING
        screen.line(f"{one.severity.value} {one.code}: {one.what}. {settings.named(one.remedy)}", tone=tone)
    left = "; what processes that died have left does no harm" if found else ""
    screen.line(
        f"the ledger is sound{left}" if sound else "the ledger is damaged", tone=Tone.GOOD if sound else Tone.BAD
    )
    return int(status)


class LedgerUpgraded(BaseModel):
    """What ``ledger upgrade`` says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["tallystick.ledger_upgrade/1"] = "tallystick.ledger_upgrade/1"
    ledger: str
    schema_number: int
    changed: bool


def upgrade(settings: Settings) -> int:
    """Bring the ledger to this version's schema; one that has it already is left as it is."""
    path = settings.ledger_path
    changed = look(path) is Found.OUTDATED
    with Ledger.open(path, upgrade=True) as ledger:
        found = LedgerUpgraded(ledger=str(ledger.path), schema_number=SCHEMA_NUMBER, changed=changed)
    if settings.json:
        write_json(found)
        return 0
    screen = settings.screen()
    screen.pairs([("ledger", found.ledger)])
    backup = f"; the backup lies in {path.name}.d/backups" if changed else ""
    was = "upgraded to" if changed else "has"
    screen.line(f"the ledger {was} schema {found.schema_number}{backup}", tone=Tone.GOOD)
    return 0
