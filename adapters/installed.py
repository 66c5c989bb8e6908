"""Adapters that other packages bring: whose they are, and that package's name and version in what identifies them.

An adapter's package is code that an answer or a verdict depends on, and its version is what it goes by: another version
is another run. Raising it with every change of behaviour is the package's part.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from ..ledger.canonical import JsonValue
from ..ledger.errors import UsageError

__all__ = ["Package", "entry_points_of", "package_of", "with_package"]

_UNKNOWN: Final = "unknown"


@attrs.frozen
class Package:
    """A distribution by the name and version that its metadata says."""

    name: str
    version: str

    def __str__(self) -> str:
        return "of no package" if self.name == _UNKNOWN else f"{self.name} {self.version}"


def entry_points_of(group: str) -> dict[str, tuple[importlib.metadata.EntryPoint, ...]]:
    """What is installed, by kind; several where several packages claim one."""
    found: dict[str, tuple[importlib.metadata.EntryPoint, ...]] = {}
    for point in importlib.metadata.entry_points(group=group):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


def package_of(point: importlib.metadata.EntryPoint) -> Package:
    """Whose it is; ``unknown`` for what its metadata does not say, or is broken."""
    dist = point.dist
    return Package(_said(dist, "name"), _said(dist, "version"))


def _said(dist: importlib.metadata.Distribution | None, what: str) -> str:
    # Where a field is missing, newer Pythons raise and older ones give None.
    try:
        return getattr(dist, what, None) or _UNKNOWN
    except Exception:  # noqa: BLE001 - metadata is a file that anybody may have broken
        return _UNKNOWN


class _Installed:
    """An adapter with its package. Everything but ``identity`` is the adapter's own."""

    __slots__ = ("_made", "_package")
    _made: Any
    _package: Package

    def __init__(self, made: Any, package: Package) -> None:
        object.__setattr__(self, "_made", made)
        object.__setattr__(self, "_package", package)

    def identity(self) -> Mapping[str, JsonValue]:
        """What it says itself, and the package that it comes from."""
        package = {"name": self._package.name, "version": self._package.version}
        told: object = self._made.identity()
        if not isinstance(told, Mapping):
            what = f"an adapter of {self._package} says no identity, but {type(told).__name__}"
            raise UsageError(what, "Its identity() has to return a mapping; report it to that package")
        return {**told, "adapter_package": package}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._made, name, value)

    def __repr__(self) -> str:
        return f"<{self._made!r} of {self._package}>"


def with_package(made: Any, package: Package) -> Any:
    """The adapter, with the package that brought it in its identity."""
    names = tuple(name for name in dir(made) if not name.startswith("_") and name != "identity")
    return _kind_of(type(made).__name__, names)(made, package)


@functools.lru_cache(maxsize=256)
def _kind_of(name: str, names: Sequence[str]) -> type[_Installed]:
    # Protocols are looked for in the class since Python 3.12, where `__getattr__` does not count.
    own = {one: property(functools.partial(_own, one)) for one in names}
    return type(f"Installed{name}", (_Installed,), {"__slots__": (), **own})


def _own(name: str, wrapped: _Installed) -> Any:
    return getattr(wrapped._made, name)
