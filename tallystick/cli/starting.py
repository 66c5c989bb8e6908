"""``init``: a small project that runs at once."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from ..ledger.errors import UsageError
from .output import write_json
from .screen import Tone
from .settings import Settings

__all__ = ["KINDS", "Initialised", "start_project"]

KINDS: Final = ("python", "http", "chat", "process")
_PORTS: Final = {"http": 8765, "chat": 8767}
_PATHS: Final = {"http": "/triage", "chat": "/v1/chat/completions"}
_TO_SET: Final = {
    "http": "json, answer and headers in order.toml to what your service wants",
    "chat": "model and api_key in order.toml, and its prices in prices.toml",
}
_NAME_MAX: Final = 60
_SHOWN: Final = 3
_MARK: Final = re.compile("@(?:NAME|TITLE|ARG|URL|PORT|SERVE)@")


class Initialised(BaseModel):
    """What ``init`` says: the files that it has written, and what to type next."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["tallystick.init/1"] = "tallystick.init/1"
    folder: str
    name: str
    target: str
    files: list[str]
    commands: list[str]


def start_project(settings: Settings, folder: Path, *, target: str, url: str | None) -> int:
    """Write the project of that kind into an empty folder, and say how to run it."""
    if url is not None:
        _refuse_no_url(target, url)
    name = _name_of(folder)
    _refuse_taken(folder)
    files = _files(target, name, url)
    try:
        _write(folder, files)
    except OSError as problem:
        raise UsageError(
            f"{folder} cannot be written to ({problem.strerror})", "name a folder that can be, or one that is not there"
        ) from problem
    made = Initialised(
        folder=str(folder), name=name, target=target, files=sorted(files),
        commands=_commands(folder, has_server="server.py" in files, ledger=settings.ledger),
    )  # fmt: skip
    if settings.json:
        write_json(made)
        return 0
    screen = settings.screen()
    screen.line(f"{made.folder}: {', '.join(made.files)}", tone=Tone.STRONG)
    if url is not None:
        screen.line(f"before the first run, set {_TO_SET[target]}")
    screen.line("next:")
    for command in made.commands:
        screen.line(f"  {command}")
    return 0


def _refuse_no_url(target: str, url: str) -> None:
    if target not in _PORTS:
        raise UsageError(f"a {target} target has no URL", "leave --url out, or say --target http or --target chat")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"{url} is no URL of a service", "write it whole: --url https://host/path")


def _name_of(folder: Path) -> str:
    """The project's name: that of its folder, as far as it can be one."""
    shown = "".join(letter if letter.isprintable() else " " for letter in folder.absolute().name)
    return shown.strip()[:_NAME_MAX].strip() or "evaluation"


def _refuse_taken(folder: Path) -> None:
    """Raise UsageError unless the folder is empty, or not there; names with a dot before them are in nobody's way."""
    try:
        found = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return
    except OSError as problem:
        raise UsageError(f"{folder} is no folder to write to ({problem.strerror})", "name another") from problem
    if found:
        more = f" and {len(found) - _SHOWN} more" if found[_SHOWN:] else ""
        raise UsageError(
            f"{folder} is not empty: {', '.join(found[:_SHOWN])}{more}",
            "name a folder that is not there yet, as in `tallystick init evaluation`",
        )


def _files(target: str, name: str, url: str | None) -> dict[str, str]:
    """By name what is written. Templates of programs end with ``.txt``, so that no tool takes them for ours."""
    port = _PORTS.get(target, 0)
    here = f"http://127.0.0.1:{port}{_PATHS.get(target, '')}"
    serve = (
        ""
        if url is not None
        else "    python3 server.py &                    # stands in for what you want to measure\n"
    )
    values = {
        "@NAME@": json.dumps(name, ensure_ascii=False), "@TITLE@": name, "@ARG@": shlex.quote(name),
        "@URL@": json.dumps(url or here),
        "@PORT@": str(port), "@SERVE@": serve,
    }  # fmt: skip
    found: dict[str, str] = {}
    for template in (*_templates("all"), *_templates(target)):
        # In one pass: a folder may be called as a mark is.
        text = _MARK.sub(lambda mark: values[mark[0]], template.read_text(encoding="utf-8"))
        found[template.name.removesuffix(".txt")] = text
    if url is not None:
        found.pop("server.py", None)
    return found


def _templates(kind: str) -> list[Traversable]:
    return [one for one in (resources.files("tallystick.cli") / "projects" / kind).iterdir() if one.is_file()]


def _write(folder: Path, files: dict[str, str]) -> None:
    """All of them or none; what is there already is never replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    try:
        for name, text in files.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                written.append(folder / name)
                file.write(text)
    except OSError:
        for path in written:
            with contextlib.suppress(OSError):
                path.unlink()
        raise


def _commands(folder: Path, *, has_server: bool, ledger: Path | None) -> list[str]:
    """What is typed next; a ledger that was named is named wholly, since another folder is gone to first."""
    ledger_option = "" if ledger is None else f" --ledger {shlex.quote(str(ledger.absolute()))}"
    return [
        *([] if folder.absolute() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]),
        *(["python3 server.py &"] if has_server else []),
        f"tallystick run order.toml{ledger_option}",
        f"tallystick report{ledger_option}",
    ]
