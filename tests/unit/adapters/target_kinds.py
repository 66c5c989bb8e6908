"""One kind of target each, with a counter beside it, and how its behaviour is asked for in a case."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Protocol

from tallystick.adapters.atlas_target import AtlasTable, AtlasTarget
from tallystick.adapters.line_target import LineTable, LineTarget
from tallystick.adapters.registry import target_from_work_order
from tallystick.adapters.tables import read_table
from tallystick.ledger.canonical import JsonValue, canonical_text
from tallystick.ledger.states import IfUnknown
from tallystick.runner.protocols import Case, Target

from ...fixtures.atlas_handle import AtlasDevice
from .device_makers import FakeTenure, Instrument
from .makers import FIXTURES, Service, make_case, read_lines

__all__ = ["AtlasKind", "ChatKind", "HttpKind", "Kind", "LineKind", "ProcessKind", "PythonKind"]


class Kind(Protocol):
    """One kind of target with a counter beside it, and how its behaviour is asked for in a case."""

    name: str
    sends_bytes: bool  # whether what is received can be compared with the prepared bytes
    sends_request_id: bool
    gives_retry_after: bool
    fences: tuple[int | None, int | None]  # what is received of fence 41, and of none
    if_unknown: IfUnknown  # the default

    def target(self, **options: Any) -> Target: ...
    def unreachable(self) -> Target | None: ...
    def lines(self) -> list[dict[str, Any]]: ...
    def answering(self, value: JsonValue) -> Case: ...
    def refusing(self) -> Case | None: ...
    def failing(self) -> Case: ...
    def hanging(self) -> Case: ...


class Common:
    sends_bytes = True
    sends_request_id = True
    gives_retry_after = True
    fences: tuple[int | None, int | None] = (41, None)
    if_unknown = IfUnknown.KEEP


class HttpKind(Common):
    name = "http"

    def __init__(self, service: Service, folder: Path) -> None:
        self.service = service
        self.folder = folder

    def target(self, **options: Any) -> Target:
        table: dict[str, Any] = {
            "url": f"{self.service.url}/ask",
            "json": {"input": "{{input}}", "behave": "{{metadata.behave}}"},
            "answer": "$.answer",
            "usage": {"tokens_in": "$.usage.tokens_in", "tokens_out": "$.usage.tokens_out"},
        }
        return target_from_work_order("http", {**table, **options}, folder=self.folder, place="target")

    def unreachable(self) -> Target:
        return self.target(url="http://127.0.0.1:1/")

    def lines(self) -> list[dict[str, Any]]:
        return self.service.lines()

    def answering(self, value: JsonValue) -> Case:
        return make_case("asked", behave={"answer": value})

    def refusing(self) -> Case:
        return make_case(behave={"status": 429, "retry_after": 7, "body": {"error": "busy"}})

    def failing(self) -> Case:
        return make_case(behave={"status": 500, "body": {"error": "broken", "usage": {"tokens_in": 7}}})

    def hanging(self) -> Case:
        return make_case(behave={"wait": "for ever"})


class ChatKind(HttpKind):
    name = "chat"
    if_unknown = IfUnknown.REPEAT

    def target(self, **options: Any) -> Target:
        table: dict[str, Any] = {
            "url": f"{self.service.url}/v1/chat/completions",
            "model": "small",
            "system": "{{metadata.behave}}",
            "message": "{{input}}",
            "answer": "json",
        }
        return target_from_work_order("chat", {**table, **options}, folder=self.folder, place="target")

    def answering(self, value: JsonValue) -> Case:
        return make_case("asked", behave={"reply": canonical_text(value)})

    def failing(self) -> Case:
        return make_case(behave={"status": 500, "body": {"error": "broken", "usage": {"prompt_tokens": 7}}})


class ProcessKind(Common):
    name = "process"
    gives_retry_after = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "starts.jsonl"

    def target(self, **options: Any) -> Target:
        table: dict[str, Any] = {
            "argv": [sys.executable, str(FIXTURES / "counting_program.py")],
            "answer": "$.answer",
            "usage": {"tokens_in": "$.usage.tokens_in", "tokens_out": "$.usage.tokens_out"},
            "env": {"COUNTER_LOG": str(self.log)},
            "refused_exits": [75],
            "grace_seconds": 0.1,
        }
        return target_from_work_order("process", {**table, **options}, folder=self.folder, place="target")

    def unreachable(self) -> Target:
        # It is there when the target is opened, and cannot be started: what it is to be run by is missing.
        program = self.folder / "broken"
        program.write_text("#!/nowhere/interpreter\n", encoding="utf-8")
        program.chmod(0o755)
        return self.target(argv=["./broken"])

    def lines(self) -> list[dict[str, Any]]:
        return read_lines(self.log)

    def answering(self, value: JsonValue) -> Case:
        return make_case({"answer": value})

    def refusing(self) -> Case:
        return make_case({"exit": 75, "error": "busy"})

    def failing(self) -> Case:
        return make_case({"exit": 3, "error": "broken", "print": '{"usage": {"tokens_in": 7}}'})

    def hanging(self) -> Case:
        return make_case({"hang": True, "stubborn": True})


class PythonKind(Common):
    sends_bytes = False

    def __init__(self, folder: Path, function: str) -> None:
        self.name = f"python, {function}"
        self.folder = folder
        self.function = function
        self.log = folder / "calls.jsonl"

    def target(self, **options: Any) -> Target:
        table = {"file": str(FIXTURES / "counting_target.py"), "function": self.function}
        return target_from_work_order("python", {**table, **options}, folder=self.folder, place="target")

    def unreachable(self) -> None:
        return None

    def lines(self) -> list[dict[str, Any]]:
        return read_lines(self.log)

    def answering(self, value: JsonValue) -> Case:
        return make_case({"answer": value})

    def refusing(self) -> Case:
        return make_case({"refuse": 7})

    def failing(self) -> Case:
        return make_case({"fail": "broken"})

    def hanging(self) -> Case:
        return make_case({"hang": True})


class HeldAtlas(AtlasTarget):
    """Taken over as soon as it is open."""

    async def open(self) -> None:
        await super().open()
        if self.is_there:
            await self.take_over(FakeTenure(2))
        else:
            self._tenure = FakeTenure(2)

    is_there = True


class AtlasKind(Common):
    name = "atlas"
    fences: tuple[int | None, int | None] = (41, 42)
    if_unknown = IfUnknown.QUERY

    def __init__(self, device: AtlasDevice, folder: Path) -> None:
        self.device = device
        self.folder = folder

    def target(self, **options: Any) -> HeldAtlas:
        table = {"url": self.device.url, "serial": "SN-1", "payload": "{{input}}", "drain_seconds": 0.05, **options}
        return HeldAtlas(read_table(AtlasTable, table, place="target"), folder=self.folder, place="target")

    def unreachable(self) -> Target:
        target = self.target(url="http://127.0.0.1:1")
        target.is_there = False
        return target

    def lines(self) -> list[dict[str, Any]]:
        return self.device.lines(role="submit")

    def answering(self, value: JsonValue) -> Case:
        return make_case({"answer": value, "behave": {"usage": {"tokens_in": 7, "tokens_out": 3}}})

    def refusing(self) -> Case:
        return make_case({"behave": {"refuse": 7}})

    def failing(self) -> Case:
        return make_case({"behave": {"fail": "broken", "usage": {"tokens_in": 7}}})

    def hanging(self) -> Case:
        return make_case({"behave": {"hang": True}})


class HeldLine(LineTarget):
    """Taken over as soon as it is open."""

    async def open(self) -> None:
        await super().open()
        if self.is_there:
            await self.take_over(FakeTenure())
        else:
            self._tenure = FakeTenure()

    is_there = True


class LineKind(Common):
    name = "line"
    sends_request_id = False
    gives_retry_after = False
    fences: tuple[int | None, int | None] = (None, None)

    def __init__(self, instrument: Instrument, folder: Path) -> None:
        self.instrument = instrument

    def target(self, **options: Any) -> HeldLine:
        table = {
            "address": self.instrument.address,
            "serial": "SN-7",
            "payload": "ASK {{input}}",
            "output": "json",
            "answer": "$.answer",
            "usage": {"tokens_in": "$.usage.tokens_in", "tokens_out": "$.usage.tokens_out"},
            "error": {"path": "$.error", "refused": False},
            "echo": "ECHO {{nonce}}",
            "reconnect": True,
            **options,
        }
        return HeldLine(read_table(LineTable, table, place="target"), place="target")

    def unreachable(self) -> Target:
        target = self.target(address="127.0.0.1:1")
        target.is_there = False
        return target

    def lines(self) -> list[dict[str, Any]]:
        found = [line for line in self.instrument.lines() if line["line"].startswith("ASK")]
        return [{**line, "fence": None, "request_id": None} for line in found]

    def answering(self, value: JsonValue) -> Case:
        return make_case({"answer": {"answer": value, "usage": {"tokens_in": 7, "tokens_out": 3}}})

    def refusing(self) -> None:
        return None

    def failing(self) -> Case:
        return make_case({"answer": {"error": "broken", "usage": {"tokens_in": 7}}})

    def hanging(self) -> Case:
        return make_case({"behave": {"hold": "for ever"}})
