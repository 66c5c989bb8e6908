"""Finding a Python function that a work order names, and saying what code it is."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from ..ledger.canonical import JsonValue, digest_of_bytes, digest_of_value, printable
from ..ledger.errors import TargetNotFound, WorkOrderInvalid
from .tables import nearest

__all__ = ["code_digest", "code_identity", "find_object", "is_async", "name_of", "refuse_unfit"]

_PLAIN: Final = (str, bytes, int, float, bool, type(None))


def find_object(*, function: str, file: str | None, folder: Path, place: str) -> tuple[Any, str]:
    """The object under ``module:name``, or under ``name`` in a file, and the name to record for it.

    The folder (of the work order) and the file's own are appended to ``sys.path``, so that neighbours can be imported
    and nothing installed is hidden. Raises TargetNotFound, or WorkOrderInvalid for a name that cannot be one.
    """
    if file is None:
        module_name, colon, name = function.partition(":")
        if not colon or not module_name or not name:
            remedy = 'Write "module:name", or say in which file it is: file = "target.py"'
            raise WorkOrderInvalid(f'{place}.function: "{function}" names no module', remedy, place=f"{place}.function")
        module, recorded = _imported(module_name, folder, f"{place}.function"), function
    else:
        name = function
        module, recorded = _loaded(file, folder, f"{place}.file"), f"{file}:{function}"
    return _attribute(module, name, f"{place}.function", file or module.__name__), recorded


def _imported(module_name: str, folder: Path, place: str) -> ModuleType:
    _append_to_path(folder)
    try:
        return importlib.import_module(module_name)
    except Exception as cause:
        raise _unloadable(f"the module {module_name}", cause, place) from cause


def _loaded(file: str, folder: Path, place: str) -> ModuleType:
    path = (folder / file).resolve()
    if not path.is_file():
        raise TargetNotFound(f"{place}: there is no file {file} in {folder.resolve()}", "Correct the file's name")
    module_name = f"{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{digest_of_bytes(str(path).encode())[-12:]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise TargetNotFound(f"{place}: {file} is not a Python file", "Name a file that ends in .py")
    _append_to_path(path.parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as cause:
        del sys.modules[module_name]
        raise _unloadable(file, cause, place) from cause
    return module


def _append_to_path(folder: Path) -> None:
    entry = str(folder.resolve())
    if entry not in sys.path:
        sys.path.append(entry)


def _unloadable(what: str, cause: Exception, place: str) -> TargetNotFound:
    told = printable(f"{type(cause).__name__}: {cause}").replace("\n", " ")[:300]
    return TargetNotFound(f"{place}: {what} could not be imported ({told})", "Correct its name or its code")


def _attribute(module: ModuleType, name: str, place: str, shown: str) -> Any:
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            remedy = nearest(name, known) if known else "Correct its name"
            raise TargetNotFound(f'{place}: {shown} has no "{name}"', remedy) from None
    return found


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine; looks through `functools.partial` and into ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - it is the method that is asked about
    )


def refuse_unfit(function: Callable[..., Any], arguments: Mapping[str, JsonValue], *, place: str, name: str) -> None:
    """Raise WorkOrderInvalid where the function, called ``name`` there, does not take a case and these arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # built in, without a signature: the first call tells
    try:
        signature.bind(object(), **arguments)
    except TypeError as fault:
        raise WorkOrderInvalid(
            f"{place}: {name}({', '.join(signature.parameters)}) cannot be called with a case"
            f"{''.join(f', {argument}=...' for argument in arguments)} ({fault})",
            "Correct its parameters, or the table's arguments",
            place=place,
        ) from None


def name_of(function: Callable[..., Any]) -> str:
    """``module:qualified.name``, without any path or address."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', '') or '?'}:{named.__qualname__}"


def code_identity(function: Callable[..., Any]) -> dict[str, JsonValue]:
    """What code a function is: the digest of its module's file, and the distribution that this came from.

    Where there is no file (a notebook), the digest of the function's own byte code. ``functools.partial`` counts with
    its arguments where they are JSON.
    """
    bound: dict[str, JsonValue] = {}
    while isinstance(function, functools.partial):
        bound = {**_plain(dict(function.keywords)), **bound}
        function = function.func
    named: Any = function if hasattr(function, "__module__") else type(function)
    identity: dict[str, JsonValue] = {"bound": bound} if bound else {}
    module = sys.modules.get(getattr(named, "__module__", "") or "")
    path = Path(getattr(module, "__file__", None) or "")
    if path.is_file():
        identity["module_digest"] = digest_of_bytes(path.read_bytes())
        distribution = _distribution_of(path, getattr(module, "__name__", ""))
        if distribution is not None:
            identity["distribution"] = distribution
        return identity
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        identity["code_digest"] = code_digest(code)
    return identity


@functools.lru_cache(maxsize=1024)
def code_digest(code: CodeType) -> str:
    """The digest of byte code with what is nested in it, without any line number or path."""
    return digest_of_value(_told_code(code))


def _plain(values: dict[str, Any]) -> dict[str, JsonValue]:
    return {name: value for name, value in values.items() if isinstance(value, str | int | float | bool | None)}


def _told_code(code: CodeType) -> JsonValue:
    constants: list[JsonValue] = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_told_code(constant))
        else:
            constants.append(repr(constant) if isinstance(constant, _PLAIN) else type(constant).__name__)
    return [code.co_code.hex(), list(code.co_names), list(code.co_varnames), constants]


def _distribution_of(path: Path, module_name: str) -> str | None:
    if not {"site-packages", "dist-packages"} & set(path.parts):
        return None
    top = module_name.partition(".")[0]
    names = [top]
    try:
        importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        # Reads the file list of every installed distribution: only where the module's name is not its distribution's.
        names = sorted(set(importlib.metadata.packages_distributions().get(top, ())))
    return ", ".join(f"{name}=={importlib.metadata.version(name)}" for name in names) or None
