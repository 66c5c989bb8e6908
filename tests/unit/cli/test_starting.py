"""``tallystick init``: what it refuses, and that it never replaces anything."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path

import pytest

import tallystick as ts
from tallystick.cli import starting
from tests.unit.cli.project import Project

KINDS = starting.KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_of_each_kind_is_a_work_order_that_can_be_read(project: Project, kind: str) -> None:
    made = project.give("init", f"new-{kind}", "--target", kind, "--json").document
    folder = project.folder / f"new-{kind}"
    assert sorted(path.name for path in folder.iterdir()) == made["files"]
    order = ts.load_work_order(folder / "order.toml")
    assert (order.name, len(list(order.cases))) == (f"new-{kind}", 6)


def test_a_folder_with_something_in_it_is_refused_and_named(project: Project) -> None:
    refused = project.give("init", ".")
    assert refused.status == 2
    assert ". is not empty: cases.jsonl, order.toml, target.py" in refused.err
    assert "tallystick init evaluation" in refused.err
    (project.folder / "git").mkdir()
    (project.folder / "git" / ".git").mkdir()
    assert project.give("init", "git").status == 0, "what begins with a dot is in nobody's way"
    assert project.give("init", "git").status == 2
    assert project.give("init", "target.py").status == 2, "a file is no folder"


def test_what_comes_into_the_folder_meanwhile_is_not_replaced(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project.folder / "raced"
    folder.mkdir()
    (folder / "order.toml").write_text("mine")
    monkeypatch.setattr(starting, "_refuse_taken", lambda folder: None)
    refused = project.give("init", "raced")
    assert refused.status == 2
    assert "cannot be written" in refused.err
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("order.toml", "mine")]


@pytest.mark.parametrize(
    "name", ["plain", 'with "quotes" and \\ strokes', "@URL@", "äöü 😀", "line\nbreak", " spaces ", "x" * 200, "$(id)"]
)
def test_any_folders_name_makes_a_name_that_can_be_one(project: Project, name: str) -> None:
    assert project.give("init", name).status == 0
    text = (project.folder / name / "order.toml").read_text(encoding="utf-8")
    assert 0 < len(tomllib.loads(text)["name"]) <= 60
    ts.load_work_order(project.folder / name / "order.toml")


def test_a_url_of_ones_own_takes_the_place_of_the_stand_in(project: Project) -> None:
    url = "https://models.example.com/v1/chat/completions"
    made = project.give("init", "own", "--target", "chat", "--url", url, "--json").document
    assert "server.py" not in made["files"]
    assert not any("server.py" in command for command in made["commands"])
    assert tomllib.loads((project.folder / "own" / "order.toml").read_text())["target"]["url"] == url
    assert "server.py" not in (project.folder / "own" / "README.md").read_text()
    assert "set model and api_key" in project.give("init", "mine", "--target", "chat", "--url", url).out
    assert project.give("init", "no", "--target", "python", "--url", url).status == 2
    assert project.give("init", "no", "--target", "http", "--url", "models").status == 2
    assert not (project.folder / "no").exists()


def test_every_kind_that_is_offered_has_a_project() -> None:
    folders = {one.name for one in (resources.files("tallystick.cli") / "projects").iterdir() if one.is_dir()}
    assert folders == {*KINDS, "all"}
    assert (Path(starting.__file__).parent / "projects" / "python" / "target.py.txt").is_file()
