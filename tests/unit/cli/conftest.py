from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.project import Project


@pytest.fixture
def project(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.delenv("TALLYSTICK_LEDGER", raising=False)
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, capfd)
