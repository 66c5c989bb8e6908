"""Snapshots that were made to do harm are refused with the place named, before anything of them is written."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.ledger import snapshot_scratch, zip_layout, zip_reader
from tallystick.ledger.canonical import digest_of_bytes
from tallystick.ledger.errors import LedgerFailed, SnapshotInvalid, SnapshotNewer, UsageError
from tallystick.ledger.ledger import Ledger
from tallystick.ledger.schema import metadata
from tallystick.ledger.snapshot_format import artifact_member
from tallystick.ledger.snapshot_import import import_snapshot
from tallystick.ledger.snapshot_verify import read_manifest, verified
from tallystick.ledger.transaction import chained_hash
from tallystick.ledger.zip_layout import DEFLATED, STORED, Member, directory_end, directory_entry, local_header
from tallystick.ledger.zip_writer import ZipWriter
from tests.unit.ledger.factories import every, new_ledger
from tests.unit.ledger.forged import Forgery, taken_apart
from tests.unit.ledger.snapshots import exported, full_run


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot of a full run."""
    folder = tmp_path_factory.mktemp("sound")
    with new_ledger(folder) as ledger:
        run = full_run(ledger)
        exported(ledger, run.run_id, folder / "s.zip")
    return folder / "s.zip"


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Ledger]:
    with new_ledger(tmp_path, "target.db") as opened:
        opened.write(lambda tx: None)  # it is a worker from here on
        yield opened


def contents(ledger: Ledger) -> dict[str, list[Any]]:
    """Everything in the ledger but what the process says of itself."""
    return {name: every(ledger, f"SELECT * FROM {name}") for name in metadata.tables if name != "workers"}


def refused(target: Ledger, path: Path) -> SnapshotInvalid:
    """It is refused, and nothing of it is anywhere."""
    before = contents(target)
    with pytest.raises(SnapshotInvalid) as found:
        import_snapshot(target, path)
    assert contents(target) == before
    assert not target.artifacts.exists()
    folder = Path(f"{target.path}.d", "imports")
    assert not folder.exists() or not list(folder.iterdir())
    assert found.value.place
    assert found.value.path == str(path)
    return found.value


def test_what_was_taken_apart_and_put_together_again_is_taken_in(sound: Path, target: Ledger, tmp_path: Path) -> None:
    forgery = taken_apart(sound)
    assert import_snapshot(target, forgery.write(tmp_path / "f.zip")).changed
    assert (tmp_path / "f.zip").read_bytes() == sound.read_bytes()


def test_every_changed_byte_is_refused_or_changes_nothing(sound: Path, target: Ledger, tmp_path: Path) -> None:
    # Deflate can say the same in several ways: then it is the same snapshot.
    digest, data = read_manifest(sound).digest, sound.read_bytes()
    is_refused = []
    for place in places_in(sound):
        (tmp_path / "h.zip").write_bytes(data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :])
        folder = tmp_path / f"at-{place}"
        folder.mkdir()
        try:
            with verified(tmp_path / "h.zip", folder) as found:
                assert found.manifest.digest == digest
        except SnapshotInvalid:
            is_refused.append(place)
    assert len(is_refused) > 60


def places_in(path: Path) -> list[int]:
    """Bytes of every kind: those of artifacts, which are most of the file and all alike, only here and there."""
    artifacts = [one for one in zip_reader_of(path).members if one.name.startswith("artifacts/")]
    inside = [place for one in artifacts for place in range(one.begins, one.ends)]
    outside = sorted(set(range(path.stat().st_size)) - set(inside))
    return [*outside[3 :: len(outside) // 75], *inside[3 :: len(inside) // 5]]


def test_every_truncation_is_refused(sound: Path, target: Ledger, tmp_path: Path) -> None:
    data = sound.read_bytes()
    for length in (0, 1, 21, 22, 500, len(data) // 2, len(data) - 22, len(data) - 1):
        (tmp_path / "h.zip").write_bytes(data[:length])
        refused(target, tmp_path / "h.zip")


# The layout.


def archive_of(path: Path, *members: tuple[str, bytes]) -> Path:
    with path.open("w+b") as file:
        writer = ZipWriter(file)
        for name, data in members:
            writer.store(name, len(data), [data])
        writer.finish()
    return path


STRANGE_NAMES = [
    "../evil", "runs/../../evil", "/etc/passwd", "runs\\evil", "C:evil", "runs//x", "runs/./x", ".hidden", "Runs/X",
    "runs/x/", "a" * 201, "runs/a/b/c/d/e", "runs/\x00", "runs/x y",
]  # fmt: skip


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_names_that_lead_elsewhere_are_refused(name: str, target: Ledger, tmp_path: Path) -> None:
    problem = refused(target, archive_of(tmp_path / "h.zip", (name, b"x"), ("manifest.json", b"{}")))
    assert "which no snapshot uses" in problem.place
    assert not (tmp_path.parent / "evil").exists()


def test_two_members_of_one_name_are_refused(target: Ledger, tmp_path: Path) -> None:
    members = [("shared/a-0001.jsonl", b"[1]\n"), ("shared/a-0001.jsonl", b"[2]\n"), ("manifest.json", b"{}")]
    assert "one name" in refused(target, archive_of(tmp_path / "h.zip", *members)).place


@pytest.mark.parametrize(
    ("what", "offset", "value"),
    [
        ("a link", 38, struct.pack("<L", 0o120777 << 16)),
        ("a folder", 38, struct.pack("<L", 0o040755 << 16)),
        ("encryption", 8, struct.pack("<H", 1)),
        ("sizes behind the data", 8, struct.pack("<H", 8)),
        ("a comment", 32, struct.pack("<H", 1)),
        ("another disk", 34, struct.pack("<H", 1)),
        ("another method", 10, struct.pack("<H", 12)),
        ("a time", 12, struct.pack("<H", 77)),
        ("a far place", 42, struct.pack("<L", 0xFFFFFFF0)),
    ],
)
def test_attributes_that_are_never_written_are_refused(
    what: str, offset: int, value: bytes, sound: Path, target: Ledger, tmp_path: Path
) -> None:
    data = bytearray(sound.read_bytes())
    begins = zip_layout.DIRECTORY_END.unpack(data[-22:])[6]
    data[begins + offset : begins + offset + len(value)] = value
    (tmp_path / "h.zip").write_bytes(data)
    refused(target, tmp_path / "h.zip")


@pytest.mark.parametrize("place", [4, 6, 8, 10, 14, 18, 22, 26, 28, 30, 35])
def test_a_header_that_says_other_than_the_directory_is_refused(
    place: int, sound: Path, target: Ledger, tmp_path: Path
) -> None:
    """Other tools go by the one or by the other: a member would be two."""
    data = bytearray(sound.read_bytes())
    data[place] ^= 1
    (tmp_path / "h.zip").write_bytes(data)
    assert "is not what the directory says of it" in refused(target, tmp_path / "h.zip").place


def test_bytes_before_between_and_behind_the_members_are_refused(sound: Path, target: Ledger, tmp_path: Path) -> None:
    data = sound.read_bytes()
    first = zip_reader_of(sound).members[0].ends
    for harmed in (b"#!/bin/sh\n" + data, data[:first] + b"hidden" + data[first:], data + b"PK"):
        (tmp_path / "h.zip").write_bytes(harmed)
        refused(target, tmp_path / "h.zip")


def zip_reader_of(path: Path) -> zip_reader.ZipReader:
    with path.open("rb") as file:
        return zip_reader.ZipReader(file.fileno())


def written_by_hand(path: Path, members: list[tuple[Member, bytes]], *, end: bytes | None = None) -> Path:
    """Headers that say what they like."""
    body = b"".join(local_header(member) + data for member, data in members)
    directory = b"".join(directory_entry(member) for member, _ in members)
    last = directory_end(count=len(members), begins=len(body), size=len(directory)) if end is None else end
    path.write_bytes(body + directory + last)
    return path


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def test_a_bomb_is_refused_by_what_it_announces(target: Ledger, tmp_path: Path) -> None:
    zeros = deflated(bytes(50 << 20))
    member = Member("manifest.json", DEFLATED, 0, 50 << 20, len(zeros), 0)
    assert "would unpack from" in refused(target, written_by_hand(tmp_path / "h.zip", [(member, zeros)])).place


def test_a_bomb_that_announces_little_is_stopped_at_that(target: Ledger, tmp_path: Path) -> None:
    zeros = deflated(bytes(50 << 20))
    member = Member("manifest.json", DEFLATED, 0, 1000, len(zeros), 0)
    problem = refused(target, written_by_hand(tmp_path / "h.zip", [(member, zeros)]))
    assert "unpacks to more than the 1000 bytes" in problem.place


def test_members_that_lie_upon_each_other_are_refused(target: Ledger, tmp_path: Path) -> None:
    one = Member("shared/a-0001.jsonl", STORED, 0, 4, 4, zlib.crc32(b"[1]\n"))
    other = Member("shared/b-0001.jsonl", STORED, 0, 4, 4, zlib.crc32(b"[1]\n"))
    body = local_header(one) + b"[1]\n"
    directory = directory_entry(one) + directory_entry(other)
    (tmp_path / "h.zip").write_bytes(body + directory + directory_end(count=2, begins=len(body), size=len(directory)))
    assert "does not begin where" in refused(target, tmp_path / "h.zip").place


@pytest.mark.parametrize(
    ("count", "begins", "size"), [(2, 0, 0), (0xFFFF, 0, 0), (1, 2**40, 0), (1, 0, 2**40), (2**40, 0, 0)]
)
def test_an_end_that_lies_is_refused(count: int, begins: int, size: int, target: Ledger, tmp_path: Path) -> None:
    member = Member("manifest.json", STORED, 0, 2, 2, zlib.crc32(b"{}"))
    end = directory_end(count=count, begins=begins, size=size)
    refused(target, written_by_hand(tmp_path / "h.zip", [(member, b"{}")], end=end))


def test_a_size_of_64_bits_that_is_none_is_refused(target: Ledger, tmp_path: Path) -> None:
    for size in (2**32, 2**62):
        member = Member("manifest.json", STORED, 0, size, size, 0)
        refused(target, written_by_hand(tmp_path / "h.zip", [(member, b"{}")]))


def test_too_many_members_are_refused(target: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_reader, "MEMBERS_MAX", 2)
    members = [(f"shared/a{number}-0001.jsonl", b"") for number in range(3)]
    assert "are not taken" in refused(target, archive_of(tmp_path / "h.zip", *members)).place


def test_more_than_the_disk_has_room_for_is_not_unpacked(
    sound: Path, target: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nearly_full(folder: object) -> Any:
        return shutil._ntuple_diskusage(10**9, 10**9 - 100, 100)

    monkeypatch.setattr("tallystick.ledger.snapshot_verify.shutil.disk_usage", nearly_full)
    before = contents(target)
    with pytest.raises(LedgerFailed, match="would unpack to about"):
        import_snapshot(target, sound)
    assert contents(target) == before


def test_what_is_no_file_is_refused(target: Ledger, tmp_path: Path) -> None:
    refused(target, tmp_path)
    with pytest.raises(UsageError, match="cannot be read"):
        import_snapshot(target, tmp_path / "nothing.zip")


# The manifest.


def spoil_manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Forgery], None]:
    def spoil(forgery: Forgery) -> None:
        change(forgery.manifest)
        forgery.seal()
        forgery.honest = False

    return spoil


def spoil_digest(forgery: Forgery) -> None:
    forgery.manifest["digest"] = "sha256:" + 64 * "0"
    forgery.honest = False


MANIFESTS: dict[str, Callable[[Forgery], None]] = {
    "a key too many": spoil_manifest(lambda said: said.update(more=1)),
    "a key too few": spoil_manifest(lambda said: said.pop("shared")),
    "a number that is text": spoil_manifest(lambda said: said.update(schema_number="1")),
    "a number that is none": spoil_manifest(lambda said: said.update(schema_number=True)),
    "a schema before the first": spoil_manifest(lambda said: said.update(schema_number=0)),
    "no run": spoil_manifest(lambda said: said.update(runs=[])),
    "a run twice": spoil_manifest(lambda said: said["runs"].append(said["runs"][0])),
    "another run": spoil_manifest(lambda said: said["runs"][0].update(run="zzz")),
    "another name": spoil_manifest(lambda said: said["runs"][0].update(name="other")),
    "another state": spoil_manifest(lambda said: said["runs"][0].update(state="finished")),
    "a state of no snapshot": spoil_manifest(lambda said: said["runs"][0].update(state="moving")),
    "another plan": spoil_manifest(lambda said: said["runs"][0].update(planned=7)),
    "another event": spoil_manifest(lambda said: said["runs"][0].update(event_no=1)),
    "another hash": spoil_manifest(lambda said: said["runs"][0].update(event_hash=64 * "0")),
    "a copy that says that it is a move": spoil_manifest(lambda said: said["runs"][0].update(custody="move")),
    "another epoch": spoil_manifest(lambda said: said["runs"][0].update(epoch=7)),
    "another custody": spoil_manifest(lambda said: said["runs"][0].update(custody="held")),
    "a count too many": spoil_manifest(lambda said: said["runs"][0]["rows"].update(slots=9)),
    "a count of what is not there": spoil_manifest(lambda said: said["shared"].update(qualifications=1)),
    "rows too many": spoil_manifest(lambda said: said["members"][0].update(rows=2)),
    "another size": spoil_manifest(lambda said: said["members"][0].update(size=1)),
    "another digest": spoil_manifest(lambda said: said["members"][0].update(digest="sha256:" + 64 * "0")),
    "a member fewer": spoil_manifest(lambda said: said["members"].pop()),
    "a member more": spoil_manifest(lambda said: said["members"].append(said["members"][0])),
    "a member that leads elsewhere": spoil_manifest(lambda said: said["members"][0].update(name="../x-0001.jsonl")),
    "columns of no table": spoil_manifest(lambda said: said["columns"].update(slots=["slot_no; DROP TABLE runs"])),
    "a column that is not there": spoil_manifest(lambda said: said["columns"]["slots"].append("more")),
    "a column twice": spoil_manifest(lambda said: said["columns"]["slots"].__setitem__(0, "state")),
    "the key of the run": spoil_manifest(lambda said: said["columns"]["slots"].__setitem__(0, "run_key")),
    "artifacts too many": spoil_manifest(lambda said: said["artifacts"].update(count=9)),
    "another digest of all": spoil_digest,
    "no JSON": lambda forgery: forgery.raw.update({"manifest.json": b"{"}),
    "no object": lambda forgery: forgery.raw.update({"manifest.json": b"[]"}),
    "JSON of great depth": lambda forgery: forgery.raw.update({"manifest.json": b"[" * 100_000}),
    "JSON written otherwise": lambda forgery: forgery.raw.update(
        {"manifest.json": json.dumps(forgery.manifest).encode()}
    ),
}


@pytest.mark.parametrize("harm", MANIFESTS)
def test_a_manifest_that_is_not_true_is_refused(harm: str, sound: Path, target: Ledger, tmp_path: Path) -> None:
    forgery = taken_apart(sound)
    MANIFESTS[harm](forgery)
    refused(target, forgery.write(tmp_path / "h.zip"))


@pytest.mark.parametrize(("key", "value"), [("format", "tallystick.snapshot/2"), ("schema_number", 2)])
def test_a_snapshot_of_a_newer_version_says_what_to_do(
    key: str, value: Any, sound: Path, target: Ledger, tmp_path: Path
) -> None:
    forgery = taken_apart(sound)
    spoil_manifest(lambda said: said.update({key: value, "something": "new"}))(forgery)
    before = contents(target)
    with pytest.raises(SnapshotNewer, match="Use the newer version"):
        import_snapshot(target, forgery.write(tmp_path / "h.zip"))
    assert contents(target) == before


# Rows and artifacts.


def slot(number: int) -> Callable[[dict[str, Any]], bool]:
    return lambda row: bool(row["slot_no"] == number)


def rewrite_event(forgery: Forgery, number: int, **changes: Any) -> None:
    """Change an event and bind all later ones anew: the chain holds, and tells something else."""
    previous = b""
    for row in forgery.table("events"):
        if row[0] == number:
            row[1:4] = [changes.get("kind", row[1]), changes.get("at_us", row[2]), changes.get("body", row[3])]
        previous = chained_hash(previous, row[0], row[1], row[2], row[3])
        row[4] = previous.hex()


def tell(forgery: Forgery, kind: str, body: str) -> None:
    """One more event at the end."""
    event_no, _, at_us, _, digest = forgery.table("events")[-1]
    row = [event_no + 1, kind, at_us, body]
    forgery.table("events").append([*row, chained_hash(bytes.fromhex(digest), *row).hex()])


def leave_a_gap(forgery: Forgery) -> None:
    """The last event bears the number behind its own, and the chain holds."""
    before, last = forgery.table("events")[-2:]
    last[0] += 1
    last[4] = chained_hash(bytes.fromhex(before[4]), *last[:4]).hex()


def swap_artifact(forgery: Forgery) -> None:
    name = next(iter(forgery.artifacts))
    forgery.artifacts[name] = forgery.artifacts[name][:-1] + b"?"


def forget_artifact(forgery: Forgery) -> None:
    forgery.artifacts.pop(next(iter(forgery.artifacts)))


def add_artifact(forgery: Forgery) -> None:
    data = b"nobody's \xff" * 10_000
    forgery.artifacts[artifact_member(digest_of_bytes(data))] = data


def add_table(forgery: Forgery, table: str, columns: list[str], row: list[Any], *, shared: bool = True) -> None:
    folder = "shared" if shared else f"runs/{forgery.run}"
    forgery.manifest["columns"][table] = columns
    forgery.rows[f"{folder}/{table}-0001.jsonl"] = [row]


def of_members(forgery: Forgery, data: bytes, table: str = "slots") -> None:
    name = next(name for name in forgery.rows if f"/{table}-" in name)
    forgery.raw[name] = data


ROWS: dict[str, Callable[[Forgery], object]] = {
    "no JSON": lambda found: of_members(found, b"[1,\n"),
    "a row that is no list": lambda found: of_members(found, b'{"slot_no":1}\n'),
    "a row that is too short": lambda found: found.table("slots")[0].pop(),
    "a row that is too long": lambda found: found.table("slots")[0].append(1),
    "a last row without its end": lambda found: of_members(found, b"[1]"),
    "JSON with comments": lambda found: of_members(found, b"[1,/**/2]\n"),
    "JSON with quotes of another kind": lambda found: of_members(found, b"['1']\n"),
    "half a character": lambda found: found.set("cases", "input", '"\ud800"'),
    "no UTF-8": lambda found: of_members(found, b'["\xff"]\n'),
    "rows of great depth": lambda found: of_members(found, b"[" * 100_000 + b"\n"),
    "a number that is a list": lambda found: found.set("slots", "repetition", [1]),
    "a number that is text": lambda found: found.set("slots", "repetition", "many"),
    "a number that is a fraction": lambda found: found.set("slots", "not_before_us", 0.5),
    "a number beyond 64 bits": lambda found: found.set("slots", "not_before_us", 2**70),
    "nothing where something must be": lambda found: found.set("slots", "state", None),
    "bytes that are none": lambda found: found.set("events", "hash", "zz"),
    "a request that is no bytes": lambda found: found.set("calls", "payload", "zz"),
    "text for bytes": lambda found: found.set("events", "hash", 7),
    "a state that there is not": lambda found: found.set("slots", "state", "excellent", where=slot(8)),
    "a key twice": lambda found: found.table("slots").append(list(found.table("slots")[-1])),
    "a slot fewer": lambda found: found.drop("slots", where=slot(8)),
    "an attempt fewer": lambda found: found.drop("attempts", where=slot(2)),
    "an observation fewer": lambda found: found.drop("observations", where=slot(1)),
    "a call fewer": lambda found: found.drop("calls", where=slot(2)),
    "a dispatch fewer": lambda found: found.drop("dispatches", where=lambda row: row["state"] == "failed"),
    "a reservation fewer": lambda found: found.drop("reservations", where=lambda row: row["state"] == "held"),
    "a case fewer": lambda found: found.drop("cases", where=lambda row: row["case_no"] == 8),
    "an event fewer": lambda found: found.drop("events", where=lambda row: row["event_no"] == 3),
    "the last event missing": lambda found: found.table("events").pop(),
    "a gap in the numbers of events": leave_a_gap,
    "an event changed": lambda found: found.set("events", "at_us", 1, where=lambda row: row["event_no"] == 2),
    "an event that tells otherwise": lambda found: rewrite_event(found, 3, kind="run.stop_asked", body='{"reason":""}'),
    "an event of no kind": lambda found: rewrite_event(found, 3, kind="run.blessed"),
    "an unknown outcome made a failure": lambda found: found.set("dispatches", "state", "failed",
                                                                 where=lambda row: row["state"] == "unknown"),
    "an unknown outcome made unsent": lambda found: found.set("slots", "state", "pending", where=slot(3)),
    "a failure made a success": lambda found: found.set("slots", "state", "selected", where=slot(2)),
    "a mark of contamination that nothing tells of": lambda found: found.set("attempts", "contaminated", 1),
    "contamination that no mark shows": lambda found: tell(
        found, "attempt.contaminated", '{"attempt":1,"reason":"","slot":1}'),
    "another answer": lambda found: found.set("observations", "answer", '"no"', where=slot(1)),
    "another request": lambda found: found.set("calls", "payload", b"other".hex()),
    "a budget that was passed": lambda found: found.set("budgets", "limit_amount", 1),
    "a budget that does not add up": lambda found: found.set("budgets", "settled", 0),
    "a lease that is held": lambda found: found.set("leases", "state", "held"),
    "a lease that stands in line": lambda found: found.set("leases", "state", "waiting"),
    "a run that is being moved": lambda found: found.set("runs", "state", "moved"),
    "a run of another id": lambda found: found.set("runs", "run_id", "zzz"),
    "two runs": lambda found: found.table("runs").append(["zzz", *found.table("runs")[0][1:]]),
    "a judgment of nothing": lambda found: found.set("judgments", "slot_no", 8),
    "an artifact changed": swap_artifact,
    "an artifact fewer": forget_artifact,
    "an artifact more": add_artifact,
    "an artifact's row changed": lambda found: found.set("artifacts", "size", 1),
    "an artifact's row fewer": lambda found: found.drop("artifacts", where=lambda row: True),
    "words of the ledger": lambda found: add_table(found, "slot_states", ["state"], ["excellent"]),
    "facts of the ledger": lambda found: add_table(found, "facts", ["name", "value"], ["folder:x", "/"]),
    "an import": lambda found: add_table(found, "imports", ["import_id"], ["x"], shared=False),
    "the schema": lambda found: add_table(found, "sqlite_master", ["sql"], ["DROP TABLE runs"]),
    "the version of the schema": lambda found: add_table(found, "alembic_version", ["version_num"], ["9999"]),
    "rows of no run": lambda found: add_table(found, "leases", found.manifest["columns"]["leases"],
                                              list(found.table("leases")[0])),
    "shared rows in a run": lambda found: add_table(found, "fences", ["resource", "high_water"], ["x", 1],
                                                    shared=False),
}  # fmt: skip


@pytest.mark.parametrize("by_sqlite", [True, False], ids=["by SQLite", "by Python"])
@pytest.mark.parametrize("harm", ROWS)
def test_rows_that_cannot_be_true_are_refused_though_every_digest_is_right(
    harm: str, by_sqlite: bool, sound: Path, target: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_scratch, "READS_JSON", by_sqlite and snapshot_scratch.READS_JSON)
    forgery = taken_apart(sound)
    ROWS[harm](forgery)
    refused(target, forgery.write(tmp_path / "h.zip"))


def test_rows_in_parts_that_are_out_of_order_are_refused(sound: Path, target: Ledger, tmp_path: Path) -> None:
    forgery = taken_apart(sound)
    first = f"runs/{forgery.run}/slots-0001.jsonl"
    second = f"runs/{forgery.run}/slots-0002.jsonl"
    forgery.rows[second] = forgery.rows[first][4:]
    del forgery.rows[first][4:]
    forgery.order = [second if name == first else first if name == second else name for name in forgery.rows]
    assert "out of order" in refused(target, forgery.write(tmp_path / "h.zip")).place
    forgery.order = [name for name in forgery.rows if name != second]
    forgery.order.insert(forgery.order.index(first) + 1, second)
    assert import_snapshot(target, forgery.write(tmp_path / "parts.zip")).changed


@pytest.mark.parametrize("at_once", [1, 7, 4096])
def test_rows_are_whole_wherever_a_piece_ends_and_long_ones_are_left_to_python(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_scratch, "_LARGE", 100)
    rows = [["short"], ["long " * 30], ["\u2028"], [None]]
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    pieces = [data[first : first + at_once] for first in range(0, len(data), at_once)]
    blocks = list(snapshot_scratch._blocks(pieces, "x"))
    assert [row for block in blocks for row in json.loads(block.data)] == rows
    assert sum(block.count for block in blocks) == len(rows)
    assert all(block.text is None for block in blocks if len(block.data) > 100)
