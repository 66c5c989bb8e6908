"""Prices as a table of a work order names them: a table of its own, or a price file beside the work order."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..ledger.canonical import parse_json
from ..ledger.errors import WorkOrderInvalid
from .outcomes import one_line
from .prices import PriceTable, read_prices

__all__ = ["prices_of"]

_BYTES_MAX: Final = 4 * 1024 * 1024


def prices_of(told: str | Mapping[str, Any], *, folder: Path, place: str) -> PriceTable:
    """The prices of a table, or of the TOML or JSON file that a text names; raises WorkOrderInvalid."""
    if isinstance(told, str):
        return read_prices(_read_file(told, folder, place), place=f"{place} ({told})", file=told)
    return read_prices(told, place=place)


def _read_file(name: str, folder: Path, place: str) -> Mapping[str, Any]:
    path = folder / name
    try:
        with path.open("rb") as file:
            raw = file.read(_BYTES_MAX + 1)
        if len(raw) > _BYTES_MAX:
            raise ValueError(f"it has more than {_BYTES_MAX} bytes")
        text = raw.decode("utf-8")
        found = parse_json(text) if path.suffix == ".json" else tomllib.loads(text)
        if not isinstance(found, Mapping):
            raise ValueError("it is no table")
    except OSError as fault:
        what = f"{place}: the price file {name} cannot be read ({fault.strerror})"
        raise WorkOrderInvalid(what, "Name a file beside the work order, or write a table", place=place) from fault
    except (ValueError, RecursionError) as fault:
        told = one_line(str(fault))
        what = (
            f"{place}: the price file {name} is not readable as {'JSON' if path.suffix == '.json' else 'TOML'} ({told})"
        )
        raise WorkOrderInvalid(what, "Correct the file", place=place) from fault
    return found
