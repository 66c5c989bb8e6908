"""Targets that are programs: one start for each dispatch, the request on standard input, the answer on standard output.

A program is started from an argument list, never by a shell, in a session of its own under a guard that ends all of it
at the deadline, when a call is cancelled, and when the coordinator dies.
"""

from __future__ import annotations

import base64
import errno
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import attrs
from pydantic import Field, model_validator

from ..ledger.canonical import JsonValue, digest_of_bytes
from ..ledger.errors import TargetNotFound, WorkOrderInvalid
from ..ledger.states import DispatchState, IfUnknown
from ..runner.protocols import Dispatching, Outcome, Prepared, QueryAnswer, QueryState, SlotView
from .bodies import read_body_rules
from .errors import CaseUnfit
from .outcomes import one_line
from .priced_target import PRICING_KEYS, PricedTable, PricedTarget
from .process_run import Ended, Run, Runs
from .secrets import Redactor, SecretTable, secret_value
from .tables import read_table
from .templates import TextTemplate, TurnNeeds, read_json_template, read_text_template

__all__ = ["ProcessTable", "ProcessTarget", "from_work_order"]

_PASSED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "USER", "LOGNAME")
_REQUEST: Final[Mapping[str, str]] = {"id": "{{case.id}}", "input": "{{input}}"}
_TURN_REQUEST: Final[Mapping[str, str]] = {
    **_REQUEST, "message": "{{message}}", "history": "{{history}}", "turn": "{{turn}}", "session": "{{session}}",
}  # fmt: skip
_NOT_IDENTITY: Final = frozenset(
    {"output_bytes_max", "grace_seconds", "if_unknown", "key_valid_seconds", *PRICING_KEYS}
)
_RAW_MAX: Final = 64 * 1024


class ProcessTable(PricedTable):
    """The table of a target of kind ``process``."""

    argv: list[str] = Field(min_length=1, description="The program and its arguments, with placeholders; no shell.")
    cwd: str = Field(".", description="The program's folder, relative to the work order's.")
    json_body: Any = Field(None, alias="json", description="Template of the one line of JSON on standard input.")
    text: str | None = Field(None, description="Template of the text on standard input, instead of json.")
    input: Literal["json", "text", "none"] | None = Field(None, description="What stands on standard input.")
    output: Literal["json", "text", "bytes"] = Field("json", description="How standard output is read.")
    env: dict[str, str | SecretTable] = Field({}, description="Environment: text, or `{ env = NAME }` for a secret.")
    pass_env: list[str] = Field([], description="Variables that are passed on beside PATH, HOME and the language's.")
    refused_exits: list[int] = Field([], description="Exit statuses that say: not done.")
    output_bytes_max: int = Field(8 * 1024 * 1024, ge=1, le=2**30, description="Bound of standard output.")
    grace_seconds: float = Field(2.0, ge=0, le=60, description="Between SIGTERM and SIGKILL.")
    if_unknown: IfUnknown = Field(IfUnknown.KEEP, strict=False, description="What may follow an unknown outcome.")
    key_valid_seconds: float | None = Field(None, gt=0, description="How long the program honours a request id.")
    version: str | None = Field(None, description="Stands for the program's files in the run's identity.")

    @model_validator(mode="after")
    def _is_of_one_mind(self) -> ProcessTable:
        has_json = "json_body" in self.model_fields_set
        if has_json and self.text is not None:
            raise ValueError("json and text both make the input; give one")
        if (has_json and self.input in {"text", "none"}) or (self.text is not None and self.input in {"json", "none"}):
            raise ValueError(f'input = "{self.input}" does not go with the template that is given')
        if self.output != "json" and "answer" in self.model_fields_set and self.answer != "text":
            raise ValueError(f'output = "{self.output}" has no places; leave answer out')
        if self.if_unknown is IfUnknown.QUERY:
            raise ValueError('a program cannot be asked by request id; if_unknown = "query" does not go here')
        return self

    @property
    def has_default_input(self) -> bool:
        """Whether standard input is our own line of JSON, which tells of a turn where there is one."""
        return self.input_kind == "json" and "json_body" not in self.model_fields_set

    @property
    def input_kind(self) -> str:
        return self.input or ("text" if self.text is not None else "json")


def from_work_order(table: Mapping[str, Any], *, folder: Path, place: str) -> ProcessTarget:
    """The target that a work order's table says; raises WorkOrderInvalid or TargetNotFound."""
    return ProcessTarget(read_table(ProcessTable, table, place=place), folder=folder, place=place)


class ProcessTarget(PricedTarget):
    """A program. Serves one event loop at a time, between `open` and `close`."""

    kind = "process"
    is_wire_visible = True

    def __init__(self, table: ProcessTable, *, folder: Path, place: str) -> None:
        PricedTarget.__init__(self, table, folder=folder, place=place)
        self.if_unknown = table.if_unknown
        self.key_valid_seconds = table.key_valid_seconds
        self._table = table
        self._place = place
        self._folder = (folder / table.cwd).resolve()
        self._argv = [read_text_template(text, place=f"{place}.argv[{at}]") for at, text in enumerate(table.argv)]
        if not self._argv[0].is_static:
            raise WorkOrderInvalid(f"{place}.argv[0]: a case cannot choose the program", place=f"{place}.argv[0]")
        self._stdin, needs = _stdin_of(table, place)
        for template in self._argv:
            needs |= template.turn_needs
        self.takes_turns, self.needs_turns = needs.hears or table.has_default_input, needs.needs
        answer = {"answer": "text"} if table.output != "json" else {}
        self._bodies = read_body_rules(table.model_copy(update=answer), place=place)
        self._environment: dict[str, str] = {}
        self._program = table.argv[0]
        self._redactor = Redactor.of(())
        self._runs = Runs()

    def identity(self) -> Mapping[str, JsonValue]:
        """The table, and the digests of the program's files in its folder, or the declared version in their place.

        A program that is found by PATH belongs to the machine and is not looked at.
        """
        told = self._table.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=set(_NOT_IDENTITY))
        if self._table.version is not None:
            return {"kind": self.kind, **told}
        named = {text: self._folder / text for text in self._table.argv if text and not Path(text).is_absolute()}
        files: dict[str, JsonValue] = {
            text: digest_of_bytes(path.read_bytes()) for text, path in named.items() if _is_plain_file(path)
        }
        return {"kind": self.kind, **told, "files": files}

    def prepare(self, slot: SlotView) -> Prepared:
        argv = [_argument(template, slot) for template in self._argv]
        return Prepared(payload=self._stdin(slot), head={"argv": argv, "cwd": self._table.cwd})

    async def open(self) -> None:
        self.check()

    def check(self) -> None:
        table, place = self._table, self._place
        passed = {name: os.environ[name] for name in (*_PASSED, *table.pass_env) if name in os.environ}
        secrets = {name: value for name, value in table.env.items() if isinstance(value, SecretTable)}
        values = {name: secret_value(secret, place=f"{place}.env.{name}") for name, secret in secrets.items()}
        plain = {name: value for name, value in table.env.items() if isinstance(value, str)}
        bare = [secret_value(SecretTable(env=secret.env), place=place) for secret in secrets.values()]
        self._redactor = Redactor.of(bare)
        self._environment = {**passed, **plain, **values}
        if not self._folder.is_dir():
            raise TargetNotFound(f"{place}.cwd: there is no folder {table.cwd}", "Correct it, or make the folder")
        self._program = self._found(table.argv[0])

    def _found(self, name: str) -> str:
        is_path = "/" in name
        path = str(self._folder / name) if is_path else name
        found = shutil.which(path, path=self._environment.get("PATH", os.defpath))
        if found is None:
            where = "in its folder" if is_path else "on PATH"
            what = f'{self._place}.argv: there is no program "{one_line(name)}" {where} that can be started'
            raise TargetNotFound(what, "Correct its name, or make it executable")
        return found

    async def dispatch(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:
        progress = dispatching.progress
        argv = prepared.head["argv"]
        assert isinstance(argv, list | tuple)
        run = Run(
            argv=[self._program, *(str(argument) for argument in argv[1:])],
            environment={**self._environment, **_request_environment(dispatching)},
            folder=str(self._folder),
            stdin=prepared.payload,
            output_bytes_max=self._table.output_bytes_max,
            grace_seconds=self._table.grace_seconds,
        )
        progress.bytes_sent = None  # a program that has been started may do anything
        try:
            ended = await self._runs.run(run, progress=progress, deadline_seconds=dispatching.deadline_seconds)
        except (OSError, ValueError) as fault:
            progress.bytes_sent = 0
            return _not_started(str(fault), getattr(fault, "errno", errno.EINVAL))
        finally:
            self._redactor.clean(progress.partial)
        if ended.errno is not None:
            progress.bytes_sent = 0
            return _not_started(os.strerror(ended.errno), ended.errno)
        outcome = self._outcome(ended, bytes(progress.partial), dispatching.deadline_seconds)
        return self._redactor.outcome(self.priced(outcome))

    def _outcome(self, ended: Ended, output: bytes, deadline_seconds: float) -> Outcome:
        errors = self._redactor.bytes(bytes(ended.error_tail)).decode("utf-8", "replace")
        if ended.is_too_large:
            told = f"more than {self._table.output_bytes_max:,} bytes on standard output"
            return _failed("output.too_large", told, output, errors)
        if ended.is_overdue:
            return _unknown("deadline", f"no end within {deadline_seconds:g} s; it has been ended", output)
        last = one_line(errors.strip().rpartition("\n")[2], length_max=200)
        if ended.signal_number is not None:
            return _failed("process.signal", f"ended by {_signal_name(ended.signal_number)}: {last}", output, errors)
        if ended.exit_status is None:
            return _unknown("process.guard_lost", "the guard of the program was killed", output)
        if ended.exit_status != 0:
            told = f"exit status {ended.exit_status}: {last}" if last else f"exit status {ended.exit_status}"
            failed = _failed("process.exit", told, output, errors)
            is_refusal = ended.exit_status in self._table.refused_exits
            state = DispatchState.REFUSED if is_refusal else DispatchState.FAILED
            usage = self._bodies.usage_of(output)
            return attrs.evolve(failed, state=state, status=ended.exit_status, usage=usage)
        return self._answer(output)

    def _answer(self, output: bytes) -> Outcome:
        if self._table.output == "bytes":
            answer = base64.b64encode(output).decode("ascii")
            return Outcome(state=DispatchState.ANSWERED, answer=answer, raw=output, status=0)
        body = output if self._table.output == "json" else output.removesuffix(b"\n").removesuffix(b"\r")
        outcome = self._bodies.outcome(body, told="exit status 0")
        is_answer = outcome.state is DispatchState.ANSWERED
        raw = output if is_answer else output[:_RAW_MAX]
        return attrs.evolve(outcome, raw=raw, raw_cut=len(raw) < len(output), status=0)

    async def query(self, request_id: str, prepared: Prepared) -> QueryAnswer:  # noqa: ARG002 - nobody is there to ask
        return QueryAnswer(QueryState.NO_PROOF, message="a program cannot be asked by request id")

    async def close(self) -> None:
        await self._runs.close()


def _stdin_of(table: ProcessTable, place: str) -> tuple[Callable[[SlotView], bytes], TurnNeeds]:
    match table.input_kind:
        case "none":
            return lambda slot: b"", TurnNeeds()
        case "text":
            text = read_text_template(table.text if table.text is not None else "{{input}}", place=f"{place}.text")
            return lambda slot: text.render(slot).encode("utf-8", "surrogatepass"), text.turn_needs
    if table.has_default_input:
        plain, turn = (read_json_template(document, place=f"{place}.json") for document in (_REQUEST, _TURN_REQUEST))
        return lambda slot: (plain if slot.turn is None else turn).render(slot) + b"\n", TurnNeeds()
    document = read_json_template(table.json_body, place=f"{place}.json")
    return lambda slot: document.render(slot) + b"\n", document.turn_needs


def _argument(template: TextTemplate, slot: SlotView) -> str:
    text = template.render(slot)
    if "\0" in text:
        case_id = slot.case.id
        what = f'case "{one_line(case_id)}" has a NUL character, which no argument of a program can hold'
        raise CaseUnfit(what, "Send the value on standard input", case_id=case_id)
    return text


def _request_environment(dispatching: Dispatching) -> dict[str, str]:
    told = {"TALLYSTICK_REQUEST_ID": dispatching.request_id}
    if dispatching.fence is not None:
        told["TALLYSTICK_FENCE"] = str(dispatching.fence)
    return told


def _is_plain_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False  # an argument that is no file name at all


def _not_started(why: str, number: int) -> Outcome:
    told = one_line(f"the program could not be started ({why})")
    # What is too long for the machine stays too long however often it is tried.
    state = DispatchState.FAILED if number in {errno.E2BIG, errno.EINVAL} else DispatchState.REFUSED
    return Outcome(state=state, reason="process.not_started", message=told, bytes_sent=0, wire_sends=0)


def _failed(reason: str, message: str, output: bytes, errors: str) -> Outcome:
    return Outcome(
        state=DispatchState.FAILED,
        reason=reason,
        message=one_line(message.rstrip(": ")),
        raw=output[:_RAW_MAX],
        raw_cut=len(output) > _RAW_MAX or reason == "output.too_large",
        evidence={"stderr": errors} if errors else {},
    )


def _unknown(reason: str, message: str, output: bytes) -> Outcome:
    cut = bool(output)
    return Outcome(state=DispatchState.UNKNOWN, reason=reason, message=message, raw=output or None, raw_cut=cut)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
