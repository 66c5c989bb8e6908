"""`tallystick init` as a stranger gives it: each kind is made, run as its README says, and forked."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .quick_shell import quick_environment
from .shown import run_shell


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def stand_in(folder: Path) -> Iterator[None]:
    """The project's own server, where it has one, on a port that is free."""
    if not (folder / "server.py").exists():
        yield
        return
    port = free_port()
    order = folder / "order.toml"
    (told,) = [line for line in order.read_text().splitlines() if line.startswith("url =")]
    given = told.rpartition(":")[2].partition("/")[0]
    order.write_text(order.read_text().replace(f":{given}/", f":{port}/"))
    assert given in (folder / "server.py").read_text(), "the work order and the stand-in agree"
    command = [sys.executable, str(folder / "server.py"), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            assert server.stdout.readline().strip().endswith(f":{port}")
            yield
        finally:
            server.terminate()


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    with quick_environment(tmp_path) as made:
        yield made


@pytest.mark.parametrize("kind", ["python", "process", "http", "chat"])
def test_a_new_project_runs_at_once(kind: str, tmp_path: Path, environment: dict[str, str]) -> None:
    made = run_shell(
        ["tallystick", "init", "first project", "--target", kind, "--json"], cwd=tmp_path, environment=environment
    )
    assert made.returncode == 0, made.stderr
    commands = json.loads(made.stdout)["commands"]
    folder = tmp_path / "first project"
    with stand_in(folder):
        told = [command for command in commands if not command.startswith("python3")]
        done = run_shell(" && ".join(told), cwd=tmp_path, environment=environment)
        assert done.returncode == 0, done.stderr
        assert "6 planned = 6 selected" in done.stdout
        assert "5 of 6" in done.stdout, "one is judged wrong, so that there is something to do"
        again = run_shell("tallystick run order.toml --json", cwd=folder, environment=environment)
    assert json.loads(again.stdout)["session"] == json.loads(again.stdout)["session"] | {"reused": 6, "dispatches": 0}


def test_what_its_readme_says_of_a_mended_target_is_so(tmp_path: Path, environment: dict[str, str]) -> None:
    run_shell("tallystick init mended && cd mended && tallystick run order.toml", cwd=tmp_path, environment=environment)
    folder = tmp_path / "mended"
    target = folder / "target.py"
    target.write_text(target.read_text().replace('"leaking")', '"leaking", "smoke")'))
    done = run_shell("tallystick fork mended --yes && tallystick resume mended", cwd=folder, environment=environment)
    assert done.returncode == 0, done.stderr
    assert "6 of 6" in done.stdout


def test_readmes_have_ten_lines_and_name_every_program_that_is_there(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    for kind in ("python", "process", "http", "chat"):
        made = run_shell(["tallystick", "init", kind, "--target", kind], cwd=tmp_path, environment=environment)
        assert made.returncode == 0, made.stderr
        readme = (tmp_path / kind / "README.md").read_text()
        assert len([line for line in readme.splitlines() if line.strip()]) <= 10
        assert [path.name for path in (tmp_path / kind).glob("*.py") if path.name not in readme] == []
        assert [path.name for path in (tmp_path / kind).iterdir() if "@" in path.read_text()] == []
