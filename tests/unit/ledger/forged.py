"""Snapshots made by somebody who means harm: everything that a digest covers is made to fit, and only looking helps."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from tallystick.ledger.canonical import canonical_bytes, digest_of_bytes, digest_of_value
from tallystick.ledger.zip_writer import ZipWriter

Rows = list[list[Any]]


@attrs.define
class Forgery:
    """A snapshot taken apart: rows by member, artifacts by member, and what the manifest says.

    `write` counts and digests anew, unless ``honest`` is false: then the manifest says what it said.
    """

    manifest: dict[str, Any]
    rows: dict[str, Rows]
    artifacts: dict[str, bytes]
    raw: dict[str, bytes] = attrs.field(factory=dict)
    honest: bool = True
    order: list[str] = attrs.field(factory=list)

    @property
    def run(self) -> str:
        return str(self.manifest["runs"][0]["run"])

    def table(self, name: str) -> Rows:
        """The rows of the first run's table, or of a shared one."""
        return self.rows[next(member for member in self.rows if member.split("/")[-1] == f"{name}-0001.jsonl")]

    def set(
        self, table: str, column: str, value: Any, *, where: Callable[[dict[str, Any]], bool] = lambda row: True
    ) -> None:
        """Change a column of the first row that fits; at least one must."""
        names = self.manifest["columns"][table]
        for row in self.table(table):
            if where(dict(zip(names, row, strict=True))):
                row[names.index(column)] = value
                return
        raise AssertionError(f"no row of {table} fits")

    def drop(self, table: str, *, where: Callable[[dict[str, Any]], bool]) -> None:
        """Remove every row that fits; at least one must."""
        names, rows = self.manifest["columns"][table], self.table(table)
        kept = [row for row in rows if not where(dict(zip(names, row, strict=True)))]
        assert len(kept) < len(rows)
        rows[:] = kept

    def write(self, path: Path) -> Path:
        members = {name: b"".join(canonical_line(row) for row in rows) for name, rows in self.rows.items() if rows}
        members.update({name: data for name, data in self.raw.items() if name.endswith(".jsonl")})
        names = self.order or list(members)
        if self.honest:
            self._count(members, names)
        with path.open("w+b") as file:
            archive = ZipWriter(file)
            for name in names:
                archive.deflate(name, [members[name]])
            for name, data in self.artifacts.items():
                archive.store(name, len(data), [data])
            archive.deflate("manifest.json", [self.raw.get("manifest.json") or canonical_bytes(self.manifest) + b"\n"])
            archive.finish()
        return path

    def _count(self, members: dict[str, bytes], names: list[str]) -> None:
        manifest = self.manifest
        manifest["members"] = [
            {"name": name, "size": len(members[name]), "digest": digest_of_bytes(members[name]),
             "rows": members[name].count(b"\n")}
            for name in names
        ]  # fmt: skip
        for entry in manifest["runs"]:
            entry["rows"] = dict.fromkeys(entry["rows"], 0)
        manifest["shared"] = dict.fromkeys(manifest["shared"], 0)
        for member in manifest["members"]:
            folder, _, file = member["name"].rpartition("/")
            runs = [entry for entry in manifest["runs"] if folder == f"runs/{entry['run']}"]
            counts = runs[0]["rows"] if runs else manifest["shared"]
            counts[file[:-11]] = counts.get(file[:-11], 0) + member["rows"]
        events = self.rows.get(f"runs/{self.run}/events-0001.jsonl")
        if events:
            manifest["runs"][0].update(event_no=events[-1][0], event_hash=events[-1][4])
        manifest["artifacts"] = {"count": len(self.artifacts), "bytes": sum(map(len, self.artifacts.values()))}
        self.seal()

    def seal(self) -> None:
        """Make the digest over everything right."""
        said = {key: value for key, value in self.manifest.items() if key != "digest"}
        self.manifest["digest"] = digest_of_value(said)


def canonical_line(row: list[Any]) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(row, separators=(",", ":")).encode() + b"\n"  # half a character, as an escape


def taken_apart(path: Path) -> Forgery:
    """A sound snapshot, ready to be spoilt."""
    with zipfile.ZipFile(path) as archive:
        rows = {
            name: [json.loads(line) for line in archive.read(name).splitlines()]
            for name in archive.namelist()
            if name.endswith(".jsonl")
        }
        artifacts = {name: archive.read(name) for name in archive.namelist() if name.startswith("artifacts/")}
        return Forgery(json.loads(archive.read("manifest.json")), rows, artifacts)
