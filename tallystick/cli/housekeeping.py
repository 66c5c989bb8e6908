"""``ledger check`` and ``ledger upgrade``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from ..ledger.ledger import Ledger
from ..ledger.opening import Found, look
from ..ledger.schema import SCHEMA_NUMBER
from .output import write_json
from .screen import Tone
from .settings import Settings

__all__ = ["LedgerUpgraded", "upgrade"]


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
