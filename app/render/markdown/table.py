"""Markdown tables, fitted to a width."""

from markdown_it.tree import SyntaxTreeNode

from app.render.lines import EMPTY, Line, Run, padded, width_of, wrapped
from app.render.markdown.inline import inline_lines

_GAP = " │ "
_MIN_COLUMN = 4

Cell = list[Line]


def table_lines(node: SyntaxTreeNode, width: int) -> list[Line]:
    """The rows of a table; columns shrink and their cells wrap where it is too wide."""
    rows = [[_cell(cell) for cell in row.children] for row in node.walk() if row.type == "tr"]
    n_columns = max((len(row) for row in rows), default=0)
    if n_columns == 0:
        return []
    natural = [
        max(max((width_of(line) for line in row[i]), default=0) for row in rows)
        for i in range(n_columns)
    ]
    widths = column_widths(natural, width - len(_GAP) * (n_columns - 1))
    rule = Run("─┼─".join("─" * w for w in widths), "rule")
    lines = _row_lines(rows[0], widths)
    lines.append((rule,))
    for row in rows[1:]:
        lines += _row_lines(row, widths)
    return lines


def column_widths(natural: list[int], room: int) -> list[int]:
    """Widths that sum to at most `room` where that is possible: the widest columns give way first.

    Args:
        natural: Cells that each column would like.
        room: Cells that there are, separators excluded.
    """
    widths = [max(w, 1) for w in natural]
    floor = max(1, min(_MIN_COLUMN, room // len(widths)))
    while sum(widths) > room:
        widest = max(widths)
        if widest <= floor:
            break
        second = max((w for w in widths if w < widest), default=floor)
        n_widest = widths.count(widest)
        cut = min(widest - max(second, floor), -(-(sum(widths) - room) // n_widest))
        widths = [w - max(cut, 1) if w == widest else w for w in widths]
    return widths


def _cell(node: SyntaxTreeNode) -> Cell:
    style = "strong" if node.type == "th" else ""
    return [line for child in node.children for line in inline_lines(child, style)] or [EMPTY]


def _row_lines(row: list[Cell], widths: list[int]) -> list[Line]:
    columns = [
        [part for line in cell for part in wrapped(line, width)]
        for cell, width in zip(row, widths, strict=True)
    ]
    height = max(len(column) for column in columns)
    return [
        tuple(run for runs in _with_gaps(columns, widths, i) for run in runs) for i in range(height)
    ]


def _with_gaps(columns: list[list[Line]], widths: list[int], i: int) -> list[Line]:
    parts: list[Line] = []
    for column, width in zip(columns, widths, strict=True):
        if parts:
            parts.append((Run(_GAP, "rule"),))
        parts.append(padded(column[i] if i < len(column) else EMPTY, width))
    return parts
