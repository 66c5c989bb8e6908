"""Leaving contents out of a snapshot: of a kind, of planned observations that are not chosen, or text that fits.

The population stays whole: every planned observation is in the snapshot with its attempts, its outcomes and its
history; what is left out is what was asked, answered, said and judged. Digests stay as well, so that somebody who has
the contents can show that they are the same. Where text that must not leave stands in a place that cannot be left out
(an id, a state, a digest), the export is refused and names the place.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from .artifacts import get
from .canonical import canonical_text, digest_of_bytes
from .errors import UsageError
from .ledger import Reader
from .snapshot_format import RedactionEntry

__all__ = ["LEFT_OUT", "RULES", "Redaction", "Rule", "read_rules"]

LEFT_OUT: Final = "[left out]"
"""What stands in the place of text; JSON texts have it as a string, objects as a key."""

_SEARCHED_MAX: Final = 16 << 20
_OBJECT: Final = canonical_text({LEFT_OUT: True})
_VALUE: Final = canonical_text(LEFT_OUT)

Places: TypeAlias = Mapping[str, Mapping[str, "str | None"]]

# What takes the place of a value, by table and column.
_CASES: Final[Places] = {"cases": {"input": _VALUE, "expected": _VALUE, "metadata": _OBJECT}}
_REQUESTS: Final[Places] = {
    "calls": {"head": _OBJECT, "payload": None, "payload_artifact": None},
    "sessions": {"message": _VALUE},
    "turns": {"message": _VALUE},
}
_ANSWERS: Final[Places] = {
    "observations": {"answer": _VALUE, "answer_artifact": None, "evidence": _OBJECT},
    "turns": {"answer": _VALUE, "answer_artifact": None, "evidence": _OBJECT, "checkpoint_artifact": None},
    "sessions": {"checkpoint_artifact": None},
    "dispatches": {"raw": None, "raw_artifact": None, "usage": _OBJECT},
}
_MESSAGES: Final[Places] = {
    "attempts": {"message": LEFT_OUT},
    "dispatches": {"message": LEFT_OUT},
    "settlements": {"reason": LEFT_OUT},
    "budget_amendments": {"reason": LEFT_OUT},
    "leases": {"reason": LEFT_OUT},
}
_JUDGMENTS: Final[Places] = {"judgments": {"explanation": LEFT_OUT, "raw": LEFT_OUT}}

RULES: Final[dict[str, Places]] = {
    "cases": _CASES,
    "requests": _REQUESTS,
    "answers": _ANSWERS,
    "messages": _MESSAGES,
    "judgments": _JUDGMENTS,
}
"""Kinds of contents that a rule may name; ``text:REGEX`` is the other form of a rule."""

_EVERYTHING: Final = (_CASES, _REQUESTS, _ANSWERS, _MESSAGES, _JUDGMENTS)
_EVENT_TEXTS: Final = ("message", "by", "differences", "facts", "settings", "name", "judges", "variants", "prices")
_IN_WORDS: Final = frozenset(
    {"budget.amended", "budget.bound_amended", "device.cleared", "device.quarantined", "dispatch.settled",
     "lease.revoked", "run.adopted", "run.cancelled", "run.stop_asked"}
)  # fmt: skip
"""Events whose ``reason`` is what somebody said; that of all others is a word of a vocabulary."""
_MASKED: Final = {
    **{table: frozenset(places) for table, places in _CASES.items()},
    "runs": frozenset({"name", "work_order", "identity", "settings", "stop_reason"}),
    "variants": frozenset({"target"}),
    "evaluations": frozenset({"document", "settings", "name"}),
    "evaluation_judges": frozenset({"identity", "requirement", "name"}),
    "qualifications": frozenset({"document"}),
    "provisions": frozenset({"labels", "handle", "reason"}),
    "calls": frozenset({"head"}),
    "sessions": frozenset({"message"}),
    "turns": frozenset({"message", "answer", "evidence"}),
    "observations": frozenset({"answer", "evidence"}),
    "attempts": frozenset({"message"}),
    "dispatches": frozenset({"message", "usage"}),
    "settlements": frozenset({"reason", "made_by"}),
    "budget_amendments": frozenset({"reason", "made_by"}),
    "leases": frozenset({"reason"}),
    "judgments": frozenset({"explanation", "raw"}),
}
"""Where text that fits is replaced; bytes that hold some are left out whole."""


@attrs.frozen
class Rule:
    """What is to be left out: kinds of contents by their places, or text that fits."""

    name: str
    places: Sequence[Places] = ()
    pattern: re.Pattern[str] | None = None


def read_rules(rules: Sequence[str]) -> tuple[Rule, ...]:
    """The rules as they are written: a kind of contents, or ``text:REGEX``; raises UsageError."""
    found = []
    for text in rules:
        if text in RULES:
            found.append(Rule(text, (RULES[text],)))
        elif text.startswith("text:") and len(text) > len("text:"):
            try:
                # The expression itself may tell what must not leave.
                name = f"text:{digest_of_bytes(text.encode())[:23]}"
                found.append(Rule(name, pattern=re.compile(text[len("text:") :])))
            except re.error as problem:
                raise UsageError(f"the rule {text} is no regular expression ({problem})", "correct it") from problem
        else:
            raise UsageError(f"there is no rule {text}", f"name one of {', '.join(RULES)}, or text:REGEX")
    return tuple(found)


class Redaction:
    """What is left out of one run's rows, and how often; used by one export.

    ``chosen`` are the slots whose contents travel, ``cases`` their cases, None: all. ``artifacts`` gathers the digests
    that the rows still refer to.
    """

    def __init__(
        self,
        reader: Reader,
        rules: Sequence[Rule],
        *,
        slots: str = "",
        chosen: frozenset[int] | None = None,
        cases: frozenset[int] = frozenset(),
    ) -> None:
        self._reader = reader
        self._rules = [rule for rule in rules if rule.pattern is None]
        self._patterns = [rule for rule in rules if rule.pattern is not None]
        self._slots, self._chosen, self._cases = slots, chosen, cases
        self._texts: Counter[str] = Counter()
        self._events: Counter[str] = Counter()
        self._calls_left_out: set[str] = set()
        self._fits: dict[tuple[str, str], bool] = {}
        self.artifacts: set[str] = set()

    @property
    def names(self) -> list[str]:
        """The requests, as they are kept with the run."""
        slots = [f"slots:{self._slots}"] if self._chosen is not None else []
        return [*slots, *(rule.name for rule in (*self._rules, *self._patterns))]

    def entries(self) -> list[RedactionEntry]:
        """What each request changed."""
        return [RedactionEntry(rule=name, texts=self._texts[name], events=self._events[name]) for name in self.names]

    def row(self, table: str, row: dict[str, Any]) -> dict[str, Any]:
        """The row as it may leave; raises UsageError where text must not leave and cannot be left out."""
        if table == "events":
            row = self._event(row)
        elif self._is_of_others(table, row):
            row = self._replaced(f"slots:{self._slots}", table, row, _EVERYTHING)
        for rule in self._rules:
            row = self._replaced(rule.name, table, row, rule.places)
        for rule in self._patterns:
            row = self._masked(rule, table, row)
        if table == "runs":
            before = [] if row["left_out"] is None else json.loads(row["left_out"])
            row = {**row, "left_out": canonical_text(sorted({*before, *self.names}))}
        self.artifacts.update(value for name, value in row.items() if name.endswith("_artifact") and value is not None)
        return row

    def _is_of_others(self, table: str, row: dict[str, Any]) -> bool:
        if self._chosen is None:
            return False
        if table == "cases":
            return row["case_no"] not in self._cases
        if table in ("dispatches", "settlements"):
            return row["call_id"] in self._calls_left_out
        is_other = row.get("slot_no") is not None and row["slot_no"] not in self._chosen
        if table == "calls" and is_other:
            self._calls_left_out.add(row["call_id"])
        return is_other

    def _replaced(self, rule: str, table: str, row: dict[str, Any], places: Sequence[Places]) -> dict[str, Any]:
        found = {name: value for one in places for name, value in one.get(table, {}).items()}
        changed = {name: value for name, value in found.items() if row[name] not in (None, "") and row[name] != value}
        if "answer_artifact" in changed:
            changed["answer"] = _VALUE
        elif "answer" in changed and row["answer"] is None:
            del changed["answer"]
        self._texts[rule] += len(changed)
        return {**row, **changed}

    def _event(self, row: dict[str, Any]) -> dict[str, Any]:
        body = json.loads(row["body"])
        said = [name for name in ("message", "reason") if body.get(name) and _is_text(row["kind"], name)]
        is_other = self._chosen is not None and "slot" in body and body["slot"] not in self._chosen
        wanted = [f"slots:{self._slots}"] * is_other + [rule.name for rule in self._rules if rule.name == "messages"]
        if not said or not wanted:
            return row
        self._events[wanted[0]] += 1
        return {**row, "body": _marked({**body, **dict.fromkeys(said, LEFT_OUT)})}

    def _masked(self, rule: Rule, table: str, row: dict[str, Any]) -> dict[str, Any]:
        assert rule.pattern is not None
        changed: dict[str, Any] = {}
        for name, value in row.items():
            if table == "events" and name == "body":
                changed.update(self._masked_body(rule, row))
            elif type(value) is bytes and name != "hash":
                if rule.pattern.search(_as_text(value)):
                    changed[name] = None
            elif name.endswith("_artifact") and value is not None:
                if self._artifact_fits(rule, value):
                    changed[name] = None
            elif type(value) is str:
                masked = _mask(rule.pattern, value) if name in _MASKED.get(table, ()) else value
                if masked != value:
                    changed[name] = masked
                elif rule.pattern.search(value):
                    raise _cannot(rule, f"{table}.{name} ({value[:40]!r})")
        if changed.get("answer_artifact", "") is None:
            changed["answer"] = _VALUE
        self._texts[rule.name] += len(changed) if table != "events" else 0
        return {**row, **changed}

    def _masked_body(self, rule: Rule, row: dict[str, Any]) -> dict[str, Any]:
        assert rule.pattern is not None
        body = json.loads(row["body"])
        changed = {}
        for name, value in body.items():
            masked = _mask_value(rule.pattern, value)
            if masked == value:
                continue
            if not _is_text(row["kind"], name):
                raise _cannot(rule, f"event {row['event_no']} of the run, {name}")
            changed[name] = masked
        if not changed:
            return {}
        self._events[rule.name] += 1
        return {"body": _marked({**body, **changed})}

    def _artifact_fits(self, rule: Rule, digest: str) -> bool:
        assert rule.pattern is not None
        known = self._fits.get((rule.name, digest))
        if known is None:
            size = self._reader.row("SELECT size FROM artifacts WHERE digest = ?", (digest,))[0]
            # What is too large to be searched does not leave.
            known = size > _SEARCHED_MAX or rule.pattern.search(_as_text(get(self._reader, digest))) is not None
            self._fits[rule.name, digest] = known
        return known


def _is_text(kind: str, name: str) -> bool:
    return name in _EVENT_TEXTS or (name == "reason" and kind in _IN_WORDS)


def _marked(body: dict[str, Any]) -> str:
    return canonical_text({**body, "left_out": True})


def _mask(pattern: re.Pattern[str], text: str) -> str:
    """Every match replaced; within JSON in its strings, so that escapes hide nothing and it stays JSON."""
    try:
        value = json.loads(text)
    except ValueError:
        return pattern.sub(LEFT_OUT, text)
    masked = _mask_value(pattern, value)
    return text if masked == value else canonical_text(masked)


def _mask_value(pattern: re.Pattern[str], value: Any) -> Any:
    if isinstance(value, str):
        return pattern.sub(LEFT_OUT, value)
    if isinstance(value, dict):
        return {pattern.sub(LEFT_OUT, key): _mask_value(pattern, inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_mask_value(pattern, inner) for inner in value]
    return value


def _as_text(data: bytes) -> str:
    """Bytes to be searched: as JSON with its escapes undone where they are JSON."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        return text + "\n" + json.dumps(json.loads(text), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _cannot(rule: Rule, place: str) -> UsageError:
    return UsageError(
        f"text that fits {rule.pattern and rule.pattern.pattern!r} stands in {place}, where nothing can be left out",
        "make the expression narrower; nothing was written",
    )
