"""Small tables, for a terminal and for a notebook: what statistics and reports print. Pure: values in, text out.

What came from outside (a topic's name, an error's words) steers neither: it is printable here, and escaped in HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from holdfast.errors import printable

Rows = Sequence[Sequence[object]]


def text_table(rows: Rows) -> str:
    """Columns side by side, as wide as they must be.

    >>> print(text_table([("segments", 12), ("tail", "3 records")]))
    segments  12
    tail      3 records
    """
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def html_table(rows: Rows) -> str:
    """The same for a notebook.

    >>> html_table([("store", "<b>")])
    '<table><tr><td>store</td><td>&lt;b&gt;</td></tr></table>'
    """
    lines = ("".join(f"<td>{escape(printable(str(cell)))}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
