"""Where a body or a stream of events tells what it used: at paths of its own, or in the shape of a vendor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from pydantic import Field, model_validator

from ..ledger.canonical import JsonValue
from ..ledger.errors import WorkOrderInvalid
from ..runner.protocols import MISSING, Missing, Usage
from .paths import Path, read_path
from .tables import Table
from .usage import usage_of_counts
from .usage_shapes import UsageShape, later_usage, normalise, usage_object

__all__ = ["UsageRules", "UsageTable", "read_usage_rules"]


class UsageTable(Table):
    """Where the counts stand in the body: each at its path, or all in the shape of a vendor."""

    shape: UsageShape | None = Field(
        None,
        strict=False,
        description="The shape of the usage: `openai` (chat completions), `openai_responses`, `anthropic`, `plain`, or"
        " `auto`. It stands in `usage`, and is parted into classes of tokens. Instead of paths of tokens.",
    )
    tokens_in: str | None = Field(None, description="Path of the count of tokens that went in.")
    tokens_out: str | None = Field(None, description="Path of the count of tokens that came out.")
    cost_usd: str | None = Field(None, description="Path of the cost in US dollars, a number or a decimal text.")
    raw: str | None = Field(
        None,
        description="What is kept as reported, or has the shape; if absent, the counts' common parent, or `usage`.",
    )

    @model_validator(mode="after")
    def _is_of_one_mind(self) -> UsageTable:
        if self.shape is not None and (self.tokens_in is not None or self.tokens_out is not None):
            raise ValueError("shape and the paths of tokens both say where they stand; give one")
        return self


@attrs.frozen
class UsageRules:
    """How the usage of one target's bodies is read; false where it is not."""

    paths: Mapping[str, Path] = attrs.field(factory=dict)
    shape: UsageShape | None = None

    def __bool__(self) -> bool:
        return bool(self.paths) or self.shape is not None

    def in_document(self, document: JsonValue) -> Usage | None:
        """What one document tells; None where it is not looked at, or tells nothing of the shape."""
        if not self:
            return None
        if self.shape is not None:
            return self._with_cost(normalise(self._object(document), self.shape), document)
        found = {name: path.find(document) for name, path in self.paths.items()}
        raw = found.pop("raw", MISSING)
        return usage_of_counts(found, raw=raw)

    def in_events(self, documents: Sequence[JsonValue]) -> Usage | None:
        """What the events of a stream tell together, piece by piece; later counts stand for earlier ones."""
        if self.shape is not None:
            told: JsonValue | Missing = MISSING
            for document in documents:
                told = later_usage(told, self._object(document))
            return self._with_cost(normalise(told, self.shape), documents[-1] if documents else None)
        each = [usage for usage in map(self.in_document, documents) if usage is not None]
        reported = [usage for usage in each if not isinstance(usage.raw, Missing) and usage.raw is not None]
        merged: Usage | None = None
        for usage in reported:
            merged = usage if merged is None else _later(merged, usage)
        return merged if merged is not None else (each[-1] if each else None)

    def _object(self, document: JsonValue) -> JsonValue | Missing:
        return self.paths["raw"].find(document) if "raw" in self.paths else usage_object(document)

    def _with_cost(self, usage: Usage | None, document: JsonValue) -> Usage | None:
        """The cost that the endpoint itself says, where its path is given."""
        if usage is None or "cost_usd" not in self.paths:
            return usage
        told = usage_of_counts({"cost_usd": self.paths["cost_usd"].find(document)}, raw=MISSING)
        problems = (*usage.problems, *told.problems)
        return attrs.evolve(usage, cost_nanousd=told.cost_nanousd, problems=problems)


def read_usage_rules(table: UsageTable | None, place: str) -> UsageRules:
    """Compile the table; raises WorkOrderInvalid."""
    if table is None:
        return UsageRules()
    told = {name: text for name, text in table.model_dump(exclude={"shape"}).items() if text is not None}
    if not told and table.shape is None:
        remedy = "Name a shape, or tokens_in, tokens_out or cost_usd"
        raise WorkOrderInvalid(f"{place}: no path is given", remedy, place=place)
    if "raw" not in told and table.shape is None:
        told["raw"] = _parent(next(iter(told.values())))
    paths = {name: read_path(text, place=f"{place}.{name}") for name, text in told.items()}
    return UsageRules(paths, table.shape)


def _parent(path: str) -> str:
    """``$.usage`` for ``$.usage.input``, ``/usage`` for ``/usage/input``."""
    if path.startswith("/"):
        return path.rpartition("/")[0] or "$"
    parent = path.rpartition(".")[0]
    return parent if parent.startswith("$") and not parent.endswith(".") else "$"


def _later(earlier: Usage, later: Usage) -> Usage:
    """Counts are told piece by piece (what went in at the beginning, what came out at the end); later ones count."""
    return Usage(
        tokens_in=earlier.tokens_in if later.tokens_in is None else later.tokens_in,
        tokens_out=earlier.tokens_out if later.tokens_out is None else later.tokens_out,
        cost_nanousd=earlier.cost_nanousd if later.cost_nanousd is None else later.cost_nanousd,
        raw=later.raw,
        problems=(*earlier.problems, *later.problems),
    )
