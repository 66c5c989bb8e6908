"""`export`, `import`, `adopt`, and the care of the ledger's file, as people and scripts give them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tallystick.cli import invoke
from tests.unit.cli.project import Done, Project


def give(project: Project, ledger: str, *arguments: object) -> Done:
    """Give a command on another ledger of the folder."""
    project.capture.readouterr()
    status = invoke([*map(str, arguments), "--ledger", str(project.folder / ledger)])
    found = project.capture.readouterr()
    return Done(status, found.out, found.err)


@pytest.fixture
def partial(project: Project) -> Project:
    """A run of which one of three is answered."""
    assert project.give("run", "order.toml", "--limit", 1).status == 75
    return project


def test_a_run_is_exported_imported_adopted_and_finished(partial: Project) -> None:
    made = partial.give("export", "asked", "-o", "s.zip")
    assert made.status == 0
    assert "a copy" in made.out
    taken = give(partial, "other.db", "import", "s.zip")
    assert taken.status == 0
    assert "taken in" in taken.out
    assert "only where nobody else goes on with it: `tallystick adopt" in taken.out
    refused = give(partial, "other.db", "resume", "asked")
    assert refused.status == 4
    assert "run.custody_elsewhere" in refused.err
    assert give(partial, "other.db", "status", "asked", "--json").document["next"] == "adopt"
    adopted = give(partial, "other.db", "adopt", "asked", "--reason", "that machine is gone")
    assert adopted.status == 0
    assert "tallystick resume" in adopted.out
    assert give(partial, "other.db", "run", "order.toml").status == 0
    assert partial.calls == 3
    again = give(partial, "other.db", "import", "s.zip")
    assert "nothing was changed" in again.out


def test_a_finished_copy_needs_nothing(project: Project) -> None:
    project.give("run", "order.toml")
    project.give("export", "asked", "-o", "s.zip")
    taken = give(project, "other.db", "import", "s.zip", "--json").document
    assert [(run["next"], run["command"]) for run in taken["runs"]] == [("nothing", "")]
    assert give(project, "other.db", "report", "asked").status == 0
    assert give(project, "other.db", "run", "order.toml").status == 0
    assert project.calls == 3, "a finished one prints its report and makes no call"


def test_a_copy_stands_in_the_way_of_no_run_of_this_ledger(partial: Project) -> None:
    partial.give("export", "asked", "-o", "s.zip")
    partial.order(name="mine")
    assert give(partial, "other.db", "run", "order.toml", "--limit", 1).status == 75
    give(partial, "other.db", "import", "s.zip")
    assert give(partial, "other.db", "resume").status == 0, "the newest that may go on here is meant"
    partial.order(name="asked", target='if_unknown = "repeat"')
    assert give(partial, "other.db", "run", "order.toml").status == 0, "a changed work order is another run"
    assert give(partial, "other.db", "resume").status == 4, "and a copy is named where there is nothing else"


def test_a_run_that_was_moved_away_is_not_paid_for_again_by_its_work_order(partial: Project) -> None:
    assert partial.give("export", "asked", "-o", "m.zip", "--move").status == 0
    assert "moved away from here" in partial.give("import", "m.zip").out
    assert "the run was moved away from here: go on with it where" in partial.give("status", "asked").out
    assert "was moved away: its" in partial.give("reconcile", "asked", "--give-up", "--reason", "r", "--yes").err
    before = partial.calls
    for refused in (partial.give("run", "order.toml"), partial.give("run", "order.toml", "--dry-run")):
        assert (refused.status, refused.out, partial.calls) == (4, "", before)
        assert "was moved away" in refused.err
    assert partial.give("run", "order.toml", "--new").status == 0


def test_the_documents_say_what_was_done(partial: Project) -> None:
    made = partial.give("export", "asked", "-o", "s.zip", "--redact", "answers", "--json").document
    assert made["format"] == "tallystick.export/1"
    assert made["bytes"] == (partial.folder / "s.zip").stat().st_size
    assert [one["rule"] for one in made["runs"][0]["left_out"]] == ["answers"]
    taken = give(partial, "other.db", "import", "s.zip", "--json").document
    assert (taken["format"], taken["changed"], taken["digest"]) == ("tallystick.import/1", True, made["digest"])
    refused = give(partial, "other.db", "adopt", "asked", "--reason", "r", "--json")
    assert (refused.status, refused.document["code"]) == (4, "run.contents_left_out")
    bad = give(partial, "other.db", "import", "order.toml", "--json")
    assert (bad.status, bad.document["code"]) == (4, "snapshot.invalid")
    assert bad.document["place"]


def test_what_makes_no_sense_is_refused_in_one_line(partial: Project) -> None:
    lines = {
        ("adopt", "--reason", "r"): "name the runs, or say --all",
        ("adopt", "asked", "--all", "--reason", "r"): "name the runs, or say --all",
        ("adopt", "asked"): "--reason",
        ("adopt", "asked", "--reason", "r"): "this ledger's already",
        ("adopt", "--all", "--reason", "r"): "Name a finished one to adopt it",
        ("export", "asked", "-o", "order.toml"): "--force",
        ("export", "asked", "-o", "s.zip", "--slots", "colour=red"): "chooses nothing",
        ("export", "nothing", "-o", "s.zip"): "there is no run nothing",
        ("import", "nothing.zip"): "cannot be read",
    }
    for command, said in lines.items():
        done = partial.give(*command)
        assert done.status == 2, (command, done)
        assert said in done.err
        assert len(done.err.strip().splitlines()) == 1 or "Usage:" in done.err
    assert not (partial.folder / "s.zip").exists()


def test_exporting_a_copy_changes_nothing_in_the_ledger(partial: Project) -> None:
    before = partial.bytes_of_ledger()
    first = partial.give("export", "asked", "-o", "s.zip", "--force")
    data = (partial.folder / "s.zip").read_bytes()
    assert partial.give("export", "asked", "-o", "s.zip", "--force") == first
    assert (partial.folder / "s.zip").read_bytes() == data
    assert partial.bytes_of_ledger() == before


def test_every_copy_of_a_moved_ledger_is_adopted_at_once(partial: Project) -> None:
    partial.order(name="second")
    partial.give("run", "order.toml", "--limit", 1)
    shutil.copy(partial.ledger_path, partial.folder / "copied.db")
    assert partial.give("status", "second", "--json").document["next"] == "resume"
    assert give(partial, "copied.db", "status", "second", "--json").document["next"] == "adopt", "though nobody wrote"
    assert give(partial, "copied.db", "resume", "second").status == 4
    done = give(partial, "copied.db", "adopt", "--all", "--reason", "moved to this disk", "--json").document
    assert {run["was"] for run in done["runs"]} == {"copy"}
    assert len(done["runs"]) == 2
    assert give(partial, "copied.db", "resume", "second").status == 0


def test_a_part_of_a_run_is_not_adopted_with_all_others(partial: Project) -> None:
    partial.give("export", "asked", "-o", "part.zip", "--redact", "answers")
    partial.order(name="second")
    partial.give("run", "order.toml", "--limit", 1)
    partial.give("export", "second", "-o", "whole.zip")
    for file in ("part.zip", "whole.zip"):
        assert give(partial, "other.db", "import", file).status == 0
    done = give(partial, "other.db", "adopt", "--all", "--reason", "that machine is gone", "--json")
    assert done.status == 0
    assert [run["was"] for run in done.document["runs"]] == ["copy"]
    assert give(partial, "other.db", "status", "second", "--json").document["next"] == "resume"
    assert give(partial, "other.db", "status", "asked", "--json").document["next"] == "nothing"


def test_a_ledger_is_backed_up_and_compacted(partial: Project) -> None:
    backup = Path("backup.db")
    made = partial.give("ledger", "backup", backup)
    assert made.status == 0
    assert give(partial, "backup.db", "ledger", "check").status == 0
    document = partial.give("ledger", "backup", backup, "--force", "--json").document
    assert document["bytes"] == (partial.folder / backup).stat().st_size
    assert partial.give("ledger", "compact").status == 0
    assert partial.give("ledger", "compact", "--json").document["format"] == "tallystick.ledger_compact/1"
    assert partial.give("resume").status == 0
