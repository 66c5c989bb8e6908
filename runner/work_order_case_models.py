"""The table ``[cases]`` of a work order, as it is written, and the tables inside it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .work_order_keys import KeyClass, Name, Table, key

__all__ = ["CasesTable", "ColumnsTable", "SplitTable"]


class CasesTable(Table):
    file: Annotated[str, Field(min_length=1)] | None = key(
        None, KeyClass.IDENTITY, "The case file, relative to the work order's folder. Its content counts, not its name."
    )
    format: Literal["jsonl", "csv", "tsv", "parquet"] | None = key(
        None,
        KeyClass.FORM,
        "Form of the case file. Told from its suffix where absent: `.jsonl`, `.ndjson`, `.csv`, `.tsv`, `.parquet`,"
        " `.pq`.",
    )
    columns: dict[str, Any] | None = key(
        None, KeyClass.IDENTITY, "Which columns of a CSV or Parquet file make a case, where their names do not say it."
    )
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = key(
        None, KeyClass.FORM, "What parts the columns of a CSV file; a comma where absent, a tab in `.tsv`."
    )
    items: list[Any] | None = key(
        None, KeyClass.IDENTITY, "The cases themselves, as tables with the keys of a case file. Instead of `file`."
    )
    given: Literal[True] | None = key(
        None, KeyClass.FORM, "Written by tallystick into the ledger where the cases were given from Python."
    )
    where: dict[str, Any] | None = key(
        None,
        KeyClass.IDENTITY,
        "Only cases with these values in their metadata; a list names several values of which one is enough.",
        form="table of values",
    )
    split: dict[str, Any] | None = key(
        None,
        KeyClass.IDENTITY,
        "Only the cases of one part, such as test. Drawn by id or by a key of the metadata from what `where` leaves.",
    )
    sample: int | None = key(
        None, KeyClass.IDENTITY, "Only so many cases, drawn by id from what `where` and `split` leave.", ge=1
    )
    seed: int | None = key(
        None, KeyClass.IDENTITY, "Decides which cases are in the sample; 0 where absent.", ge=0, lt=2**63
    )
    repetitions: int = key(1, KeyClass.IDENTITY, "How often each case is asked of each variant.", ge=1, le=1_000_000)


class ColumnsTable(Table):
    id: Annotated[str, Field(min_length=1)] = key("id", KeyClass.IDENTITY, "The column with the case's id.")
    input: Any = key(
        "input",
        KeyClass.IDENTITY,
        "The column that is the input; a list of columns makes an input with their names as keys.",
        form="text, or list of text",
    )
    expected: Any = key(
        None,
        KeyClass.IDENTITY,
        "The same for what is expected. Where absent the column `expected`, if there is one.",
        form="text, or list of text",
    )
    metadata: list[Annotated[str, Field(min_length=1)]] | None = key(
        None, KeyClass.IDENTITY, "The columns that are metadata; all that are nothing else where absent."
    )


class SplitTable(Table):
    name: Name = key(..., KeyClass.IDENTITY, "The part that is asked.")
    of: dict[str, Any] = key(
        ...,
        KeyClass.IDENTITY,
        "All parts with their weights, as in `{ train = 80, test = 20 }`; laid out in the order of their names.",
        form="table of numbers",
    )
    by: Annotated[str, Field(min_length=1)] | None = key(
        None,
        KeyClass.IDENTITY,
        "A key of the metadata: all cases with one value there are in one part, and each case has to have it. By id"
        " where absent.",
    )
    seed: int = key(0, KeyClass.IDENTITY, "Another seed deals the cases out otherwise.", ge=0, lt=2**63)
