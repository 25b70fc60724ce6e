"""The table of KV types and contexts."""

from app.planning.table import Cell, CostTable
from app.render import format as fmt
from app.render.lines import Line, Run

LABEL_WIDTH = 10
CELL_WIDTH = 9


def n_columns(width: int) -> int:
    """How many contexts have room."""
    return max(min((width - LABEL_WIDTH) // CELL_WIDTH, 8), 1)


def table_lines(table: CostTable) -> list[Line]:
    """A row of contexts, then the totals: `✗` does not fit, brackets are round the plan's own."""
    head = "".join(f"{fmt.context_size(n):>{CELL_WIDTH - 1}} " for n in table.contexts)
    lines: list[Line] = [(Run(f"{'':<{LABEL_WIDTH}}"), Run(head.rstrip(), "muted"))]
    for row in table.rows:
        label = Run(f"{row.label:<{LABEL_WIDTH}}", "muted")
        lines.append((label, *(_cell(cell) for cell in row.cells)))
    return lines


def _cell(cell: Cell) -> Run:
    if cell.total_bytes is None:
        text, style = fmt.NO_VALUE, "muted"
    elif cell.fits:
        text, style = _short(cell.total_bytes), ""
    else:
        text, style = f"✗{_short(cell.total_bytes)}", "bad"
    if cell.is_current:
        return Run(f"{f'[{text}]':>{CELL_WIDTH}}", f"strong {style}".strip())
    return Run(f"{text:>{CELL_WIDTH - 1}} ", style)


def _short(nbytes: int) -> str:
    """A size in at most five cells."""
    number, unit = fmt.nbytes(nbytes).split(" ")
    return f"{number}{unit[0]}"
