"""Values that come from the environment by name, and are kept out of everything that is stored, logged or shown."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Final

import attrs
from pydantic import Field

from ..ledger.canonical import JsonValue
from ..ledger.errors import SecretMissing
from ..runner.protocols import Missing, Outcome, Usage
from .tables import Table

__all__ = ["MASK", "Redactor", "SecretTable", "environment_redactor", "header_value", "secret_value"]

MASK: Final = "***"
_LENGTH_MIN: Final = 4  # shorter values would be found everywhere
_TELLING: Final = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)


class SecretTable(Table):
    """``{ env = "API_KEY", prefix = "Bearer " }``: the value is read when a run begins, and stored nowhere."""

    env: str = Field(description="Name of the environment variable.")
    prefix: str = Field("", description="What is put before its value.")
    suffix: str = Field("", description="What is put behind its value.")


def secret_value(secret: SecretTable, *, place: str, environment: Mapping[str, str] | None = None) -> str:
    """The variable's value with prefix and suffix; raises SecretMissing where it is not set or empty."""
    value = (os.environ if environment is None else environment).get(secret.env)
    if not value:
        raise SecretMissing(
            f"{place}: the environment variable {secret.env} is not set",
            f"Set it, for example: export {secret.env}=...",
            variable=secret.env,
        )
    return f"{secret.prefix}{value}{secret.suffix}"


def header_value(secret: SecretTable, *, place: str) -> bytes:
    """The secret as a header's value; raises SecretMissing where it cannot be one, without saying what it is."""
    value = secret_value(secret, place=place).strip()
    if any(mark in value for mark in "\r\n\0"):
        raise SecretMissing(
            f"{place}: the environment variable {secret.env} holds a line break, which no header can",
            "Set it to the key alone",
            variable=secret.env,
        )
    return value.encode()


@attrs.frozen
class Redactor:
    """Replaces known secrets by a mask, in the form that they have and in the form that JSON gives them."""

    _texts: tuple[str, ...]
    _bytes: tuple[bytes, ...]

    @classmethod
    def of(cls, values: Iterable[str]) -> Redactor:
        """Knows the values, also without white space around them, as which they are sent and come back.

        Those of fewer than four characters are left out, because they are found everywhere.
        """
        known = {form for value in values for form in (value, value.strip()) if len(form) >= _LENGTH_MIN}
        forms = {form for value in known for form in (value, json.dumps(value)[1:-1])}
        texts = tuple(sorted(forms, key=lambda text: (-len(text), text)))
        return cls(texts, tuple(text.encode("utf-8", "surrogateescape") for text in texts))

    def text(self, text: str) -> str:
        """The text without any of the secrets."""
        for secret in self._texts:
            if secret in text:
                text = text.replace(secret, MASK)
        return text

    def without_tail(self, data: bytes) -> bytes:
        """The bytes without any of the secrets, and without the beginning of one where they break off."""
        data = self.bytes(data)
        for secret in self._bytes:
            for length in range(min(len(secret), len(data)), _LENGTH_MIN - 1, -1):
                if data.endswith(secret[:length]):
                    return data[:-length] + MASK.encode()
        return data

    def bytes(self, data: bytes) -> bytes:
        """The bytes without any of the secrets; the same object where there is none in them."""
        for secret in self._bytes:
            if secret in data:
                data = data.replace(secret, MASK.encode())
        return data

    def clean(self, data: bytearray) -> None:
        """Take the secrets out of the bytes in place."""
        for secret in self._bytes:
            if secret in data:
                data[:] = data.replace(secret, MASK.encode())

    def value(self, value: JsonValue) -> JsonValue:
        """The JSON value without any of the secrets in its texts; the same object where there is none."""
        found: JsonValue
        match value:
            case str():
                return self.text(value)
            case list():
                found = [self.value(item) for item in value]
            case dict():
                found = {self.text(name): self.value(item) for name, item in value.items()}
            case _:
                return value
        return found if found != value else value

    def outcome(self, outcome: Outcome) -> Outcome:
        """The outcome without any of the secrets in whatever is stored or shown of it."""
        if not self._texts:
            return outcome
        answer = outcome.answer if isinstance(outcome.answer, Missing) else self.value(outcome.answer)
        evidence = {self.text(name): self.value(item) for name, item in outcome.evidence.items()}
        changed = answer != outcome.answer or evidence != dict(outcome.evidence)
        raw = None if outcome.raw is None else self.bytes(outcome.raw)
        if changed and raw == outcome.raw:
            raw = None  # it holds the secret in escapes, of which JSON has too many to look for each
        usage = None if outcome.usage is None else self._usage(outcome.usage)
        return attrs.evolve(
            outcome, message=self.text(outcome.message), answer=answer, evidence=evidence, usage=usage, raw=raw,
            raw_cut=outcome.raw_cut or (raw is None and outcome.raw is not None),
        )  # fmt: skip

    def _usage(self, usage: Usage) -> Usage:
        raw = usage.raw if isinstance(usage.raw, Missing) else self.value(usage.raw)
        return attrs.evolve(usage, raw=raw, problems=tuple(map(self.text, usage.problems)))


def environment_redactor() -> Redactor:
    """Knows the value of every environment variable whose name tells of a key, token, secret or password."""
    return Redactor.of(value for name, value in os.environ.items() if _TELLING.search(name))
