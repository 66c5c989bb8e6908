"""The digests of what a run was planned with, made from the texts that the ledger stores: cases, judges, the identity.

Whoever plans a run makes them from values; canonical text is the same for the same value, so that both are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring_ascii
from typing import Final

from .canonical import JsonValue, digest_of_bytes, digest_of_value, unescaped_text

__all__ = ["digest_of_case", "digest_of_cases", "digest_of_evaluation", "digest_of_key"]

_CASES: Final = b"tallystick cases 1\n"


def digest_of_case(case_id: str, input_text: str, expected: str | None, metadata: str) -> str:
    """Of a case as its row has it: the id as `canonical.escaped_text` made it, the others canonical JSON texts."""
    before = "" if expected is None else f'"expected":{expected},'
    name = encode_basestring_ascii(unescaped_text(case_id))
    return digest_of_bytes(f'{{{before}"id":{name},"input":{input_text},"metadata":{metadata}}}'.encode())


def digest_of_key(meaning: str) -> str:
    """Of a case that is the key of a guarded script: what it stands for, and not how it is called."""
    return digest_of_bytes(meaning.encode())


def digest_of_cases(digests: Iterable[str]) -> str:
    """Of all cases of a run, from theirs in their order."""
    found = hashlib.sha256(_CASES)
    for digest in digests:
        found.update(digest.encode("ascii") + b"\n")
    return f"sha256:{found.hexdigest()}"


def digest_of_evaluation(judges: Mapping[str, tuple[JsonValue, int]], *, reparsed: str | None = None) -> str:
    """Of what the verdicts of an evaluation depend on: identity and samples of each judge, by name.

    ``reparsed`` is the id of the evaluation whose replies are read again.
    """
    depended: dict[str, JsonValue] = {"judges": {name: list(judge) for name, judge in judges.items()}}
    return digest_of_value(depended if reparsed is None else {**depended, "reparsed": reparsed})
