"""The identity document of a run: what its answers depend on, frozen when the run is created.

Three sections. *identity* never changes under a run; a change of *limits* is a recorded amendment; *throughput* changes
freely. Judges are not in it: they have an identity of their own, because judging again is a new evaluation.

A new default of ours is never a change. Three rules hold that: keys that the work order left out are listed under
``defaulted``, and what is defaulted then and now is not compared; a key that a later version of this document adds is
entered in `ADDED` with what older documents meant; and a target leaves out of its ``identity()`` what stands at its
default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import attrs

from ..ledger.canonical import JsonValue, canonical_text, digest_of_value, printable
from ..ledger.errors import UsageError
from .budget_spec import UNITS, BudgetSpec
from .errors import IdentityNewer
from .price_use import PricesUsed
from .protocols import Judge, Target, User
from .work_order import ExecutionSpec, WorkOrder
from .work_order_conversation import ConversationSpec, conversation_limits
from .work_order_device import DEVICE_LIMITS, DEVICE_THROUGHPUT, DeviceSpec, device_table

__all__ = [
    "ADDED",
    "IDENTITY_VERSION",
    "Difference",
    "Section",
    "compare",
    "compare_asked",
    "dotted",
    "evaluation_document",
    "identity_digest",
    "identity_document",
]

IDENTITY_VERSION: Final = 1
_SHOWN_MAX: Final = 60
_READ_BY: Final = frozenset({"parser", "pass_at", "labels", "scale"})
_DIGEST: Final = re.compile(r'"sha256:[0-9a-f]{64}"')
_DIGEST_SHOWN: Final = 20  # the quote, sha256: and 12 digits
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


class Section(StrEnum):
    IDENTITY = "identity"  # a change refuses to go on
    LIMITS = "limits"  # a change is a recorded amendment
    THROUGHPUT = "throughput"  # a change is free


# Keys that a later version added to the document: in which version, and what documents before it meant.
ADDED: Final[Mapping[tuple[Section, str], tuple[int, JsonValue]]] = {}

_LIMITS: Final = ("deadline_seconds", "attempts_max", "dispatches_max", "retry", "solitary_deaths_max")
_THROUGHPUT: Final = (
    "concurrency",
    "rate_per_second",
    "grace_seconds",
    "backoff_first_seconds",
    "backoff_max_seconds",
)


@attrs.frozen
class Difference:
    """One key that is not what it was. ``then`` and ``now`` are JSON text, cut to what differs, or ``(absent)``."""

    section: Section
    keys: tuple[str, ...]
    then: str
    now: str

    @property
    def key(self) -> str:
        """The way to it with dots."""
        return dotted(self.keys)

    def __str__(self) -> str:
        return f"{self.key}: {self.then} -> {self.now}"


def identity_document(
    order: WorkOrder,
    targets: Mapping[str, Target],
    cases_digest: str,
    *,
    cases_count: int | None = None,
    user: User | None = None,
    prices: Iterable[PricesUsed] = (),
) -> dict[str, JsonValue]:
    """The document for a run of this work order on these targets (by variant) and cases (`CasesDigest.value`).

    Raises UsageError when a target's identity is not JSON.
    """
    cases: dict[str, JsonValue] = {"digest": cases_digest}
    if cases_count is not None:
        cases["count"] = cases_count
    identity: dict[str, JsonValue] = {
        "name": order.name,
        "cases": cases,
        "repetitions": order.repetitions,
        # What may follow an unknown outcome is a promise about every call of the run, and cannot change under it.
        "variants": {
            name: {"target": _identity_of(name, target), "if_unknown": target.if_unknown.value}
            for name, target in targets.items()
        },
    }
    execution, talk = order.execution, order.conversation
    if talk is not None:
        identity["conversation"] = _conversation(talk, user)
    defaulted: list[str] = [key for key in (*_LIMITS, *_THROUGHPUT) if key in execution.defaulted]
    defaulted += [f"device_{key}" for key in (*DEVICE_LIMITS, *DEVICE_THROUGHPUT) if key in order.device.defaulted]
    return {
        "identity_version": IDENTITY_VERSION,
        Section.IDENTITY.value: identity,
        Section.LIMITS.value: {
            **_values(execution, _LIMITS),
            **_device_values(order.device, DEVICE_LIMITS),
            **({} if talk is None else {"conversation": conversation_limits(talk)}),
            "budgets": _budgets(order.budgets),
            **({"prices": priced} if (priced := [one.to_json() for one in prices]) else {}),
        },
        Section.THROUGHPUT.value: {
            **_values(execution, _THROUGHPUT),
            **_device_values(order.device, DEVICE_THROUGHPUT),
        },
        "defaulted": list(defaulted),
    }


def identity_digest(document: Mapping[str, JsonValue]) -> str:
    """The digest of the identity section: runs with the same one are runs of the same work order."""
    return digest_of_value({"identity": document[Section.IDENTITY.value]})


def evaluation_document(judges: Iterable[Judge]) -> dict[str, JsonValue]:
    """What the verdicts of these judges depend on, by judge; its digest identifies the evaluation."""
    return {
        "evaluation_version": 1,
        "judges": {
            judge.name: {"kind": judge.kind, "scale": judge.scale and list(judge.scale), **judge.identity()}
            for judge in judges
        },
    }


def compare_asked(name: str, then: object, now: object) -> tuple[Difference, ...]:
    """Where a judge was asked something else; how its replies are read does not count."""

    def asked(identity: object) -> dict[str, Any]:
        assert isinstance(identity, Mapping)
        return {key: value for key, value in identity.items() if key not in _READ_BY}

    sides = (
        {"identity_version": IDENTITY_VERSION, Section.IDENTITY.value: {name: asked(side)}} for side in (then, now)
    )
    return compare(*sides)


def compare(
    stored: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    added: Mapping[tuple[Section, str], tuple[int, JsonValue]] = ADDED,
) -> tuple[Difference, ...]:
    """What is not as it was, in the order of sections and keys; nothing for what only our defaults changed.

    Raises IdentityNewer when the stored document was written by a newer version.
    """
    version = int(stored["identity_version"])
    if version > IDENTITY_VERSION:
        what = f"the run's identity has version {version}, and this tallystick knows versions up to {IDENTITY_VERSION}"
        raise IdentityNewer(what, "Use the version that made the run, or a newer one", version=version)
    then_default, now_default = frozenset(stored.get("defaulted", ())), frozenset(now.get("defaulted", ()))
    found: list[Difference] = []
    for section in Section:
        then, today = dict(stored.get(section.value, {})), dict(now.get(section.value, {}))
        for (where, key), (since, meant) in added.items():
            if where is section and since > version:
                then.setdefault(key, meant)
        if section is not Section.IDENTITY:
            for key in now_default:
                if key in then_default or key not in then:
                    then.pop(key, None), today.pop(key, None)
        found.extend(Difference(section, keys, *_shown(a, b)) for keys, a, b in _differing((), then, today))
    return tuple(found)


def _identity_of(variant: str, target: Target) -> dict[str, JsonValue]:
    return _json({**target.identity(), "kind": target.kind}, f"variants.{variant}.target")


def _json(identity: Mapping[str, JsonValue], place: str) -> dict[str, JsonValue]:
    try:
        canonical_text(identity)
    except (TypeError, ValueError) as cause:
        what = f"{place}: its identity is not JSON ({cause})"
        raise UsageError(what, "Let identity() return text, numbers, lists and dicts") from cause
    return dict(identity)


def _values(execution: ExecutionSpec, keys: Sequence[str]) -> dict[str, JsonValue]:
    values = {key: getattr(execution, key) for key in keys}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _conversation(talk: ConversationSpec, user: User | None) -> dict[str, JsonValue]:
    """What is said in it; without what stands at its default, so that a new default of ours changes no run."""
    usual = ConversationSpec()
    told: dict[str, JsonValue] = {"turns": talk.turns} if user is None else {"user": _json(user.identity(), "user")}
    if talk.turns_max != usual.turns_max:
        told["turns_max"] = talk.turns_max
    if talk.answer is not usual.answer:
        told["answer"] = talk.answer.value
    return told


def _device_values(device: DeviceSpec, keys: Sequence[str]) -> dict[str, JsonValue]:
    table = device_table(device)
    return {f"device_{key}": table[key] for key in keys}


def _budgets(specs: Iterable[BudgetSpec]) -> dict[str, JsonValue]:
    found: dict[str, Any] = {}
    for spec in specs:
        scope = found.setdefault(spec.scope_kind.value, {})
        scope = scope.setdefault(spec.scope_value, {}) if spec.scope_value else scope
        form, bound = UNITS[spec.unit], spec.bound_per_dispatch
        scope[form.key] = {"limit": form.show(spec.limit), "kind": spec.kind.value}
        if bound is not None:
            scope[form.key]["bound_per_dispatch"] = form.show(bound)
    return found


class _Absent:
    """The value of a key that is not there."""


_ABSENT: Final = _Absent()


def _differing(keys: tuple[str, ...], then: Any, now: Any) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """The leaves that differ. A table that is not there on one side is shown leaf by leaf all the same."""
    tables = [side for side in (then, now) if isinstance(side, Mapping)]
    if len(tables) == 2 or (tables and tables[0] and _ABSENT in (then, now)):
        left, right = ({} if side is _ABSENT else side for side in (then, now))
        for key in dict.fromkeys([*left, *right]):
            yield from _differing((*keys, key), left.get(key, _ABSENT), right.get(key, _ABSENT))
    elif _ABSENT in (then, now) or canonical_text(then) != canonical_text(now):
        # By canonical form, because 1 == 1.0 == True.
        yield keys, then, now


def dotted(keys: Sequence[str]) -> str:
    """The way to a key, in one line."""
    return ".".join(key if _BARE.fullmatch(key) else json.dumps(key) for key in keys)


def _shown(then: Any, now: Any) -> tuple[str, str]:
    """Both as text, cut so that the first character that differs is seen."""
    texts = ["(absent)" if side is _ABSENT else _text(side) for side in (then, now)]
    if all(_DIGEST.fullmatch(text) for text in texts) and texts[0][:_DIGEST_SHOWN] != texts[1][:_DIGEST_SHOWN]:
        return texts[0][:_DIGEST_SHOWN] + '…"', texts[1][:_DIGEST_SHOWN] + '…"'
    if max(len(text) for text in texts) <= _SHOWN_MAX:
        return texts[0], texts[1]
    same = next((at for at, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    start = max(0, same - _SHOWN_MAX // 3)
    return _cut(texts[0], start), _cut(texts[1], start)


def _cut(text: str, start: int) -> str:
    start = start if len(text) > _SHOWN_MAX else 0
    head, tail = "…" if start else "", "…" if len(text) > start + _SHOWN_MAX else ""
    return head + text[start : start + _SHOWN_MAX] + tail


def _text(value: Any) -> str:
    # One line: json writes the controls of ASCII as escapes, `printable` those beyond it.
    return printable(json.dumps(value, ensure_ascii=False, sort_keys=True))
