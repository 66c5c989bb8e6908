"""Whether texts and bytes are what their digests say: answers, requests, cases, judges, and what a run is.

Of a run that came without all of its contents, what was left out has the digest of what stood there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from .canonical import digest_of_bytes, digest_of_value, parse_json
from .evaluations import INLINE
from .findings import Finding, finding_of
from .ledger import Reader
from .stored_digests import digest_of_case, digest_of_cases, digest_of_evaluation, digest_of_key

__all__ = ["digests"]

_REBUILD: Final = "copy the file aside, restore the newest backup, and check the disk"
_CASES: Final = (
    "SELECT c.case_no, r.run_id, c.case_id, c.input, c.expected, c.metadata, c.digest FROM cases c"
    " JOIN runs r ON r.run_key = c.run_key AND r.left_out IS NULL AND r.state <> 'importing'"
)
_RUNS: Final = (
    "SELECT run_key, run_id, identity, identity_digest, work_order_digest FROM runs"
    " WHERE left_out IS NULL AND state NOT IN ('planning', 'importing')"
)
_EVALUATIONS: Final = (
    "SELECT e.run_key, r.run_id, e.evaluation_no, e.document, e.document_digest FROM evaluations e"
    " JOIN runs r ON r.run_key = e.run_key AND r.left_out IS NULL AND r.state <> 'importing'"
)
_JUDGES: Final = (
    "SELECT name, kind, identity, samples, identity_digest FROM evaluation_judges"
    " WHERE run_key = ? AND evaluation_no = ? ORDER BY judge_no"
)


def digests(reader: Reader) -> Iterator[Finding]:
    """One finding for each kind of text or bytes that is not what its digest says."""
    yield from finding_of("observation.digest", "answers are not what was observed", _answers(reader), _REBUILD)
    yield from finding_of("turn.digest", "answers of turns are not what was committed", _turns(reader), _REBUILD)
    yield from finding_of("call.digest", "requests are not what was sent", _requests(reader), _REBUILD)
    yield from finding_of("case.digest", "cases are not what was planned", _cases(reader), _REBUILD)
    yield from finding_of("run.digest", "runs are not what was planned", _runs(reader), _REBUILD)
    yield from finding_of(
        "evaluation.digest", "evaluations have other judges than they were made with", _evaluations(reader), _REBUILD
    )


def _answers(reader: Reader) -> Iterator[str]:
    for run_id, slot_no, attempt_no, answer, artifact, digest in reader.each(
        "SELECT r.run_id, o.slot_no, o.attempt_no, o.answer, o.answer_artifact, o.answer_digest FROM observations o"
        " JOIN runs r ON r.run_key = o.run_key"
        " WHERE r.left_out IS NULL OR instr(coalesce(o.answer, ''), '[left out]') = 0"
    ):
        if (artifact if answer is None else digest_of_bytes(answer.encode())) != digest:
            yield f"slot {slot_no} attempt {attempt_no} of run {run_id}"


def _turns(reader: Reader) -> Iterator[str]:
    for run_id, slot_no, attempt_no, turn, answer, artifact, digest in reader.each(
        "SELECT r.run_id, t.slot_no, t.attempt_no, t.turn, t.answer, t.answer_artifact, t.answer_digest FROM turns t"
        " JOIN runs r ON r.run_key = t.run_key"
        " WHERE r.left_out IS NULL OR instr(coalesce(t.answer, ''), '[left out]') = 0"
    ):
        if (artifact if answer is None else digest_of_bytes(answer.encode())) != digest:
            yield f"slot {slot_no} attempt {attempt_no} turn {turn} of run {run_id}"


def _requests(reader: Reader) -> Iterator[str]:
    for call_id, payload, artifact, digest in reader.each(
        "SELECT call_id, payload, payload_artifact, payload_digest FROM calls"
        " WHERE payload IS NOT NULL OR payload_artifact IS NOT NULL"
    ):
        if (artifact if payload is None else digest_of_bytes(payload)) != digest:
            yield f"call {call_id}"


def _cases(reader: Reader) -> Iterator[str]:
    for case_no, run_id, case_id, text, expected, metadata, digest in reader.each(_CASES):
        if digest_of_case(case_id, text, expected, metadata) == digest:
            continue
        if expected is not None or metadata != "{}" or digest_of_key(text) != digest:
            yield f"case {case_no} of run {run_id}"


def _runs(reader: Reader) -> Iterator[str]:
    for run_key, run_id, text, digest, work_order_digest in reader.each(_RUNS):
        identity = _parsed(text)
        if _digest(identity) != digest:
            yield f"run {run_id}: its identity"
        elif isinstance(identity, dict) and isinstance(planned := identity.get("identity"), dict):
            if _digest({"identity": planned}) != work_order_digest:
                yield f"run {run_id}: the identity of its work order"
            if _has_other_cases(reader, run_key, planned.get("cases")):
                yield f"run {run_id}: all of its cases"


def _has_other_cases(reader: Reader, run_key: int, said: Any) -> bool:
    """Whether a plan that names all of its cases at once has others; one that grows names none."""
    if not isinstance(said, dict) or not said.get("count"):
        return False
    found = reader.each("SELECT digest FROM cases WHERE run_key = ? ORDER BY case_no", (run_key,))
    return digest_of_cases(digest for (digest,) in found) != said.get("digest")


def _evaluations(reader: Reader) -> Iterator[str]:
    for run_key, run_id, number, document, digest in reader.each(_EVALUATIONS):
        judges = reader.rows(_JUDGES, (run_key, number))
        if any(_digest(_parsed(identity)) != said for _, _, identity, _, said in judges):
            yield f"evaluation {number} of run {run_id}: the identity of a judge"
        elif _digest_of(number, _parsed(document), judges) != digest:
            yield f"evaluation {number} of run {run_id}"


def _digest_of(number: int, document: Any, judges: list[tuple[Any, ...]]) -> str | None:
    """The digest that the evaluation must have; None where its document does not fit its judges."""
    if number == INLINE:
        told = [{"name": name, "kind": kind, "identity": _parsed(text)} for name, kind, text, _, _ in judges]
        return _digest(told) if document == told else None
    reparsed = document.get("reparsed") if isinstance(document, dict) else None
    named = {name: (_parsed(text), samples) for name, _, text, samples, _ in judges}
    if reparsed is not None and type(reparsed) is not str:
        return None
    try:
        return digest_of_evaluation(named, reparsed=reparsed)
    except ValueError:
        return None


def _digest(value: Any) -> str | None:
    try:
        return digest_of_value(value)
    except ValueError:  # no ledger keeps what is nested so deeply
        return None


_NONE: Final = "\ud800 no JSON"


def _parsed(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return _NONE
