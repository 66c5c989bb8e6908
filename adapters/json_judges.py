"""Judges of JSON: `json_schema` holds the answer against a schema, `jsonpath` looks at one place in it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import jsonschema
import jsonschema.validators
from jsonschema.protocols import Validator
from pydantic import Field
from referencing import Registry
from referencing.exceptions import Unresolvable

from ..ledger.canonical import JsonValue, canonical_text, parse_json
from ..ledger.errors import WorkOrderInvalid
from ..ledger.verdicts import NoVerdictReason
from ..runner.protocols import Missing, NoVerdict, Verdict
from .bounded_regex import PatternTooSlow, compiled, is_found
from .outcomes import one_line
from .paths import read_path
from .rule_judges import RuleJudge, judge_factory, same_json, shown
from .tables import Table

__all__ = [
    "JsonPathTable",
    "JsonSchemaTable",
    "json_schema",
    "json_schema_from_work_order",
    "jsonpath",
    "jsonpath_from_work_order",
]

_DEFAULT: Final = jsonschema.Draft202012Validator
_TOLD_MAX: Final = 3
_HAS_REGEX: Final = re.compile(r"\b(match|search)\s*\(")
_PARSE: Final = "Whether an answer that is a text is read as JSON."


def json_schema(
    schema: Mapping[str, JsonValue] | None = None, *, name: str = "json_schema", parse: bool = False
) -> RuleJudge:
    """The answer is valid under the schema, or under the one that each case expects; with ``parse``, its text is.

    Draft 2020-12 where the schema names no other. References reach within the schema alone: nothing is fetched. Raises
    ValueError for a schema that is none.
    """
    if schema is not None:
        _validator(canonical_text(dict(schema)))

    def rule(answer: JsonValue, expected: JsonValue) -> Verdict | NoVerdict:
        try:
            validator = _validator(canonical_text(expected))
        except ValueError as fault:
            return NoVerdict(NoVerdictReason.EXPECTED_UNFIT, str(fault))
        document = _document(answer, parse=parse)
        if isinstance(document, Verdict):
            return document
        try:
            faults = [_told(fault) for fault, _ in zip(_faults(validator, document[0]), range(_TOLD_MAX), strict=False)]
        except PatternTooSlow as slow:
            return NoVerdict(NoVerdictReason.TIMEOUT, f"a pattern of the schema: {slow}")
        except (Unresolvable, RecursionError, ValueError) as fault:
            return NoVerdict(NoVerdictReason.EXPECTED_UNFIT, one_line(f"the schema cannot be used: {fault}"))
        hint = "; it is a text, which parse = true reads as JSON" if faults and isinstance(answer, str) else ""
        return Verdict(passed=not faults, explanation="; ".join(faults) + (hint if not parse else ""))

    value = None if schema is None else dict(schema)
    return RuleJudge("json_schema", name, rule, {"parse": parse}, value)


def jsonpath(
    path: str,
    value: JsonValue = None,
    *,
    name: str = "jsonpath",
    exists: bool | None = None,
    parse: bool = False,
) -> RuleJudge:
    """What stands at the path equals ``value``, or what each case expects; with ``exists``, it is there or is not.

    Raises ValueError for a path that is none, and for one with a regular expression, whose time could not be bounded.
    """
    if exists is not None and value is not None:
        raise ValueError("value and exists both say what is wanted; give one")
    if _HAS_REGEX.search(path):
        raise ValueError("a regular expression in a path has no bound; take it out, and use a regex judge")
    try:
        compiled_path = read_path(path, place="path")
    except WorkOrderInvalid as fault:
        raise ValueError(str(fault)) from fault

    def rule(answer: JsonValue, expected: JsonValue) -> Verdict:
        document = _document(answer, parse=parse)
        if isinstance(document, Verdict):
            return document
        there = compiled_path.find(document[0])
        is_there = not isinstance(there, Missing)
        if exists is not None and is_there is exists:
            return Verdict(passed=True)
        if isinstance(there, Missing):
            return Verdict(passed=False, explanation=f"there is nothing at {path}")
        if exists is not None:
            return Verdict(passed=False, explanation=f"there is {shown(there)} at {path}")
        passed = same_json(there, expected)
        return Verdict(passed=passed, explanation="" if passed else f"expected {shown(expected)}, got {shown(there)}")

    wanted: JsonValue = True if exists is not None else value  # what the case expects does not matter then
    return RuleJudge("jsonpath", name, rule, {"path": path, "exists": exists, "parse": parse}, wanted)


class JsonSchemaTable(Table):
    """The table of a judge of kind ``json_schema``."""

    name: str = Field("json_schema", description="What it is called in reports.")
    json_schema: dict[str, Any] | None = Field(
        None, alias="schema", description="The schema, instead of what the cases expect."
    )
    parse: bool = Field(False, description=_PARSE)


class JsonPathTable(Table):
    """The table of a judge of kind ``jsonpath``."""

    name: str = Field("jsonpath", description="What it is called in reports.")
    path: str = Field(description="JSONPath or JSON pointer of the place.")
    value: Any = Field(None, description="What has to stand there, instead of what the cases expect.")
    exists: bool | None = Field(None, description="Whether something has to stand there, whatever it is.")
    parse: bool = Field(False, description=_PARSE)


json_schema_from_work_order = judge_factory(JsonSchemaTable, json_schema, renamed={"json_schema": "schema"})
jsonpath_from_work_order = judge_factory(JsonPathTable, jsonpath)


def _document(answer: JsonValue, *, parse: bool) -> tuple[JsonValue] | Verdict:
    """The answer as JSON, in a tuple, because null is an answer; or a failed verdict."""
    if not parse or not isinstance(answer, str):
        return (answer,)
    try:
        return (parse_json(answer),)
    except ValueError as fault:
        return Verdict(passed=False, explanation=one_line(f"it is not JSON: {fault}"))


@functools.lru_cache(maxsize=256)
def _validator(schema_text: str) -> Validator:
    schema: Any = parse_json(schema_text)
    if not isinstance(schema, dict | bool):
        raise ValueError(f"{shown(schema)} is no JSON schema")
    kind = jsonschema.validators.validator_for(schema, default=_DEFAULT)
    try:
        kind.check_schema(schema)  # type: ignore[arg-type]  # true and false are schemas, too
    except (jsonschema.SchemaError, RecursionError) as fault:
        raise ValueError(one_line(f"no JSON schema: {getattr(fault, 'message', fault)}")) from None
    if _has_keys(schema, "patternProperties", "unevaluatedProperties"):
        raise ValueError("patternProperties with unevaluatedProperties has no bound; use additionalProperties")
    extend: Any = jsonschema.validators.extend  # its stubs have no types
    bounded = extend(kind, _BOUNDED)
    made: Validator = bounded(schema, registry=Registry())
    return made


def _faults(validator: Validator, document: JsonValue) -> Iterator[jsonschema.ValidationError]:
    yield from validator.iter_errors(document)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:  # noqa: ARG001
    if isinstance(instance, str) and not is_found(compiled(pattern), instance):
        yield jsonschema.ValidationError(f"{shown(instance)} does not match {shown(pattern)}")


def _pattern_properties(
    validator: Any,
    patterns: Any,
    instance: Any,
    schema: Any,  # noqa: ARG001
) -> Iterator[jsonschema.ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, inner in patterns.items():
        for name, value in instance.items():
            if is_found(compiled(pattern), name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, allowed: Any, instance: Any, schema: Any
) -> Iterator[jsonschema.ValidationError]:
    """The library's own searches with ``re``, which has no bound."""
    if not isinstance(instance, dict):
        return
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [
        name
        for name in instance
        if name not in named and not any(is_found(compiled(pattern), name) for pattern in patterns)
    ]
    if isinstance(allowed, dict):
        for name in extra:
            yield from validator.descend(instance[name], allowed, path=name)
    elif not allowed and extra:
        yield jsonschema.ValidationError(f"there may be nothing at {', '.join(shown(name) for name in extra[:3])}")


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:  # noqa: ARG001
    """The library's own compares every two: 3,000 objects took it half a minute."""
    if wanted and isinstance(instance, list) and len(set(map(_frozen, instance))) < len(instance):
        yield jsonschema.ValidationError(f"items of {shown(instance)} are equal")


def _frozen(value: JsonValue) -> Any:
    """The value as something hashable, equal where it is equal as JSON: 1 is 1.0, and true is neither."""
    if isinstance(value, Mapping):
        return ("object", frozenset((name, _frozen(one)) for name, one in value.items()))
    if isinstance(value, list | tuple):
        return ("array", tuple(map(_frozen, value)))
    return (isinstance(value, bool), value)


def _has_keys(schema: Any, *wanted: str) -> bool:
    found, left = set[str](), [schema]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            found |= one.keys()
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return found.issuperset(wanted)


_BOUNDED: Final = {
    "additionalProperties": _additional_properties, "pattern": _pattern, "patternProperties": _pattern_properties,
    "uniqueItems": _unique_items,
}  # fmt: skip


def _told(fault: jsonschema.ValidationError) -> str:
    where = "/".join(str(part) for part in fault.absolute_path)
    return one_line(f"{f'at /{where}: ' if where else ''}{fault.message}", length_max=160)
