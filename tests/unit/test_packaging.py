"""The package list, the disk, the links, the wheel and what the tracked files give away."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from tallystick.adapters import registry

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("adapters", "ledger", "migrations", "runner")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS: dict[str, Any] = PROJECT["tool"]["setuptools"]
DISTRIBUTIONS = {"jsonpath": "python-jsonpath"}


def _packages_on_disk() -> dict[str, str]:
    """Package name -> folder, as they stand at the root; the links in ``tallystick/`` are not followed."""
    found = {"tallystick": "tallystick"}
    for top in (ROOT / "tallystick", *(ROOT / name for name in FOLDERS)):
        prefix = () if top.name == "tallystick" else ("tallystick",)
        for folder in (top, *_plain_folders(top)):
            if any(folder.glob("*.py")):
                parts = folder.relative_to(ROOT).parts
                found[".".join((*prefix, *parts))] = "/".join(parts)
    return found


def _plain_folders(top: Path) -> Iterator[Path]:
    for child in sorted(top.iterdir()):
        if child.is_dir() and not child.is_symlink() and child.name != "__pycache__":
            yield child
            yield from _plain_folders(child)


def _modules_on_disk() -> set[str]:
    return {
        f"{package.replace('.', '/')}/{module.name}"
        for package, folder in _packages_on_disk().items()
        for module in (ROOT / folder).glob("*.py")
    }


def _tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    names = (name for name in listed.stdout.decode().split("\0") if name)
    return [path for path in (ROOT / name for name in names) if path.is_file() and not path.is_symlink()]


def test_every_package_on_disk_is_in_the_package_list() -> None:
    assert sorted(SETUPTOOLS["packages"]) == sorted(_packages_on_disk())


def test_the_package_list_is_sorted_and_has_no_package_twice() -> None:
    assert SETUPTOOLS["packages"] == sorted(set(SETUPTOOLS["packages"]))


def test_package_dir_says_where_each_package_stands() -> None:
    assert SETUPTOOLS["package-dir"] == _packages_on_disk()


def test_every_package_has_an_init_module() -> None:
    missing = [folder for folder in _packages_on_disk().values() if not (ROOT / folder / "__init__.py").is_file()]
    assert missing == []


def test_the_links_are_relative_and_are_the_four_folders_and_no_more() -> None:
    links = {path.name: str(path.readlink()) for path in (ROOT / "tallystick").iterdir() if path.is_symlink()}
    assert links == {name: f"../{name}" for name in FOLDERS}


def test_inside_the_folders_imports_of_the_project_are_relative() -> None:
    absolute = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_bytes()))
        if (isinstance(node, ast.ImportFrom) and node.level == 0 and _is_ours(node.module or ""))
        or (isinstance(node, ast.Import) and any(_is_ours(alias.name) for alias in node.names))
    ]
    assert absolute == []


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in {"tallystick", *FOLDERS}


def test_every_third_party_import_is_a_declared_dependency() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    # What a user can ask for by name; imported only by who asked for it.
    asked_for = [spec for name in ("html", "httpx2", "pandas", "parquet") for spec in extras[name]]
    specs = [*PROJECT["project"]["dependencies"], *asked_for]
    declared = {re.split(r"[^\w.-]", spec, maxsplit=1)[0].lower() for spec in specs}
    undeclared = {
        f"{name} in {path}"
        for path, name in _imported_top_levels()
        if name not in sys.stdlib_module_names and DISTRIBUTIONS.get(name, name).lower() not in declared
    }
    assert undeclared == set()


def _imported_top_levels() -> Iterator[tuple[str, str]]:
    for folder in _packages_on_disk().values():
        for path in (ROOT / folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_bytes())):
                names: list[str] = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    names = [node.module or ""]
                for name in names:
                    if not _is_ours(name):
                        yield str(path.relative_to(ROOT)), name.partition(".")[0]


def _entry_points() -> list[tuple[str, str]]:
    groups = {"console_scripts": PROJECT["project"]["scripts"], **PROJECT["project"]["entry-points"]}
    return [(f"{group}:{name}", value) for group, names in groups.items() for name, value in names.items()]


@pytest.mark.parametrize("value", [pytest.param(value, id=name) for name, value in _entry_points()])
def test_entry_point_names_something_that_can_be_called(value: str) -> None:
    module, _, attribute = value.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    assert callable(found)


def test_registry_of_a_checkout_knows_the_same_adapters_as_the_entry_points() -> None:
    built_in = {
        group: {kind: f"tallystick.adapters.{place}" for kind, place in kinds.items()}
        for group, kinds in registry._BUILT_IN.items()
    }
    assert built_in == PROJECT["project"]["entry-points"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy, so that nothing is left in the checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("tallystick", "tests", "examples", "docs", *FOLDERS):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, copy / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(copy / "dist"), str(copy)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return zipfile.ZipFile(next((copy / "dist").glob("*.whl")))


def test_wheel_holds_every_module_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    shipped = {name for name in wheel.namelist() if name.endswith(".py")}
    assert shipped == _modules_on_disk()


def test_wheel_is_marked_as_typed_and_carries_its_licence(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "tallystick/py.typed" in names
    projects = {str(path.relative_to(ROOT)) for path in (ROOT / "tallystick/cli/projects").rglob("*.*")}
    assert {name for name in names if "/projects/" in name} == projects
    assert any(PurePosixPath(name).name == "LICENSE" for name in names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"tallystick"}


def test_no_tracked_file_names_a_package_index_or_a_folder_of_somebodys_machine() -> None:
    registry_hosts = "|".join(re.escape(".".join(parts)) for parts in (("pypi", "org"), ("pythonhosted", "org")))
    home_folders = r"(?<![\w.])/(?:home|Users|root|work|opt|mnt)/\w"
    forbidden = re.compile(f"{registry_hosts}|{home_folders}".encode())
    found = [
        f"{path.relative_to(ROOT)}: {match.group().decode()}"
        for path in _tracked_files()
        for match in forbidden.finditer(path.read_bytes())
    ]
    assert found == []


@pytest.mark.parametrize("name", ["requirements-dev.txt", "requirements-bench.txt"])
def test_pinned_requirements_have_hashes_and_no_option(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    requirements = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert len(requirements) > 20
    for line in requirements:
        assert re.match(r"[\w.-]+==[\w.]+ .*--hash=sha256:[0-9a-f]{64}", line), line
        assert set(re.findall(r"--\w+", line)) == {"--hash"}


def test_pinned_requirements_cover_every_dependency_and_agree() -> None:
    pinned = {name: _pins(name) for name in ("requirements-dev.txt", "requirements-bench.txt")}
    extras: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
    for file, extra in (("requirements-dev.txt", "dev"), ("requirements-bench.txt", "bench")):
        wanted = {re.split(r"[^\w.-]", spec)[0].lower() for spec in PROJECT["project"]["dependencies"] + extras[extra]}
        assert wanted <= pinned[file].keys(), f"run `make pins`: {file}"
    dev, bench = pinned.values()
    assert {name: (dev[name], bench[name]) for name in dev.keys() & bench.keys() if dev[name] != bench[name]} == {}


def _pins(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))
