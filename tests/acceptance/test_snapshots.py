"""E12 and E12b: runs that are carried to another folder and finished there, killed half-way, twice, tampered with."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from .harness import Service, Site, Speaking
from .invariants import check_invariants, rows
from .orders import case, http_order

LARGE: Final = "large " * 20_000
CASES: Final = (
    case("plain", remember=True),
    case("lost", sequence=[{"drop_after": 0, "remember": True}, {"remember": True}]),
    case("large", text=LARGE, remember=True),
    case("later", remember=True),
    case("last", remember=True),
)


class Places:
    """One service, and folders with a ledger each; a folder can be deleted while the service goes on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sites: list[Site] = []
        (folder / "service").mkdir()
        self.service = Service(folder / "service")

    def site(self, name: str) -> Site:
        made = Site(self._folder / name)
        self._sites.append(made)
        return made

    def close(self) -> None:
        for made in self._sites:
            made.folder.mkdir(exist_ok=True)
            made.close()
        speaking: Speaking = self.service
        speaking.close()


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    made = Places(tmp_path)
    try:
        yield made
    finally:
        made.close()


def half_done(places: Places, name: str = "old") -> Site:
    """A run of which three planned observations are attempted, one of them unknown."""
    site = places.site(name)
    site.order(http_order(places.service, CASES, if_unknown="keep"))
    assert site.run("--limit", "3").ended() == 75
    return site


def did(site: Site, *arguments: object, status: int = 0) -> str:
    made = site.start(*arguments)
    assert made.ended() == status, f"{made.out}\n{made.err}"
    return made.out + made.err


def carried(site: Site, other: Site, file: Path, *options: object) -> dict[str, Any]:
    did(site, "export", "acceptance", "-o", file, "--force", *options)
    told: dict[str, Any] = other.told("import", file, "--json", statuses=[0])
    return told


def answers(site: Site) -> list[tuple[Any, ...]]:
    """What is selected, its digest, and the request that it answered."""
    return rows(site.ledger, "SELECT slot_no, attempt_no, call_id, answer_digest FROM observations ORDER BY slot_no")


def test_e12_a_partial_run_is_carried_to_another_folder_and_finished_there(places: Places, tmp_path: Path) -> None:
    old = half_done(places)
    file = tmp_path / "carried.zip"
    did(old, "export", "acceptance", "-o", file)
    committed = answers(old)
    assert len(committed) == 2
    history = rows(old.ledger, "SELECT event_no, kind, body, hash FROM events ORDER BY event_no")
    (order,) = [old.order_file.read_text()]
    kept_aside = tmp_path / "kept" / "evals.db"
    kept_aside.parent.mkdir()
    shutil.copy(old.ledger, kept_aside)
    shutil.copytree(f"{old.ledger}.d", f"{kept_aside}.d")
    shutil.rmtree(old.folder)

    new = places.site("new")
    told = new.told("import", file, "--json", statuses=[0])
    assert [(run["became"], run["custody"], run["next"]) for run in told["runs"]] == [("new", "copy", "adopt")]
    assert answers(new) == committed
    assert rows(new.ledger, "SELECT event_no, kind, body, hash FROM events ORDER BY event_no") == history
    for path in (file, new.ledger):
        assert str(old.folder).encode() not in path.read_bytes()
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            assert str(old.folder).encode() not in archive.read(name)
    assert "the ledger is sound" in did(new, "ledger", "check")

    asked = len(places.service.requests())
    assert "run.custody_elsewhere" in did(new, "resume", status=4)
    assert len(places.service.requests()) == asked
    did(new, "adopt", "acceptance", "--reason", "the old folder was deleted")
    new.order_file.write_text(order)
    assert new.run().ended() == 3, "what was unknown is still unknown"
    assert new.counts() == {"selected": 4, "unknown": 1}
    assert answers(new)[: len(committed)] == committed, "nothing committed is asked again"
    did(new, "reconcile", "acceptance", "--give-up", "--reason", "the service keeps no log", "--yes")
    check_invariants(new.ledger, places.service.requests())

    # A copy of the old ledger's file that turns up later notices that it is one.
    late = Site(kept_aside.parent, ledger=kept_aside)
    asked = len(places.service.requests())
    late.order_file.write_text(order)
    assert [run["next"] for run in late.told("runs", "--json")["runs"]] == ["adopt"], "before anybody has written, too"
    assert "copied, restored or moved to another disk" in did(late, "run", late.order_file, status=4)
    assert len(places.service.requests()) == asked
    # And what was finished elsewhere can be taken in there, too.
    did(new, "export", "acceptance", "-o", tmp_path / "finished.zip")
    (run,) = late.told("import", tmp_path / "finished.zip", "--json", statuses=[0])["runs"]
    assert (run["became"], run["custody"]) == ("forward", "copy")
    assert answers(late) == answers(new)
    late.close()


def test_e12_a_moved_run_goes_on_where_it_was_taken_in(places: Places, tmp_path: Path) -> None:
    old, new = half_done(places), places.site("new")
    told = carried(old, new, tmp_path / "m.zip", "--move")
    assert [(run["custody"], run["epoch"]) for run in told["runs"]] == [("held", 2)]
    asked = len(places.service.requests())
    assert "was moved away" in did(old, "run", old.order_file, status=4)
    assert "was moved away" in did(old, "resume", "acceptance", status=4)
    assert len(places.service.requests()) == asked
    new.order_file.write_text(old.order_file.read_text())
    assert new.run().ended() == 3
    assert new.counts() == {"selected": 4, "unknown": 1}
    check_invariants(new.ledger, places.service.requests())


def test_e12_a_snapshot_is_taken_while_the_run_goes_on(places: Places, tmp_path: Path) -> None:
    old, new = places.site("old"), places.site("new")
    old.order(http_order(places.service, [case("held", wait="g"), case("next")]))
    running = old.run()
    places.service.wait_for("g")
    carried(old, new, tmp_path / "s.zip")
    assert new.counts() == {"in_flight": 1, "pending": 1}
    places.service.go("g")
    assert running.ended() == 0
    did(new, "adopt", "acceptance", "--reason", "to see what becomes of what was in flight")
    assert new.counts() == {"unknown": 1, "pending": 1}
    assert [one["reason"] for one in new.told("status", "--json")["reasons"]] == ["coordinator.died"]
    (run,) = [carried(old, places.site("third"), tmp_path / "later.zip")["runs"][0]]
    assert run["next"] == "nothing"


def test_e12b_the_second_import_is_a_stated_no_op(places: Places, tmp_path: Path) -> None:
    old, new = half_done(places), places.site("new")
    assert carried(old, new, tmp_path / "s.zip")["changed"] is True
    before = new.ledger.read_bytes()
    assert "nothing was changed" in did(new, "import", tmp_path / "s.zip")
    again = new.told("import", tmp_path / "s.zip", "--json", statuses=[0])
    assert (again["changed"], [run["became"] for run in again["runs"]]) == (False, ["unchanged"])
    tables = ("runs", "slots", "calls", "dispatches", "events", "imports", "artifacts")
    assert before
    assert [rows(new.ledger, f"SELECT count(*) FROM {table}") for table in tables] == [
        [(1,)], [(5,)], [(3,)], [(3,)], rows(old.ledger, "SELECT count(*) FROM events"), [(1,)],
        rows(old.ledger, "SELECT count(*) FROM artifacts"),
    ]  # fmt: skip


def cut(data: bytes) -> bytes:
    return data[:-100]


def cut_to_half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def with_something_behind(data: bytes) -> bytes:
    return data + b"\0"


def with_one_bit_changed(data: bytes) -> bytes:
    return data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]


@pytest.mark.parametrize("harm", [cut, cut_to_half, with_something_behind, with_one_bit_changed])
def test_e12b_a_tampered_or_truncated_archive_is_refused_before_anything_is_written(
    harm: Callable[[bytes], bytes], places: Places, tmp_path: Path
) -> None:
    old, new = half_done(places), places.site("new")
    did(old, "export", "acceptance", "-o", tmp_path / "s.zip")
    (tmp_path / "bad.zip").write_bytes(harm((tmp_path / "s.zip").read_bytes()))
    assert "snapshot.invalid" in did(new, "import", tmp_path / "bad.zip", status=4)
    assert rows(new.ledger, "SELECT count(*) FROM runs") == [(0,)]
    assert rows(new.ledger, "SELECT count(*) FROM imports") == [(0,)]
    assert rows(new.ledger, "SELECT count(*) FROM artifacts") == [(0,)]
    assert new.told("runs", "--json")["runs"] == []
    did(new, "import", tmp_path / "s.zip")


# Killed half-way.


def export_killed(places: Places, site: Site, point: str, folder: Path) -> None:
    """The final name never holds a partial file, and the next export clears up."""
    file = folder / "s.zip"
    site.start("export", "acceptance", "-o", file, crashpoint=point).died_at_its_point()
    assert file.exists() == point.startswith("export.renamed")
    if file.exists():
        did(places.site("early"), "import", file)
    did(site, "export", "acceptance", "-o", file, "--force")
    assert [path.name for path in folder.glob("*s.zip*")] == ["s.zip"]
    new = places.site("new")
    did(new, "import", file)
    assert answers(new) == answers(site)


def import_killed(places: Places, site: Site, point: str, folder: Path) -> None:
    """Import is all or nothing to readers, and the next one clears up."""
    new, file = places.site("new"), folder / "s.zip"
    did(site, "export", "acceptance", "-o", file)
    new.start("import", file, crashpoint=point).died_at_its_point()
    found = new.told("runs", "--json")["runs"]
    is_there = point.startswith("import.flipped")
    assert len(found) == is_there
    assert "the ledger is sound" in did(new, "ledger", "check")
    told = new.told("import", file, "--json", statuses=[0])
    assert told["changed"] is not is_there
    assert answers(new) == answers(site)
    assert not list(Path(f"{new.ledger}.d", "imports").iterdir())
    assert "the ledger is sound" in did(new, "ledger", "check")
    assert rows(new.ledger, "SELECT count(*) FROM runs") == [(1,)]


def forward_killed(places: Places, site: Site, point: str, folder: Path) -> None:
    """Readers see the copy as it was, or as it is further on; the next import brings it there and clears up."""
    new, file = places.site("new"), folder / "s.zip"
    carried(site, new, file)
    before = answers(new)
    assert site.run("--limit", "1").ended() == 75
    did(site, "export", "acceptance", "-o", file, "--force")
    assert answers(site) != before
    new.start("import", file, crashpoint=point).died_at_its_point()
    is_there = point.startswith("import.flipped")
    assert answers(new) == (answers(site) if is_there else before)
    assert [run["state"] for run in new.told("runs", "--json")["runs"]] == ["open"]
    assert "the ledger is sound" in did(new, "ledger", "check")
    assert new.told("import", file, "--json", statuses=[0])["changed"] is not is_there
    assert answers(new) == answers(site)
    assert not list(Path(f"{new.ledger}.d", "imports").iterdir())
    assert "the ledger is sound" in did(new, "ledger", "check")


def move_killed(places: Places, site: Site, point: str, folder: Path) -> None:
    """Nobody goes on with the run until the move is finished, or taken back with a reason."""
    file = folder / "m.zip"
    site.start("export", "acceptance", "--move", "-o", file, crashpoint=point).died_at_its_point()
    asked = len(places.service.requests())
    did(site, "run", site.order_file, status=4)
    assert len(places.service.requests()) == asked
    if "@2" not in point:
        did(site, "export", "acceptance", "--move", "-o", file)
        new = places.site("new")
        assert carried_custody(new, file) == "held"
        did(new, "export", "acceptance", "--move", "-o", folder / "back.zip")
        assert carried_custody(site, folder / "back.zip") == "held"


def move_taken_back(places: Places, site: Site, point: str, folder: Path) -> None:
    """The same, but the file was never used."""
    site.start("export", "acceptance", "--move", "-o", folder / "m.zip", crashpoint=point).died_at_its_point()
    did(site, "adopt", "acceptance", "--reason", "the move was broken off and its file is gone")


def adoption_killed(places: Places, site: Site, point: str, folder: Path) -> None:
    """It is adopted, whoever was told."""
    new = places.site("new")
    carried(site, new, folder / "s.zip")
    new.start("adopt", "acceptance", "--reason", "because", crashpoint=point).died_at_its_point()
    assert rows(new.ledger, "SELECT custody, custody_epoch FROM runs") == [("held", 2)]
    assert "already" in did(new, "adopt", "acceptance", "--reason", "because", status=2)


def backup_killed(places: Places, site: Site, point: str, folder: Path) -> None:
    """A backup has its name only when it is whole, with its artifacts."""
    file = folder / "b.db"
    site.start("ledger", "backup", file, crashpoint=point).died_at_its_point()
    assert not file.exists()
    did(site, "ledger", "backup", file)
    copy = Site(folder, ledger=file)
    assert "the ledger is sound" in did(copy, "ledger", "check")
    assert answers(copy) == answers(site)
    assert [path.name for path in folder.glob("*.part*")] == []
    copy.close()


def carried_custody(site: Site, file: Path) -> str:
    (run,) = site.told("import", file, "--json", statuses=[0])["runs"]
    return str(run["custody"])


Kill = Callable[[Places, Site, str, Path], None]
SCENARIOS: Final[dict[str, list[tuple[Kill, int]]]] = {
    "export.written": [(export_killed, 1), (move_killed, 1), (move_taken_back, 1)],
    "export.renamed": [(export_killed, 1), (move_killed, 1), (move_taken_back, 1)],
    "import.verified": [(import_killed, 1)],
    "import.batch": [(import_killed, passage) for passage in (1, 4, 12)],
    "forward.prepared": [(forward_killed, 1)],
    "forward.inside": [(forward_killed, 1)],
    "import.flipped": [(import_killed, 1), (forward_killed, 1)],
    "custody.moving": [(move_killed, 1), (move_taken_back, 1)],
    "custody.moved": [(move_killed, 1), (move_taken_back, 1)],
    "custody.adopted": [(adoption_killed, 1)],
    "backup.written": [(backup_killed, 1)],
}


@pytest.mark.parametrize(
    ("point", "kill", "passage"),
    [
        pytest.param(point, kill, passage, id=f"{point}-{kill.__name__}-{passage}")
        for point, scenarios in SCENARIOS.items()
        for kill, passage in scenarios
    ],
)
def test_e12b_killed_at_every_point_of_a_snapshots_life(
    point: str, kill: Kill, passage: int, places: Places, tmp_path: Path
) -> None:
    site = half_done(places)
    committed = answers(site)
    kill(places, site, f"{point}@{passage}", tmp_path)
    assert site.run().ended() == 3, "the run goes on to its end where it is held"
    assert site.counts() == {"selected": 4, "unknown": 1}
    assert answers(site)[: len(committed)] == committed
    check_invariants(site.ledger, places.service.requests())
