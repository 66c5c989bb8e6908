"""The example package, installed from its own folder: found, listed, used, and another run with another version."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from .shown import ROOT

EXAMPLE = ROOT / "examples" / "adapter-package"


@attrs.frozen
class Site:
    """A folder that packages are installed into, and the example's folder with its work order."""

    packages: Path
    project: Path

    def install(self, version: str) -> None:
        """As `pip install FOLDER` does, without network."""
        project = self.project / "pyproject.toml"
        project.write_text(project.read_text().replace('version = "1.0.0"', f'version = "{version}"'))
        shutil.rmtree(self.packages, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps",
                   "--no-build-isolation", "--no-index", "--target", str(self.packages), str(self.project)]  # fmt: skip
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr

    def tallystick(self, *arguments: str, status: int = 0) -> Any:
        # No empty part in it: that would be the project's folder, where the package can be imported uninstalled.
        paths = [str(self.packages), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        ended = subprocess.run(
            [sys.executable, "-m", "tallystick", *arguments, "--json", "--ledger", str(self.packages.parent / "l.db")],
            cwd=self.project, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert ended.returncode == status, ended.stdout + ended.stderr
        return json.loads(ended.stdout)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "*.db*"))
    return Site(tmp_path / "packages", project)


def test_the_example_package_is_installed_listed_and_used_and_its_version_is_part_of_the_run(site: Site) -> None:
    site.install("1.0.0")
    broken = site.packages / "broken-0.1.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0.1\n")
    (broken / "entry_points.txt").write_text("[tallystick.targets]\nbroken = no_such_module:made\n")

    listed = {one["kind"]: one for one in site.tallystick("adapters")["adapters"]}
    assert listed["glossary"] == {
        "adapter": "target", "kind": "glossary", "package": "tallystick-glossary", "version": "1.0.0",
        "entry_point": "tallystick_glossary.target:from_work_order", "fault": None,
    }  # fmt: skip
    assert (listed["word_accuracy"]["version"], listed["word_accuracy"]["fault"]) == ("1.0.0", None)
    assert "No module named 'no_such_module'" in listed["broken"]["fault"]

    before = site.tallystick("run", "order.toml", "--limit", "1", status=75)
    site.install("1.1.0")
    refused = site.tallystick("resume", status=4)
    assert 'variants.default.target.adapter_package.version: "1.0.0" -> "1.1.0"' in refused["what"]

    outlook = site.tallystick("run", "order.toml", "--dry-run", "--new")
    assert outlook["variants"][0]["package"] == "tallystick-glossary 1.1.0"
    after = site.tallystick("run", "order.toml", "--new", status=3)
    assert after["population"]["selected"] == 2
    assert (after["run"] != before["run"], after["totals"]["dispatches"]) == (True, 3)
