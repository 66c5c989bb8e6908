"""Judges that are Python functions.

A function asks for what it needs by the names of its parameters: ``answer``, ``expected``, ``input``, ``case``,
``metadata``, ``evidence``, ``context``, ``flags``, ``variant``, ``repetition``, ``observed``. ``answer`` is the plain
value, or an `Answer` where the parameter is annotated so. It returns a `Verdict`, a `NoVerdict`, a bool, or a number on
its declared scale; everything else is no verdict, and so is an exception.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, overload

from pydantic import Field

from ..ledger.canonical import JsonValue
from ..ledger.errors import TargetNotFound, WorkOrderInvalid
from ..ledger.verdicts import NoVerdictReason
from ..runner.judge_protocols import NEEDS, NEEDS_MEANING, is_known_need, lacking
from ..runner.protocols import MISSING, Missing, NoVerdict, Observed, Verdict
from .answers import Answer
from .callables import code_identity, find_object, is_async, name_of
from .outcomes import NotJson, as_json, one_line
from .tables import Table, nearest, read_table

__all__ = ["PythonJudge", "PythonJudgeTable", "from_work_order", "judge"]

_PARTS: Final[Mapping[str, Callable[[Observed], Any]]] = {
    "answer": lambda observed: observed.answer,
    "case": lambda observed: observed.case,
    "context": lambda observed: observed.evidence.get("context", MISSING),
    "retrieval": lambda observed: observed.evidence.get("retrieval", MISSING),
    "tool_calls": lambda observed: observed.evidence.get("tool_calls", MISSING),
    "evidence": lambda observed: observed.evidence,
    "expected": lambda observed: observed.case.expected,
    "flags": lambda observed: observed.flags,
    "input": lambda observed: observed.case.input,
    "metadata": lambda observed: observed.case.metadata,
    "observed": lambda observed: observed,
    "repetition": lambda observed: observed.repetition,
    "variant": lambda observed: observed.variant,
}


class PythonJudgeTable(Table):
    """The table of a judge of kind ``python``."""

    name: str | None = Field(None, description="What it is called in reports; `python` if absent.")
    function: str = Field(description="`module:name`, or a name in `file`.")
    file: str | None = Field(None, description="A Python file, relative to the work order's folder.")
    arguments: dict[str, Any] = Field({}, description="Passed to the function by name.")
    scale: tuple[float, float] | None = Field(None, strict=False, description="Lowest and highest score, if any.")
    needs: list[str] = Field([], description=NEEDS_MEANING)
    version: str | None = Field(None, description="Stands for the code in the judge's identity, instead of its digest.")


def from_work_order(table: Mapping[str, Any], *, folder: Path, place: str) -> PythonJudge:
    """The judge that a work order's table says; raises WorkOrderInvalid or TargetNotFound."""
    read = read_table(PythonJudgeTable, table, place=place)
    found, recorded = find_object(function=read.function, file=read.file, folder=folder, place=place)
    if not callable(found):
        raise TargetNotFound(f"{place}.function: {recorded} is not a function", "Name a function that judges")
    made = found if isinstance(found, PythonJudge) else PythonJudge(found, arguments=read.arguments, place=place)
    return made.evolve(
        name=read.name or made.name,
        needs=tuple(read.needs) or made.needs,
        scale=read.scale or made.scale,
        arguments={**made.arguments, **read.arguments},
        version=read.version or made.version,
        reference=recorded,
        place=place,
    )


@overload
def judge(function: Callable[..., Any], /) -> PythonJudge: ...
@overload
def judge(
    *,
    name: str | None = ...,
    needs: Sequence[str] = ...,
    scale: tuple[float, float] | None = ...,
    version: str | None = ...,
) -> Callable[[Callable[..., Any]], PythonJudge]: ...
def judge(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a judge of a function: ``@judge`` or ``@judge(needs=["context"], scale=(0, 1))``.

    ``needs`` names what must be there for a verdict (``expected``, ``context``, ``retrieval``, ``tool_calls``, or
    ``evidence.NAME``); where it is not, there is no verdict and the reason says so. ``version`` stands for the code in
    the judge's identity. The function may be async.
    """
    if function is None:
        return functools.partial(PythonJudge, **options)
    return PythonJudge(function, **options)


class PythonJudge:
    """A function as a judge; it can still be called as the function that it is."""

    kind = "python"

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        needs: Sequence[str] = (),
        scale: tuple[float, float] | None = None,
        version: str | None = None,
        arguments: Mapping[str, JsonValue] | None = None,
        reference: str | None = None,
        place: str | None = None,
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self.function = function
        self.reference = reference or name_of(function)
        self.name = name or str(getattr(function, "__name__", "judge"))
        self.version = version
        self.scale = None if scale is None else (float(scale[0]), float(scale[1]))
        self._place = place or self.reference
        try:
            self.arguments: Mapping[str, JsonValue] = {key: as_json(value) for key, value in (arguments or {}).items()}
        except NotJson as fault:
            raise WorkOrderInvalid(
                f"{self._place}: an argument has no JSON form ({fault})", place=self._place
            ) from fault
        self._parts, implied = _wanted_parts(function, self.arguments, self._place)
        self.needs = tuple(sorted({*needs, *implied}))
        self._refuse_unfit()

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.function(*args, **keywords)

    def __repr__(self) -> str:
        return f"<PythonJudge {self.name}>"

    def evolve(self, **changes: Any) -> PythonJudge:
        """The same judge with other options."""
        options: dict[str, Any] = {
            "name": self.name,
            "needs": self.needs,
            "scale": self.scale,
            "version": self.version,
            "arguments": self.arguments,
            "reference": self.reference,
        }
        return PythonJudge(self.function, **{**options, **changes})

    def _refuse_unfit(self) -> None:
        for need in self.needs:
            if not is_known_need(need):
                what = f'{self._place}: needs = "{need}" is not known'
                raise WorkOrderInvalid(what, nearest(need, NEEDS), place=self._place)
        if self.scale is not None and not (all(map(math.isfinite, self.scale)) and self.scale[0] < self.scale[1]):
            raise WorkOrderInvalid(f"{self._place}: a scale rises from one number to another", place=self._place)

    def identity(self) -> Mapping[str, JsonValue]:
        """The function, its options, and its code: a digest, or the declared version in its place."""
        code = code_identity(self.function) if self.version is None else {"version": self.version}
        return {
            "kind": self.kind,
            "function": self.reference,
            "arguments": self.arguments,
            "needs": list(self.needs),
            "scale": None if self.scale is None else list(self.scale),
            **code,
        }

    @property
    def is_async(self) -> bool:
        """Whether `judge` gives a coroutine, to be awaited on the loop, and not a verdict."""
        return is_async(self.function)

    def judge(self, observed: Observed) -> Any:
        """The function's verdict, checked; an exception becomes ``judge_error``."""
        lack = lacking(self.needs, observed)
        if self.is_async:
            return self._awaited(observed, lack)
        if lack is not None:
            return lack
        try:
            returned = self._called(observed)
        except Exception as raised:  # noqa: BLE001 - a user's function may raise anything
            return _judge_error(raised)
        return self._checked(returned)

    async def _awaited(self, observed: Observed, lack: NoVerdict | None) -> Verdict | NoVerdict:
        if lack is not None:
            return lack
        try:
            returned = await self._called(observed)
        except Exception as raised:  # noqa: BLE001 - a user's function may raise anything
            return _judge_error(raised)
        return self._checked(returned)

    def _called(self, observed: Observed) -> Any:
        parts = {name: part(observed) for name, part in self._parts.items()}
        given = {name: value for name, value in parts.items() if not isinstance(value, Missing)}
        return self.function(**given, **self.arguments)

    def _checked(self, returned: object) -> Verdict | NoVerdict:
        if isinstance(returned, NoVerdict):
            return returned
        verdict = returned if isinstance(returned, Verdict) else self._verdict_of(returned)
        if verdict is None:
            return _malformed(f"it returned {_told(returned)}")
        passed: object = verdict.passed  # a function may have put anything in
        if passed is None and verdict.score is None:
            return _malformed("neither passed nor a score")
        if not (passed is None or isinstance(passed, bool)):
            return _malformed(f"passed is {_told(passed)}")
        return verdict if verdict.score is None else self._on_scale(verdict, verdict.score)

    def _verdict_of(self, returned: object) -> Verdict | None:
        if isinstance(returned, bool):
            return Verdict(passed=returned)
        if isinstance(returned, int | float) and self.scale is not None:
            return Verdict(score=returned)
        return None

    def _on_scale(self, verdict: Verdict, score: object) -> Verdict | NoVerdict:
        if self.scale is None:
            return _malformed("a score without a declared scale")
        low, high = self.scale
        if isinstance(score, bool) or not isinstance(score, int | float) or not low <= score <= high:
            return _malformed(f"the score {_told(score)} is not on the scale {low:g} to {high:g}")
        return verdict


def _wanted_parts(
    function: Callable[..., Any], arguments: Mapping[str, JsonValue], place: str
) -> tuple[dict[str, Callable[[Observed], Any]], set[str]]:
    """How each parameter is filled, and which of `_NEEDS` follow from parameters without a default."""
    parts: dict[str, Callable[[Observed], Any]] = {}
    implied: set[str] = set()
    for name, parameter in inspect.signature(function).parameters.items():
        has_default = parameter.default is not inspect.Parameter.empty
        if name in arguments or parameter.kind in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}:
            continue
        if name in _PARTS:
            is_answer = name == "answer" and _is_answer(parameter.annotation)
            parts[name] = _whole_answer if is_answer else _PARTS[name]
            if name in NEEDS and not has_default:
                implied.add(name)
        elif not has_default:
            remedy = nearest(name, _PARTS)
            raise WorkOrderInvalid(f"{place}: a judge has no parameter {name}", remedy, place=place)
    return parts, implied


def _is_answer(annotation: object) -> bool:
    return annotation is Answer or (isinstance(annotation, str) and annotation.rpartition(".")[2] == "Answer")


def _whole_answer(observed: Observed) -> Answer:
    evidence = dict(observed.evidence)
    return Answer(
        observed.answer,
        context=evidence.pop("context", MISSING),
        tool_calls=evidence.pop("tool_calls", MISSING),  # type: ignore[arg-type]  # a list where an Answer said so
        evidence=evidence,
        flags=observed.flags,
    )


def _told(value: object) -> str:
    try:
        return one_line(repr(value), length_max=80)
    except Exception:  # noqa: BLE001 - a user's object may raise anything, and an integer may be too long to write down
        return f"a {type(value).__name__}"


def _judge_error(raised: Exception) -> NoVerdict:
    return NoVerdict(NoVerdictReason.JUDGE_ERROR, one_line(f"{type(raised).__name__}: {raised}"))


def _malformed(why: str) -> NoVerdict:
    return NoVerdict(NoVerdictReason.MALFORMED_VERDICT, why)
