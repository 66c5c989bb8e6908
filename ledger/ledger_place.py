"""Which ledger this is, and whether its file is still the one that it was.

A ledger has an id, and remembers its file by inode and volume, which a rename keeps and a copy does not. A file that
was copied, restored or moved to another volume is noticed by whoever writes to it first: from then on it is another
ledger, and its runs are copies until they are adopted. That two machines go on with one run is what this prevents;
where the whole volume was copied (an image, a clone), nothing can be noticed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import attrs

from .canonical import canonical_text
from .readers import Reader
from .transaction import Transaction

__all__ = ["LEDGER_FACT", "LedgerIdentity", "find_place", "is_displaced", "known_identity", "ledger_id", "settle_place"]

LEDGER_FACT: Final = "ledger"
_READ: Final = "SELECT value FROM facts WHERE name = 'ledger'"


@attrs.frozen
class LedgerIdentity:
    """A ledger's id, its file's place, and the ids of the ledgers that it was copied from, oldest first."""

    ledger_id: str
    place: str
    copied_from: tuple[str, ...] = ()
    noticed_us: int | None = None


def known_identity(reader: Reader | Transaction) -> LedgerIdentity | None:
    """What the ledger says of itself, None where no worker has been here yet."""
    row = reader.row(_READ)
    if row is None or row[0] is None:
        return None
    said: dict[str, Any] = json.loads(row[0])
    return LedgerIdentity(said["id"], said["place"], tuple(said["copied_from"]), said["noticed_us"])


def find_place(path: Path) -> str:
    """The file, as long as it is not copied: its inode, and what tells its volume from others.

    Device numbers may change with each boot. The id of the file system does not on Linux; elsewhere the instant of the
    file's birth serves.
    """
    found = path.stat()
    born = getattr(found, "st_birthtime", None)
    volume = os.statvfs(path).f_fsid if born is None or sys.platform == "linux" else f"born {born}"
    return f"{found.st_ino} {volume}"


def is_displaced(reader: Reader, path: Path) -> bool:
    """Whether the file is another one than the ledger's, for who only reads."""
    known = known_identity(reader)
    return known is not None and known.place != find_place(path)


def ledger_id(tx: Transaction) -> str:
    """This ledger's id."""
    known = known_identity(tx)
    assert known is not None, "a worker has settled the place"
    return known.ledger_id


def settle_place(tx: Transaction, path: Path) -> int:
    """Give a new ledger its id; find out whether the file is another one than it was.

    Then its runs become copies, and how many did is returned.
    """
    known, place = known_identity(tx), find_place(path)
    if known is not None and known.place == place:
        return 0
    if known is None:
        _keep(tx, LedgerIdentity(tx.ids.next(), place))
        return 0
    origins = (*known.copied_from, known.ledger_id)
    _keep(tx, LedgerIdentity(tx.ids.next(), place, origins, tx.now_us))
    # A move that was under way is finished by the ledger that began it, if by any.
    tx.change("UPDATE runs SET state = 'moved', custody = 'moved' WHERE custody = ?", ("moving",))
    return tx.change("UPDATE runs SET custody = 'copy' WHERE custody = 'held' AND state NOT IN (?, ?)",
                     ("planning", "importing"))  # fmt: skip


def _keep(tx: Transaction, identity: LedgerIdentity) -> None:
    said = {
        "id": identity.ledger_id, "place": identity.place, "copied_from": list(identity.copied_from),
        "noticed_us": identity.noticed_us,
    }  # fmt: skip
    tx.execute(
        "INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (LEDGER_FACT, canonical_text(said)),
    )
