"""Text of strangers made harmless for a format: what a target or a judge said must stay what it is, a text.

Control characters, direction marks and lone surrogates become visible first (`printable`), as on the terminal.
"""

from __future__ import annotations

import re
from typing import Any, Final
from xml.sax.saxutils import escape

from ..ledger.canonical import canonical_text, printable

__all__ = ["csv_cell", "markdown_text", "plain", "xml_text"]

# What spreadsheets take for the beginning of a formula, the wide forms of East Asian keyboards too.
_FORMULA: Final = frozenset("=+-@\t\r\n＝＋－＠")
_MARKDOWN: Final = re.compile(r"([\\`*_{}\[\]()#|~!])")


def plain(value: Any) -> str:
    """Any JSON value as one harmless text: a text as it is, everything else as JSON."""
    return printable(value if isinstance(value, str) else canonical_text(value))


def csv_cell(value: Any) -> Any:
    """A value for a spreadsheet: numbers, booleans and nothing as they are, a text that is no formula.

    >>> csv_cell("=1+1"), csv_cell(-1), csv_cell(None)
    ("'=1+1", -1, '')
    """
    if type(value) is str:  # most cells are
        text = printable(value)
    elif isinstance(value, bool):
        return str(value).lower()
    elif value is None or isinstance(value, int | float):
        return "" if value is None else value
    else:
        text = plain(value)
    return f"'{text}" if text.lstrip(" ")[:1] in _FORMULA else text


def markdown_text(value: Any, *, length_max: int = 300) -> str:
    r"""A value for a cell of a table or a line: no markup, no HTML, no mention, no link, no further line.

    >>> markdown_text("a|b <b> @you")
    'a\\|b &lt;b&gt; &#64;you'
    """
    text = " ".join(plain(value).split())
    text = text if len(text) <= length_max else text[: length_max - 1] + "…"
    text = _MARKDOWN.sub(r"\\\1", escape(text)).replace("@", "&#64;").replace("://", ":&#47;/")
    return text.replace("www.", "www&#46;")


def xml_text(value: Any) -> str:
    """A value for a text of XML 1.0, which has no place for most control characters."""
    return escape(plain(value))
