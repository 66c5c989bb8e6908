"""What the tables of a work order are made of: keys with a meaning and a class, and names."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

__all__ = ["KeyClass", "Name", "Table", "a_name", "key"]

NAME_CHARACTERS_MAX: Final = 200


class KeyClass(StrEnum):
    IDENTITY = "identity"  # what an answer depends on: never changes under a run
    LIMIT = "limit"  # how much may be done: a change is a recorded amendment
    THROUGHPUT = "throughput"  # how fast and how: changes freely
    EVALUATION = "evaluation"  # what a verdict depends on: a change is a new evaluation
    FORM = "form"  # says how the work order is written


def key(default: Any, key_class: KeyClass, meaning: str, *, form: str = "", **rules: Any) -> Any:
    # ``form`` says what is wanted where the type alone does not.
    extra: dict[str, Any] = {"class": key_class.value, "form": form}
    return Field(default, description=meaning, json_schema_extra=extra, **rules)


def a_name(text: str) -> str:
    """The text, if it can be a name; raises ValueError."""
    if not text or len(text) > NAME_CHARACTERS_MAX or text != text.strip() or not text.isprintable():
        raise ValueError(f"a name has 1 to {NAME_CHARACTERS_MAX} printable characters, and no space at its ends")
    return text


Name = Annotated[str, AfterValidator(a_name)]


class Table(BaseModel):
    """What all tables share: no unknown key, no conversion between types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
