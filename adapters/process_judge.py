"""Judges that are programs: one start for each judgment, JSON on standard input, one JSON object on standard output.

The input has ``input``, ``answer``, ``expected`` (where the case says it), ``metadata``, ``evidence`` and ``flags``.
The output is ``{"passed": true}``, ``{"score": 0.5}`` or ``{"no_verdict": "why"}``, with an ``explanation`` if there
is one. The program runs under the guard of `process_target`: all of it ends at the deadline and with the coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from ..ledger.canonical import JsonValue
from ..ledger.states import IfUnknown
from ..ledger.verdicts import NoVerdictReason
from ..runner.protocols import NoVerdict, Observed, Outcome
from .process_target import ProcessTable, ProcessTarget
from .secrets import SecretTable
from .tables import read_table
from .target_judge import CallingTable, TargetJudge, parts_of
from .verdict_parsing import JsonVerdicts

__all__ = ["ProcessJudge", "ProcessJudgeTable", "from_work_order", "process_judge"]

_SEES: Final = ("input", "answer", "expected", "metadata", "evidence", "flags")


class ProcessJudgeTable(CallingTable):
    """The table of a judge of kind ``process``."""

    name: str = Field("process", description="What it is called in reports.")
    argv: list[str] = Field(min_length=1, description="The program and its arguments; no shell.")
    cwd: str = Field(".", description="The program's folder, relative to the work order's.")
    env: dict[str, str | SecretTable] = Field({}, description="Environment: text, or `{ env = NAME }` for a secret.")
    pass_env: list[str] = Field([], description="Variables that are passed on beside PATH, HOME and the language's.")
    output_bytes_max: int = Field(256 * 1024, ge=1, le=2**24, description="Bound of standard output.")
    grace_seconds: float = Field(2.0, ge=0, le=60, description="Between SIGTERM and SIGKILL.")
    version: str | None = Field(None, description="Stands for the program's files in the judge's identity.")


def from_work_order(table: Mapping[str, Any], *, folder: Path, place: str) -> ProcessJudge:
    """The judge that a work order's table says; raises WorkOrderInvalid."""
    return ProcessJudge(read_table(ProcessJudgeTable, table, place=place), folder=folder, place=place)


def process_judge(argv: Sequence[str], *, folder: str | Path = "", **options: Any) -> ProcessJudge:
    """A program as a judge; the options are the keys of the table of a judge of kind ``process``."""
    return from_work_order({"argv": list(argv), **options}, folder=Path(folder), place="process_judge()")


class ProcessJudge(TargetJudge):
    """A program that judges."""

    def __init__(self, table: ProcessJudgeTable, *, folder: Path, place: str) -> None:
        inner = ProcessTable.model_validate({
            "argv": [text.replace("{{", '{{"{{"}}') for text in table.argv], "cwd": table.cwd, "json": "{{input}}",
            "output": "text", "env": dict(table.env), "pass_env": table.pass_env,
            "output_bytes_max": table.output_bytes_max, "grace_seconds": table.grace_seconds,
            "if_unknown": IfUnknown.KEEP, "version": table.version,
        })  # fmt: skip
        target = ProcessTarget(inner, folder=folder, place=place)
        parser = JsonVerdicts(table.scale, table.pass_at, may_abstain=True)
        super().__init__("process", table.name, table, target, parser, place=place)
        self._table = table
        self._program = target

    def identity(self) -> Mapping[str, JsonValue]:
        """What it is told and how it is read, and the digests of the program's files in its folder."""
        inner = self._program.identity()
        table = self._table
        return {
            "kind": self.kind, "argv": table.argv, "cwd": table.cwd, "pass_at": table.pass_at, "needs": table.needs,
            "env": inner.get("env", {}), "pass_env": table.pass_env, "parser": self.parser, "form": 1,
            **({"files": inner["files"]} if "files" in inner else {"version": table.version}),
        }  # fmt: skip

    def question(self, observed: Observed) -> JsonValue:
        return parts_of(observed, _SEES)

    def reply_of(self, outcome: Outcome) -> str | NoVerdict:
        if isinstance(outcome.answer, str):
            return outcome.answer
        return NoVerdict(NoVerdictReason.MALFORMED_VERDICT, "there is no output")
