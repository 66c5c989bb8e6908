"""The manifest of a snapshot, version 1, and the names of its members; ``docs/snapshot-format.md`` describes both.

A snapshot is a zip file (`zip_layout`). Its rows are lines of JSON, one array a row, whose columns the manifest names;
bytes are hexadecimal text. Its digest covers the manifest, and by it every member.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from .canonical import canonical_bytes, digest_of_value

__all__ = [
    "FORMAT",
    "MANIFEST",
    "MANIFEST_MAX",
    "PART_BYTES",
    "SAME_MAX",
    "ArtifactCount",
    "CustodyMode",
    "Manifest",
    "MemberEntry",
    "RedactionEntry",
    "RunEntry",
    "artifact_member",
    "manifest_bytes",
    "rows_member",
    "snapshot_digest",
    "table_of_member",
]

FORMAT: Final = "tallystick.snapshot/1"
MANIFEST: Final = "manifest.json"
MANIFEST_MAX: Final = 64 << 20
PART_BYTES: Final = 64 << 20
"""After so many bytes of rows a further member begins."""
SAME_MAX: Final = 80
"""No text that stands for a whole column is longer: what is unpacked stays in proportion to the file."""

CustodyMode = Literal["copy", "move"]
Digest = Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
RunId = Annotated[str, Field(pattern="^[0-9a-z]{1,64}$")]
Name = Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,62}$")]
Same = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | Annotated[str, Field(max_length=SAME_MAX)] | None


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class MemberEntry(_Part):
    """A member with rows: its size in bytes, the sha256 of those bytes, and how many rows (lines) it has."""

    name: Annotated[str, Field(pattern="^(runs/[0-9a-z]+|shared)/[a-z_]+-[0-9]{4}[.]jsonl$")]
    size: Count
    digest: Digest
    rows: Count


class RedactionEntry(_Part):
    """One request to leave something out (``rule``), and how many texts and events it changed."""

    rule: str
    texts: Count
    events: Count


class RunEntry(_Part):
    """A run: ``event_no`` and ``event_hash`` are its newest event's; ``epoch`` is that of its custody.

    With the mode ``move``, whoever takes the snapshot in may continue the run; with ``copy`` not without adopting it.
    ``same`` holds, by table, columns that say the same in every row of the run, and so stand in none of them.
    """

    run: RunId
    name: str
    state: Literal["open", "finished", "cancelled"]
    planned: Count
    event_no: Count
    event_hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    custody: CustodyMode
    epoch: Annotated[int, Field(ge=1, le=2**62)]
    rows: dict[Name, Count]
    same: dict[Name, Annotated[dict[Name, Same], Field(min_length=1)]]
    left_out: list[RedactionEntry] = []

    def same_size(self, table: str) -> int:
        """How many bytes each row of the table has besides those that stand in its member, about."""
        return sum(len(str(value)) for value in self.same.get(table, {}).values())


class ArtifactCount(_Part):
    """The artifacts that are members of their own, and their bytes in sum; smaller ones stand in their rows."""

    count: Count
    bytes: Count


class Manifest(_Part):
    """What a snapshot says of itself."""

    format: Literal["tallystick.snapshot/1"]
    schema_number: Annotated[int, Field(ge=1, le=9999)]
    producer: str
    runs: Annotated[list[RunEntry], Field(min_length=1)]
    shared: dict[Name, Count]
    columns: dict[Name, Annotated[list[Name], Field(min_length=1)]]
    never_carried: dict[str, str]
    members: list[MemberEntry]
    artifacts: ArtifactCount
    digest: Digest


def rows_member(table: str, part: int, run: str | None = None) -> str:
    """The name of a member with rows of a run, or of what runs share; parts count from 1."""
    return f"{f'runs/{run}' if run else 'shared'}/{table}-{part:04d}.jsonl"


def table_of_member(name: str) -> str:
    """The table whose rows such a member holds."""
    return name.rpartition("/")[2][: -len("-0001.jsonl")]


def artifact_member(digest: str) -> str:
    """The name of the member that holds an artifact."""
    name = digest.removeprefix("sha256:")
    return f"artifacts/{name[:2]}/{name}"


def snapshot_digest(manifest: Manifest) -> str:
    """One digest over everything: of the canonical JSON of the manifest without this field."""
    return digest_of_value(manifest.model_dump(mode="json", exclude={"digest"}))


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest as it is written."""
    return canonical_bytes(manifest.model_dump(mode="json")) + b"\n"
