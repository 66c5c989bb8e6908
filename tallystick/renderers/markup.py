"""HTML put together from elements, so that every text is escaped unless it is markup already."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any, Final

from .safe_text import plain

__all__ = ["Markup", "element", "join", "table"]

_VOID: Final = frozenset({"input", "br", "meta"})


class Markup(str):
    """Text that is markup already; only `element` and `join` make it of anything else."""

    __slots__ = ()


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element; ``class_`` is the attribute ``class``, ``data_x`` is ``data-x``, True stands without a value.

    >>> element("b", "a < b", class_="x")
    '<b class="x">a &lt; b</b>'
    """
    head = "".join(_attribute(key, value) for key, value in attributes.items() if value not in (None, False))
    if name in _VOID:
        return Markup(f"<{name}{head}>")
    return Markup(f"<{name}{head}>{join(children)}</{name}>")


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(_text(value))}"'


def join(parts: Iterable[object]) -> Markup:
    """The parts behind each other, each escaped unless it is markup; None is nothing."""
    return Markup(
        "".join(part if isinstance(part, Markup) else escape(_text(part)) for part in parts if part is not None)
    )


def table(columns: Iterable[str], rows: Iterable[Iterable[object]], **attributes: object) -> Markup:
    """A table that scrolls where it is too wide; columns that begin with ``>`` are numbers, with ``@`` instants."""
    heads = list(columns)
    sides = [{">": "n", "@": "when"}.get(head[:1]) for head in heads]
    top = [element("th", head.lstrip(">@"), class_=side, scope="col") for head, side in zip(heads, sides, strict=True)]
    body = [
        element("tr", *(element("td", cell, class_=side) for cell, side in zip(row, sides, strict=True)))
        for row in rows
    ]
    inner = element("table", element("thead", element("tr", *top)), element("tbody", *body), **attributes)
    return element("div", inner, class_="scroll", tabindex="0")


def _text(value: Any) -> str:
    return value if isinstance(value, Markup) else plain(value)
